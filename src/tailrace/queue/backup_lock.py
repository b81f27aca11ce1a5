"""How everybody knows that a backup is under way: by a lock, which ends with its process.

Backups share it. Who wants to know tries to have it alone, and gives it back at once; two who ask
at the same time may both be told that there is one, which does no harm.

Whoever opens the store makes the file, and no backup does: one that root makes must not leave a
file that others cannot open.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from tailrace.log.fs import FileLock, FileSystem

__all__ = ["Backups", "under_way"]

NAME: Final = "lock.backup"
# Who may not write to a store cannot have the turn of any group either, and of one that nobody may
# write to, or has opened, there is nothing to keep as it is.
_UNWRITABLE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)


class Backups:
    """Those of the store whose side files are in `folder`. Any thread may ask: what counts is that
    the lock was to be had, not for how long."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._path = os.path.join(folder, NAME)
        self._lock: FileLock | None = None

    def have(self) -> None:
        """Have the file for others; whoever opens the store can do without."""
        with contextlib.suppress(OSError):
            self._open()

    def _open(self) -> FileLock:
        lock = self._lock
        if lock is None:
            lock = self._lock = self._fs.lock(self._path)
        return lock

    def are_over(self) -> bool:
        """Is none under way? Waits for nobody; false if that cannot be told."""
        try:
            lock = self._open()
            try:
                return lock.acquire_now()
            finally:
                lock.release()
        except OSError:
            return False

    def disown(self) -> None:
        """In a forked child: the lock is the parent's."""
        self._lock = None

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


@contextlib.contextmanager
def under_way(fs: FileSystem, folder: str) -> Iterator[None]:
    """As long as the block runs, everybody sees that there is a backup."""
    path, lock = os.path.join(folder, NAME), None
    try:
        fs.stat(path)
        lock = fs.lock(path)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
    if lock is None:
        yield
        return
    try:
        lock.acquire(shared=True)
        yield
    finally:
        lock.close()
