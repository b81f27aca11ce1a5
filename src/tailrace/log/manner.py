"""How a handle writes to its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Manner", "system_ms"]


def system_ms() -> int:
    """The time of day, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Manner(NamedTuple):
    """`mode` is "owner", "shared" or "exclusive"; with `upkeep` there is a thread that flushes and
    deletes. By `wall_ms` records and producers grow old. Where that thread flushes, it calls
    `along` as often: other files go with the log, and are to be as durable."""

    mode: str
    upkeep: bool = True
    wall_ms: Callable[[], int] = system_ms
    along: Callable[[], object] | None = None
