"""A task may be cancelled at any moment: no message is lost, and none is left half settled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, FaultyFileSystem
from tests.aio.queue_support import offsets, values
from tests.aio.support import cancelled_after, collect, run, steps, until
from tests.log.helpers import WAIT
from tests.threads import our_threads

pytestmark = pytest.mark.no_cover

KINDS = ["queue", "stream"]


async def make(store: aio.Store, kind: str, **options: Any) -> Any:
    return await getattr(store, kind)("q", **options)


# --- receive ------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 5])
def test_receiving_that_is_cancelled_after_so_many_rounds(path: Path, prefetch: int) -> None:
    """What it had fetched is there for the next, as if nobody had asked."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            consumer = await queue.consumer("g", prefetch=prefetch)
            other = await queue.consumer("g")
            for number in range(60):
                await queue.publish_many([b"0", b"1", b"2"])
                found = await cancelled_after(number % 30, consumer.receive(2, None)) or []
                async with asyncio.timeout(WAIT):
                    while len(found) < 3:
                        # At times it is another's turn: what was given back is for all.
                        whose = other if number % 3 == 0 and prefetch == 1 else consumer
                        found += await whose.receive(9, None)
                assert sorted(values(found)) == [b"0", b"1", b"2"]  # type: ignore[type-var]
                assert {message.delivery_count for message in found} == {1}
                await consumer.ack(found)
            await consumer.close()
            await other.close()
            assert await queue.pending("g") == []

    run(work(), debug=False)


