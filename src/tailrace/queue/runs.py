"""Sets of offsets as runs: `[first, count, first, count, …]`, rising.

What a group does, it mostly does to offsets that follow one another; so a journal and a timer stay
short, whatever the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Runs", "offsets_of", "runs_of"]

Runs = list[int]


def runs_of(offsets: Sequence[int]) -> Runs:
    """The runs of offsets, which must be sorted and differ."""
    first = offsets[0]
    if offsets[-1] - first + 1 == len(offsets):
        return [first, len(offsets)]
    runs: Runs = []
    start = previous = first
    for offset in offsets[1:]:
        if offset != previous + 1:
            runs += (start, previous + 1 - start)
            start = offset
        previous = offset
    runs += (start, previous + 1 - start)
    return runs


def offsets_of(runs: Iterable[int]) -> Iterator[int]:
    numbers = iter(runs)
    for first, count in zip(numbers, numbers, strict=True):
        yield from range(first, first + count)
