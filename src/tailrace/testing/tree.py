"""Names on a simulated disk: which are there, which are durable, and what a power cut keeps.

- A created, renamed or removed name is durable after a sync of its directory (for a rename: the
  target's), and not by a sync of the file. Until then a power cut keeps or loses each of these
  changes on its own. A removed directory that comes back has in it what has come back.
- A rename is one change: its target is the old file or the new one, and a file has one name.
- Making directories is durable, as the seam promises, but for no other name in the parent.

`strict=False` gives ext4's manners instead: name changes reach the disk in order, and a sync of a
directory, or of a file whose name is among them, takes all of them along.

Not thread-safe: `SimulatedDisk` holds a lock around every call.
"""

from __future__ import annotations

import copy
import errno
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tailrace.testing.contents import Contents

__all__ = ["Directory", "Inode", "Node", "Tree", "os_error", "parts"]

# How many unsynced name changes survive, drawn once per cut; see `contents`.
_SURVIVAL = (0.0, 0.2, 0.5, 0.8, 1.0)
_IN_ORDER = 0.3


class Node:
    """A file or a directory. `home` is its durable name."""

    def __init__(self) -> None:
        self.home: tuple[Directory, str] | None = None
        self.modified_ms = 0


class Directory(Node):
    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


class Inode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.contents = Contents()

    def __deepcopy__(self, memo: dict[int, Any]) -> Inode:
        # By hand, because a copy of every pending change would take most of a clone's time.
        twin = Inode()
        memo[id(self)] = twin
        twin.home = copy.deepcopy(self.home, memo)
        twin.modified_ms = self.modified_ms
        twin.contents = self.contents.copy()
        return twin


class _Naming(NamedTuple):
    """An unsynced change: `node` is now `name` in `directory`, or no longer is (`gone`)."""

    node: Node
    directory: Directory
    name: str
    gone: bool

    def settle(self) -> None:
        """Make it durable. `home` and `durable` always say the same."""
        if self.node.home is not None:
            directory, name = self.node.home
            del directory.durable[name]
            self.node.home = None
        if not self.gone:
            replaced = self.directory.durable.get(self.name)
            if replaced is not None:
                replaced.home = None
            self.directory.durable[self.name] = self.node
            self.node.home = (self.directory, self.name)


class Tree:
    """All names of a disk. Paths with and without a leading slash are the same."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self._root = Directory()
        self._namings: list[_Naming] = []

    def find(self, path: str) -> Node:
        parent, name = self._parent(path)
        node = parent.entries.get(name) if name else parent
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def inode(self, path: str) -> Inode:
        node = self.find(path)
        if not isinstance(node, Inode):
            raise os_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, path)
        return node

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """All files with their paths."""
        return _walk(self._root, "")

    def create(self, path: str) -> Inode:
        """A new, empty file; its parent must be there, and the name must not."""
        parent, name = self._parent(path)
        node = Inode()
        parent.entries[name] = node
        self._namings.append(_Naming(node, parent, name, gone=False))
        return node

    def make_dirs(self, path: str) -> None:
        directory = self._root
        for name in parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = directory.entries[name] = Directory()
                _Naming(node, directory, name, gone=False).settle()
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            directory = node

    def rename(self, source: str, target: str) -> None:
        node = self.find(source)
        old_parent, old_name = self._parent(source)
        parent, name = self._parent(target)
        replaced = parent.entries.get(name)
        if replaced is node:
            return
        if isinstance(replaced, Directory):
            raise os_error(errno.EISDIR, target)
        if replaced is not None and isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, target)
        del old_parent.entries[old_name]
        parent.entries[name] = node
        self._namings.append(_Naming(node, parent, name, gone=False))

    def unlink(self, path: str) -> None:
        node = self.inode(path)
        parent, name = self._parent(path)
        del parent.entries[name]
        self._namings.append(_Naming(node, parent, name, gone=True))

    def remove_dir(self, path: str) -> None:
        node = self.directory(path)
        parent, name = self._parent(path)
        if not name:
            raise os_error(errno.EBUSY, path)
        if node.entries:
            raise os_error(errno.ENOTEMPTY, path)
        del parent.entries[name]
        self._namings.append(_Naming(node, parent, name, gone=True))

    def sync_directory(self, directory: Directory) -> None:
        self._settle(lambda naming: naming.directory is directory)

    def file_synced(self, node: Inode) -> None:
        """Do what a sync of a file does for its name: nothing, if we are strict."""
        if not self.strict:
            self._settle(lambda naming: naming.node is node)

    def is_settled(self, node: Node) -> bool:
        return all(naming.node is not node for naming in self._namings)

    def cut_power(self, rng: random.Random) -> None:
        """Go back to the durable names, with those changes that made it."""
        for naming in self._surviving(rng):
            naming.settle()
        self._namings.clear()
        _restore(self._root)

    def _settle(self, chosen: Callable[[_Naming], bool]) -> None:
        waiting: list[_Naming] = []
        everything = not self.strict and any(chosen(naming) for naming in self._namings)
        for naming in self._namings:
            if everything or chosen(naming):
                naming.settle()
                # What this file was called before, in another directory, is overtaken.
                waiting = [earlier for earlier in waiting if earlier.node is not naming.node]
            else:
                waiting.append(naming)
        self._namings = waiting

    def _surviving(self, rng: random.Random) -> list[_Naming]:
        if not self.strict or rng.random() < _IN_ORDER:
            return self._namings[: rng.randint(0, len(self._namings))]
        survival = rng.choice(_SURVIVAL)
        return [naming for naming in self._namings if rng.random() < survival]

    def _parent(self, path: str) -> tuple[Directory, str]:
        """The directory of a path and the name in it, which is empty for the root."""
        names = parts(path)
        directory = self._root
        for name in names[:-1]:
            node = directory.entries.get(name)
            if node is None:
                raise os_error(errno.ENOENT, path)
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            directory = node
        return directory, names[-1] if names else ""


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def parts(path: str) -> list[str]:
    return [part for part in os.path.normpath(path).split("/") if part not in ("", ".")]


def _walk(directory: Directory, prefix: str) -> Iterator[tuple[str, Inode]]:
    for name, node in directory.entries.items():
        if isinstance(node, Inode):
            yield prefix + name, node
        elif isinstance(node, Directory):
            yield from _walk(node, f"{prefix}{name}/")


def _restore(directory: Directory) -> None:
    directory.entries = dict(directory.durable)
    for node in directory.entries.values():
        if isinstance(node, Directory):
            _restore(node)
