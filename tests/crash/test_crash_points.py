"""The process ends before or after any one call that a deed makes; a kill or a power cut follows.

The deeds are in `workloads`: a first append, rolls, a clean close, every kind of recovery, deletion.
After each crash the log is opened, checked, written to, lost again, and opened once more.
"""

from __future__ import annotations

import pytest

from tailrace.testing import Crash, FaultyFileSystem, ShortWrite, SimulatedDisk, at
from tests.crash.oracle import Oracle
from tests.crash.workloads import WORKLOADS, Workload, append
from tests.crash.world import count_calls, fates, observe, open_log, run_until_crash, side


def crashes(n: int) -> list[Crash | ShortWrite]:
    return [Crash(), Crash(after=True), ShortWrite(0.3 + 0.1 * (n % 6), Crash())]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_crash_at_every_call(workload: Workload) -> None:
    past, memory = workload.prepare()
    calls = count_calls(past, lambda fs: workload.deed(fs, memory.on(past)))
    for n in range(calls):
        for fault in crashes(n):
            disk = past.clone()
            oracle = memory.on(disk)
            fs = FaultyFileSystem(disk, at(n, fault))
            crashed = run_until_crash(lambda fs=fs, oracle=oracle: workload.deed(fs, oracle))
            if not crashed:
                assert isinstance(fault, ShortWrite), f"call {n} was not made"
                continue
            for name, fate in fates([3 * n + len(str(fault))]):
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
    for _ in range(2):
        log = open_log(disk, flush=flush)
        oracle.check(log)
        append(log, oracle)
        disk.kill()
    with open_log(disk) as log:
        oracle.check(log)
    assert not disk.open_files()
