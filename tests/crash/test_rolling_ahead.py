"""An `async` log goes on in a new segment before the last one is durable.

So a power cut may take any of the pages, and any of the names, of several segments. What is left is
a beginning of what was appended: at least what was durable, without a hole.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tailrace import Corrupt, Log, NotWritten, OutcomeUnknown
from tailrace.log.fs import File, FileSystem
from tailrace.log.offline.repair import recover
from tailrace.log.offline.verify import verify
from tailrace.log.sidefiles import Gaps
from tailrace.log.tail import _ROLLED_MAX
from tailrace.testing import (
    Crash,
    Fail,
    FaultyFileSystem,
    RecordingFileSystem,
    SimulatedDisk,
    at,
    on,
)
from tests.crash.world import (
    FOLDER,
    calls_of,
    cut,
    flip,
    offsets,
    open_log,
    reboot,
    remove,
    run_until_crash,
    segments,
    settle,
    side,
)

COUNT = 12  # batches of two records, two to a segment
SEGMENT_BYTES = 300


def fill(
    fs: FileSystem, *, flush_after: int | None = None, count: int = COUNT, flush: str = "async"
) -> Log:
    """A log that is not closed, with a flush after so many batches."""
    log = open_log(fs, flush=flush, segment_bytes=SEGMENT_BYTES)
    for number in range(count):
        log.append([b"%040d" % (2 * number), b"%040d" % (2 * number + 1)])
        if number + 1 == flush_after:
            log.flush()
    return log


def check_beginning(log: Log, at_least: int) -> int:
    """The records are the first that were appended, and the next one gets a new offset."""
    records = list(log.read())
    found = offsets(records)
    assert found == list(range(len(found)))
    assert [record.value for record in records] == [b"%040d" % n for n in found]
    assert len(found) >= at_least
    assert log.append_one(b"new").offset >= 2 * COUNT
    return len(found)


# --- order ----------------------------------------------------------------------------------


def test_a_flush_syncs_every_segment_and_the_names_before_the_watermark() -> None:
    disk = SimulatedDisk()
    fs = RecordingFileSystem(disk)
    log = fill(fs)
    paths = segments(disk)
    assert len(paths) == COUNT // 2
    assert not [e for e in fs.trace if e.op == "sync" and e.path in paths[1:]]
    start = len(fs.trace)
    log.flush()
    trace = fs.trace[start:]
    assert [e.path for e in trace if e.op == "sync" and e.path in paths] == paths
    mark = next(i for i, e in enumerate(trace) if e.op == "pwrite" and e.path == side("watermark"))
    before = [(e.op, e.path) for e in trace[:mark]]
    assert ("sync_dir", FOLDER) in before
    assert {path for op, path in before if op == "sync"} >= set(paths)
    assert log.durable_offset == log.end_offset == 2 * COUNT


def test_a_second_flush_syncs_only_what_is_new() -> None:
    disk = SimulatedDisk()
    fs = RecordingFileSystem(disk)
    log = fill(fs, flush_after=COUNT - 1, count=COUNT - 1)
    start = len(fs.trace)
    log.append_one(b"new")
    log.flush()
    assert [e.path for e in fs.trace[start:] if e.op == "sync"] == [segments(disk)[-1]]


class DuringRoll:
    """A file system that does something while a roll is half done."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.do: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        file = self._disk.open(path, write=write, create=create)
        if create and path.endswith(".tix") and self.do is not None:
            do, self.do = self.do, None
            do()
        return file


def test_a_flush_that_ends_during_a_roll() -> None:
    """It covers all that there is, and the new segment's name is still for the next one."""
    for seed in range(20):
        disk = SimulatedDisk(seed)
        fs = DuringRoll(disk)
        log = fill(fs, count=2)

        def flush_elsewhere(log: Log = log) -> None:
            thread = threading.Thread(target=log.flush)
            thread.start()
            thread.join()

        fs.do = flush_elsewhere
        log.append([b"%040d" % 4, b"%040d" % 5])
        assert log.durable_offset == 4
        log.flush()
        disk.crash(seed)
        with open_log(disk) as log:
            assert offsets(log.read()) == list(range(6)), seed


