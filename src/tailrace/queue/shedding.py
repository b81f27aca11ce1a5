"""What a classic group lets go of although nobody had it: to make room, or because it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tailrace import hooks
from tailrace.queue.group import Group
from tailrace.queue.journal import Op
from tailrace.queue.ledger import DYING, Ledger
from tailrace.queue.runs import runs_of

__all__ = ["Shedding", "drop_below"]


class Shedding(Group[Ledger]):
    """A group of a classic queue, as far as it is about room."""

    def count_unsettled(self, end: int) -> int:
        """How many messages are not settled, of a log that ends there."""
        with self._turn:
            return self._count_unsettled(end)

    def _count_unsettled(self, end: int) -> int:
        return len(self.state.pending) + max(end - self.state.cursor, 0)

    def forget_below(self, offset: int) -> None:
        """What is below an offset was deleted: it is nobody's any more."""
        with self._turn:
            state = self.state
            gone = [each for each in state.pending if each < offset]
            ops: list[Op] = []
            if gone:
                ops.append({"t": "gone", "r": runs_of(gone), "lost": 0})
            if state.cursor < offset:
                op: Op = {"t": "claim", "c": "", "u": 0, "h": 0}
                ops.append({**op, "f": state.cursor, "x": offset})
            if ops:
                self.commit(*ops)

    def drop_ready(self, below: int, limit: int | None = None) -> int:
        """Settle the oldest messages below an offset that nobody has, without delivering them; how
        many."""
        with self._turn:
            count = self._drop(self._ready_below(below)[:limit], below, limit)
        hooks.count("dropped", count, self.queue, self.id)
        return count

    def _ready_below(self, below: int) -> list[int]:
        """With the turn: what is pending there, and nobody has."""
        ledger, now_ms = self.state, self.files.clock.boot_ms()
        return [
            offset
            for offset, lease in ledger.pending.items()
            if offset < below and lease.state != DYING and ledger.is_due(lease, now_ms)
        ]

    def _drop(self, ready: list[int], below: int, limit: int | None) -> int:
        """With the turn: settle these, and what is at the cursor."""
        cursor = self.state.cursor
        upto = below if limit is None else min(cursor + limit - len(ready), below)
        count = len(ready) + max(upto - cursor, 0)
        if count:
            runs = runs_of(ready) if ready else []
            upto = max(upto, cursor)
            self.commit({"t": "drop", "r": runs, "f": cursor, "x": upto, "n": count})
        return count


def drop_below(groups: Sequence[Shedding], below: int) -> dict[str, int] | None:
    """Settle everything below an offset, in all of these groups; how many that were, by group.
    `None`, and nothing is dropped, if somebody has a message there. All groups wait meanwhile, in
    an order that everybody keeps, or one of them might claim what the next is about to drop."""
    dropped: dict[str, int] = {}
    with ExitStack() as turns:
        ready: dict[Shedding, list[int]] = {}
        for group in sorted(groups, key=lambda each: each.id):
            turns.enter_context(group._turn)
            ready[group] = group._ready_below(below)
            if len(ready[group]) < sum(offset < below for offset in group.state.pending):
                return None
        for group, offsets in ready.items():
            dropped[group.id] = group._drop(offsets, below, None)
    for group in ready:
        hooks.count("dropped", dropped[group.id], group.queue, group.id)
    return dropped
