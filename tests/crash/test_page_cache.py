"""What a recovery reads may be in the page cache only: it counts once it is on the disk.

Each test kills a process at a bad moment, lets the next one of the same boot go on from there, and
then cuts the power.
"""

from __future__ import annotations

import errno

import pytest

from tailrace import OutcomeUnknown
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    SimulatedDisk,
    on,
)
from tests.crash.oracle import Oracle
from tests.crash.workloads import append, some_segments
from tests.crash.world import cut, open_log, placed_batches, reboot, run_until_crash, side

POWER_CUTS = range(20)


def survives_power_cuts(disk: SimulatedDisk, oracle: Oracle) -> None:
    for seed in POWER_CUTS:
        clone = disk.clone()
        clone.crash(seed)
        try:
            with open_log(clone) as log:
                oracle.on(clone).check(log)
        except Exception as error:
            error.add_note(f"after power cut {seed}")
            raise


@pytest.mark.parametrize("strict", ["sync", "async"])
def test_a_log_that_was_closed_without_a_sync(strict: str) -> None:
    """In the mode `none` a clean close syncs nothing; a stricter handle has to make up for it."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    with open_log(disk, flush="none", segment_bytes=200) as log:
        for _ in range(6):
            append(log, oracle)
    log = open_log(disk, flush=strict)
    append(log, oracle)
    log.flush()
    oracle.promise_visible(log)
    survives_power_cuts(disk, oracle)


def test_a_start_offset_that_was_not_synced() -> None:
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    some_segments(disk, oracle, "sync")
    disk.kill()
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    oracle.allow_start(5)
    fs.plan = on("sync", Crash(), path=side("start"))
    assert run_until_crash(lambda: log.truncate_before(5))
    disk.kill()
    log = open_log(disk)
    oracle.check(log)  # whichever start this one shows, it stays
    append(log, oracle)
    survives_power_cuts(disk, oracle)


def test_a_gap_that_was_not_synced() -> None:
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    some_segments(disk, oracle, "async")
    reboot(disk)
    fs = FaultyFileSystem(disk, on("sync", Crash(), path=side("gaps")))
    assert run_until_crash(lambda: open_log(fs))
    disk.kill()
    log = open_log(disk)
    oracle.check(log)
    append(log, oracle)
    log.flush()
    oracle.promise_visible(log)
    survives_power_cuts(disk, oracle)


@pytest.mark.parametrize("fate", ["killed", "full disk"])
def test_a_failed_sync_that_nobody_could_write_down(fate: str) -> None:
    """The pages count as clean, and are lost; a sync of them succeeds and does nothing."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    append(log, oracle)
    told = append(log, oracle, wait=False)

    def plan(call: Call) -> Fault | None:
        if call.path.startswith(side("poisoned")):
            return Crash() if fate == "killed" else Fail(errno.ENOSPC)
        return LoseDirty() if call.op == "sync" else None

    fs.plan = plan
    try:
        assert run_until_crash(log.flush)
    except OutcomeUnknown:
        assert fate == "full disk"
    assert told.promised_at is None
    disk.kill()
    log = open_log(disk)
    append(log, oracle)
    log.flush()
    oracle.promise_visible(log)
    survives_power_cuts(disk, oracle)


@pytest.mark.parametrize("error", [errno.EIO, errno.EINTR, errno.EMFILE])
@pytest.mark.parametrize("poisoned", [False, True])
def test_a_sync_that_fails_in_recovery_costs_nothing_acknowledged(
    poisoned: bool, error: int
) -> None:
    """After a power cut the watermark may be behind; a poison that goes by it cuts too much."""
    for seed in POWER_CUTS:
        disk = SimulatedDisk()
        oracle = Oracle(disk)
        fs = FaultyFileSystem(disk)
        log = open_log(fs)
        for _ in range(3):
            append(log, oracle)
        if poisoned:
            fs.plan = on("sync", LoseDirty(), path="*.seg")
            with pytest.raises(OutcomeUnknown):
                append(log, oracle)
        disk.crash(seed)
        for _ in range(2):
            faulty = FaultyFileSystem(disk, on("sync", Fail(error), path="*.seg"))
            try:
                oracle.check(open_log(faulty))
            except (OSError, OutcomeUnknown):
                assert faulty.hits
            disk.kill()
        with open_log(disk) as log:
            oracle.check(log)


def test_a_torn_write_that_was_cut_in_the_cache_only() -> None:
    """The cut is synced before anything is appended behind it, or the old bytes could come back."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = some_segments(disk, oracle, "sync")
    for _ in range(3):
        append(log, oracle, wait=False)
    disk.kill()
    torn = placed_batches(disk)[-2]
    cut(disk, torn.path, torn.end - 5)
    log = open_log(disk)
    append(log, oracle)
    survives_power_cuts(disk, oracle)
