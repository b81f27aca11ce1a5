"""Where things are in a store.

    <base>/tailrace.yaml, .yml or .toml               its configuration, if it has one of its own
    <base>/queue/
      config/queues.json
      groups/<queue>/<group>.json                     FluxMQ's, written when a group is closed
      queues/<queue>/segments/…                       the log
      queues/<queue>/consumers/<group>/…              state.json, pel_<n>.json, ops.log
      .tailrace/                                      board, lock, members, trash
      .tailrace/delayed/<incarnation>/                what is to be delivered to a queue later
      .tailrace/pipelines/<name>/                     what a pipeline of Spark's keeps

Names are escaped (`names.py`). FluxMQ does not escape: a name with a slash is a folder in a folder
there, which is used as it is where it exists.
"""

from __future__ import annotations

import os
from typing import Final

from tailrace.errors import ConfigError
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.names import from_component, to_component

__all__ = ["CONFIGS", "Layout", "find_base", "find_root"]

CONFIGS: Final = ("tailrace.yaml", "tailrace.yml", "tailrace.toml")

_SEGMENTS: Final = "segments"
_CONSUMERS: Final = "consumers"
# A folder without any of these only holds FluxMQ's folders of groups with a slash in their name.
_GROUP_FILES: Final = (FOLDER, "state.json", "ops.log")


def find_root(fs: FileSystem, path: str) -> str:
    """The folder that holds `config` and `queues`: the one that was given, if it is one of a store,
    else `queue` in it."""
    inner = os.path.join(path, "queue")
    if _exists(fs, os.path.join(inner, "config")) or _exists(fs, os.path.join(inner, "queues")):
        return inner
    for name in ("config/queues.json", "queues"):
        if _exists(fs, os.path.join(path, *name.split("/"))):
            return path
    _refuse_file(fs, path)
    return inner


def find_base(root: str) -> str:
    """The folder of the store, in which its own configuration is."""
    return os.path.dirname(root) if os.path.basename(root) == "queue" else root


def _refuse_file(fs: FileSystem, path: str) -> None:
    """`ConfigError` if the path, or what it is below, is there and is no folder."""
    above = path
    while not _exists(fs, above) and os.path.dirname(above) not in ("", above):
        above = os.path.dirname(above)
    if _exists(fs, above) and not fs.stat(above).is_dir:
        raise ConfigError(f"path: {above} is a file, not a folder; name the folder of the store")


class Layout:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.root = root
        self.side = os.path.join(root, FOLDER)

    def queue(self, name: str) -> str:
        return self._place(os.path.join(self.root, "queues"), name, _SEGMENTS)

    def segments(self, name: str) -> str:
        return os.path.join(self.queue(name), _SEGMENTS)

    def group(self, queue: str, group_id: str) -> str:
        return self._place(os.path.join(self.queue(queue), _CONSUMERS), group_id, "")

    def groups(self, queue: str) -> list[str]:
        """The ids of the groups that have a folder of ours."""
        folder = os.path.join(self.queue(queue), _CONSUMERS)
        try:
            entries = self._fs.list(folder)
        except FileNotFoundError:
            return []
        names = [entry.name for entry in entries if entry.is_dir and not entry.name.startswith(".")]
        return sorted(
            from_component(name)
            for name in names
            if any(_exists(self._fs, os.path.join(folder, name, file)) for file in _GROUP_FILES)
        )

    def has_group(self, queue: str, group_id: str) -> bool:
        """Has the group a folder of ours?"""
        return _exists(self._fs, self.group(queue, group_id))

    def delayed(self, incarnation: str = "") -> str:
        """Where a queue's delayed messages are; or those of all."""
        name = incarnation.replace("/", "_").replace(".", "_")
        return os.path.join(self.side, "delayed", *([name] if name else []))

    def pipeline(self, name: str) -> str:
        """What a pipeline of Spark's keeps: its checkpoint, and how it goes."""
        return os.path.join(self.side, "pipelines", to_component(name))

    def trash(self, name: str) -> str:
        return os.path.join(self.side, "trash", name)

    def _place(self, folder: str, name: str, inside: str) -> str:
        """The escaped folder; or the nested one, if only that exists."""
        ours = os.path.join(folder, to_component(name))
        parts = name.split("/")
        is_nested = len(parts) > 1 and not any(part in ("", ".", "..") for part in parts)
        if is_nested and inside and not _exists(self._fs, ours):
            nested = os.path.join(folder, *parts)
            if _exists(self._fs, os.path.join(nested, inside)):
                return nested
        return ours


def _exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
