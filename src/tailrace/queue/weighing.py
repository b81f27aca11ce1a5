"""How much memory delayed messages take, about: what is kept of them is bounded by that."""

from __future__ import annotations

from typing import Final

from tailrace.kernel import Record, encode

__all__ = ["OF_A_MESSAGE", "weigh_message"]

OF_A_MESSAGE: Final = 64  # bytes that one takes besides what it carries


def weigh_message(record: Record) -> int:
    """With all that it carries. Headers that nobody has parsed yet stay so: it is the batch that
    this message would be."""
    return encode([record], record.timestamp or 0).size
