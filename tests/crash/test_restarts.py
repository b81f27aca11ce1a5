"""Many lives in a row: each recovery finds what the one before it left, not what it expects."""

from __future__ import annotations

import pytest

from tailrace.testing import SimulatedDisk
from tests.crash.oracle import Oracle
from tests.crash.workloads import append
from tests.crash.world import cut, open_log, placed_batches

LIVES = 25


def half_of_the_last_batch(disk: SimulatedDisk) -> None:
    """As if the process had been killed in the middle of the write."""
    last = placed_batches(disk)[-1]
    cut(disk, last.path, last.start + last.info.size // 2)


@pytest.mark.parametrize("fate", ["kill", "torn", "power cut", "both", "closed"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_recover_append_and_crash_again_and_again(flush: str, fate: str) -> None:
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    for life in range(LIVES):
        log = open_log(disk, flush=flush, segment_bytes=500)
        oracle.check(log)
        for _ in range(1 + life % 3):
            append(log, oracle)
        log.flush()
        oracle.promise_visible(log)
        if fate == "torn":
            log.append([b"never finished"])
            disk.kill()
            half_of_the_last_batch(disk)
        elif fate == "closed":
            log.close()
        elif fate == "kill" or (fate == "both" and life % 2):
            append(log, oracle, wait=False)
            disk.kill()
        else:
            append(log, oracle, wait=False)
            disk.crash(life)
    with open_log(disk) as log:
        found = oracle.check(log)
        assert len(found.records) >= 2 * LIVES


def test_recovery_twice_leaves_the_same_log() -> None:
    """What is recovered is not recovered again: the second open changes nothing."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for _ in range(9):
        log.append([b"record"] * 2).wait()
    log.append([b"torn"] * 2)
    disk.kill()
    half_of_the_last_batch(disk)
    open_log(disk)
    disk.kill()
    segments = {path: disk.read(path) for path in disk.files() if ".tailrace" not in path}
    aside = [path for path in disk.files() if "quarantine" in path]
    open_log(disk)
    disk.kill()
    assert {path: disk.read(path) for path in disk.files() if ".tailrace" not in path} == segments
    assert [path for path in disk.files() if "quarantine" in path] == aside
