"""Make the indexes of a log or of a store anew, where they are not right.

The driver has each log to itself meanwhile, and writes the seals; tasks read segments and replace
index files. What a kill leaves, whenever it comes, is a log that works (`log/offline/reindex.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.reindex import (
    LogReindexing,
    Reindexed,
    ReindexTask,
    log_reindexing,
    reindex_segment,
)
from tailrace.log.options import LogOptions
from tailrace.log.segments import list_segments
from tailrace.queue.layout import Layout
from tailrace.queue.offline.tree import Tree
from tailrace.queue.offline.verify import logs_of
from tailrace.spark.jobs.running import Means, Running

__all__ = ["LogIndexes", "ReindexReport", "reindex", "settings_of"]

_AT_ONCE = 128  # logs, each of which is a lock and an open file


@dataclass
class LogIndexes:
    """What became of a log's indexes. `left_out` are bases of segments that are not closed: who
    opens the log makes their indexes."""

    folder: str
    segments: int = 0
    bytes: int = 0
    renewed: list[str] = field(default_factory=list)  # index files
    damaged: list[tuple[int, int]] = field(default_factory=list)  # (base, position)
    left_out: list[int] = field(default_factory=list)


@dataclass
class ReindexReport:
    logs: list[LogIndexes] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(log.damaged for log in self.logs)


def settings_of(root: str) -> dict[str, LogOptions | None]:
    """The folders of a store's logs, and what each is set to, if anybody knows."""
    fs = OsFileSystem()
    tree, layout = Tree(fs, root), Layout(fs, root)
    known = {
        layout.segments(name): LogOptions.parse(**_index_options(settings.log_arguments()))
        for name, settings in tree.config.queues.items()
    }
    return {folder: known.get(folder) for folder in logs_of(fs, root)}


def _index_options(arguments: Mapping[str, object]) -> dict[str, object]:
    names = ("index_interval", "time_index_interval")
    return {name: arguments[name] for name in names if name in arguments}


def reindex(logs: Mapping[str, LogOptions | None], means: Means) -> tuple[ReindexReport, Running]:
    """Make the indexes of these logs; `Locked` if somebody writes to one of them."""
    fs = OsFileSystem()
    folders = list(logs)
    total = sum(extent.size for folder in folders for extent in list_segments(fs, folder))
    running, report = Running(means, total), ReindexReport()
    for first in range(0, len(folders), _AT_ONCE):
        with _alone(folders[first : first + _AT_ONCE], logs) as opened:
            tasks = [_placed(task) for log in opened for task in log.tasks]
            results = iter(running.run(_reindex, tasks))
            for log in opened:
                found = [next(results) for _ in log.tasks]
                log.note(found)
                report.logs.append(_summary(log, found))
    running.finish()
    return report, running


@contextlib.contextmanager
def _alone(
    folders: list[str], logs: Mapping[str, LogOptions | None]
) -> Iterator[list[LogReindexing]]:
    fs = OsFileSystem()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(log_reindexing(fs, folder, logs[folder])) for folder in folders]


def _summary(log: LogReindexing, found: list[Reindexed]) -> LogIndexes:
    return LogIndexes(
        log.folder,
        segments=len(found),
        bytes=sum(task.size for task in log.tasks),
        renewed=[name for each in found for name in each.files],
        damaged=[(each.base, each.position) for each in found if each.position is not None],
        left_out=[check.base for check in log.left_out],
    )


def _placed(task: ReindexTask) -> ReindexTask:
    """For a process that may run in another folder."""
    folder = os.path.abspath(task.check.folder)
    return replace(task, check=replace(task.check, folder=folder))


def _reindex(task: ReindexTask) -> Reindexed:
    return reindex_segment(OsFileSystem(), task)
