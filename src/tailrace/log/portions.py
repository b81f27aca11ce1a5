"""Records a portion at a time, for those who leap over what others have taken.

Who reads on gets larger and larger portions; who leaps gets what was asked for, and nothing is
decoded that nobody wants. Batches are decompressed once, however many portions they are read in.
"""

from __future__ import annotations

from tailrace.kernel import Record, TooLarge, decode, inflate
from tailrace.log.reader import Reader, View
from tailrace.log.scan import Region

__all__ = ["Portions"]

_LARGEST = 1024
_READ = 256 << 10  # bytes at a time: others wait meanwhile, and may take what follows
_FAR = 65_536  # offsets: to pass by as many takes longer than to look in the index


class Portions:
    """What a view has from `first` on, up to `last`. Not thread-safe."""

    def __init__(self, reader: Reader, view: View, first: int, last: int) -> None:
        self.position = first  # from where to go on
        self.last = last
        self._reader = reader
        self._view = view
        self._regions = reader.regions(view, first, last, _READ)
        self._region: Region | None = None
        self._portion = 1

    def take(self, want: int) -> list[Record]:
        """The next records: `want` of them, or some more; none if there are no more."""
        while self.position < self.last:
            region = self._region
            if region is None or region.next_offset <= self.position:
                self._region = None  # before the next is asked for
                region = self._next_region()
                if region is None:
                    self.position = self.last
                    break
                self._region = _inflated(region)
                continue
            behind = min(self.position + max(want, self._portion), region.next_offset, self.last)
            data = region.data
            records = decode(data, 0, len(data), self.position, behind)
            self.position = behind
            if records:
                self._portion = min(2 * max(want, self._portion), _LARGEST)
                return records
        return []

    def _next_region(self) -> Region | None:
        try:
            return next(self._regions, None)
        except BaseException:  # it is over then, but what it was about to read is not
            self._regions = self._reader.regions(self._view, self.position, self.last, _READ)
            raise

    def leap(self, offset: int) -> None:
        """Go on from an offset further on."""
        self._portion = 1
        if self._region is not None and offset > self._region.next_offset + _FAR:
            self._region = None
            self._regions = self._reader.regions(self._view, offset, self.last, _READ)
        self.position = min(offset, self.last)


def _inflated(region: Region) -> Region:
    data = region.data
    try:
        return region._replace(data=memoryview(inflate(data, 0, len(data))))
    except TooLarge:
        return region
