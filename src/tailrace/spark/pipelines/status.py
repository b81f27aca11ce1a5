"""How a pipeline goes, in a file that any process can read.

Whoever runs the pipeline writes it after each batch, whole, by a rename. Nothing hangs on it: it is
not synced, and one that cannot be read is as good as none. How far behind the pipeline is follows
from the offsets in it and where the queues end now.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any, Final

from tailrace.spark.pipelines.homes import Home
from tailrace.spark.planning import Place

__all__ = ["Status", "lag_of", "read_status", "written_in"]

_OF_CHECKPOINT: Final = (
    "batch",
    "batch_at",
    "batch_rows",
    "batch_ms",
    "rate",
    "watermark",
    "offsets",
)

_TYPES: Final[dict[str, tuple[type, ...]]] = {  # as the fields below say it
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "dict[str, int]": (dict,),
}


@dataclass
class Status:
    """What is known of a run. Times are milliseconds since 1970."""

    name: str
    state: str = "starting"  # running, stopped, failed; or unknown: it was killed
    pid: int = 0
    started_at: int = 0
    updated_at: int = 0
    batches: int = 0
    rows_in: int = 0
    rows_out: int | None = 0  # `None` where Spark does not count them
    dead_letters: int = 0
    checkpoint: str = ""  # its id: what follows is of it, whichever run it was
    batch: int | None = None  # the last one
    batch_at: int = 0
    batch_rows: int = 0
    batch_ms: int = 0
    rate: float = 0.0  # rows a second, of the last batch that had any
    watermark: str | None = None
    offsets: dict[str, int] = field(default_factory=dict)  # by queue, read up to here
    error: str | None = None

    def write(self, path: str) -> None:
        """As far as it can be: on a disk that is full there may be room where the last one is."""
        self.updated_at = time.time_ns() // 1_000_000
        data = json.dumps(asdict(self)).encode()
        new = f"{path}.{os.getpid()}.tmp"
        try:
            with open(new, "wb") as file:
                file.write(data)
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                file.write(data)
                file.truncate()

    def go_on(self, checkpoint: str, last: Status | None) -> None:
        """How far the checkpoint is by what the last run says, until there is a batch of this."""
        self.checkpoint = checkpoint
        if last is not None and last.checkpoint == checkpoint:
            for name in _OF_CHECKPOINT:
                setattr(self, name, getattr(last, name))

    def stay(self, home: Home) -> None:
        """What the last run has come to is still what is known: this one has not begun. Unless its
        checkpoint is no longer there."""
        last, made = read_status(home), home.made()
        if last is not None and made is not None and last.checkpoint == made.id:
            for each in fields(self):
                if each.name not in ("name", "state", "pid"):
                    setattr(self, each.name, getattr(last, each.name))

    def take(self, progress: Mapping[str, Any]) -> None:
        """What Spark says of a batch."""
        self.batches += 1
        self.batch = int(progress["batchId"])
        self.batch_at = time.time_ns() // 1_000_000
        self.batch_rows = int(progress["numInputRows"])
        self.batch_ms = int(progress["durationMs"].get("triggerExecution", 0))
        self.rows_in += self.batch_rows
        written = written_in(progress)
        self.rows_out = None if written is None else (self.rows_out or 0) + written
        if self.batch_rows and self.batch_ms:
            self.rate = self.batch_rows * 1000 / self.batch_ms
        self.look(progress)

    def look(self, progress: Mapping[str, Any]) -> None:
        """Where Spark is, whether there was a batch or not."""
        self.watermark = (progress.get("eventTime") or {}).get("watermark", self.watermark)
        found: dict[str, int] = {}
        for source in progress["sources"]:
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # of another kind
                for name, (at, _) in source["endOffset"].items():  # a queue may be read twice
                    found[name] = min(int(at), found.get(name, int(at)))
        self.offsets |= found


def written_in(progress: Mapping[str, Any]) -> int | None:
    """Rows that a batch has written, where Spark counts them."""
    count = int((progress.get("sink") or {}).get("numOutputRows", -1))
    return None if count < 0 else count


def read_status(home: Home) -> Status | None:
    """Of the last run; `None` if there was none, or it does not look like one."""
    try:
        with open(home.status, encoding="utf-8") as file:
            found = json.load(file)
        known = {each.name for each in fields(Status)}
        status = Status(**{name: value for name, value in found.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if not _is_sound(status):
        return None
    if status.state in ("starting", "running") and not home.is_held:
        status.state = "unknown"
    return status


def _is_sound(status: Status) -> bool:
    values = vars(status)
    if not all(isinstance(values[each.name], _TYPES[str(each.type)]) for each in fields(status)):
        return False
    return all(isinstance(offset, int) for offset in status.offsets.values())


def lag_of(store: str, offsets: Mapping[str, int]) -> dict[str, int]:
    """How many offsets of each queue are still to be read."""
    place = Place(store)
    there = place.queues()
    found = {}
    for name, offset in offsets.items():
        if name in there:
            with place.log(name, there[name].incarnation) as log:
                found[name] = max((0 if log is None else log.end_offset) - offset, 0)
    return found
