"""The file-system seam: every byte that the log reads or writes goes through here.

The interface is as small as the engine allows, one call per system call, so that a test can put a
simulated disk underneath, forget what was not synced, or fail the n-th call. Loops over short
writes live above the seam (`write_all`, `read_exactly`) for the same reason.

Files have no position of their own: reads and writes say where, so one `File` may be shared by
threads.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from tailrace.log.locks import ProcessLock

if sys.platform == "darwin":
    import fcntl

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = [
    "NO_SPACE",
    "Entry",
    "File",
    "FileLock",
    "FileSystem",
    "OsFileSystem",
    "Space",
    "is_zeros",
    "pieces",
    "read_exactly",
    "read_file",
    "remove_tree",
    "rename_new",
    "replace_file",
    "write_all",
]


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # what is written to a disk that is full fails with

_PIECE = 1 << 20
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)  # Linux has it
_HAS_FADVISE = sys.platform == "linux"
_USED_OF_MAPS = 512  # bytes; the rest of a mapped file is there to have its blocks on the disk
_HAS_NO_FULL_SYNC = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
_NOT_A_FILE = errno.EPERM if sys.platform == "darwin" else errno.EISDIR  # what unlink says to it
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Entry(NamedTuple):
    """A name in a directory, with what `stat` says of it."""

    name: str
    size: int
    modified_ms: int
    is_dir: bool


class File(Protocol):
    """An open file. Thread-safe, as the system calls behind it are."""

    def pread(self, size: int, position: int) -> bytes: ...

    def pread_now(self, size: int, position: int) -> bytes | None:
        """The same, if it can be had without waiting for the disk."""

    def pread_into(self, buffer: Buffer, position: int) -> int: ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write at a position; may write less than was given, and says how much."""

    def truncate(self, size: int) -> None: ...

    def part_with(self, size: int, position: int) -> None:
        """We shall not read these bytes soon. What of them is not on the disk is sent there, so
        that a `sync` later has less to wait for; what is need not be kept in memory. A hint: it
        does not wait, and promises nothing."""

    def sync(self) -> None:
        """Make the contents and the size durable (fdatasync)."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock between processes, which ends with them. Used by one thread at a time."""

    def acquire(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Take it; false if it is taken and we are not to wait."""

    def acquire_now(self) -> bool:
        """`acquire(wait=False)`, for those in a hurry."""

    def release(self) -> None: ...

    def check_in_place(self) -> None:
        """`FileNotFoundError` if it is not the file at its path any more: its folder was taken
        away, and perhaps made anew."""

    def read_note(self) -> bytes: ...

    def write_note(self, note: bytes) -> None: ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """Of a disk, in bytes."""

    total: int
    free: int


class FileSystem(Protocol):
    """Directories and names. Paths are plain strings."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; `create` makes it if it is missing (and never truncates it)."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, in no order: of ten thousand files in a few milliseconds."""

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        """The entries of a directory whose names end so, in no order. To look at each takes most of
        the time, so whoever needs some should not ask for all."""

    def stat(self, path: str) -> Entry: ...

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target`, atomically."""

    def unlink(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Remove a directory, which must be empty."""

    def make_dirs(self, path: str) -> None:
        """Create a directory with its parents, durably."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock(self, path: str) -> FileLock:
        """The lock on a file, which is made if it is missing."""

    def map(self, path: str, size: int, *, write: bool) -> memoryview | None:
        """The memory that those who map this file share, of which they use the first 512 bytes.
        For writing, the file is made that long if it is not, and `FileNotFoundError` says that its
        folder is missing; for reading, `None` if the file is not there or shorter."""

    def space(self, path: str) -> Space:
        """How large the disk is that a directory is on, and how much of it is free for us."""

    def boot_id(self) -> bytes:
        """16 bytes that change when the machine (and with it the page cache) starts anew."""


class OsFile:
    __slots__ = ("fd", "pwrite")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # Not a method, because each append calls it.
        self.pwrite: Callable[[Buffer, int], int] = functools.partial(os.pwrite, fd)

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self.fd, size, position)

    def pread_now(self, size: int, position: int) -> bytes | None:
        if not _NOWAIT:
            return None
        buffer = bytearray(size)
        try:
            read = os.preadv(self.fd, [buffer], position, _NOWAIT)
        except OSError:  # it would have to wait, or cannot tell
            return None
        return bytes(memoryview(buffer)[:read])

    def pread_into(self, buffer: Buffer, position: int) -> int:
        return os.preadv(self.fd, [buffer], position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def part_with(self, size: int, position: int) -> None:
        if _HAS_FADVISE:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, position, size, os.POSIX_FADV_DONTNEED)

    if sys.platform == "darwin":

        def sync(self) -> None:
            _sync_fully(self.fd, _ask_for_full_sync)

    else:

        def sync(self) -> None:
            os.fdatasync(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.pwrite = _closed_pwrite
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # not if an interrupt hit the constructor
            self.close()


def _closed_pwrite(data: Buffer, position: int) -> int:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class OsFileSystem:
    """The real one."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        return OsFile(os.open(path, flags | os.O_CLOEXEC, 0o644))

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        entries = []
        with os.scandir(path) as found:
            for item in found:
                if item.name.endswith(ending):
                    # A file may go (retention) between the listing and the look at it.
                    with contextlib.suppress(FileNotFoundError):
                        entries.append(_entry(item.name, item.stat()))
        return entries

    def stat(self, path: str) -> Entry:
        return _entry(os.path.basename(path), os.stat(path))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def make_dirs(self, path: str) -> None:
        for directory in _missing(path):
            try:
                os.mkdir(directory)
            except FileExistsError:  # it is not missing any more; or else somebody removed it again
                if not stat.S_ISDIR(os.stat(directory).st_mode):
                    raise
            self.sync_dir(os.path.dirname(directory) or ".")

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        # As df counts: what only root may use belongs to nobody.
        used = found.f_blocks - found.f_bfree
        return Space((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync_names(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock:
        return ProcessLock(path)

    def map(self, path: str, size: int, *, write: bool) -> memoryview | None:
        try:
            file = self.open(path, write=write, create=write)
        except FileNotFoundError:
            if write:  # the folder is missing, and nobody may go on as if this were mapped
                raise
            return None
        try:
            if file.size() < size:
                if not write:
                    return None
                # Written, not only made longer: a store must not find the disk full. Somebody else
                # may be doing the same, and have begun to use it, so the beginning is left alone.
                write_all(file, bytes(size - _USED_OF_MAPS), _USED_OF_MAPS)
            return _mapped(path, file.fd, size, write)
        finally:
            file.close()

    def boot_id(self) -> bytes:
        return _boot_id()


# A map keeps a file open (unless `trackfd` says otherwise, which Python knows from 3.13 on), and a
# log that is read and written has its board mapped twice. While a file is mapped no other has its
# number; the path, because not every file system can be trusted with that.
_Place = tuple[str, int, int, int, bool]
_maps: weakref.WeakValueDictionary[_Place, mmap.mmap] = weakref.WeakValueDictionary()
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def _mapped(path: str, fd: int, size: int, write: bool) -> memoryview:
    found = os.fstat(fd)
    place = os.path.abspath(path), found.st_dev, found.st_ino, size
    known = _maps.get((*place, True))
    if known is None and not write:
        known = _maps.get((*place, False))
    if known is None:
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        known = mmap.mmap(fd, size, access=access, **_UNTRACKED)
        if found.st_ino:
            _maps[*place, write] = known
    return memoryview(known) if write else memoryview(known).toreadonly()


def _sync_fully(fd: int, ask: Callable[[int], object]) -> None:
    """Sync by way of a call that not every file system has; those without get what they have. An
    error of any other kind is a sync that failed: asking again could hide it."""
    try:
        ask(fd)
    except OSError as error:
        if error.errno not in _HAS_NO_FULL_SYNC:
            raise
        os.fsync(fd)


if sys.platform == "darwin":

    def _ask_for_full_sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync leaves everything in the drive's cache

    def _sync_names(fd: int) -> None:
        _sync_fully(fd, _ask_for_full_sync)

else:

    def _sync_names(fd: int) -> None:
        os.fsync(fd)


def _entry(name: str, st: os.stat_result) -> Entry:
    is_dir = (st.st_mode & 0o170000) == 0o040000
    return Entry(name, st.st_size, st.st_mtime_ns // 1_000_000, is_dir)


def _missing(path: str) -> Iterator[str]:
    """The directories to create for `path`, outermost first."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    return reversed(missing)


# Drawn before there is any fork, so that parents and children agree.
_family_id = os.urandom(16)


@functools.cache
def _boot_id() -> bytes:
    """The same for all handles of a process, whatever happens to /proc meanwhile.

    Linux and macOS tell the boot. Where nothing does (another system, a chroot without /proc), each
    process counts as a boot of its own, together with those it forks. So every unclean open by
    another one is taken for a power cut, which is the careful answer; but a reader in another
    process takes the watermark of a live `sync` log for one of an earlier boot, and may show
    records that are not durable yet.
    """
    try:
        return _known_boot_id()
    except (OSError, ValueError) as error:
        # Nothing to remember: it says nothing of the system.
        if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
            raise
        return _family_id


def _known_boot_id() -> bytes:
    if sys.platform == "darwin":
        name = _sysctl(b"kern.bootsessionuuid")
    else:
        with open("/proc/sys/kernel/random/boot_id") as f:
            name = f.read().strip()
    boot_id = bytes.fromhex(name.replace("-", ""))
    if len(boot_id) != 16:
        raise ValueError(name)
    return boot_id


def _sysctl(name: bytes) -> str:
    import ctypes  # takes long, and only macOS needs it

    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(value))
    if libc.sysctlbyname(name, value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        raise OSError(ctypes.get_errno(), "sysctlbyname failed")
    return value.value.decode()


def write_all(file: File, data: Buffer, position: int) -> None:
    """Write everything, over as many calls as it takes: nearly always one."""
    written = file.pwrite(data, position)
    if isinstance(data, bytes) and written == len(data):
        return
    view = memoryview(data).cast("B")[written:]
    while view:
        position += written
        written = file.pwrite(view, position)
        view = view[written:]


def read_exactly(file: File, size: int, position: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file."""
    data = file.pread(size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    read = len(data)
    while read < size:
        data = file.pread(size - read, position + read)
        if not data:
            break
        parts.append(data)
        read += len(data)
    return b"".join(parts)


def pieces(file: File, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """A part of a file, a piece at a time with its position; less where the file ends."""
    for position in range(start, stop, _PIECE):
        yield position, read_exactly(file, min(_PIECE, stop - position), position)


def is_zeros(file: File, start: int, stop: int) -> bool:
    """Is there nothing but zeros in a part of a file?"""
    return not any(data.strip(b"\0") for _position, data in pieces(file, start, stop))


def read_file(fs: FileSystem, path: str, limit: int) -> bytes | None:
    """A small file, whole; `None` when it is missing. At most `limit` bytes are read."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return read_exactly(file, limit, 0)
    finally:
        file.close()


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Give a file new contents such that a crash leaves the old ones or the new, durably. If two
    processes do so at once, one of them wins."""
    rename_new(fs, path, f"{path}.{os.getpid()}.tmp", data)
    fs.sync_dir(os.path.dirname(path))


def rename_new(fs: FileSystem, path: str, temporary: str, data: bytes) -> None:
    """The same, by way of a file that has another name at first. Not durable before its folder is
    synced."""
    file = fs.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Delete a directory with all that is in it. Others may delete it at the same time; whoever
    makes something in it meanwhile has it fail with ENOTEMPTY. A link goes, not what it leads to.
    None of it is durable before a sync of the parent."""
    with contextlib.suppress(FileNotFoundError):
        for entry in fs.list(path):
            _remove(fs, os.path.join(path, entry.name))
        fs.remove_dir(path)


def _remove(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)  # first, because a link to a directory is listed as one
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != _NOT_A_FILE:
            raise
        remove_tree(fs, path)
