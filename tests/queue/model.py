"""What a classic queue is to do, in as few words as possible: lists and dictionaries, no files.

Each message is, for each group, in exactly one place: not looked at (`offset >= cursor`), in
`entries`, or settled, of which `dead` tells the ones that became dead letters, `skipped` those that
had expired or never concerned the group, and `dropped` those for which there was no room. Below
`start` the queue has deleted everything. Times are in milliseconds and multiples of a tick, so
nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.queue.topics import matches

__all__ = ["BACKOFF_MS", "LEASE_MS", "Entry", "GroupModel", "Sent"]

LEASE_MS = 16_000
BACKOFF_MS = 4_000  # doubles with each delivery


@dataclass
class Sent:
    """A message that was published."""

    offset: int
    value: bytes
    key: str | None = None
    routing_key: str = ""
    expires_ms: int | None = None  # by the wall clock
    for_group: str | None = None  # it was redriven


@dataclass
class Entry:
    """A message that a group has looked at, and not settled."""

    state: str  # claimed, leased, waiting, free, parked, dying
    until: int = 0
    count: int = 0
    is_suspect: bool = False  # somebody kept it for too long, or died with it
    holder: object = None
    token: object = field(default_factory=object)  # whoever holds the same has the lease


class GroupModel:
    def __init__(
        self, id: str, *, key_order: bool, max_retries: int, expired_die: bool = False
    ) -> None:
        self.id = id
        self.pattern = id.partition("@")[2]
        self.key_order = key_order
        self.max_retries = max_retries
        self.expired_die = expired_die  # what has expired becomes a dead letter
        self.start = 0
        self.cursor = 0
        self.entries: dict[int, Entry] = {}
        self.settled: set[int] = set()
        self.skipped: set[int] = set()  # of these: what never concerned the group, or had expired
        self.dropped: set[int] = set()  # of these: what there was no room for
        self.counts: dict[int, int] = {}  # of these: how often they were delivered, if ever
        self.dead: list[int] = []  # of these: dead letters, in the order in which they died
        self.log: dict[int, Sent] = {}
        self.members: set[object] = set()
        self.killed: set[object] = set()  # of the members; nobody has noticed yet
        self.suspects: dict[object, tuple[int, object]] = {}  # by process: offset and token

    # --- questions --------------------------------------------------------------------------

    def concerns(self, sent: Sent) -> bool:
        if sent.for_group not in (None, self.id):
            return False
        if not self.pattern:
            return True
        return bool(sent.routing_key) and matches(self.pattern, sent.routing_key)

    def wants(self, sent: Sent, wall: int) -> bool:
        return sent.offset >= self.start and self.concerns(sent) and not is_expired(sent, wall)

    @property
    def committed(self) -> int:
        return min(self.entries, default=self.cursor)

    def is_ready(self, entry: Entry, now: int) -> bool:
        if entry.state in ("free", "parked"):
            return entry.state == "free"
        return entry.until <= now

    def has_lease(self, offset: int, token: object) -> bool:
        entry = self.entries.get(offset)
        return entry is not None and entry.token is token and entry.state in ("leased", "claimed")

    def state_of(self, offset: int) -> str:
        """Where a message is: the one place."""
        if offset in self.entries:
            return self.entries[offset].state
        if offset in self.dead:
            return "dead"
        if offset in self.dropped:
            return "dropped"
        if offset in self.skipped:
            return "expired" if self.concerns(self.log[offset]) else "nobody's"
        return "settled" if offset in self.settled else "ready"

    def _line(self, key: str | None) -> list[int]:
        """The messages of a key that are not settled, in order."""
        if not self.key_order or key is None:
            return []
        return [o for o in sorted(self.entries) if self.log[o].key == key]

    # --- what consumers do --------------------------------------------------------------------

    def join(self, consumer: object) -> None:
        self.notice_the_dead()
        self.members.add(consumer)

    def notice_the_dead(self) -> None:
        """Their leases are over."""
        for entry in self.entries.values():
            if entry.state in ("leased", "claimed") and entry.holder in self.killed:
                entry.until = 0
        self.killed.clear()

    def kill(self) -> None:
        self.killed |= self.members  # and who has left with something in hand:
        self.killed |= {each.holder for each in self.entries.values() if each.holder is not None}
        self.members.clear()
        self.suspects.clear()

    def has_suspect(self, process: object, now: int) -> bool:
        """Then it gets no other. What it has kept for too long does not count."""
        offset, token = self.suspects.get(process, (-1, None))
        return self.has_lease(offset, token) and self.entries[offset].until > now

    def claim(
        self, consumer: object, process: object, limit: int, now: int, wall: int, *, handed: bool
    ) -> tuple[list[int], bool]:
        """The messages that a claim gets, in order; and whether any became dead letters."""
        may_suspect = not self.has_suspect(process, now)
        chosen, is_alone, spent = self._ready_again(limit, now, may_suspect=may_suspect)
        # They may have expired meanwhile; and after damage the group knows only that there was
        # something.
        unwanted = [offset for offset in chosen if not self.wants(self.log[offset], wall)]
        for offset in unwanted:
            self.skip(offset)
            self._lapse(offset, wall)
            chosen.remove(offset)
        is_alone = is_alone and bool(chosen)
        if not is_alone:
            chosen += self._look_on(limit - len(chosen), wall)
        if unwanted and not chosen:  # then it looks again, when the dead are buried
            for offset in spent:
                self.bury(offset)
            chosen, has_buried = self.claim(consumer, process, limit, now, wall, handed=handed)
            return chosen, has_buried or bool(spent)
        for offset in chosen:
            entry = self.entries[offset]
            entry.is_suspect |= entry.state == "leased"
            entry.state, entry.until = "leased" if handed else "claimed", now + LEASE_MS
            entry.count += handed
            entry.holder, entry.token = consumer, object()
            if is_alone:
                self.suspects[process] = offset, entry.token
        for offset in spent:
            self.bury(offset)
        return chosen, bool(spent)

    def _ready_again(
        self, limit: int, now: int, *, may_suspect: bool
    ) -> tuple[list[int], bool, list[int]]:
        chosen: list[int] = []
        spent: list[int] = []
        for offset, entry in sorted(self.entries.items()):
            if len(chosen) == limit:
                break
            if not self.is_ready(entry, now):
                continue
            if entry.state == "dying" or entry.count > self.max_retries:
                spent.append(offset)
            elif entry.is_suspect or entry.state == "leased":
                if may_suspect and not chosen:
                    return [offset], True, spent
            else:
                chosen.append(offset)
        return chosen, False, spent

    def _look_on(self, want: int, wall: int, upto: int | None = None) -> list[int]:
        """New messages, in order; those that do not concern us are settled, and with the order of
        keys only the first of a key may be had."""
        chosen: list[int] = []
        for sent in self._new():
            is_far = len(chosen) == want if upto is None else sent.offset > upto
            if is_far:
                break
            self.cursor = sent.offset + 1
            if not self.wants(sent, wall):
                self.settled.add(sent.offset)
                self.skipped.add(sent.offset)
                self._lapse(sent.offset, wall)
            elif self._line(sent.key):
                self.entries[sent.offset] = Entry("parked")
            else:
                self.entries[sent.offset] = Entry("free")
                chosen.append(sent.offset)
        return chosen

    def _new(self) -> Iterator[Sent]:
        first = max(self.cursor, self.start)
        yield from [sent for offset, sent in sorted(self.log.items()) if offset >= first]

    def hand(self, offsets: list[int], now: int, wall: int) -> list[int]:
        """Which of those that were fetched ahead are handed over: they may have expired."""
        handed = []
        for offset in offsets:
            if is_expired(self.log[offset], wall):
                self.skip(offset)
                self._lapse(offset, wall)
                continue
            entry = self.entries[offset]
            entry.state, entry.until = "leased", now + LEASE_MS
            entry.count += 1
            handed.append(offset)
        return handed

    def extend(self, offset: int, until: int) -> None:
        self.entries[offset].until = until

    def nack(self, offset: int, now: int, delay_ms: int | None) -> None:
        entry = self.entries[offset]
        if entry.count > self.max_retries:
            self.bury(offset)
            return
        wait_ms = BACKOFF_MS * 2 ** (entry.count - 1) if delay_ms is None else delay_ms
        entry.state, entry.until, entry.is_suspect = "waiting", now + wait_ms, False

    def release(self, offset: int) -> None:
        entry = self.entries[offset]
        entry.count -= entry.state == "leased"
        entry.state = "free"

    def free(self, offset: int) -> None:
        self.entries[offset].state = "free"

    def settle(self, offset: int) -> None:
        self.counts[offset] = self.entries.pop(offset).count
        self.settled.add(offset)
        line = self._line(self.log[offset].key)
        if line and self.entries[line[0]].state == "parked":
            self.entries[line[0]].state = "free"

    def skip(self, offset: int) -> None:
        """It was pending, and is not for us any more."""
        self.settle(offset)
        self.skipped.add(offset)

    def bury(self, offset: int) -> None:
        self.settle(offset)
        if offset >= self.start:  # else it was dropped, which the power cut took back
            self.dead.append(offset)

    def _lapse(self, offset: int, wall: int) -> None:
        """It was not delivered. If it has expired, there may be a letter, and never a second."""
        sent = self.log[offset]
        is_lapsed = offset >= self.start and self.concerns(sent) and is_expired(sent, wall)
        if self.expired_die and is_lapsed and offset not in self.dead:
            self.dead.append(offset)

    # --- room ---------------------------------------------------------------------------------

    def depth(self, end: int) -> int:
        """How many messages are not settled, of a queue that ends there."""
        return len(self.entries) + max(end - max(self.cursor, self.start), 0)

    def pass_by(self, end: int, now: int, wall: int) -> int:
        """Settle what will never be had, below an offset, unless somebody has it, or it is to die;
        how many fewer are not settled then."""
        before = self.depth(end)
        for offset, entry in sorted(self.entries.items()):
            is_free = entry.state in ("free", "waiting", "parked") or self.is_ready(entry, now)
            is_over = offset < end and not self.wants(self.log[offset], wall)
            if is_over and is_free and entry.state != "dying" and entry.count <= self.max_retries:
                self.skip(offset)
                self._lapse(offset, wall)
        new = [sent for sent in self._new() if sent.offset < end]
        over = [sent.offset for sent in new if not self.wants(sent, wall)]
        if over:  # what is in front of the last of them was looked at, but given to nobody
            self._look_on(len(new), wall, upto=over[-1])
        return before - self.depth(end)

    def is_droppable(self, below: int, now: int) -> bool:
        """Has nobody a message below an offset?"""
        return all(
            self.has_nobody(entry, now) for offset, entry in self.entries.items() if offset < below
        )

    def has_nobody(self, entry: Entry, now: int) -> bool:
        """May it be dropped?"""
        return entry.state == "parked" or (entry.state != "dying" and self.is_ready(entry, now))

    def drop_below(self, below: int, now: int) -> int:
        """Settle everything below an offset; how many that were."""
        ready = [offset for offset in self.entries if offset < below]
        return self.drop(below, len(ready) + max(below - max(self.cursor, self.start), 0), now)

    def can_drop(self, end: int, count: int, now: int) -> bool:
        """Are there so many that nobody has?"""
        held = sum(
            offset < end and not self.has_nobody(entry, now)
            for offset, entry in self.entries.items()
        )
        return count <= self.depth(end) - held

    def drop(self, end: int, count: int, now: int) -> int:
        """Settle so many of the oldest that nobody has; how many that were."""
        ready = [
            offset
            for offset, entry in sorted(self.entries.items())
            if offset < end and self.has_nobody(entry, now)
        ][:count]
        for offset in ready:
            self.settle(offset)
        first = max(self.cursor, self.start)
        behind = max(min(first + count - len(ready), end), first)
        if behind > first:
            self.cursor = behind
        new = [offset for offset in self.log if first <= offset < behind]
        self.settled.update(new)
        self.dropped.update(ready, new)
        return len(ready) + behind - first

    # --- after a power cut --------------------------------------------------------------------

    def accept(
        self, cursor: int, found: dict[int, Entry], unsure: frozenset[int] = frozenset()
    ) -> None:
        """A power cut may have taken what nobody waited for: claims, mostly. Check that it took
        nothing else, and go on from what is left. Of those that are `unsure` anything may have
        become."""
        may_return = self.skipped | self.dropped | unsure
        for offset in self.log:
            where = f"{self.id}:{offset}, which was {self.state_of(offset)}"
            if offset < self.start:
                continue
            if offset not in self.settled:
                is_there = offset in found or offset >= cursor
                assert is_there or offset in unsure, f"{where}, is lost"
            elif offset not in may_return:
                assert offset not in found, f"{where}, is pending"
                assert offset < cursor, f"{where}, would be delivered again"
        for offset, entry in found.items():
            assert offset in self.log, f"{self.id}:{offset} is pending, and was never published"
            assert entry.state not in ("leased", "claimed"), "a lease outlived the boot"
            known = self.entries.get(offset)
            count = self.counts.get(offset, 0) if known is None else known.count
            assert entry.count <= count, "deliveries that never were"
        self.cursor = cursor
        self.entries = dict(sorted(found.items()))
        self.settled = {o for o in self.log if o < cursor and o not in found}
        self.skipped &= self.settled
        self.dropped &= self.settled


def is_expired(sent: Sent, wall: int) -> bool:
    return sent.expires_ms is not None and wall > sent.expires_ms
