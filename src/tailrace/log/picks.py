"""Records at single offsets, for those who come back for some of what they have passed.

A batch is read, decompressed and decoded once, however many of its records are asked for and
however they lie in it. Who comes back mostly goes on from there the next time, so what was read
last is kept, and who goes on in small steps gets records that were decoded ahead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import Record, decode
from tailrace.log.portions import inflated
from tailrace.log.reader import Reader, View
from tailrace.log.scan import LARGEST_KEPT, Region

__all__ = ["Picks"]

_NEAR = 64 << 10  # bytes between two regions: to pass by as many is quicker than to use the index
_APART = 4096  # offsets in a region: to decode as many takes longer than to begin anew behind them
_FEWEST, _MOST = 16, 1024  # records that are decoded ahead, for those who go on


class Picks:
    """Not thread-safe. What is kept are the decompressed bytes of one region, `LARGEST_KEPT` at
    most, and up to `_MOST` of its records. It stays right: an offset never gets another record."""

    def __init__(self, look: Callable[[], tuple[Reader, View]]) -> None:
        """`look` tells what there is to read now."""
        self._look = look
        self._region: Region | None = None
        # Decoded: all records with `first <= offset < behind`, and those two.
        self._ahead: tuple[list[Record], int, int] = ([], 0, 0)
        self._portion = 0

    def read(self, offsets: Sequence[int]) -> list[Record]:
        """The records at some offsets, which rise: those that are still there, and whole."""
        found: list[Record] = []
        at, end, failed = 0, len(offsets), -1
        regions: Iterator[Region] | None = None
        view: View | None = None
        while at < end:
            if view is None:
                reader, view = self._look()
                regions = None
                end = bisect_left(offsets, view.end)
                at = bisect_left(offsets, view.start, at)
                continue
            offset = offsets[at]
            try:
                if not self._is_at(offset):
                    if regions is None or not self._is_near(offset):
                        regions = reader.regions(view, offset, offsets[end - 1] + 1)
                    self._go_on(regions, offset)
            except (OffsetOutOfRange, Corrupt) as error:
                view = None
                if failed == offset:  # now it was where we began, and with what is there by now
                    low = error.low if isinstance(error, OffsetOutOfRange) else error.next_offset
                    at = max(at + 1, bisect_left(offsets, low or 0, at))
                failed = offset
                continue
            region = self._region
            if region is None:
                break
            at = bisect_left(offsets, region.base_offset, at, end)  # there may be a gap
            behind = bisect_left(offsets, region.next_offset, at, end)
            found += self._records(region, offsets[at:behind])
            at = behind
        region = self._region
        if region is not None and (
            len(region.data) > LARGEST_KEPT
            or (found and found[-1].offset == region.next_offset - 1)
        ):
            self.drop()
        return found

    def _is_at(self, offset: int) -> bool:
        region = self._region
        return region is not None and region.base_offset <= offset < region.next_offset

    def _is_near(self, offset: int) -> bool:
        """Is it likely to be quicker to read on up to an offset than to look where it is?"""
        region = self._region
        if region is None or offset < region.next_offset:
            return False
        count = region.next_offset - region.base_offset
        return (offset - region.next_offset) * len(region.data) <= _NEAR * count

    def _go_on(self, regions: Iterator[Region], offset: int) -> None:
        """Come to the region with an offset, or to the next one; or to none."""
        self.drop()  # its data are not to be used when the next is asked for
        for region in regions:
            if region.next_offset > offset:
                self._region = inflated(region)
                return

    def _records(self, region: Region, offsets: Sequence[int]) -> list[Record]:
        """Those at some offsets of a region."""
        found: list[Record] = []
        start = 0
        for index in range(1, len(offsets) + 1):
            if index == len(offsets) or offsets[index] - offsets[index - 1] > _APART:
                wanted = offsets[start:index]
                start = index
                records = self._decoded(region, wanted[0], wanted[-1] + 1)
                if wanted[-1] - wanted[0] >= len(wanted):
                    among = set(wanted)
                    records = [record for record in records if record.offset in among]
                found += records
        return found

    def _decoded(self, region: Region, first: int, behind: int) -> list[Record]:
        """All records of a region with `first <= offset < behind`."""
        ahead, ahead_first, ahead_behind = self._ahead
        if first < ahead_first or behind > ahead_behind:
            goes_on = ahead_first <= first <= ahead_behind + _MOST
            goes_on = goes_on and len(region.data) <= LARGEST_KEPT
            self._portion = min(max(2 * self._portion, _FEWEST), _MOST) if goes_on else 0
            last = min(behind + self._portion, region.next_offset)
            records = decode(region.data, 0, len(region.data), first, last)
            upto = bisect_left(records, behind, key=_offset)
            self._ahead = (records[upto:], behind, last)
            return records[:upto]
        low, high = (bisect_left(ahead, offset, key=_offset) for offset in (first, behind))
        return ahead[low:high]

    def drop(self) -> None:
        """Keep nothing."""
        self._region = None
        behind = self._ahead[2]  # who goes on from there still does
        self._ahead = ([], behind, behind)


def _offset(record: Record) -> int:
    return record.offset  # type: ignore[return-value]
