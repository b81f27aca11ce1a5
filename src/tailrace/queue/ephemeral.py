"""Queues that are gone when nobody wants them.

Who consumes from an ephemeral queue shares a lock on the file `attended` in its folder, which says
that somebody is there; the last one to go has it say so. If nobody has the lock, the time of the
file tells since when. But if it says that somebody is there, that one was killed, and whoever sees
that first has the file say that nobody is: the time counts from then on.

Those that FluxMQ made are as it has them: they outlive a restart, and stay as long as no consumer
has come and gone.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tailrace.errors import TailraceError
from tailrace.log.fs import FileLock, FileSystem
from tailrace.log.sidefiles import FOLDER

__all__ = ["Attendance", "Sweeper"]

logger = logging.getLogger("tailrace")

_AFTER_ERROR_S = 60.0
_HERE, _LEFT = b"here\n", b"left\n"


def _path(folder: str) -> str:
    return os.path.join(folder, FOLDER, "attended")


class Attendance:
    """A consumer is there, as long as the block runs, or its process lives."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        fs.make_dirs(os.path.join(folder, FOLDER))
        self._lock: FileLock = fs.lock(_path(folder))

    def __enter__(self) -> None:
        self._lock.acquire(shared=True)
        self._lock.write_note(_HERE)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # If two go at once, neither has it alone: then it is as if they were killed.
        if self._lock.acquire(wait=False):
            self._lock.write_note(_LEFT)
        self._lock.close()

    @staticmethod
    def has_begun(fs: FileSystem, folder: str) -> bool:
        """Was anybody ever there?"""
        try:
            fs.stat(_path(folder))
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def idle_s(fs: FileSystem, folder: str, wall_ms: int) -> float | None:
        """For how long nobody has been there; `None` if somebody is."""
        path = _path(folder)
        try:
            modified_ms = fs.stat(path).modified_ms
        except FileNotFoundError:  # nobody ever was
            try:
                modified_ms = fs.stat(folder).modified_ms
            except FileNotFoundError:
                return None  # it is about to be made
        else:
            lock = fs.lock(path)
            try:
                if not lock.acquire(wait=False):
                    return None
                if lock.read_note() == _HERE:
                    lock.write_note(_LEFT)
                    return 0.0
            finally:
                lock.close()
        return max(wall_ms - modified_ms, 0) / 1000


class Sweeper:
    """A thread that sweeps now and then, as long as there is something to sweep."""

    def __init__(self, sweep: Callable[[], float | None]) -> None:
        """`sweep` tells how many seconds to wait, or that there is nothing left."""
        self._sweep = sweep
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._called = threading.Event()
        self._due_s = 0.0  # when it sweeps next

    def start(self, within_s: float = 0.0) -> None:
        """There is something to sweep, and at the latest then it is worth a look."""
        with self._lock:
            if self._stopped.is_set():
                return
            due_s = time.monotonic() + within_s
            if self._thread is None:
                self._due_s = due_s
                self._thread = threading.Thread(
                    target=self._run, name="tailrace-sweeper", daemon=True
                )
                self._thread.start()
            elif due_s < self._due_s:
                self._due_s = due_s
                self._called.set()

    def _run(self) -> None:
        while True:
            self._called.clear()
            if self._stopped.is_set():
                return
            if self._called.wait(max(self._due_s - time.monotonic(), 0)):
                continue
            with self._lock:
                self._due_s = math.inf
            wait_s: float | None = _AFTER_ERROR_S
            try:
                wait_s = self._sweep()
            except (TailraceError, OSError) as error:
                if self._stopped.is_set():
                    return
                logger.error("cannot delete what is not used any more: %s", error)
            with self._lock:
                if wait_s is not None:
                    self._due_s = min(self._due_s, time.monotonic() + wait_s)
                elif self._due_s == math.inf:
                    self._thread = None
                    return

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
        self._called.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
