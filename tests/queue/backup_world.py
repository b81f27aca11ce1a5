"""A store that is used while it is backed up, and what has to be in the backup then.

On a simulated disk, in one thread: each call that the backup makes to the file system may be the
moment at which somebody does something else. So a seed gives the same run again.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

from tailrace import Consumer, LeaseLost, Message, Queue, Store, restore_backup
from tailrace.queue.backup import BackupReport, backup
from tailrace.queue.delays import Delayed
from tailrace.queue.offline.verify import verify_store
from tailrace.testing import Call, Fault, FaultyFileSystem
from tests.queue.clocks import Machine, ManualClock

__all__ = ["World"]

QUEUE, OUT, STREAM, LATER = "q", "out", "s", "later"
GROUPS = ("w", "v")
OPTIONS: dict[str, Any] = {
    "visibility_timeout": "1h",
    "retry": {"max_retries": 5, "initial_backoff": 0},
    "compact_after": 5,
    "segment_bytes": 400,
}


class World:
    """Somebody who uses a store, and remembers what became of each message."""

    def __init__(self, machine: Machine, seed: int, flush: str) -> None:
        self.machine = machine
        self.random = random.Random(seed)
        self.store = machine.open()
        self.queue: Queue = self.store.queue(QUEUE, flush=flush, **OPTIONS)
        self.out: Queue = self.store.queue(OUT, flush=flush, **OPTIONS)
        self.stream = self.store.stream(STREAM, flush=flush, segment_bytes=400, compact_after=5)
        self.consumers: dict[str, Consumer] = {g: self.queue.consumer(g) for g in GROUPS}
        self.reader = self.stream.consumer("r", auto_commit=False)
        self.numbers = 0
        self.offsets: dict[bytes, int] = {}  # of what was published to the queue
        self.acked: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.dead: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.redriven: set[bytes] = set()
        self.made: set[bytes] = set()  # by whom something was published to the other queue
        self.taken: set[bytes] = set()  # and settled there
        self.later: Queue = self.store.queue(LATER, flush=flush, **OPTIONS)
        self.scheduled: dict[bytes, str] = {}  # by which id to cancel it
        self.cancelled: set[bytes] = set()
        self.streamed: dict[int, bytes] = {}
        self.committed = 0
        self.steps = 0

    # --- using it ---------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        often = {
            self.publish: 6,
            self.ack: 4,
            self.hand_on: 4,
            self.reject: 3,
            self.redrive: 1,
            self.vacuum: 4,
            self.use_stream: 3,
            self.come_and_go: 1,
            self.take_out: 2,
            self.restart_consumer: 1,
            self.schedule: 3,
        }
        if not self.is_held_still():
            often |= {self.cancel: 1, self.deliver: 2}
        [chosen] = self.random.choices(list(often), list(often.values()))
        chosen()

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            value = b"m%d" % self.numbers
            self.numbers += 1
            self.offsets[value] = self.queue.publish(value, headers={"pad": b"x" * 40}).offset

    def receive(self, group: str) -> list[Message]:
        return self.consumers[group].receive(self.random.randint(1, 5))

    def ack(self) -> None:
        group = self.random.choice(GROUPS)
        for message in self.receive(group):
            message.ack()
            self.acked[group].add(value_of(message))

    def hand_on(self) -> None:
        for message in self.receive("w"):
            value = value_of(message)
            message.ack(publish=[(self.out, b"of " + value)])
            self.made.add(value)
            self.acked["w"].add(value)

    def reject(self) -> None:
        group = self.random.choice(GROUPS)
        for message in self.receive(group)[:2]:
            message.reject("no")
            self.dead[group].add(value_of(message))

    def redrive(self) -> None:
        self.redriven |= {value_of(letter) for letter in self.store.dead(QUEUE)}
        self.store.redrive(QUEUE)

    def vacuum(self) -> None:
        """Let go of what all groups have settled."""
        for queue in (self.queue, self.out):
            floor = min((info.committed for info in queue.groups()), default=0)
            queue.log.truncate_before(max(floor, queue.log.start_offset))
            queue.log.vacuum()

    def take_out(self) -> None:
        with self.out.consumer("w") as consumer:
            for message in consumer.receive(self.random.randint(1, 10)):
                message.ack()
                self.taken.add(value_of(message))

    def use_stream(self) -> None:
        value = b"s%d" % self.numbers
        self.numbers += 1
        self.streamed[self.stream.publish(value).offset] = value
        if self.random.random() < 0.5:
            for message in self.reader.receive(3):
                self.committed = message.offset + 1
            self.reader.commit()

    def come_and_go(self) -> None:
        """Queues and groups that are made, and deleted."""
        name = f"t{self.random.randint(0, 1)}"
        if any(queue.name == name for queue in self.store.queues()):
            self.store.delete(name)
        else:
            queue = self.store.queue(name, flush="async")
            queue.publish_many([b"1", b"2"])
            with queue.consumer("g") as consumer:
                consumer.ack(consumer.receive(1))

    def schedule(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            value = b"d%d" % self.numbers
            self.numbers += 1
            receipt = self.later.publish(value, delay=self.random.randint(1, 30))
            assert isinstance(receipt, Delayed)
            self.scheduled[value] = receipt.delay_id

    def cancel(self) -> None:
        if self.scheduled:
            value = self.random.choice(list(self.scheduled))
            if self.later.cancel(self.scheduled[value]):
                self.cancelled.add(value)

    def deliver(self) -> None:
        self.machine.clock.advance(self.random.randint(0, 5))
        self.store.deliver_due()

    def is_held_still(self) -> bool:
        """Does the backup keep delayed messages from being delivered?"""
        folder = self.store.layout.delayed(self.later.incarnation)
        self.machine.disk.make_dirs(folder)
        lock = self.machine.disk.lock(f"{folder}/lock")
        try:
            return not lock.acquire(wait=False)
        finally:
            lock.close()

    def restart_consumer(self) -> None:
        group = self.random.choice(GROUPS)
        self.consumers[group].close()
        self.consumers[group] = self.queue.consumer(group)

    # --- the backup -------------------------------------------------------------------------

    def back_up(self, path: str, often: float) -> BackupReport:
        """Back up, and meanwhile go on, for some steps."""
        last = self.steps + self.random.randint(0, 60)

        def go_on(call: Call) -> Fault | None:
            # With the lock of a group nobody else can do anything.
            is_free = "/consumers" not in call.path
            if is_free and self.steps < last and self.random.random() < often:
                self.step()
            return None

        fs = FaultyFileSystem(self.machine.disk, go_on)
        return backup(fs, "data/queue", path, self.machine.clock)

    def back_up_and_check(self) -> None:
        for number in range(2):
            for _ in range(self.random.randint(0, 40)):
                self.step()
            before = self.snapshot()
            self.back_up(f"backup{number}", often=self.random.choice([0.02, 0.1, 0.5]))
            self.restore(f"backup{number}", f"restored{number}")
            self.check(f"restored{number}", before)

    def check(self, path: str, before: Snapshot) -> None:
        """A store that was restored has all that was there `before` the backup."""
        report = verify_store(self.machine.disk, f"{path}/queue")
        assert report.ok, report.problems
        with self.machine.open(path) as store:
            self._check_queue(store, before)
            self._check_stream(store, before)
            self._check_delayed(store, before)

    def _check_queue(self, store: Store, before: Snapshot) -> None:
        queue, out = store.get(QUEUE), store.get(OUT)
        assert isinstance(queue, Queue)
        records = list(queue.read())
        at = {message.offset: value_of(message) for message in records}
        for value, offset in self.offsets.items():
            if offset in at:
                assert at[offset] == value
            else:
                is_over = offset < queue.log.start_offset
                assert is_over or value not in before.published, f"{value!r} is missing"
        letters = Counter(
            (each.headers["_dlq_group"], each.headers["_dlq_original_offset"])
            for each in store.dead(QUEUE)
        )
        had = {(value_of(each), each.headers["_dlq_group"].decode()) for each in store.dead(QUEUE)}
        assert max(letters.values(), default=1) == 1, "a dead letter is there twice"
        handed_on = {value_of(message).removeprefix(b"of ") for message in out.read()}
        for group in GROUPS:
            delivered = self._drain(queue, group, out)
            assert set(delivered) <= set(self.offsets)
            for value, count in delivered.items():
                assert count == 1 or value in self.redriven, f"{value!r} comes {count} times"
            came_back = set(delivered) & before.acked[group] - self.redriven
            assert not came_back, f"settled for {group} before the backup: {came_back}"
            for value in before.published - set(delivered):
                is_letter = (value, group) in had
                assert value in self.acked[group] or is_letter, f"{value!r} is lost for {group}"
                if group == "w" and value in self.made and not is_letter:
                    is_there = value in handed_on or b"of " + value in self.taken
                    assert is_there, f"what comes of {value!r} is lost"
        made = Counter(value_of(message) for message in out.read())
        twice = {value for value, count in made.items() if count > 1}
        assert twice <= {b"of " + value for value in self.redriven}

    def _drain(self, queue: Queue, group: str, out: Any) -> Counter[bytes]:
        """Everything that a group gets, done as it was done before."""
        found: Counter[bytes] = Counter()
        with queue.consumer(group) as consumer:
            while messages := consumer.receive(10):
                for message in messages:
                    found[value_of(message)] += 1
                    message.ack(publish=[(out, b"of " + value_of(message))] if group == "w" else [])
        return found

    def _check_stream(self, store: Store, before: Snapshot) -> None:
        stream = store.stream(STREAM)
        values = {message.offset: value_of(message) for message in stream.read()}
        assert values.items() <= self.streamed.items()
        assert before.streamed <= set(values)
        [info] = stream.groups()
        assert before.committed <= info.committed <= max(values, default=-1) + 1

    def _check_delayed(self, store: Store, before: Snapshot) -> None:
        """When everything is due, each is there once."""
        clock = ManualClock()
        clock.advance(1_000_000)
        store.close()
        with Store(store.path, fs=self.machine.disk, clock=clock, upkeep=False) as again:
            again.deliver_due()
            found = Counter(value_of(message) for message in again.get(LATER).read())
        assert max(found.values(), default=1) == 1, "delivered twice"
        assert set(found) <= set(self.scheduled) - before.cancelled
        assert before.scheduled - self.cancelled <= set(found), "a delayed message is lost"

    def snapshot(self) -> Snapshot:
        return Snapshot(self)

    def close(self) -> None:
        for consumer in self.consumers.values():
            with contextlib.suppress(LeaseLost):
                consumer.close()
        self.reader.close()
        self.store.close()

    def restore(self, source: str, target: str) -> None:
        restore_backup(source, target, fs=self.machine.disk)


class Snapshot:
    """What a world knows at one moment."""

    def __init__(self, world: World) -> None:
        self.published = set(world.offsets)
        self.acked = {group: set(values) for group, values in world.acked.items()}
        self.streamed = set(world.streamed)
        self.committed = world.committed
        self.scheduled = set(world.scheduled)
        self.cancelled = set(world.cancelled)


def value_of(message: Message) -> bytes:
    assert message.value is not None
    return message.value
