"""What time and space do to a queue, in as few words as possible: see `model` for its groups.

A message is scheduled first, or in the queue at once; what was scheduled is cancelled, or enters
the queue when it is due and there is room. In the queue it is what each group says that it is,
until all have settled it and it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tailrace.queue.handles import QueueLog
from tests.queue.model import GroupModel, Sent, is_expired

__all__ = ["Delivery", "Room", "Schedule", "StreamModel", "Waiting", "segments"]


@dataclass(frozen=True)
class Waiting:
    """A message that is scheduled. Its offset comes when it is delivered."""

    due_ms: int
    number: int  # in the order in which they were published
    value: bytes
    key: str | None = None
    routing_key: str = ""
    expires_ms: int | None = None

    def sent(self, offset: int) -> Sent:
        return Sent(offset, self.value, self.key, self.routing_key, self.expires_ms)


@dataclass
class Schedule:
    """What is scheduled, by its delay id; and what became of the others."""

    waiting: dict[str, Waiting] = field(default_factory=dict)
    cancelled: set[bytes] = field(default_factory=set)
    delivered: set[bytes] = field(default_factory=set)
    cancelled_ids: set[str] = field(default_factory=set)
    numbers: int = 0

    def add(self, delay_id: str, due_ms: int, sent: Sent) -> None:
        assert delay_id not in self.waiting, "a delay id came again"
        self.numbers += 1
        self.waiting[delay_id] = Waiting(
            due_ms, self.numbers, sent.value, sent.key, sent.routing_key, sent.expires_ms
        )

    def due(self, wall: int) -> list[Waiting]:
        """In the order in which they are delivered."""
        due = [each for each in self.waiting.values() if each.due_ms <= wall]
        return sorted(due, key=lambda each: (each.due_ms, each.number))

    def cancel(self, delay_id: str) -> bool:
        found = self.waiting.pop(delay_id, None)
        if found is not None:
            self.cancelled.add(found.value)
            self.cancelled_ids.add(delay_id)
        return found is not None

    def deliver(self, each: Waiting) -> None:
        self.waiting = {key: value for key, value in self.waiting.items() if value is not each}
        assert each.value not in self.delivered, "delivered twice"
        self.delivered.add(each.value)

    def check(self) -> None:
        """Each is in one place."""
        values = [each.value for each in self.waiting.values()]
        places = [*values, *self.cancelled, *self.delivered]
        assert len(places) == len(set(places)) == self.numbers


@dataclass
class Room:
    """`limits.max_depth` and `on_full` of a queue."""

    max_depth: int
    on_full: str

    def admit(
        self,
        groups: list[GroupModel],
        end: int,
        count: int,
        now: int,
        wall: int,
        *,
        drops: bool = True,
    ) -> bool:
        """Is there room for so many, perhaps after what nobody will get was passed, and the oldest
        were dropped?"""
        if not self.max_depth or not count:
            return True
        if count > self.max_depth:
            return False
        while True:
            depths = [group.depth(end) for group in groups]
            room = self.max_depth - max(depths)
            if room >= count:
                return True
            if sum([group.pass_by(end, now, wall) for group in groups]):
                continue
            may_drop = drops and self.on_full == "drop_oldest"
            if not may_drop or not self._drop(groups, end, count - room, now):
                return False

    def _drop(self, groups: list[GroupModel], end: int, count: int, now: int) -> int:
        """Of each group what it has too many; how many that are of the one that has most. None, if
        one of them cannot."""
        depths = [group.depth(end) for group in groups]
        excess = [max(count - (max(depths) - depth), 0) for depth in depths]
        each = list(zip(groups, excess, strict=True))
        if not all(group.can_drop(end, most, now) for group, most in each):
            return 0
        return max(group.drop(end, most, now) for group, most in each)


class Delivery:
    """How what is due gets into a queue that may be full: as much as has room, half of it, …"""

    def __init__(self, room: Room, groups: list[GroupModel], now: int, wall: int) -> None:
        self._room = room
        self._groups = groups
        self._times = now, wall

    def run(self, due: list[Waiting], end: int) -> Iterator[tuple[int, Waiting]]:
        """What is delivered, and at which offset. Whoever takes it adds it to the queue."""
        while due:
            count, wall = len(due), self._times[1]
            living = [not is_expired(each.sent(end), wall) for each in due]
            while not self._room.admit(self._groups, end, sum(living[:count]), *self._times):
                if count == 1:
                    return
                count //= 2
            for each in due[:count]:
                yield end, each
                end += 1
            due = due[count:]


@dataclass
class StreamModel:
    """A stream that nobody has to read, so that its limits of retention alone count."""

    max_messages: int = 0
    max_bytes: int = 0
    max_age_ms: int = 0
    values: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # with their times
    start: int = 0

    @property
    def options(self) -> dict[str, object]:
        return {
            "max_length_messages": self.max_messages,
            "max_length_bytes": self.max_bytes,
            "max_age": f"{self.max_age_ms}ms",
        }

    def check_vacuum(self, start: int, sizes: list[tuple[int, int]], wall: int) -> None:
        """After a vacuum: no more has gone than may, and no segment is left that may go. `sizes`
        has the first offset of each segment, and its bytes."""
        assert start >= self.start
        gone = {o: each for o, each in self.values.items() if self.start <= o < start}
        kept = {o: each for o, each in self.values.items() if o >= start}
        self.start = start
        if gone:
            reasons = [
                bool(self.max_messages and len(kept) >= self.max_messages),
                bool(self.max_bytes and sum(size for _, size in sizes) >= self.max_bytes),
                bool(self.max_age_ms and all(wall - t > self.max_age_ms for _, t in gone.values())),
            ]
            assert any(reasons), f"deleted for no reason: {sorted(gone)}"
        for (base, size), (behind, _) in pairwise(sizes):
            rest = [o for o in kept if o >= behind]
            newest = max((kept[o][1] for o in kept if base <= o < behind), default=0)
            assert not (self.max_messages and len(rest) >= self.max_messages)
            assert not (self.max_bytes and sum(s for _, s in sizes) - size >= self.max_bytes)
            assert not (self.max_age_ms and wall - newest > self.max_age_ms)
            break  # the first one that has to stay keeps all others


def segments(log: QueueLog) -> list[tuple[int, int]]:
    """The first offset and the bytes of each segment that holds anything."""
    return [(extent.base, extent.size) for extent in log._observer.view().extents if extent.size]
