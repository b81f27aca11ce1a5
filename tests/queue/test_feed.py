"""The feed of a group: what is promised, prepared or taken comes once, and in order."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import LeaseLost, Log, Record, Store
from tailrace.log import portions
from tailrace.queue.feed import Feed
from tests.queue.support import numbers, offsets, values

SPECIAL = (b"_x", b"_y")

# Batches: how many records, how large, and whether one of them is special.
batches = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from([3, 300]), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "promise", "promise", "prepare", "skip", "append", "reset"]),
        st.integers(0, 50),
    ),
    max_size=30,
)


def append(log: Log, count: int, size: int, kind: int) -> None:
    first = log.end_offset
    records: list[Any] = [
        Record(value=b"%d" % offset * size, headers={"a": b"_x"})
        for offset in range(first, first + count)
    ]
    if kind == 3:
        records[count // 2] = Record(value=records[count // 2].value, headers={"_y": b""})
    log.append(records)


@pytest.mark.no_cover
@example([(1, 3, 0)] * 3, [("take", 1), ("take", 1), ("take", 0)], "none", 1)
@given(batches, steps, st.sampled_from(["none", "s2"]), st.sampled_from([1, 1000, 256 << 10]))
def test_each_record_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[int, int, int]],
    chosen: list[tuple[str, int]],
    compression: str,
    read: int,
) -> None:
    """`read`: so many bytes are read at a time."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Log(tmp_path_factory.mktemp("log"), flush="async", compression=compression) as log,
    ):
        patch.setattr(portions, "_READ", read)
        for batch in made:
            append(log, *batch)
        feed, cursor = Feed(log, SPECIAL), 0
        for step, number in chosen:
            if step == "append":
                append(log, number % 7 + 1, 3, number % 4)
            elif step == "prepare":  # by a hint that may be wrong
                feed.prepare(cursor + 10 * (number - 20))
            elif step == "skip":  # others have claimed some
                cursor = min(cursor + number, log.end_offset)
            elif step == "reset":
                feed.reset()
            elif step == "promise":
                promises, behind, is_read = feed.promise(cursor, number)
                found = [record for promise in promises for record in promise]
                if is_read:  # what is left was read, too
                    more, behind = feed.take(behind, number - len(found), is_read=True)
                    found += more
                    assert len(found) == min(number, log.end_offset - cursor)
                assert [r.offset for r in found] == list(range(cursor, behind))
                assert len(found) <= number
                assert is_read or not any(r.headers.get("_y") is not None for r in found)
                check(found)
                cursor = behind
            else:
                found, behind = feed.take(cursor, number)
                assert [r.offset for r in found] == list(range(cursor, behind))
                assert len(found) == min(number, log.end_offset - cursor)
                check(found)
                cursor = behind
        rest, behind = feed.take(cursor, 10_000)
        assert [r.offset for r in rest] == list(range(cursor, log.end_offset))
        feed.close()


def check(records: list[Record]) -> None:
    for record in records:
        number = b"%d" % (record.offset or 0)
        assert record.value in (number * 3, number * 300)


def test_a_promise_is_kept_after_the_feed_has_read_on(tmp_path: Path) -> None:
    """The bytes that were read are not those that are read next, compressed or not."""
    with Log(tmp_path, flush="async") as log:
        for _ in range(5):
            log.append([b"%d" % number * 2000 for number in range(200)])
        feed = Feed(log)
        promises = [feed.promise(first, 100)[0] for first in range(0, 1000, 100)]
        found = [record for each in promises for promise in each for record in promise]
        assert [record.value for record in found] == [b"%d" % n * 2000 for n in range(200)] * 5
        feed.close()


def test_what_was_deleted_or_lost_is_left_to_those_who_look(tmp_path: Path) -> None:
    with Log(tmp_path, flush="async", segment_bytes=4096) as log:
        for number in range(40):
            log.append([b"%d" % number * 100] * 10)
        feed = Feed(log)
        feed.prepare(0)
        log.truncate_before(200)
        log.vacuum()
        promises, behind, _ = feed.promise(0, 50)
        found = [record.offset for promise in promises for record in promise]
        assert found == list(range(behind))
        records, behind = feed.take(behind, 50)
        assert records
        assert behind == (records[-1].offset or 0) + 1
        feed.prepare(10**12)  # nothing is there
        feed.prepare(0)
        records, _ = feed.take(behind, 5)
        assert [record.offset for record in records] == list(range(behind, behind + 5))
        feed.close()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_goes_wrong_before_the_turn_is_met_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(_self: object) -> None:
        raise error

    with Log(tmp_path, flush="async") as log:
        log.append(numbers(100))
        feed = Feed(log)
        assert feed.promise(0, 10)[1] == 10
        with monkeypatch.context() as patch:
            patch.setattr(portions.Portions, "prepare", fail)
            with nullcontext() if error is OSError else pytest.raises(error):
                feed.prepare(20)
        feed.prepare(30)  # begun anew: nothing is known of where it will go on
        records, behind = feed.take(10, 10)
        assert [record.offset for record in records] == list(range(10, behind))
        feed.close()


def test_two_who_claim_in_turn_get_all_that_is_for_them(tmp_path: Path) -> None:
    """Some have expired, some are for another group, and some of the batches are plain."""
    with Store(tmp_path, upkeep=False) as store, Store(tmp_path, upkeep=False) as other:
        queue = store.queue("q")
        consumers = [each.queue("q").consumer("w") for each in (store, other)]
        expected = []
        for number in range(30):
            batch = [b"%d.%d" % (number, each) for each in range(25)]
            queue.publish_many(batch)
            expected += batch
            if number % 5 == 0:
                queue.publish(b"late", ttl="1ms")
            if number % 7 == 0:
                queue.publish(b"in time", ttl="1h")
                expected.append(b"in time")
        found: list[Any] = []
        while any(messages := [consumer.receive(20) for consumer in consumers]):
            for consumer, got in zip(consumers, messages, strict=True):
                assert len(got) == 20 or len(found) + 40 > len(expected)
                found += values(got)
                if got:
                    consumer.ack(got)
        assert found == expected


@pytest.mark.parametrize("settle", ["all", "turned", "twice", "half"])
def test_a_batch_is_settled_in_whatever_order(tmp_path: Path, settle: str) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(40))
        consumer = queue.consumer("w")
        first, second = consumer.receive(20), consumer.receive(20)
        assert offsets(first + second) == list(range(40))
        if settle == "turned":
            consumer.ack(first[::-1])
        elif settle == "twice":
            consumer.ack(first + first)
        elif settle == "half":
            consumer.ack(first[::2])
            consumer.ack(first[1::2])
        else:
            consumer.ack(first)
        assert consumer._group.progress() == (40, 20)
        assert [p.offset for p in queue.pending("w")] == list(range(20, 40))
        queue.group("w").reset(0)
        again = consumer.receive(20)
        with pytest.raises(LeaseLost):
            consumer.ack(first)
        consumer.ack(again)
