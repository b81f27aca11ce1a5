"""Receipts in asyncio: awaiting shares flushes, and nothing can make a task wait for ever."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, OutcomeUnknown, Receipt
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Fail, FaultyFileSystem, on
from tests.log.conftest import OpenLog
from tests.log.helpers import WAIT, Gate, at, in_threads, pending, segment_syncs, values
from tests.threads import our_threads


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run it; hanging is a failure, not a hang."""
    asyncio.run(asyncio.wait_for(work, WAIT))


async def wait_for(receipt: Receipt) -> Receipt:
    return await receipt


def test_await_is_wait(log: Log) -> None:
    async def work() -> None:
        receipt = log.append([b"x"])
        assert pending(receipt)
        assert await receipt is receipt
        assert receipt.done
        assert await receipt is receipt  # again, at once
        assert values(log.read()) == [b"x"]

    run(work())


def test_no_thread_before_the_first_await(log: Log) -> None:
    async def work() -> None:
        log.append([b"x"]).wait()
        assert not our_threads()
        await log.append([b"x"])
        assert our_threads() == ["tailrace-commit"]
        await log.append([b"x"])
        assert our_threads() == ["tailrace-commit"]

    run(work())
    log.close()
    assert not our_threads()


def test_a_log_without_sync_has_nothing_to_wait_for(open_log: OpenLog) -> None:
    log = open_log(flush="async", upkeep=False)

    async def work() -> None:
        await log.append([b"x"])
        assert log.durable_offset == 0
        assert not our_threads()

    run(work())


def test_100_awaits_share_few_flushes(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:

        async def work() -> None:
            before = segment_syncs(fs)
            receipts = await asyncio.gather(*(log.append([b"%d" % n]) for n in range(100)))
            assert all(receipt.done for receipt in receipts)
            assert segment_syncs(fs) - before <= 2

        run(work())


def test_tasks_that_append_and_await_share_flushes(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:

        async def task() -> None:
            for _ in range(5):
                await log.append([b"x"])

        async def work() -> None:
            before = segment_syncs(fs)
            await asyncio.gather(*(task() for _ in range(50)))
            assert segment_syncs(fs) - before <= 50  # one each would be 250

        run(work())
        assert log.durable_offset == 250


def test_two_loops_in_two_threads(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=2_000)

    def work(number: int) -> None:
        async def task(name: int) -> None:
            for i in range(20):
                receipt = await log.append([b"%d-%d-%d" % (number, name, i)])
                assert receipt.done

        async def tasks() -> None:
            await asyncio.gather(*(task(name) for name in range(5)))

        run(tasks())

    in_threads(2, work)
    assert len(set(values(log.read()))) == 200


def test_tasks_and_threads_together(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=2_000)

    def work(number: int) -> None:
        async def tasks() -> None:
            for _ in range(50):
                await log.append([b"x"])

        if number:
            for _ in range(50):
                log.append([b"x"]).wait()
        else:
            run(tasks())

    in_threads(3, work)
    assert log.durable_offset == 150


def test_awaiting_what_a_thread_made_durable_meanwhile(log: Log) -> None:
    """The moment between `done` and the registration cannot be hit from outside."""

    async def work() -> None:
        receipt = log.append([b"x"])
        log.flush()
        assert log._writer is not None
        await log._writer.committer.completion(receipt.end_offset)

    run(work())


def test_awaiting_what_a_roll_made_durable(open_log: OpenLog) -> None:
    log = open_log(retention={"max_age": "1s"})

    async def work() -> None:
        task = asyncio.ensure_future(wait_for(log.append([at(1)])))
        await asyncio.sleep(0)  # it waits now
        log.vacuum()  # everything has expired, so the active segment is rolled
        assert (await task).done

    run(work())


def test_a_cancelled_await_leaves_the_log_fine(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate

        async def work() -> None:
            gate.shut()
            first = asyncio.ensure_future(wait_for(log.append([b"1"])))
            second = asyncio.ensure_future(wait_for(log.append([b"2"])))
            await asyncio.to_thread(gate.reached.wait, WAIT)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gate.open()
            assert (await second).done
            await log.append([b"3"])

        run(work())
        assert values(log.read()) == [b"1", b"2", b"3"]


def test_a_timeout_around_an_await(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate

        async def work() -> None:
            gate.shut()
            receipt = log.append([b"1"])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(receipt, 0.01)
            gate.open()
            await receipt  # the same one, again

        run(work())


def test_a_loop_that_ends_before_its_flush(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate

        async def give_up() -> None:
            gate.shut()
            asyncio.ensure_future(wait_for(log.append([b"1"])))  # noqa: RUF006
            await asyncio.to_thread(gate.reached.wait, WAIT)

        run(give_up())  # the loop is closed while its flush is under way
        gate.open()

        async def work() -> None:
            await log.append([b"2"])

        run(work())
        assert values(log.read()) == [b"1", b"2"]


def test_close_completes_what_is_awaited(log: Log) -> None:
    async def work() -> None:
        task = asyncio.ensure_future(wait_for(log.append([b"x"])))
        await asyncio.sleep(0)
        await asyncio.to_thread(log.close)
        assert (await task).done

    run(work())
    assert not our_threads()


def test_a_failed_flush_reaches_every_task(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    log = Log(path, fs=fs)
    fs.plan = on("sync", Fail(errno.EIO), path="*.seg")

    async def work() -> None:
        receipts = [log.append([b"%d" % n]) for n in range(3)]
        results = await asyncio.gather(*receipts, return_exceptions=True)
        assert all(isinstance(result, OutcomeUnknown) for result in results)
        with pytest.raises(OutcomeUnknown, match="Reopen the log"):
            await receipts[0]

    run(work())
    log.close()
    assert not our_threads()


def test_a_flush_that_cannot_be_tried(path: Path) -> None:
    """The task is told, and may try again; those who come later are served."""
    fs = FaultyFileSystem(OsFileSystem())

    async def work() -> None:
        with Log(path, fs=fs) as log, Log(path) as other:
            await log.append_one(b"0")
            await other.append_one(b"of another, whose flush has to be looked at")
            receipt = log.append_one(b"1")
            fs.plan = on("pread", Fail(errno.EIO), path="*watermark")
            with pytest.raises(OutcomeUnknown, match="try again"):
                await receipt
            assert fs.hits
            assert pending(receipt)
            await receipt
            await log.append_one(b"2")

    run(work())


def test_a_log_that_was_dropped(path: Path) -> None:
    async def work() -> None:
        receipt = Log(path).append_one(b"0")
        with pytest.raises(OutcomeUnknown, match="dropped without a close"):
            await receipt

    run(work())
