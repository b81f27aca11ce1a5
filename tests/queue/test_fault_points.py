"""Whichever call fails, or is the last one of a process: no message is lost, none has two owners.

A program does with a queue what programs do, and goes on after an error. Each of its calls to the
file system fails once, in a run of its own; then another process, whose disk is fine, looks at what
is there.
"""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailrace import Message, Store, TailraceError
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    ShortWrite,
    SimulatedCrash,
    at,
    on,
)
from tests.queue.clocks import Machine

pytestmark = pytest.mark.no_cover

OPTIONS: dict[str, Any] = {
    "visibility_timeout": "16s",
    "retry": {"max_retries": 1, "initial_backoff": 0},
    "compact_after": 3,
}
ERRORS = (OSError, TailraceError)


class Program:
    """What it was told: which messages are in the queue, which it holds, and how others ended."""

    def __init__(self, fs: FaultyFileSystem, machine: Machine) -> None:
        self.fs = fs
        self.machine = machine
        self.published: set[bytes] = set()
        self.held: dict[bytes, Message] = {}
        self.acked: set[bytes] = set()
        self.rejected: set[bytes] = set()
        self.doubtful: set[bytes] = set()  # an error told of it: anything may have become of it
        self.numbers = 0
        self.fails_at = 0  # which call

    def run(self) -> None:
        with contextlib.suppress(*ERRORS):
            store = Store("data", fs=self.fs, clock=self.machine.clock, upkeep=False, **OPTIONS)
            try:
                self.use(store)
            finally:
                self.held.clear()
                store.close()

    def use(self, store: Store) -> None:
        queue = store.queue("q")
        with contextlib.suppress(*ERRORS):
            store.reserve.fill()
        for count in (3, 3):
            with contextlib.suppress(*ERRORS):
                self.publish(queue, count)
        with contextlib.suppress(*ERRORS):
            self.publish_later(queue)
            store.deliver_due()
        for settle in (self.release, self.ack, self.nack, self.reject):
            with contextlib.suppress(*ERRORS), queue.consumer("w", prefetch=2) as consumer:
                for message in consumer.receive(1) + consumer.receive(2):
                    assert message.value is not None
                    self.held[message.value] = message
                    self.look_from_outside()
                    with contextlib.suppress(*ERRORS):
                        settle(message)
        with contextlib.suppress(*ERRORS):
            store.redrive("q")
        with contextlib.suppress(*ERRORS):
            queue.vacuum()
        with contextlib.suppress(*ERRORS):
            store.reserve.spend()

    def publish(self, queue: Any, count: int) -> None:
        values = [b"%d" % (self.numbers + number) for number in range(count)]
        self.numbers += count
        self.doubtful |= set(values)
        queue.publish_many(values)
        self.doubtful -= set(values)
        self.published |= set(values)

    def publish_later(self, queue: Any) -> None:
        value = b"%d" % self.numbers
        self.numbers += 1
        self.doubtful.add(value)
        queue.publish(value, delay=0)
        self.doubtful.remove(value)
        self.published.add(value)

    def look_from_outside(self) -> None:
        """Somebody else gets nothing that we hold."""

    @contextlib.contextmanager
    def settling(self, message: Message) -> Iterator[bytes]:
        value = message.value
        assert value is not None
        del self.held[value]
        self.doubtful.add(value)
        yield value
        self.doubtful.discard(value)
        self.go_on()

    def go_on(self) -> None:
        """Something was settled, and returned."""

    def ack(self, message: Message) -> None:
        with self.settling(message) as value:
            message.ack()
            self.acked.add(value)

    def nack(self, message: Message) -> None:
        with self.settling(message):
            message.nack(error="why")

    def reject(self, message: Message) -> None:
        with self.settling(message) as value:
            message.reject("bad")
            self.rejected.add(value)

    def release(self, message: Message) -> None:
        with self.settling(message):
            message.release()


class Nosy(Program):
    def look_from_outside(self) -> None:
        with self.machine.open(**OPTIONS) as other, other.queue("q").consumer("w") as consumer:
            found = consumer.receive(20)
            both = {message.value for message in found} & set(self.held)
            consumer.release(found)
            assert not both, f"two have {both}"


class Abrupt(Program):
    """Does nothing more once a call has failed, and what was asked for has returned all the same:
    whatever comes later would make durable what should have been."""

    def go_on(self) -> None:
        if len(self.fs.calls) > self.fails_at:
            self.fs.plan = lambda call: Crash()


