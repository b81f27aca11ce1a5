"""Waiters share a flush, and only those whose bytes it covered go on with it.

The threads here meet at events, in syncs that a plan holds open; no test depends on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import pytest

from tailrace import NotWritten, OutcomeUnknown
from tailrace.testing import (
    Call,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    Range,
    RecordingFileSystem,
    SimulatedDisk,
    assert_durable,
    problems,
)
from tests.crash.oracle import Oracle, scan
from tests.crash.workloads import append, make_batch
from tests.crash.world import open_log, placed_batches

PATIENCE_S = 30.0  # of a test that has gone wrong


@dataclass
class Gate:
    """A sync of a segment that stays under way until it is let go."""

    arrived: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        self.arrived.set()
        assert self.let_go.wait(PATIENCE_S)


class Gates:
    """A plan: the n-th sync of a segment goes through the n-th gate, later ones pass freely."""

    def __init__(self, count: int, fault: Callable[[int], Fault | None] = lambda n: None) -> None:
        self.gates = [Gate() for _ in range(count)]
        self.syncs = 0
        self._fault = fault
        self._guard = threading.Lock()

    def __call__(self, call: Call) -> Fault | None:
        if call.op != "sync" or not call.path.endswith(".seg"):
            return None
        with self._guard:
            n = self.syncs
            self.syncs += 1
        if n < len(self.gates):
            self.gates[n].pass_through()
        return self._fault(n)


def test_a_waiter_is_released_by_a_flush_that_covers_it() -> None:
    disk = SimulatedDisk()
    faulty = FaultyFileSystem(disk)
    fs = RecordingFileSystem(faulty)
    log = open_log(fs, segment_bytes=10_000)
    gates = Gates(2)
    faulty.plan = gates
    with ThreadPoolExecutor() as pool:
        first = log.append(make_batch())
        one = pool.submit(first.wait)
        assert gates.gates[0].arrived.wait(PATIENCE_S)
        second = log.append(make_batch())  # while the flush is under way
        two = pool.submit(second.wait)
        gates.gates[0].let_go.set()
        one.result(PATIENCE_S)
        fs.mark("first")
        assert gates.gates[1].arrived.wait(PATIENCE_S)
        assert not two.done()
        assert not second.done
        assert log.durable_offset == first.end_offset
        assert [r.offset for r in log.read()] == [0, 1], "a reader sees what is not durable"
        gates.gates[1].let_go.set()
        two.result(PATIENCE_S)
        fs.mark("second")
    assert gates.syncs == 2
    for label, batch in zip(("first", "second"), placed_batches(disk), strict=True):
        assert_durable(fs.trace, label, [Range(batch.path, batch.start, batch.end)])


def test_one_flush_serves_all_that_came_during_the_last() -> None:
    disk = SimulatedDisk()
    faulty = FaultyFileSystem(disk)
    log = open_log(faulty, segment_bytes=10_000)
    gates = Gates(1)
    faulty.plan = gates
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(log.append(make_batch()).wait)]
        assert gates.gates[0].arrived.wait(PATIENCE_S)
        receipts = [log.append(make_batch()) for _ in range(12)]
        waiting += [pool.submit(receipt.wait) for receipt in receipts]
        gates.gates[0].let_go.set()
        wait(waiting, PATIENCE_S)
    assert all(receipt.done for receipt in receipts)
    assert gates.syncs == 2


def test_a_timeout_leaves_the_append_as_it_is() -> None:
    faulty = FaultyFileSystem(SimulatedDisk())
    log = open_log(faulty, segment_bytes=10_000)
    gates = Gates(1)
    faulty.plan = gates
    with ThreadPoolExecutor() as pool:
        one = pool.submit(log.append(make_batch()).wait)
        assert gates.gates[0].arrived.wait(PATIENCE_S)
        second = log.append(make_batch())
        with pytest.raises(TimeoutError):
            second.wait(0.01)
        gates.gates[0].let_go.set()
        one.result(PATIENCE_S)
    assert second.wait().done


def test_a_failed_flush_fails_everybody_who_waits() -> None:
    """Those it covered and those behind it; and what was durable before stays."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    faulty = FaultyFileSystem(disk)
    log = open_log(faulty, segment_bytes=10_000)
    append(log, oracle)
    gates = Gates(1, lambda n: LoseDirty() if n == 0 else None)
    faulty.plan = gates
    with ThreadPoolExecutor(8) as pool:
        waiting: list[Future[object]] = [pool.submit(append, log, oracle)]
        assert gates.gates[0].arrived.wait(PATIENCE_S)
        receipts = [log.append(make_batch()) for _ in range(4)]
        waiting += [pool.submit(receipt.wait) for receipt in receipts]
        gates.gates[0].let_go.set()
        wait(waiting, PATIENCE_S)
    assert all(isinstance(future.exception(), OutcomeUnknown) for future in waiting)
    assert gates.syncs == 1, "a flush was tried again after it failed"
    with pytest.raises(NotWritten):
        log.append([b"more"])
    disk.evict()
    disk.kill()
    with open_log(disk) as log:
        assert len(scan(log).records) == 2
        assert log.durable_offset == log.end_offset


