"""`limits.max_depth`: what happens to publishers when a queue holds too much."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace
from tailrace import Closed, ConfigError, Full, Log, Message, Queue, Store, Stream, aio
from tailrace.queue.lease import Lease
from tailrace.queue.outlook import Outlook
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, one, values


def limited(store: Store, most: int, on_full: str = "raise") -> Queue:
    return store.queue("q", limits={"max_depth": most, "on_full": on_full})


def fill(queue: Queue | Stream, count: int) -> None:
    for number in range(count):
        queue.publish(str(number))


def test_what_is_not_settled_counts(store: Store) -> None:
    queue = limited(store, 3)
    fill(queue, 3)
    with pytest.raises(Full, match=r"'q' has as many .* limits.max_depth allows \(3\)"):
        queue.publish(b"x")
    consumer = queue.consumer("w")
    first, second = consumer.receive(2)
    with pytest.raises(Full):  # a lease is not a settlement
        queue.publish(b"x")
    second.ack()
    queue.publish(b"x")
    with pytest.raises(Full):
        queue.publish(b"y")
    first.reject()
    queue.publish(b"y")
    assert values(queue.peek("w", 9)) == [b"2", b"x", b"y"]


def test_the_slowest_group_counts(store: Store) -> None:
    queue = limited(store, 2)
    fill(queue, 2)
    slow, fast = queue.consumer("slow"), queue.consumer("fast")
    assert len(drain(fast)) == 2
    with pytest.raises(Full):
        queue.publish(b"x")
    assert len(drain(slow)) == 2
    queue.publish(b"x")


def test_without_groups_everything_counts(store: Store) -> None:
    queue = limited(store, 2)
    fill(queue, 2)
    with pytest.raises(Full):
        queue.publish(b"x")
    assert len(queue) == 2


def test_a_batch_fits_or_nothing_of_it_is_published(store: Store) -> None:
    queue = limited(store, 4)
    queue.publish_many(numbers(3))
    with pytest.raises(Full):
        queue.publish_many(numbers(2))
    assert len(queue) == 3
    queue.publish_many(number for number in numbers(1))
    with pytest.raises(Full, match=r"5 messages at once .* limits.max_depth is 4"):
        limited(store, 4, "block").publish_many(numbers(5))


def test_a_fan_out_reaches_all_or_nobody(store: Store) -> None:
    store.queue("small", topics=["news/#"], limits={"max_depth": 1})
    store.queue("large", topics=["news/#"])
    store.publish("news/today", b"1")
    with pytest.raises(Full):
        store.publish("news/today", b"2")
    assert [len(store.get(name)) for name in ("small", "large")] == [1, 1]


def test_an_ack_that_publishes_into_a_full_queue_settles_nothing(store: Store) -> None:
    source = store.queue("source")
    target = limited(store, 1, "block")
    target.publish(b"x")
    source.publish(b"1")
    message = one(source.consumer("w"))
    with pytest.raises(Full):
        message.ack(publish=[(target, b"done")])
    drain(target.consumer("w"))
    message.ack(publish=[(target, b"done")])
    assert values(target.peek("w")) == [b"done"]


def test_the_limit_may_change(store: Store) -> None:
    queue = limited(store, 100)
    fill(queue, 5)
    queue.configure(limits={"max_depth": 5})
    with pytest.raises(Full):
        queue.publish(b"x")
    queue.configure(limits={"max_depth": 0})
    queue.publish(b"x")


def test_a_look_is_not_needed_each_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = limited(store, 1000)
    looks: list[int] = []

    def measure() -> int:
        looks.append(queue._count_unsettled())
        return looks[-1]

    monkeypatch.setattr(queue._depth, "_measure", measure)
    monkeypatch.setattr("tailrace.queue.depth.monotonic", lambda: 5.0)
    fill(queue, 500)
    assert len(looks) < 20
    fill(queue, 500)
    with pytest.raises(Full):
        queue.publish(b"x")
    assert len(queue) == 1000


def test_room_that_was_found_is_not_there_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have used it since: the limit counts for all who publish later than that."""
    now_s = 5.0
    monkeypatch.setattr("tailrace.queue.depth.monotonic", lambda: now_s)
    with tailrace.open(store.path) as other:
        queue, same = limited(store, 1000), other.get("q")
        queue.publish(b"x")  # and there is room for 124 more
        same.publish_many([b"y"] * 990)
        now_s += 0.04
        fill(queue, 9)
        now_s += 0.02
        with pytest.raises(Full):
            queue.publish(b"x")
        assert len(queue) == 1000


