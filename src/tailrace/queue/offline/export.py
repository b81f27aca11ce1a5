"""Groups that nobody has closed, because whoever had them open was killed.

What such a group knows is in its journal, which FluxMQ cannot read. To open it and close it again
leaves the files that a clean close leaves. Groups that somebody has open are left to them: the last
one who closes a group does the same. To open the store also removes what was being written when
somebody was killed who changed its queues.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.repair import Action, RecoveryReport
from tailrace.queue.group_files import is_held, is_open
from tailrace.queue.journal import NAME, parse_line
from tailrace.queue.layout import Layout
from tailrace.queue.offline.tree import Tree, read_all
from tailrace.queue.registry import left_behind

__all__ = ["export_groups"]


class _LeftOpen(NamedTuple):
    queue: str
    group_id: str
    folder: str


def export_groups(fs: FileSystem, root: str, *, apply: bool = False) -> RecoveryReport:
    """Close the groups of a store that were left open, and remove what a change of its queues left,
    if `apply`; else say which they are. The logs have to be in order."""
    found, unfinished = _left_open(fs, root), _unfinished(fs, root)
    report = RecoveryReport(root, applied=apply)
    if apply and (found or unfinished):
        _open_and_close(fs, root, found)
        still, yet = _left_open(fs, root), _unfinished(fs, root)
        report.applied = not set(still) & set(found) and not set(yet) & set(unfinished)
        if not report.applied:
            found, unfinished = still, yet
    for path in unfinished:
        message = "remove what was being written when the queues could not be changed"
        report.actions.append(Action("remove", os.path.relpath(path, root), message))
    for each in found:
        path = os.path.relpath(os.path.join(each.folder, NAME), root)
        message = (
            f"close the group {each.group_id!r} of {each.queue!r}, as a killed process did not"
        )
        report.actions.append(Action("export", path, message))
    return report


def _left_open(fs: FileSystem, root: str) -> list[_LeftOpen]:
    layout = Layout(fs, root)
    groups = (
        _LeftOpen(place.name, group_id, layout.group(place.name, group_id))
        for place in Tree(fs, root).queues()
        if place.settings is not None
        for group_id in layout.groups(place.name)
    )
    return [each for each in groups if _has_journal(fs, each) and not is_open(fs, each.folder)]


def _unfinished(fs: FileSystem, root: str) -> list[str]:
    """Unless somebody is at it."""
    path = os.path.join(root, "config", "queues.json")
    try:
        found = left_behind(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found if found and not is_held(fs, root, "lock") else []


def _has_journal(fs: FileSystem, group: _LeftOpen) -> bool:
    """One of ours: FluxMQ's has the same name."""
    data = read_all(fs, os.path.join(group.folder, NAME)) or b""
    return any(parse_line(line) is not None for line in data.split(b"\n"))


def _open_and_close(fs: FileSystem, root: str, groups: list[_LeftOpen]) -> None:
    from tailrace.queue.store import Store  # it is more than who only looks wants to load

    side = Layout(fs, root).side
    fs.make_dirs(side)
    # As if somebody had the store open: whoever comes alone deletes its ephemeral queues.
    presence = fs.lock(os.path.join(side, "members"))
    try:
        presence.acquire(shared=True)
        given = None if isinstance(fs, OsFileSystem) else fs
        with Store(root, upkeep=False, fs=given) as store:
            for each in groups:
                store.get(each.queue).find_group(each.group_id)
    finally:
        presence.close()
