"""`limits.max_depth`: what happens to publishers when a queue holds too much."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import Closed, Full, Message, Queue, Store, aio
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, one, values


def limited(store: Store, most: int, on_full: str = "raise") -> Queue:
    return store.queue("q", limits={"max_depth": most, "on_full": on_full})


def fill(queue: Queue, count: int) -> None:
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
    fill(queue, 500)
    assert len(looks) < 20
    fill(queue, 500)
    with pytest.raises(Full):
        queue.publish(b"x")
    assert len(queue) == 1000


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
    assert {str(error) for error in errors} == {f"the store {tmp_path} is closed"}
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
    with pytest.raises(Full, match="all of them are being worked on"):
        queue.publish(b"x")
    for message in held:
        message.ack()


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


LIMITS = {"max_depth": 3, "on_full": "drop_oldest"}


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
