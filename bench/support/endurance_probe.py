"""A process through whose queue many messages go, and what it weighs meanwhile:
`python -m bench.support.endurance_probe DIR MESSAGES`.

In each step so many messages are published, consumed and acknowledged, and what is not needed any
more is deleted. After each, what the process has in memory and the store on the disk.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import tailrace
from bench.support.queueing import GROUP, tree_size

__all__ = ["measure", "resident_now"]

_STEPS = 100
_STEP_LEAST = 500
_BATCH = 1000
_CLAIMED = 500
_POOL = 16


def resident_now() -> int:
    """What this process has in memory; where nobody tells, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(folder: Path, count: int) -> dict[str, Any]:
    pool = [[os.urandom(256) for _ in range(_BATCH)] for _ in range(_POOL)]
    step = max(count // _STEPS, _STEP_LEAST)
    seconds = dict.fromkeys(("publish", "consume", "vacuum"), 0.0)
    resident, disk = [], []
    done = 0
    with tailrace.open(folder, flush="async") as store:
        queue = store.queue("work")
        consumer = queue.consumer(group=GROUP)
        while done < count:
            size = min(step, count - done)
            began = time.perf_counter()
            for number, first in enumerate(range(0, size, _BATCH)):
                queue.publish_many(pool[number % _POOL][: size - first])
            published = time.perf_counter()
            _consume(consumer, done, done + size)
            consumed = time.perf_counter()
            filled = tree_size(folder)
            queue.vacuum()
            over = time.perf_counter()
            done += size
            resident.append(resident_now())
            disk.append((filled, tree_size(folder)))
            seconds["publish"] += published - began
            seconds["consume"] += consumed - published
            seconds["vacuum"] += over - consumed
        segment = queue.log.options.segment_bytes
    return {
        "count": done,
        "seconds": seconds,
        "resident": resident,
        "disk_filled": max(filled for filled, _ in disk),
        "disk_at_end": disk[-1][1],
        "segment_bytes": segment,
    }


def _consume(consumer: Any, first: int, end: int) -> None:
    """All of these offsets, in order, each once."""
    expected = first
    while expected < end:
        messages = consumer.receive(_CLAIMED, wait=5.0)
        if not messages:
            raise RuntimeError(f"nothing came from {expected} on, but {end} were published")
        for message in messages:
            _ = message.value
            if message.offset != expected:
                raise RuntimeError(f"{message.offset} came instead of {expected}")
            expected += 1
        consumer.ack(messages)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
