"""Threads that do what tasks ask for: a worker one thing after the other, a crew each on its own.

The order of a worker is that of the calls, so appends keep theirs. What has piled up is done in one
go, and the tasks are told with one call into their loop: a hundred appends at once cost two changes
of thread, not two hundred. But nobody waits to be told until something slow is done that was asked
for later.

Nothing of ours is done in asyncio's default executor: that is the user's, whose jobs may take all
of its threads for as long as they like, and may wait for us.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

__all__ = ["LINGER_S", "Crew", "Worker", "finish", "finish_all"]

T = TypeVar("T")

logger = logging.getLogger("tailrace")

_TELL_AFTER_S = 0.001

LINGER_S = 5.0  # for workers of which there may be many, that are needed now and then

_MOST_THREADS = 16  # of a crew: with more they would rather wait for each other than for the disk


class _Job(NamedTuple):
    do: Callable[[], Any]
    slow: bool
    future: asyncio.Future[Any] | None  # none: nobody waits for it


class _Done(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class Worker:
    """Thread-safe. There is a thread while there is something to do, and as long as it is kept; or
    until there was nothing to do for `linger_s`."""

    def __init__(self, name: str, *, linger_s: float | None = None) -> None:
        self._name = name
        self._is_kept = False
        self._linger_s = linger_s
        self.start_afresh()
        _all.add(self)

    def start_afresh(self) -> None:
        """Without a thread and without jobs: in a forked child they are the parent's."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._runs = False
        self._has_lingered = False

    def do(self, job: Callable[[], T], *, slow: bool = False) -> asyncio.Future[T]:
        """A future of the running loop for what `job` returns. It is done in the context of the
        task that asks, as `asyncio.to_thread` does it: what is published knows its span.

        If it is cancelled before its turn, the job is not done; later, it is done all the same.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Job(partial(copy_context().run, job), slow, future))
        return future

    def post(self, job: Callable[[], object]) -> None:
        """Have something done for which nobody waits. Needs no loop."""
        self._put(_Job(job, True, None))

    def _put(self, job: _Job) -> None:
        with self._lock:
            if not self._runs:  # first: if there can be no thread, there is no job either
                name = f"tailrace-aio {self._name}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._runs = True
            self._jobs.put(job)

    async def drain(self) -> None:
        """Return when what was asked for before is done."""
        if self._runs:
            await self.do(lambda: None, slow=True)

    def keep(self) -> None:
        """Have the thread wait for more."""
        self._is_kept = True

    def let_go(self) -> None:
        """End the thread when there is nothing left to do. Takes no lock: the garbage collector may
        call it anywhere."""
        self._is_kept, self._linger_s = False, None
        self._jobs.put(None)

    def drop(self, close: Callable[[], object]) -> None:
        """Have the thread, if there is one, close what nobody uses any more. Takes no lock, like
        `let_go`."""
        if self._runs:
            self._jobs.put(_Job(close, True, None))

    def _run(self) -> None:
        while self._is_needed():
            self._work_off()

    def _is_needed(self) -> bool:
        with self._lock:
            lingers = self._linger_s is not None and not self._has_lingered
            self._has_lingered = False
            self._runs = self._is_kept or lingers or not self._jobs.empty()
            return self._runs

    def _work_off(self) -> None:
        """Wait for a job, do it and those that have come meanwhile. Nothing of them is left here
        afterwards: the thread must not be what keeps a log alive that everybody else has dropped,
        and an error must not be found in the frames that it came through."""
        job = self._next()
        done: dict[asyncio.AbstractEventLoop, list[_Done]] = {}
        since = time.monotonic()
        while job is not None:
            if done and (job.slow or time.monotonic() - since > _TELL_AFTER_S):
                _tell(done)
                since = time.monotonic()
            if job.future is None:
                self._do_unasked(job.do)
            elif not job.future.cancelled():
                done.setdefault(job.future.get_loop(), []).append(_attempt(job.do, job.future))
            job = None if self._jobs.empty() else self._jobs.get()
        _tell(done)

    def _next(self) -> _Job | None:
        linger_s = None if self._is_kept else self._linger_s
        try:
            return self._jobs.get(timeout=linger_s)
        except queue.Empty:
            self._has_lingered = True
            return None

    def _do_unasked(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception:  # nobody else is there to be told
            logger.exception("%s", self._name)


class Crew:
    """Threads for what may take long, or is rare, and needs no order: nothing waits for anything
    else, unless there is very much. Thread-safe. A thread ends when there was nothing to do for
    `LINGER_S`, or when it is let go and there is nothing left to do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._linger_s = LINGER_S
        self.start_afresh()
        _all.add(self)

    def start_afresh(self) -> None:
        """As `Worker.start_afresh`."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._under_way = 0  # jobs that were asked for and are not done
        self._threads = 0  # more than that only if they linger
        self._drains: list[asyncio.Future[None]] = []

    def do(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """As `Worker.do`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._threads <= self._under_way and self._threads < _MOST_THREADS:
                name = f"tailrace-aio {self._name} crew"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._threads += 1
            self._under_way += 1
            self._jobs.put(_Job(partial(copy_context().run, job), True, future))
        return future

    async def drain(self) -> None:
        """Return when nothing is under way."""
        with self._lock:
            if not self._under_way:
                return
            future = asyncio.get_running_loop().create_future()
            self._drains.append(future)
        await future

    def let_go(self) -> None:
        """End the threads when there is nothing left to do. Takes no lock, as in a worker."""
        self._linger_s = 0.0
        for _ in range(self._threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while self._work() or self._is_needed():
            pass

    def _is_needed(self) -> bool:
        """Is there a job that no other thread has?"""
        with self._lock:
            if self._threads <= self._under_way:
                return True
            self._threads -= 1
            return False

    def _work(self) -> bool:
        """Wait for a job and do it; false if none came. Nothing of it is left here afterwards, as
        in a worker."""
        try:
            job = self._jobs.get(timeout=self._linger_s)
        except queue.Empty:
            return False
        if job is None:
            return False
        assert job.future is not None
        done: dict[asyncio.AbstractEventLoop, list[_Done]] = {}
        if not job.future.cancelled():
            done[job.future.get_loop()] = [_attempt(job.do, job.future)]
        del job
        with self._lock:  # first: whoever is told and asks for more finds this thread free
            self._under_way -= 1
            drained: list[asyncio.Future[None]] = []
            if not self._under_way:
                drained, self._drains = self._drains, []
        for future in drained:
            done.setdefault(future.get_loop(), []).append(_Done(future, None, None))
        _tell(done)
        return True


async def finish(work: asyncio.Future[T] | Coroutine[Any, Any, T]) -> T:
    """Wait for it; if we are cancelled meanwhile it is done all the same, and what comes of it
    concerns nobody any more."""
    future = asyncio.ensure_future(work)
    future.add_done_callback(_hear_out)
    return await asyncio.shield(future)


async def finish_all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait for all of them, whichever fail; then raise the first error."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _hear_out(future: asyncio.Future[Any]) -> None:
    """Lest asyncio complain of an error that nobody was told of."""
    if not future.cancelled():
        future.exception()


def _attempt(do: Callable[[], Any], future: asyncio.Future[Any]) -> _Done:
    try:
        return _Done(future, do(), None)
    except StopIteration as error:  # which no future can carry
        return _Done(future, None, RuntimeError(f"a job raised {error!r}"))
    except BaseException as error:  # noqa: BLE001  whatever it is, the task is told
        return _Done(future, None, error)
    finally:
        del do, future


def _tell(done: dict[asyncio.AbstractEventLoop, list[_Done]]) -> None:
    while done:
        loop, results = done.popitem()
        try:
            loop.call_soon_threadsafe(_settle, results)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _settle(results: list[_Done]) -> None:
    for future, result, error in results:
        if future.done():  # cancelled meanwhile
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


_all: weakref.WeakSet[Worker | Crew] = weakref.WeakSet()


def _start_afresh() -> None:
    for each in list(_all):
        each.start_afresh()


os.register_at_fork(after_in_child=_start_afresh)
