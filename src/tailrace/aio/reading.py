"""Reading in a thread, a portion at a time, for `async for`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from tailrace.aio.worker import Crew, Worker
from tailrace.log.follow import Tailing

__all__ = ["Reading"]

T = TypeVar("T")

# Whoever wants the first record does not wait for many; who wants many does not change threads for
# each few. And nobody has much more in memory than he asked for.
_FIRST_PORTION = 16
_LARGEST_PORTION = 1024
_LARGEST_BYTES = 1 << 20


class _Portion(NamedTuple, Generic[T]):
    """What a thread has read: items, and the error that came behind them. `is_all`: there is no
    more for now; `is_last`: there will be no more."""

    items: deque[T]
    error: BaseException | None
    is_all: bool
    is_last: bool


class Reading(Generic[T], AsyncIterator[T]):
    """What `read` and its kin return. It begins with `async with`, or else when the first item is
    asked for. Tasks of one loop may share it; each item goes to one of them.

    Cancelling a task that waits for the next item loses nothing: whoever asks again gets it. An
    error comes behind what was read before it. To let go of files early leave the `async with`, or
    call `aclose`.
    """

    def __init__(
        self,
        start: Callable[[], Iterator[T] | Tailing],
        weigh: Callable[[T], int],
        crew: Crew,
        timeout: float | None = None,
        lookout: Worker | None = None,
        worker: Worker | None = None,
        wrap: Callable[[Any], T] | None = None,
    ) -> None:
        """`start` begins to read; `weigh` tells the bytes of an item. The `crew` reads; at the end
        of the log the `lookout` does: it looks for all who follow, whom one event wakes, in one go.
        The `worker` lets go of files if nobody else does. `wrap` makes of what was read what is
        handed out."""
        self._start = start
        self._weigh = weigh
        self._crew = crew
        self._timeout = timeout
        self._lookout = lookout
        self._worker = worker
        self._wrap = wrap
        self._deadline: float | None = None
        self._pending: asyncio.Future[_Portion[T]] | None = None
        self._portion: _Portion[T] = _Portion(deque(), None, is_all=False, is_last=False)
        self._has_begun = False
        self._is_idle = False  # looked, and there is no more for now
        self._is_over = False
        # These are the thread's.
        self._source: Iterator[T] | None = None
        self._tailing: Tailing | None = None
        self._size = _FIRST_PORTION

    def __aiter__(self) -> Reading[T]:
        return self

    async def __anext__(self) -> T:
        while not self._is_over:
            items, error, _is_all, is_last = self._portion
            if items:
                self._deadline = None
                item = items.popleft()
                return item if self._wrap is None else self._wrap(item)
            if error is not None:
                self.close()
                raise error
            if is_last:
                self.close()
            elif self._is_idle:
                self._is_idle = False  # however the wait ends, the next thing is to look
                if self._timeout is None and self._tailing is not None:
                    # `_wait`, without its detours: one event wakes all who follow, one by one.
                    watch = self._tailing.watch
                    task = watch.task()
                    try:
                        watch.begin(task)
                        await task.future
                    finally:
                        watch.leave(task)
                    watch.take(task)
                else:
                    await self._wait()
            elif not self._look_now():
                await self._look()
        raise StopAsyncIteration

    def _look_now(self) -> bool:
        """Look ourselves, if that needs no thread: at the end of the log it often does not."""
        tailing = self._tailing
        if tailing is None or self._source is not None or self._pending is not None:
            return False
        records: Sequence[Any] | None = tailing.poll_tip(now=True)
        if records is None:
            return False
        if records:
            self._portion = _Portion(deque(records), None, is_all=True, is_last=tailing.is_over)
        self._is_idle = True
        return True

    async def _look(self) -> None:
        """Have a thread read a portion. It is asked once, however many tasks wait for it, and a
        cancelled one does not take along what it has read."""
        self._has_begun = True
        pending = self._pending
        if pending is None:
            if self._lookout is not None and self._tailing is not None and self._source is None:
                pending = self._lookout.do(self._read)
            else:
                pending = self._crew.do(self._read)
            self._pending = pending
        portion = await asyncio.shield(pending)
        if self._pending is pending:
            self._pending = None
            self._portion = portion
            self._is_idle = portion.is_all  # what has come since then, the watch knows of

    async def _wait(self) -> None:
        """Until there may be more. What comes counts, not what wakes us: the time goes on."""
        assert self._tailing is not None
        left = None
        if self._timeout is not None:
            now = asyncio.get_running_loop().time()
            if self._deadline is None:
                self._deadline = now + self._timeout
            left = self._deadline - now
        if left is not None and left <= 0:
            self.close()
        else:
            await self._tailing.watch.wait_async(left)

    # --- in the thread ----------------------------------------------------------------------

    def _read(self) -> _Portion[T]:
        items: deque[T] = deque()
        error = None
        try:
            if not self._is_over:
                self._read_into(items)
        except BaseException as caught:  # noqa: BLE001  whatever it is, who iterates is told
            error, self._source = caught, None
        if self._is_over:  # closed by now, perhaps before there was anything to close
            self._source = None
            self.close()
        is_all = self._source is None
        is_last = is_all and (self._tailing is None or self._tailing.is_over)
        return _Portion(items, error, is_all, is_last)

    def _read_into(self, items: deque[T]) -> None:
        """Read a portion; there is no source any more if that is all."""
        source = self._source or self._begin()
        self._source, room = source, _LARGEST_BYTES
        for item in islice(source, self._size):
            items.append(item)
            room -= self._weigh(item)
            if room <= 0:
                return
        if len(items) < self._size:
            self._source = None
            self._size = _FIRST_PORTION
        else:
            self._size = min(2 * self._size, _LARGEST_PORTION)

    def _begin(self) -> Iterator[T]:
        if self._tailing is None:
            started = self._start()
            if not isinstance(started, Tailing):
                return started
            self._tailing = started
        return self._tailing.poll()  # type: ignore[return-value]

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End the iteration, from anywhere. A task that waits for the next item gets no more."""
        self._is_over = True
        if self._tailing is not None:
            self._tailing.close()

    def __del__(self) -> None:
        # To let go of a file one may have to wait for somebody who opens another.
        close = getattr(getattr(self, "_source", None), "close", None)
        if close is not None and self._worker is not None:
            self._worker.drop(close)

    async def aclose(self) -> None:
        """Close it, and return when its files are let go of."""
        self.close()
        while self._source is not None or self._pending is not None:
            await self._look()

    async def __aenter__(self) -> Reading[T]:
        if not self._has_begun:
            try:
                await self._look()
            except BaseException:
                self.close()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
