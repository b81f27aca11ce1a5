"""Nothing of ours is done in asyncio's default executor: the user's jobs may take all of it, and
may wait for us. And nothing that takes long keeps a lease from being extended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace import aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import FaultyFileSystem
from tests.aio.queue_support import values
from tests.aio.support import collect, run, until
from tests.aio.test_desk import JournalGate
from tests.log.helpers import WAIT


@asynccontextmanager
async def executor_taken() -> AsyncIterator[None]:
    """Jobs of the user have all its threads, as long as the block runs."""
    over = threading.Event()
    loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    job = loop.run_in_executor(None, over.wait, WAIT)
    try:
        yield
    finally:
        over.set()
        await job


@pytest.fixture
def open_store(path: Path) -> Callable[[], aio.Store]:
    return lambda: aio.open(path, flush="async")


def test_verbs_of_a_queue(open_store: Callable[[], aio.Store]) -> None:
    async def work() -> None:
        async with executor_taken(), open_store() as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % number for number in range(9)])
            assert await queue.length() == 9
            assert values(await collect(queue.read()))[-1] == b"8"
            assert (await queue.settings()).name == "q"
            assert values(await queue.peek("g")) == [b"0"]
            async with queue.consumer("g") as consumer:
                one, two, three, four, *others = await consumer.receive(9)
                await one.extend()
                await one.ack(publish=[("elsewhere", b"0")])
                await two.nack()
                await three.reject()
                await four.release()
                await consumer.extend(others)
                await consumer.nack(others[:1])
                await consumer.reject(others[1:])
                assert len(await queue.pending("g")) == 3
            assert len(await store.dead("q")) == 5
            assert await store.redrive("q") == 5
            assert await store.stats(exact=True)
            await queue.vacuum()

    run(work())


def test_verbs_of_a_stream(open_store: Callable[[], aio.Store]) -> None:
    async def work() -> None:
        async with executor_taken(), open_store() as store:
            stream = await store.stream("s")
            await stream.publish_many([b"0", b"1"])
            async with stream.consumer("g") as consumer:
                one, two = await consumer.receive(2)
                await one.nack()
                await two.reject()
                assert await consumer.committed() == 2
                assert (await two.properties())["group-id"] == "g"

    run(work())


def test_a_closed_consumer_tells_why(open_store: Callable[[], aio.Store]) -> None:
    async def work() -> None:
        async with executor_taken(), open_store() as store:
            queue = await store.queue("q")
            consumer = await queue.consumer("g")
            await store.delete("q")
            with pytest.raises(Exception, match="q"):
                await consumer.receive()

    run(work())


def test_a_backup(open_store: Callable[[], aio.Store], tmp_path: Path) -> None:
    async def work() -> None:
        async with executor_taken(), open_store() as store:
            await store.queue("q")
            assert (await store.backup(tmp_path / "backup")).queues == 1

    run(work())


def test_a_log(path: Path) -> None:
    async def work() -> None:
        async with executor_taken(), aio.Log(path) as log:
            await (await log.append([b"0", b"1"]))
            assert await log.end_offset() == 2
            assert len(await collect(log.read())) == 2

    run(work())


def test_a_message_is_kept_while_jobs_of_the_user_run(open_store: Callable[[], aio.Store]) -> None:
    async def work() -> None:
        async with executor_taken(), open_store() as store:
            queue = await store.queue("q", visibility_timeout=0.3)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer, queue.consumer("g") as other:
                [message] = await consumer.receive()
                async with message.auto_extend() as keeping:
                    assert await other.receive(1, 0.9) == []
                assert not keeping.lost
                await message.ack()

    run(work())


def test_a_job_in_the_executor_waits_for_a_verb(open_store: Callable[[], aio.Store]) -> None:
    async def work() -> None:
        async with open_store() as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()

                def job() -> None:
                    asyncio.run_coroutine_threadsafe(message.nack(), loop).result(WAIT)

                await asyncio.to_thread(job)
                assert message.settled == "nacked"

    run(work())


@pytest.mark.parametrize(
    "settle",
    [
        lambda message: message.ack(),
        lambda message: message.nack(60),
        lambda message: message.reject(),
        lambda message: message.ack(publish=[("elsewhere", b"")]),
    ],
    ids=["ack", "nack", "reject", "publish"],
)
def test_a_message_is_kept_while_others_wait_for_the_disk(
    path: Path, settle: Callable[[Any], Awaitable[None]]
) -> None:
    """However many they are."""
    fs, gate = FaultyFileSystem(OsFileSystem()), JournalGate()

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="sync") as store:
            queue = await store.queue("q", visibility_timeout=1)
            await store.queue("elsewhere", flush="none", topics=["elsewhere"])
            await queue.publish_many([b"x"] * 101)
            async with queue.consumer("g") as consumer, queue.consumer("g") as other:
                kept, *others = await consumer.receive(101)
                fs.plan = gate
                gate.shut()
                tasks = [asyncio.ensure_future(settle(each)) for each in others]
                await until(gate.reached.is_set)
                async with kept.auto_extend() as keeping:
                    claimed = await other.receive(101, 2.5)
                    assert not keeping.lost
                    assert kept.offset not in {message.offset for message in claimed}
                gate.open()
                await asyncio.gather(*tasks, return_exceptions=True)
                await kept.ack()
            fs.plan = None

    run(work())


def test_closing_waits_for_what_is_being_settled(path: Path) -> None:
    """Also if nobody else does any more."""
    fs, gate = FaultyFileSystem(OsFileSystem()), JournalGate()

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="sync") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"x"] * 40)
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(40)
                fs.plan = gate
                gate.shut()
                tasks = [asyncio.ensure_future(message.reject()) for message in messages]
                await until(gate.reached.is_set)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                gate.open()
            fs.plan = None
        assert {message.settled for message in messages} == {"rejected"}

    run(work())
