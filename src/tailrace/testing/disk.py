"""A disk in memory that forgets, after a power cut, whatever POSIX lets a disk forget.

    disk = SimulatedDisk()
    ...                          # run something on it
    disk.crash(seed)             # the power goes; what was not synced may be lost
    ...                          # recover, and look

Everything is decided by seeds: the same calls and the same seed leave the same bytes. The rules
for what is in a file are in `contents`, those for names in `tree`; here are the calls, and the
processes and machines that come and go.
"""

from __future__ import annotations

import builtins
import copy
import errno
import hashlib
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable

from tailrace.log.fs import Entry, Space
from tailrace.testing.contents import Contents, Damage
from tailrace.testing.tree import Inode, Node, Tree, os_error, parts

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["SimulatedDisk", "SimulatedFile", "SimulatedLock"]

_FIRST_TIME_MS = 1_700_000_000_000


class SimulatedDisk:
    """The disk of one machine, as a `FileSystem`. Thread-safe.

    `clock` gives file times in milliseconds; without one, each write is a millisecond later than
    the one before. `strict_names` says whether a sync of a file leaves its new name at risk (as
    POSIX allows, and `tree` describes), `damage` how rough a power cut is on the bytes. `capacity`
    is how many bytes there are for the contents of files: what has no room is written in part, or
    not at all, and the error is `ENOSPC`. It may be changed at any time.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        clock: Callable[[], int] | None = None,
        strict_names: bool = True,
        damage: Damage | None = None,
        capacity: int | None = None,
    ) -> None:
        self._seed = seed
        self.capacity = capacity
        self._clock = clock
        self._damage = damage or Damage()
        self._tree = Tree(strict=strict_names)
        self._ticks = 0
        self._boots = 0
        self._guard = threading.RLock()
        self._open: set[SimulatedFile] = set()  # those that a living process has
        self._released = threading.Condition(self._guard)
        self._held: dict[Inode, dict[SimulatedLock, bool]] = {}  # whether it is shared
        self._lives = 0  # rises when the process ends
        self._maps: dict[str, bytearray] = {}  # by path, as `_key` spells it

    # -- the file system ----------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimulatedFile:
        with self._guard:
            try:
                node = self._tree.inode(path)
            except FileNotFoundError:
                if not create:
                    raise
                node = self._tree.create(path)
                self._touch(node)
            file = SimulatedFile(self, node, path, writable=write)
            self._open.add(file)
            return file

    def names(self, path: str) -> list[str]:
        return [entry.name for entry in self.list(path)]

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        with self._guard:
            entries = self._tree.directory(path).entries
            # In an order that nobody can mean, so that nobody comes to rely on it.
            names = sorted(entries, key=lambda name: zlib.crc32(name.encode()))
            return [_entry(name, entries[name]) for name in names if name.endswith(ending)]

    def stat(self, path: str) -> Entry:
        with self._guard:
            return _entry(os.path.basename(path), self._tree.find(path))

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            self._tree.rename(source, target)
            old, new = _key(source), _key(target)
            if old != new:
                self._maps.pop(new, None)
            for key in [key for key in self._maps if f"{key}/".startswith(f"{old}/")]:
                self._maps[new + key.removeprefix(old)] = self._maps.pop(key)

    def unlink(self, path: str) -> None:
        with self._guard:
            self._tree.unlink(path)
            self._maps.pop(_key(path), None)  # who has it mapped keeps it

    def remove_dir(self, path: str) -> None:
        with self._guard:
            self._tree.remove_dir(path)

    def make_dirs(self, path: str) -> None:
        with self._guard:
            self._tree.make_dirs(path)

    def sync_dir(self, path: str) -> None:
        with self._guard:
            self._tree.sync_directory(self._tree.directory(path))

    def lock(self, path: str) -> SimulatedLock:
        with self._guard:
            self.open(path, write=True, create=True).close()
            return SimulatedLock(self, self._tree.inode(path), path)

    def map(self, path: str, size: int, *, write: bool) -> memoryview | None:
        """What is mapped outlives processes, and no power cut."""
        with self._guard:
            key = _key(path)
            if write:
                self.open(path, write=True, create=True).close()
                self._maps.setdefault(key, bytearray(size))
            elif key not in self._maps:
                return None
            return memoryview(self._maps[key])

    def space(self, path: str) -> Space:
        with self._guard:
            self._tree.directory(path)
            total = 1 << 50 if self.capacity is None else self.capacity
            return Space(total, max(total - self._used(), 0))

    def _used(self) -> int:
        return sum(len(node.contents.cached) for _, node in self._tree.walk())

    def boot_id(self) -> bytes:
        name = f"{self._seed}:{self._boots}"
        return hashlib.blake2b(name.encode(), digest_size=16).digest()

    # -- what happens to processes, machines and disks ----------------------------------------

    def crash(self, seed: int) -> None:
        """Cut the power and start again. What was synced is there; the rest is up to `seed`."""
        with self._guard:
            self.kill()
            self._maps.clear()
            self._boots += 1
            rng = random.Random(seed)
            self._tree.cut_power(rng)
            for _, node in self._tree.walk():
                node.contents.cut_power(rng, self._damage)

    def kill(self) -> None:
        """End every process. The page cache outlives them; their open files and locks do not."""
        with self._guard:
            self._open.clear()
            self._held.clear()
            self._lives += 1
            # The dead may still run here for a moment, and must not do anything any more.
            self._maps = {key: bytearray(memory) for key, memory in self._maps.items()}
            self._released.notify_all()

    def clone(self) -> SimulatedDisk:
        """The same disk once more, with nothing open on it, to try another fate."""
        with self._guard:
            twin = SimulatedDisk(self._seed, clock=self._clock, damage=self._damage)
            twin._tree = copy.deepcopy(self._tree)
            twin._ticks = self._ticks
            twin._boots = self._boots
            twin._maps = {key: bytearray(memory) for key, memory in self._maps.items()}
            return twin

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Bit rot: change bytes on the medium, past the file's time and size.

        The file is synced first, because rot is in what was written.
        """
        with self._guard:
            contents = self._tree.inode(path).contents
            end = position + len(data)
            if position < 0 or end > len(contents.cached):
                raise ValueError(f"{path} has no bytes {position} to {end}")
            contents.sync()
            for image in (contents.cached, contents.durable):
                image[position:end] = data[: max(0, len(image) - position)]

    def evict(self) -> None:
        """Empty the page cache of clean pages: what a failed sync lost shows its old bytes."""
        with self._guard:
            for _, node in self._tree.walk():
                node.contents.evict()

    # -- a look from outside ------------------------------------------------------------------

    def put(self, path: str, data: bytes) -> None:
        """Give a file these contents, durably, and make its directories."""
        with self._guard:
            directory = os.path.dirname(path)
            self.make_dirs(directory)
            file = self.open(path, write=True, create=True)
            file.truncate(0)
            file.pwrite(data, 0)
            file.sync()
            file.close()
            self.sync_dir(directory)

    def read(self, path: str) -> bytes:
        """A whole file, as a process would read it."""
        with self._guard:
            return bytes(self._tree.inode(path).contents.cached)

    def files(self) -> builtins.list[str]:
        """The paths of all files, sorted, without leading slashes."""
        with self._guard:
            return sorted(path for path, _ in self._tree.walk())

    def unsynced(self) -> builtins.list[str]:
        """The paths of files of which a power cut could take something: bytes, size or name."""
        with self._guard:
            return sorted(
                path
                for path, node in self._tree.walk()
                if node.contents.changes or not self._tree.is_settled(node)
            )

    def open_files(self) -> builtins.list[str]:
        """The paths of files that were opened and not closed, for a look at leaks."""
        with self._guard:
            return sorted(file.path for file in self._open)

    def _touch(self, node: Node) -> None:
        self._ticks += 1
        node.modified_ms = _FIRST_TIME_MS + self._ticks if self._clock is None else self._clock()


