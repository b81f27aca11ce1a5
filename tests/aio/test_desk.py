"""Settling together: many tasks, few steps, and each is told of its own messages."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from tailrace import LeaseLost, NotWritten, aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, Fail, FaultyFileSystem
from tests.aio.queue_support import offsets
from tests.aio.support import run, steps
from tests.log.helpers import WAIT, Gate


class JournalGate(Gate):
    """The same for the sync of a group's journal; and it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def __call__(self, call: Call) -> None:
        if call.op == "sync" and "consumers" in call.path:
            self.syncs += 1
            if self.closed:
                self.reached.set()
                assert self.opened.wait(WAIT)


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_those_who_come_meanwhile_share_the_next_sync(path: Path, verb: str) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), JournalGate()

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="sync") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"x"] * 101)
            async with queue.consumer("g") as consumer:
                first, *others = await consumer.receive(200)
                fs.plan = gate
                gate.shut()
                tasks = [asyncio.ensure_future(getattr(first, verb)())]
                await asyncio.to_thread(gate.reached.wait, WAIT)
                tasks += [asyncio.ensure_future(getattr(each, verb)()) for each in others]
                await steps(5)
                assert not any(task.done() for task in tasks)
                gate.open()
                await asyncio.gather(*tasks)
                assert gate.syncs <= 3
                assert {message.settled for message in (first, *others)} == {
                    {"ack": "acked", "release": "released"}[verb]
                }
            fs.plan = None

    run(work())


async def held_up(queue: aio.Queue, consumer: aio.Consumer, gate: JournalGate) -> Any:
    """An ack that is under way until the gate is opened."""
    await queue.publish(b"first")
    [message] = await consumer.receive(1, None)
    gate.shut()
    task = asyncio.ensure_future(message.ack())
    await asyncio.to_thread(gate.reached.wait, WAIT)
    return task


def test_each_is_told_of_his_own(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), JournalGate()

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="sync") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"x"] * 6)
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(6)
                await consumer.ack([messages[1], messages[4]])
                fs.plan = gate
                task = await held_up(queue, consumer, gate)
                tasks = [
                    asyncio.ensure_future(messages[0].ack()),
                    asyncio.ensure_future(messages[1].ack()),
                    asyncio.ensure_future(consumer.ack(messages[2:5])),
                    asyncio.ensure_future(messages[5].ack()),
                    asyncio.ensure_future(messages[5].ack()),
                    asyncio.ensure_future(consumer.ack([])),
                ]
                await steps(5)
                gate.open()
                found = await asyncio.gather(task, *tasks, return_exceptions=True)
                assert found[0] is found[1] is found[4] is found[6] is None
                assert str(found[2]) == "q:1 cannot be acked: it was acked before"
                assert str(found[3]) == "q:4 cannot be acked: it was acked before"
                assert str(found[5]) == "q:5 cannot be acked: it was acked before"
                for each, lost in ((2, ["q:1"]), (3, ["q:4"]), (5, ["q:5"])):
                    error = found[each]
                    assert isinstance(error, LeaseLost)
                    assert error.lost == lost
                assert await queue.pending("g") == []
            fs.plan = None

    run(work())


def test_a_disk_that_is_full(path: Path) -> None:
    """All are told, nothing is settled, and they may try again."""
    fs = FaultyFileSystem(OsFileSystem())

    def plan(call: Call) -> Fail | None:
        is_journal = call.op == "pwrite" and call.path.endswith("ops.log")
        return Fail(errno.ENOSPC) if is_journal else None

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"x"] * 10)
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(10)
                fs.plan = plan
                found = await asyncio.gather(
                    *(message.ack() for message in messages), return_exceptions=True
                )
                assert all(isinstance(error, NotWritten) for error in found)
                fs.plan = None
                assert len(await queue.pending("g")) == 10
                await asyncio.gather(*(message.ack() for message in messages))
                assert await queue.pending("g") == []

    run(work())


def test_acks_of_a_stream_come_to_the_last_of_them(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s")
            await stream.publish_many([b"x"] * 20)
            async with stream.consumer("g") as one, stream.consumer("g") as other:
                ours, theirs = await one.receive(10), await other.receive(10)
                await asyncio.gather(*(message.ack() for message in (*theirs[:5], *ours[:3])))
                assert await one.committed() == 3
                await asyncio.gather(*(message.ack() for message in ours))
                assert await one.committed() == 15
                await one.seek(0)
                [new] = await one.receive()
                await asyncio.gather(theirs[9].ack(), new.ack(), ours[9].ack())
                assert await one.committed() == 1
                assert offsets([new]) == [0]

    run(work())


def test_groups_do_not_wait_for_each_other(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), JournalGate()

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="sync") as store:
            queue = await store.queue("q")
            await queue.publish(b"x")
            async with queue.consumer("a") as slow, queue.consumer("b") as other:
                [message] = await slow.receive()
                [same] = await other.receive()
                fs.plan = lambda call: gate(call) if "/a/" in call.path else None
                gate.shut()
                task = asyncio.ensure_future(message.ack())
                await asyncio.to_thread(gate.reached.wait, WAIT)
                await same.ack()
                await queue.publish(b"y")
                assert len(await other.receive()) == 1
                assert len(await slow.receive()) == 1  # to claim waits for no sync
                assert not task.done()
                gate.open()
                await task
            fs.plan = None

    run(work())
