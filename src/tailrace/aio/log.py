"""`tailrace.aio.Log`: the log, for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tailrace.aio.reading import Reading
from tailrace.aio.worker import Crew, Worker
from tailrace.errors import Closed
from tailrace.kernel import Record
from tailrace.log.commit import Receipt
from tailrace.log.follow import Tailing
from tailrace.log.fs import FileSystem
from tailrace.log.inputs import check_timeout
from tailrace.log.log import Batch, Start
from tailrace.log.log import Log as BlockingLog
from tailrace.log.options import LogOptions
from tailrace.log.retention import VacuumReport

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Log"]

T = TypeVar("T")


class Log:
    """A durable log in a directory, for asyncio. Takes what `tailrace.Log` takes.

        async with tailrace.aio.Log("some/segments") as log:
            receipt = await log.append([b"v"])   # it is in the log
            await receipt                        # and durable
            async for record in log.read(follow=True): ...

    Opening it takes time, so it is open after `async with`, or after `log = await Log(…)`. Tasks of
    any number of loops may share it. Appends keep the order of their calls. A task that is
    cancelled leaves no half an append: it happens as a whole, or not at all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: str | None = None,
        read_only: bool = False,
        mode: Literal["owner", "shared"] = "owner",
        exclusive: bool = False,
        upkeep: bool = True,
        fs: FileSystem | None = None,
        **options: Any,
    ) -> None:
        self.path = os.fspath(path)
        self.read_only = read_only
        self.options = LogOptions.parse(flush=flush, **options)
        self._make = partial(
            BlockingLog,
            self.path,
            flush=flush,
            read_only=read_only,
            mode=mode,
            exclusive=exclusive,
            upkeep=upkeep,
            fs=fs,
            **options,
        )
        self._log: BlockingLog | None = None
        self._worker = Worker(self.path)
        self._lookout = Worker(f"{self.path} lookout")
        self._crew = Crew(self.path)
        self._lock = threading.Lock()  # what follows is used by several loops
        self._openers = 0  # those who have opened it, or are about to
        self._followers: weakref.WeakSet[Reading[Any]] = weakref.WeakSet()
        self._is_closing = self._is_closed = False

    # --- open and close ---------------------------------------------------------------------

    async def open(self) -> Log:
        """Open it, unless it is open. If that fails or is cancelled it is not, and one may try
        again."""
        with self._lock:
            if self._is_closing:
                raise Closed(f"{self.path} is closed")
            self._openers += 1
            if self._log is not None:
                return self
        try:
            await self._worker.do(self._open, slow=True)
        except BaseException:
            with self._lock:
                self._openers -= 1
            self._worker.post(self._close_if_unwanted)
            raise
        return self

    def _open(self) -> None:
        if self._is_closing:
            raise Closed(f"{self.path} is closed")
        if self._log is None:
            self._log = self._make()
            self._worker.keep()

    def _close_if_unwanted(self) -> None:
        with self._lock:
            if self._openers or self._log is None:
                return
            log, self._log = self._log, None
        self._worker.let_go()
        log.close()

    def __await__(self) -> Generator[Any, None, Log]:
        return self.open().__await__()

    async def __aenter__(self) -> Log:
        return await self.open()

    async def close(self) -> None:
        """Flush and close; a second close only waits for the first. What was asked for before is
        done first, and who follows the log comes to its end. Cancelled, it is done all the same."""
        if self._is_closed:
            return
        with self._lock:
            self._is_closing = True
            followers = list(self._followers)
        for follower in followers:
            follower.close()
        await asyncio.shield(self._worker.do(self._close, slow=True))

    def _close(self) -> None:
        try:
            if self._log is not None:
                self._log.close()
        finally:
            self._is_closed = True
            self._let_go_of_threads()

    def __del__(self) -> None:
        # Dropped without a close: the thread ends, and the log goes as if it had crashed.
        if hasattr(self, "_crew"):
            self._let_go_of_threads()

    def _let_go_of_threads(self) -> None:
        self._worker.let_go()
        self._lookout.let_go()
        self._crew.let_go()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _opened(self) -> BlockingLog:
        if self._is_closing:
            raise Closed(f"{self.path} is closed")
        return self._seen()

    def _seen(self) -> BlockingLog:
        """The log, open or closed: some things can be asked for even then."""
        if self._log is None:
            raise Closed(f"{self.path} is not open: use `async with`, or await it")
        return self._log

    # --- append -----------------------------------------------------------------------------

    async def append(
        self,
        records: Sequence[object],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Append records as one batch. The receipt comes when they are in the log, with their
        offsets; `await receipt` returns when they are as durable as the flush mode promises."""
        log = self._opened()
        return await self._worker.do(
            lambda: log.append(records, producer=producer, sequence=sequence)
        )

    async def append_one(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        timestamp: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Append one record."""
        log = self._opened()
        return await self._worker.do(
            lambda: log.append_one(value, key, headers, timestamp, producer, sequence)
        )

    async def append_many(self, records: Iterable[object]) -> Receipt:
        """Append any number of records, in as few batches as the limits allow."""
        return await self._do(lambda log: log.append_many(records))

    async def append_arrow(self, data: pa.RecordBatch | pa.Table) -> Receipt:
        """Append the rows of an Arrow table or record batch."""
        return await self._do(lambda log: log.append_arrow(data))

    # --- read -------------------------------------------------------------------------------

    def read(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Record]:
        """Records from `start` up to `end`, or to what the log holds when the reading begins, with
        `async with` or when the first one is asked for. With `follow` it goes on with what any
        process appends, until it or the log is closed, or nothing has come for `timeout` seconds.
        """
        check_timeout(timeout)
        if timeout is not None and not follow:
            raise ValueError("timeout is for follow=True; without it nothing is waited for")
        if follow:
            reading: Reading[Record] = self._reading(
                lambda log: log.tail(start, end, timestamp=timestamp), _weigh, timeout
            )
            self._lookout.keep()
            with self._lock:
                self._followers.add(reading)
            return reading
        return self._reading(lambda log: log.read(start, end, timestamp=timestamp), _weigh)

    def read_batches(
        self, start: Start = "first", end: int | None = None, *, timestamp: int | None = None
    ) -> Reading[Batch]:
        """Whole batches as they are stored."""
        return self._reading(
            lambda log: log.read_batches(start, end, timestamp=timestamp),
            lambda batch: len(batch.data),
        )

    def read_arrow(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        columns: Sequence[str] | None = None,
        **choice: Any,
    ) -> Reading[pa.RecordBatch]:
        """Arrow record batches with the columns asked for; `choice` is what else `decode_arrow` can
        be asked for."""
        return self._reading(
            lambda log: log.read_arrow(start, end, timestamp=timestamp, columns=columns, **choice),
            lambda batch: batch.nbytes,
        )

    def _reading(
        self,
        start: Callable[[BlockingLog], Iterator[T] | Tailing],
        weigh: Callable[[T], int],
        timeout: float | None = None,
    ) -> Reading[T]:
        log = self._opened()
        return Reading(lambda: start(log), weigh, self._crew, timeout, self._lookout, self._worker)

    async def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older than `timestamp` (milliseconds)."""
        return await self._look(lambda log: log.offset_at(timestamp))

    async def start_offset(self) -> int:
        """The first offset that can be read."""
        return await self._look(lambda log: log.start_offset)

    async def end_offset(self) -> int:
        """The offset that the next record gets."""
        return await self._look(lambda log: log.end_offset)

    async def durable_offset(self) -> int:
        """Every record below is on the disk."""
        return await self._look(lambda log: log.durable_offset)

    @property
    def flush_mode(self) -> str:
        """What receipts of this handle wait for."""
        return self._seen().flush_mode

    # --- upkeep -----------------------------------------------------------------------------

    async def flush(self) -> None:
        """Make everything durable that was appended so far."""
        await self._do(lambda log: log.flush())

    async def truncate_before(self, offset: int) -> None:
        """Let the log start at `offset`, durably and at once."""
        await self._do(lambda log: log.truncate_before(offset))

    async def vacuum(self) -> VacuumReport:
        """Delete the segments that the start offset and the retention options let go."""
        return await self._do(lambda log: log.vacuum())

    def __repr__(self) -> str:
        if self._log is not None:
            return f"aio.{self._log!r}"
        return f"aio.Log({self.path!r}, {'closed' if self._is_closing else 'not open'})"

    async def _do(self, job: Callable[[BlockingLog], T]) -> T:
        """In order with appends."""
        return await self._worker.do(partial(job, self._opened()), slow=True)

    async def _look(self, job: Callable[[BlockingLog], T]) -> T:
        """Beside appends."""
        return await self._crew.do(partial(job, self._seen()))


def _weigh(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")
