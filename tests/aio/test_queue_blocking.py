"""Nothing that tasks do to a queue blocks the loop: not a slow disk, not another process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import aio
from tailrace.log.fs import OsFileSystem
from tests.aio.queue_support import values
from tests.aio.support import Pauses, SlowFileSystem, collect, heartbeat, steps, wait
from tests.aio.test_blocking import SLOW_S, quickly


class Place:
    """What there is: a message each for those who settle one."""

    store: aio.Store
    queue: aio.Queue
    stream: aio.Stream
    consumer: aio.Consumer
    reader: aio.StreamConsumer
    messages: list[aio.Message]


async def receive(place: Place) -> None:
    await place.consumer.release(await place.consumer.receive(1, None))


async def wait_for_one(place: Place) -> None:
    task = asyncio.ensure_future(place.reader.receive(100, None))
    await steps(5)
    await place.stream.publish(b"x")
    await task


async def follow(place: Place) -> None:
    async with place.queue.read("next", follow=True) as reading:
        task = asyncio.ensure_future(anext(reading))
        await steps(5)
        await place.queue.publish(b"x")
        await task


async def work_on(place: Place) -> None:
    message = place.messages.pop()
    async with message, message.auto_extend():
        await asyncio.sleep(0)


async def consume(place: Place) -> None:
    async for message in place.queue.consume("another"):
        await message.ack()
        break


async def join_and_leave(place: Place) -> None:
    async with place.queue.consumer("another", filter="#"), place.stream.consumer("another"):
        pass


async def look_at_it(place: Place) -> None:
    message = place.messages[0]
    repr((place.store, place.queue, place.consumer, message, place.consumer.id))
    assert (message.value, message.topic, message.delivery_count) == (b"x", "$queue/q", 1)
    await message.properties()
    await asyncio.sleep(SLOW_S)


VERBS: dict[str, Callable[[Place], Awaitable[Any]]] = {
    "publish": lambda place: place.queue.publish(b"x"),
    "publish_many": lambda place: place.queue.publish_many([b"x"] * 10),
    "read": lambda place: collect(place.queue.read()),
    "follow": follow,
    "resolve": lambda place: place.queue.resolve("next"),
    "length": lambda place: place.queue.length(),
    "settings": lambda place: place.queue.settings(),
    "configure": lambda place: place.queue.configure(visibility_timeout=77),
    "groups": lambda place: place.queue.groups(),
    "peek": lambda place: place.queue.peek("g"),
    "pending": lambda place: place.queue.pending("g"),
    "expire_groups": lambda place: place.queue.expire_groups(0),
    "purge": lambda place: place.stream.purge(),
    "receive": receive,
    "wait": wait_for_one,
    "join and leave": join_and_leave,
    "consume": consume,
    "ack": lambda place: place.messages.pop().ack(),
    "ack and publish": lambda place: place.messages.pop().ack(publish=[("$queue/q", b"y")]),
    "ack a batch": lambda place: place.consumer.ack([place.messages.pop()]),
    "nack": lambda place: place.messages.pop().nack(),
    "reject": lambda place: place.messages.pop().reject(),
    "release": lambda place: place.messages.pop().release(),
    "extend": lambda place: place.messages.pop().extend(),
    "block": work_on,
    "commit": lambda place: place.reader.commit(),
    "committed": lambda place: place.reader.committed(),
    "seek": lambda place: place.reader.seek("first"),
    "store.queue": lambda place: place.store.queue("new"),
    "store.queues": lambda place: place.store.queues(),
    "store.publish": lambda place: place.store.publish("$queue/q/x", b"x"),
    "store.dead": lambda place: place.store.dead("q"),
    "store.redrive": lambda place: place.store.redrive("q"),
    "store.delete": lambda place: place.store.delete("unused"),
    "look at it": look_at_it,
}


async def set_out(store: aio.Store) -> Place:
    place = Place()
    place.store = store
    place.queue, place.stream = await store.queue("q"), await store.stream("s")
    await (await store.queue("unused")).publish(b"x")
    await place.queue.publish_many([b"x"] * 40)
    await place.stream.publish_many([b"x"] * 10)
    place.consumer, place.reader = (
        await place.queue.consumer("g"),
        await place.stream.consumer("g", auto_commit=False),
    )
    place.messages = await place.consumer.receive(20)
    await place.messages[-1].reject()
    place.messages.pop()
    await place.reader.receive(5)
    return place


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_on_a_slow_disk(tmp_path: Path, name: str) -> None:
    attempts = 0

    async def work() -> Pauses:
        nonlocal attempts
        attempts += 1
        slow = SlowFileSystem(OsFileSystem(), 0)
        async with aio.open(tmp_path / f"{attempts}", fs=slow, upkeep=False) as store:
            place = await set_out(store)
            slow.seconds = SLOW_S / 5
            async with heartbeat() as pauses:
                await VERBS[name](place)
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


def test_everything_at_once_on_a_slow_disk(tmp_path: Path) -> None:
    """Whoever holds a lock while the disk keeps him waiting does not make the loop wait for it."""
    attempts = 0

    async def work() -> Pauses:
        nonlocal attempts
        attempts += 1
        slow = SlowFileSystem(OsFileSystem(), 0)
        async with aio.open(tmp_path / f"{attempts}", fs=slow) as store:
            place = await set_out(store)
            slow.seconds = SLOW_S / 50
            async with heartbeat() as pauses:
                names = [name for name in VERBS if name not in ("expire_groups", "look at it")]
                tasks = [asyncio.ensure_future(wait(VERBS[name](place))) for name in names]
                await asyncio.gather(*tasks)
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


def test_opening_and_closing_on_a_slow_disk(tmp_path: Path) -> None:
    attempts = 0

    async def work() -> Pauses:
        nonlocal attempts
        attempts += 1
        slow = SlowFileSystem(OsFileSystem(), SLOW_S / 10)
        async with heartbeat() as pauses:
            store = await aio.open(tmp_path / f"{attempts}", fs=slow)
            queue = await store.queue("q")
            async with queue.consumer("g"):
                await queue.close()
            await store.close()
        assert slow.callers
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


def test_cancelling_on_a_slow_disk(tmp_path: Path) -> None:
    attempts = 0

    async def work() -> Pauses:
        nonlocal attempts
        attempts += 1
        slow = SlowFileSystem(OsFileSystem(), 0)
        async with aio.open(tmp_path / f"{attempts}", fs=slow, upkeep=False) as store:
            place = await set_out(store)
            slow.seconds = SLOW_S / 10
            async with heartbeat() as pauses:
                for name in ("publish", "receive", "ack", "nack", "groups", "commit", "wait"):
                    task = asyncio.ensure_future(wait(VERBS[name](place)))
                    await asyncio.sleep(SLOW_S / 20)
                    task.cancel()
                    await asyncio.wait([task])
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


_STOPPED = """
import os, signal, sys, tailrace
with tailrace.open(sys.argv[1]) as store:
    group = store.queue("q").group("g")
    with group._turn:
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_another_process_that_keeps_the_turn_of_a_group(path: Path) -> None:
    """It was stopped while it had it; when it goes on, so do we."""

    async def work() -> Pauses:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            async with queue.consumer("g") as consumer, queue.consumer("h") as another:
                [message] = await consumer.receive()
                other = subprocess.Popen(
                    [sys.executable, "-c", _STOPPED, path], stdout=subprocess.PIPE
                )
                assert other.stdout is not None
                await asyncio.to_thread(other.stdout.readline)
                async with heartbeat() as pauses:
                    receiving = asyncio.ensure_future(consumer.receive(1, None))
                    waiting: list[asyncio.Future[Any]] = [
                        receiving,
                        asyncio.ensure_future(message.ack()),
                        asyncio.ensure_future(queue.pending("g")),
                    ]
                    await asyncio.sleep(0.2)
                    assert not any(task.done() for task in waiting)
                    await queue.publish(b"3")
                    assert len(await collect(queue.read())) >= 4
                    os.kill(other.pid, signal.SIGCONT)
                    await asyncio.gather(*waiting)
                    assert values(receiving.result()) == [b"1"]
                await asyncio.to_thread(other.communicate)
                assert other.returncode == 0
                assert await another.receive(9)
                await store.delete("q")
        return pauses

    quickly(work)
