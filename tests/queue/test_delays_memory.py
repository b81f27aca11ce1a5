"""A million messages that are due some day: what they take is on the disk, not in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Resident memory in KiB: at first, with all of them scheduled, and in a process that opens the
# store anew; then how many it has, and the one that is due first.
_SCHEDULE = """
import random, resource, sys, time
import tailrace

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

count, path, is_new = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "new"
rng = random.Random(7)
first = peak()
with tailrace.open(path, flush="async") as store:
    queue = store.queue("q")
    if is_new:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(count):
            queue.publish(b"x" * 100, deliver_at=now_ms + 3_600_000 + rng.randrange(10**9))
    due = [each.deliver_at for each in queue.delayed(limit=3)]
    print(first, peak(), queue.delayed_count(), due == sorted(due))
"""

GROWTH_KIB = 128 << 10


def schedule(path: Path, count: int, how: str) -> tuple[int, int]:
    line = [sys.executable, "-c", _SCHEDULE, str(count), str(path), how]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=1800)
    first, peak, there, in_order = done.stdout.split()
    assert in_order == "True"
    return int(peak) - int(first), int(there)


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=str
)
def test_what_is_scheduled_is_not_in_memory(tmp_path: Path, count: int) -> None:
    for how in ("new", "again"):
        growth_kib, there = schedule(tmp_path / "data", count, how)
        assert there == count
        assert growth_kib < GROWTH_KIB, how