class SimulatedFile:
    """An open file of a `SimulatedDisk`. It is of no use once its process was killed."""

    def __init__(self, disk: SimulatedDisk, node: Inode, path: str, *, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._writable = writable

    def pread(self, size: int, position: int) -> bytes:
        with self._disk._guard:
            return bytes(memoryview(self._contents().cached)[position : position + size])

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        with self._disk._guard:
            found = self._contents().cached[position : position + len(view)]
        view[: len(found)] = found
        return len(found)

    def pwrite(self, data: Buffer, position: int) -> int:
        data = bytes(data)
        with self._disk._guard:
            contents = self._contents(writing=True)
            if data and self._disk.capacity is not None:
                data = self._what_fits(contents, data, position)
            contents.write(data, position)
            self._disk._touch(self._node)
        return len(data)

    def _what_fits(self, contents: Contents, data: bytes, position: int) -> bytes:
        growth = max(position + len(data) - len(contents.cached), 0)
        fits = len(data) - max(growth - self._disk.space("").free, 0)
        if fits <= 0:
            raise os_error(errno.ENOSPC, self.path)
        return data[:fits]

    def truncate(self, size: int) -> None:
        with self._disk._guard:
            contents = self._contents(writing=True)
            is_limited = self._disk.capacity is not None  # there are no holes here
            if is_limited and size - len(contents.cached) > self._disk.space("").free:
                raise os_error(errno.ENOSPC, self.path)
            contents.truncate(size)
            self._disk._touch(self._node)

    def part_with(self, size: int, position: int) -> None: ...  # and what it may do, a crash does

    def sync(self) -> None:
        with self._disk._guard:
            self._contents().sync()
            self._disk._tree.file_synced(self._node)

    def size(self) -> int:
        with self._disk._guard:
            return len(self._contents().cached)

    def close(self) -> None:
        """Never fails, not even in a dead process: it changes nothing on the disk."""
        with self._disk._guard:
            self._disk._open.discard(self)

    def lose_dirty(self) -> None:
        """The disk's part in a sync that fails as on Linux; see `Contents.lose_dirty`."""
        with self._disk._guard:
            self._contents().lose_dirty()

    def _contents(self, *, writing: bool = False) -> Contents:
        if self not in self._disk._open or (writing and not self._writable):
            raise os_error(errno.EBADF, self.path)
        return self._node.contents


class SimulatedLock:
    """A lock between the processes on one machine. In a dead one it does nothing any more."""

    def __init__(self, disk: SimulatedDisk, node: Inode, path: str) -> None:
        self._disk = disk
        self._node = node  # not the path: it is the file that is locked, wherever it goes
        self._path = path
        self._life = disk._lives

    def acquire(self, *, shared: bool = False, wait: bool = True) -> bool:
        disk = self._disk
        with disk._guard:
            self.release()
            while True:
                if self._life != disk._lives:
                    raise os_error(errno.EBADF, self._path)
                holders = disk._held.setdefault(self._node, {})
                if not holders or (shared and all(holders.values())):
                    holders[self] = shared
                    return True
                if not wait:
                    return False
                disk._released.wait()

    def acquire_now(self) -> bool:
        return self.acquire(wait=False)

    def release(self) -> None:
        with self._disk._guard:
            self._disk._held.get(self._node, {}).pop(self, None)
            self._disk._released.notify_all()

    def check_in_place(self) -> None:
        with self._disk._guard:
            if self._disk._tree.find(self._path) is not self._node:
                raise os_error(errno.ENOENT, self._path)

    def read_note(self) -> bytes:
        with self._disk._guard:
            return bytes(self._node.contents.cached)

    def write_note(self, note: bytes) -> None:
        with self._disk._guard:
            self._node.contents.truncate(0)
            self._node.contents.write(note, 0)
            self._node.contents.sync()

    def close(self) -> None:
        self.release()


def _key(path: str) -> str:
    return "/".join(parts(path))


def _entry(name: str, node: Node) -> Entry:
    if isinstance(node, Inode):
        return Entry(name, len(node.contents.cached), node.modified_ms, False)
    return Entry(name, 0, node.modified_ms, True)
