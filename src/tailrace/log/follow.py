"""Following a log: reading on as records come.

`Tailing` reads what there is, from where it was; between two looks the caller waits on its `watch`.
The watch is set before the first look, so whatever comes between a look and the wait ends the wait:
nothing is missed. `Follower` is that loop for a thread; `tailrace.aio` has it for tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

from tailrace.errors import Closed, OffsetOutOfRange
from tailrace.kernel import Record, check, decode
from tailrace.log.observer import Edition, Observer
from tailrace.log.options import FlushMode
from tailrace.log.reader import View
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import side_path
from tailrace.log.watch import Watch

__all__ = ["Follower", "Tailing"]

_LARGEST = 32 << 10

ReadRange = Callable[[View, int, int], Iterator[Record]]


class _Tip(NamedTuple):
    """The end of the log, as long as the board says the same: the segment that grows, and how far
    it was read."""

    edition: Edition
    segment: int
    position: int


class Tailing:
    """A position in a log that grows. Used by one thread at a time, but for `close`."""

    def __init__(
        self, observer: Observer, folder: str, read: ReadRange, first: int, end: int | None
    ) -> None:
        """Read from the offset `first` on, up to `end`."""
        self.position = first
        self._flush_mode = observer.flush_mode
        self.watch = Watch(*_telling_paths(observer, folder))
        self.closed = False
        self._observer = observer
        self._folder = folder
        self._read = read
        self._end = end
        self._tip: _Tip | None = None

    @property
    def is_over(self) -> bool:
        """Has everything been read that was asked for?"""
        return self._end is not None and self.position >= self._end

    def poll(self) -> Iterator[Record]:
        """What there is now and was not read before."""
        tip, self._tip = self._tip, None  # it is good if we have read all that is before it
        while tip is not None:
            found = self._read_tip(tip)
            if found is None:
                break
            data, is_all = found
            for record in decode(data, 0, len(data), self.position):
                self.position = record.offset + 1  # type: ignore[operator]
                yield record
            tip = _Tip(tip.edition, tip.segment, tip.position + len(data))
            if is_all:  # what has come since then, the watch knows of
                self._tip = tip
                return
        if self._observer.closed:
            raise Closed(f"{self._folder} is closed")
        edition = self._observer.edition()
        view = self._observer.view()
        self._watch_the_right_files()
        if self.position < view.start:
            raise OffsetOutOfRange(
                f"{self._folder}: offset {self.position} was deleted; the log starts at "
                f"{view.start}",
                offset=self.position,
                low=view.start,
                high=view.end,
            )
        end = view.end if self._end is None else min(view.end, self._end)
        if self.position < end:
            for record in self._read(view, self.position, end):
                self.position = record.offset + 1  # type: ignore[operator]
                yield record
            self.position = end  # what is left of the range is a gap that may be stepped over
        # A segment that is empty is none to stay at: perhaps a roll failed, and it goes again.
        is_at_end = view.extents and view.extents[-1].base == self._observer.catalog.active
        if edition is not None and self._end is None and is_at_end:
            self._tip = _Tip(edition, *view.extents[-1])

    def _watch_the_right_files(self) -> None:
        """A folder may have become a log since we began."""
        if self._observer.flush_mode is not self._flush_mode:
            self._flush_mode = self._observer.flush_mode
            old, self.watch = self.watch, Watch(*_telling_paths(self._observer, self._folder))
            old.close()
            if self.closed:  # meanwhile
                self.watch.close()

    def poll_now(self) -> list[Record] | None:
        """The same, if it can be had without waiting for anything but memory: never blocks."""
        tip = self._tip
        found = None if tip is None else self._read_tip(tip, now=True)
        if tip is None or found is None or not found[1]:
            return None
        data = found[0]
        records = decode(data, 0, len(data), self.position)
        if records:
            self.position = records[-1].offset + 1  # type: ignore[operator]
        self._tip = _Tip(tip.edition, tip.segment, tip.position + len(data))
        return records

    def _read_tip(self, tip: _Tip, *, now: bool = False) -> tuple[memoryview, bool] | None:
        """The whole batches behind the tip, and whether that was all: a shorter way for those who
        have read everything. `None` if one has to look around."""
        observer = self._observer
        if observer.edition() != tip.edition:
            return None
        size, there = _LARGEST, _LARGEST + 1
        if observer.flush_mode is FlushMode.SYNC:
            mark = observer.watermark_now() if now else observer.watermark()
            if mark is None or mark.segment != tip.segment:
                return None
            there = mark.position - tip.position
            size = min(size, there)
            if size <= 0:
                return memoryview(b""), True
        path = segment_path(self._folder, tip.segment)
        if now:
            read = observer.catalog.files.read_now(path, size, tip.position)
        else:
            read = self._read_at(path, size, tip.position)
        if not read:
            return None if read is None else (memoryview(b""), True)
        end, _next_offset, _status = check(read, 0, len(read))
        if not end or int.from_bytes(read[8:16], "little") != self.position:
            return None  # being written, damaged, or not what is due
        return memoryview(read)[:end], end == len(read) and (len(read) < size or size == there)

    def _read_at(self, path: str, size: int, position: int) -> bytes | None:
        try:
            with self._observer.catalog.files.use(path) as file:
                return file.pread(size, position)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        self.closed = True
        self.watch.close()


def _telling_paths(observer: Observer, folder: str) -> list[str]:
    """What changes when there is something new to see."""
    watermark, side_folder = side_path(folder, "watermark"), side_path(folder, "").rstrip("/")
    if observer.flush_mode is not FlushMode.SYNC:
        return [folder]
    return [watermark] if os.path.exists(watermark) else [side_folder]  # it is about to be made


class Follower:
    """Records as they come: `log.read(follow=True)`.

    Iterate in one thread. `close` may come from any other, and then the iteration ends, as it does
    when the log is closed, or when nothing has come for `timeout` seconds.
    """

    def __init__(self, tailing: Tailing, timeout: float | None) -> None:
        self._tailing = tailing
        self._timeout = timeout
        self._records = self._follow()

    @property
    def position(self) -> int:
        """The offset at which reading goes on."""
        return self._tailing.position

    def _follow(self) -> Iterator[Record]:
        tailing = self._tailing
        deadline = None
        try:
            while not tailing.closed:
                position = tailing.position
                yield from tailing.poll()
                if tailing.is_over:
                    return
                left = None
                if self._timeout is not None:
                    # What comes counts, not what wakes us: the time goes on.
                    if deadline is None or tailing.position != position:
                        deadline = time.monotonic() + self._timeout
                    left = max(deadline - time.monotonic(), 0)
                if not tailing.watch.wait(left) and not tailing.closed:
                    return
        except Closed:
            if not tailing.closed:
                raise
        finally:
            tailing.close()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        return next(self._records)

    def close(self) -> None:
        """End the iteration, wherever it is."""
        self._tailing.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
