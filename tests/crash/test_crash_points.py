"""The process ends before or after any one call that a deed makes; a kill or a power cut follows.

The deeds are in `workloads`: first appends, rolls, a clean close, all kinds of recovery, deletion.
After each crash the log is opened, checked, written to, lost again, and opened once more.
"""

from __future__ import annotations

from functools import partial

import pytest

from tailrace.testing import Call, Crash, FaultyFileSystem, ShortWrite, SimulatedDisk, at
from tests.crash.oracle import Oracle
from tests.crash.workloads import WORKLOADS, Workload, append
from tests.crash.world import calls_of, fates, observe, open_log, run_until_crash, side

# A crash before a call that only reads is the same as one before the next that writes.
WRITING = {"pwrite", "truncate", "sync", "rename", "unlink", "make_dirs", "sync_dir", "open"}


def crashes(call: Call) -> list[Crash | ShortWrite]:
    if call.op == "pwrite":
        return [Crash(), ShortWrite(0.1 + 0.1 * (call.n % 9), Crash())]
    return [Crash()]


@pytest.mark.sample(3)
@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_crash_at_every_call(step: int, workload: Workload) -> None:
    past, memory = workload.prepare()
    calls = calls_of(past, lambda fs: workload.do(fs, memory.on(past)))
    points = [(call.n, fault) for call in calls if call.op in WRITING for fault in crashes(call)]
    points.append((calls[-1].n, Crash(after=True)))
    for n, fault in points[::-step]:
        disk = past.clone()
        oracle = memory.on(disk)
        fs = FaultyFileSystem(disk, at(n, fault))
        assert run_until_crash(partial(workload.do, fs, oracle))
        for name, fate in fates([n]):
            try:
                survivor = disk.clone()
                fate(survivor)
                recovers(survivor, oracle.on(survivor), workload.flush)
            except Exception as error:
                error.add_note(f"{workload}: {fault} at {fs.hits}, then {name}")
                raise


def recovers(disk: SimulatedDisk, oracle: Oracle, flush: str) -> None:
    """Twice: what the first recovery leaves, with an append more, is recovered again."""
    if side("log.json") in disk.files():
        with observe(disk) as log:
            oracle.check(log)
    log = open_log(disk, flush=flush)
    oracle.check(log)
    append(log, oracle)
    disk.kill()
    with open_log(disk) as log:
        oracle.check(log)
    assert not disk.open_files()
