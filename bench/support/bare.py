"""The least that writing together and following take: bare system calls, none of our code.

- `AppendingFile`: whoever writes appends to the file; nobody knows where his record went.
- `LockedFile`: a lock that dies with its process, for each record, and no more than that.
- `MarkedFile`: a second file tells how much of the first is on the disk.
- `BareInotify`: sleeps until a file changes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
from pathlib import Path

__all__ = ["AppendingFile", "BareInotify", "LockedFile", "MarkedFile", "mark_of"]

_IN_MODIFY = 0x2


class AppendingFile:
    """A file that several processes append to."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, data: bytes) -> None:
        os.write(self.fd, data)

    def write_durably(self, data: bytes) -> None:
        os.write(self.fd, data)
        os.fdatasync(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class LockedFile(AppendingFile):
    """The same, in turns."""

    def write(self, data: bytes) -> None:
        fd = self.fd
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, data)
        fcntl.flock(fd, fcntl.LOCK_UN)


class MarkedFile(AppendingFile):
    """With a small file beside it, which changes when what was written is on the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._mark = os.open(mark_of(path), os.O_RDWR | os.O_CREAT, 0o644)
        self._size = 0

    def write_durably(self, data: bytes) -> None:
        super().write_durably(data)
        self._size += len(data)
        os.pwrite(self._mark, self._size.to_bytes(8, "little"), 0)

    def close(self) -> None:
        super().close()
        os.close(self._mark)


def mark_of(path: Path) -> Path:
    return path.with_suffix(".mark")


class BareInotify:
    """Tells of changes of one file."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0 or libc.inotify_add_watch(self.fd, os.fsencode(path), _IN_MODIFY) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        self._bell, self._rope = os.pipe()
        self._poller = select.poll()
        self._poller.register(self.fd, select.POLLIN)
        self._poller.register(self._bell, select.POLLIN)

    def wait(self) -> bool:
        """True when it has changed, false when there is nothing more to wait for."""
        for fd, _event in self._poller.poll():
            if fd == self.fd:
                self.read()
                return True
        return False

    def read(self) -> None:
        os.read(self.fd, 4096)

    def stop(self) -> None:
        """End the waiting, in another thread."""
        os.write(self._rope, b"!")

    def close(self) -> None:
        for fd in (self.fd, self._bell, self._rope):
            os.close(fd)
