"""Messages that come again: each batch is read once for them, and others get their turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import Log, Store
from tailrace.kernel import Record, decode
from tailrace.log import picks
from tailrace.log.reader import Reader
from tailrace.queue import classic, scanning
from tailrace.queue.feed import Feed
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import numbers, offsets, values


class Work:
    """How often something was read, and how many records were decoded."""

    regions = decoded = calls = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted, read = Work(), Reader.regions

    def regions(self: Reader, *args: Any) -> Iterator[Any]:
        for region in read(self, *args):
            counted.regions += 1
            yield region

    def decoded(*args: Any) -> list[Record]:
        records = decode(*args)
        counted.calls += 1
        counted.decoded += len(records)
        return records

    monkeypatch.setattr(Reader, "regions", regions)
    monkeypatch.setattr(picks, "decode", decoded)
    return counted


batches = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 400])), min_size=1, max_size=9)
asked = st.lists(st.sets(st.integers(0, 400)), max_size=6)


@pytest.mark.no_cover
@given(
    batches,
    asked,
    st.sampled_from(["none", "s2"]),
    st.sampled_from([1, 20, 4096]),
    st.sampled_from([0, 3000, 1 << 20]),
)
def test_what_is_asked_for_comes_whatever_was_kept(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[int, int]],
    wanted: list[set[int]],
    compression: str,
    apart: int,
    kept: int,
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        Log(tmp_path_factory.mktemp("log"), flush="async", compression=compression) as log,
    ):
        patch.setattr(picks, "_APART", apart)
        patch.setattr(picks, "LARGEST_KEPT", kept)
        for count, size in made:
            end = log.end_offset
            log.append([b"%d" % offset * size for offset in range(end, end + count)])
        expected = {record.offset: record.value for record in log.read()}
        feed = Feed(log)
        for some in wanted:
            found = feed.read_at(sorted(some))
            assert [r.offset for r in found] == sorted(some & expected.keys())
            assert all(r.value == expected[r.offset] for r in found)
            region = feed._picks._region
            assert region is None or len(region.data) <= kept
        feed.close()
        assert feed._picks._region is None


def test_a_batch_is_read_and_decoded_once_for_a_call(tmp_path: Path, work: Work) -> None:
    with Log(tmp_path, flush="async") as log:
        for _ in range(3):
            log.append([b"value"] * 6000)
        feed = Feed(log)
        assert len(feed.read_at(range(1, 18_000, 2))) == 9000
        assert work.regions <= 3
        assert work.decoded <= 18_100
        work.decoded = 0
        assert len(feed.read_at([100, 5900, 12_100])) == 3  # far apart: not what lies between
        assert work.decoded <= 3 * 17
        feed.close()


@pytest.mark.no_cover
@pytest.mark.parametrize("step", [1, 2])
def test_who_goes_on_one_by_one_decodes_it_once(tmp_path: Path, work: Work, step: int) -> None:
    with Log(tmp_path, flush="async") as log:
        log.append([b"value"] * 6000)
        feed = Feed(log)
        for offset in range(0, 6000, step):
            assert [record.offset for record in feed.read_at([offset])] == [offset]
        assert work.regions <= 2
        assert work.calls <= 16
        assert work.decoded <= 6000
        assert (feed._picks._region is None) == (step == 1)  # nothing is left in it
        feed.close()


def test_what_is_deleted_or_damaged_is_missing_and_nothing_else(tmp_path: Path) -> None:
    with Log(tmp_path, flush="async", segment_bytes=8192, compression="none") as log:
        for number in range(60):
            log.append([b"%d" % number * 100] * 10)
        log.truncate_before(105)
        feed = Feed(log)
        whole = range(105, 600)
        assert [r.offset for r in feed.read_at(range(0, 700, 3))] == list(whole[::3])
        feed.reset()
        lost = range(300, 310)
        segment, place = max(
            (path, data.find(b"30" * 100))
            for path in tmp_path.glob("*.seg")
            if b"30" * 100 in (data := path.read_bytes())
        )
        with segment.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        for wanted in (range(1, 600, 2), range(302, 320), [*range(100, 300, 7), 305, 306, 311]):
            expected = [each for each in wanted if each in whole and each not in lost]
            assert [r.offset for r in feed.read_at(wanted)] == expected
        log.truncate_before(400)
        log.vacuum()
        assert [r.offset for r in feed.read_at(range(290, 500, 5))] == list(range(400, 500, 5))
        feed.close()


def test_retention_that_is_faster_takes_only_what_it_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path, flush="async", segment_bytes=4096) as log:
        for number in range(60):
            log.append([b"%d" % number * 100] * 10)
        feed = Feed(log)
        look = feed._tailing.look
        views = iter([look()])
        log.truncate_before(400)
        log.vacuum()
        monkeypatch.setattr(feed._picks, "_look", lambda: next(views, None) or look())
        assert [r.offset for r in feed.read_at(range(1, 600, 2))] == list(range(401, 600, 2))
        feed.close()


# --- claims -----------------------------------------------------------------------------------


def test_one_turn_claims_some_and_a_call_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "SCAN_MOST", 10)
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        consumer = queue.consumer("w")
        queue.publish_many(numbers(100))
        got = consumer.receive(90)
        consumer.ack(got[::2])
        consumer.release(got[1::2])
        claims: list[int] = []
        commit = consumer._group.commit

        def count(*ops: Any) -> None:
            claims.extend(sum(op["again"][1::2]) for op in ops if "again" in op)
            commit(*ops)

        monkeypatch.setattr(consumer._group, "commit", count)
        again = consumer.receive(50)
        assert offsets(again) == [*range(1, 90, 2), *range(90, 95)]
        assert claims == [10, 10, 10, 10, 5]
        consumer.release(again)
        assert offsets(consumer.receive(20)) == [*range(1, 40, 2)]
        consumer.ack(consumer.receive(100))
        assert [p.offset for p in queue.pending("w")] == [*range(1, 40, 2)]


def test_a_suspect_is_alone_however_many_turns_it_takes(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "SCAN_MOST", 5)
    queue = open_store().queue("q", visibility_timeout="1s")
    consumer = queue.consumer("w")
    queue.publish_many(numbers(30))
    first, suspects = consumer.receive(10), consumer.receive(2)
    clock.advance(1100)
    consumer.release(first)
    assert offsets(consumer.receive(20)) == [*range(10), *range(12, 22)]
    assert offsets(consumer.receive(20)) == offsets(suspects[:1])


@pytest.mark.parametrize("again", [True, False])
def test_a_lease_begins_when_the_messages_were_read(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    queue = open_store().queue("q", visibility_timeout="3s")
    consumer = queue.consumer("w")
    queue.publish_many(numbers(30))
    if again:
        consumer.release(consumer.receive(30))
    for name in ("read_at", "promise", "take"):
        monkeypatch.setattr(Feed, name, slowly(getattr(Feed, name), clock))
    for most in (1, 20):
        assert len(consumer.receive(most)) == most
        assert queue.pending("w")[-1 if not again else most - 1].left >= 3.0


def slowly(read: Any, clock: ManualClock) -> Any:
    def wrapped(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        clock.advance(8000)
        return found

    return wrapped


def test_a_busy_key_does_not_have_its_batch_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    """Also when so many wait that nobody looks further."""
    monkeypatch.setattr(scanning, "_PARKED_MOST", 100)
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        consumer = queue.consumer("w", key_order=True)
        queue.publish_many([("a", value) for value in numbers(500)])
        found: list[Any] = []
        while messages := consumer.receive(10):
            found += values(messages)
            consumer.ack(messages)
        assert found == numbers(500)
        assert work.regions <= 4
        assert work.calls <= 30


def test_suspects_that_come_alone_do_not_have_their_batch_read_each_time(
    open_store: OpenStore, clock: ManualClock, work: Work
) -> None:
    queue = open_store().queue("q", visibility_timeout="1s")
    consumer = queue.consumer("w")
    queue.publish_many(numbers(300))
    assert len(consumer.receive(300)) == 300
    clock.advance(1100)
    work.regions = 0
    found: list[int] = []
    while messages := consumer.receive(100):
        assert len(messages) == 1
        found += offsets(messages)
        consumer.ack(messages)
    assert found == list(range(300))
    assert work.regions <= 2
    assert work.calls <= 16