def test_no_handle_for_the_directory_is_no_failed_flush() -> None:
    disk = SimulatedDisk()
    fs = FaultyFileSystem(disk)
    log = fill(fs)
    fs.plan = on("sync_dir", Fail(errno.EMFILE))
    with pytest.raises(OutcomeUnknown, match="try again"):
        log.flush()
    assert log.durable_offset == 0
    fs.plan = None
    log.flush()
    assert log.durable_offset == 2 * COUNT
    log.close()
    with open_log(disk) as log:
        assert offsets(log.read()) == list(range(2 * COUNT))


def test_no_handle_for_a_segment_is_no_failed_flush() -> None:
    disk = SimulatedDisk()
    fs = FaultyFileSystem(disk)
    log = fill(fs, flush="none")
    fs.plan = on("open", Fail(errno.EMFILE), path="*.seg")
    with pytest.raises(OutcomeUnknown, match="try again"):
        log.flush()
    assert fs.hits
    fs.plan = None
    log.flush()
    disk.crash(0)
    with open_log(disk) as log:
        assert offsets(log.read()) == list(range(2 * COUNT))


def test_a_failed_sync_of_the_directory_is() -> None:
    disk = SimulatedDisk()
    fs = FaultyFileSystem(disk)
    log = fill(fs, flush_after=5)
    fs.plan = on("sync_dir", Fail(errno.EIO))
    with pytest.raises(OutcomeUnknown, match="Reopen the log"):
        log.flush()
    fs.plan = None
    with pytest.raises(NotWritten):
        log.append_one(b"x")
    log.close()
    with open_log(disk) as log:
        assert offsets(log.read(end=10)) == list(range(10))
        assert log.append_one(b"new").offset >= 2 * COUNT


def test_vacuum_lets_go_of_what_it_deletes() -> None:
    disk = SimulatedDisk()
    log = fill(disk)
    log.truncate_before(2 * COUNT - 1)
    log.vacuum()
    # Who writes has it open, and who reads.
    assert {path for path in disk.open_files() if path.endswith(".seg")} == {segments(disk)[-1]}


def test_a_log_that_is_too_far_ahead_waits_for_the_disk() -> None:
    disk = SimulatedDisk()
    log = fill(disk, count=24 * _ROLLED_MAX)
    assert log.durable_offset > 0
    behind = [path for path in segments(disk) if path in disk.unsynced()]
    assert len(behind) <= _ROLLED_MAX + 1
    open_segments = [path for path in disk.open_files() if path.endswith(".seg")]
    assert len(open_segments) <= _ROLLED_MAX + 1
    log.close()
    assert not disk.open_files()


def test_a_stricter_handle_does_not_go_ahead() -> None:
    disk = SimulatedDisk()
    fill(disk, flush_after=COUNT).close()
    with open_log(disk, flush="sync", segment_bytes=SEGMENT_BYTES) as log:
        for number in range(10):
            log.append([bytes(80)])
            behind = [path for path in segments(disk) if path in disk.unsynced()]
            assert behind in ([], [segments(disk)[-1]]), number


# --- power cuts -----------------------------------------------------------------------------


@pytest.mark.parametrize("flush_after", [None, 5])
@pytest.mark.parametrize("strict_names", [True, False])
def test_what_is_left_is_a_beginning(flush_after: int | None, strict_names: bool) -> None:
    sizes = set()
    for seed in range(150):
        disk = SimulatedDisk(seed, strict_names=strict_names)
        fill(disk, flush_after=flush_after)
        disk.crash(seed)
        try:
            with open_log(disk) as log:
                sizes.add(check_beginning(log, 2 * (flush_after or 0)))
            with open_log(disk) as log:  # and it stays so
                assert log.read(start="last").__next__().value == b"new"
        except Exception as error:
            error.add_note(f"power cut {seed}")
            raise
    assert len(sizes) > 2  # many different cuts


@pytest.mark.parametrize("mode", ["none", "async"])
def test_seals_are_not_believed(mode: str) -> None:
    """An `async` handle seals segments whose bytes a power cut may take."""
    for seed in range(100):
        disk = SimulatedDisk(seed)
        open_log(disk, flush=mode, segment_bytes=SEGMENT_BYTES).close()
        fill(disk)
        disk.crash(seed)
        with open_log(disk) as log:
            gaps = Gaps(disk, FOLDER)
            gaps.load()
            for loss in losses(log):
                assert loss.first_offset is not None
                assert loss.next_offset is not None
                assert gaps.uncovered(loss.first_offset, loss.next_offset) is None, seed


