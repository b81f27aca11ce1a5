"""Figures of the disk that a store is on, as whoever looks sees them: nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.log.fs import FileSystem
from tailrace.queue.disk import DiskSettings, DiskWatch, Level
from tailrace.queue.layout import Layout
from tailrace.queue.reserve import Reserve

__all__ = ["DiskStats", "disk_stats"]


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The disk. `level` is "fine", "high" (what may go is deleted at once) or "refusing" (nothing
    is published), by the `disk` settings of whoever looks: a program that was given others goes by
    its own. `reserve` tells whether the store still has the space that it keeps for consumers."""

    total_bytes: int
    free_bytes: int
    used_ratio: float
    level: Literal["fine", "high", "refusing"]
    reserve: bool


_NAMES: dict[Level, Literal["fine", "high", "refusing"]] = {
    Level.FINE: "fine",
    Level.HIGH: "high",
    Level.REFUSING: "refusing",
}


def disk_stats(fs: FileSystem, layout: Layout, settings: DiskSettings) -> DiskStats:
    # A watch of our own: what others know of the disk, and do about it, is left alone.
    level = DiskWatch(fs, layout.root, settings).look()
    space = fs.space(layout.root)
    ratio = 1 - space.free / space.total if space.total else 0.0
    reserve = Reserve(fs, layout.side).is_there
    return DiskStats(space.total, space.free, ratio, _NAMES[level], reserve)
