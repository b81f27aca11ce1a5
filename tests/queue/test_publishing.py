"""Publishing: when one by one tries to compress, which takes as long as appending does; and the
time that messages get."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import tailrace
from tailrace import Full, Queue, Record, Store
from tailrace.queue.publishing import Until
from tests.queue.clocks import ManualClock
from tests.queue.support import offsets, one

PLAIN = b"the same again and again, " * 80
NOISE = random.Random(5).randbytes(2000)


def sizes(queue: Queue) -> list[int]:
    return [len(batch.data) for batch in queue.log.read_batches(0)]


def test_small_messages_do_not_keep_large_ones_from_being_compressed(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        for _ in range(5):
            queue.publish(b"x")
            queue.publish(PLAIN)
        assert all(size < len(PLAIN) / 2 for size in sizes(queue))


def test_of_messages_that_do_not_shrink_few_are_tried(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish(NOISE)
        for _ in range(40):
            queue.publish(PLAIN)
        is_compressed = [size < len(PLAIN) / 2 for size in sizes(queue)[1:]]
        assert is_compressed == [False] * 31 + [True] * 9


def test_a_few_bytes_more_than_is_ever_compressed(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish(NOISE[:256])  # tried, because of the headers
        queue.publish(PLAIN)
        assert sizes(queue)[1] > len(PLAIN)


# --- the time of messages -----------------------------------------------------------------------


def test_every_message_has_the_time_of_the_stores_clock(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.publish(b"plain")
    queue.publish(b"headers", headers={"a": "b"})
    queue.publish(b"ttl", ttl=5)
    queue.publish_many([b"many"])
    store.publish("$queue/q", b"topic")
    queue.log.append([Record(value=b"log")])
    queue.publish(b"its own", timestamp=7)
    clock.advance("1h")
    queue.publish(b"later")
    start = clock.wall_ms() - 3_600_000
    assert [m.timestamp for m in queue.read()] == [start] * 6 + [7, clock.wall_ms()]
    assert [m.value for m in queue.read(timestamp=start + 1)] == [b"later"]
    one(queue.consumer("w")).reject()
    [letter] = store.dead("q")
    assert letter.timestamp == clock.wall_ms()


def test_how_old_the_oldest_is(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.group("w")
    queue.publish(b"x")
    clock.advance("1h")
    assert queue.stats().oldest_age_ms == 3_600_000


def test_what_is_done_once_is_known_for_as_long_as_the_clock_says(
    store: Store, clock: ManualClock
) -> None:
    log = store.queue("q", producer_expiry="1d").log
    first = log.append([b"x"], producer="p", sequence=1).offset
    store.queue("q").close()
    clock.advance("23h")
    log = store.queue("q").log
    assert log.append([b"x"], producer="p", sequence=1).offset == first
    store.queue("q").close()
    clock.advance("25h")
    assert store.queue("q").log.append([b"x"], producer="p", sequence=1).offset > first


def test_the_short_cut_for_messages_that_expire(tmp_path: Path) -> None:
    """What is published without headers of its own has the same as any other."""
    with tailrace.open(tmp_path, flush="async") as store:
        queue = store.queue("q", limits={"message_ttl": "1h"})
        key = "1000000000000/x"  # looks like a time
        queue.publish(b"a", ttl=5, routing_key=key)
        queue.publish(b"b", routing_key=key)
        queue.publish(b"c", ttl=5, routing_key=key, headers={})
        queue.publish(b"d", ttl=5, routing_key=key, delay=1)
        plain, by_queue, usual = queue.read()
        for message in (plain, by_queue, usual):
            assert message.topic == f"$queue/q/{key}"
            assert sorted(message.record.headers) == ["_expires_at", "_id", "_state", "_topic"]
            assert message.expires_at is not None
        assert usual.expires_at - plain.expires_at < 5_000  # type: ignore[operator]
        assert by_queue.expires_at - plain.expires_at > 3_000_000  # type: ignore[operator]


def test_times_of_fewer_digits(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="async", clock=ManualClock(wall_ms=7_000)) as store:
        queue = store.queue("q")
        queue.publish(b"x", ttl=5)
        assert [message.expires_at for message in queue.read()] == [12_000]


# --- many at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [None, "1h", "100000d"])
def test_many_are_what_they_are_one_by_one(tmp_path: Path, ttl: str | None) -> None:
    """Whether all of them are plain values, or one is something else."""
    values: list[Any] = [
        b"a",
        "b",
        None,
        (b"k", b"c"),
        (None, b"d"),
        ("k", "e", {"h": "i"}),
        bytearray(b"f"),
    ]
    values.append(("k", b"g", None))
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish_many(values, routing_key="r", ttl=ttl)
        queue.publish_many([b"a", b"b"], routing_key="r", ttl=ttl)
        for value in [*values, b"a", b"b"]:
            key, content, headers = None, cast(Any, value), None
            if isinstance(value, tuple):
                key, content, headers = (*value, None)[:3]
            queue.publish(content, key=key, headers=headers, routing_key="r", ttl=ttl)
        records = list(queue.log.read(0))
        described = [
            (record.key, record.value, sorted(name for name, _ in record.headers.pairs))
            for record in records
        ]
        assert described[:10] == described[10:]
        assert {record.headers["_topic"] for record in records} == {b"$queue/q/r"}
        assert len({record.headers["_id"] for record in records}) == 20


def test_more_than_are_looked_at_together(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        numbers = [b"%d" % number for number in range(2500)]
        queue.publish_many(number for number in numbers)
        queue.publish_many([*numbers[:1500], ("k", b"x"), *numbers[:700]])
        found = [record.value for record in queue.log.read(0)]
        assert found == [*numbers, *numbers[:1500], b"x", *numbers[:700]]


def test_one_of_many_that_is_too_large(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q", limits={"max_message_size": 10})
        with pytest.raises(Full, match="11 bytes is more than the queue 'q' takes"):
            queue.publish_many([b"x" * 10] * 1200 + [b"x" * 11])
        assert queue.log.end_offset == 0
        queue.publish_many([b"x" * 10] * 1200)


WRONG: list[tuple[type[Exception], Any]] = [
    (TypeError, 3),
    (TypeError, (b"k", 3)),
    (TypeError, (3, b"x")),
    (TypeError, (b"k", b"x", {"a": 5})),
    (ValueError, (b"k", b"x", {"_a": "b"})),
    (Full, bytes(501)),
    (Full, "x" * 501),
    (Full, (bytes(3000), b"x")),
]


@pytest.mark.no_cover
@pytest.mark.parametrize("limits", [{}, {"max_depth": 900}, {"max_depth": 900, "on_full": "block"}])
@pytest.mark.parametrize(
    "hold", [list, tuple, deque, lambda values: dict(enumerate(values)).values()]
)
@pytest.mark.parametrize(("error", "wrong"), WRONG)
def test_of_what_is_held_all_or_nothing_is_published(
    tmp_path: Path, error: type[Exception], wrong: Any, hold: Any, limits: dict[str, Any]
) -> None:
    """Also if it is more than a batch."""
    limits = {"max_message_size": 500, **limits}
    with Store(tmp_path, flush="none", compression="none") as store:
        queue = store.queue("q", limits=limits, max_batch_bytes=2000)
        for usual in (bytes(100), "x" * 100, (b"k", bytes(100))):
            with pytest.raises(error) as caught:
                queue.publish_many(hold([usual] * 100 + [wrong]))
            assert len(queue) == 0
            assert not hasattr(caught.value, "__notes__")
        queue.publish_many(hold([bytes(100), "x"] * 100))
        assert len(queue) == 200
        assert len(sizes(queue)) > 3


def test_one_that_no_batch_holds_is_known_before(tmp_path: Path) -> None:
    """Though the queue has no limit of its own."""
    with Store(tmp_path, flush="none", compression="none") as store:
        queue = store.queue("q", limits={"max_message_size": 0}, max_batch_bytes=2000)
        for wrong in (bytes(2001), (b"k", bytes(2001))):
            with pytest.raises(Full, match="max_batch_bytes"):
                queue.publish_many([bytes(100)] * 100 + [wrong])
        assert len(queue) == 0
        queue.publish_many([bytes(1800)] * 3)
        assert len(queue) == 3


def test_an_iterator_is_published_while_it_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none", compression="none") as store:
        queue = store.queue("q", max_batch_bytes=2000)
        wrong: Any = 3
        with pytest.raises(TypeError) as caught:
            queue.publish_many(iter([bytes(100)] * 2000 + [wrong]))
        assert 0 < len(queue) < 2000
        assert caught.value.__notes__ == [f"the {len(queue)} records before were appended"]


@pytest.mark.parametrize("ttl", [None, "3s"])
def test_what_comes_by_and_by_lives_from_when_it_is_published(
    store: Store, clock: ManualClock, ttl: str | None
) -> None:
    queue = store.queue("q", max_batch_bytes=2000, limits={"message_ttl": "3s"})
    consumer, left = queue.consumer("w"), Until(clock.wall_ms() + 12_500)

    def coming() -> Iterator[bytes]:
        for _ in range(4):
            yield from [bytes(1800)] * 3
            clock.advance(4)

    queue.publish_many(coming(), ttl=ttl)
    assert {m.expires_at - m.timestamp for m in queue.read()} == {3000}  # type: ignore[operator]
    assert offsets(consumer.receive(99)) == [11]  # in the last batch, after a look at the end
    queue.publish_many(coming(), ttl=left)
    assert {m.expires_at for m in queue.read(12)} == {int(left)}


def test_the_disk_may_become_too_full_while_an_iterator_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, taken = store.queue("q", max_batch_bytes=2000), list[int]()

    def coming() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            if number == 10:
                monkeypatch.setattr(store.disk, "check", refuse)
            yield bytes(1000)

    def refuse() -> None:
        raise Full("the disk is too full")

    with pytest.raises(Full, match="the disk") as caught:
        queue.publish_many(coming())
    assert len(queue) <= len(taken) < 15
    assert caught.value.__notes__ == [f"the {len(queue)} records before were appended"]


def test_no_more_is_taken_of_an_iterator_than_a_queue_may_ever_hold(tmp_path: Path) -> None:
    numbers = itertools.count()
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q", limits={"max_depth": 10, "on_full": "drop_oldest"})
        queue.publish_many(b"%d" % next(numbers) for _ in range(10))
        with pytest.raises(Full, match="max_depth is 10"):
            queue.publish_many(b"%d" % each for each in itertools.islice(numbers, 10_000))
        assert next(numbers) == 21
        assert len(queue) == 10


def test_nor_by_tasks(tmp_path: Path) -> None:
    async def publish() -> None:
        numbers = itertools.count()
        async with tailrace.aio.open(tmp_path, flush="none") as store:
            queue = await store.queue("q", limits={"max_depth": 10, "on_full": "block"})
            with pytest.raises(Full, match="max_depth is 10"):
                await queue.publish_many(b"%d" % each for each in itertools.islice(numbers, 10_000))
            assert next(numbers) == 11
            await queue.publish_many(b"%d" % number for number in range(10))
            assert len([message async for message in queue.read()]) == 10

    asyncio.run(publish())


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
@pytest.mark.parametrize("max_depth", [0, 9])
def test_what_no_batch_holds_is_full_however_it_is_published(
    store: Store, on_full: str, max_depth: int
) -> None:
    """Also below the usual `max_message_size`, which nobody has chosen; a key and headers count."""
    limits = {"max_depth": max_depth, "on_full": on_full}
    queue = store.queue("q", max_batch_bytes=1000, compression="none", limits=limits)
    other = store.queue("other")
    big = bytes(2000)
    once: dict[str, Any] = {"producer": "p", "sequence": 1}
    ways: list[Callable[[], object]] = [
        lambda: queue.publish(big),
        lambda: queue.publish(b"x", key=big),
        lambda: queue.publish(b"x", headers={"h": big}),
        lambda: queue.publish(big, message_id="1"),
        lambda: queue.publish(big, **once),
        lambda: queue.publish(big, delay=9),
        lambda: queue.publish(big, delay=9, headers={"h": "x"}),
        lambda: queue.publish_many([big]),
        lambda: queue.publish_many([(big, b"x")]),
        lambda: queue.publish_many([b"x", big], **once),
        lambda: store.publish("$queue/q", big),
        lambda: store.publish("$queue/q", big, headers={"h": "x"}),
        lambda: store.publish("$queue/q", big, **once),
        lambda: store.publish("$queue/q", big, delay=9),
    ]
    for way in ways:
        with pytest.raises(
            Full, match=r"^a message of [\d,]+ bytes, .* 'q' takes: max_batch_bytes"
        ):
            way()
    assert len(queue) == 0
    other.publish(b"x")
    [message] = other.consumer("w").receive()
    with pytest.raises(Full, match="max_batch_bytes is 1,000"):
        message.ack(publish=[(queue, b"x"), (queue, big)])
    message.ack(publish=[(queue, b"x")])
    with pytest.raises(Full, match="max_batch_bytes is 1,000"):
        queue.publish_many([bytes(900), big])
    assert len(queue) == 1
