"""Which messages of a log nobody will get, of those that were looked at.

They have expired, or never concerned the one who looks. Each is read once, and of those that are
kept only when they will expire is remembered.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.log import Log
from tailrace.queue.message import expires_at

__all__ = ["Outlook", "lifetime_ms"]

_FEW = 1024


def lifetime_ms(record: Record) -> float:
    """Until when anybody may get a record."""
    expiry = expires_at(record)
    return math.inf if expiry is None else expiry


class Outlook:
    """From an offset on; `until_ms` tells until when a record may be had. Not thread-safe."""

    def __init__(self, first: int, until_ms: Callable[[Record], float], epoch: int = 0) -> None:
        self.epoch = epoch  # of a group: what was looked at in another does not count
        self._position = first
        self._until_ms = until_ms
        self._ends: list[tuple[float, int]] = []  # a heap of when, and which offset
        self._worth = _FEW  # so many are worth tidying up

    def look(self, log: Log, end: int, most: int) -> bool:
        """Look at so many more, below an offset; are there others?"""
        count, first = 0, max(self._position, log.start_offset)
        if first >= end:
            return False
        try:
            for record in log.read(first):
                offset: int = record.offset  # type: ignore[assignment]
                if offset >= end or count == most:
                    return offset < end
                count += 1
                until_ms = self._until_ms(record)
                if until_ms < math.inf:
                    heapq.heappush(self._ends, (until_ms, offset))
                self._position = offset + 1
        except (Corrupt, OffsetOutOfRange):  # whoever reads on tells of it
            return False
        return False

    def take_over(self, wall_ms: int, end: int) -> dict[int, float]:
        """Those below an offset whose time is over, with when that was. They are told of once."""
        over: dict[int, float] = {}
        later = []
        while self._ends and self._ends[0][0] < wall_ms:
            until_ms, offset = heapq.heappop(self._ends)
            if offset < end:
                over[offset] = until_ms
            else:
                later.append((offset, until_ms))
        for each in later:
            self.keep(*each)
        return over

    def keep(self, offset: int, until_ms: float) -> None:
        """Tell of it again."""
        heapq.heappush(self._ends, (until_ms, offset))

    def tidy(self, is_meant: Callable[[int], bool]) -> None:
        """Forget those that are settled by now."""
        if len(self._ends) > self._worth:
            self._ends = [each for each in self._ends if is_meant(each[1])]
            heapq.heapify(self._ends)
            self._worth = max(2 * len(self._ends), _FEW)
