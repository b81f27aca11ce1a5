"""A process is killed at its calls to the file system while it uses a queue, or the power is cut
there; then another one goes on (`queue_works.py`).

When that one has settled everything, the power is cut once more, and nothing may come back.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from tailrace import Closed, LeaseLost, Message, Store
from tailrace.log.fs import FileLock
from tailrace.testing import (
    Call,
    Crash,
    Fault,
    FaultyFileSystem,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    at,
    on,
)
from tests.crash.queue_works import (
    GROUP,
    LEFT,
    OPTIONS,
    WORKS,
    Process,
    Survivor,
    Told,
    Work,
    opens,
    value_of,
)
from tests.queue.clocks import Machine, ManualClock

LOOKS = ("open", "pread", "pread_into", "size", "list", "stat")

# --- machines ---------------------------------------------------------------------------------


@dataclass
class Past:
    """A machine on which somebody has used the queue before, and was killed or not."""

    disk: SimulatedDisk
    clock: ManualClock
    told: Told

    @classmethod
    def make(cls, flush: str, *, closed: bool) -> Past:
        told = Told()
        with Machine() as machine:
            store = machine.open(flush=flush, **OPTIONS)
            process = Process(store, told, machine.clock.advance)
            process.publish("a", "b", "c")
            process.publish(*"defg")
            process.flush()
            first, second = process.receive(2)
            process.ack(first)
            process.nack(second)
            if closed:
                store.close()
            machine.kill()
        return cls(machine.disk, machine.clock, told)

    @contextlib.contextmanager
    def again(self) -> Iterator[tuple[Machine, Told]]:
        with Machine() as machine:
            machine.disk, machine.clock = self.disk.clone(), copy.copy(self.clock)
            yield machine, copy.deepcopy(self.told)


def perform(work: Work, fs: FaultyFileSystem, machine: Machine, told: Told) -> int:
    """Returns how many calls it took to open everything."""
    store = Store("data", fs=fs, clock=machine.clock, upkeep=False)
    process = Process(store, told, machine.clock.advance)
    process.queue.group(GROUP)
    opened = len(fs.calls)
    work(process)
    return opened


def points(past: Past, work: Work) -> list[Call]:
    """The calls of the work that change something, or may: to die before one that only looks is the
    same as to die before the next."""
    with past.again() as (machine, told):
        fs = FaultyFileSystem(machine.disk)
        opened = perform(work, fs, machine, told)
        machine.kill()
    if work is opens:
        opened = 0
    looked: set[str] = set()
    chosen = []
    for call in fs.calls[opened:]:
        is_new = call.op == "open" and call.path not in looked
        if is_new or call.op not in LOOKS:
            looked.add(call.path)
            chosen.append(call)
    return chosen


def die_at(past: Past, work: Work, flush: str, call: Call, fault: Fault, number: int) -> None:
    """Die there; have others go on. The number decides how, and what the disk keeps."""
    with past.again() as (machine, told):
        fs = FaultyFileSystem(machine.disk, at(call.n, fault))
        with contextlib.suppress(SimulatedCrash):
            perform(work, fs, machine, told)
        if number % 2:
            machine.power_cut(number)
            if flush != "sync":
                told.loosen()
        else:
            machine.kill()
        machine.clock.advance(3600)
        MachineSurvivor(machine, told, flush, number).go_on()


class MachineSurvivor(Survivor):
    """On a simulated disk, with another power cut. `number` decides what is up to chance."""

    def __init__(self, machine: Machine, told: Told, flush: str, number: int) -> None:
        super().__init__(told)
        self._machine = machine
        self._flush = flush
        self._rng = random.Random(number)

    def go_on(self) -> None:
        told, store = self.told, self._machine.open()
        is_there = "q" in [queue.name for queue in store.queues()]
        if told.deleted == "queue":
            assert not (is_there and told.is_sure), "it is deleted, and still there"
            if not is_there:
                self._check_anew(store)
                return
        assert is_there, "the queue is gone"
        if self._rng.random() < 0.7:  # else it soon writes a snapshot, which is another beginning
            store.configure("q", compact_after=1000)
        if told.deleted == "group" and told.is_sure:
            assert GROUP not in store.get("q").group_ids(), "it is deleted, and still there"
        left, dead = self.take_all(store)
        if told.deleted == "group" and (told.is_sure or "a" in left):
            told.places = {value: {LEFT} for value in told.places}  # it began anew
        self.compare(left, dead)
        self.check_counts(store, is_sync=self._flush == "sync")
        if self._rng.random() < 0.3:
            store.close()
        if self._flush == "sync":
            self._machine.power_cut(self._rng.randrange(1 << 30))
        else:
            self._machine.kill()
        self._machine.clock.advance(3600)
        # Nobody was told what became of these, so the power cut may still undo it.
        in_doubt = {value for value, places in told.places.items() if len(places) > 1}
        with self._machine.open() as store:
            again, dead_now = self.take_all(store)
            assert set(again) <= in_doubt - set(left), f"acked, and delivered again: {again}"
            assert set(dead_now) ^ set(dead) <= in_doubt, f"dead are {dead_now}, and were {dead}"
            assert len(dead_now) == len(set(dead_now))

    def _check_anew(self, store: Store) -> None:
        """One of the same name has nothing of the one that was deleted."""
        queue = store.queue("q")
        assert not len(queue)
        assert not queue.group_ids()
        queue.publish("new")
        with queue.consumer(GROUP) as consumer:
            assert [value_of(message) for message in consumer.receive(5)] == ["new"]
        store.close()


def one_of_each(tries: list[tuple[Call, Fault]], most: int) -> list[tuple[Call, Fault]]:
    """One of each kind, and further ones."""
    kinds: set[tuple[str, str, Fault]] = set()
    first: list[tuple[Call, Fault]] = []
    others: list[tuple[Call, Fault]] = []
    for call, fault in tries:
        name = re.sub(r"[0-9a-f]{16}|\d+", "*", os.path.basename(call.path))
        kind = (call.op, name, fault)
        (others if kind in kinds else first).append((call, fault))
        kinds.add(kind)
    return (first + others)[:most]


def die_at_some(
    work: Work, flush: str, *, closed: bool, most: int | None, seeds: Iterable[int] = (0,)
) -> None:
    """At every call, or at so many: one of each kind, and others by chance."""
    past = Past.make(flush, closed=closed)
    calls = points(past, work)
    for seed in seeds:
        rng = random.Random(seed)
        tries: list[tuple[Call, Fault]] = [(call, Crash()) for call in calls]
        tries += [(call, ShortWrite(0.6, Crash())) for call in calls if call.op == "pwrite"]
        if most is not None:
            tries = one_of_each(rng.sample(tries, len(tries)), most)
        for call, fault in tries:
            number = rng.randrange(1 << 30)
            try:
                die_at(past, work, flush, call, fault, number)
            except BaseException as error:
                error.add_note(
                    f"with {fault} at call {call.n} ({call.op} {call.path}), number {number}"
                )
                raise


@pytest.mark.sample(2)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("name", WORKS)
def test_a_queue_outlives_a_death_at_some_calls(name: str, flush: str) -> None:
    die_at_some(WORKS[name], flush, closed=len(name) % 2 == 0, most=18)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("name", WORKS)
def test_a_queue_outlives_a_death_at_any_call(name: str, flush: str, closed: bool) -> None:
    die_at_some(WORKS[name], flush, closed=closed, most=None, seeds=range(6))


# --- what was found ---------------------------------------------------------------------------


def ack_each(messages: list[Message]) -> None:
    for message in messages:
        message.ack()


def test_an_ack_is_durable_in_a_journal_whose_name_its_maker_did_not_live_to_sync() -> None:
    """The journal was replaced, and whoever did that was killed before it was durable."""
    for seed in range(8):
        with Machine() as machine:
            store, fs = machine.open_faulty(**OPTIONS)
            queue = store.queue("q")
            queue.publish_many(list("abcdefgh"))
            with queue.consumer(GROUP) as consumer:
                messages = consumer.receive(4)
            fs.plan = on("rename", Crash(after=True), path="*/ops.log")
            with pytest.raises(SimulatedCrash):
                ack_each(messages)
            machine.kill()
            machine.clock.advance(3600)
            other = machine.open()
            other.configure("q", compact_after=1000)
            with other.queue("q").consumer(GROUP) as consumer:
                acked = consumer.receive(8)
                consumer.ack(acked)
            machine.power_cut(seed)
            with machine.open() as last, last.queue("q").consumer(GROUP) as consumer:
                again = consumer.receive(20)
            assert not {m.offset for m in acked} & {m.offset for m in again}, f"seed {seed}"


@pytest.mark.parametrize("compact_after", [1, 4, 1000])
def test_whoever_has_a_group_open_that_was_deleted_and_made_anew_is_told_so(
    compact_after: int,
) -> None:
    """It had not looked for so long that the journal it knows may be replaced before that, too."""
    with Machine() as machine:
        options = {**OPTIONS, "compact_after": compact_after}
        idle, busy = machine.open(**options), machine.open(**options)
        idle.queue("q").publish_many(list("abcdefgh"))
        sleeper = idle.queue("q").consumer(GROUP)
        (held,) = sleeper.receive(1)
        with busy.queue("q").consumer(GROUP) as consumer:
            for message in consumer.receive(7):
                message.ack()
        busy.queue("q").delete_group(GROUP)
        with busy.queue("q").consumer(GROUP) as consumer:
            (new,) = consumer.receive(1)
            with pytest.raises((Closed, LeaseLost)):
                held.ack()
            new.ack()
            with pytest.raises(Closed):
                sleeper.receive(1)
        idle.close()
        busy.close()


def test_a_handle_of_a_queue_that_was_deleted_leaves_its_successor_alone() -> None:
    with Machine() as machine:
        old, new = machine.open(**OPTIONS), machine.open(**OPTIONS)
        old.queue("q").publish_many(list("abcdefgh"))
        consumer = old.queue("q").consumer(GROUP)
        messages = consumer.receive(8)
        consumer.ack(messages[:5])
        new.delete("q")
        new.queue("q").publish_many(list("uvwxyz"))
        with new.queue("q").consumer(GROUP) as other:
            other.ack(other.receive(1))
        new.close()
        with pytest.raises((Closed, LeaseLost)):
            consumer.ack(messages[5:])
        old.close()
        with machine.open() as store, store.queue("q").consumer(GROUP) as other:
            assert list(map(value_of, other.receive(20))) == list("vwxyz")


class Interrupted(FaultyFileSystem):
    """Something happens between making a file by which others know us, and locking it."""

    def __init__(self, inner: SimulatedDisk, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._happens: Callable[[], None] | None = happens

    def lock(self, path: str) -> FileLock:
        lock = super().lock(path)
        if "/alive-" in path and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return lock


def test_who_is_about_to_open_a_group_is_not_taken_for_dead() -> None:
    def open_elsewhere() -> None:
        with machine.open() as other:
            other.queue("q").group(GROUP)

    def look() -> None:
        elsewhere.start()
        elsewhere.join(0.3)  # it may do so now, or have to wait for us

    elsewhere = threading.Thread(target=open_elsewhere)
    with Machine() as machine:
        with machine.open(**OPTIONS) as store:
            store.queue("q").publish_many(["a", "b"])
        fs = Interrupted(machine.disk, look)
        with Store("data", fs=fs, clock=machine.clock, upkeep=False) as store:
            consumer = store.queue("q").consumer(GROUP)
            (held,) = consumer.receive(1)
            with machine.open() as other, other.queue("q").consumer(GROUP) as another:
                assert [message.offset for message in another.receive(5)] == [1], "two have it"
            held.ack()
        elsewhere.join(60)


def test_a_commit_covers_what_came_back_from_another_and_what_came_before_that() -> None:
    with Machine() as machine, machine.open() as one, machine.open() as other:
        one.stream("s").publish_many([str(number) for number in range(8)])
        leaver = one.stream("s").consumer("g", auto_commit=False)
        with other.stream("s").consumer("g", auto_commit=False) as consumer:
            assert len(leaver.receive(4)) == len(consumer.receive(4)) == 4
            leaver.close()
            assert [message.offset for message in consumer.receive(4)] == [0, 1, 2, 3]
            consumer.commit()
            assert consumer.committed == 8
