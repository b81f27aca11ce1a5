"""`Log`: a directory of segments with one ordered sequence of offsets."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from tailrace.errors import Closed, ConfigError, NotWritten, OffsetOutOfRange
from tailrace.kernel import (
    HEADER_SIZE,
    MAX_COUNT,
    Draft,
    Record,
    TooLarge,
    batches,
    decode,
    encode,
    encode_placed,
)
from tailrace.kernel.coerce import refuse_single
from tailrace.kernel.layout import too_large
from tailrace.log.board import ATTENTION
from tailrace.log.commit import Committer, Receipt
from tailrace.log.follow import Follower, Tailing
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.ground import refuse_network
from tailrace.log.inputs import (
    check_records,
    check_timeout,
    check_whole,
    checked_mode,
    checked_sequence,
    chunks,
    refuse_reserved,
)
from tailrace.log.manner import Manner, system_ms
from tailrace.log.observer import Observer
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.producers import Once, headers_of
from tailrace.log.reader import View
from tailrace.log.retention import VacuumReport
from tailrace.log.segments import Catalog
from tailrace.log.tail import NEXT_OFFSET
from tailrace.log.tip import Tips
from tailrace.log.writer import Writer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batch", "Log"]

Start = int | Literal["first", "last", "next"]
_FEW = 16
_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _disown_all() -> None:
    for log in list(_logs):
        log._disown()


os.register_at_fork(after_in_child=_disown_all)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is stored; `records()` decodes it."""

    base_offset: int
    count: int
    max_timestamp: int
    data: bytes

    def records(self) -> list[Record]:
        return decode(self.data, 0, len(self.data))