def losses(log: Log) -> Iterator[Corrupt]:
    """What cannot be read, as readers are told."""
    start = 0
    while start < log.end_offset:
        records = log.read(start)
        try:
            start = max((n + 1 for n in offsets(records)), default=log.end_offset)
        except Corrupt as error:
            yield error
            start = error.next_offset or log.end_offset


def torn(flush_after: int | None = 5) -> SimulatedDisk:
    """After a power cut that took the end of a segment in the middle."""
    disk = SimulatedDisk()
    fill(disk, flush_after=flush_after)
    settle(disk)
    middle = segments(disk)[-3]
    cut(disk, middle, len(disk.read(middle)) - 1)
    reboot(disk)
    return disk


def test_what_is_behind_a_tear_is_kept_aside() -> None:
    disk = torn()
    before = segments(disk)
    dropped = [disk.read(path) for path in before[-2:]]
    with open_log(disk) as log:
        end = check_beginning(log, 10)
    assert end < 2 * COUNT
    assert not set(before[-2:]) & set(segments(disk))
    kept = [disk.read(path) for path in disk.files() if "quarantine" in path]
    assert all(data in kept for data in dropped)


def test_an_observer_sees_what_recovery_will_keep() -> None:
    disk = torn()
    with open_log(disk, read_only=True) as observer:
        seen = offsets(observer.read())
        assert observer.end_offset == len(seen)
    with open_log(disk) as log:
        assert offsets(log.read()) == seen


def test_what_the_commands_say_of_it() -> None:
    disk = torn()
    going = [path.removeprefix(f"{FOLDER}/") for path in segments(disk)[-2:]]
    report = verify(disk, FOLDER)
    said = {finding.path: finding.message for finding in report.findings}
    assert all("the log ends before it" in said[name] for name in going)
    assert len(report.findings) == len(said)
    actions = recover(disk, FOLDER).actions
    assert [action.path for action in actions if "ends before it" in action.message] == going[::-1]
    done = recover(disk, FOLDER, apply=True)
    kept = [path.removeprefix(f"{FOLDER}/") for path in disk.files() if "quarantine" in path]
    assert sorted(done.quarantined) == kept
    assert len(kept) == 3
    assert verify(disk, FOLDER).ok


def test_a_segment_whose_name_is_gone_ends_the_log() -> None:
    disk = SimulatedDisk()
    fill(disk, flush_after=5)
    settle(disk)
    remove(disk, segments(disk)[-2])
    reboot(disk)
    with open_log(disk) as log:
        assert check_beginning(log, 10) < 2 * COUNT - 2


def test_damage_below_the_watermark_does_not_end_it() -> None:
    disk = SimulatedDisk()
    fill(disk, flush_after=COUNT // 2)
    settle(disk)
    first, *_middle, last = segments(disk)
    flip(disk, first, 60)
    reboot(disk)
    assert last in segments(disk)
    with open_log(disk) as log:
        with pytest.raises(Corrupt):
            list(log.read())
        assert log.append_one(b"new").offset >= 2 * COUNT
    assert last in segments(disk)


def test_in_the_same_boot_a_tear_is_damage() -> None:
    """The page cache has everything: nothing was being written in the middle of the log."""
    disk = SimulatedDisk()
    fill(disk, flush_after=5)
    settle(disk)
    middle, last = segments(disk)[-3], segments(disk)[-1]
    cut(disk, middle, len(disk.read(middle)) - 1)
    disk.kill()
    with open_log(disk) as log:
        assert log.end_offset == 2 * COUNT
        with pytest.raises(Corrupt):
            list(log.read())
    assert last in segments(disk)


def test_a_recovery_that_is_killed_ends_at_the_same_place() -> None:
    with open_log(torn()) as log:
        expected = offsets(log.read())
    calls = calls_of(torn(), open_log)
    assert len(calls) > 50
    for call in calls:
        disk = torn()
        assert run_until_crash(partial(open_log, FaultyFileSystem(disk, at(call.n, Crash()))))
        disk.kill()
        with open_log(disk) as log:
            assert offsets(log.read()) == expected, call
            check_beginning(log, 10)
