"""Reading: from an offset or a time to regions of whole batches, across segments.

A `View` is what a reader may see at one moment: which segments, and how far. Everything below its
end is complete on disk (or was), so whatever is not a whole batch there is damage, and damage is
never passed over in silence: the reader gets `Corrupt` with the range that is missing and the
offset at which reading can go on. A range that somebody has acknowledged is a gap like any other.

Readers take no lock. Thread-safe; each iterator belongs to one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import HEADER_SIZE, BatchInfo, find_record_at_time
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import File
from tailrace.log.scan import (
    LARGEST_READ,
    Chunks,
    Damage,
    Memory,
    Region,
    find_next_batch,
    header_at,
)
from tailrace.log.segments import Catalog, segment_path
from tailrace.log.sidefiles import Gaps

__all__ = ["Reader", "View"]

_LARGE = 16 << 10  # a batch that is better skipped by its header than read along with others
_LARGEST_KEPT = 1 << 20


class View(NamedTuple):
    """`start <= offset < end` is there to read, in these segments as far as they may be read.
    `fronts`: how often any were put in front then."""

    extents: Extents
    start: int
    end: int
    fronts: int = 0


class Reader:
    """Reads what views allow. `current_start` tells the log start offset as of now, and
    `current_fronts` whether a view's files may be others by now."""

    def __init__(
        self,
        catalog: Catalog,
        gaps: Gaps,
        sparse_below: int,
        current_start: Callable[[], int],
        current_fronts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._catalog = catalog
        self._gaps = gaps
        self.sparse_below = sparse_below
        self._current_start = current_start
        self._current_fronts = current_fronts
        self._known_peaks: tuple[Extents, list[int]] = (Extents(), [])
        # What a look for a time has found last, with its segment: the next read is likely of it.
        self._found: tuple[int, Region] | None = None

    # --- by offset --------------------------------------------------------------------------

    def regions(
        self, view: View, first: int, last: int, largest: int = LARGEST_READ
    ) -> Iterator[Region]:
        """Regions that hold every record with `first <= offset < last`, and some around them. They
        are of `largest` bytes at most, or one batch."""
        last = min(last, view.end)
        extents, memory = view.extents, Memory()
        start = max(bisect_right(extents, first, key=_base) - 1, 0)
        while start and not extents[start].size:
            start -= 1
        for i in range(start, len(extents)):
            extent = extents[i]
            if extent.base >= last or first >= last:
                break
            if not extent.size:
                continue
            if extent.base > first:
                self._check_hole(view, first, extent.base)
                first = extent.base
            limit = extents[i + 1].base if i + 1 < len(extents) else None
            for region in self._segment_regions(view, extent, limit, first, last, largest, memory):
                base_offset = region.base_offset
                if base_offset > first:
                    self._check_hole(view, first, min(base_offset, last))
                if base_offset >= last:
                    return
                yield region
                first = max(first, region.next_offset)
        if first < last:
            self._check_hole(view, first, last)

    def _check_hole(self, view: View, first: int, next_offset: int) -> None:
        """Offsets without a record are fine where they are recorded (and, if lost, acknowledged),
        or where somebody else wrote."""
        hole = self._gaps.uncovered(first, next_offset, acknowledged_only=True)
        while hole is not None:
            first, upto = hole
            reason = self._gaps.reason(first)
            if reason is None and first < self.sparse_below:
                first = min(upto, self.sparse_below)
                hole = self._gaps.uncovered(first, next_offset, acknowledged_only=True)
                continue
            self._check_same(view, first)
            raise Corrupt(
                f"{self._catalog.folder}: offsets {first} to {upto - 1} are lost "
                f"({reason or 'records or a segment are missing'}). Go on reading at {upto}; "
                "'tailrace recover --apply' accepts the loss, and readers then step over it",
                path=self._catalog.folder,
                first_offset=first,
                next_offset=upto,
            )

    def _segment_regions(
        self,
        view: View,
        extent: Extent,
        limit: int | None,
        first: int,
        last: int,
        largest: int,
        memory: Memory,
    ) -> Iterator[Region]:
        path = segment_path(self._catalog.folder, extent.base)
        expected, position = extent.base, 0
        try:
            if first > extent.base:
                expected, position = self._catalog.facts(extent).offsets.lookup(first)
            with self._catalog.files.use(path) as file:
                kept = self._kept(file, extent, position, expected)
                if kept is not None:
                    expected, position = kept.next_offset, position + len(kept.data)
                    if expected > first:
                        yield kept
                    chunks = Chunks(file, position, extent.size, largest=largest, memory=memory)
                else:
                    chunks = _chunks_at(file, position, extent.size, expected, largest, memory)
                    if chunks.position != position:
                        expected = extent.base
                while expected < last:
                    region = chunks.next()
                    if region is not None:
                        expected = region.next_offset
                        if expected > first:
                            yield region
                    elif chunks.position >= extent.size:
                        return
                    else:
                        found = find_next_batch(file, chunks.position, extent.size, expected)
                        if found is None:
                            damage = Damage(
                                chunks.position, extent.size, expected, limit or view.end
                            )
                            self._refuse(view, path, damage, first, last)
                            return
                        damage = Damage(
                            chunks.position, found.position, expected, found.base_offset
                        )
                        self._refuse(view, path, damage, first, last)
                        expected = found.base_offset
                        chunks = Chunks(
                            file, found.position, extent.size, largest=largest, memory=memory
                        )
        except FileNotFoundError:
            raise self._deleted(view, first) from None

    def _kept(self, file: File, extent: Extent, position: int, base_offset: int) -> Region | None:
        """What was found last, if it is the batches at `position`. The header tells, by its
        checksum: who reads another process's log may have seen a batch that was taken back."""
        if self._found is None:
            return None
        base, region = self._found
        if (base, region.position, region.base_offset) != (extent.base, position, base_offset):
            return None
        if position + len(region.data) > extent.size:
            return None
        is_same = file.pread(HEADER_SIZE, position) == region.data[:HEADER_SIZE]
        return region if is_same else None

    def _check_same(self, view: View, first: int) -> None:
        """Segments that were deleted since may have come back, cut elsewhere: that is no damage."""
        if view.fronts != self._current_fronts():
            raise self._deleted(view, first)

    def _deleted(self, view: View, first: int) -> OffsetOutOfRange:
        start = self._current_start()
        return OffsetOutOfRange(
            f"{self._catalog.folder}: offset {first} was deleted; the log starts at {start}",
            offset=first,
            low=start,
            high=view.end,
        )

    def _refuse(self, view: View, path: str, damage: Damage, first: int, last: int) -> None:
        """Raise, unless the missing range was not asked for, or was acknowledged."""
        after = damage.next_offset
        if after <= first or damage.first_offset >= last:
            return
        if self._gaps.uncovered(damage.first_offset, after, acknowledged_only=True) is None:
            return
        self._check_same(view, max(first, damage.first_offset))  # all before it was read
        raise Corrupt(
            f"{path}: bytes {damage.position} to {damage.end - 1} are damaged; offsets "
            f"{damage.first_offset} to {after - 1} cannot be read. Go on reading at {after}; "
            "'tailrace recover' shows what can be done",
            path=path,
            position=damage.position,
            first_offset=damage.first_offset,
            next_offset=after,
        )

    # --- by time ----------------------------------------------------------------------------

    def offset_at(self, view: View, timestamp: int) -> int:
        """The first readable offset whose record is not older than `timestamp`, else the end."""
        for i in range(self._first_candidate(view, timestamp), len(view.extents)):
            extent = view.extents[i]
            following = view.extents[i + 1].base if i + 1 < len(view.extents) else view.end
            if not extent.size or following <= view.start:
                continue
            if self._catalog.max_timestamp(extent) < timestamp:
                continue
            offset = self._first_in_segment(view, extent, timestamp)
            if offset is not None:
                return offset
        return view.end

    def _first_candidate(self, view: View, timestamp: int) -> int:
        """The first segment, if any but the last, that has a record which is not older.

        The greatest timestamp so far rises from segment to segment, whatever the clocks did, so
        that it can be searched; it is known as far as somebody has asked.
        """
        sealed = view.extents[:-1]
        known, peaks = self._known_peaks
        if sealed[: len(known)] != known:  # the first ones were deleted
            known, peaks = Extents(), []
        if not peaks or peaks[-1] < timestamp:
            peaks = list(peaks)
            for extent in sealed[len(peaks) :]:
                peaks.append(max([self._catalog.max_timestamp(extent), *peaks[-1:]]))
                if peaks[-1] >= timestamp:
                    break
            self._known_peaks = (sealed[: len(peaks)], peaks)
        return bisect_left(peaks, timestamp)

    def _first_in_segment(self, view: View, extent: Extent, timestamp: int) -> int | None:
        facts = self._catalog.facts(extent)
        offset, position = facts.offsets.lookup(max(facts.times.lookup(timestamp), view.start))
        with self._catalog.files.use(segment_path(self._catalog.folder, extent.base)) as file:
            header = header_at(file, position, extent.size)
            if header is None or header.base_offset != offset:
                position, header = 0, header_at(file, 0, extent.size)
            while position < extent.size:
                if header is not None and _is_to_skip(header, timestamp):
                    following = header_at(file, position + header.size, extent.size)
                    if _follows(following, header, extent):
                        position, header = position + header.size, following
                        continue
                size = _LARGE if header is None else max(_LARGE, header.size)
                region = Chunks(file, position, extent.size, size).next()
                if region is None:
                    header = find_next_batch(file, position, extent.size, 0)
                    position = extent.size if header is None else header.position
                    continue
                data = region.data
                record = find_record_at_time(data, 0, len(data), timestamp, view.start)
                if record is not None:
                    if header is not None and header.size == len(data) <= _LARGEST_KEPT:
                        self._found = (extent.base, region)  # one batch, that took long to read
                    return min(record[0], view.end)
                position += len(data)
                header = header_at(file, position, extent.size)
        return None


def _chunks_at(
    file: File, position: int, stop: int, base_offset: int, largest: int, memory: Memory
) -> Chunks:
    """From the batch that the index tells on, to be read whole with the first read; or from the
    start if it is not there: a wrong hint costs time, nothing else."""
    header = header_at(file, position, stop) if position else None
    if header is None or header.base_offset != base_offset:
        return Chunks(file, 0, stop, largest=largest, memory=memory)
    return Chunks(file, position, stop, max(header.size, _LARGE), largest, memory)


def _base(extent: Extent) -> int:
    return extent.base


def _is_to_skip(header: BatchInfo, timestamp: int) -> bool:
    """Is a batch older, by its header, and large, so that it is better not read?"""
    return header.size > _LARGE and header.max_timestamp < timestamp


def _follows(following: BatchInfo | None, header: BatchInfo, extent: Extent) -> bool:
    """Is the header right about where its batch ends?"""
    if following is None:
        return header.position + header.size == extent.size
    return following.base_offset == header.next_offset
