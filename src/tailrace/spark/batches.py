"""Into which batches of a log rows are put."""

from __future__ import annotations

from typing import Final

from tailrace.kernel import MAX_COUNT, TooLarge
from tailrace.kernel.arrow import Source

__all__ = ["plan_batches"]

# Bytes. One record is read by decoding its whole batch, so keep batches small.
_USUAL: Final = 1 << 20


def plan_batches(source: Source, largest: int) -> list[tuple[int, int]]:
    """Where each begins and ends: at about a megabyte, and where a row is larger than that, at the
    `largest` that the log takes. `TooLarge` if a row alone is more."""
    try:
        return source.plan(MAX_COUNT, min(_USUAL, largest))
    except TooLarge:
        return source.plan(MAX_COUNT, largest)
