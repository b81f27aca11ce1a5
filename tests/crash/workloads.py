"""What a log does to its files, one deed at a time, for faults to be put into the middle of it.

A `Workload` is a disk as some past left it, and a deed done on it. The deed tells the oracle what
was promised, so that whatever the fault leaves can be checked.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tailrace import Log, NotWritten, OutcomeUnknown, Record
from tailrace.log.fs import FileSystem
from tailrace.testing import Crash, FaultyFileSystem, LoseDirty, SimulatedDisk, on
from tests.crash.oracle import Oracle, Told
from tests.crash.world import (
    CLOCK,
    NOW_MS,
    cut,
    flip,
    open_log,
    placed_batches,
    reboot,
    run_until_crash,
    settle,
    side,
)

Deed = Callable[[FileSystem, Oracle], object]


@dataclass(frozen=True)
class Workload:
    """`past` makes the disk; `deed` is what is under test; `flush` is the log's mode."""

    name: str
    flush: str
    past: Callable[[SimulatedDisk, Oracle, str], object]
    deed: Deed

    def prepare(self) -> tuple[SimulatedDisk, Oracle]:
        disk = SimulatedDisk()
        oracle = Oracle(disk)
        self.past(disk, oracle, self.flush)
        disk.kill()
        return disk, oracle

    def do(self, fs: FileSystem, oracle: Oracle) -> None:
        """The deed, at a time of its own: it makes the same calls each time."""
        CLOCK.now_ms = NOW_MS + 1000
        self.deed(fs, oracle)

    def __str__(self) -> str:
        return f"{self.name}-{self.flush}"


# --- what is told and promised --------------------------------------------------------------

_count = 0


def make_batch(size: int = 2) -> list[Record]:
    """Records that no other test has seen."""
    global _count
    _count += 1
    stamp = CLOCK.tick()
    return [Record(timestamp=stamp, value=b"%06d.%d" % (_count, k)) for k in range(size)]


def append(log: Log, oracle: Oracle, *, wait: bool = True, **once: Any) -> Told:
    """Append a batch, and tell the oracle what came of it."""
    return append_batch(log, oracle, make_batch(), wait=wait, **once)


def append_batch(
    log: Log, oracle: Oracle, batch: list[Record], *, wait: bool = True, **once: Any
) -> Told:
    told = oracle.tell(batch, log.end_offset)
    try:
        receipt = log.append(batch, **once)
    except NotWritten:
        oracle.refuse(told)
        raise
    if log.flush_mode == "async":
        oracle.hand_out(told, receipt.offset)
    elif wait and log.flush_mode == "sync":
        receipt.wait()
        oracle.promise(told, receipt.offset)
    return told


def flush(log: Log, oracle: Oracle) -> None:
    log.flush()
    oracle.promise_visible(log)


# --- pasts ----------------------------------------------------------------------------------


def nothing(disk: SimulatedDisk, oracle: Oracle, flush: str) -> None:
    """A disk on which there was never a log."""


def some_segments(disk: SimulatedDisk, oracle: Oracle, mode: str) -> Log:
    """Three segments, the last one with room for a batch, and the process killed."""
    log = open_log(disk, flush=mode, segment_bytes=200)
    for _ in range(7):
        append(log, oracle)
    flush(log, oracle)
    return log


