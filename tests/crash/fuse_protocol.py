"""The FUSE kernel protocol, as much of it as one small file system needs, and a tree for it.

A server reads requests from a descriptor of `/dev/fuse` and writes a reply to each; the file
system is mounted with that descriptor, and is dead once it is closed. The structures are those of
`<linux/fuse.h>` in version 7.31, which every kernel since 5.4 speaks. Root needs no library for
it, and no `fusermount`.

Locks (`flock`, `fcntl`) are not asked for when the connection starts, so the kernel keeps them
itself, and so it does inotify. It caches pages and writes them through: a `write` has reached the
server when it returns, a store to mapped memory when the page is written back. A cache that wrote
back would hide from the server what a process wrote and when, which is all that it is here for.

A kernel speaks of files by number, and of some that have no name any more: `KernelTree` is the
tree of the simulated disk with that.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import random
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.testing.tree import Directory, Inode, Node, Tree, _Naming, os_error

__all__ = [
    "BLOCK",
    "ROOT",
    "Attributes",
    "Connection",
    "Facts",
    "KernelTree",
    "Op",
    "Request",
    "SetAttributes",
    "unmount",
]

ROOT = 1  # the number of the root directory
BLOCK = 4096
_MAX_WRITE = 32 * BLOCK

_VERSION = (7, 31)
_ASYNC_READ, _BIG_WRITES = 1 << 0, 1 << 5
# In the reply to OPEN: what is cached of a file stays when it is opened, and there is nothing to be
# done when it is closed, so that closing a file on a mount that has ended is no error.
_OPEN_FLAGS = 1 << 1 | 1 << 5
# Nothing changes behind the kernel's back, so it may rely on what it was told.
_VALID_S = 3600

_MNT_DETACH = 2
_DEVICE = "/dev/fuse"

_HEADER_IN = struct.Struct("=IIQQIIIHH")
_HEADER_OUT = struct.Struct("=IiQ")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY_OUT = struct.Struct("=QQQQII")
_ATTR_OUT = struct.Struct("=QII")
_OPEN_OUT = struct.Struct("=QII")
_WRITE_OUT = struct.Struct("=II")
_STATFS_OUT = struct.Struct("=QQQQQIIII24x")
_DIRENT = struct.Struct("=QQII")
_SETATTR_IN = struct.Struct("=IIQQQQQQIIIIIIII")
_READ_IN = struct.Struct("=QQII")  # what follows is of no use here, nor in WRITE
_WRITE_IN = struct.Struct("=QQIIQII")
_FORGET_ONE = struct.Struct("=QQ")


class Op(enum.IntEnum):
    """What is asked for. A server answers ENOSYS to any other, and mostly is not asked again."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    BATCH_FORGET = 42
    RENAME2 = 45