class Log:
    """A durable log in a directory: append records, read them by offset or by time.

    Any number of processes write and read it at once. Inside a process share one `Log` among
    threads and tasks: every method is thread-safe. A forked child may go on with its parent's: its
    next call opens the log anew.

    In mode `"owner"` a handle that appends without a pause, and finds itself alone, keeps the turn
    to write, and gives it back when somebody asks; in mode `"shared"` it takes it for each append.
    `exclusive=True` keeps other writers out: they get `Locked`, which names the holder.
    `read_only=True` writes nothing, not even repairs.

    `flush` is the log's promise, fixed when it is created: with `"sync"` a receipt is done when its
    records are on the disk, and readers see nothing before; with `"async"` it is done at once and
    goes to the disk every `flush_interval`; with `"none"` nothing is ever synced. A handle may ask
    for more than the log promises, not for less. `upkeep=False` has no thread that flushes and
    deletes: call `flush` and `vacuum` then.
    """

    _wall_ms: Callable[[], int] = staticmethod(system_ms)

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
        if not self.path:
            raise ConfigError("path: it is empty; name the folder of the log ('.' is this one)")
        self.read_only = read_only
        self.options = LogOptions.parse(flush=flush, **options)
        self._manner = Manner(checked_mode(mode, exclusive, read_only), upkeep, self._wall_ms)
        # The working directory may change, the log stays.
        self._folder = self.path if fs is not None else os.path.abspath(self.path)
        self._fs = fs if fs is not None else OsFileSystem()
        if fs is None and not read_only:
            refuse_network(self._folder)
        self._codec = self.options.codec
        self._max_batch_size = HEADER_SIZE + self.options.max_batch_bytes
        self._writer: Writer | None = None
        self._committer: Committer | None = None
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._closed = self._is_let_go = True
        self._is_inherited = False
        self._opening = threading.RLock()
        self._open()
        _logs.add(self)

    def _open(self) -> None:
        fs, folder, options = self._fs, self._folder, self.options
        if self.read_only:
            catalog = Catalog(fs, folder, options, read_only=True)
            self._observer = Observer(fs, folder, catalog)
        else:
            writer = Writer(fs, folder, options, self._manner)
            try:
                catalog = Catalog(
                    fs, folder, options, seals=writer.flush_mode is not FlushMode.NONE
                )
                self._observer = Observer(fs, folder, catalog, lambda: writer.committer.watermark)
            except BaseException:
                writer.abandon()
                raise
            self._writer = writer
            # What a receipt has to wait for: nothing, unless this handle is `sync`.
            self._committer = writer.committer if writer.flush_mode is FlushMode.SYNC else None
        self._tips = Tips(self._observer)
        self._closed = self._is_let_go = False

    def _disown(self) -> None:
        """We are in a forked child: what is open is the parent's. Whatever is asked of this log
        next opens it anew, as another process would."""
        if self._closed:
            return
        if self._writer is not None:
            self._writer.disown()
        self._writer = self._committer = None
        self._observer.disown()
        self._followers = weakref.WeakSet()
        self._opening = threading.RLock()
        self._is_inherited = True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: pass its path, and open it in the other process")

    # --- append -----------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[object],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Append records as one batch: all of them or none.

        A record is a value (bytes or str), a `(key, value)` or `(key, value, headers)` tuple, or a
        `Record`. A batch holds up to 65,535 records and `max_batch_bytes`; more is refused.

        With a `producer` id and a `sequence` that rises, repeating an append is harmless: the
        receipt of the first one comes back.
        """
        check_records(records)
        now_ms, limit = self._wall_ms(), self.options.max_batch_bytes
        if producer is not None or sequence is not None:
            once = Once(*checked_sequence(producer, sequence))
            draft = encode(records, now_ms, self._codec, headers_of(once), limit)
            offset, count = self._writing().append_once(draft, once, now_ms)
            return Receipt(offset, offset + count, count, self._committer)
        return self.append_draft(encode(records, now_ms, self._codec, (), limit))

    def append_one(
        self,
        value: bytes | str | None,
        # Not keyword-only, as it should be: CPython calls such a function 0.15 µs more slowly.
        key: bytes | str | None = None,
        headers: Any = None,
        timestamp: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Append one record."""
        if self._codec or producer is not None or sequence is not None:
            record = Record(timestamp=timestamp, key=key, value=value, headers=headers)
            return self.append([record], producer=producer, sequence=sequence)
        writer = self._writer
        if writer is None:
            writer = self._writing()
        if headers is not None:
            refuse_reserved(headers)
        now_ms = time_ns() // 1_000_000
        tail, turn = writer.tail, writer.turn
        with writer.lock:
            try:
                if not turn.held:
                    writer.take_turn()
                offset = tail.state[NEXT_OFFSET]
                data = encode_placed(value, key, headers, timestamp, offset, now_ms)
                size = len(data)
                if size > self._max_batch_size:
                    raise too_large(size - HEADER_SIZE, self.options.max_batch_bytes, 1)
                tail.write(data, size, 1, now_ms if timestamp is None else timestamp)
                if turn.shares or turn.memory[ATTENTION]:
                    writer.end_turn()
            except BaseException:
                writer.break_off()
                raise
        return Receipt(offset, offset + 1, 1, self._committer)

    def append_draft(self, draft: Draft) -> Receipt:
        """Append a batch that was encoded before."""
        writer = self._writing()
        if draft.size > self._max_batch_size:
            raise too_large(draft.size - HEADER_SIZE, self.options.max_batch_bytes, draft.count)
        offset = writer.append(draft)
        return Receipt(offset, offset + draft.count, draft.count, self._committer)

    def append_many(self, records: Iterable[object]) -> Receipt:
        """Append any number of records, in as few batches as the limits allow.

        Each batch is atomic, the whole is not: after an error, its note (and the attribute
        `appended` of `NotWritten`) tells how many records went in. The receipt spans them all.
        """
        refuse_single(records)
        return self._append_chunks(chunks(records, self.options.max_batch_bytes))

    def _append_chunks(self, chunks: Iterable[list[Any]]) -> Receipt:
        first: Receipt | None = None
        end_offset = appended = 0
        try:
            for chunk in chunks:
                for part in self._append_halving(chunk):
                    first, end_offset = first or part, part.end_offset
                    appended += part.count
        except Exception as error:
            if isinstance(error, NotWritten):
                error.appended = appended
            if appended:
                error.add_note(f"the {appended} records before were appended")
            raise
        if first is None:
            raise ValueError("append_many was given no records")
        return Receipt(first.offset, end_offset, appended, self._committer)

    def _append_halving(self, records: list[object]) -> Iterator[Receipt]:
        """One batch, or halves of it until they fit."""
        try:
            yield self.append(records)
        except TooLarge:
            if len(records) == 1:
                raise
            middle = len(records) // 2
            yield from self._append_halving(records[:middle])
            yield from self._append_halving(records[middle:])

    def append_arrow(self, data: pa.RecordBatch | pa.Table) -> Receipt:
        """Append the rows of an Arrow table or record batch, without a Python object per row.

        Columns: `value`, and where present `key`, `timestamp` and `headers`. Splits like
        `append_many`.
        """
        from tailrace.kernel import arrow

        writer = self._writing()
        first_offset, end_offset, count = -1, 0, 0
        for batch in data.to_batches() if hasattr(data, "to_batches") else [data]:
            source = arrow.Source(batch)
            for start, stop in source.plan(MAX_COUNT, self.options.max_batch_bytes):
                draft = source.encode(self._wall_ms(), self._codec, start, stop)
                try:
                    offset = writer.append(draft)
                except NotWritten as error:
                    error.appended = count
                    raise
                first_offset = offset if first_offset < 0 else first_offset
                end_offset = offset + draft.count
                count += draft.count
        if not count:
            raise ValueError("append_arrow was given no rows")
        return Receipt(first_offset, end_offset, count, self._committer)

    # --- read -------------------------------------------------------------------------------

    @overload
    def read(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: Literal[False] = False,
        timeout: None = None,
    ) -> Iterator[Record]: ...

    @overload
    def read(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: Literal[True],
        timeout: float | None = None,
    ) -> Follower: ...

    def read(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Record] | Follower:
        """Records from `start` (an offset, "first", "last" or "next"; or the first at or after
        `timestamp`) up to the offset `end`, or to what the log holds now.

        With `follow` it goes on with what any process appends, as soon as it may be seen, until
        the log or the follower is closed, or nothing has come for `timeout` seconds.
        """
        check_timeout(timeout)
        if follow:
            follower = Follower(self.tail(start, end, timestamp=timestamp), timeout)
            with self._opening:
                self._followers.add(follower)
            if self._closed:  # meanwhile
                follower.close()
            return follower
        if timeout is not None:
            raise ValueError("timeout is for follow=True; without it nothing is waited for")
        view, first, last = self._range(start, end, timestamp)
        return self._records(view, first, last)

    def tail(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        also: Sequence[str] = (),
    ) -> Tailing:
        """A position from which to read on, for those who wait in their own way; its watch tells
        of changes to the files `also`, too."""
        _, first, _ = self._range(start, end, timestamp)
        read = self._records
        return Tailing(self._observer, self._tips, self._folder, read, first, end, also=also)

    def _records(self, view: View, first: int, last: int) -> Iterator[Record]:
        for region in self._observer.reader.regions(view, first, last):
            data = region.data
            few = min(first + _FEW, last)  # whoever wants one record does not pay for its batch
            yield from decode(data, 0, len(data), first, few)
            if region.next_offset > few:
                yield from decode(data, 0, len(data), few, last)
            first = max(region.next_offset, first)

    def read_batches(
        self, start: Start = "first", end: int | None = None, *, timestamp: int | None = None
    ) -> Iterator[Batch]:
        """Whole batches as they are stored: the first one may begin below `start`, the last one
        end above `end`."""
        view, first, last = self._range(start, end, timestamp)
        return self._batches(view, first, last)

    def _batches(self, view: View, first: int, last: int) -> Iterator[Batch]:
        for region in self._observer.reader.regions(view, first, last):
            for info in batches(region.data, 0, len(region.data)):
                if info.next_offset > first and info.base_offset < last:
                    data = bytes(region.data[info.position : info.position + info.size])
                    yield Batch(info.base_offset, info.count, info.max_timestamp, data)

    def read_arrow(
        self,
        start: Start = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        columns: Sequence[str] | None = None,
        **choice: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Arrow record batches with the columns asked for, of offset, timestamp, key, value and
        headers (all by default); `choice` is what else `decode_arrow` can be asked for."""
        from tailrace.kernel import arrow

        chosen = arrow.COLUMNS if columns is None else columns
        arrow.schema(chosen)  # refuses an unknown name now, not at the first batch
        view, first, last = self._range(start, end, timestamp)
        return self._arrow_batches(view, first, last, chosen, choice)

    def _arrow_batches(
        self, view: View, first: int, last: int, columns: Sequence[str], choice: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        from tailrace.kernel.arrow import decode_arrow

        for region in self._observer.reader.regions(view, first, last):
            data = region.data
            try:
                decoded = [decode_arrow(data, 0, len(data), first, last, columns, **choice)]
            except TooLarge:  # compressed so well that together they are too much
                ranges = ((i.position, i.position + i.size) for i in batches(data, 0, len(data)))
                decoded = [decode_arrow(data, *r, first, last, columns, **choice) for r in ranges]
            yield from (batch for batch in decoded if batch.num_rows)

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older than `timestamp` (milliseconds); the end of
        the log when there is none. Right also where clocks went back."""
        return self._at(timestamp)[1]

    def _at(self, timestamp: int) -> tuple[View, int]:
        self._check_open()
        check_whole("timestamp", timestamp, "a number of milliseconds")
        while True:
            view = self._observer.view()
            try:
                return view, self._observer.reader.offset_at(view, timestamp)
            except FileNotFoundError:  # retention was faster: look again
                if self._observer.view() == view:
                    raise

    def _range(self, start: Start, end: int | None, timestamp: int | None) -> tuple[View, int, int]:
        self._check_open()
        if end is not None:
            check_whole("end", end, "an offset")
        if timestamp is not None:
            if start != "first":
                raise ValueError("read from a start or from a timestamp, not from both")
            view, start = self._at(timestamp)
        else:
            view = self._observer.view()
        match start:
            case "first":
                first = view.start
            case "last":
                first = max(self._observer.gaps.last_before(view.end), view.start)
            case "next":
                first = view.end
            case int() if not isinstance(start, bool):
                first = start
            case _:
                raise ValueError(f"start is an offset, 'first', 'last' or 'next', not {start!r}")
        if not view.start <= first <= view.end:
            raise OffsetOutOfRange(
                f"{self.path}: offset {first} is not in the log; {self._describe(view, first)}",
                offset=first,
                low=view.start,
                high=view.end,
            )
        return view, first, view.end if end is None else min(end, view.end)

    def _describe(self, view: View, offset: int) -> str:
        if view.end < offset <= self.end_offset:
            return f"it is not durable yet, and readers see offsets below {view.end}"
        if view.start == view.end:
            return f"the log is empty, and its next offset is {view.end}"
        return f"it has offsets {view.start} to {view.end - 1}"

    # --- state ------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        self._reopen_if_inherited()
        if self._writer is not None:
            return self._writer.start_offset
        return self._observer.view().start

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        self._reopen_if_inherited()
        if (writer := self._writer) is None:
            return self._observer.view().end
        end = writer.end_offset
        if writer.turn.held or self._closed or not writer.board.is_being_written:
            return end
        return max(end, self._observer.view().end)  # who keeps its turn tells only now and then

    @property
    def durable_offset(self) -> int:
        """Every record below is on the disk."""
        self._reopen_if_inherited()
        if self._closed and self._writer is not None:
            return self._writer.committer.durable
        return self._observer.durable_offset

    @property
    def flush_mode(self) -> str:
        """What receipts of this handle wait for."""
        source = self._observer if self._writer is None else self._writer
        return source.flush_mode.value

    # --- upkeep -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable that was appended so far."""
        self._writing().flush()

    def truncate_before(self, offset: int) -> None:
        """Let the log start at `offset`, durably and at once. Whole segments below it are deleted
        by the next `vacuum`."""
        check_whole("offset", offset, "an offset")
        self._writing().truncate_before(offset)

    def vacuum(self) -> VacuumReport:
        """Delete the segments that the start offset and the retention options let go."""
        report = self._writing().vacuum()
        self._observer.refresh()
        return report

    def close(self) -> None:
        """Flush and close; a second close does nothing, or what an interrupt left undone."""
        self._closed = True
        if not self._is_let_go:
            with self._opening:
                followers = list(self._followers)
            for follower in followers:
                follower.close()
            try:
                if self._writer is not None:
                    self._writer.close()
            finally:
                self._observer.close()
                self._tips.close()
            self._is_let_go = True

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():  # when threads have stopped, wherever they were
            self.abandon()

    def abandon(self) -> None:
        """Let go without a close, which is no worse than a crash: nothing is written, and the next
        open, perhaps in this process, recovers."""
        if not getattr(self, "_is_let_go", True):
            self._closed = self._is_let_go = True
            self._observer.close()
            if self._writer is not None:
                self._writer.abandon()

    def __enter__(self) -> Log:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # Where a log that one only reads ends is in its files, which may be gone.
        state = "closed" if self._closed else "read-only"
        if self._writer is not None and not self._closed:
            state = f"{self.start_offset}..{self._writer.end_offset}"
        return f"Log({self.path!r}, {self.flush_mode}, {state})"

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.path} is closed")
        self._reopen_if_inherited()

    def _reopen_if_inherited(self) -> None:
        if self._is_inherited and not self._closed:
            with self._opening:
                if self._is_inherited:
                    self._open()
                    self._is_inherited = False

    def _writing(self) -> Writer:
        if self._closed or self._is_inherited:
            self._check_open()
        if self._writer is None:
            raise NotWritten(f"{self.path} is open read-only; open it without read_only to write")
        return self._writer
