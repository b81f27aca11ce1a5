"""A process of a crew: `python -m bench.support.worker`.

It does what a line of JSON on its standard input says, and answers with one on its standard output.
It ends when its input does, so that it never outlives the benchmark.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any

from bench.support.following import Following, follow
from bench.support.queueing import Claims, drain, join_queue
from bench.support.writing import Put, Tool, put_for_a_while, sleep_until
from tailrace.cli.stamps import write_stamps

__all__ = ["Worker"]

Answer = dict[str, Any]


class Worker:
    """What it has open, and what it can do with that. Each method is an order."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._tool: Tool | None = None
        self._put: Put | None = None
        self._following: Following | None = None
        self._claims: Claims | None = None

    def open(self, folder: str, **tool: Any) -> Answer:
        """Get ready to write."""
        self._tool = Tool(**tool)
        self._put = self._open.enter_context(self._tool.open(Path(folder)))
        self._tool.items()  # not in the time
        return {}

    def put(self, start: int, seconds: float) -> Answer:
        """Write from a moment on, as fast as possible."""
        assert self._put is not None
        assert self._tool is not None
        return put_for_a_while(self._put, self._tool, start, seconds)

    def stamp(self, count: int, pause_s: float) -> Answer:
        """Write records that say when they were written."""
        assert self._put is not None
        used = process_time()
        took = write_stamps(self._put, count, pause_s=pause_s)
        return {"latencies": list(took), "cpu_seconds": process_time() - used}

    def follow(self, how: str, folder: str, followers: int) -> Answer:
        """Begin to follow such records."""
        self._following = follow(how, Path(folder), followers)
        self._open.callback(self._following.close)
        return {}

    def seen(self) -> Answer:
        """Wait for the end, and tell how old the records were."""
        assert self._following is not None
        instances = _inotify_instances()
        self._following.join()
        return {"seen": [list(seen) for seen in self._following.seen], "inotify": instances}

    def rest(self, seconds: float) -> Answer:
        """Do nothing, while those who follow wait: what does that take?"""
        used, slept = process_time(), _sleeps()
        time.sleep(seconds)
        return {
            "cpu_seconds": process_time() - used,
            "sleeps": _sleeps() - slept - 1,  # without ours
            "inotify": _inotify_instances(),
        }

    def join(self, folder: str, kind: str, size: int) -> Answer:
        """Get ready to claim, together with others."""
        self._claims = self._open.enter_context(join_queue(kind, Path(folder), size))
        return {}

    def drain(self, start: int, seconds: float) -> Answer:
        """Claim and settle from a moment on, until there is no more."""
        assert self._claims is not None
        sleep_until(start)
        began = perf_counter_ns()
        sample = drain(self._claims, sys.maxsize, seconds)
        return {
            "records": sample.count,
            "began": began,
            "ended": began + round(sample.seconds * 1e9),
            "latencies": list(sample.latencies),
            **sample.extra,
        }

    def close(self) -> Answer:
        self._open.close()
        self._put = self._tool = self._following = self._claims = None
        return {}


def _sleeps() -> int:
    """How often a thread of this process has gone to sleep, and so was woken."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _inotify_instances() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this listing
            count += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
    return count


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ours ends with our input
    worker = Worker()
    for line in sys.stdin:
        order = json.loads(line)
        carry_out: Callable[..., Answer] = getattr(worker, order.pop("do"))
        try:
            answer = carry_out(**order)
        except Exception as error:  # noqa: BLE001  told to whoever gave the order
            answer = {"failure": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    worker.close()


if __name__ == "__main__":
    main()
