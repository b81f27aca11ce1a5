"""What a group knows of the messages of a classic queue. Memory only: no file, no clock.

Messages at or above `cursor` have not been looked at. Of those below, the ones in `pending` are not
settled, and all others are, or never concerned the group. So each message is in exactly one place:

    ready     at or above the cursor, or pending and FREE, or pending and its time is over
    leased    pending: CLAIMED (fetched ahead) or LEASED (with a consumer)
    waiting   pending: WAITING for the end of a delay, or PARKED behind another of its key
    dying     pending: DYING, on its way to the dead letters; no consumer gets it again
    settled   below the cursor, and not pending

Every change is an operation: `apply` is the only way to change anything, for what this process does
as for what it reads in the journal, so all processes come to the same state. An operation says what
happened, not what was asked for; whether it may happen is decided before, with the group's lock.

    t        changes
    claim    `c` gets until `u` the new messages `r` and the pending `again`; the cursor goes from
             `f` to `x`, past what is in neither; `h`: handed to the caller, else fetched ahead;
             `parked` wait behind others of their key; `keys` are of `r` and `parked`, by offset
    hand     messages `r` that were fetched ahead are handed over, until `u`
    extend   the leases of `r` end at `u`
    ack      `r` are settled
    nack     `r` wait until `u`; `e` is why
    release  `r` are free, and their delivery did not count
    free     `r` are free: their holder closed the queue, so it cannot settle them any more
    dying    `r` go to the dead letters, which has to be done by `u`; `e` is why
    dead     they have arrived; settled
    drop     the queue was too full: `r`, and `n` in all below the cursor, which goes from `f` to
             `x`, are settled without anybody having had them
    gone     `r` no longer exist; settled. `lost` others were never looked at
    rewind   the queue ends at `x`: there is nothing at or above it, pending or not
    reset    everything pending is dropped, and the cursor is `x`
    doubt    the journal was damaged, so no lease from before can be told from another's
    boot     the machine has started anew: `b` names the boot, `u` and `w` are its clocks' times
    options  `o`: what the group was made with
    join     `c` came, `m` tells of it; `o` as in `options`, which may be lost
    leave    `c` went; `died`: it was killed, so its leases are over

A lease is named by the offset, the `attempt` (how often the message was claimed) and the `epoch`
(how often everything was dropped), so an old one is never taken for a new one.

Not thread-safe: the group's lock guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, repeat, takewhile
from typing import Any

from tailrace.queue.journal import Op, unknown
from tailrace.queue.key_order import KeyOrder
from tailrace.queue.lease import CLAIMED, DYING, FREE, LEASED, PARKED, WAITING, Lease
from tailrace.queue.ready import Ready, Redeliveries
from tailrace.queue.runs import Runs, offsets_of, runs_of
from tailrace.queue.timers import Timers

__all__ = ["Ledger"]

_TIMED = (CLAIMED, LEASED, WAITING, DYING)

_nowhere: deque[object] = deque(maxlen=0)
_FEW = 1024  # stale timers that are not worth tidying up
_MANY_DEPARTED = 64  # consumers: some have settled everything since they left
_NONE = (0, Lease(FREE, 0, ""))  # no run


class Ledger:
    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self.epoch = 0
        self.resets = 0  # how often somebody had it all done again
        # By offset, and in that order: what is new is always above all others.
        self._pending: dict[int, Lease] = {}
        # Above them, runs that were claimed at once and have stayed as they were, by their first
        # offset: most are settled at once, too, here and wherever else the journal is read.
        self._whole: dict[int, tuple[int, Lease]] = {}
        self._in_whole = 0  # messages
        self.delivered = self.acked = self.dead = self.gone = self.dropped = 0
        self.boot = ""
        self.created_ms = 0
        self.used_ms = 0  # when somebody last came or went; 0: nobody ever has
        self.skew_ms = 0  # wall clock less boot clock, in the boot
        self.members: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.by_key = False  # messages of one key come one at a time
        self._timers = Timers()
        self._ready = Ready()
        self._order = KeyOrder()  # of groups that keep it
        self._holes = 0  # that settled messages have left in `_pending`: who goes through it passes
        self.departed: set[str] = set()  # consumers who left, perhaps with something in hand

    @property
    def pending(self) -> dict[int, Lease]:
        """What is not settled, by offset, and in that order."""
        if self._whole:
            self._split()
        return self._pending

    def _split(self) -> None:
        """Somebody looks at single messages. That happens to a run once, so what it costs is
        bounded by what it would have cost from the start."""
        for first, (count, lease) in self._whole.items():
            self._pending.update(dict.fromkeys(range(first, first + count), lease))
        self._whole.clear()
        self._in_whole = 0

    @property
    def committed(self) -> int:
        """Everything below is settled."""
        for offset in self._pending:
            return offset
        for first in self._whole:
            return first
        return self.cursor

    @property
    def weight(self) -> int:
        """How many messages are pending."""
        return len(self._pending) + self._in_whole

    # --- questions --------------------------------------------------------------------------

    def lease_of(self, offset: int, attempt: int, epoch: int) -> Lease | None:
        """The lease that a caller holds, unless it was lost. That its time is over does not matter
        as long as nobody else has claimed the message."""
        if self._whole:
            self._split()
        lease = self._pending.get(offset)
        if lease is None or lease.attempt != attempt or epoch != self.epoch:
            return None
        return lease if lease.state in (LEASED, CLAIMED) else None

    def holds_whole(self, first: int, count: int) -> bool:
        """Are these leased as they were claimed, all at once and for the first time?"""
        return self._whole.get(first, _NONE)[0] == count

    def is_pending(self, offset: int) -> bool:
        """Needs no lock."""
        return offset in self._pending or any(
            first <= offset < first + count for first, (count, _) in list(self._whole.items())
        )

    def next_due_ms(self) -> int | None:
        """When something may become ready by itself; it may be too early, never too late."""
        return self._timers.next_ms

    def has_ready(self, now_ms: int, *, with_suspect: bool) -> bool:
        """May there be pending messages that can be claimed again?"""
        next_ms, ready = self._timers.next_ms, self._ready
        if ready.offsets or (with_suspect and ready.suspects):
            return True
        return next_ms is not None and next_ms <= now_ms

    def has_line(self, key: int) -> bool:
        """Is a message of this key pending, so that another has to wait?"""
        return key in self._order.lines

    @property
    def parked(self) -> int:
        return self._order.waiting

    def take_ready(
        self, now_ms: int, limit: int, max_retries: int | None, *, with_suspect: bool = True
    ) -> Redeliveries:
        """The oldest pending messages that may be claimed again, up to `limit` to be delivered.
        They have to be claimed then, or given back by `put_back`. See `Ready` for suspects."""
        self._collect(now_ms)
        return self._ready.take(self.pending, now_ms, limit, max_retries, with_suspect=with_suspect)

    def oldest_free(self, now_ms: int, below: int, most: int) -> list[int]:
        """The oldest pending messages below an offset that nobody has, up to so many. That another
        message of its key has to be settled first gives it to nobody."""
        if self.parked:
            free = (
                offset
                for offset, lease in self.pending.items()
                if lease.state == PARKED or (lease.state != DYING and lease.is_due(now_ms))
            )
            return list(islice(takewhile(lambda offset: offset < below, free), most))
        if not self.has_ready(now_ms, with_suspect=True):
            return []
        self._collect(now_ms)
        return self._ready.oldest(self.pending, now_ms, below, most)

    def put_back(self, offsets: Iterable[int]) -> None:
        self._ready.update(offsets)

    def _collect(self, now_ms: int) -> None:
        for tick, runs in self._timers.due(now_ms):
            for offset in offsets_of(runs):
                lease = self.pending.get(offset)
                if lease is not None and lease.until == tick and lease.state in _TIMED:
                    self._ready.add(offset)

    # --- changes ----------------------------------------------------------------------------

    def apply(self, op: Op) -> None:
        change = _APPLY.get(op["t"])
        if change is None:
            raise unknown(op)
        change(self, op)

    def tick(self, at_ms: int) -> int:
        """A time to put into an operation."""
        return self._timers.tick(at_ms)

    def _claim(self, op: Op) -> None:
        handed, until, holder = op["h"], op["u"], op["c"]
        state = LEASED if handed else CLAIMED
        if op["f"] != self.cursor:
            self._go_to(op["f"])
        lease = Lease(state, until, holder, 1, handed)
        if "keys" in op:
            self._line_up(op, lease)
        elif "r" in op:
            self._add_new(op["r"], lease)
        if "again" in op:
            self._claim_again(op["again"], lease)
        if op["x"] > self.cursor:
            self.cursor = op["x"]
        if self._timers.size > _FEW:
            self._tidy()

    def _go_to(self, cursor: int) -> None:
        """Operations are missing, or there twice: what was passed in them is free, or has not been
        looked at. Better twice than never."""
        missed = range(self.cursor, cursor)
        self.pending.update(dict.fromkeys(missed, Lease(FREE, 0, "")))
        self.put_back(missed)
        if again := self.above(cursor):
            self._settle(runs_of(again))
        self.cursor = cursor

    def _add_new(self, runs: Runs, lease: Lease) -> None:
        first, count = runs[0], runs[1]
        if len(runs) > 2:
            self._add(self.pending, runs, lease)
            return
        if count == 1:
            self.pending[first] = lease
        else:
            self._whole[first] = (count, lease)
            self._in_whole += count
        self._timers.add(lease.until, first, count)
        self.delivered += count * lease.count

    def _add(self, pending: dict[int, Lease], runs: Runs, lease: Lease) -> None:
        for index in range(0, len(runs), 2):
            first, count = runs[index], runs[index + 1]
            if count == 1:
                pending[first] = lease
            else:
                pending.update(dict.fromkeys(range(first, first + count), lease))
            self._timers.add(lease.until, first, count)
            self.delivered += count * lease.count

    def _claim_again(self, runs: Runs, lease: Lease) -> None:
        is_known = True
        for offset in offsets_of(runs):
            old = self.pending.get(offset)
            if old is None:  # the journal has something twice
                old, is_known = lease, False
            strikes = old.strikes + (old.state == LEASED)
            self.pending[offset] = Lease(
                lease.state,
                lease.until,
                lease.holder,
                old.attempt + 1,
                old.count + lease.count,
                strikes,
                old.error,
            )
            self._timers.add(lease.until, offset)
            self.delivered += lease.count
        if not is_known:
            self._pending = dict(sorted(self._pending.items()))

    def _line_up(self, op: Op, lease: Lease) -> None:
        """Add messages whose order by key matters: some have to wait."""
        new: dict[int, Lease] = {}
        self._add(new, op.get("r", []), lease)
        new.update(dict.fromkeys(offsets_of(op.get("parked", ())), Lease(PARKED, 0, "")))
        new = dict(sorted(new.items()))
        self.pending.update(new)
        keys = dict(zip(op["keys"][::2], op["keys"][1::2], strict=True))
        for offset, lease in new.items():  # not those of `keys`: numbers take memory, too
            if offset not in keys:
                continue
            if self._order.add(offset, keys[offset]) and lease.state == PARKED:
                self.pending[offset] = Lease(FREE, 0, "")  # it was behind one that is missing
                self._ready.add(offset)
        if not self.by_key:  # what said so was damaged
            self._options({"o": {**self.options, "key_order": True}})

    def _hand(self, op: Op) -> None:
        until = op["u"]
        for offset, old in self._known(op):
            self.pending[offset] = Lease(
                LEASED, until, old.holder, old.attempt, old.count + 1, old.strikes, old.error
            )
            self._timers.add(until, offset)
            self.delivered += 1
        self._tidy()

    def _extend(self, op: Op) -> None:
        until = op["u"]
        for offset, old in self._known(op):
            self.pending[offset] = Lease(
                old.state, until, old.holder, old.attempt, old.count, old.strikes, old.error
            )
            self._timers.add(until, offset)
        self._tidy()

    def _nack(self, op: Op) -> None:
        until, error = op["u"], op.get("e", "")
        for offset, old in self._known(op):
            self.pending[offset] = Lease(
                WAITING, until, old.holder, old.attempt, old.count, 0, error or old.error
            )
            self._timers.add(until, offset)

    def _release(self, op: Op) -> None:
        for offset, old in self._known(op):
            count = old.count - (old.state == LEASED)
            self.pending[offset] = Lease(
                FREE, 0, old.holder, old.attempt, count, old.strikes, old.error
            )
            self._ready.add(offset)

    def _free(self, op: Op) -> None:
        for offset, old in self._known(op):
            self.pending[offset] = Lease(
                FREE, 0, old.holder, old.attempt, old.count, old.strikes, old.error
            )
            self._ready.add(offset)

    def _dying(self, op: Op) -> None:
        until, error = op["u"], op.get("e", "")
        for offset, old in self._known(op):
            self.pending[offset] = Lease(
                DYING, until, old.holder, old.attempt + 1, old.count, old.strikes, error
            )
            self._timers.add(until, offset)

    def _known(self, op: Op) -> Iterable[tuple[int, Lease]]:
        for offset in offsets_of(op["r"]):
            lease = self.pending.get(offset)
            if lease is not None:  # else the journal was damaged
                yield offset, lease

    def _ack(self, op: Op) -> None:
        self.acked += self._settle(op["r"])

    def _dead(self, op: Op) -> None:
        self.dead += self._settle(op["r"])

    def _gone(self, op: Op) -> None:
        self.gone += self._settle(op["r"]) + op["lost"]

    def _drop(self, op: Op) -> None:
        if op["f"] != self.cursor:
            self._go_to(op["f"])
        self._settle(op["r"])
        self.cursor = max(self.cursor, op["x"])
        self.dropped += op["n"]

    def _settle(self, runs: Runs) -> int:
        if len(runs) == 2:
            first, count = runs
            if self._whole:
                if self._whole.get(first, _NONE)[0] == count:
                    del self._whole[first]
                    self._in_whole -= count
                    return count
            elif count == 1 and not self._order.lines:
                if self._pending.pop(first, None) is None:
                    return 0
                self._holes += 1
                if self._holes > _FEW:
                    self._close_holes()
                return 1
        pending, has_order = self.pending, bool(self._order.lines)
        before, pop = len(pending), pending.pop
        for index in range(0, len(runs), 2):
            offsets = range(runs[index], runs[index] + runs[index + 1])
            if has_order:
                for offset in offsets:
                    if pop(offset, None) is not None:
                        self._let_next(offset)
            else:
                _nowhere.extend(map(pop, offsets, repeat(None)))
        count = before - len(pending)
        self._holes += count
        self._close_holes()
        return count

    def _close_holes(self) -> None:
        """If there are many, which is each time after as many were settled as it takes."""
        if self._holes > _FEW + len(self._pending) // 4:
            self._pending, self._holes = dict(self._pending), 0

    def _let_next(self, offset: int) -> None:
        """The next message of its key may come."""
        first = self._order.remove(offset)
        head = None if first is None else self.pending.get(first)
        if first is not None and head is not None and head.state == PARKED:
            self.pending[first] = Lease(FREE, 0, "", head.attempt, head.count)
            self._ready.add(first)

    def _let_heads(self) -> list[int]:
        """Whoever waits for nobody that is known is free: which ones that were."""
        heads, freed = self._order.heads, []
        for offset, lease in self.pending.items():
            if lease.state == PARKED and (offset in heads or self._order.key_of(offset) is None):
                self.pending[offset] = Lease(FREE, 0, "", lease.attempt, lease.count)
                freed.append(offset)
        return freed

    def _rewind(self, op: Op) -> None:
        self.gone += self._settle(runs_of(gone)) if (gone := self.above(op["x"])) else 0
        self.cursor = op["x"]
        self.epoch += 1

    def held_by(self, part: str, at_ms: int = -1) -> list[int]:
        """What consumers with this part in their names have beyond `at_ms`. Needs no lock."""
        held = [
            offset
            for offset, lease in list(self._pending.items())
            if lease.state in (CLAIMED, LEASED) and part in lease.holder and lease.until > at_ms
        ]
        for first, (count, lease) in list(self._whole.items()):
            if part in lease.holder and lease.until > at_ms:
                held += range(first, first + count)
        return held

    def above(self, offset: int) -> list[int]:
        """What is pending at an offset, or above it."""
        return [each for each in self.pending if each >= offset]

    def _reset(self, op: Op) -> None:
        self.pending.clear()
        self._order.clear()
        self._ready.clear()
        self._timers = Timers()
        self.cursor = op["x"]
        self.used_ms = max(self.used_ms, op.get("w", 0))
        self.epoch += 1
        self.resets += 1

    def _boot(self, op: Op) -> None:
        """Leases end with the boot, and nobody is to blame. What is left of a delay stays, as far
        as the wall clock can tell."""
        now_ms, old_skew = op["u"], self.skew_ms
        is_first = not self.boot and not self.weight
        self.boot, self.skew_ms = op["b"], op["w"] - op["u"]
        self.created_ms = self.created_ms or op["w"]
        if is_first:
            return
        self.epoch += 1
        self._timers = Timers()
        self._ready.clear()
        for offset, old in self.pending.items():
            state, until = old.state, now_ms
            if state in (CLAIMED, LEASED):
                state = FREE
            elif state == WAITING:
                until = self.tick(max(old.until + old_skew - self.skew_ms, now_ms))
            self.pending[offset] = Lease(
                state, until, old.holder, old.attempt, old.count, old.strikes, old.error
            )
        self._arm()

    def _options(self, op: Op) -> None:
        self.options = op["o"]
        self.by_key = bool(self.options.get("key_order"))

    def _doubt(self, op: Op) -> None:
        self.epoch += 1
        self.put_back(self._let_heads())

    def _join(self, op: Op) -> None:
        if "o" in op:
            self._options(op)
        self.members[op["c"]] = op["m"]
        self.used_ms = max(self.used_ms, op["m"].get("since", 0))

    def _leave(self, op: Op) -> None:
        consumer = op["c"]
        self.members.pop(consumer, None)
        self.used_ms = max(self.used_ms, op.get("w", 0))
        if "died" not in op:
            if self.weight:
                self.departed.add(consumer)
            if len(self.departed) > _MANY_DEPARTED:
                self.look_over_departed()
            return
        self.departed.discard(consumer)
        for offset, lease in self.pending.items():
            if lease.holder == consumer and lease.state in (CLAIMED, LEASED):
                told = lease.attempt, lease.count, lease.strikes, lease.error
                self.pending[offset] = Lease(lease.state, 0, consumer, *told)
                self._ready.add(offset)

    def look_over_departed(self) -> set[str]:
        """Those who have something still: who closes a consumer may settle what it has received.
        The others are forgotten. Goes through all that is pending."""
        if self.departed:
            self.departed &= self._holders()
        return self.departed

    def _holders(self) -> set[str]:
        leases = [*self._pending.values(), *(lease for _, lease in self._whole.values())]
        return {lease.holder for lease in leases if lease.state in (CLAIMED, LEASED)}

    def _tidy(self) -> None:
        """Nothing is kept of what was settled long ago."""
        if self._timers.size > 4 * self.weight + _FEW:
            self._timers = Timers()
            self._ready.clear()
            self._arm()

    def _arm(self) -> None:
        for offset, lease in self._pending.items():
            if lease.state in _TIMED:
                self._timers.add(lease.until, offset)
            elif lease.state == FREE:
                self._ready.add(offset)
        for first, (count, lease) in self._whole.items():
            self._timers.add(lease.until, first, count)

    # --- snapshots --------------------------------------------------------------------------

    _OTHERS = ("epoch", "resets", "boot", "created_ms", "used_ms", "skew_ms", "members", "options")
    _COUNTERS = ("delivered", "acked", "dead", "gone", "dropped")

    def dump(self) -> tuple[dict[str, Any], dict[int, Op]]:
        """All of it: what concerns the group, and what is pending."""
        state = {
            "cursor": self.cursor,
            "committed": self.committed,
            **{name: getattr(self, name) for name in (*self._OTHERS, *self._COUNTERS)},
        }
        entries = {offset: lease.dump() for offset, lease in self.pending.items()}
        for offset, key in self._order:
            entries[offset]["key"] = key
        return state, entries

    @classmethod
    def load(cls, state: dict[str, Any], entries: dict[int, Op]) -> Ledger:
        ledger = cls(state["cursor"])
        for name in (*cls._OTHERS, *cls._COUNTERS):
            setattr(ledger, name, state.get(name, getattr(ledger, name)))
        ledger._options({"o": ledger.options})
        for offset, entry in sorted(entries.items()):
            ledger.pending[offset] = Lease.load(entry)
            if "key" in entry:
                ledger._order.add(offset, entry["key"])
        ledger.departed = ledger._holders() - ledger.members.keys()
        ledger._let_heads()
        ledger._arm()
        return ledger


_APPLY: dict[str, Callable[[Ledger, Op], None]] = {
    "claim": Ledger._claim,
    "hand": Ledger._hand,
    "extend": Ledger._extend,
    "ack": Ledger._ack,
    "nack": Ledger._nack,
    "release": Ledger._release,
    "free": Ledger._free,
    "dying": Ledger._dying,
    "dead": Ledger._dead,
    "drop": Ledger._drop,
    "gone": Ledger._gone,
    "rewind": Ledger._rewind,
    "reset": Ledger._reset,
    "doubt": Ledger._doubt,
    "boot": Ledger._boot,
    "options": Ledger._options,
    "join": Ledger._join,
    "leave": Ledger._leave,
}