def test_receiving_from_a_stream_that_is_cancelled_after_so_many_rounds(path: Path) -> None:
    """It comes with the next; and it is not committed before."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s")
            consumer = await stream.consumer("g", auto_commit_interval=0.0)
            for number in range(60):
                await stream.publish_many([b"x"] * 3)
                first = 3 * number
                found = await cancelled_after(number % 30, consumer.receive(2, None)) or []
                assert await consumer.committed() <= first + len(found)
                if number % 2:
                    await consumer.commit()
                    assert await consumer.committed() == first + len(found)
                async with asyncio.timeout(WAIT):
                    while len(found) < 3:
                        found += await consumer.receive(9, None)
                assert offsets(found) == [first, first + 1, first + 2]
            await consumer.close()

    run(work(), debug=False)


@pytest.mark.parametrize("auto_commit", [False, True])
def test_what_nobody_has_got_is_not_committed_by_closing(path: Path, auto_commit: bool) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s")
            for number in range(25):
                await stream.publish_many([b"x"] * 3)
                consumer = await stream.consumer("g", auto_commit=auto_commit)
                found = await cancelled_after(number, consumer.receive(2, None)) or []
                found += await cancelled_after(number, consumer.receive(2, None)) or []
                if not auto_commit:
                    await consumer.commit()
                await consumer.close()
                async with stream.consumer("g", auto_commit=False) as consumer:
                    left: list[Any] = []
                    while messages := await consumer.receive(9):
                        left += messages
                    await consumer.commit()
                there = {*offsets(found), *offsets(left)}
                assert there == {3 * number, 3 * number + 1, 3 * number + 2}

    run(work(), debug=False)


@pytest.mark.parametrize("kind", KINDS)
def test_receiving_that_is_cancelled_during_every_call_of_the_file_system(
    path: Path, kind: str
) -> None:
    """While the thread is in the middle of it."""
    fs = FaultyFileSystem(OsFileSystem())

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with aio.open(path, fs=fs, flush="async", upkeep=False) as store:
            queue = await make(store, kind)
            consumer = await queue.consumer("g")
            for number in count():
                await queue.publish_many([b"0", b"1"])
                was_hit = False
                first = len(fs.calls)
                task = asyncio.ensure_future(consumer.receive(2, None))

                def cancel(
                    call: Call,
                    task: asyncio.Future[Any] = task,
                    moment: int = first + number,
                ) -> None:
                    nonlocal was_hit
                    if call.n == moment:
                        was_hit = True
                        cancelling = threading.Event()
                        loop.call_soon_threadsafe(
                            lambda: (task.cancel(), loop.call_soon(cancelling.set))
                        )
                        assert cancelling.wait(WAIT)

                fs.plan = cancel
                await asyncio.wait([task])
                fs.plan = None
                found = [] if task.cancelled() else task.result()
                while len(found) < 2:
                    found += await consumer.receive(2, None)
                assert values(found) == [b"0", b"1"]
                for message in found:
                    await message.ack()
                if not was_hit:
                    break
            assert number > 0
            await consumer.close()

    run(work(), debug=False)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_are_cancelled_all_the_time(path: Path, kind: str) -> None:
    """Each message comes to one of them, once: leases last longer than the test."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    total = 400

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            consumer = await queue.consumer("g")
            found: list[int] = []

            async def consume() -> None:
                while len(found) < total:
                    receiving = asyncio.ensure_future(consumer.receive(dice.randint(1, 5), None))
                    for _ in range(dice.choice([1, 3, 10, 30, 100])):
                        await asyncio.sleep(0)
                        if receiving.done():
                            break
                    receiving.cancel()
                    await asyncio.wait([receiving])
                    if not receiving.cancelled():
                        for message in receiving.result():
                            assert message.delivery_count == 1
                            found.append(message.offset)
                            await message.ack()

            async def publish() -> None:
                for _ in range(total // 4):
                    await queue.publish_many([b"x"] * 4)
                    await asyncio.sleep(dice.choice([0, 0.001]))

            await asyncio.gather(publish(), *(consume() for _ in range(6)))
            assert sorted(found) == list(range(total))
            [info] = await queue.groups()
            assert kind == "stream" or (info.cursor, info.committed) == (total, total)
            await consumer.close()

    try:
        run(work(), debug=False)
    except BaseException:
        print(f"seed {seed}")
        raise


# --- settling -----------------------------------------------------------------------------

SETTLE: dict[str, Callable[[aio.Consumer, aio.Message], Awaitable[None]]] = {
    "ack": lambda consumer, message: message.ack(),
    "ack and publish": lambda consumer, message: message.ack(publish=[("$queue/done", b"x")]),
    "ack a batch": lambda consumer, message: consumer.ack([message]),
    "nack": lambda consumer, message: message.nack(delay=0),
    "reject": lambda consumer, message: message.reject(),
    "release": lambda consumer, message: message.release(),
    "extend": lambda consumer, message: message.extend(),
}
AFTER = {"ack and publish": "acked", "ack a batch": "acked", "extend": None}


@pytest.mark.parametrize("verb", SETTLE)
def test_settling_that_is_cancelled_is_done(path: Path, verb: str) -> None:
    async def settle(consumer: aio.Consumer, message: aio.Message) -> None:
        await SETTLE[verb](consumer, message)

    after = AFTER.get(verb, verb.removesuffix("e") + "ed")

    def is_settled(message: aio.Message, how: str | None) -> bool:
        return message.settled == how

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await store.queue("done")
            async with queue.consumer("g") as consumer:
                for number in range(1, 15):
                    await queue.publish(b"%d" % number)
                    [message] = await consumer.receive(1, None)
                    await cancelled_after(number, settle(consumer, message))
                    await until(partial(is_settled, message, after))
                    if verb in ("nack", "release"):
                        [message] = await consumer.receive(1, None)
                    if after is None or verb in ("nack", "release"):
                        await message.ack()
            assert await (await store.get("done")).length() == (
                14 if verb == "ack and publish" else 0
            )

    run(work(), debug=False)


def test_a_block_that_is_cancelled_gives_its_message_back(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish(b"0")

            async def consume(begun: asyncio.Event) -> None:
                async for message in queue.consume("g"):
                    async with message, message.auto_extend():
                        assert message.delivery_count == 1
                        begun.set()
                        await asyncio.sleep(WAIT)

            for number in range(10):
                begun = asyncio.Event()
                task = asyncio.ensure_future(consume(begun))
                await begun.wait()
                task.cancel()
                await steps(number)
                task.cancel()  # impatiently
                await asyncio.wait([task])
                assert task.cancelled()
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive(1, None)
                assert message.delivery_count == 1

    run(work(), debug=False)


# --- everything else ----------------------------------------------------------------------

VERBS: dict[str, Callable[[aio.Store, aio.Queue], Awaitable[object]]] = {
    "publish": lambda store, queue: queue.publish(b"x"),
    "publish_many": lambda store, queue: queue.publish_many([b"begin", b"x", b"end"]),
    "read": lambda store, queue: collect(queue.read()),
    "resolve": lambda store, queue: queue.resolve("first"),
    "length": lambda store, queue: queue.length(),
    "settings": lambda store, queue: queue.settings(),
    "configure": lambda store, queue: queue.configure(visibility_timeout=5),
    "groups": lambda store, queue: queue.groups(),
    "peek": lambda store, queue: queue.peek("g"),
    "pending": lambda store, queue: queue.pending("g"),
    "purge": lambda store, queue: queue.purge(),
    "store.queue": lambda store, queue: store.queue("another"),
    "store.queues": lambda store, queue: store.queues(),
    "store.publish": lambda store, queue: store.publish("$queue/q/x", b"x"),
    "store.consumer": lambda store, queue: store.consumer("q", "g"),
    "store.dead": lambda store, queue: store.dead("q"),
    "store.redrive": lambda store, queue: store.redrive("q"),
}


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_cancelled_after_so_many_rounds(path: Path, name: str) -> None:
    async def verb(store: aio.Store, queue: aio.Queue) -> None:
        await VERBS[name](store, queue)

    async def work() -> None:
        async with aio.open(path, flush="async", upkeep=False) as store:
            queue = await store.queue("q")
            for number in range(15):
                await cancelled_after(number, verb(store, queue))
                receipt = await queue.publish(b"after")
                found = values(await collect(queue.read()))
                assert found[-1] == b"after"
                assert receipt.offset == (await queue.resolve("next")) - 1
                assert found.count(b"begin") == found.count(b"end")

    run(work(), debug=False)


async def until_refused(store: aio.Store) -> None:
    """What was opened although nobody wants it is closed at once, but not in no time."""
    while True:
        await store.queues()
        await asyncio.sleep(0)


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_opening_that_is_cancelled(path: Path, number: int) -> None:
    async def work() -> None:
        store = aio.open(path, flush="async")
        if await cancelled_after(number, store.open()) is None:
            with pytest.raises(Closed, match="is not open"):
                await until_refused(store)
            await until(lambda: not our_threads())
            await store.open()  # one may try again
        await (await store.queue("q")).publish(b"0")
        await store.close()

    run(work(), debug=False)


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_a_loop_that_is_stopped_at_any_time(path: Path, number: int) -> None:
    """As Ctrl-C does: everything is cancelled, and the store is closed as it should be."""
    begun = asyncio.Event()

    async def use() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            begun.set()

            async def publish() -> None:
                while True:
                    await queue.publish_many([b"x"] * 3)

            async def consume() -> None:
                async for message in queue.consume("g", prefetch=3):
                    async with message:
                        await asyncio.sleep(0)

            await asyncio.gather(publish(), *(consume() for _ in range(3)))

    async def stop() -> None:
        task = asyncio.ensure_future(use())
        await begun.wait()
        await steps(10 * number)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    async def check() -> None:
        async with aio.open(path) as store:
            queue = await store.queue("q")
            async with queue.consumer("g") as consumer:
                there = len(await queue.pending("g"))
                [info] = await queue.groups()
                left: list[aio.Message] = []
                while messages := await consumer.receive(100):
                    left += messages
                    assert {message.delivery_count for message in messages} == {1}
                assert len(left) == there + await queue.length() - info.cursor

    run(stop(), debug=False)
    run(check(), debug=False)