def closed(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    some_segments(disk, oracle, mode).close()


def large_batches(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """More than is read at once when a read begins."""
    log = open_log(disk, flush=mode, segment_bytes=100_000)
    for number in range(4):
        record = Record(timestamp=CLOCK.tick(), value=b"large %d".ljust(9_000) % number)
        append_batch(log, oracle, [record])
    flush(log, oracle)
    log.close()


def full_segment(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """The next append rolls."""
    log = open_log(disk, flush=mode)
    while len(disk.read("log/00000000000000000000.seg")) < 300:
        append(log, oracle)
    log.close()


def torn(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """Killed in the middle of a write."""
    log = some_segments(disk, oracle, mode)
    batch = make_batch()
    oracle.tell(batch, log.append(batch).offset)
    disk.kill()
    last = placed_batches(disk)[-1]
    cut(disk, last.path, last.end - 10)


def torn_and_rebooted(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    torn(disk, oracle, mode)
    reboot(disk)


def damaged(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """Rot below the watermark, in a sealed segment and in the last; the oracle forgets what was
    there."""
    some_segments(disk, oracle, mode)
    batches = placed_batches(disk)
    for batch in (batches[0], batches[-1]):
        flip(disk, batch.path, batch.start + 20)
        oracle.give_up(batch.offsets)
    settle(disk)


def poisoned(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """A flush failed, and two more segments were begun in the page cache."""
    some_segments(disk, oracle, mode).close()
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    append(log, oracle)
    flush(log, oracle)
    fs.plan = on("sync", LoseDirty(), path="*.seg")
    told = append(log, oracle, wait=False)
    try:
        log.flush()
    except OutcomeUnknown:
        assert told.promised_at is None
        return
    raise AssertionError("the flush was to fail")


def half_rolled(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """Killed when the new segment had its first file, and no more."""
    full_segment(disk, oracle, mode)
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    fs.plan = on("open", Crash(), path="*.idx")
    assert run_until_crash(lambda: append_batch(log, oracle, make_batch(9)))


def everything(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """Every side file there is: a start, producers, a gap, and the leftover of a replacement."""
    log = some_segments(disk, oracle, mode)
    append(log, oracle, producer="q", sequence=1)
    truncate(disk, oracle, log)
    log.close()
    damaged_last = open_log(disk)
    append(damaged_last, oracle)
    flush(damaged_last, oracle)
    disk.kill()
    batch = placed_batches(disk)[-1]
    flip(disk, batch.path, batch.start + 20)
    oracle.give_up(batch.offsets)
    open_log(disk).close()
    disk.put(side("clean.tmp"), b"half of a mark")


def many_seals(disk: SimulatedDisk, oracle: Oracle, mode: str) -> None:
    """So many segments came and went that the file of seals is to be written anew."""
    log = open_log(disk, flush=mode, segment_bytes=1)
    for _ in range(70):
        log.append_one(b"x")
    log.truncate_before(70)
    log.vacuum()
    oracle.truncate(70)
    append(log, oracle)
    log.close()


# --- deeds ----------------------------------------------------------------------------------


def append_and_roll(fs: FileSystem, oracle: Oracle) -> None:
    """Each of these segments has room for one batch."""
    log = open_log(fs, segment_bytes=80)
    for _ in range(3):
        append(log, oracle)
    append(log, oracle, wait=False)


def begin(mode: str) -> Deed:
    def deed(fs: FileSystem, oracle: Oracle) -> None:
        log = open_log(fs, flush=mode)
        append(log, oracle)
        flush(log, oracle)

    return deed


def open_and_append(fs: FileSystem, oracle: Oracle) -> None:
    """Recovery, and the first append after it."""
    log = open_log(fs)
    append(log, oracle)


def read_and_append(fs: FileSystem, oracle: Oracle) -> None:
    log = open_log(fs)
    oracle.check(log)
    append(log, oracle)


def append_and_close(fs: FileSystem, oracle: Oracle) -> None:
    log = open_log(fs)
    append(log, oracle, wait=False)
    append(log, oracle, producer="p", sequence=1)
    log.close()


def truncate(fs: FileSystem, oracle: Oracle, log: Log | None = None) -> None:
    log = log or open_log(fs)
    for offset in (3, 7):
        oracle.allow_start(offset)
        log.truncate_before(offset)
        oracle.truncate(offset)


def vacuum_below_start(fs: FileSystem, oracle: Oracle) -> None:
    log = open_log(fs)
    oracle.allow_start(9)
    log.truncate_before(9)
    oracle.truncate(9)
    log.vacuum()
    append(log, oracle)


def vacuum_by_retention(fs: FileSystem, oracle: Oracle) -> None:
    log = open_log(fs, retention={"max_records": 3})
    end = log.end_offset
    oracle.allow_start(end - 3)
    oracle.truncate(log.vacuum().start_offset)
    append(log, oracle)


def vacuum_everything(fs: FileSystem, oracle: Oracle) -> None:
    """The active segment goes as well, and the log goes on behind it."""
    log = open_log(fs)
    end = log.end_offset
    oracle.allow_start(end)
    log.truncate_before(end)
    oracle.truncate(end)
    log.vacuum()
    append(log, oracle)


def append_once(fs: FileSystem, oracle: Oracle) -> None:
    log = open_log(fs, segment_bytes=150)
    for sequence in range(2):
        append(log, oracle, producer="p", sequence=sequence)


def fail_to_flush(fs: FileSystem, oracle: Oracle) -> None:
    """The log is told that a sync failed, and writes that down."""
    log = open_log(fs)
    append(log, oracle, wait=False)
    log._writing().committer.poison(OSError(errno.EIO, "an error of the disk"))
    log.close()


def workloads() -> Iterator[Workload]:
    for mode in ("sync", "async"):
        yield Workload("first life", mode, nothing, begin(mode))
        yield Workload("roll", mode, full_segment, append_and_roll)
        yield Workload("close", mode, some_segments, append_and_close)
        yield Workload("open after a clean close", mode, closed, open_and_append)
        yield Workload("recover after a kill", mode, some_segments, open_and_append)
        yield Workload("recover a torn tail", mode, torn, open_and_append)
        yield Workload("recover after a reboot", mode, torn_and_rebooted, open_and_append)
        yield Workload("recover from damage", mode, damaged, open_and_append)
        yield Workload("recover from poison", mode, poisoned, open_and_append)
        yield Workload("recover a half roll", mode, half_rolled, open_and_append)
        yield Workload("truncate", mode, some_segments, truncate)
        yield Workload("vacuum below the start", mode, some_segments, vacuum_below_start)
        yield Workload("vacuum by retention", mode, some_segments, vacuum_by_retention)
        yield Workload("vacuum everything", mode, some_segments, vacuum_everything)
        yield Workload("read", mode, large_batches, read_and_append)
        yield Workload("append once", mode, some_segments, append_once)
    yield Workload("recover with everything", "sync", everything, append_and_close)
    yield Workload("write the seals anew", "sync", many_seals, open_and_append)
    yield Workload("fail to flush", "sync", some_segments, fail_to_flush)
    yield Workload("first life", "none", nothing, begin("none"))
    yield Workload("close", "none", some_segments, append_and_close)


WORKLOADS = list(workloads())