# --- what nobody will ever get --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_what_has_expired_does_not_count(
    store: Store, clock: ManualClock, kind: str, groups: int
) -> None:
    options: dict[str, Any] = {"limits": {"max_depth": 5, "message_ttl": "50ms"}}
    queue = store.queue("q", **options) if kind == "queue" else store.stream("q", **options)
    for number in range(groups):
        queue.group(f"g{number}")
    for value in numbers(5):
        queue.publish(value)
    with pytest.raises(Full):
        queue.publish(b"x")
    clock.advance(1)
    for value in numbers(5):
        queue.publish(value)
    with pytest.raises(Full):
        queue.publish(b"x")
    clock.advance(1)
    queue.publish_many([b"y", b"z"])
    assert len(queue) == 12


def test_a_publisher_that_waits_is_let_in_when_something_expires(store: Store) -> None:
    queue = store.queue("q", limits={"max_depth": 2, "on_full": "block"})
    queue.group("w")
    queue.publish(b"stays")
    queue.publish(b"goes", ttl=0.05)
    thread = threading.Thread(target=queue.publish, args=(b"next",), daemon=True)
    thread.start()
    store.clock.advance(1)  # type: ignore[attr-defined]
    thread.join(WAIT)
    assert not thread.is_alive()
    assert values(queue.consumer("w").receive(9)) == [b"stays", b"next"]


def test_what_a_filter_passes_by_does_not_count(store: Store) -> None:
    queue = limited(store, 2)
    eu, everything = queue.group("g", "eu/#"), queue.consumer("all")
    for number in range(20):
        queue.publish(str(number), routing_key="us/x")
        assert len(drain(everything)) == 1
    queue.publish(b"1", routing_key="eu/x")
    queue.publish(b"2", routing_key="us/x")
    drain(everything)
    queue.publish(b"3", routing_key="eu/x")  # of the three behind the cursor one does not count
    drain(everything)
    with pytest.raises(Full):
        queue.publish(b"4", routing_key="us/x")
    assert eu.state.dropped == 0
    assert values(queue.consumer("g", filter="eu/#").receive(9)) == [b"1", b"3"]


def test_in_the_order_in_which_they_were_published(store: Store, clock: ManualClock) -> None:
    """Also if what is behind them was passed before."""
    queue = limited(store, 6)
    group = queue.group("w")
    for number in range(6):
        queue.publish(str(number), ttl=1 if number % 2 else None)
    clock.advance(2)
    queue.publish(b"6")
    assert [each.state for each in queue.pending("w")] == ["free", "free", "free"]
    assert [each.delivery_count for each in queue.pending("w")] == [0, 0, 0]
    assert queue.stats().groups[0].ready == 4
    consumer = queue.consumer("w")
    messages = consumer.receive(9)
    assert values(messages) == [b"0", b"2", b"4", b"6"]
    assert [message.delivery_count for message in messages] == [1, 1, 1, 1]
    consumer.ack(messages)
    assert group.progress() == (7, 7)


def test_the_order_of_keys_is_kept(store: Store, clock: ManualClock) -> None:
    queue = limited(store, 4)
    consumer = queue.consumer("w", key_order=True)
    queue.publish(b"1", key="a")
    queue.publish(b"2", key="a")
    queue.publish(b"3", key="a", ttl=1)
    queue.publish(b"4", key="b", ttl=1)
    clock.advance(2)
    queue.publish(b"5", key="a")
    for value in (b"1", b"2", b"5"):
        [message] = consumer.receive(9)
        assert message.value == value
        message.ack()


def test_a_group_that_has_only_passed_messages_is_still_new(
    store: Store, clock: ManualClock
) -> None:
    queue = limited(store, 2)
    queue.group("w")
    queue.publish_many([b"1", b"2"], ttl=1)
    clock.advance(2)
    queue.publish_many([("a", b"3"), ("a", b"4")])
    assert queue.group("w").progress() == (2, 2)
    consumer = queue.consumer("w", key_order=True)
    assert values(consumer.receive(9)) == [b"3"]


