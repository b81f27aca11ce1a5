"""Check what is to be delivered later: of each queue the manifest, the log of what was published,
and the sorted runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tailrace.errors import ConfigError, Corrupt
from tailrace.log.fs import FileSystem
from tailrace.log.offline.findings import Finding
from tailrace.log.offline.verify import verify as verify_log
from tailrace.log.offline.words import offsets
from tailrace.queue.layout import Layout
from tailrace.queue.offline.tree import Tree, entries
from tailrace.queue.schedule import Manifest

__all__ = ["check_delayed", "logs_of_delayed"]


def _folders(fs: FileSystem, root: str) -> list[str]:
    top = Layout(fs, root).delayed()
    return sorted(os.path.join(top, entry.name) for entry in entries(fs, top) if entry.is_dir)


def _logs(fs: FileSystem, folder: str) -> list[str]:
    runs = os.path.join(folder, "runs")
    found = [os.path.join(folder, "incoming")]
    found += sorted(os.path.join(runs, entry.name) for entry in entries(fs, runs))
    return [each for each in found if entries(fs, each)]


def logs_of_delayed(fs: FileSystem, root: str) -> list[str]:
    """The folders of the logs in which delayed messages are."""
    return [log for folder in _folders(fs, root) for log in _logs(fs, folder)]


def check_delayed(fs: FileSystem, tree: Tree) -> Iterator[Finding]:
    known = {settings.incarnation for settings in tree.config.queues.values()}
    for folder in _folders(fs, tree.root):
        path = tree.relative(folder)
        if os.path.basename(folder) not in known and tree.config.fault is None:
            message = "is left of a queue that was deleted; whoever opens the store alone removes "
            yield Finding("note", path, None, None, f"{message}it")
            continue
        yield from _check(fs, tree, folder)


def _check(fs: FileSystem, tree: Tree, folder: str) -> Iterator[Finding]:
    name = tree.relative(Manifest.path(folder))
    try:
        manifest = Manifest.load(fs, folder)
    except (Corrupt, ConfigError) as error:
        yield Finding("problem", name, None, None, str(error))
        return
    ends = {}
    for log in _logs(fs, folder):
        report = verify_log(fs, log)
        ends[os.path.basename(log)] = report.end_offset
        above = tree.relative(log)
        for finding in report.findings:
            yield finding._replace(path=os.path.normpath(os.path.join(above, finding.path)))
    for run in manifest.runs:
        if ends.get(run.name, 0) < run.end:
            lost = offsets(max(ends.get(run.name, 0), run.position), run.end)
            message = f"messages that are to be delivered are missing: {lost} of the run {run.name}"
            yield Finding("problem", name, None, None, message)
    if ends.get("incoming", manifest.incoming) < manifest.incoming:
        message = f"begins at offset {manifest.incoming} of incoming, which ends before"
        yield Finding("problem", name, None, None, message)
    listed = {run.name for run in manifest.runs}
    for entry in sorted(entries(fs, os.path.join(folder, "runs"))):
        if entry.name not in listed:
            left = tree.relative(os.path.join(folder, "runs", entry.name))
            message = "is no run that counts: it is being made, or left over, and goes by itself"
            yield Finding("note", left, None, None, message)
