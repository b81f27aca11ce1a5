"""The lock that lets one process write.

A POSIX record lock: the kernel drops it when the process ends, however it ends, and a forked child
never has it. Its trap is that *any* close of the file in this process drops it too, and that it
does not keep out a second opener in the same process; so the locks a process holds are listed
here, one descriptor each, and a second taker is refused from the list.

Thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time

from tailrace.errors import Locked

__all__ = ["ProcessLock"]

_held: dict[tuple[int, int], ProcessLock] = {}
_guard = threading.Lock()


class ProcessLock:
    """Held from `acquire` to `release`. The file says who holds it, for the error of the next."""

    def __init__(self, fd: int, key: tuple[int, int]) -> None:
        self._fd = fd
        self._key = key
        self._pid = os.getpid()

    @classmethod
    def acquire(cls, path: str) -> ProcessLock:
        with _guard:
            fd = _open_unless_held(path)
            try:
                _lock_or_refuse(fd, path)
            except BaseException:
                os.close(fd)
                raise
            st = os.fstat(fd)
            lock = cls(fd, (st.st_dev, st.st_ino))
            _held[lock._key] = lock
        note = {"pid": os.getpid(), "host": os.uname().nodename, "since": int(time.time())}
        with contextlib.suppress(OSError):  # a full disk; the lock holds without the note
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(note).encode(), 0)
        return lock

    def release(self) -> None:
        with _guard:
            if self._fd < 0:
                return
            if self._pid == os.getpid():  # in a forked child the lock was never ours
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, 0)
                _held.pop(self._key, None)
            os.close(self._fd)
            self._fd = -1


def _open_unless_held(path: str) -> int:
    """Open the lock file, without opening it when this process holds it: closing it again would
    drop the lock."""
    with contextlib.suppress(FileNotFoundError):
        st = os.stat(path)
        lock = _held.get((st.st_dev, st.st_ino))
        if lock is not None and lock._pid == os.getpid():
            holder = f"another Log in this process (pid {os.getpid()})"
            raise Locked(f"{path} is held by {holder}; share one Log between threads", holder)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _lock_or_refuse(fd: int, path: str) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        holder = _describe(os.pread(fd, 1024, 0))
        raise Locked(
            f"{path} is held by {holder}; only one process can write to a log at a time (open it "
            "with read_only=True to read)",
            holder,
        ) from None


def _describe(note: bytes) -> str:
    try:
        holder = json.loads(note)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
        return f"pid {holder['pid']} on {holder['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