def test_what_somebody_has_counts_although_it_has_expired(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", limits={"max_depth": 2}, visibility_timeout="1h")
    consumer = queue.consumer("w")
    queue.publish(b"1", ttl=1)
    queue.publish(b"2", ttl=1)
    first, second = consumer.receive(2)
    clock.advance(2)
    with pytest.raises(Full):
        queue.publish(b"x")
    first.nack(delay=60)
    queue.publish(b"x")  # nobody will get it any more
    with pytest.raises(Full):
        queue.publish(b"y")
    second.ack()
    queue.publish(b"y")
    assert values(consumer.receive(9)) == [b"x", b"y"]


def test_what_has_expired_becomes_a_dead_letter_all_the_same(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", limits={"max_depth": 2, "message_ttl": "1s"}, dlq={"expired": True})
    queue.group("w")
    queue.publish_many([b"1", b"2"])
    clock.advance(2)
    queue.publish_many([b"3", b"4"])
    assert values(store.dead("q")) == [b"1", b"2"]
    clock.advance(2)
    assert queue.consumer("w").receive(9) == []
    assert values(store.dead("q")) == [b"1", b"2", b"3", b"4"]


def test_what_was_passed_stays_so(open_store: OpenStore, clock: ManualClock) -> None:
    with open_store() as store:
        queue = limited(store, 3)
        queue.group("w")
        queue.publish(b"0")
        queue.publish(b"1", ttl=1)
        queue.publish(b"2")
        clock.advance(2)
        queue.publish(b"3")
    with open_store() as again:
        queue = again.queue("q")
        assert values(queue.consumer("w").receive(9)) == [b"0", b"2", b"3"]


def test_oldest_are_dropped_only_if_nothing_else_helps(store: Store, clock: ManualClock) -> None:
    for queue in (limited(store, 3, "drop_oldest"), store.stream("s", limits=LIMITS)):
        if isinstance(queue, Queue):
            queue.group("w")
        queue.publish(b"0")
        queue.publish(b"1", ttl=1)
        queue.publish(b"2")
        clock.advance(2)
        queue.publish(b"3")
        assert queue.log.start_offset == 0
        queue.publish(b"4")
        kept = [m.value for m in queue.read() if m.expires_at is None]
        if isinstance(queue, Queue):
            assert queue.group("w").state.dropped == 1
            kept = values(queue.peek("w", 9))
        assert kept == [b"2", b"3", b"4"]


@pytest.mark.parametrize("groups", [0, 1])
def test_each_message_is_looked_at_once(
    store: Store, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that is refused again and again does not read the queue again and again."""
    queue = limited(store, 500)
    for number in range(groups):
        queue.group(f"g{number}")
    queue.publish_many(numbers(500), ttl=3600)
    looked: list[int] = []
    look = Outlook.look

    def noticed(outlook: Outlook, log: Log, end: int, most: int) -> bool:
        before = outlook._position
        more = look(outlook, log, end, most)
        looked.append(outlook._position - before)
        return more

    monkeypatch.setattr(Outlook, "look", noticed)
    for _ in range(10):
        with pytest.raises(Full):
            queue.publish(b"x")
    assert sum(looked) == 500


# --- block --------------------------------------------------------------------------------------


def test_publishers_wait_until_there_is_room(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        queue = limited(store, 10, "block")
        thread = threading.Thread(target=fill, args=(queue, 100))
        thread.start()
        consumer = queue.consumer("w")
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAIT
        while len(found) < 100 and time.monotonic() < deadline:
            assert queue.group("w").count_unsettled(queue.log.end_offset) <= 10
            for message in consumer.receive(7, wait=1):
                message.ack()
                found.append(message.value)
        thread.join(WAIT)
        assert found == numbers(100)


def test_or_until_the_store_is_closed(tmp_path: Path) -> None:
    store = tailrace.open(tmp_path, flush="none")
    queue = limited(store, 1, "block")
    queue.consumer("w").close()
    queue.publish(b"x")
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            queue.publish(b"y")
        except Closed as error:
            errors.append(error)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    store.close()
    for thread in threads:
        thread.join(WAIT)
    assert {str(error) for error in errors} == {f"the store in {tmp_path} is closed"}
    assert len(errors) == 4
    with pytest.raises(Closed, match="the store"):
        queue.publish(b"z")


def test_or_do_not_wait(store: Store) -> None:
    queue = limited(store, 1, "block")
    queue.publish(b"x")
    with pytest.raises(Full):
        queue.publish(b"y", block=False)
    with pytest.raises(Full):
        store.publish("$queue/q", b"y", block=False)
    with pytest.raises(Full):
        queue.publish_many([b"y"], block=False)


def test_tasks_wait_while_others_go_on(tmp_path: Path) -> None:
    async def scene() -> list[bytes | None]:
        async with aio.open(tmp_path, flush="none") as store:
            queue = await store.queue("q", limits={"max_depth": 2, "on_full": "block"})

            async def publish() -> None:
                for number in range(10):
                    await queue.publish(str(number))
                await queue.publish_many(iter([b"10", b"11"]))
                await store.publish("$queue/q", b"12")

            publishing = asyncio.create_task(publish())
            found: list[bytes | None] = []
            async with queue.consumer("w") as consumer:
                while len(found) < 13:
                    for message in await consumer.receive(1, wait=WAIT):
                        await message.ack()
                        found.append(message.value)
            await publishing
            await queue.publish_many([b"x", b"y"])
            with pytest.raises(Full):
                await queue.publish(b"z", block=False)
            with pytest.raises(Full):
                await store.publish("$queue/q", b"z", block=False)
            return found

    assert asyncio.run(asyncio.wait_for(scene(), WAIT)) == numbers(13)


CHANGES = [
    ({"max_depth": 3}, [b"0", b"1", b"x"]),
    ({"max_depth": 0}, [b"0", b"1", b"x"]),
    ({"on_full": "drop_oldest"}, [b"1", b"x"]),
    ({"on_full": "raise"}, Full),
    ({"max_depth": 1, "on_full": "raise"}, Full),
]


@pytest.mark.parametrize(("limits", "outcome"), CHANGES)
def test_who_waits_goes_by_what_was_changed(
    tmp_path: Path, limits: dict[str, Any], outcome: Any
) -> None:
    with tailrace.open(tmp_path, flush="none") as store, tailrace.open(tmp_path) as other:
        queue = limited(store, 2, "block")
        queue.group("w")
        fill(queue, 2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.publish, b"x")
            time.sleep(0.05)
            assert not waiting.done()
            other.configure("q", limits=limits)
            try:
                if outcome is Full:
                    with pytest.raises(Full):
                        waiting.result(WAIT)
                else:
                    waiting.result(WAIT)
                    assert values(queue.peek("w", 9)) == outcome
            finally:
                other.configure("q", limits={"max_depth": 0})  # or nobody ends the thread


def test_a_batch_that_waits_may_become_too_large(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        queue = limited(store, 2, "block")
        fill(queue, 2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.publish_many, numbers(2))
            time.sleep(0.05)
            queue.configure(limits={"max_depth": 1})
            try:
                with pytest.raises(Full, match="2 messages at once"):
                    waiting.result(WAIT)
            finally:
                queue.configure(limits={"max_depth": 0})


@pytest.mark.parametrize(("limits", "outcome"), CHANGES)
def test_tasks_that_wait_go_by_what_was_changed(
    tmp_path: Path, limits: dict[str, Any], outcome: Any
) -> None:
    async def scene() -> None:
        async with aio.open(tmp_path, flush="none") as store:
            queue = await store.queue("q", limits={"max_depth": 2, "on_full": "block"})
            await queue.publish_many(numbers(2))
            await queue.peek("w")
            waiting = asyncio.create_task(queue.publish(b"x"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            with tailrace.open(tmp_path) as other:
                other.configure("q", limits=limits)
            if outcome is Full:
                with pytest.raises(Full):
                    await waiting
            else:
                await waiting
                assert [m.value for m in await queue.peek("w", 9)] == outcome

    asyncio.run(asyncio.wait_for(scene(), WAIT))


# --- drop_oldest --------------------------------------------------------------------------------


def test_the_oldest_that_nobody_has_are_dropped(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    fill(queue, 3)
    consumer = queue.consumer("w")
    held = one(consumer)
    queue.publish(b"3")
    queue.publish(b"4")
    assert values(queue.peek("w", 9)) == [b"3", b"4"]
    held.ack()
    assert values(consumer.receive(9)) == [b"3", b"4"]
    assert queue.group("w").state.dropped == 2
    assert queue.group("w").progress() == (5, 3)


def test_what_is_ready_again_is_older(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    fill(queue, 3)
    with queue.consumer("w") as consumer:
        consumer.release(consumer.receive(2))
    queue.publish(b"3")
    assert offsets(queue.peek("w", 9)) == [1, 2, 3]


def test_nothing_is_dropped_that_somebody_works_on(store: Store) -> None:
    queue = limited(store, 2, "drop_oldest")
    fill(queue, 2)
    held: list[Message] = queue.consumer("w").receive(2)
    with pytest.raises(Full, match=r"too few of them may be dropped: .* worked on"):
        queue.publish(b"x")
    for message in held:
        message.ack()


def test_what_others_work_on_is_not_gone_through(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, looked = limited(store, 1010, "drop_oldest"), 0
    queue.publish_many(numbers(1000))
    with queue.consumer("w") as consumer:
        held = consumer.receive(1000)
        held[700].release()
        is_due = Lease.is_due

        def count(lease: Lease, now_ms: int) -> bool:
            nonlocal looked
            looked += 1
            return is_due(lease, now_ms)

        monkeypatch.setattr(Lease, "is_due", count)
        fill(queue, 20)
        assert queue.group("w").state.dropped == 10
        assert 0 < looked < 100
        assert queue.group("w").state.weight == 999
        assert len(consumer.receive(99)) == 11


def test_nothing_is_dropped_if_that_is_not_enough(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    fill(queue, 3)
    held = queue.consumer("w").receive(2)
    with pytest.raises(Full, match="too few of them may be dropped"):
        queue.publish_many([b"x", b"y"])
    assert values(queue.peek("w", 9)) == [b"2"]
    assert queue.stats().groups[0].dropped == 0
    held[0].ack()
    queue.publish_many([b"x", b"y"])
    assert values(queue.peek("w", 9)) == [b"x", b"y"]


def test_nothing_is_dropped_if_another_group_cannot(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    queue.group("a")
    busy = queue.consumer("b")
    queue.group("c")
    fill(queue, 3)
    held = busy.receive(3)
    with pytest.raises(Full):
        queue.publish(b"x")
    for group in ("a", "c"):
        assert values(queue.peek(group, 9)) == numbers(3)
    held[1].ack()
    queue.publish(b"x")
    assert [values(queue.peek(group, 9)) for group in "abc"] == [
        [b"1", b"2", b"x"],
        [b"x"],
        [b"1", b"2", b"x"],
    ]


def test_what_waits_for_another_of_its_key_may_be_dropped(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    consumer = queue.consumer("w", key_order=True)
    queue.publish_many([("k", b"0"), ("k", b"1"), ("k", b"2")])
    [first] = consumer.receive(9)
    queue.publish_many([("k", b"3"), ("k", b"4")])
    first.ack()
    [third] = consumer.receive(9)
    assert third.value == b"3"
    third.release()
    queue.publish_many([("k", b"5"), ("k", b"6"), ("k", b"7")])
    for value in (b"5", b"6", b"7"):
        [message] = consumer.receive(9)
        assert message.value == value
        message.ack()
    assert queue.group("w").progress() == (8, 8)


def test_only_of_groups_that_have_too_many(store: Store) -> None:
    queue = limited(store, 3, "drop_oldest")
    fill(queue, 3)
    assert len(drain(queue.consumer("fast"))) == 3
    queue.group("slow")
    queue.publish_many(numbers(2))
    assert offsets(queue.peek("slow", 9)) == [2, 3, 4]
    assert offsets(queue.peek("fast", 9)) == [3, 4]


def test_a_queue_without_groups_and_a_stream_drop_from_the_front(store: Store) -> None:
    for queue in (limited(store, 3, "drop_oldest"), store.stream("s", limits=LIMITS)):
        for number in range(5):
            queue.publish(str(number))
        assert values(queue.read()) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
def test_what_has_expired_in_a_stream_takes_no_memory(
    store: Store, clock: ManualClock, on_full: str
) -> None:
    limits = {"max_depth": 100, "on_full": on_full, "message_ttl": "1s"}
    stream = store.stream("s", limits=limits)
    for _ in range(30):
        stream.publish_many(numbers(100))
        clock.advance(2)
    stream.publish_many(numbers(60), ttl="1h")
    stream.publish_many(numbers(40))
    clock.advance(2)
    stream.publish_many(numbers(40))
    assert len(stream) == 3140
    assert sys.getsizeof(stream._lapsed.runs) < 200
    if on_full == "raise":
        with pytest.raises(Full):
            stream.publish(b"x")
    else:  # of those that have not expired
        stream.publish(b"x")
        assert (stream.log.start_offset, len(stream)) == (3001, 140)


LIMITS = {"max_depth": 3, "on_full": "drop_oldest"}


WRONG: list[tuple[type[Exception], dict[str, Any]]] = [
    (Full, {"value": bytes(101)}),
    (Full, {"value": bytes(101), "headers": {"a": "b"}}),
    (Full, {"value": bytes(101), "producer": "p", "sequence": 1}),
    (TypeError, {"value": 5}),
    (TypeError, {"value": b"x", "key": 5}),
    (TypeError, {"value": b"x", "headers": {"a": 5}}),
    (ValueError, {"value": b"x", "headers": {"_a": "b"}}),
    (ConfigError, {"value": b"x", "ttl": "soon"}),
    (ConfigError, {"value": b"x", "ttl": "soon", "message_id": "a"}),
    (Full, {"value": b"x" * 90, "key": bytes(300)}),
    (Full, {"value": b"x" * 90, "key": bytes(300), "headers": {"a": "b"}}),
    (Full, {"value": b"x", "headers": {"a": bytes(300)}}),
    (Full, {"value": b"x", "headers": {"a" * 300: b""}}),
    (Full, {"value": b"x", "headers": {"日" * 80: b""}}),
    (Full, {"value": b"x", "headers": [("", b"")] * 150}),
    (Full, {"value": b"x", "headers": {"a": bytes(300)}, "producer": "p", "sequence": 1}),
    (Full, {"value": b"x", "message_id": "a" * 300}),
    (TypeError, {"value": b"x", "routing_key": 5}),
]


@pytest.mark.parametrize(("error", "given"), WRONG)
def test_nothing_is_dropped_for_what_is_refused(
    store: Store, error: type[Exception], given: dict[str, Any]
) -> None:
    limits = {"max_depth": 3, "on_full": "drop_oldest", "max_message_size": 100}
    queue = store.queue("q", limits=limits, max_batch_bytes=250, compression="none")
    queue.consumer("w")
    fill(queue, 3)
    with pytest.raises(error):
        queue.publish(**given)
    if not {"key", "headers", "message_id", "producer"} & given.keys():
        others = {name: each for name, each in given.items() if name != "value"}
        mores: list[dict[str, Any]] = [{}, {"producer": "p", "sequence": 2}]
        for more in mores:
            with pytest.raises(error):
                queue.publish_many([b"new", given["value"]], **others, **more)
    if "routing_key" not in given:
        with pytest.raises(error):
            store.publish("$queue/q", **given)
    assert values(queue.peek("w", 9)) == numbers(3)
    assert queue.stats().groups[0].dropped == 0


def test_nothing_is_dropped_for_a_batch_that_is_too_large(store: Store) -> None:
    limits = {"max_depth": 3, "on_full": "drop_oldest"}
    queue = store.queue("q", limits=limits, max_batch_bytes=250, compression="none")
    queue.consumer("w")
    fill(queue, 3)
    with pytest.raises(ValueError, match="bytes"):
        queue.publish_many([bytes(150)] * 2, producer="p", sequence=1)
    with pytest.raises(Full, match="max_batch_bytes is 250"):
        queue.publish_many([b"x", bytes(300)])
    heavy = [b"x", (None, b"x", {"a": bytes(300)})]
    for more in ({}, {"producer": "p", "sequence": 1}):
        with pytest.raises(Full, match="max_batch_bytes is 250"):
            queue.publish_many(heavy, **more)  # type: ignore[arg-type]
    assert values(queue.peek("w", 9)) == numbers(3)
    queue.publish_many([bytes(150)] * 2)  # these are two batches
    assert values(queue.peek("w", 9)) == [b"2", bytes(150), bytes(150)]


def test_what_is_dropped_for_is_published_whatever_its_producer_takes_in_the_batch(
    store: Store,
) -> None:
    limits = {"max_depth": 3, "on_full": "drop_oldest"}
    queue = store.queue("q", limits=limits, max_batch_bytes=250, compression="none")
    queue.consumer("w")
    fill(queue, 3)
    before = refused = 0
    for size in range(150, 250):
        told = {"producer": "p" * 30, "sequence": size}
        try:
            if size % 2:
                queue.publish(bytes(size), **told)  # type: ignore[call-overload]
            else:
                store.publish("$queue/q", bytes(size), **told)  # type: ignore[arg-type]
        except Full:
            refused += 1
        dropped = queue.stats().groups[0].dropped
        assert dropped == before + (not refused)
        before = dropped
    assert 0 < refused < 100


@pytest.mark.parametrize("options", [{}, {"headers": {"a": "b"}}])
def test_nothing_is_dropped_if_another_queue_has_no_room(
    store: Store, options: dict[str, Any]
) -> None:
    def bound(name: str, on_full: str) -> Queue:
        return store.queue(name, topics=["t"], limits={"max_depth": 3, "on_full": on_full})

    dropping = bound("a", "drop_oldest")
    full = bound("b", "raise")
    fill(dropping, 3)
    fill(full, 3)
    with pytest.raises(Full, match="'b'"):
        store.publish("t", b"x", **options)
    assert values(dropping.peek("w", 9)) == numbers(3)


@pytest.mark.parametrize("by_topic", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"headers": {"a": "b"}}, {"producer": "p", "sequence": 1}], ids=str
)
def test_who_has_waited_publishes_as_of_then(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    by_topic: bool,
) -> None:
    other = store.queue("other", topics=["$queue/q"])  # it gets it then, too
    queue = limited(store, 1, "block")
    consumer = queue.consumer("w")
    queue.publish(b"first")

    def sleep(_: float) -> None:
        clock.advance(60)
        drain(consumer)

    monkeypatch.setattr("tailrace.queue.depth.time", SimpleNamespace(sleep=sleep))
    if by_topic:
        store.publish("$queue/q", b"second", ttl=10, **options)
    else:
        queue.publish(b"second", ttl=10, **options)
    messages = [one(consumer), *other.read()]
    assert values(messages) == [b"second"] * (1 + by_topic)
    for message in messages:
        assert message.timestamp == clock.wall_ms()
        assert message.expires_at == clock.wall_ms() + 10_000


def test_what_was_dropped_stays_so(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = limited(store, 2, "drop_oldest")
        queue.group("w")
        fill(queue, 4)
    with open_store() as again:
        queue = again.queue("q")
        assert values(queue.peek("w", 9)) == [b"2", b"3"]
        assert queue.group("w").state.dropped == 2


@pytest.mark.parametrize("seed", range(8))
def test_nothing_else_is_lost_when_the_power_fails(seed: int, machine: Machine) -> None:
    store = machine.open()
    queue = limited(store, 4, "drop_oldest")
    consumer = queue.consumer("w")
    fill(queue, 9)
    acked = one(consumer)
    acked.ack()
    machine.power_cut(seed)
    with machine.open() as again:
        left = offsets(again.queue("q").consumer("w").receive(9))
        assert set(left) >= {6, 7, 8}  # a drop that was lost is a delivery
        assert acked.offset not in left


def test_of_a_stream_it_is_what_is_kept(store: Store) -> None:
    """Nothing is settled there, so the error does not speak of it."""
    stream = store.stream("s", limits={"max_depth": 3})
    fill(stream, 3)
    with stream.consumer("w") as consumer:
        assert len(consumer.receive(3)) == 3
        consumer.commit()
    with pytest.raises(Full, match=r"messages that are kept as limits\.max_depth allows"):
        stream.publish(b"x")