def look(machine: Machine, program: Program) -> None:
    """What is there, for somebody who comes afterwards and whose disk is fine: each message that is
    not settled, and each dead letter, once."""
    machine.clock.advance(3600)
    with machine.open(**OPTIONS) as store:
        store.deliver_due()
        queue = store.queue("q")
        dead = [message.value for message in store.dead("q")]
        left = []
        with queue.consumer("w") as consumer:
            # What was on its way to the dead letters arrives there when somebody looks.
            while (messages := consumer.receive(20)) or store.redrive("q"):
                left += [message.value for message in messages]
                consumer.ack(messages)
    assert len(dead) == len(set(dead))
    assert len(left) == len(set(left)), "the same message came twice"
    lost = program.published - program.acked - program.doubtful - set(left)
    assert not lost, f"lost: {lost}"
    undone = (program.acked - program.doubtful) & set(left)
    assert not undone, f"acknowledged, and delivered again: {undone}"
    assert program.rejected <= set(left)


def calls() -> list[Call]:
    with Machine() as machine:
        fs = FaultyFileSystem(machine.disk)
        Program(fs, machine).run()
        return fs.calls


def runs(
    fault: Fault, stride: int, kind: type[Program] = Program
) -> Iterator[tuple[Machine, Program]]:
    """With the fault at every `stride`-th call where it can be."""
    wanted = {ShortWrite: "pwrite", LoseDirty: "sync"}.get(type(fault))
    chosen = [call for call in calls() if wanted in (None, call.op)]
    for call in chosen[zlib.crc32(str(fault).encode()) % stride :: stride]:
        with Machine() as machine:
            program = kind(FaultyFileSystem(machine.disk, at(call.n, fault)), machine)
            program.fails_at = call.n
            try:
                with contextlib.suppress(SimulatedCrash):
                    program.run()
                yield machine, program
            except BaseException as error:
                error.add_note(f"with {fault} at call {call.n}: {call.op} {call.path}")
                raise


def check(fault: Fault, stride: int) -> None:
    fates: list[Callable[[Machine], None]] = [Machine.kill, _cut(1), _cut(2)]
    for number, (machine, program) in enumerate(runs(fault, stride)):
        fates[number % len(fates)](machine)
        look(machine, program)


def _cut(seed: int) -> Callable[[Machine], None]:
    return lambda machine: machine.power_cut(seed)


FAULTS: list[Fault] = [
    Fail(errno.EIO),
    Fail(errno.ENOSPC, after=True),
    ShortWrite(then=Fail(errno.ENOSPC)),
    ShortWrite(),
    LoseDirty(),
    Crash(),
    Crash(after=True),
    ShortWrite(then=Crash()),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_no_message_is_lost_and_no_acknowledgement_undone(fault: Fault) -> None:
    check(fault, 61)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_no_message_is_lost_and_no_acknowledgement_undone_at_any_call(fault: Fault) -> None:
    check(fault, 1)


@pytest.mark.parametrize("stride", [31, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", [Fail(errno.EIO), Fail(errno.EIO, after=True)], ids=str)
def test_what_returned_is_durable_whichever_call_has_failed(stride: int, fault: Fault) -> None:
    for seed, (machine, program) in enumerate(runs(fault, stride, Abrupt)):
        machine.power_cut(seed)
        look(machine, program)


@pytest.mark.parametrize("fault", [Fail(errno.EIO), Fail(errno.EIO, after=True)], ids=str)
@pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.long)])
def test_nobody_else_gets_what_is_held_whichever_call_fails(stride: int, fault: Fault) -> None:
    for machine, program in runs(fault, stride, Nosy):
        machine.kill()
        look(machine, program)


@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.parametrize("nth", range(4))
def test_a_read_that_fails_skips_nothing(machine: Machine, kind: str, nth: int) -> None:
    """What was being read then does not count as read: the group goes on where it was."""
    store, fs = machine.open_faulty(segment_bytes=300)
    queue = store.queue("q") if kind == "queue" else store.stream("q")
    for number in range(20):
        queue.publish(b"%d" % number)
    consumer = queue.consumer("w")
    found: list[bytes | None] = []
    fs.plan = on("pread", Fail(errno.EIO), path="*.seg", nth=nth)
    for _ in range(30):
        with contextlib.suppress(OSError):
            found += [message.value for message in consumer.receive(3)]
    assert found == [b"%d" % number for number in range(20)]