class Attributes(NamedTuple):
    """What `stat` says. All three times are one."""

    number: int
    size: int
    blocks: int  # of `BLOCK` bytes
    time_ms: int
    mode: int
    links: int

    def pack(self) -> bytes:
        seconds, milliseconds = divmod(self.time_ms, 1000)
        nanoseconds = milliseconds * 1_000_000
        times = (seconds,) * 3 + (nanoseconds,) * 3
        blocks = self.blocks * (BLOCK // 512)
        rest = (self.mode, self.links, 0, 0, 0, BLOCK, 0)
        return _ATTRIBUTES.pack(self.number, self.size, blocks, *times, *rest)

    def reply(self) -> bytes:
        return _ATTR_OUT.pack(_VALID_S, 0, 0) + self.pack()

    def entry(self) -> bytes:
        return _ENTRY_OUT.pack(self.number, 0, _VALID_S, _VALID_S, 0, 0) + self.pack()


class SetAttributes(NamedTuple):
    """What a SETATTR changes; `None` stays as it is."""

    size: int | None
    mode: int | None
    time_ms: int | None
    now: bool  # the time is the server's
    owner: bool  # the user or the group is to change too


class Request(NamedTuple):
    """A request. `body` is a view of a buffer that the next request overwrites."""

    op: int
    unique: int
    node: int
    body: memoryview

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack_from("=" + layout, self.body)

    def names(self, skip: int = 0) -> list[str]:
        """The names behind `skip` bytes, each of which ends in a zero."""
        return [os.fsdecode(name) for name in bytes(self.body[skip:]).split(b"\0")[:-1]]

    def path(self, skip: int = 0) -> str:
        """The one name that is there, with the number of its directory before it."""
        (name,) = self.names(skip)
        return f"{self.node}/{name}"

    def read(self) -> tuple[int, int, int]:
        """The handle, the position and the size of a READ or READDIR."""
        handle, position, size, _ = _READ_IN.unpack_from(self.body)
        return handle, position, size

    def write(self) -> tuple[int, bytes]:
        """The position and the data of a WRITE."""
        _, position, size, *_ = _WRITE_IN.unpack_from(self.body)
        return position, bytes(self.body[_WRITE_IN.size : _WRITE_IN.size + size])

    def forgotten(self) -> list[tuple[int, int]]:
        """Numbers that the kernel lets go of, and how many of its lookups go with each."""
        if self.op == Op.FORGET:
            return [(self.node, self.numbers("Q")[0])]
        count, _ = self.numbers("II")
        return list(_FORGET_ONE.iter_unpack(self.body[8 : 8 + count * _FORGET_ONE.size]))

    def set_attributes(self) -> SetAttributes:
        valid, _, _, size, _, _, seconds, _, _, nanoseconds, _, mode, *_ = _SETATTR_IN.unpack_from(
            self.body
        )
        return SetAttributes(
            size=size if valid & 1 << 3 else None,
            mode=stat.S_IMODE(mode) if valid & 1 << 0 else None,
            time_ms=seconds * 1000 + nanoseconds // 1_000_000 if valid & 1 << 5 else None,
            now=bool(valid & 1 << 8),
            owner=bool(valid & (1 << 1 | 1 << 2)),
        )


class Connection:
    """A mount and the server's end of it. Not thread-safe.

    A server must not touch its own mount: it would wait for itself.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._buffer = bytearray(_MAX_WRITE + BLOCK)
        self.fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _mount(target, self.fd)
        except BaseException:
            os.close(self.fd)
            raise

    def receive(self) -> Request | None:
        """The next request, if there is one. Once the mount is gone there is ENODEV."""
        try:
            size = os.readv(self.fd, [self._buffer])
        except OSError as error:
            # ENOENT: who asked was killed before we could read it.
            if error.errno in (errno.EAGAIN, errno.ENOENT, errno.EINTR):
                return None
            raise
        _, op, unique, node, *_ = _HEADER_IN.unpack_from(self._buffer)
        return Request(op, unique, node, memoryview(self._buffer)[_HEADER_IN.size : size])

    def reply(self, request: Request, data: bytes = b"", *, error: int = 0) -> None:
        header = _HEADER_OUT.pack(_HEADER_OUT.size + len(data), -error, request.unique)
        try:
            os.writev(self.fd, [header, data])
        except OSError as failed:
            if failed.errno != errno.ENOENT:  # nobody waits for it any more
                raise

    def close(self) -> None:
        """End the mount as a power cut does; it may be done twice.

        The descriptor goes first. That aborts the connection: whoever waits gets an error, and the
        kernel drops what it has in its cache. With the connection alive the unmounting would write
        dirty pages, and wait for this very process to take them.
        """
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
            unmount(self._target)


def init_reply(request: Request) -> bytes:
    _, _, max_readahead, offered = _INIT_IN.unpack_from(request.body)
    flags = offered & (_ASYNC_READ | _BIG_WRITES)
    return _INIT_OUT.pack(*_VERSION, max_readahead, flags, 16, 12, _MAX_WRITE, 1, 0, 0, 0)


def open_reply(handle: int = 0) -> bytes:
    return _OPEN_OUT.pack(handle, _OPEN_FLAGS, 0)


def write_reply(size: int) -> bytes:
    return _WRITE_OUT.pack(size, 0)


def statfs_reply(blocks: int, free: int) -> bytes:
    return _STATFS_OUT.pack(blocks, free, free, 1 << 20, 1 << 20, BLOCK, 255, BLOCK, 0)


def directory_reply(names: list[tuple[str, int, bool]], first: int, size: int) -> bytes:
    """As many names from `first` on as `size` bytes hold: name, number, whether a directory."""
    data = bytearray()
    for index in range(first, len(names)):
        name, number, is_dir = names[index]
        encoded = os.fsencode(name)
        kind = (stat.S_IFDIR if is_dir else stat.S_IFREG) >> 12
        entry = _DIRENT.pack(number, index + 1, len(encoded), kind) + encoded
        entry += bytes(-len(entry) % 8)
        if len(data) + len(entry) > size:
            break
        data += entry
    return bytes(data)


# --- files ----------------------------------------------------------------------------------


@dataclass
class Facts:
    """What a kernel knows of a file, beside what is in it."""

    number: int
    mode: int
    nameless: bool = False
    blocks: set[int] = field(default_factory=set)  # those that were written


class KernelTree(Tree):
    """`Tree` as a kernel uses it.

    A path is what the kernel says: the number of a directory, a slash, and a name in it. A
    directory is made or removed alone, and not durably. There may be a limit on the blocks that all
    files have; a hole in a file takes none until the power is cut.
    """

    def __init__(self, *, strict: bool) -> None:
        super().__init__(strict=strict)
        self.limit: int | None = None
        self._last_number = ROOT
        self._facts: dict[Node, Facts] = {self._root: Facts(ROOT, 0o755)}
        self._known: dict[int, Node] = {}  # what the kernel may ask for
        self._lookups: Counter[int] = Counter()
        self.start_anew()

    def start_anew(self) -> None:
        """A kernel starts, and knows of nothing."""
        for node in _all_nodes(self._root):
            size = len(node.contents.cached) if isinstance(node, Inode) else 0
            self._facts[node].blocks = set(range(_count(size)))
        self._known = {ROOT: self._root}
        self._lookups.clear()

    def cut_power(self, rng: random.Random) -> None:
        """What has no name now is gone for good; what had none may have it back."""
        super().cut_power(rng)
        self._facts = {node: self._facts[node] for node in _all_nodes(self._root)}
        for facts in self._facts.values():
            facts.nameless = False

    # -- what the kernel knows ----------------------------------------------------------------

    def node(self, number: int) -> Node:
        return self._known[number]

    def facts(self, node: Node) -> Facts:
        return self._facts[node]

    def know(self, node: Node) -> None:
        """The kernel may ask for it, until it forgets it as often."""
        number = self._facts[node].number
        self._known[number] = node
        self._lookups[number] += 1

    def forget(self, number: int, lookups: int) -> None:
        self._lookups[number] -= lookups
        if self._lookups[number] <= 0 and number != ROOT:
            del self._lookups[number]
            del self._known[number]  # what we know of it stays: the power may bring it back

    # -- names --------------------------------------------------------------------------------

    def has(self, path: str) -> bool:
        parent, name = self._parent(path)
        return name in parent.entries

    def make(self, path: str, mode: int) -> Node:
        if self.has(path):
            raise os_error(errno.EEXIST, path)
        node = self._make_dir(path) if stat.S_ISDIR(mode) else self.create(path)
        self._last_number += 1
        self._facts[node] = Facts(self._last_number, stat.S_IMODE(mode))
        return node

    def unlink(self, path: str) -> None:
        node = self.inode(path)
        super().unlink(path)
        self._facts[node].nameless = True

    def remove_dir(self, path: str) -> None:
        node = self.directory(path)
        if node.entries:
            raise os_error(errno.ENOTEMPTY, path)
        # Names that left it do so on the disk before it goes, or they would go with it.
        self._settle(lambda naming: naming.node.home is not None and naming.node.home[0] is node)
        parent, name = self._parent(path)
        del parent.entries[name]
        self._namings.append(_Naming(node, parent, name, gone=True))
        self._facts[node].nameless = True

    def rename(self, source: str, target: str) -> None:
        replaced = self.find(target) if self.has(target) else None
        super().rename(source, target)
        if replaced is not None and replaced is not self.find(target):
            self._facts[replaced].nameless = True

    def _make_dir(self, path: str) -> Directory:
        parent, name = self._parent(path)
        node = parent.entries[name] = Directory()
        self._namings.append(_Naming(node, parent, name, gone=False))
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        number, _, name = path.partition("/")
        node = self._known[int(number)]
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, path)
        return node, name

    # -- space --------------------------------------------------------------------------------

    def used(self) -> int:
        """The blocks of files that have a name, or that somebody has open."""
        return sum(
            len(facts.blocks)
            for facts in self._facts.values()
            if not facts.nameless or facts.number in self._known
        )

    def take_space(self, file: Inode, position: int, end: int) -> int:
        """Make room for a write, and say where it has to end."""
        blocks = self._facts[file].blocks
        new = [block for block in range(position // BLOCK, _count(end)) if block not in blocks]
        if self.limit is not None:
            free = max(0, self.limit - self.used())
            if len(new) > free:
                end = max(position, new[free] * BLOCK)
                del new[free:]
        blocks.update(new)
        return end

    def truncate(self, file: Inode, size: int) -> None:
        file.contents.truncate(size)
        blocks = self._facts[file].blocks
        blocks -= {block for block in blocks if block >= _count(size)}


def _all_nodes(directory: Directory) -> Iterator[Node]:
    yield directory
    for node in directory.entries.values():
        if isinstance(node, Directory):
            yield from _all_nodes(node)
        else:
            yield node


def _count(size: int) -> int:
    return -(-size // BLOCK)


# --- mounts ---------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _mount(target: str, fd: int) -> None:
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions"
    _check(
        _libc.mount(b"lossy", os.fsencode(target), b"fuse.lossy", 0, options.encode()),
        target,
    )


def unmount(target: str) -> None:
    """Take the mount away, also from under its users. It is no error if there is none."""
    try:
        _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), target)
    except OSError as error:
        # EPERM: who may not unmount has not mounted.
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EPERM):
            raise


def _check(result: int, target: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
