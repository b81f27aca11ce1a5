"""What the tests of `tailrace.aio` share: running, stepping, and a slow file system."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tailrace import Record
from tailrace.testing import Call, FaultyFileSystem
from tailrace.testing.faults import FaultyFile
from tests.log.helpers import WAIT

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], *, debug: bool = True) -> T:
    """Run it in asyncio's debug mode; hanging is a failure, not a hang."""
    return asyncio.run(asyncio.wait_for(work, WAIT), debug=debug)


async def collect(items: AsyncIterable[T]) -> list[T]:
    return [item async for item in items]


async def offsets(records: AsyncIterable[Record]) -> list[int | None]:
    return [record.offset async for record in records]


async def values(records: AsyncIterable[Record]) -> list[bytes | None]:
    return [record.value async for record in records]


async def take(count: int, items: AsyncIterator[T]) -> list[T]:
    """The next few; the iterator can be asked for more."""
    return [await anext(items) for _ in range(count)]


async def steps(count: int) -> None:
    """Let the loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a thread or another task does."""
    while not condition():
        await asyncio.sleep(0.001)


async def cancelled_after(count: int, work: Coroutine[Any, Any, T]) -> T | None:
    """Start a task, and cancel it when the loop has gone round so many times. What it returned, if
    it was faster."""
    task = asyncio.ensure_future(work)
    await steps(count)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def wait(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    """As a coroutine, of which a task can be made."""

    async def wait() -> T:
        return await awaitable

    return wait()


class SlowFileSystem(FaultyFileSystem):
    """Every call takes so long, but for reads that are not to wait. `callers` are the threads that
    were kept waiting."""

    def __init__(self, inner: Any, seconds: float) -> None:
        super().__init__(inner, self._linger)
        self.seconds = seconds
        self.callers: set[int] = set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
        return _SlowFile(self, super().open(path, write=write, create=create)._inner, path)

    def _linger(self, _call: Call) -> None:
        self.callers.add(threading.get_ident())
        time.sleep(self.seconds)


class _SlowFile(FaultyFile):
    def pread_now(self, size: int, position: int) -> bytes | None:
        return self._inner.pread_now(size, position)


class Pauses:
    """The longest pause of the loop, in seconds, beyond that of a thread which does nothing else:
    the machine has its own."""

    def __init__(self) -> None:
        self.loop = 0.0
        self.machine = 0.0

    @property
    def longest(self) -> float:
        return self.loop - self.machine


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Pauses]:
    """Measure how long the loop pauses, for the length of a `with`."""
    pauses, stopped, every = Pauses(), threading.Event(), 0.002

    async def beat() -> None:
        last = time.monotonic()
        while not stopped.is_set():
            await asyncio.sleep(every)
            now = time.monotonic()
            pauses.loop, last = max(pauses.loop, now - last), now

    def beat_in_thread() -> None:
        last = time.monotonic()
        while not stopped.is_set():
            time.sleep(every)
            now = time.monotonic()
            pauses.machine, last = max(pauses.machine, now - last), now

    thread = threading.Thread(target=beat_in_thread)
    thread.start()
    task = asyncio.ensure_future(beat())
    try:
        yield pauses
    finally:
        stopped.set()
        await task
        thread.join()
