"""Locks between processes.

`flock` on a file: the kernel drops it when the process ends, however it ends, and it belongs to the
open file, so neither a second open in this process nor somebody who copies the folder disturbs it.
Its trap is that a forked child shares the open file and with it the lock; so a child closes what it
inherited before anything else runs there.

A lock is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import threading
import weakref
from collections.abc import Callable

from tailrace.kernel import lock_now, unlock

__all__ = ["ProcessLock"]


# No fork comes between opening a file and knowing of it.
_opening = threading.Lock()
_open: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A lock on a file, which is made if it is missing. Free until `acquire`."""

    __slots__ = ("__weakref__", "_fd", "_path", "acquire_now", "release")

    def __init__(self, path: str) -> None:
        # Not methods, because each append calls them. The first is `acquire(wait=False)`.
        self.acquire_now: Callable[[], bool] = _refuse
        self.release: Callable[[], None] = _nothing
        self._path = path
        with _opening:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _open.add(self)
        self.acquire_now = functools.partial(lock_now, self._fd)
        self.release = functools.partial(unlock, self._fd)

    def acquire(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Take it, alone or together with others who share it; false if somebody has it and we
        are not to wait. Taking it again changes one sort into the other, by way of none."""
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._fd, operation if wait else operation | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def check_in_place(self) -> None:
        """`FileNotFoundError` if it is not the file at its path any more: its folder was taken
        away, and perhaps made anew. While it is open no other file has its number."""
        if not os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)

    def read_note(self) -> bytes:
        """What the file says, for people: nothing hangs on it."""
        return os.pread(self._fd, 1 << 16, 0)

    def write_note(self, note: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk; the lock holds without the note
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note, 0)

    def close(self) -> None:
        # Not only by closing: a program that another thread is just starting has our open files,
        # and the lock with them, until it runs.
        with contextlib.suppress(OSError):  # closing ends it as well, in the end
            self.release()
        self.disown()

    def disown(self) -> None:
        """In a forked child, close our descriptor: the lock is the parent's."""
        fd, self._fd = self._fd, -1
        self.acquire_now, self.release = _refuse, _nothing
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # not if it could not be opened
            self.close()


def _refuse() -> bool:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _nothing() -> None:
    """There is nothing to release."""


def _disown_all() -> None:
    _opening.release()
    for lock in list(_open):
        lock.disown()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_disown_all
)
