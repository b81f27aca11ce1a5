"""A million messages that are due some day: what they take is on the disk, not in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace import Record
from tailrace.log.fs import OsFileSystem
from tailrace.queue.sorted_runs import MESSAGE, Entry, Run, write_run

# The most memory that was resident, in KiB. `getrusage` would also count that of whoever started
# the process.
_PEAK = """
def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])
"""

# Resident memory in KiB: at first, with all of them scheduled, and in a process that opens the
# store anew; then how many it has, and the one that is due first.
_SCHEDULE = f"""{_PEAK}
import random, sys, time
import tailrace

count, size, path, is_new = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "new"
where = sys.argv[5]
rng = random.Random(7)
first = peak()
with tailrace.open(path, flush="async") as store:
    queue = store.queue("q")
    if is_new:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(count):
            due_ms = now_ms + 3_600_000 + rng.randrange(10**9)
            large = rng.randbytes(size)
            if where == "value":
                queue.publish(large, deliver_at=due_ms)
            else:
                queue.publish(b"x", headers=[("large", large)], deliver_at=due_ms)
    due = [each.deliver_at for each in queue.delayed(limit=3)]
    print(first, peak(), queue.delayed_count(), due == sorted(due))
"""

# How many messages of how many bytes, and by how much memory may grow: by less than they take.
FEW = (15_000, 8 << 10, 80 << 10)
MANY = (1_000_000, 100, 128 << 10)


def schedule(path: Path, count: int, size: int, where: str, how: str) -> tuple[int, int]:
    line = [sys.executable, "-c", _SCHEDULE, str(count), str(size), str(path), how, where]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=1800)
    first, peak, there, in_order = done.stdout.split()
    assert in_order == "True"
    return int(peak) - int(first), int(there)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("where", "count", "size", "most_kib"),
    [
        ("value", *FEW),
        ("headers", *FEW),
        pytest.param("value", *MANY, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_what_is_scheduled_is_not_in_memory(
    tmp_path: Path, where: str, count: int, size: int, most_kib: int
) -> None:
    for how in ("new", "again"):
        growth_kib, there = schedule(tmp_path / "data", count, size, where, how)
        assert there == count
        assert growth_kib < most_kib, how


@pytest.mark.parametrize("fields", [(bytes(300_000),), (None, {"large": bytes(300_000)})], ids=len)
def test_little_is_read_ahead_of_large_messages(tmp_path: Path, fields: tuple[Any, ...]) -> None:
    """There may be many runs, and each is read ahead of what is due."""
    fs, folder = OsFileSystem(), str(tmp_path / "run")
    entries = [Entry((n, n), MESSAGE, Record(None, n, None, *fields)) for n in range(40)]
    info = write_run(fs, folder, entries, 0, {})
    assert info is not None
    run = Run(fs, folder, info)
    assert next(run.ahead())[1].key == (0, 0)
    assert len(run._ahead) == 4
    assert [entry.key for _, entry in run.ahead()] == [(n, n) for n in range(40)]
    run.close()


# A publisher without upkeep that is killed, and then who looks, and who delivers.
_KILLED = """
import os, random, sys, tailrace
count, size, path, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
rng = random.Random(7)
queue = tailrace.open(path, flush="async", upkeep=False).queue("q")
for _ in range(count):
    large = rng.randbytes(size)
    if where == "value":
        queue.publish(large, delay="1h")
    else:
        queue.publish(b"x", headers={"large": large}, delay="1h")
os._exit(0)
"""

_LOOK = f"""{_PEAK}
import sys
from pathlib import Path
from tailrace.log.fs import OsFileSystem
from tailrace.queue.delays import look_at_scheduled

first = peak()
[manifest] = Path(sys.argv[1]).rglob("schedule.json")
found, total = look_at_scheduled(OsFileSystem(), str(manifest.parent), 3)
print(first, peak(), total, len(found) == 3)
"""


@pytest.mark.no_cover
@pytest.mark.parametrize("where", ["value", "headers"])
def test_what_a_killed_publisher_has_left_is_not_in_memory(tmp_path: Path, where: str) -> None:
    count, size, most_kib = FEW
    path = str(tmp_path / "data")
    line = [sys.executable, "-c", _KILLED, str(count), str(size), path, where]
    subprocess.run(line, check=True, timeout=600)
    line = [sys.executable, "-c", _LOOK, path]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=600)
    first, peak, total, are_there = done.stdout.split()
    assert (int(total), are_there) == (count, "True")
    assert int(peak) - int(first) < most_kib
    growth_kib, there = schedule(tmp_path / "data", count, size, where, "again")
    assert there == count
    assert growth_kib < most_kib
