"""Nothing blocks the loop: not a slow disk, not another process, not a lock."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, Receipt, aio
from tailrace.log.fs import OsFileSystem
from tests.aio.support import (
    Pauses,
    SlowFileSystem,
    collect,
    heartbeat,
    run,
    steps,
    take,
    until,
    wait,
)
from tests.log.following import OtherProcess
from tests.log.helpers import fill

SLOW_S = 0.05  # each call of the file system
QUICK_S = 0.03  # the longest pause of a loop that waits for none of them


async def append_arrow(log: aio.Log) -> Receipt:
    pa = pytest.importorskip("pyarrow")
    return await log.append_arrow(pa.table({"value": [b"0", b"1"]}))


async def read_arrow(log: aio.Log) -> object:
    pytest.importorskip("pyarrow")
    return await collect(log.read_arrow())


async def follow(log: aio.Log) -> None:
    """A little, while something is appended; and let go of it."""
    async with log.read("next", follow=True) as reading:
        task = asyncio.ensure_future(take(2, reading))
        await steps(3)
        await (await log.append([b"0", b"1"]))
        await task
    async for _record in log.read(follow=True):
        break


async def look_at_it(log: aio.Log) -> None:
    repr(log)
    assert log.flush_mode == "sync"
    assert log.options.flush is None
    await asyncio.sleep(SLOW_S)


VERBS: dict[str, Callable[[aio.Log], Awaitable[Any]]] = {
    "append": lambda log: log.append([b"0"]),
    "append_one": lambda log: log.append_one(b"0"),
    "append_once": lambda log: log.append([b"0"], producer="p", sequence=1),
    "append_many": lambda log: log.append_many([b"0"] * 10),
    "append_arrow": append_arrow,
    "read": lambda log: collect(log.read()),
    "read_batches": lambda log: collect(log.read_batches()),
    "read_arrow": read_arrow,
    "follow": follow,
    "offset_at": lambda log: log.offset_at(1),
    "start_offset": lambda log: log.start_offset(),
    "end_offset": lambda log: log.end_offset(),
    "durable_offset": lambda log: log.durable_offset(),
    "flush": lambda log: log.flush(),
    "truncate_before": lambda log: log.truncate_before(5),
    "vacuum": lambda log: log.vacuum(),
    "look at it": look_at_it,
}


@pytest.fixture(autouse=True)
def imported() -> None:
    """What takes long to import is there."""
    with contextlib.suppress(ImportError):
        importlib.import_module("tailrace.kernel.arrow")


@pytest.fixture
def slow(path: Path) -> SlowFileSystem:
    """A file system where there is a log already, with something to read and to delete."""
    with Log(path, segment_bytes=500, upkeep=False) as log:
        fill(log, 20)
    return SlowFileSystem(OsFileSystem(), SLOW_S)


def quickly(work: Callable[[], Coroutine[Any, Any, Pauses]]) -> None:
    """Run it, and again if the loop paused: that may be the machine's fault once or twice, but what
    blocks the loop does so each time."""
    found = []
    for _attempt in range(3):
        pauses = run(work(), debug=False)
        if pauses.longest < QUICK_S:
            return
        found.append(f"{pauses.loop:.3f} s (the machine: {pauses.machine:.3f} s)")
    raise AssertionError(f"the loop paused for {', '.join(found)}")


# --- a slow disk --------------------------------------------------------------------------


@pytest.mark.parametrize("is_read_only", [False, True], ids=["writer", "reader"])
def test_opening_and_closing_on_a_slow_disk(
    path: Path, slow: SlowFileSystem, is_read_only: bool
) -> None:
    async def work() -> Pauses:
        async with heartbeat() as pauses:
            log = await aio.Log(path, fs=slow, read_only=is_read_only)
            await log.close()
        assert slow.callers
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_on_a_slow_disk(path: Path, slow: SlowFileSystem, name: str) -> None:
    async def work() -> Pauses:
        slow.seconds = 0
        async with aio.Log(path, fs=slow, segment_bytes=500) as log:
            slow.seconds = SLOW_S
            async with heartbeat() as pauses:
                found = await VERBS[name](log)
                if isinstance(found, Receipt):
                    await found
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


def test_everything_at_once_on_a_slow_disk(path: Path, slow: SlowFileSystem) -> None:
    """Whoever holds a lock while the disk keeps him waiting does not make the loop wait for it."""

    async def work() -> Pauses:
        slow.seconds = 0
        async with aio.Log(path, fs=slow, segment_bytes=500, open_files=2) as log:
            slow.seconds = SLOW_S / 5

            async def do(name: str) -> None:
                found = await VERBS[name](log)
                if isinstance(found, Receipt):
                    await found

            async with heartbeat() as pauses:
                tasks = [asyncio.ensure_future(do(name)) for name in VERBS]
                while not all(task.done() for task in tasks):
                    repr(log)
                    await asyncio.sleep(0.001)
                await asyncio.gather(*tasks)
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


def test_cancelling_on_a_slow_disk(path: Path, slow: SlowFileSystem) -> None:
    """Nor does whoever is cancelled wait for what he began."""

    async def work() -> Pauses:
        slow.seconds = 0
        async with aio.Log(path, fs=slow) as log:
            slow.seconds = SLOW_S
            async with heartbeat() as pauses:
                for verb in VERBS.values():
                    task = asyncio.ensure_future(wait(verb(log)))
                    await asyncio.sleep(SLOW_S / 5)
                    task.cancel()
                    await asyncio.wait([task])
            slow.seconds = 0
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_letting_go_of_readings_while_others_open_files(path: Path, how: str) -> None:
    """Whoever opens a file has the others wait for him, but not the loop."""
    slow = SlowFileSystem(OsFileSystem(), 0)
    with Log(path, segment_bytes=2_000, flush="async") as blocking:
        fill(blocking, 1_000)

    async def work() -> Pauses:
        async with aio.Log(path, fs=slow, read_only=True, open_files=2) as log:
            is_over = False

            async def read() -> None:
                while not is_over:
                    await collect(log.read(0, 400))

            readings = [log.read(50 * number) for number in range(10)]
            for reading in readings:
                await anext(reading)
            del reading
            tasks = [asyncio.ensure_future(read()) for _ in range(3)]
            await steps(10)
            slow.seconds = SLOW_S
            async with heartbeat() as pauses:
                while readings:
                    await asyncio.sleep(SLOW_S / 2)
                    if how == "closed":
                        await readings[-1].aclose()
                    del readings[-1]
            slow.seconds, is_over = 0, True
            await asyncio.gather(*tasks)
        assert threading.get_ident() not in slow.callers
        return pauses

    quickly(work)


# --- other processes ----------------------------------------------------------------------


def test_another_process_that_keeps_the_turn_to_write(path: Path) -> None:
    """It was stopped while it had it; when it goes on, so do we."""

    async def work() -> Pauses:
        with OtherProcess(path, flush="async") as other:
            async with aio.Log(path) as log:
                await log.append_one(b"0")
                await asyncio.to_thread(other.stop_with_the_turn)
                async with heartbeat() as pauses:
                    waiting = [
                        asyncio.ensure_future(work)
                        for work in (log.append([b"0"]), log.flush(), log.append_one(b"0"))
                    ]
                    await asyncio.sleep(0.3)
                    assert not any(task.done() for task in waiting)
                    assert len(await collect(log.read(0, 1))) == 1  # readers wait for nobody
                    assert await log.start_offset() == 0
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(log.append([b"given up"]), 0.1)
                    await asyncio.to_thread(other.go_on)
                    await asyncio.gather(*waiting)
                found = [record.value async for record in log.read()]
                assert found[0] == b"0"
                assert b"given up" not in found
        return pauses

    quickly(work)


def test_another_process_that_is_stopped_while_a_log_is_opened_and_closed(path: Path) -> None:
    async def work() -> Pauses:
        with OtherProcess(path, flush="async") as other:
            log = await aio.Log(path)
            await asyncio.to_thread(other.stop_with_the_turn)
            async with heartbeat() as pauses:
                opening = asyncio.ensure_future(aio.Log(path).open())
                closing = asyncio.ensure_future(log.close())
                await asyncio.sleep(0.3)
                done = opening.done(), closing.done()
                await asyncio.to_thread(other.go_on)
                second = await opening
                await closing
                await second.close()
            assert done == (False, False)
        return pauses

    quickly(work)


# --- the loop's own judgement -------------------------------------------------------------


def test_no_callback_takes_long(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio complains of those in its debug mode."""
    fs = SlowFileSystem(OsFileSystem(), 0)
    names = ["append", "append_many", "read", "follow", "durable_offset", "flush", "vacuum"]
    caplog.set_level(logging.WARNING, "asyncio")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with aio.Log(path, fs=fs, segment_bytes=500) as log:
            await log.append_many([b"0"] * 20)
            for name in names:  # once, for what is imported then
                await VERBS[name](log)
            fs.seconds = SLOW_S
            loop.slow_callback_duration = 0.8 * SLOW_S
            for name in names:
                await VERBS[name](log)
            fs.seconds = 0

    def complaints() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("Executing")]

    for _attempt in range(3):  # the machine may be to blame for one, not for one each time
        caplog.clear()
        run(work())
        if not complaints():
            break
    assert not complaints()


def test_a_thousand_readers_and_writers_leave_room_for_others(path: Path) -> None:
    """The loop goes on with other things while there is much to do."""

    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            turns = 0
            stopped = False

            async def other() -> None:
                nonlocal turns
                while not stopped:
                    await asyncio.sleep(0.001)  # a loop that never waits starves the threads
                    turns += 1

            task = asyncio.ensure_future(other())
            await asyncio.gather(*(log.append_one(b"0") for _ in range(1_000)))
            before = turns
            for found in await asyncio.gather(*(collect(log.read(0, 50)) for _ in range(200))):
                assert len(found) == 50
            assert turns > before > 0
            stopped = True
            await until(task.done)

    run(work(), debug=False)
