"""What a process of a crew does when it writes: for a while, as fast as it can, or in a rhythm.

A tool is opened in a folder where others have it open too, and gives what puts a record or a batch.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any, Literal

from bench.peers import Peer
from bench.peers.shared import shared_peers
from bench.support.bare import AppendingFile, LockedFile, MarkedFile
from bench.support.queueing import open_queue
from bench.support.setting import BATCH, Payload
from tailrace import Log

__all__ = ["RAW_NAME", "Tool", "peer_named", "put_for_a_while", "sleep_until"]

RAW_NAME = "raw"
_UNTIMED = 15  # quick puts between two looks at the clock, which would be part of the figure
_QUICK_NS = 50_000

_BARE: dict[str, type[AppendingFile]] = {
    "file": AppendingFile,
    "locked": LockedFile,
    "marked": MarkedFile,
}

Put = Callable[[Any], object]


@dataclass(frozen=True)
class Tool:
    """What to write with. `kind` is "log", "queue", "file" (append to a file), "locked" (the same,
    in turns), "marked" (with a mark for what is durable), or the name of a peer."""

    kind: str
    batch: bool = False
    durable: bool = False
    mode: Literal["owner", "shared"] = "owner"  # of a log

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Put]:
        match self.kind:
            case "log":
                flush = "sync" if self.durable else "async"
                with Log(folder, flush=flush, mode=self.mode) as log:
                    yield self._put_of(log)
            case "queue":
                with open_queue(folder, "sync" if self.durable else "async") as queue:
                    yield queue.publish
            case name if name in _BARE:
                with contextlib.closing(_BARE[name](folder / RAW_NAME)) as file:
                    yield file.write_durably if self.durable else file.write
            case name:
                session = peer_named(name).open(folder)
                try:
                    put = session.put_batch if self.batch else session.put
                    assert put is not None
                    yield put
                finally:
                    session.close()

    def _put_of(self, log: Log) -> Put:
        if not self.durable:
            return log.append if self.batch else log.append_one
        append: Callable[[Any], Any] = log.append if self.batch else log.append_one
        return lambda item: append(item).wait()

    def items(self) -> list[Any]:
        """What to put: into files the bytes that a log would write for the same records."""
        payload = _payload()
        is_bare = self.kind in _BARE
        if self.batch:
            return list(payload.encoded_batches if is_bare else payload.batches)
        return list(payload.encoded_values if is_bare else payload.values)


@cache
def _payload() -> Payload:
    return Payload()


def peer_named(name: str) -> Peer:
    return next(peer for peer in shared_peers() if peer.name == name)


def sleep_until(moment: int) -> None:
    """Until the clock, which is one for all processes, shows so many nanoseconds."""
    left = moment - perf_counter_ns()
    if left > 0:
        time.sleep(left / 1e9)


def put_for_a_while(put: Put, tool: Tool, start: int, seconds: float) -> dict[str, Any]:
    """Put from a moment on, for so many seconds: the records, when it was, and how long a put
    took. Of quick ones only some are timed."""
    items = cycle(tool.items())
    took = array("q")
    note, clock, until = took.append, perf_counter_ns, start + round(seconds * 1e9)
    count = 0
    sleep_until(start)
    used = process_time()
    began = now = clock()
    while now < until:
        put(next(items))
        after = clock()
        note(after - now)
        count += 1
        if after - now < _QUICK_NS and not tool.batch:
            for item in islice(items, _UNTIMED):
                put(item)
            count += _UNTIMED
            after = clock()
        now = after
    return {
        "records": count * (BATCH if tool.batch else 1),
        "began": began,
        "ended": now,
        "latencies": list(took),
        "cpu_seconds": process_time() - used,
    }
