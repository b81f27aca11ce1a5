"""Two or three handles on one simulated disk, one call at a time, and every end that they may have.

A handle stands for a process: it appends, waits, flushes, rolls, deletes, closes and opens again
between the others, dies at any of its calls while they go on, or goes with all of them in a power
cut. What the oracle was told by all of them together must be there afterwards.

Everything follows from a seed. A failing one says how to run it alone. `TAILRACE_SEEDS` sets how
many seeds a run takes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from tailrace import Log, Record, kernel
from tailrace.log import tail
from tailrace.log.commit import Receipt
from tailrace.log.sidefiles import StartOffset
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    Plan,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    at,
)
from tests.crash.oracle import Oracle, Told, scan
from tests.crash.world import CLOCK, NOW_MS, fates, open_log, side

BLOCKS = 8  # so that several processes can share the work
USUAL = "96" if kernel.IMPLEMENTATION == "compiled" else "48"
SEEDS = int(os.environ.get("TAILRACE_SEEDS", USUAL))
LONG = 250 * SEEDS

_SIZES = (8, 8, 30, 120, 400)


class Mortal(FaultyFileSystem):
    """The file system of one process among others.

    What a process has mapped it can change until it dies and not after; here it goes on for a
    while, through every handler on the way out. So what is mapped is put back as it was then.
    """

    def __init__(self, disk: SimulatedDisk, plan: Plan | None = None) -> None:
        super().__init__(disk, plan)
        self._disk = disk
        self._mapped: dict[str, bytes] = {}

    def _fail(self, call: Call, fault: Fail | Crash, do: Callable[[], object]) -> NoReturn:
        if isinstance(fault, Crash):
            self._mapped = {path: bytes(memory) for path, memory in self._disk._maps.items()}
        super()._fail(call, fault, do)

    def bury(self, log: Log | None) -> None:
        """What the kernel does for a dead process: its files and locks are closed."""
        if log is not None:
            log._closed = True
            log._observer.close()
            assert log._writer is not None
            log._writer.abandon()
        for path, memory in self._mapped.items():
            self._disk._maps[path][:] = memory


@dataclass
class Handle:
    """One process."""

    number: int
    fs: Mortal
    log: Log | None = None
    pending: list[tuple[Told, Receipt]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"  {'ABC'[self.number]}"


class Crew:
    """All of them, over all the lives of one log. `story` is what happened, for a person who looks
    for the bug."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.story: list[str] = []
        self.disk = SimulatedDisk(seed, strict_names=rng.random() < 0.7)
        self.oracle = Oracle(self.disk)
        self.mode = rng.choice(("sync", "sync", "async", "async", "none"))
        self._mortal = rng.random() < 0.6  # do single ones die?
        self._values = 0
        self._sequence = 0
        self._loose: list[tuple[Told, int]] = []  # idempotent batches whose fate is open
        # Where the next batch may go: who died may have left one that counts, or not.
        self._ends: set[int] = set()
        self._reader: Log | None = None
        self._options: dict[str, Any] = {
            "mode": "shared",
            "segment_bytes": rng.choice((200, 500, 2000, 10_000)),
            "index_interval": rng.choice((1, 100, 1000)),
            "compression": rng.choice(("none", "none", "s2")),
            "producer_expiry": "1000d",
        }
        CLOCK.now_ms = NOW_MS

    def run(self) -> None:
        with patch.object(tail, "_AHEAD", self.rng.choice((1 << 20, 60, 300, 1000))):
            for life in range(self.rng.randint(1, 3)):
                self._note(f"life {life}")
                self._live()
                self._end_all()
            self._note("the end: open, close, open")
            for _ in range(2):
                log = open_log(self.disk, **self._options)
                self.oracle.check(log)
                log.close()
            assert not self.disk.open_files(), "files stay open after a close"

    def _note(self, text: str) -> None:
        self.story.append(text)

    def _end_all(self) -> None:
        """Whoever is left goes without a word."""
        self._reader = None
        if self.rng.random() < 0.6:
            cut = self.rng.randrange(1 << 30)
            self._note(f"power cut {cut}")
            self.disk.crash(cut)
            if self.mode == "none":
                self.oracle.forget_unpromised()
        else:
            self._note("kill")
            self.disk.kill()

    # --- a life -----------------------------------------------------------------------------

    def _live(self) -> None:
        handles = [Handle(n, Mortal(self.disk)) for n in range(self.rng.choice((2, 2, 3)))]
        self._ends = set()
        for _ in range(self.rng.randint(5, 40)):
            CLOCK.tick(self.rng.choice((0, 0, 1, 5, 400)))
            handle = self.rng.choice(handles)
            try:
                if handle.log is None:
                    self._open(handle, self._plan())
                else:
                    self._step(handle, handle.log)
            except SimulatedCrash as crash:
                self._note(f"{handle} dies {crash}")
                handle.fs.bury(handle.log)
                handle.log = None
            if self.rng.random() < 0.05:
                self._look_from_outside()
        # In the end all of them are left to die together, in the middle of whatever they do.

    def _open(self, handle: Handle, plan: Plan | None) -> None:
        handle.pending = []
        handle.fs = Mortal(self.disk, plan)
        flush = self.rng.choice((None, self.mode, "sync"))
        if side("log.json") not in self.disk.files():
            flush = self.mode  # what the first one says, holds
        self._note(f"{handle} open {flush} of {self.mode}")
        handle.log = log = open_log(handle.fs, flush=flush, **self._options)
        self._ends = {log.end_offset}
        if self.rng.random() < 0.5:
            self._check(handle, log)

    def _plan(self) -> Plan | None:
        """A crash at some call."""
        rng = self.rng
        if not self._mortal or rng.random() < 0.4:
            return None
        n = rng.randrange(rng.choice((30, 60, 200)))
        crash: Fault = Crash(after=rng.random() < 0.5)
        if rng.random() < 0.5:
            torn = ShortWrite(rng.random(), Crash())
            return lambda call: (torn if call.op == "pwrite" else crash) if call.n == n else None
        return at(n, crash)

    def _look_from_outside(self) -> None:
        """Somebody reads, and keeps what it knows for the next look."""
        if self._reader is None:
            if side("log.json") not in self.disk.files():
                return
            self._reader = open_log(self.disk, read_only=True, **self._options)
        found = self.oracle.check(self._reader)
        self._note(f"observer: {found.start}..{found.end}, lost {found.lost}")

    # --- what is done in it -----------------------------------------------------------------

    def _step(self, handle: Handle, log: Log) -> None:
        dice = self.rng.random()
        if dice < 0.5:
            self._append(handle, log)
        elif dice < 0.62:
            self._append_once(handle, log)
        elif dice < 0.74:
            self._wait(handle)
        elif dice < 0.8:
            self._flush(handle, log)
        elif dice < 0.85:
            self._truncate(handle, log)
        elif dice < 0.9:
            self._vacuum(handle, log)
        elif dice < 0.95:
            self._check(handle, log)
        else:
            self._close(handle, log)
            return
        if dice < 0.9 and not 0.62 <= dice < 0.74:
            self._ends = {log.end_offset}  # it had the turn, and dealt with what others had left

    def _records(self, count: int) -> list[Record]:
        made = []
        for _ in range(count):
            self._values += 1
            value = (b"%d." % self._values).ljust(self.rng.choice(_SIZES), b".")
            made.append(Record(timestamp=CLOCK.now_ms, value=value))
        return made

    def _tell(self, handle: Handle, log: Log, records: list[Record]) -> Told:
        """Before an append: it goes to the end, wherever that is."""
        ends = self._ends | {log.end_offset}
        self._note(f"{handle} append {records[0].value!r:.12} x{len(records)} at {sorted(ends)}")
        for end in ends:
            told = self.oracle.tell(records, end)
        self._ends = ends | {end + len(records) for end in ends}
        return told

    def _append(self, handle: Handle, log: Log) -> None:
        records = self._records(self.rng.choice((1, 1, 1, 2, 3, 10)))
        told = self._tell(handle, log, records)
        if len(records) == 1:
            receipt = log.append_one(records[0].value, timestamp=records[0].timestamp)
        else:
            receipt = log.append(records)
        self._receive(handle, log, told, receipt)

    def _append_once(self, handle: Handle, log: Log) -> None:
        """With a producer id that moves from one process to the other."""
        if self._loose and self.rng.random() < 0.5:
            told, sequence = self._loose[-1]
            # One who died while it moved the start may have moved it, though nobody has noticed.
            start = max(log.start_offset, StartOffset(self.disk, "log").load())
            if told.promised_at is not None and told.promised_at < start:
                return  # deleted since: it may be forgotten, and then it is new again
            self._tell(handle, log, list(told.records))
        else:
            self._sequence += 1
            sequence = self._sequence
            told = self._tell(handle, log, self._records(self.rng.randint(1, 3)))
            self._loose.append((told, sequence))
        receipt = log.append(list(told.records), producer="p", sequence=sequence)
        if told.promised_at is not None:
            assert receipt.offset == told.promised_at, (
                f"{told.records[0]} is at {told.promised_at}, and again at {receipt.offset}"
            )
        self._receive(handle, log, told, receipt)

    def _receive(self, handle: Handle, log: Log, told: Told, receipt: Receipt) -> None:
        """The append is made. It may be waited for, later."""
        assert receipt.offset in told.bases or told.promised_at is not None
        if self.mode == "sync":
            handle.pending.append((told, receipt))
            return
        if self.mode == "async":
            self.oracle.hand_out(told, receipt.offset)
        if log.flush_mode == "sync":  # stricter than the log
            handle.pending.append((told, receipt))

    def _wait(self, handle: Handle) -> None:
        if handle.pending:
            told, receipt = handle.pending.pop(self.rng.randrange(len(handle.pending)))
            receipt.wait()
            self._note(f"{handle} durable at {receipt.offset}")
            self.oracle.promise(told, receipt.offset)

    def _flush(self, handle: Handle, log: Log) -> None:
        self._note(f"{handle} flush")
        log.flush()
        assert log.durable_offset >= log.end_offset
        self.oracle.promise_visible(log)

    def _truncate(self, handle: Handle, log: Log) -> None:
        offset = self.rng.randint(log.start_offset, log.end_offset)
        self._note(f"{handle} truncate before {offset}")
        self.oracle.allow_start(offset)
        log.truncate_before(offset)
        self.oracle.truncate(offset)

    def _vacuum(self, handle: Handle, log: Log) -> None:
        self._note(f"{handle} vacuum")
        report = log.vacuum()
        self._note(f"    {report}")
        self.oracle.truncate(report.start_offset)

    def _check(self, handle: Handle, log: Log) -> None:
        if len(self._ends) > 1:  # have it deal with what somebody left: it then knows the end
            log.truncate_before(log.start_offset)
            self._ends = {log.end_offset}
        found = self.oracle.check(log)
        self._note(f"{handle} {log!r}, lost {found.lost}")

    def _close(self, handle: Handle, log: Log) -> None:
        self._note(f"{handle} close")
        handle.log = None
        try:
            seen = list(self._told_of(log)) if self.mode != "none" else []
            log.close()
        except SimulatedCrash:
            handle.log = log
            raise
        for told, base in seen:
            self.oracle.promise(told, base)
        for told, receipt in handle.pending:
            assert receipt.done, f"{receipt} after a close"
            self.oracle.promise(told, receipt.offset)
        handle.pending = []

    def _told_of(self, log: Log) -> Iterator[tuple[Told, int]]:
        """What the log shows now, and where."""
        for seen in scan(log).records:
            told = self.oracle._by_value[seen.value]
            first = next(i for i, r in enumerate(told.records) if r.value == seen.value)
            yield told, seen.offset - first


