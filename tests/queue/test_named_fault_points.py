"""Every call that a store makes of the file system, by name; and each is one that faults hit.

`test_fault_points`, and in `tests/crash` the tests of delayed messages, of deletion and of backups,
put a fault at every call of what they do. This test makes sure that this is every kind of call
there is. A new one has to be named here, and something of that has to reach it. Those that a log
makes by itself have a list of their own, in `tests/crash/test_fault_points`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest

from tailrace import Store, restore_backup
from tailrace.queue.backup import backup
from tailrace.testing import Call, FaultyFileSystem
from tests.crash.test_delays import ACTS, calls
from tests.queue.clocks import Machine
from tests.queue.delaying import few_in_memory
from tests.queue.test_fault_points import OPTIONS, Program

_LOG = re.compile(r".*/(segments|incoming|runs/(\d+|merged\.tmp))(/.*)?")
# What a path is, the first that fits.
_KINDS = [
    (r".*\.restore\.[0-9a-f]+\.tmp(/.*)?", "restored"),
    (r"new/store(/.*)?", "restored"),
    (r"(new|old)/backup(\.[0-9a-f]+\.tmp)?/backup\.json", "backup.json"),
    (r"(new|old)/backup(\.[0-9a-f]+\.tmp)?/backup\.json\..*tmp", "backup.json.tmp"),
    (r"(new|old)(/backup.*)?", "backup"),
    (r".*/groups/.*\.json", "exported.json"),
    (r".*/groups/.*\.tmp", "exported.json.tmp"),
    (r".*/groups(/[^/]+)?", "exported"),
    (r".*/consumers/[^/]+/\.tailrace/alive.*", "alive"),
    (r".*/consumers/[^/]+(/\.tailrace)?", "group"),
    (r".*/consumers", "groups"),
    (r".*/queues/[^/]+", "queue"),
    (r".*/queues", "queues"),
    (r".*/pel_\d+\.json", "pel.json"),
    (r".*/delayed/[0-9a-f]{32}", "schedule"),
    (r".*/delayed/[0-9a-f]{32}\.open", "schedule.open"),
    (r".*/trash(/.*)?", "trash"),
    (r".*/queue/\.tailrace", "side"),
    (r".*/queue/config", "config"),
    (r"|/|\.|data|data/queue", "store"),
]

FAULT_POINTS = """
list: store backup config delayed exported group groups queue queues restored runs side trash
lock: alive backup lock lock.backup lock.next members open restored schedule.open
make_dirs: .tailrace backup config delayed exported group restored schedule side trash
map: board
open: archive backup backup.json bell deleted deleted.tmp exported.json exported.json.tmp ops.log
open: ops.log.tmp pel.json pel.json.tmp queues.json queues.json.tmp reserve restored
open: schedule.json schedule.json.tmp state.json state.json.tmp
open: tailrace.toml tailrace.yaml tailrace.yml
pread: backup backup.json deleted exported.json ops.log pel.json pel.json.tmp queues.json
pread: schedule.json state.json state.json.tmp
pwrite: backup bell deleted.tmp exported.json.tmp ops.log ops.log.tmp pel.json.tmp
pwrite: queues.json.tmp reserve restored schedule.json.tmp state.json.tmp
remove_dir: backup group groups restored trash
rename: backup deleted exported.json group ops.log pel.json queues.json restored
rename: schedule.json state.json trash
size: backup exported.json ops.log pel.json pel.json.tmp queues.json state.json
size: state.json.tmp
stat: backup backup.json config deleted group lock.backup log.json ops.log ops.log.tmp pel.json
stat: pel.json.tmp queue queues queues.json reserve restored schedule state.json state.json.tmp
stat: store watermark
sync: backup deleted.tmp exported.json.tmp ops.log ops.log.tmp pel.json.tmp
sync: queues.json.tmp reserve restored schedule.json.tmp state.json.tmp
sync_dir: .tailrace backup config delayed exported group groups queues restored runs schedule
sync_dir: trash
truncate: backup deleted.tmp exported.json.tmp ops.log ops.log.tmp pel.json.tmp
truncate: queues.json.tmp schedule.json.tmp state.json.tmp
unlink: alive backup bell board group groups lock lock.next open ops.log reserve restored
unlink: schedule.open trash
"""


def point(call: Call) -> str | None:
    """Its name: the operation, and what kind of file it is done to; none, if that is a log's."""
    path = re.sub(r"\.\d+\.tmp$", ".tmp", os.path.normpath(call.path))
    if _LOG.fullmatch(path):
        return None
    for pattern, kind in _KINDS:
        if re.fullmatch(pattern, path):
            return f"{call.op} {kind}"
    return f"{call.op} {re.sub(r'^pel_[0-9]+', 'pel', os.path.basename(path))}"


# --- what is done ---------------------------------------------------------------------------------


def works(fs: FaultyFileSystem, machine: Machine) -> None:
    Program(fs, machine).run()


def deletes(fs: FaultyFileSystem, machine: Machine) -> None:
    with Store("data", fs=fs, clock=machine.clock, upkeep=False, **OPTIONS) as store:
        queue = store.queue("q")
        queue.publish(b"x")
        queue.consumer("w").close()
        queue.publish(b"later", delay=60)
        queue.delete_group("w")
        store.delete("q")
    with Store("data", fs=fs, clock=machine.clock, upkeep=False, **OPTIONS):
        pass


def saves(fs: FaultyFileSystem, machine: Machine) -> None:
    works(fs, machine)
    with Store("data", fs=fs, clock=machine.clock, upkeep=False, **OPTIONS) as store:
        store.queue("q").publish(b"later", delay=60)
    backup(fs, "data/queue", "new/backup", machine.clock)
    restore_backup("new/backup", "new/store", fs=fs)


def reached() -> Iterator[Call]:
    doing: list[Callable[[FaultyFileSystem, Machine], None]] = [works, deletes, saves]
    for do in doing:
        with Machine() as machine:
            fs = FaultyFileSystem(machine.disk)
            do(fs, machine)
            yield from fs.calls
    with few_in_memory():
        for act in ACTS:
            yield from calls(act, "sync")


@pytest.fixture(scope="module")
def found() -> set[str]:
    points = {point(call) for call in reached()}
    return {each for each in points if each is not None}


def named() -> set[str]:
    rows = [line.split(":") for line in FAULT_POINTS.strip().splitlines()]
    return {f"{op.strip()} {kind}" for op, kinds in rows for kind in kinds.split()}


def test_every_fault_point_of_a_store_is_reached(found: set[str]) -> None:
    assert named() - found == set(), "nothing makes these calls"
    assert found - named() == set(), "these calls have no name here"
