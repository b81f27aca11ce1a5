"""A process that opens a store of many queues and says what that took:
`python -m bench.support.many_probe DIR QUEUES`.

It opens the store, receives one message, and then uses all the other queues, one after the other.
It may have no more files open than many systems let a process have.
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
from bench.support.open_probe import resident_bytes

__all__ = ["GROUP", "HANDLES_MOST", "count_handles", "measure"]

GROUP = "workers"
HANDLES_MOST = 1024


def count_handles() -> int:
    """The files that this process has open, without the one that lists them."""
    return len(os.listdir("/dev/fd")) - 1


def _receive(queue: Any) -> None:
    """The message of a queue, which is given back for the next one who measures."""
    with queue.consumer(group=GROUP) as consumer:
        messages = consumer.receive(1, wait=5.0)
        if len(messages) != 1:
            raise RuntimeError(f"{queue} has no message")
        _ = messages[0].value
        consumer.release(messages)


def measure(folder: Path, count: int) -> dict[str, float]:
    open_store = tailrace.open  # imports it
    idle = count_handles()
    began = time.perf_counter()
    store = open_store(folder)
    opened = time.perf_counter()
    _receive(store.get(f"queue-{count - 1:05d}"))
    received = time.perf_counter()
    handles = count_handles()
    queues = store.queues()
    if len(queues) != count:
        raise RuntimeError(f"there are {len(queues)} queues, not {count}")
    for queue in queues:
        _receive(queue)
        handles = max(handles, count_handles())
    used = time.perf_counter()
    store.close()
    return {
        "seconds": opened - began,
        "first_seconds": received - began,
        "all_seconds": used - received,
        "resident_bytes": resident_bytes(),
        "handles": handles,
        "handles_before": idle,
    }


if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (HANDLES_MOST, limit))
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
