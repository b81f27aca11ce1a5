"""Whichever call fails, or is the last one of a process: a delayed message enters its queue once,
or was cancelled.

A program schedules, cancels and delivers, and goes on after an error. Each of its calls to the file
system fails once, or ends the process, in a run of its own; then perhaps the power is cut; then
another process, whose disk is fine, delivers what is left.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tailrace import Queue, Record, Store, TailraceError
from tailrace.queue.schedule import OP
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
)
from tests.queue.clocks import Machine
from tests.queue.delaying import Model, few_in_memory, values_of

ERRORS = (OSError, TailraceError)
FLUSHES = ["sync", "async", "none"]

Act = Callable[["Program"], None]


class Program:
    """What it was told is in the model."""

    def __init__(self, fs: FaultyFileSystem, machine: Machine, model: Model, flush: str) -> None:
        self.fs = fs
        self.machine = machine
        self.model = model
        self.flush = flush
        self.opened = 0  # calls

    def run(self, act: Act) -> None:
        with contextlib.suppress(*ERRORS):
            store = self.store = Store(
                "data", fs=self.fs, clock=self.machine.clock, upkeep=False, flush=self.flush
            )
            self.queue: Queue = store.queue("q")
            self.opened = len(self.fs.calls)
            act(self)
            store.close()

    @property
    def now_ms(self) -> int:
        return self.machine.clock.wall_ms()

    def publish(self, *delays: int) -> None:
        for delay in delays:
            with contextlib.suppress(*ERRORS):
                self.model.schedule(self.queue, self.now_ms + delay)

    def cancel(self, *numbers: int) -> None:
        known = sorted(self.model.ids, key=int)
        for number in numbers:
            if number < len(known):
                with contextlib.suppress(*ERRORS):
                    self.model.cancel(self.queue, known[number])

    def deliver(self, seconds: float) -> None:
        self.machine.clock.advance(seconds)
        for _ in range(2):
            with contextlib.suppress(*ERRORS):
                self.store.deliver_due()


def publishes(program: Program) -> None:
    program.publish(5_000, 1_000, 3_000, 1_000)


def floods(program: Program) -> None:
    """So much that who publishes sorts it away."""
    program.publish(*(1_000 * (1 + number % 5) for number in range(18)))


def delivers(program: Program) -> None:
    program.deliver(2)
    program.deliver(2)


def cancels(program: Program) -> None:
    program.cancel(0, 3, 9, 13, 3)


def merges(program: Program) -> None:
    for _ in range(12):
        with contextlib.suppress(*ERRORS):
            program.queue.delays.next_due()
            program.queue.delays.merge()
            program.queue.delays.tidy()


def purges(program: Program) -> None:
    """What was there may go; what comes after is there."""
    model = program.model
    model.doubtful |= set(model.due)
    with contextlib.suppress(*ERRORS):
        program.queue.purge()
        model.cancelled |= set(model.due)
    program.publish(1_000)


def lives(program: Program) -> None:
    program.publish(1_000, 500, 60_000)
    program.cancel(2, 7)
    program.deliver(1)
    program.publish(10, 20_000, 10)
    merges(program)
    program.cancel(11, 17)
    program.deliver(10)


ACTS: list[Act] = [publishes, floods, delivers, cancels, merges, purges, lives]


@functools.cache
def past(flush: str) -> tuple[Machine, Model]:
    """A machine on which somebody has used the queue before, and left quite something."""
    model = Model()
    with Machine() as machine, machine.open(flush=flush) as store:
        program = Program(FaultyFileSystem(machine.disk), machine, model, flush)
        program.store, program.queue = store, store.queue("q")
        rng = random.Random(0)
        for _ in range(4):
            program.publish(*(rng.choice((1_000, 2_500, 5_000, 90_000)) for _ in range(6)))
            program.queue.delayed_count()
        program.cancel(1, 8)
        program.deliver(1)
    return machine, model


@contextlib.contextmanager
def again(flush: str) -> Iterator[tuple[Machine, Model]]:
    """The same machine, to try another fate."""
    before, model = past(flush)
    with Machine() as machine:
        machine.disk, machine.clock = before.disk.clone(), copy.copy(before.clock)
        yield machine, copy.deepcopy(model)


def calls(act: Act, flush: str) -> list[Call]:
    """Those that the act makes."""
    with again(flush) as (machine, model):
        program = Program(FaultyFileSystem(machine.disk), machine, model, flush)
        program.run(act)
        return program.fs.calls[program.opened :]


def points(act: Act, flush: str, fault: Fault, stride: int) -> list[Call]:
    """Every `stride`-th call of those where the fault can be."""
    wanted = {ShortWrite: "pwrite", LoseDirty: "sync"}.get(type(fault))
    chosen = [call for call in calls(act, flush) if wanted in (None, call.op)]
    return chosen[zlib.crc32(f"{act.__name__}{fault}".encode()) % stride :: stride]


def go_on(machine: Machine, model: Model, flush: str, number: int, *, may_lose: bool) -> None:
    """Somebody comes later, whose disk is fine; and is killed, too, when everything is done. What
    is in the queue by then stays."""
    machine.clock.advance(200)
    fates: list[Callable[[], None]] = [machine.kill]
    if flush == "sync":
        fates.append(lambda: machine.power_cut(number))
    for fate in fates:
        store = machine.open()
        store.deliver_due()
        model.check_end(store, may_lose=may_lose)
        fate()
    with machine.open() as store:
        store.deliver_due()
        model.check_end(store, may_lose=may_lose)


def check(act: Act, flush: str, fault: Fault, stride: int) -> None:
    with few_in_memory():
        for call in points(act, flush, fault, stride):
            try:
                check_at(call, act, flush, fault)
            except BaseException as error:
                error.add_note(f"{flush}, {fault} at call {call.n}: {call.op} {call.path}")
                raise


def check_at(call: Call, act: Act, flush: str, fault: Fault) -> None:
    with again(flush) as (machine, model):
        fs = FaultyFileSystem(machine.disk, at(call.n, fault))
        with contextlib.suppress(SimulatedCrash):
            Program(fs, machine, model, flush).run(act)
        is_cut = flush != "none" and call.n % 2 == 1
        if is_cut:
            machine.power_cut(call.n)
        else:
            machine.kill()
        # An `async` queue promises what was flushed, and a flush that fails proves nothing.
        is_broken = call.op == "sync" and not isinstance(fault, Crash)
        may_lose = flush != "sync" and (is_cut or is_broken)
        if may_lose:
            model.doubtful |= model.cancelled
            model.cancelled.clear()
        go_on(machine, model, flush, call.n, may_lose=may_lose)


@pytest.mark.sample(3)
@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("fault", [Crash(), Crash(after=True), ShortWrite(then=Crash())], ids=str)
@pytest.mark.parametrize("act", ACTS[:-1], ids=lambda act: act.__name__)
def test_a_process_dies_at_any_call(act: Act, flush: str, fault: Fault) -> None:
    check(act, flush, fault, 41)


@pytest.mark.long
@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("fault", [Crash(), Crash(after=True), ShortWrite(then=Crash())], ids=str)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_process_dies_at_every_call(act: Act, flush: str, fault: Fault) -> None:
    check(act, flush, fault, 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize(
    "fault",
    [
        Fail(errno.EIO),
        Fail(errno.ENOSPC, after=True),
        ShortWrite(then=Fail(errno.ENOSPC)),
        ShortWrite(),
        LoseDirty(),
        Crash(),
    ],
    ids=str,
)
def test_any_call_fails(flush: str, fault: Fault) -> None:
    check(lives, flush, fault, 97)


# --- whole processes ----------------------------------------------------------------------------

_WORKER = """
import sys, tailrace
with tailrace.open(sys.argv[1]) as store:
    queue = store.queue("q")
    for line in sys.stdin:
        number = int(line)
        delayed = queue.publish(b"%d" % number, delay=number % 7 / 100)
        cancelled = number % 5 == 0 and queue.cancel(delayed.delay_id)
        print(number, int(cancelled), flush=True)
