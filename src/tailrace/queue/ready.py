"""Which pending messages may be claimed again.

A suspect is a message with which a caller died, or which it kept for too long. It is delivered
alone, and a process has one of them at a time in a group, whatever else it has: if it is what kills
processes, it meets each other message once at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.queue.lease import DYING, Lease

__all__ = ["Ready", "Redeliveries"]


class Redeliveries(NamedTuple):
    """Pending messages that may be claimed again: `again` are to be delivered, `spent` have been
    delivered as often as they may be. `is_suspect`: it is one message, which is to be alone."""

    again: list[int]
    spent: list[int]
    is_suspect: bool


class Ready:
    """Offsets; some are not meant any more, or are there twice, which is found when they are taken.
    Suspects that have to wait for another are kept apart, so that nobody passes them again and
    again. Not thread-safe."""

    __slots__ = ("offsets", "suspects")

    def __init__(self) -> None:
        self.offsets: list[int] = []  # a heap
        self.suspects: list[int] = []  # another one: those that were found to be suspects

    def add(self, offset: int) -> None:
        heapq.heappush(self.offsets, offset)

    def update(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            heapq.heappush(self.offsets, offset)

    def clear(self) -> None:
        self.offsets.clear()
        self.suspects.clear()

    def take(
        self,
        pending: Mapping[int, Lease],
        now_ms: int,
        limit: int,
        max_retries: int | None,
        *,
        with_suspect: bool,
    ) -> Redeliveries:
        """The oldest, up to `limit` to be delivered; a suspect, if there may be one now, only when
        none is older."""
        again: list[int] = []
        spent: list[int] = []
        while len(again) < limit:
            heap = self.offsets
            if with_suspect and not again and self._has_suspect_first():
                heap = self.suspects
            if not heap:
                break
            offset = heapq.heappop(heap)
            lease = pending.get(offset)
            if lease is None or not lease.is_due(now_ms):
                continue  # not meant any more
            if offset in again[-1:] or offset in spent[-1:]:
                continue  # it was in there twice
            if lease.is_spent(max_retries):
                spent.append(offset)
            elif not lease.is_suspect:
                again.append(offset)
            elif with_suspect and not again:
                return Redeliveries([offset], spent, True)
            else:
                heapq.heappush(self.suspects, offset)
        return Redeliveries(again, spent, False)

    def oldest(self, pending: Mapping[int, Lease], now_ms: int, below: int, most: int) -> list[int]:
        """The oldest that nobody has, also suspects, and up to so many. They stay where they are;
        what is not meant any more goes."""
        found: list[int] = []
        dying: list[int] = []
        while len(found) < most:
            heap = self.suspects if self._has_suspect_first() else self.offsets
            if not heap or heap[0] >= below:
                break
            offset = heapq.heappop(heap)
            lease = pending.get(offset)
            if lease is None or not lease.is_due(now_ms) or offset in found[-1:]:
                continue
            (dying if lease.state == DYING else found).append(offset)
        self.update(found + dying)
        return found

    def _has_suspect_first(self) -> bool:
        suspects, offsets = self.suspects, self.offsets
        return bool(suspects) and (not offsets or suspects[0] <= offsets[0])
