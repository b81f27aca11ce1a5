"""Into which batches of a log rows are put."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.kernel import MAX_COUNT, TooLarge
from tailrace.kernel.arrow import Source

__all__ = ["plan_batches"]

# Bytes. One record is read by decoding its whole batch, so keep batches small.
_USUAL: Final = 1 << 20


def plan_batches(source: Source, largest: int) -> list[tuple[int, int]]:
    """Where each begins and ends: at about a megabyte. A row that is larger than that has a batch
    of its own, or who reads the one next to it would read it, too. `TooLarge` if it is more than
    the `largest` that the log takes."""
    usual = min(_USUAL, largest)
    try:
        return source.plan(MAX_COUNT, usual)
    except TooLarge:
        planned, begin = [], 0
        for row in _rows_above(source, usual, 0, source.rows):
            planned += source.plan(MAX_COUNT, usual, begin, row)
            planned += source.plan(1, largest, row, row + 1)
            begin = row + 1
        return planned + source.plan(MAX_COUNT, usual, begin, source.rows)


def _rows_above(source: Source, size: int, start: int, stop: int) -> Iterator[int]:
    """The rows that no batch of this size has room for."""
    try:
        source.plan(MAX_COUNT, size, start, stop)
    except TooLarge:
        if stop - start == 1:
            yield start
            return
        middle = (start + stop) // 2
        yield from _rows_above(source, size, start, middle)
        yield from _rows_above(source, size, middle, stop)
