"""A set of numbers that mostly follow one another, kept as runs: 16 bytes for each run.

Not thread-safe.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["NumberSet"]


class NumberSet:
    """Whole numbers of 64 bits. What `add` and `discard` cost grows with the number of runs, by a
    copy of the bytes behind the place."""

    __slots__ = ("_count", "_ends", "_firsts")

    def __init__(self, runs: Iterable[int] = ()) -> None:
        """`runs` as `runs` gives them."""
        numbers = array("q", runs)
        self._firsts = numbers[::2]
        self._ends = array("q", map(sum, zip(self._firsts, numbers[1::2], strict=True)))
        self._count = sum(numbers[1::2])

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number)
        return at > 0 and number < self._ends[at - 1]

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._firsts)

    @property
    def runs(self) -> list[int]:
        """`[first, count, first, count, …]`, rising."""
        pairs = zip(self._firsts, self._ends, strict=True)
        return [number for first, end in pairs for number in (first, end - first)]

    def add(self, number: int) -> None:
        firsts, ends = self._firsts, self._ends
        at = bisect_right(firsts, number)
        if at and number < ends[at - 1]:
            return
        self._count += 1
        meets_next = at < len(firsts) and firsts[at] == number + 1
        if at and ends[at - 1] == number:
            ends[at - 1] = ends.pop(at) if meets_next else number + 1
            if meets_next:
                del firsts[at]
        elif meets_next:
            firsts[at] = number
        else:
            firsts.insert(at, number)
            ends.insert(at, number + 1)

    def discard(self, number: int) -> None:
        firsts, ends = self._firsts, self._ends
        at = bisect_right(firsts, number)
        if not at or number >= ends[at - 1]:
            return
        self._count -= 1
        first, end = firsts[at - 1], ends[at - 1]
        del firsts[at - 1], ends[at - 1]
        for left, right in ((number + 1, end), (first, number)):
            if left < right:
                firsts.insert(at - 1, left)
                ends.insert(at - 1, right)

    def discard_below(self, number: int) -> None:
        firsts, ends = self._firsts, self._ends
        if not firsts or firsts[0] >= number:
            return
        gone = bisect_right(ends, number)  # runs that end there, or before
        self._count -= sum(ends[:gone]) - sum(firsts[:gone])
        del firsts[:gone], ends[:gone]
        if firsts and firsts[0] < number:
            self._count -= number - firsts[0]
            firsts[0] = number

    def copy(self) -> NumberSet:
        return NumberSet(self.runs)