"""


def test_processes_are_killed_while_they_deliver(tmp_path: Path) -> None:
    """Several at a time, one of which is killed and replaced, again and again."""
    path, model = tmp_path / "data", Model()
    with contextlib.ExitStack() as stack:

        def start() -> Popen[str]:
            worker = Popen(
                [sys.executable, "-c", _WORKER, str(path)], stdin=PIPE, stdout=PIPE, text=True
            )
            stack.callback(worker.__exit__, None, None, None)
            stack.callback(worker.kill)
            return worker

        workers = [start() for _ in range(3)]
        for number in range(150):
            worker = workers[number % 3]
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{number}\n")
            worker.stdin.flush()
            told, cancelled = worker.stdout.readline().split()
            model.due[told.encode()] = 0
            if cancelled == "1":
                model.cancelled.add(told.encode())
            if number % 10 == 9:
                worker.send_signal(signal.SIGKILL)
                workers[number % 3] = start()
    with Store(path) as store:
        queue = store.queue("q")
        limit = time.monotonic() + 30
        while queue.delayed_count():
            assert time.monotonic() < limit
            time.sleep(0.01)
        model.check_end(store)
        assert len(values_of(queue)) >= 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_delayed_waits_for_no_disk_where_nothing_does(step: int, number: int) -> None:
    """A flush that fails takes a log back to its last good one, with the notes of what was
    delivered: after a kill that would come again."""
    fault = Fail(number, after=True)
    with few_in_memory():
        made = [call for call in calls(lives, "none") if "/incoming/" in call.path]
        assert {"open", "pwrite"} <= {call.op for call in made}
        assert not [call for call in made if call.op == "sync" and call.path.endswith(".seg")]
        for call in [call for call in made if call.path.endswith(".seg")][::step]:
            check_at(call, lives, "none", fault)


def test_a_power_cut_hides_nothing_that_is_published_after_it() -> None:
    """Offsets below that of the manifest are not looked at, and where nothing is flushed, the log
    may have to hand them out again."""
    late = [f"late {number}".encode() for number in range(3)]
    skipped = 0
    with few_in_memory():
        for call in after_manifests(calls(lives, "none")):
            with again("none") as (machine, model):
                fs = FaultyFileSystem(machine.disk, at(call.n, Crash()))
                with contextlib.suppress(SimulatedCrash):
                    Program(fs, machine, model, "none").run(lives)
                machine.power_cut(call.n)
                with machine.open(flush="none") as store:
                    queue = store.queue("q")
                    incoming = queue.delays.incoming
                    skipped += sum(is_skip(each) for each in incoming.read(incoming.start_offset))
                    for value in late:
                        queue.publish(value, delay=1)
                    machine.clock.advance(200)
                    store.deliver_due()
                    found = [value for value in values_of(queue) if value in late]
                    assert found == late, f"call {call.n}: {call.op} {call.path}"
    assert skipped  # or this test has lost its sense


def after_manifests(made: list[Call]) -> list[Call]:
    """Those before the log is told, too, where it starts."""
    chosen: list[Call] = []
    is_between = False
    for call in made:
        if call.op == "rename" and call.path.endswith("/schedule.json"):
            is_between = True
        elif call.op == "pwrite" and call.path.endswith("/incoming/.tailrace/start"):
            is_between = False
        elif is_between:
            chosen.append(call)
    return chosen


def is_skip(record: Record) -> bool:
    return (OP, b"skip") in record.headers.pairs
