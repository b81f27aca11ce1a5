"""The end of a log, where followers are: read once for all of them.

Whoever has read everything stands at a tip. There, one look at the board tells whether the segments
are still the same, and one read of the file what has come: the shorter way of `Observer.view`.

One event wakes all who follow, and all want the same bytes. What the first of them found is kept as
long as nobody has been told of anything else (`Hub.news`): until then the others would find the
same.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.kernel import Record, check, decode
from tailrace.log import hub
from tailrace.log.fs import File
from tailrace.log.observer import Observer
from tailrace.log.options import FlushMode
from tailrace.log.segments import segment_path

__all__ = ["Sight", "Tip", "Tips"]

_LARGEST = 32 << 10  # bytes at a time
_MANY = 1024  # records: to decode more takes a millisecond


class Tip(NamedTuple):
    """Everything below `offset` was read, which ends at `position` in the segment; and that was the
    last segment, as long as the board says the same."""

    edition: bytes
    segment: int
    position: int
    offset: int


class Sight(NamedTuple):
    """What was to be seen from a tip, and the tip behind it. `is_all`: what has come since, the
    Watches tell of."""

    news: int
    tip: Tip
    records: tuple[Record, ...]
    next: Tip
    is_all: bool


class Tips:
    """What those see who follow a log. Thread-safe."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._last: Sight | None = None
        self._opened: tuple[int, bytes, File] | None = None

    def look(self, tip: Tip, *, now: bool = False) -> Sight | None:
        """`None` if one has to look around. With `now` also if it would take longer than a look at
        memory: then this never blocks."""
        news = hub.current.news  # first: what is told from here on may not be in what we read
        last = self._last
        if last is not None and last.news == news and (last.tip is tip or last.tip == tip):
            return last
        found = self._read(tip, now)
        if found is None:
            return None
        data, next_offset, is_all = found
        if not data:
            return Sight(news, tip, (), tip, is_all)
        if now and next_offset - tip.offset > _MANY:
            return None
        records = tuple(decode(data, 0, len(data), tip.offset))
        behind = Tip(tip.edition, tip.segment, tip.position + len(data), next_offset)
        self._last = sight = Sight(news, tip, records, behind, is_all)
        return sight

    def _read(self, tip: Tip, now: bool) -> tuple[memoryview, int, bool] | None:
        """The whole batches behind the tip, the offset behind them, and whether that was all."""
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
                return memoryview(b""), tip.offset, True
        file = self._file_of(tip, now)
        if file is None:
            return None
        data = file.pread_now(size, tip.position) if now else file.pread(size, tip.position)
        if not data:
            return None if data is None else (memoryview(b""), tip.offset, True)
        end, next_offset, _status = check(data, 0, len(data))
        if not end or int.from_bytes(data[8:16], "little") != tip.offset:
            return None  # being written, damaged, or not what is due
        if observer.edition() != tip.edition:
            return None  # somebody may take in what is not to be seen yet
        is_all = end == len(data) and (len(data) < size or size == there)
        return memoryview(data)[:end], next_offset, is_all

    def _file_of(self, tip: Tip, now: bool) -> File | None:
        """The tip's segment, which stays open until there is another. Nobody closes it but the last
        one who uses it."""
        opened = self._opened
        if opened is not None and opened[0] == tip.segment and opened[1] == tip.edition:
            return opened[2]
        if now:
            return None
        try:
            file = self._observer.fs.open(segment_path(self._observer.folder, tip.segment))
        except FileNotFoundError:
            return None
        self._opened = tip.segment, tip.edition, file
        if self._observer.closed:  # meanwhile
            self.close()
        return file

    def close(self) -> None:
        self._opened = self._last = None