def test_a_roll_beside_a_failing_flush_proves_nothing() -> None:
    """The kernel reports a lost page once. A roll that syncs the same file between the failure and
    its report gets a success that means nothing."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    faulty = FaultyFileSystem(disk)
    log = open_log(faulty, segment_bytes=150)
    append(log, oracle)
    told = append(log, oracle, wait=False)
    lost, rolled = threading.Event(), threading.Event()
    guard = threading.Lock()
    syncs = 0

    def plan(call: Call) -> Fault | None:
        nonlocal syncs
        if call.op != "sync" or not call.path.endswith(".seg"):
            return None
        with guard:
            syncs += 1
            if syncs > 1:
                return None
        disk.open(call.path, write=True).lose_dirty()
        lost.set()
        rolled.wait(0.5)  # a roll may have to wait for this very flush: then there is no race
        return Fail()

    def roll() -> None:
        assert lost.wait(PATIENCE_S)
        try:
            append(log, oracle)
            oracle.promise(told, min(told.bases))  # it is below what was just promised
        except (NotWritten, OutcomeUnknown):
            assert log.durable_offset <= min(told.bases)
        finally:
            rolled.set()

    faulty.plan = plan
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(log.flush)
        rolling = pool.submit(roll)
        assert isinstance(failing.exception(PATIENCE_S), OutcomeUnknown)
        rolling.result(PATIENCE_S)
    disk.crash(1)
    with open_log(disk) as log:
        oracle.check(log)


def test_a_flush_without_syncs_at_rolls_misses_no_segment() -> None:
    """In the mode `none` segments are rolled unsynced; a flush that runs beside such rolls may call
    durable only what it has synced."""
    disk = SimulatedDisk()
    faulty = FaultyFileSystem(disk)
    fs = RecordingFileSystem(faulty)
    log = open_log(fs, flush="none", segment_bytes=100)
    for _ in range(3):
        log.append(make_batch())
    done = False

    def roll_meanwhile(call: Call) -> None:
        nonlocal done
        if call.op == "sync" and call.path.endswith(".seg") and not done:
            done = True
            with ThreadPoolExecutor() as pool:
                for _ in range(4):
                    pool.submit(log.append, make_batch()).result(PATIENCE_S)

    faulty.plan = roll_meanwhile
    log.flush()
    fs.mark("flushed")
    assert done
    ranges = [
        Range(batch.path, batch.start, batch.end)
        for batch in placed_batches(disk)
        if batch.offsets.stop <= log.durable_offset
    ]
    assert len(ranges) >= 3
    assert not problems(fs.trace, "flushed", ranges)
