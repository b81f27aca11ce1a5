"""Make the indexes of a log anew: of every segment that does not grow any more.

Each segment is a task by itself, for any thread or process: it is read with its checksums, and an
index file that is not what comes of that is replaced at one stroke. What was found is noted in the
seals afterwards, by whoever has the log to himself meanwhile. Every step may be the last one, and
tasks may go on after whoever asked for them was killed: a segment that is closed does not change,
so what they write is right whenever they do; and until its seal fits, an index is not believed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tailrace.errors import ConfigError
from tailrace.log.fs import FileSystem, read_file, rename_new
from tailrace.log.offline.alone import alone
from tailrace.log.offline.log_survey import LogPlan
from tailrace.log.offline.segment import SegmentCheck, sealed_intervals
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.scan import Facts, scan
from tailrace.log.segments import seal_of, segment_path
from tailrace.log.sidefiles import Identity, Seal, Seals, side_path

__all__ = ["LogReindexing", "ReindexTask", "Reindexed", "log_reindexing", "reindex_segment"]

Outcome = Literal["right", "renewed", "damaged"]


@dataclass(frozen=True)
class ReindexTask:
    """A segment whose indexes are to be made, with entries so far apart. It can be pickled."""

    check: SegmentCheck
    index_interval: int
    time_index_interval_ms: int

    @property
    def size(self) -> int:
        return self.check.size


class Reindexed(NamedTuple):
    """What became of a segment. `files` were replaced; `position` is where it is damaged."""

    base: int
    outcome: Outcome
    files: tuple[str, ...] = ()
    seal: Seal | None = None
    position: int | None = None


def reindex_segment(fs: FileSystem, task: ReindexTask) -> Reindexed:
    """Read a segment, and replace those of its indexes that are not right."""
    check = task.check
    intervals = task.index_interval, task.time_index_interval_ms
    kept = sealed_intervals(fs, check)  # as they were when it was written, if that is known
    facts = _facts(fs, check, *(kept or intervals))
    if facts.damages or facts.size != check.size:
        position = facts.damages[0].position if facts.damages else facts.size
        return Reindexed(check.base, "damaged", position=position)
    if kept is not None and _wrong(fs, check, facts):
        facts = _facts(fs, check, *intervals)
    files = _wrong(fs, check, facts)
    for extension, data in files.items():
        _replace(fs, segment_path(check.folder, check.base, extension), check.folder, data)
    if files:
        fs.sync_dir(check.folder)
    names = [os.path.basename(segment_path("", check.base, each)) for each in files]
    outcome: Outcome = "renewed" if files else "right"
    return Reindexed(check.base, outcome, tuple(names), seal_of(facts))


def _facts(
    fs: FileSystem, check: SegmentCheck, index_interval: int, time_interval_ms: int
) -> Facts:
    facts = Facts(check.base, index_interval, time_interval_ms)
    file = fs.open(check.path)
    try:
        scan(file, facts, check.size)
    finally:
        file.close()
    return facts


def _wrong(fs: FileSystem, check: SegmentCheck, facts: Facts) -> dict[str, bytes]:
    """What the index files should be, of those that are not."""
    wanted = {"idx": facts.offsets.to_bytes(), "tix": facts.times.to_bytes()}
    found = {
        extension: read_file(fs, segment_path(check.folder, check.base, extension), len(data) + 1)
        for extension, data in wanted.items()
    }
    return {extension: data for extension, data in wanted.items() if found[extension] != data}


def _replace(fs: FileSystem, path: str, folder: str, data: bytes) -> None:
    """Whoever opens the log removes what a kill leaves."""
    rename_new(fs, path, side_path(folder, f"{os.path.basename(path)}.{os.getpid()}.tmp"), data)


# --- the log --------------------------------------------------------------------------------


class LogReindexing:
    """A log whose indexes are being made: carry out the `tasks`, here or elsewhere, and `note` what
    came of them."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions | None) -> None:
        self._fs = fs
        self.folder = folder
        plan = LogPlan(fs, folder, options or LogOptions())
        if plan.refusal is not None:
            raise ConfigError(f"{folder}: {plan.refusal}")
        identity = Identity.load(fs, folder)
        checks = [check for check in plan.checks if check.size]
        # Without a clean end the next open makes the last one's indexes in any case.
        self.left_out = [] if plan.is_clean else checks[-1:]
        closed = checks if plan.is_clean else checks[:-1]
        # A seal must not outlive the bytes that it is about.
        is_synced = identity is not None and identity.flush != FlushMode.NONE
        below = plan.durable_segment or 0
        self._sealed = {
            check.base for check in closed if is_synced and (plan.is_synced or check.base < below)
        }
        intervals = _intervals(fs, closed, options)
        self.tasks = [ReindexTask(check, *intervals) for check in closed]
        self._known = {check.base: check.seal for check in closed}

    def note(self, results: list[Reindexed]) -> None:
        """Write the seals that are new."""
        new = [
            each.seal
            for each in results
            if each.seal is not None
            and each.base in self._sealed
            and each.seal != self._known[each.base]
        ]
        if new:
            seals = Seals(self._fs, self.folder)
            seals.load(set(self._known))
            for seal in new:
                seals.add(seal)


def _intervals(
    fs: FileSystem, checks: list[SegmentCheck], options: LogOptions | None
) -> tuple[int, int]:
    """What the log is set to. Of one that stands alone only its files tell: what an index has that
    is as it was sealed, the others are to have."""
    usual = options or LogOptions()
    if options is None:
        for check in reversed(checks):
            kept = sealed_intervals(fs, check)
            if kept is not None:
                return kept[0], usual.time_index_interval_ms
    return usual.index_interval, usual.time_index_interval_ms


@contextlib.contextmanager
def log_reindexing(
    fs: FileSystem, folder: str, options: LogOptions | None = None
) -> Iterator[LogReindexing]:
    """Have a log alone, to make its indexes. `options` are what it is set to, if that is known.
    `Locked` if somebody writes to it."""
    fs.make_dirs(side_path(folder, "").rstrip("/"))  # of a log that another program wrote
    with alone(fs, folder):
        yield LogReindexing(fs, folder, options)
