"""A log that is open read-only: nothing is locked, written or repaired.

What an observer sees follows from the files alone. In a `sync` log the watermark is the end, as
long as it is of this boot; a watermark from before a restart of the machine may be behind, but then
nobody has written since, and every whole batch on the disk is as good as durable. In the other
modes every whole batch counts, up to the first that is not whole.
"""

from __future__ import annotations

import threading

from tailrace.kernel.layout import MAX_OFFSET
from tailrace.log.fs import FileSystem
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.reader import Reader, View
from tailrace.log.recovery import count_unbroken, durable_size
from tailrace.log.scan import Facts, scan
from tailrace.log.segments import Catalog, Extent, list_segments, segment_path
from tailrace.log.sidefiles import (
    Gaps,
    Identity,
    Poison,
    StartOffset,
    Watermark,
    WatermarkFile,
)

__all__ = ["Observer"]


class Observer:
    """Looks at the files anew for each view. Thread-safe."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions) -> None:
        self._fs = fs
        self._folder = folder
        fs.list(folder)  # a folder that is not there is an error now, not at the first read
        identity = Identity.load(fs, folder) or Identity(FlushMode.ASYNC, sparse_below=MAX_OFFSET)
        self.flush_mode = FlushMode(identity.flush)
        self.catalog = Catalog(fs, folder, options, read_only=True)
        self.gaps = Gaps(fs, folder)
        self.reader = Reader(
            self.catalog, self.gaps, identity.sparse_below, lambda: self.start_offset
        )
        self._bases: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._tail: Facts | None = None
        self._unbroken: tuple[object, int] = (None, 0)

    def view(self) -> View:
        while True:
            listing = list_segments(self._fs, self._folder).extents
            try:
                with self._lock:
                    return self._view(listing)
            except FileNotFoundError:  # retention was faster: look again
                if list_segments(self._fs, self._folder).extents == listing:
                    raise

    def _view(self, extents: tuple[Extent, ...]) -> View:
        bases = tuple(extent.base for extent in extents)
        if bases != self._bases:
            self.catalog.seals.load(set(bases))
            self._bases = bases
        self.gaps.load()
        start = StartOffset(self._fs, self._folder).load()
        mark = self.watermark()
        if mark is None and extents:
            start = max(start, extents[0].base)
        bound = self._bound(mark)
        if bound is None:
            return self._whole_batches(extents, start, mark)
        # An empty one is left over from a roll that failed; the records went on before it.
        visible = [extent for extent in extents if extent.size and extent.base < bound.segment]
        if any(extent.base == bound.segment for extent in extents):
            visible.append(Extent(bound.segment, bound.position))
        return View(tuple(visible), start, max(bound.durable, start))

    def _bound(self, mark: Watermark | None) -> Watermark | Poison | None:
        """The last good flush, if nothing behind it may be seen."""
        poison = Poison.load(self._fs, self._folder, mark)
        if poison is not None:
            return poison if mark is None or poison.durable >= mark.durable else mark
        if self.flush_mode is FlushMode.SYNC and mark is not None:
            return mark if mark.boot_id == self._fs.boot_id() else None
        return None

    def _whole_batches(
        self, extents: tuple[Extent, ...], start: int, mark: Watermark | None
    ) -> View:
        if mark is not None and self._is_cut_off(mark):
            extents = extents[: self._count_unbroken(extents, mark, start)]
        end = extents[-1].base if extents else start
        with_records = [extent for extent in extents if extent.size]
        if with_records:
            extent = with_records[-1]
            facts = self._tail_facts(extent, mark)
            size = max(facts.size, min(durable_size(extent, mark), extent.size))
            with_records[-1] = Extent(extent.base, size)
            end = max(end, facts.next_offset)
        if mark is not None:
            end = max(end, mark.durable)  # if that much is not there, readers are to be told
        return View(tuple(with_records), start, max(start, end))

    def _is_cut_off(self, mark: Watermark) -> bool:
        """Has a power cut hit an `async` log that no writer has opened since?"""
        return self.flush_mode is FlushMode.ASYNC and mark.boot_id != self._fs.boot_id()

    def _count_unbroken(self, extents: tuple[Extent, ...], mark: Watermark, start: int) -> int:
        """What recovery will keep; looked up once, as it reads all that is behind the watermark."""
        known, count = self._unbroken
        if known != (extents, mark, start):
            count = count_unbroken(self.catalog, self.gaps, extents, mark, start)
            self._unbroken = ((extents, mark, start), count)
        return count

    def _tail_facts(self, extent: Extent, mark: Watermark | None) -> Facts:
        """The last segment, as far as recovery would keep it."""
        is_cut_off = mark is not None and self._is_cut_off(mark)
        if not is_cut_off and self.catalog.seals.get(*extent) is not None:
            return self.catalog.facts(extent)
        facts = self._tail
        if facts is None or facts.base != extent.base or facts.size > extent.size:
            facts = self._tail = self.catalog.new_facts(extent.base)
        size = extent.size if mark is None else durable_size(extent, mark)
        with self.catalog.files.use(segment_path(self._folder, extent.base)) as file:
            scan(file, facts, extent.size, durable_size=size, contiguous=mark is not None)
        self.catalog.remember(facts)
        return facts

    def watermark(self) -> Watermark | None:
        return WatermarkFile(self._fs, self._folder).load()

    @property
    def start_offset(self) -> int:
        return self.view().start

    @property
    def end_offset(self) -> int:
        return self.view().end

    @property
    def durable_offset(self) -> int:
        mark = self.watermark()
        return mark.durable if mark is not None else 0

    def close(self) -> None:
        self.catalog.close()

    abandon = close
