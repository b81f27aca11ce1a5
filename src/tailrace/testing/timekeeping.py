"""What else has to happen when a test moves a clock.

Nobody who waits for messages would notice: the kernel, which wakes them, knows nothing of such a
clock, nor of a simulated disk. And stores without threads have nobody who delivers delayed
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final
from unittest import mock
from weakref import WeakSet

from tailrace.errors import Closed, TailraceError
from tailrace.log.hub import Task
from tailrace.log.watch import Watch
from tailrace.queue import store as stores
from tailrace.queue.store import Store
from tailrace.testing.clock import ManualClock

__all__ = ["bury", "deliver", "keeping_time", "living_stores", "looking_often"]

logger = logging.getLogger("tailrace")

_LOOK_EVERY_S: Final = 0.005

_dead: WeakSet[Store] = WeakSet()


class _Restless(Watch):
    """A watch that says every few milliseconds that something may have happened."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= _LOOK_EVERY_S:
            return super().wait(timeout)
        return super().wait(_LOOK_EVERY_S) or not self.closed

    async def wait_async(self, timeout: float | None = None) -> bool:
        is_over = timeout is not None and timeout <= _LOOK_EVERY_S
        return await super().wait_async(timeout) or not (is_over or self.closed)

    def begin(self, task: Task) -> None:
        super().begin(task)
        if not task.future.done():
            timer = task.loop.call_later(_LOOK_EVERY_S, task.settle)
            task.future.add_done_callback(lambda _: timer.cancel())


def _watch(*paths: str, names_in: Sequence[str] = ()) -> Watch:
    try:
        return _Restless(*paths, names_in=names_in)
    except (FileNotFoundError, NotADirectoryError):  # it is on no real disk
        return _Restless()


@contextmanager
def looking_often() -> Iterator[None]:
    """As long as this runs, whoever waits for messages looks every few milliseconds, besides being
    told. So nobody sleeps until the end of a lease that a clock has moved past, and what is on a
    simulated disk is seen at all. This is so in the whole process."""
    with mock.patch("tailrace.log.follow.Watch", _watch):
        yield


@contextmanager
def keeping_time(clock: ManualClock) -> Iterator[None]:
    """As long as this runs, a clock that is moved takes along all stores that were opened with it:
    what is due is delivered before `advance` returns, and who waits looks."""
    before = clock.on_change
    with looking_often():
        clock.on_change = partial(_deliver_all, clock)
        try:
            yield
        finally:
            clock.on_change = before


def living_stores(clock: ManualClock) -> list[Store]:
    """The stores of this process that are open, and go by the clock; those behind the ones for
    asyncio are among them."""
    return [
        store
        for store in list(stores._stores)
        if store.clock is clock and not store._closed and store not in _dead
    ]


def bury(dead: Iterable[Store]) -> None:
    """These were killed: nothing is to be done for them any more."""
    _dead.update(dead)


def _deliver_all(clock: ManualClock) -> None:
    for store in living_stores(clock):
        deliver(store)


def deliver(store: Store) -> None:
    """As the thread does that a store has otherwise: what fails is tried again later."""
    try:
        store.deliver_due()
    except Closed:
        return  # meanwhile
    except (TailraceError, OSError) as error:
        logger.error("delayed messages cannot be delivered: %s", error)
