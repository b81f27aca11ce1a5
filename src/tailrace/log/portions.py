"""Records a portion at a time, for those who leap over what others have taken.

Who reads on gets larger and larger portions; who leaps gets what was asked for, and nothing is
decoded that nobody wants. Batches are decompressed once, however many portions they are read in.

Mostly it is known which offsets have a record before any is decoded; then one can have a `Promise`
of them, and decode it when nobody waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tailrace.kernel import Malformed, Record, TooLarge, decode, inflate, is_plain
from tailrace.log.reader import Reader, View
from tailrace.log.scan import Region

__all__ = ["Portions", "Promise", "inflated"]

_LARGEST = 1024
_READ = 256 << 10  # bytes at a time: others wait meanwhile, and may take what follows
_NOTHING = memoryview(b"")
_FAR = 65_536  # offsets: to pass by as many takes longer than to look in the index


def inflated(region: Region) -> Region:
    """The same with every batch uncompressed, unless that is too much at once: then it stays as it
    is, and whoever decodes some of it sees to that."""
    data = region.data
    try:
        return region._replace(data=memoryview(inflate(data, 0, len(data))))
    except TooLarge:
        return region


class Promise:
    """Records with `first <= offset < behind`, one at each offset: decoded when somebody iterates
    over them."""

    __slots__ = ("_data", "behind", "first")

    def __init__(self, data: memoryview, first: int, behind: int) -> None:
        self._data = data
        self.first = first
        self.behind = behind

    def __iter__(self) -> Iterator[Record]:
        data = self._data
        return iter(decode(data, 0, len(data), self.first, self.behind))


class Portions:
    """What a view has from `first` on, up to `last`. Not thread-safe.

    Nothing is promised of a region with a record that has one of the headers `special`.
    """

    def __init__(
        self,
        reader: Reader,
        view: View,
        first: int,
        last: int,
        special: tuple[bytes, ...] = (),
    ) -> None:
        self.position = first  # from where to go on
        self.last = last
        self._reader = reader
        self._view = view
        self._regions = reader.regions(view, first, last, _READ)
        self._special = special
        self._region: Region | None = None
        self._is_ours = False  # its data: nobody else changes them
        # Its data if it is plain, empty if it is not, `None` as long as nobody has asked.
        self._plain: memoryview | None = None
        self._portion = 1

    def _load(self) -> Region | None:
        """The region in which to go on; `None` if there are no more records."""
        while self.position < self.last:
            region = self._region
            if region is not None and region.next_offset > self.position:
                return region
            self._region = self._plain = None  # before the next is asked for
            region = self._next_region()
            if region is None:
                self.position = self.last
                break
            self._region = inflated(region)
            self._is_ours = self._region.data.obj is not region.data.obj  # else the reader's
        return None

    def prepare(self) -> memoryview | None:
        """Read what the next promise is of: its bytes, which nobody changes any more; `None` if
        nothing can be promised."""
        region = self._load()
        if region is None:
            return None
        if self._plain is None:
            data = region.data
            self._plain = _NOTHING
            with contextlib.suppress(Malformed):  # who decodes it tells what is wrong
                if is_plain(data, 0, len(data), self._special):
                    self._plain = data if self._is_ours else memoryview(bytes(data))
        return self._plain or None

    def promise(self, behind: int) -> Promise | None:
        """The next records below the offset `behind`, as far as one region has them; `None` if they
        have to be looked at first."""
        data, region = self.prepare(), self._region
        if data is None or region is None or self.position < region.base_offset:
            return None
        behind = min(behind, region.next_offset, self.last)
        promise = Promise(data, self.position, behind)
        self.position = behind
        return promise

    def take(self, want: int) -> list[Record]:
        """The next records: `want` of them, or some more; none if there are no more."""
        while True:
            region = self._load()
            if region is None:
                return []
            behind = min(self.position + max(want, self._portion), region.next_offset, self.last)
            data = region.data
            records = decode(data, 0, len(data), self.position, behind)
            self.position = behind
            if records:
                self._portion = min(2 * max(want, self._portion), _LARGEST)
                return records

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
            self._region = self._plain = None
            self._regions = self._reader.regions(self._view, offset, self.last, _READ)
        self.position = min(offset, self.last)
