"""A task may be cancelled at any moment: nothing is left half done, and the log goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Log, aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, FaultyFileSystem, SimulatedDisk
from tests.aio.support import cancelled_after, collect, run, steps, until, values
from tests.log.helpers import WAIT, Gate, at
from tests.log.helpers import values as values_of
from tests.threads import our_threads

BATCH = [b"begin", *(b"%d" % n for n in range(50)), b"end"]


async def append_arrow(log: aio.Log) -> None:
    pa = pytest.importorskip("pyarrow")
    await log.append_arrow(pa.table({"value": BATCH}))


async def append_and_wait(log: aio.Log) -> None:
    await (await log.append(BATCH))


async def read(log: aio.Log) -> None:
    await collect(log.read())


VERBS: dict[str, Callable[[aio.Log], Awaitable[object]]] = {
    "append": lambda log: log.append(BATCH),
    "append_one": lambda log: log.append_one(b"one"),
    "append_once": lambda log: log.append(BATCH, producer="p", sequence=1),
    "append_many": lambda log: log.append_many(BATCH),
    "append_arrow": append_arrow,
    "append_and_wait": append_and_wait,
    "read": read,
    "offset_at": lambda log: log.offset_at(1),
    "start_offset": lambda log: log.start_offset(),
    "end_offset": lambda log: log.end_offset(),
    "durable_offset": lambda log: log.durable_offset(),
    "flush": lambda log: log.flush(),
    "truncate_before": lambda log: log.truncate_before(1),
    "vacuum": lambda log: log.vacuum(),
}


async def verb(log: aio.Log, name: str) -> None:
    await VERBS[name](log)


def is_whole(found: list[bytes | None]) -> bool:
    """Nothing but whole batches, and what was appended one by one."""
    left = list(found)
    while left:
        if left[0] == b"begin":
            if left[: len(BATCH)] != BATCH:
                return False
            del left[: len(BATCH)]
        elif left.pop(0) not in (b"one", b"before", b"after"):
            return False
    return True


async def check(log: aio.Log, appended: int) -> None:
    """It goes on, and is whole."""
    receipt = await log.append_one(b"after")
    assert receipt.offset == appended
    await receipt
    found = await values(log.read())
    assert is_whole(found)
    assert found[-1] == b"after"


# --- every verb ---------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("name", VERBS)
def test_cancelled_after_so_many_rounds_of_the_loop(name: str) -> None:
    async def work() -> None:
        disk = SimulatedDisk()
        for number in range(25):
            async with aio.Log(f"log{number}", fs=disk, segment_bytes=2_000) as log:
                await log.append_many([at(1, b"before"), at(2, b"before")])
                await cancelled_after(number, verb(log, name))
                await check(log, await settled(log))

    run(work(), debug=False)


async def settled(log: aio.Log) -> int:
    """The end of the log, when everything that was asked for is done."""
    await log.flush()
    return await log.end_offset()


@pytest.mark.no_cover
@pytest.mark.parametrize("name", VERBS)
def test_cancelled_during_every_call_of_the_file_system(name: str) -> None:
    """While the thread is in the middle of it."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for number in count():
            fs = FaultyFileSystem(SimulatedDisk())
            async with aio.Log("log", fs=fs, segment_bytes=2_000) as log:
                await log.append_many([at(1, b"before"), at(2, b"before")])
                task = asyncio.ensure_future(verb(log, name))
                first = len(fs.calls)
                was_hit = False

                def cancel(
                    call: Call,
                    task: asyncio.Future[None] = task,
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
                assert task.cancelled() or not task.exception()
                assert was_hit or not task.cancelled()
                await check(log, await settled(log))
            if not was_hit:
                break
        in_memory = ("start_offset", "end_offset")  # a writer knows them
        assert number > 0 or name in in_memory

    run(work(), debug=False)


@pytest.mark.parametrize("name", ["append", "append_many", "append_once"])
def test_an_append_that_is_cancelled_in_time_does_not_happen(path: Path, name: str) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        async with aio.Log(path, fs=fs) as log:
            await log.append_one(b"before")
            fs.plan = gate
            gate.shut()
            flush = asyncio.ensure_future(log.flush())
            await asyncio.to_thread(gate.reached.wait, WAIT)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(verb(log, name), 0.01)
            gate.open()
            await flush
            assert (await log.append_one(b"after")).offset == 1

    run(work())


def test_one_of_many_appends_is_cancelled(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            tasks = [asyncio.ensure_future(log.append_one(b"%d" % n)) for n in range(100)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            await asyncio.wait(tasks)
            await log.flush()
            found = await values(log.read())
            kept = [b"%d" % n for n in range(100) if n % 3]
            assert [value for value in found if value in kept] == kept
            assert len(set(found)) == len(found)

    run(work())


# --- open ---------------------------------------------------------------------------------


def test_an_opening_that_is_cancelled_after_so_many_rounds(path: Path) -> None:
    async def work() -> None:
        with Log(path):
            pass
        for number in range(40):
            log = aio.Log(path, exclusive=True)
            if await cancelled_after(number, log.open()) is not None:
                await log.append_one(b"x")
            else:
                with pytest.raises(Closed, match="is not open"):
                    await until_refused(log)
                await until(lambda: not our_threads())
                await log.open()  # one may try again
            await log.close()

    run(work())


async def until_refused(log: aio.Log) -> None:
    """What was opened although nobody wants it is closed at once, but not in no time."""
    while True:
        await log.end_offset()
        await asyncio.sleep(0)


def test_an_opening_that_is_cancelled_at_every_call(path: Path) -> None:
    """Whoever comes next finds nothing in his way."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for number in count():
            fs = FaultyFileSystem(OsFileSystem())
            log = aio.Log(path, fs=fs, exclusive=True)
            task = asyncio.ensure_future(log.open())
            cancelling = threading.Event()

            def cancel(
                call: Call,
                task: asyncio.Future[aio.Log] = task,
                moment: int = number,
                cancelling: threading.Event = cancelling,
            ) -> None:
                if call.n == moment:
                    loop.call_soon_threadsafe(
                        lambda: (task.cancel(), loop.call_soon(cancelling.set))
                    )
                    assert cancelling.wait(WAIT)

            fs.plan = cancel
            await asyncio.wait([task])
            fs.plan = None
            if not task.cancelled():
                await log.close()
                break
            await until(lambda: not our_threads())
            async with aio.Log(path, exclusive=True):
                pass
            await log.close()
        assert number > 10

    run(work(), debug=False)


def test_one_of_those_who_open_it_is_cancelled(path: Path) -> None:
    """The others have it open all the same."""

    async def work() -> None:
        for number in range(30):
            log = aio.Log(path, flush="async", upkeep=False)
            tasks = [asyncio.ensure_future(log.open()) for _ in range(3)]
            await steps(number)
            tasks[number % 3].cancel()
            await asyncio.wait(tasks)
            await steps(5)
            await log.append_one(b"x")
            await log.close()

    run(work())


def test_an_async_with_that_is_cancelled(path: Path) -> None:
    async def work() -> None:
        for number in range(40):

            async def use() -> None:
                async with aio.Log(path, flush="async") as log:
                    await log.append(BATCH)
                    await asyncio.sleep(WAIT)

            task = asyncio.ensure_future(use())
            await steps(number)
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: not our_threads())
            with Log(path, exclusive=True) as blocking:
                assert is_whole(values_of(blocking.read()))

    run(work())


# --- close --------------------------------------------------------------------------------


def test_a_close_that_is_cancelled_after_so_many_rounds(path: Path) -> None:
    async def work() -> None:
        for number in range(30):
            log = await aio.Log(path)
            await log.append_one(b"%d" % number)
            await cancelled_after(number, log.close())
            if number:  # it had begun
                with pytest.raises(Closed):
                    await log.append_one(b"x")
            await log.close()  # returns when it is closed
            async with aio.Log(path, exclusive=True) as log:
                assert await log.durable_offset() == number + 1

    run(work())


def test_a_close_that_is_cancelled_half_way(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        log = await aio.Log(path, fs=fs)
        receipt = await log.append_one(b"x")
        reading = asyncio.ensure_future(collect(log.read(follow=True)))
        fs.plan = gate
        gate.shut()
        closing = asyncio.ensure_future(log.close())
        await asyncio.to_thread(gate.reached.wait, WAIT)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await reading == []
        again = asyncio.ensure_future(log.close())
        await steps(10)
        assert not again.done()
        gate.open()
        await again
        assert receipt.done
        with Log(path, exclusive=True) as blocking:
            assert values_of(blocking.read()) == [b"x"]

    run(work())


def test_a_close_that_is_cancelled_before_its_turn(path: Path) -> None:
    """It is done all the same, although nobody asks for it again."""
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        log = await aio.Log(path, fs=fs)
        await log.append_one(b"x")
        fs.plan = gate
        gate.shut()
        flush = asyncio.ensure_future(log.flush())
        closing = asyncio.ensure_future(log.close())
        await asyncio.to_thread(gate.reached.wait, WAIT)
        closing.cancel()
        await asyncio.wait([closing])
        gate.open()
        await flush
        await until(lambda: not our_threads())
        with Log(path, exclusive=True) as blocking:
            assert values_of(blocking.read()) == [b"x"]

    run(work())


# --- everything at once -------------------------------------------------------------------


@pytest.mark.no_cover
def test_a_loop_that_is_stopped_at_any_time(path: Path) -> None:
    """As Ctrl-C does: everything is cancelled, and the log is closed as it should be."""
    for number in range(30):
        begun = asyncio.Event()

        async def use(number: int = number, begun: asyncio.Event = begun) -> None:
            async with aio.Log(path, segment_bytes=5_000) as log:
                begun.set()

                async def append(task: int) -> None:
                    for _ in range(100):
                        await (await log.append(BATCH, producer=f"{number} {task}", sequence=1))
                        await log.append_one(b"one")

                tasks: list[Awaitable[Any]] = [append(task) for task in range(5)]
                tasks += [collect(log.read(follow=True)) for _ in range(3)]
                await asyncio.gather(*tasks)

        async def stop(
            number: int = number,
            begun: asyncio.Event = begun,
            use: Callable[[], Awaitable[None]] = use,
        ) -> None:
            task = asyncio.ensure_future(use())
            await begun.wait()
            await steps(3 * number)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

        run(stop(), debug=False)
        with Log(path, exclusive=True) as blocking:
            assert is_whole(values_of(blocking.read()))
            assert blocking._writer is not None
            assert blocking._writer.diagnosis is not None
            assert blocking._writer.diagnosis.clean
