"""Which segments a log has, and how much of each may be read.

A log may have ten thousand, and each append, read and roll makes a new set of them: with another
size of the last, with one more, without the first. `Extents` is a tuple of which that takes the
same time for any number: those that share a beginning share a list, of which each uses a part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import NamedTuple, overload

__all__ = ["Extent", "Extents"]

_FEW = 64  # left-overs that are not worth a copy

_base = attrgetter("base")


class Extent(NamedTuple):
    """A segment, as far as it may be read."""

    base: int
    size: int


class Extents(Sequence[Extent]):
    """Segments, by base. Never changes.

    `_all` and `_sums` (the bytes before each) only grow, and only behind the parts that are in use,
    so any thread may look at its own part meanwhile. `_last` comes behind that part: the segment
    that is being written, whose size is another one each time.
    """

    __slots__ = ("_all", "_first", "_last", "_stop", "_sums")

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._all = list(extents)
        self._sums = list(accumulate((extent.size for extent in self._all), initial=0))
        self._first, self._stop = 0, len(self._all)
        self._last: Extent | None = None

    def _part(self, first: int, stop: int, last: Extent | None) -> Extents:
        part = Extents.__new__(Extents)
        part._all, part._sums = self._all, self._sums
        part._first, part._stop, part._last = first, stop, last
        return part

    def and_then(self, extent: Extent) -> Extents:
        """With one more, of which the size does not change any more."""
        if self._last is not None:
            return Extents([*self, extent])
        count = len(self._all)
        is_ours = count == self._stop and len(self._sums) == count + 1  # nobody has gone on here
        if not is_ours or self._first > _FEW + count // 2:  # or most of it is gone
            return Extents([*self, extent])
        self._all.append(extent)
        self._sums.append(self._sums[-1] + extent.size)
        return self._part(self._first, count + 1, None)

    def ending_with(self, extent: Extent) -> Extents:
        """With one more, for now."""
        if self._last is not None:
            return Extents(self).ending_with(extent)
        return self._part(self._first, self._stop, extent)

    @property
    def bytes(self) -> int:
        """Of all of them together."""
        last = self._last
        return self._sums[self._stop] - self._sums[self._first] + (last.size if last else 0)

    def index_of(self, base: int) -> int:
        """How many begin below an offset: where the segment is that begins there, if one does."""
        return bisect_left(self, base, key=_base)

    def from_offset(self, offset: int) -> Extents:
        """Without the segments that end at or below an offset, but with the last in any case."""
        return self[max(bisect_right(self, offset, key=_base) - 1, 0) :]

    def __len__(self) -> int:
        return self._stop - self._first + (self._last is not None)

    def __bool__(self) -> bool:
        return self._stop > self._first or self._last is not None

    def __iter__(self) -> Iterator[Extent]:
        part = islice(self._all, self._first, self._stop)
        return part if self._last is None else chain(part, (self._last,))

    @overload
    def __getitem__(self, index: int) -> Extent: ...

    @overload
    def __getitem__(self, index: slice) -> Extents: ...

    def __getitem__(self, index: int | slice) -> Extent | Extents:
        size = self._stop - self._first
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return Extents(tuple(self)[index])
            last = self._last if start <= size < stop else None
            start, stop = min(start, size), min(max(start, stop), size)
            return self._part(self._first + start, self._first + stop, last)
        if index < 0:
            index += len(self)
        if 0 <= index < size:
            return self._all[self._first + index]
        if index == size and self._last is not None:
            return self._last
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extents) and self._all is other._all:
            part, others = (self._first, self._stop), (other._first, other._stop)
            if part == others:
                return self._last == other._last
        return isinstance(other, Extents | tuple) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Extents({list(self)})"
