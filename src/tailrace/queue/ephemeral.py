"""Queues that are gone when nobody wants them.

Who consumes from an ephemeral queue shares a lock on the file `attended` in its folder. If nobody
has it, the time of the file tells since when.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType

from tailrace.errors import TailraceError
from tailrace.log.fs import FileLock, FileSystem
from tailrace.log.sidefiles import FOLDER

__all__ = ["Attendance", "Sweeper"]

logger = logging.getLogger("tailrace")


def _path(folder: str) -> str:
    return os.path.join(folder, FOLDER, "attended")


class Attendance:
    """A consumer is there, as long as the block runs, or its process lives."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        fs.make_dirs(os.path.join(folder, FOLDER))
        self._lock: FileLock = fs.lock(_path(folder))

    def __enter__(self) -> None:
        self._lock.acquire(shared=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.write_note(b"left\n")  # the time of the file counts
        self._lock.close()

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

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="tailrace-sweeper", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        wait_s: float | None = 0.0
        while not self._stopped.wait(wait_s):
            try:
                wait_s = self._sweep()
            except (TailraceError, OSError) as error:
                if self._stopped.is_set():
                    return
                logger.error("cannot delete what is not used any more: %s", error)
                wait_s = 60.0
            if wait_s is None:
                with self._lock:
                    self._thread = None
                return

    def stop(self) -> None:
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
