"""Row 10 of queues: a store of a thousand queues, each with a message.

What is in use costs, what is there does not: opening takes the list of the queues, and however many
are used one after the other, a bounded number of them is open at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tailrace
from bench.peers.tables import make_tables
from bench.support.many_probe import GROUP, HANDLES_MOST
from bench.support.race import Check, Contestant, Line, Result, Role, Row, Unit, race
from bench.support.setting import Setting
from tailrace.cli.measure import Sample, human_time, median

__all__ = ["open_many"]

_FEW = 10
_ROUNDS = 3  # each uses every queue
_OPEN_MS = 1000.0
_RESIDENT_MB = 100.0
_HANDLES = HANDLES_MOST / 2


def open_many(setting: Setting) -> Row:
    count, few = setting.sizes.queue.queues, min(_FEW, setting.sizes.queue.queues)
    value = setting.payload.values[0]
    with (
        setting.scratch("many") as many,
        setting.scratch("few") as less,
        setting.scratch("peer") as peer,
    ):
        for folder, number in ((many, count), (less, few)):
            _build(folder, number, value)
        contestants = [
            Contestant(f"tailrace, {count:,} queues", Role.OURS, partial(_probe, many, count)),
            Contestant(f"tailrace, {few} queues", Role.BASE, partial(_probe, less, few)),
            Contestant("list and stat the folders", Role.LIMIT, partial(_list, many)),
        ]
        if setting.with_peers:
            database = peer / "queues.db"
            make_tables(database, count, value)
            run = partial(_open_tables, database, count)
            contestants.append(Contestant("SQLite, a table for each", Role.PEER, run))
        results = race(contestants, min(setting.sizes.rounds, _ROUNDS))
    lines = [
        _opening(results, count),
        _first_message(results, count),
        _memory(results[:2], count),
        _handles(results[:2], count),
    ]
    conditions = {"queues": count, "value_bytes": 256, "handles_most": HANDLES_MOST, "core": None}
    return Row(10, "many-queues", lines[0].title, lines, conditions)


def _build(folder: Path, count: int, value: bytes) -> None:
    """Each queue has a group, as one has that is used."""
    with tailrace.open(folder, flush="none") as store:
        for number in range(count):
            queue = store.queue(f"queue-{number:05d}")
            queue.consumer(group=GROUP).close()
            queue.publish(value)


# --- the lines ------------------------------------------------------------------------------


def _opening(results: list[Result], count: int) -> Line:
    line = Line(f"open {count:,} queues with a message each", Unit.MILLISECONDS, results)
    line.target = "under 1 s"
    line.checks = [Check("ms", line.value(line.ours), _OPEN_MS, at_least=False)]
    return line


def _first_message(results: list[Result], count: int) -> Line:
    others = [result for result in results if result.role is not Role.LIMIT]
    taken = [_instead(result, lambda s: s.extra["first_seconds"]) for result in others]
    line = Line(f"open {count:,} queues, receive a message", Unit.MILLISECONDS, taken)
    line.target = "under 1 s"
    line.checks = [Check("ms", line.value(line.ours), _OPEN_MS, at_least=False)]
    return line


def _memory(results: list[Result], count: int) -> Line:
    line = Line(f"resident memory, all {count:,} used", Unit.MEGABYTES, results)
    line.target = f"under {_RESIDENT_MB:.0f} MB"
    line.checks = [Check("MB", line.value(line.ours), _RESIDENT_MB, at_least=False)]
    return line


def _handles(results: list[Result], count: int) -> Line:
    line = Line(f"open files, all {count:,} used", Unit.HANDLES, results)
    line.target = f"at most half of the {HANDLES_MOST:,} that the process may have"
    line.checks = [Check("handles", line.value(line.ours), _HANDLES, at_least=False)]
    seconds = median(sample.extra["all_seconds"] for sample in line.ours.samples)
    line.notes.append(
        f"using one queue after the other, each with a consumer of its own, takes "
        f"{human_time(seconds / count * 1e9)} for a queue"
    )
    return line


def _instead(result: Result, seconds: Callable[[Sample], float]) -> Result:
    """The same runs by another time that was taken in them."""
    samples = [Sample(1, seconds(sample)) for sample in result.samples]
    return Result(result.name, result.role, samples, result.failure)


# --- what is measured -----------------------------------------------------------------------


def _probe(folder: Path, count: int) -> Sample:
    """Open it in a new process, which tells what that took."""
    command = [sys.executable, "-m", "bench.support.many_probe", str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    return Sample(1, seen.pop("seconds"), extra=seen)


def _list(folder: Path) -> Sample:
    began = time.perf_counter()
    for path, names, files in os.walk(folder):
        for name in (*names, *files):
            os.stat(os.path.join(path, name))
    return Sample(1, time.perf_counter() - began)


def _open_tables(database: Path, count: int) -> Sample:
    """Open it, know the queues, and read a message of one."""
    began = time.perf_counter()
    with contextlib.closing(sqlite3.connect(database)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        opened = time.perf_counter()
        assert len(names) == count
        assert db.execute(f"SELECT value FROM {names[-1]}").fetchone()
        received = time.perf_counter()
    return Sample(1, opened - began, extra={"first_seconds": received - began})
