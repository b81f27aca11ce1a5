"""Every call that the engine makes of the file system, by name; and each is one that faults hit.

`test_crash_points` and `test_failing_io` put a fault at every call of the workloads. This test
makes sure that the workloads make every kind of call there is. A new one has to be named here, and
a workload has to reach it.
"""

from __future__ import annotations

import os
import re

from tailrace.testing import FaultyFileSystem
from tests.crash.workloads import WORKLOADS
from tests.crash.world import SIDE_FOLDER

# A file that is replaced is written under a temporary name, and so is one of slots when it is made.
REPLACED = (
    "log.json",
    "clean",
    "producers",
    "poisoned",
    "seals",
    "watermark",
    "reserved",
    "start",
)

FAULT_POINTS = {
    "list": "log side",
    "make_dirs": "side quarantine",
    "lock": "lock lock.deletion lock.flush lock.next members",
    "map": "board",
    "stat": "log gaps watermark",
    # Who opens a log looks for an adoption; what is done to one, tests/log/test_adoption.py has.
    "open": "seg idx tix cut log.json watermark reserved start clean seals gaps producers poisoned"
    " adoption",
    "size": "seg gaps seals",
    "pread": "seg idx tix log.json watermark reserved start clean seals gaps producers poisoned",
    "pread_into": "seg",
    "pwrite": "seg idx tix cut watermark reserved start seals gaps",
    "truncate": "seg idx tix",
    "sync": "seg cut watermark reserved start gaps log.json",
    "sync_dir": "log side quarantine",
    "rename": " ".join(REPLACED),
    "unlink": "seg idx tix clean clean.tmp poisoned",
}


def named() -> set[str]:
    points = {f"{op} {kind}" for op, kinds in FAULT_POINTS.items() for kind in kinds.split()}
    for op in ("open", "truncate", "pwrite", "sync"):
        points |= {f"{op} {name}.tmp" for name in REPLACED}
    return points


def point(op: str, path: str) -> str:
    """A call's name: the operation, and what kind of file it is done to."""
    name = os.path.basename(path)
    if path == SIDE_FOLDER:
        kind = "side"
    elif "/" not in path:
        kind = "log"
    elif re.fullmatch(r"\d{20}\.(seg|idx|tix)", name):
        kind = name[-3:]
    elif path.startswith(f"{SIDE_FOLDER}/quarantine"):
        kind = "quarantine" if name == "quarantine" else "cut"
    else:
        kind = re.sub(r"\.\d+\.tmp", ".tmp", name)  # its number is the process
    return f"{op} {kind}"


def reached() -> dict[str, set[str]]:
    """Every point, with the workloads that reach it."""
    found: dict[str, set[str]] = {}
    for workload in WORKLOADS:
        past, memory = workload.prepare()
        disk = past.clone()
        fs = FaultyFileSystem(disk)
        workload.do(fs, memory.on(disk))
        for call in fs.calls:
            found.setdefault(point(call.op, call.path), set()).add(str(workload))
    return found


def test_every_fault_point_is_reached() -> None:
    found = set(reached())
    assert named() - found == set(), "no workload makes these calls"
    assert found - named() == set(), "these calls have no name here"