# --- random lives -----------------------------------------------------------------------------


def run(seed: int) -> None:
    crew = Crew(seed)
    try:
        crew.run()
    except Exception as error:
        error.add_note("\n".join(["what happened:", *crew.story[-60:]]))
        error.add_note(
            f"replay: TAILRACE_SEED={seed} .venv/bin/python -m pytest "
            "tests/crash/test_two_writers.py -k replay"
        )
        raise


@pytest.mark.sample(2)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_writers_between_each_other(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        run(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_long_campaign(block: int) -> None:
    for seed in range(SEEDS + block, SEEDS + LONG, BLOCKS):
        run(seed)


@pytest.mark.skipif("TAILRACE_SEED" not in os.environ, reason="set TAILRACE_SEED to replay a seed")
def test_replay() -> None:
    run(int(os.environ["TAILRACE_SEED"]))


# --- one dies, the other goes on --------------------------------------------------------------


class Duo(Crew):
    """One who does a bit of everything, until it dies, beside one who does not."""

    def __init__(self, mode: str) -> None:
        super().__init__(seed=1)
        self.disk = SimulatedDisk()
        self.oracle = Oracle(self.disk)
        self.mode = mode
        self._options = {"mode": "shared"}
        self.survivor = Handle(0, Mortal(self.disk))
        self.victim = Handle(1, Mortal(self.disk))
        self._open(self.survivor, None)
        self._both(self.survivor)
        self._look_from_outside()

    def play(self, plan: Plan | None) -> None:
        victim = self.victim
        try:
            self._open(victim, plan)
            assert victim.log is not None
            for _ in range(2):
                self._both(victim)
                self._truncate(victim, victim.log)
                self._vacuum(victim, victim.log)
                self._flush(victim, victim.log)
            self._close(victim, victim.log)
        except SimulatedCrash as crash:
            self._note(f"{victim} dies {crash}")
            victim.fs.bury(victim.log)

    def go_on(self) -> None:
        """Nobody opens or closes anything, and everything works."""
        log = self.survivor.log
        assert log is not None
        self._both(self.survivor)
        self._check(self.survivor, log)
        self._look_from_outside()
        self._vacuum(self.survivor, log)
        self._flush(self.survivor, log)
        self._look_from_outside()

    def _both(self, handle: Handle) -> None:
        assert handle.log is not None
        for append in (self._append, self._append_once, self._append):
            append(handle, handle.log)
            self._ends = {handle.log.end_offset}
        while handle.pending:
            self._wait(handle)

    def check_fates(self, seeds: range) -> None:
        """And whatever comes then, it is there."""
        for name, fate in fates(seeds):
            disk = self.disk.clone()
            fate(disk)
            oracle = self.oracle.on(disk)
            if self.mode == "none" and name != "kill":
                oracle.forget_unpromised()
            log = open_log(disk, **self._options)
            try:
                oracle.check(log)
            except AssertionError as error:
                error.add_note(f"after {name}")
                raise
            log.close()


def kill_one_at_any_call(mode: str, fault: Fault, *, every: int = 1) -> None:
    counting = Duo(mode)
    counting.play(None)
    calls = [call for call in counting.victim.fs.calls if call.op == "pwrite"]
    if isinstance(fault, Crash):
        calls = counting.victim.fs.calls
    for call in calls[::every]:
        duo = Duo(mode)
        try:
            duo.play(at(call.n, fault))
            assert duo.victim.fs.hits == [call]
            if call.n % 4 == 0:
                duo.check_fates(range(1))  # it may be the end of both
            duo.go_on()
            duo.check_fates(range(call.n, call.n + 1))
        except Exception as error:
            error.add_note("\n".join(["what happened:", *duo.story]))
            error.add_note(f"with {fault} at {call}")
            raise


@pytest.mark.parametrize("fault", [Crash(), ShortWrite(0.5, Crash())], ids=["before", "torn"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_one_dies_at_any_call_and_the_other_goes_on(step: int, mode: str, fault: Fault) -> None:
    kill_one_at_any_call(mode, fault, every=2 * step if isinstance(fault, Crash) else step)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", ["sync", "async", "none"])
def test_one_dies_at_any_call_for_long(mode: str, after: bool) -> None:
    kill_one_at_any_call(mode, Crash(after=after))
