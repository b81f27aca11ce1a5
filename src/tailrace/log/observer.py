"""A log that is open read-only: nothing is locked, written or repaired.

What an observer sees follows from the files alone. In a `sync` log the watermark is the end, as
long as it is of this boot; a watermark from before a restart of the machine may be behind, but then
nobody has written since, and every whole batch on the disk is as good as durable. In the other
modes every whole batch counts, up to the first that is not whole.
"""

from __future__ import annotations

from tailrace.log.fs import FileSystem
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.reader import Reader, View
from tailrace.log.segments import Catalog, Extent, list_segments
from tailrace.log.sidefiles import (
    Gaps,
    StartOffset,
    Watermark,
    WatermarkFile,
    load_identity,
)

__all__ = ["Observer"]


class Observer:
    """Looks at the files anew for each view. Thread-safe."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions) -> None:
        self._fs = fs
        self._folder = folder
        fs.list(folder)  # a folder that is not there is an error now, not at the first read
        stored = load_identity(fs, folder)
        self.flush_mode = FlushMode(stored) if stored is not None else FlushMode.ASYNC
        self.catalog = Catalog(fs, folder, options, read_only=True)
        self.gaps = Gaps(fs, folder)
        self.reader = Reader(self.catalog, self.gaps, lambda: self.start_offset)
        self._bases: tuple[int, ...] = ()

    def view(self) -> View:
        while True:
            listing = list_segments(self._fs, self._folder).extents
            try:
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
        first = extents[0].base if extents else 0
        start = max(StartOffset(self._fs, self._folder).load(), first)
        mark = self.watermark()
        if self._is_bound(mark):
            assert mark is not None
            visible = [extent for extent in extents if extent.base < mark.segment]
            if any(extent.base == mark.segment for extent in extents):
                visible.append(Extent(mark.segment, mark.position))
            return View(tuple(visible), min(start, mark.durable), mark.durable)
        return self._whole_batches(extents, start)

    def _is_bound(self, mark: Watermark | None) -> bool:
        if self.flush_mode is not FlushMode.SYNC or mark is None:
            return False
        return mark.boot_id == self._fs.boot_id()

    def _whole_batches(self, extents: tuple[Extent, ...], start: int) -> View:
        end = extents[-1].base if extents else start
        with_records = [extent for extent in extents if extent.size]
        if with_records:
            facts = self.catalog.facts(with_records[-1])
            with_records[-1] = Extent(facts.base, facts.size)
            end = max(end, facts.next_offset)
        return View(tuple(with_records), min(start, end), end, open_end=True)

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
