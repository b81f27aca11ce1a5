"""When which offsets are due.

Times are rounded up to whole ticks, and the offsets of a tick are kept as runs: a million leases
that end in the same second take a few numbers. Nothing is ever taken out before its time; whoever
gets an offset from here asks whether it is still meant. Not thread-safe.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tailrace.queue.runs import Runs

__all__ = ["TICK_MS", "Timers"]

TICK_MS = 16


class Timers:
    def __init__(self) -> None:
        self._ticks: list[int] = []  # a heap
        self._runs: dict[int, Runs] = {}
        self._last = -1
        self.size = 0  # numbers kept

    def tick(self, at_ms: int) -> int:
        """The tick for a time. Those that are asked for in a row share one object."""
        tick = -(-at_ms // TICK_MS) * TICK_MS
        if tick == self._last:
            return self._last
        self._last = tick
        return tick

    def add(self, tick: int, first: int, count: int = 1) -> None:
        runs = self._runs.get(tick)
        if runs is None:
            self._runs[tick] = [first, count]
            heapq.heappush(self._ticks, tick)
        elif runs[-2] + runs[-1] == first:
            runs[-1] += count
            return
        else:
            runs += (first, count)
        self.size += 2

    def due(self, now_ms: int) -> Iterator[tuple[int, Runs]]:
        """Take out the ticks that are over, each with its runs."""
        while self._ticks and self._ticks[0] <= now_ms:
            tick = heapq.heappop(self._ticks)
            runs = self._runs.pop(tick)
            self.size -= len(runs)
            yield tick, runs

    @property
    def next_ms(self) -> int | None:
        return self._ticks[0] if self._ticks else None
