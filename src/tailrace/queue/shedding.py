"""What a classic group lets go of although nobody had it: to make room, or because it is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice, takewhile

from tailrace import hooks
from tailrace.queue.burying import LAPSED, Burying, Shed
from tailrace.queue.journal import Op
from tailrace.queue.lease import CLAIMED, DYING, FREE, LEASED, PARKED, WAITING
from tailrace.queue.outlook import Outlook
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import SCAN_MOST, Scan, first_of_keys

__all__ = ["Shedding", "drop_oldest"]


class Shedding(Burying):
    """A group of a classic queue, as far as it is about room."""

    _outlook: Outlook | None = None  # once the queue was full

    # --- what nobody will ever get ----------------------------------------------------------

    def pass_by(self, end: int) -> int:
        """Settle what the group will never get: what does not concern it, or has expired, and
        nobody has. How many messages fewer are not settled then, of a log that ends there. What was
        looked at once is not read again, so to ask again and again costs little. Without a lock of
        the queue: there may be dead letters to write."""
        passed, more = 0, True
        while more:
            shed: Shed = self._office.settings, []
            with self._turn:
                outlook, epoch = self._outlook, self.state.epoch
                self._outlook = None  # if this fails, it begins anew
                if outlook is None or outlook.epoch != epoch:
                    outlook = Outlook(self.state.committed, self._selection.until_ms, epoch)
                more = outlook.look(self._log, end, SCAN_MOST)
                before = self._count_unsettled(end)
                self._pass(outlook, outlook.take_over(self.files.clock.wall_ms(), end), shed)
                passed += before - self._count_unsettled(end)
                outlook.tidy(lambda o: o >= self.state.cursor or o in self.state.pending)
                self._outlook = outlook
            settings, letters = shed
            if letters:
                passed += self._bury_all(letters, settings)
        if passed:
            self.ring()
        return passed

    def _pass(self, outlook: Outlook, over: dict[int, float], shed: Shed) -> None:
        """With the turn: of these messages, by offset, the time is over; and of what is deleted, as
        a power cut may have it."""
        state, now_ms, start = self.state, self.files.clock.boot_ms(), self._log.start_offset
        max_retries = shed[0].retry.max_retries
        ops: list[Op] = []
        gone: list[int] = []
        deleted = takewhile(lambda offset: offset < start, state.pending)
        for offset in sorted({*deleted, *(over.keys() & state.pending.keys())}):
            lease = state.pending[offset]
            is_free = lease.state in (FREE, WAITING, PARKED) or lease.is_due(now_ms)
            if is_free and not lease.is_spent(max_retries):
                gone.append(offset)
            elif offset in over:  # somebody has it, and may be done with it in time
                outlook.keep(offset, over[offset])
        if gone:
            ops += self._gone(gone, self._feed.read_at(gone), shed)
        last = max(over, default=-1)
        if last >= state.cursor:
            ops += self._look_past(last, over, shed)
        if ops:
            self.commit(*ops)

    def _look_past(self, last: int, over: dict[int, float], shed: Shed) -> list[Op]:
        """What lies between the cursor and one that is passed is looked at: it is pending from then
        on, and free."""
        state, has_lapsed = self.state, self._selection.has_lapsed
        scan, free, left = Scan(last + 1), list[int](), list[int]()
        records = self._log.read(self._next, last + 1)
        while portion := list(islice(records, SCAN_MOST)):
            lapsed = [r for r in portion if r.offset in over and has_lapsed(r)]
            left += self._note_lapsed(lapsed, shed)
            kept = [record for record in portion if record.offset not in over]
            if state.by_key:
                kept = first_of_keys(state, kept, scan)
            free += [record.offset for record in kept]  # type: ignore[misc]
        op: Op = {"t": "claim", "c": "", "u": state.tick(self.files.clock.boot_ms()), "h": 0}
        op["f"], op["x"] = state.cursor, last + 1
        if not free and not left:
            return scan.complete(op)
        op["r"] = runs_of(sorted(free + left))
        ops: list[Op] = [*scan.complete(op), {"t": "free", "r": op["r"]}]
        return [*ops, self._dying(left, LAPSED)] if left else ops

    # --- what there is no room for ----------------------------------------------------------

    def count_unsettled(self, end: int) -> int:
        """How many messages are not settled, of a log that ends there."""
        with self._turn:
            return self._count_unsettled(end)

    def _count_unsettled(self, end: int) -> int:
        return self.state.weight + self._count_new(end)

    def _count_new(self, end: int) -> int:
        """How many messages nobody has looked at, of a log that ends there."""
        return max(end - self._next, 0)

    @property
    def _next(self) -> int:
        """The first message that nobody has looked at. A power cut may have the cursor at one that
        is deleted."""
        return max(self.state.cursor, self._log.start_offset)

    def _has_leases(self) -> bool:
        now_ms = self.files.clock.boot_ms()
        return any(
            lease.state in (CLAIMED, LEASED, DYING) and not lease.is_due(now_ms)
            for lease in self.state.pending.values()
        )

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

    def excess(self, end: int, keep: int) -> int:
        """With the turn: how many messages more than `keep` are not settled, of a log that ends
        there."""
        return self._count_unsettled(end) - keep

    def all_below(self, below: int) -> int:
        """With the turn: how many messages below an offset are not settled."""
        return sum(offset < below for offset in self.state.pending) + self._count_new(below)

    def _ready_below(self, below: int, most: int) -> list[int]:
        """With the turn: what is pending there, and nobody has."""
        return self.state.oldest_free(self.files.clock.boot_ms(), below, most)

    def _drop(self, ready: list[int], new: int) -> None:
        """With the turn: settle these, and so many of what is at the cursor, without delivering
        them."""
        runs, upto = runs_of(ready) if ready else [], self._next + new
        count = len(ready) + new
        self.commit({"t": "drop", "r": runs, "f": self.state.cursor, "x": upto, "n": count})


def drop_oldest(
    groups: Sequence[Shedding], below: int, excess: Callable[[Shedding], int]
) -> dict[str, int] | None:
    """Drop the oldest messages below an offset that nobody has, in each of these groups as many as
    `excess` says, which is asked with the group's turn; how many that were, by group. `None`, and
    nothing is dropped, if one of them has not so many. All groups wait meanwhile, in an order that
    everybody keeps, or one of them might claim what the next is about to drop."""
    dropped: dict[Shedding, int] = {}
    with ExitStack() as turns:
        drops: dict[Shedding, tuple[list[int], int]] = {}
        for group in sorted(groups, key=lambda each: each.id):
            turns.enter_context(group._turn)
            dropped[group] = max(excess(group), 0)
            if dropped[group]:
                ready = group._ready_below(below, dropped[group])
                new = dropped[group] - len(ready)
                if new > group._count_new(below):
                    return None
                drops[group] = ready, new
        for group, (ready, new) in drops.items():
            group._drop(ready, new)
    for group, count in dropped.items():
        hooks.count("dropped", count, group.queue, group.id)
    return {group.id: count for group, count in dropped.items()}
