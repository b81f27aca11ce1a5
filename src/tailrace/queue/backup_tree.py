"""What is in the tree of a store: its logs, its groups, and the other files.

By what the folders hold, not by what the registry says: folders that FluxMQ has left are there to
be kept, and parts of a store may have logs of their own in `.tailrace`. What is of use only to
processes that have the store open is left out, and so is what is about to be removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from tailrace.log.fs import Entry, FileSystem, read_exactly
from tailrace.log.sidefiles import FOLDER, side_path
from tailrace.queue.backup_files import exists
from tailrace.queue.backup_log import is_log
from tailrace.queue.clock import Clock
from tailrace.queue.journal import NAME as JOURNAL
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.snapshots import STATE
from tailrace.queue.turns import turn_of

__all__ = ["REGISTRY", "Tree", "look_around", "read_group", "without_leases"]

REGISTRY: Final = "config/queues.json"

_QUEUES: Final = "queues/"
_PASSING: Final = {"attended", "board", "deleted", "members", "reserve", "trash"}
_TRIES: Final = 100
_NO_BOOT: Final = "0" * 32


@dataclass
class Tree:
    """Paths below the root, in order."""

    files: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    side_logs: list[str] = field(default_factory=list)  # in a folder `.tailrace`
    logs: list[str] = field(default_factory=list)
    size: int = 0  # of the segments, in bytes


def look_around(fs: FileSystem, root: str, without: Collection[str]) -> Tree:
    """All that is to be copied, but for the registry; and `without` some folders."""
    tree = Tree()
    _Walk(fs, root, without, tree).walk("")
    return tree


class _Walk:
    def __init__(self, fs: FileSystem, root: str, without: Collection[str], tree: Tree) -> None:
        self._fs = fs
        self._root = root
        self._without = without
        self._tree = tree

    def walk(self, path: str, *, in_consumers: bool = False) -> None:
        try:
            entries = sorted(self._fs.list(os.path.join(self._root, path)))
        except (FileNotFoundError, NotADirectoryError):  # it went meanwhile
            return
        names = {entry.name for entry in entries}
        if is_log(self._fs, os.path.join(self._root, path), names):
            is_aside = FOLDER in path.split("/")
            (self._tree.side_logs if is_aside else self._tree.logs).append(path)
            self._tree.size += sum(each.size for each in entries if each.name.endswith(".seg"))
            return
        if in_consumers and not names.isdisjoint((STATE, JOURNAL)):
            self._tree.groups.append(path)
        for entry in entries:
            below = os.path.join(path, entry.name)
            if not entry.is_dir:
                if not in_consumers and below != REGISTRY and not _is_passing(path, entry.name):
                    self._tree.files.append(below)
            elif in_consumers:
                if not entry.name.startswith("."):  # ours, or a group that is being deleted
                    self.walk(below, in_consumers=True)
            elif not self._is_left_out(path, entry):
                is_of_queue = path.startswith(_QUEUES) and entry.name == "consumers"
                self.walk(below, in_consumers=is_of_queue)

    def _is_left_out(self, path: str, entry: Entry) -> bool:
        below = os.path.join(path, entry.name)
        if below in self._without or _is_passing(path, entry.name):
            return True
        if not below.startswith(_QUEUES):
            return False
        try:  # a queue that was deleted, by one who was killed
            self._fs.stat(side_path(os.path.join(self._root, below), "deleted"))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def _is_passing(path: str, name: str) -> bool:
    if name.endswith(".tmp"):
        return True
    if os.path.basename(path) != FOLDER:
        return False
    return name in _PASSING or name.startswith("lock")


def read_group(fs: FileSystem, folder: str, clock: Clock) -> dict[str, bytes] | None:
    """The files of a group at one moment, between two turns, as they are when nobody has anything
    leased; `None` if it is not there any more."""
    files = _read_in_turn(fs, folder)
    if files is not None and JOURNAL in files:
        files[JOURNAL] = without_leases(files[JOURNAL], clock)
    return files


def without_leases(journal: bytes, clock: Clock) -> bytes:
    """What the journal says, and that the machine was started anew then. That ends all leases, and
    nobody is to blame; what is left of a delay goes on by the wall clock."""
    first = parse_line(journal.partition(b"\n")[0])
    if first is None or first["t"] != "begin":  # closed, or not ours
        return journal
    head, end, _unfinished = journal.rpartition(b"\n")
    before, _, line = head.rpartition(b"\n")
    last = parse_line(line)
    boot = {"t": "boot", "b": _NO_BOOT, "u": clock.boot_ms(), "w": clock.wall_ms()}
    if last is not None and last["t"] in ("moved", "deleted"):  # nothing comes behind these
        return before + end + encode_line(boot) + line + end
    return head + end + encode_line(boot)


def _read_in_turn(fs: FileSystem, folder: str) -> dict[str, bytes] | None:
    for _ in range(_TRIES):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(turn_of(fs, folder))
            except (FileNotFoundError, NotADirectoryError):
                # Nobody has had it open but FluxMQ, which knows no turns.
                files = _read_files(fs, folder)
                if files is None or not exists(fs, os.path.join(folder, FOLDER)):
                    return files
                continue
            return _read_files(fs, folder)
    return None


def _read_files(fs: FileSystem, folder: str) -> dict[str, bytes] | None:
    try:
        entries = fs.list(folder)
    except FileNotFoundError:
        return None
    files = {}
    for entry in entries:
        if entry.is_dir or entry.name == JOURNAL + ".tmp":
            continue
        file = fs.open(os.path.join(folder, entry.name))
        try:
            data = read_exactly(file, file.size(), 0)
        finally:
            file.close()
        # Behind a journal there is room, which is made again when it is needed.
        files[entry.name] = data.rstrip(b"\0") if entry.name == JOURNAL else data
    return files
