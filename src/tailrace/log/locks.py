"""The lock that lets one process write.

`flock` on a file: the kernel drops it when the process ends, however it ends, and it belongs to the
open file, so neither a second open in this process nor somebody who copies the folder disturbs it.
Its trap is that a forked child shares the open file and with it the lock; so a child closes what it
inherited before anything else runs there.

Thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
import weakref

from tailrace.errors import Locked

__all__ = ["ProcessLock"]

_held: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """Held from `acquire` to `release`. The file says who holds it, for the error of the next."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: str) -> ProcessLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_or_refuse(fd, path)
        except BaseException:
            os.close(fd)
            raise
        lock = cls(fd)
        note = {"pid": os.getpid(), "host": os.uname().nodename, "since": int(time.time())}
        with contextlib.suppress(OSError):  # a full disk; the lock holds without the note
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(note).encode(), 0)
        return lock

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            self.disown()

    def disown(self) -> None:
        """Close our descriptor. In a forked child the parent's still holds the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.disown()


def _disown_all() -> None:
    for lock in list(_held):
        lock.disown()


os.register_at_fork(after_in_child=_disown_all)


def _lock_or_refuse(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        holder, advice = _describe(os.pread(fd, 1024, 0))
        raise Locked(f"{path} is held by {holder}; {advice}", holder) from None


def _describe(note: bytes) -> tuple[str, str]:
    """Who holds the lock, and what to do about it."""
    advice = "only one process can write to a log at a time (open it with read_only=True to read)"
    try:
        holder = json.loads(note)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
        if holder["pid"] == os.getpid():
            return (
                f"another Log in this process (pid {os.getpid()})",
                "share one Log between threads",
            )
        return f"pid {holder['pid']} on {holder['host']} since {since}", advice
    except (ValueError, KeyError, TypeError):
        return "another process", advice
