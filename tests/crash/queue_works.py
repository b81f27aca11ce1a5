"""What a process does to a queue before it is killed, and how somebody else looks at it afterwards.

Each message has places where it may be: `left` for the next consumer, `acked`, `dead`, or `gone`
because it was never published. While something is done to it, it may be in the old place or in the
new one; when that has returned, only in the new one. What is found is compared with that.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tailrace import Message, Queue, Store
from tests.crash.crowd import PATIENCE_S

__all__ = [
    "ACKED", "DEAD", "GONE", "GROUP", "LEFT", "OPTIONS", "OUT", "WORKS", "Process", "Survivor",
    "Told", "Work", "value_of",
]  # fmt: skip

LEFT, ACKED, DEAD, GONE = "left", "acked", "dead", "gone"
GROUP, OUT = "w", "out"
LEASE_S = 16.0

OPTIONS: dict[str, Any] = {
    "visibility_timeout": "16s",
    "retry": {"max_retries": 2, "initial_backoff": 0},
    "compact_after": 4,
}


class Told:
    """What a process was told. `flushed` are the messages that no power cut can take."""

    def __init__(self) -> None:
        self.places: dict[str, set[str]] = {}
        self.flushed: set[str] = set()
        self.deleted: str | None = None  # "group" or "queue", perhaps
        self.is_sure = False  # that it is deleted
        self.is_loose = False  # a power cut may have undone what was settled

    @contextlib.contextmanager
    def doing(self, values: Iterable[str], place: str) -> Iterator[None]:
        values = list(values)
        for value in values:
            self.places.setdefault(value, {GONE}).add(place)
        yield
        for value in values:
            self.places[value] = {place}

    def may_die(self, *values: str) -> None:
        """They are about to be delivered as often as they may be."""
        for value in values:
            self.places[value].add(DEAD)

    def loosen(self) -> None:
        """The power was cut, and nothing had been synced but by a flush."""
        self.is_loose = True
        for value, places in self.places.items():
            if places & {ACKED, DEAD}:
                places.add(LEFT)
            if DEAD in places or LEFT in places:
                places.add(DEAD)  # it may have been brought back from there
            if value not in self.flushed:
                places.add(GONE)


# --- what a process does ----------------------------------------------------------------------


class Process:
    """A store on a machine, and what its user is told."""

    def __init__(self, store: Store, told: Told, advance: Callable[[float], object]) -> None:
        """`advance` has time pass."""
        self.store = store
        self.told = told
        self.advance = advance

    @property
    def queue(self) -> Queue:
        return self.store.queue("q")

    def publish(self, *values: str) -> None:
        with self.told.doing(values, LEFT):
            self.queue.publish_many(values)

    def flush(self) -> None:
        self.queue.log.flush()
        self.told.flushed |= set(self.told.places)

    def receive(self, count: int, **options: Any) -> list[Message]:
        """Of those that it has got, the first ones."""
        with self.queue.consumer(GROUP, **options) as consumer:
            return consumer.receive(count)

    def ack(self, *messages: Message) -> None:
        with self.told.doing(map(value_of, messages), ACKED):
            if len(messages) == 1:
                messages[0].ack()
            else:
                self.queue.group(GROUP).ack(list(messages))

    def ack_with_output(self, message: Message) -> None:
        value = value_of(message)
        with self.told.doing([value], ACKED):
            message.ack(publish=[(f"$queue/{OUT}", f"from {value}")])

    def reject(self, message: Message) -> None:
        with self.told.doing([value_of(message)], DEAD):
            message.reject("bad")

    def nack(self, message: Message, *, is_last: bool = False) -> None:
        if not is_last:
            message.nack(error="why")
            return
        with self.told.doing([value_of(message)], DEAD):
            message.nack(error="why")

    def redrive(self) -> None:
        values = [value_of(message) for message in self.store.dead("q")]
        with self.told.doing(values, LEFT):
            self.store.redrive("q")

    def delete_group(self) -> None:
        self.told.deleted = "group"
        self.queue.delete_group(GROUP)
        self.told.is_sure = True

    def delete_queue(self) -> None:
        self.told.deleted = "queue"
        self.store.delete("q")
        self.told.is_sure = True

    def purge(self) -> None:
        with self.told.doing([v for v, p in self.told.places.items() if DEAD not in p], GONE):
            self.queue.purge()


def value_of(message: Message) -> str:
    assert message.value is not None
    return message.value.decode()


Work = Callable[[Process], None]


def claims(process: Process) -> None:
    process.receive(1)
    process.receive(3)
    process.receive(1, prefetch=3)


def acks(process: Process) -> None:
    first, *others = process.receive(4)
    process.ack(first)
    process.ack(*others)


def many_acks(process: Process) -> None:
    """There is a snapshot now and then."""
    for message in process.receive(6):
        process.ack(message)


def nacks(process: Process) -> None:
    """Until it was delivered as often as it may be; who is killed then has had it, too."""
    process.told.may_die("b", "c")
    for _ in range(3):
        for message in process.receive(2):
            process.nack(message, is_last=message.delivery_count > 2)


def releases(process: Process) -> None:
    first, *others = process.receive(3)
    first.extend(100)
    process.queue.group(GROUP).release(others)
    process.ack(first)


def rejects(process: Process) -> None:
    """The first one makes the queue of dead letters."""
    for message in process.receive(3):
        process.reject(message)


def times_out(process: Process) -> None:
    """Who claims it when it was delivered often enough buries it."""
    process.told.may_die(*"bcdefg")
    process.receive(2)
    for _ in range(5):
        process.advance(2 * LEASE_S)
        process.receive(1)  # who was with another for too long comes alone


def redrives(process: Process) -> None:
    first, second, third = process.receive(3)
    process.reject(first)
    process.reject(second)
    process.redrive()
    process.ack(third)
    for message in process.receive(8):
        process.ack(message)


def outputs(process: Process) -> None:
    for message in process.receive(3):
        process.ack_with_output(message)


def closes(process: Process) -> None:
    """The last one writes files for others, which the next one finds."""
    for _ in range(2):
        first, second = process.receive(2, prefetch=3)
        process.ack(first)
        second.release()
        process.queue.close()
    process.store.close()


def deletes_group(process: Process) -> None:
    first, *_others = process.receive(3)
    process.ack(first)
    process.delete_group()


def deletes_queue(process: Process) -> None:
    first, *_others = process.receive(3)
    process.ack(first)
    process.delete_queue()


def purges(process: Process) -> None:
    first, second, _third = process.receive(3)
    process.ack(first)
    process.reject(second)
    process.purge()
    process.publish("later")


def publishes(process: Process) -> None:
    process.publish("h")
    process.publish("i", "j")
    process.ack(*process.receive(4))


def opens(process: Process) -> None:
    """That is all, nearly."""
    process.receive(1)


WORKS: dict[str, Work] = {
    work.__name__.replace("_", "-"): work
    for work in (
        opens, publishes, claims, acks, many_acks, nacks, releases, rejects, times_out, redrives,
        outputs, closes, deletes_group, deletes_queue, purges,
    )
}  # fmt: skip


# --- afterwards -------------------------------------------------------------------------------


class Survivor:
    """Who comes afterwards, and whose disk is fine."""

    wait_s = 0.0  # for what a dead one had

    def __init__(self, told: Told) -> None:
        self.told = told

    def take_all(self, store: Store) -> tuple[list[str], list[str]]:
        """What is left, which is acked then, and what is dead."""
        queue = store.queue("q")
        has_output = OUT in [each.name for each in store.queues()]
        left = []
        until = time.monotonic() + PATIENCE_S
        with queue.consumer(GROUP) as consumer:
            while time.monotonic() < until:
                messages = consumer.receive(20, self.wait_s)
                left += [value_of(message) for message in messages]
                for message in messages if has_output else ():
                    message.ack(publish=[(f"$queue/{OUT}", f"from {value_of(message)}")])
                consumer.ack([message for message in messages if message.settled is None])
                if not messages and not (self.wait_s and queue.pending(GROUP)):
                    break
            assert not queue.pending(GROUP)
        dead = [value_of(message) for message in store.dead("q")]
        both = set(left) & set(dead)
        if both and not self.told.is_loose:
            dead = self._finish_redrive(store, both, dead)
        return left, dead

    def _finish_redrive(self, store: Store, both: set[str], dead: list[str]) -> list[str]:
        """Who brought them back was killed on the way. They don't come a second time; the others
        come now, and are acked; what is dead then."""
        assert all(self.told.places[value] >= {LEFT, DEAD} for value in both)
        store.redrive("q")
        with store.queue("q").consumer(GROUP) as consumer:
            messages = consumer.receive(20)
            assert sorted(map(value_of, messages)) == sorted(set(dead) - both)
            consumer.ack(messages)
        assert not store.dead("q")
        for value in set(dead) - both:
            self.told.places[value].add(ACKED)
        return []

    def compare(self, left: list[str], dead: list[str]) -> None:
        for word, values in ((LEFT, left), (DEAD, dead)):
            twice = [value for value, count in Counter(values).items() if count > 1]
            if (
                self.told.is_loose and word == LEFT
            ):  # it had come back, and that it was dead is lost
                twice = [value for value in twice if DEAD not in self.told.places[value]]
            assert not twice, f"{word} twice: {twice}"
        found = dict.fromkeys(dead, DEAD) | dict.fromkeys(left, LEFT)
        wrong = {
            value: (found.get(value, "nowhere"), sorted(places))
            for value, places in self.told.places.items()
            if found.get(value) not in places
            and not (value not in found and places & {ACKED, GONE})
        }
        assert not wrong, f"where it is, and where it may be: {wrong}"
        assert not set(found) - set(self.told.places), "nobody published it"

    def check_counts(self, store: Store, *, is_sync: bool) -> None:
        queue = store.queue("q")
        end = queue.log.end_offset
        (info,) = [info for info in queue.groups() if info.id == GROUP]
        assert (info.cursor, info.committed, info.pending, info.lag) == (end, end, 0, 0)
        assert [member for member in info.members if not member.alive] == []
        if not is_sync:
            return
        state = queue.group(GROUP).state
        if not queue.log.start_offset:
            records = sum(1 for _ in queue.log.read())
            assert state.acked + state.dead == records, "the group has lost count"
        if OUT in [each.name for each in store.queues()]:
            out = Counter(value_of(message) for message in store.queue(OUT).read())
            assert set(out.values()) <= {1}, "published twice"
            acked = [v for v, p in self.told.places.items() if v in "bcdefg" and ACKED in p]
            assert {f"from {value}" for value in acked} <= set(out)
