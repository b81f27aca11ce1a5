"""Reading: from an offset or a time to regions of whole batches, across segments.

A `View` is what a reader may see at one moment: which segments, and how far. Everything below its
end is complete on disk (or was), so whatever is not a whole batch there is damage, and damage is
never passed over in silence: the reader gets `Corrupt` with the range that is missing and the
offset at which reading can go on. A range that somebody has acknowledged is a gap like any other.

Readers take no lock. Thread-safe; each iterator belongs to one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import find_record_at_time, read_header
from tailrace.log.fs import File
from tailrace.log.scan import Chunks, Damage, Region, find_next_batch, header_at
from tailrace.log.segments import Catalog, Extent, segment_path
from tailrace.log.sidefiles import Gaps

__all__ = ["Reader", "View"]

_LARGE = 16 << 10  # a batch that is better skipped by its header than read along with others


class View(NamedTuple):
    """`start <= offset < end` is there to read, in these segments as far as they may be read."""

    extents: tuple[Extent, ...]
    start: int
    end: int


class Reader:
    """Reads what views allow. `current_start` tells the log start offset as of now."""

    def __init__(
        self,
        catalog: Catalog,
        gaps: Gaps,
        sparse_below: int,
        current_start: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._gaps = gaps
        self._sparse_below = sparse_below
        self._current_start = current_start

    # --- by offset --------------------------------------------------------------------------

    def regions(self, view: View, first: int, last: int) -> Iterator[Region]:
        """Regions that hold every record with `first <= offset < last`, and some around them."""
        last = min(last, view.end)
        extents = [extent for extent in view.extents if extent.size]
        bases = [extent.base for extent in extents]
        for i in range(max(bisect_right(bases, first) - 1, 0), len(extents)):
            extent = extents[i]
            if extent.base >= last or first >= last:
                break
            if extent.base > first:
                self._check_hole(first, extent.base)
                first = extent.base
            limit = bases[i + 1] if i + 1 < len(extents) else None
            for region in self._segment_regions(view, extent, limit, first, last):
                base_offset = read_header(region.data, 0).base_offset
                if base_offset > first:
                    self._check_hole(first, min(base_offset, last))
                if base_offset >= last:
                    return
                yield region
                first = max(first, region.next_offset)
        if first < last:
            self._check_hole(first, last)

    def _check_hole(self, first: int, next_offset: int) -> None:
        """Offsets without a record are fine where they are recorded (and, if lost, acknowledged),
        or where somebody else wrote."""
        hole = self._gaps.uncovered(first, next_offset, acknowledged_only=True)
        while hole is not None:
            first, upto = hole
            reason = self._gaps.reason(first)
            if reason is None and first < self._sparse_below:
                first = min(upto, self._sparse_below)
                hole = self._gaps.uncovered(first, next_offset, acknowledged_only=True)
                continue
            raise Corrupt(
                f"{self._catalog.folder}: offsets {first} to {upto - 1} are lost "
                f"({reason or 'records or a segment are missing'}). Go on reading at {upto}; "
                "'tailrace recover --apply' accepts the loss, and readers then step over it",
                path=self._catalog.folder,
                first_offset=first,
                next_offset=upto,
            )

    def _segment_regions(
        self, view: View, extent: Extent, limit: int | None, first: int, last: int
    ) -> Iterator[Region]:
        path = segment_path(self._catalog.folder, extent.base)
        expected, position = extent.base, 0
        try:
            if first > extent.base:
                expected, position = self._catalog.facts(extent).offsets.lookup(first)
            with self._catalog.files.use(path) as file:
                if position and not _starts_batch(file, position, extent.size, expected):
                    expected, position = extent.base, 0  # a wrong hint costs time, nothing else
                chunks = Chunks(file, position, extent.size)
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
                            self._refuse(path, damage, first, last)
                            return
                        damage = Damage(
                            chunks.position, found.position, expected, found.base_offset
                        )
                        self._refuse(path, damage, first, last)
                        expected = found.base_offset
                        chunks = Chunks(file, found.position, extent.size)
        except FileNotFoundError:
            start = self._current_start()
            raise OffsetOutOfRange(
                f"{self._catalog.folder}: offset {first} was deleted; the log starts at {start}",
                offset=first,
                low=start,
                high=view.end,
            ) from None

    def _refuse(self, path: str, damage: Damage, first: int, last: int) -> None:
        """Raise, unless the missing range was not asked for, or was acknowledged."""
        after = damage.next_offset
        if after <= first or damage.first_offset >= last:
            return
        if self._gaps.uncovered(damage.first_offset, after, acknowledged_only=True) is None:
            return
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
        for i, extent in enumerate(view.extents):
            following = view.extents[i + 1].base if i + 1 < len(view.extents) else view.end
            if not extent.size or following <= view.start:
                continue
            if self._catalog.max_timestamp(extent) < timestamp:
                continue
            offset = self._first_in_segment(view, extent, timestamp)
            if offset is not None:
                return offset
        return view.end

    def _first_in_segment(self, view: View, extent: Extent, timestamp: int) -> int | None:
        facts = self._catalog.facts(extent)
        offset, position = facts.offsets.lookup(max(facts.times.lookup(timestamp), view.start))
        with self._catalog.files.use(segment_path(self._catalog.folder, extent.base)) as file:
            if not _starts_batch(file, position, extent.size, offset):
                position = 0
            while position < extent.size:
                after = self._behind_older(file, position, extent, timestamp)
                if after is not None:
                    position = after
                    continue
                region = Chunks(file, position, extent.size).next()
                if region is None:
                    following = find_next_batch(file, position, extent.size, 0)
                    position = extent.size if following is None else following.position
                    continue
                data = region.data
                record = find_record_at_time(data, 0, len(data), timestamp, view.start)
                if record is not None:
                    return min(record[0], view.end)
                position += len(data)
        return None

    @staticmethod
    def _behind_older(file: File, position: int, extent: Extent, timestamp: int) -> int | None:
        """Where a large batch ends that is older than `timestamp`, told by its header alone: which
        is believed if the next batch starts there."""
        header = header_at(file, position, extent.size)
        if header is None or header.size <= _LARGE or header.max_timestamp >= timestamp:
            return None
        after = position + header.size
        if after < extent.size and not _starts_batch(file, after, extent.size, header.next_offset):
            return None
        return after


def _starts_batch(file: File, position: int, stop: int, base_offset: int) -> bool:
    header = header_at(file, position, stop)
    return header is not None and header.base_offset == base_offset
