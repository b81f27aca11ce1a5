"""What a store's folder holds: queues, groups, and what is left over.

Names in paths are escaped (`names.py`). FluxMQ does not escape: there a name with a slash is a
folder in a folder, so folders are searched to their ground.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt
from tailrace.log.fs import Entry, FileSystem, read_file
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.fluxmq_config import load
from tailrace.queue.journal import NAME
from tailrace.queue.layout import Layout
from tailrace.queue.names import from_component
from tailrace.queue.settings import QueueSettings
from tailrace.queue.snapshots import STATE

__all__ = ["Config", "GroupPlace", "QueuePlace", "Tree", "entries", "read_all"]

_OF_QUEUES: Final = ("segments", "consumers")
_PEL: Final = re.compile(r"pel_[0-7]\.json")


class Config(NamedTuple):
    """`config/queues.json`. `fault`: why nothing can be read there, at `position` if that is known.
    `is_missing` is no fault of an empty store."""

    queues: dict[str, QueueSettings]
    fault: str | None = None
    position: int | None = None
    is_missing: bool = False


class QueuePlace(NamedTuple):
    """A queue's folder; without `settings`, the registry does not know it."""

    name: str
    folder: str
    settings: QueueSettings | None


class GroupPlace(NamedTuple):
    id: str
    folder: str


class Tree:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.root = root
        self.config = self._read_config()

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _read_config(self) -> Config:
        data = read_all(self._fs, os.path.join(self.root, "config", "queues.json"))
        if data is None:
            return Config({}, is_missing=True)
        try:
            return Config({settings.name: settings for settings in load(data)})
        except Corrupt as error:
            return Config({}, str(error), error.position)
        except ConfigError as error:
            return Config({}, str(error))

    def queues(self) -> list[QueuePlace]:
        """Those of the registry that have a folder, and folders that it does not know."""
        layout = Layout(self._fs, self.root)
        found = {}
        for name, settings in self.config.queues.items():
            folder = layout.queue(name)
            if _is_dir(self._fs, folder):
                found[folder] = QueuePlace(name, folder, settings)
        top = os.path.join(self.root, "queues")
        for folder in self._queue_folders(top):
            if folder not in found:
                name = from_component(os.path.relpath(folder, top))
                found[folder] = QueuePlace(name, folder, None)
        return sorted(found.values())

    def _queue_folders(self, folder: str) -> Iterator[str]:
        for entry in entries(self._fs, folder):
            below = os.path.join(folder, entry.name)
            if entry.is_dir and entry.name != FOLDER:
                names = {each.name for each in entries(self._fs, below)}
                if names & {*_OF_QUEUES, FOLDER}:
                    yield below
                else:
                    yield from self._queue_folders(below)

    def groups(self, queue: QueuePlace) -> list[GroupPlace]:
        """The folders of a queue's groups, ours and FluxMQ's."""
        top = os.path.join(queue.folder, "consumers")
        return sorted(
            GroupPlace(from_component(os.path.relpath(folder, top)), folder)
            for folder in self._group_folders(top)
        )

    def _group_folders(self, folder: str) -> Iterator[str]:
        for entry in entries(self._fs, folder):
            below = os.path.join(folder, entry.name)
            if entry.is_dir and not entry.name.startswith("."):
                names = [each.name for each in entries(self._fs, below)]
                if any(name in (NAME, STATE, FOLDER) or _PEL.fullmatch(name) for name in names):
                    yield below
                yield from self._group_folders(below)

    def saved(self) -> Iterator[str]:
        """The files in `groups`."""
        for path in self._files(os.path.join(self.root, "groups")):
            if path.endswith(".json"):
                yield path

    def temporary(self) -> Iterator[str]:
        """What was being written beside `config/queues.json` and the files in `groups`."""
        for folder in ("config", "groups"):
            for path in self._files(os.path.join(self.root, folder)):
                if path.endswith(".tmp"):
                    yield path

    def _files(self, folder: str) -> Iterator[str]:
        for entry in sorted(entries(self._fs, folder)):
            path = os.path.join(folder, entry.name)
            if entry.is_dir:
                yield from self._files(path)
            else:
                yield path


def entries(fs: FileSystem, folder: str) -> list[Entry]:
    """What is in a folder; nothing if there is none."""
    try:
        return fs.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_all(fs: FileSystem, path: str) -> bytes | None:
    """A whole file; `None` if there is none."""
    try:
        return read_file(fs, path, fs.stat(path).size)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _is_dir(fs: FileSystem, path: str) -> bool:
    try:
        return fs.stat(path).is_dir
    except (FileNotFoundError, NotADirectoryError):
        return False
