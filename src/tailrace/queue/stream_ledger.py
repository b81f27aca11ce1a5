"""What a group knows of a stream: how far it has read, and what its consumers are at.

The cursor is the next offset that nobody has. Below it each consumer has ranges that it got and has
not committed; `back` are ranges whose consumer left, for the next one who asks. Committed is the
lowest of all these: everything below has been processed.

    t       changes
    take    `c` gets `f <= offset < x`, from the cursor, or from `back` if `b`
    done    `c` has processed everything of its own below `x`, or in `r`: first, behind, first, …
    return  `c` never got what it has in `r`, which is for the next one who asks
    skip    the cursor is at least `x`, and nobody is at anything below
    rewind  likewise, because the stream ends there
    reset   the cursor is `x`, and nobody is at anything
    doubt   the journal was damaged: what was taken before goes back, as nobody can commit it
    join    `c` came, `m` tells of it        leave    `c` went, and its ranges go back
    boot    the machine has started anew

What leads from one cursor to another names both. If the first is not where we are, operations are
missing: what was passed in them goes back, or has not been looked at. Better twice than never.

As in `ledger.py`, `apply` is the only way to change anything. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tailrace.queue.journal import Op, unknown

__all__ = ["Range", "StreamLedger", "pairs", "without"]

Range = tuple[int, int]


class StreamLedger:
    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self.epoch = 0
        self.taken: dict[str, list[Range]] = {}  # rising, and apart
        self.back: list[Range] = []
        self.boot = ""
        self.created_ms = 0
        self.used_ms = 0  # when somebody last came or went; 0: nobody ever has
        self.members: dict[str, Any] = {}
        self.delivered = 0
        self.options: dict[str, Any] = {}  # there are none

    @property
    def committed(self) -> int:
        """Everything below was processed."""
        lowest = self.cursor
        for ranges in (*self.taken.values(), self.back):
            if ranges:
                lowest = min(lowest, ranges[0][0])
        return lowest

    @property
    def weight(self) -> int:
        return len(self.taken) + len(self.back)

    def has_others(self, consumer: str) -> bool:
        """Is anybody else at anything?"""
        return any(name != consumer for name in self.taken)

    def is_processed(self, ranges: Iterable[Range]) -> bool:
        """Has all of these been processed, by whomever?"""
        at = [self.back, *self.taken.values()]
        return all(
            behind <= self.cursor
            and not any(low < behind and first < high for each in at for low, high in each)
            for first, behind in ranges
        )

    # --- changes ----------------------------------------------------------------------------

    def apply(self, op: Op) -> None:
        change = _APPLY.get(op["t"])
        if change is None:
            raise unknown(op)
        change(self, op)

    def _take(self, op: Op) -> None:
        first, behind = op["f"], op["x"]
        if first > self.cursor:  # the journal was damaged
            self._give_back([(self.cursor, first)])
        if op.get("b"):
            self.back = without(self.back, first, behind)
        elif first < self.cursor:  # likewise, or it has something twice
            self._go_back_to(first)
        ranges = self.taken.setdefault(op["c"], [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], behind)
        else:
            ranges.append((first, behind))
            ranges.sort()
        self.cursor = max(self.cursor, behind)
        self.delivered += op.get("n", 0)

    def _give_back(self, ranges: list[Range]) -> None:
        self.back = _joined(sorted(self.back + ranges))

    def _go_back_to(self, cursor: int) -> None:
        """Nobody has looked at anything from there on."""
        self.back = without(self.back, cursor, self.cursor)
        for consumer in list(self.taken):
            self._done({"c": consumer, "r": [cursor, self.cursor]})
        self.cursor = cursor

    def _done(self, op: Op) -> None:
        left = self.taken.get(op["c"], [])
        if "x" in op:
            left = without(left, 0, op["x"])
        for first, behind in pairs(op.get("r", ())):
            left = without(left, first, behind)
        if left:
            self.taken[op["c"]] = left
        else:
            self.taken.pop(op["c"], None)

    def _return(self, op: Op) -> None:
        before = self.taken.get(op["c"], [])
        self._done(op)
        for first, behind in self.taken.get(op["c"], []):
            before = without(before, first, behind)
        self._give_back(before)

    def _skip(self, op: Op) -> None:
        behind = op["x"]
        self.cursor = max(self.cursor, behind)
        self.back = without(self.back, 0, behind)
        for consumer in list(self.taken):
            self._done({"c": consumer, "x": behind})

    def _reset(self, op: Op) -> None:
        self.cursor = op["x"]
        self.used_ms = max(self.used_ms, op.get("w", 0))
        self.taken.clear()
        self.back.clear()
        self.epoch += 1

    def _doubt(self, op: Op) -> None:
        self.epoch += 1
        for consumer in list(self.taken):
            self._give_back(self.taken.pop(consumer))

    @property
    def ghosts(self) -> list[str]:
        """Who has taken something and is no member: nobody will ever tell that it went."""
        return [consumer for consumer in self.taken if consumer not in self.members]

    def _join(self, op: Op) -> None:
        self.members[op["c"]] = op["m"]
        self.used_ms = max(self.used_ms, op["m"].get("since", 0))

    def _leave(self, op: Op) -> None:
        self.members.pop(op["c"], None)
        self.used_ms = max(self.used_ms, op.get("w", 0))
        self._give_back(self.taken.pop(op["c"], []))

    def _boot(self, op: Op) -> None:
        """Whoever was at anything is gone."""
        self.boot = op["b"]
        self.created_ms = self.created_ms or op["w"]
        for consumer in list(self.taken):
            self._leave({"c": consumer})

    # --- snapshots --------------------------------------------------------------------------

    def dump(self) -> tuple[dict[str, Any], dict[int, Op]]:
        state = {
            "cursor": self.cursor,
            "committed": self.committed,
            "epoch": self.epoch,
            "taken": self.taken,
            "back": self.back,
            "boot": self.boot,
            "created_ms": self.created_ms,
            "used_ms": self.used_ms,
            "members": self.members,
            "delivered": self.delivered,
        }
        return state, {}

    @classmethod
    def load(cls, state: dict[str, Any]) -> StreamLedger:
        ledger = cls(state["cursor"])
        for name in ("epoch", "boot", "created_ms", "used_ms", "members", "delivered"):
            setattr(ledger, name, state.get(name, getattr(ledger, name)))
        ledger.taken = {
            consumer: [(first, behind) for first, behind in ranges]
            for consumer, ranges in state.get("taken", {}).items()
        }
        ledger.back = [(first, behind) for first, behind in state.get("back", ())]
        for consumer in ledger.ghosts:
            ledger._give_back(ledger.taken.pop(consumer))
        return ledger


def pairs(runs: Sequence[int]) -> list[Range]:
    """Ranges, of which an operation has first, behind, first, …"""
    return list(zip(runs[::2], runs[1::2], strict=True))


def without(ranges: list[Range], first: int, behind: int) -> list[Range]:
    """What is left of ranges outside `first <= offset < behind`."""
    left = []
    for low, high in ranges:
        if low < first:
            left.append((low, min(high, first)))
        if high > behind:
            left.append((max(low, behind), high))
    return left


def _joined(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for low, high in ranges:
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


_APPLY: dict[str, Callable[[StreamLedger, Op], None]] = {
    "take": StreamLedger._take,
    "done": StreamLedger._done,
    "return": StreamLedger._return,
    "skip": StreamLedger._skip,
    "rewind": StreamLedger._reset,
    "reset": StreamLedger._reset,
    "doubt": StreamLedger._doubt,
    "join": StreamLedger._join,
    "leave": StreamLedger._leave,
    "boot": StreamLedger._boot,
}
