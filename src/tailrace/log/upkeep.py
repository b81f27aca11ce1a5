"""The thread that looks after a log: flushes what is not durable, drops what may go.

Each handle has one, and one at a time works, by a lock that ends with its process; whoever finds it
taken comes back soon. Each does what its own options ask for, and what others have done already
costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from tailrace.errors import Closed, Locked, TailraceError
from tailrace.log.fs import FileLock

__all__ = ["Chore", "Upkeep", "flush_chores"]

logger = logging.getLogger("tailrace")

_SOON_S = 0.1
_LATER_S = 60.0  # what is at it by command, say, takes its time


class Chore(NamedTuple):
    """Something to do every so often: for the first time after `first_s`, or an interval. If that
    has no end, it is done when somebody says so. Without `in_turn` it concerns nobody else."""

    name: str
    interval_s: float
    do: Callable[[], object]
    first_s: float | None = None
    in_turn: bool = True


def flush_chores(
    interval_s: float, flush: Callable[[], object], along: Callable[[], object] | None
) -> list[Chore]:
    """Flush a log, and what goes `along` with it, which each has for itself."""
    chores = [Chore("flush", interval_s, flush)]
    if along is not None:
        chores.append(Chore("flush along", interval_s, along, in_turn=False))
    return chores


class Upkeep:
    """Runs chores until it is stopped. A chore that fails is reported and tried again later: what
    an error means for the log is decided where it happens, not here. One that finds something
    `Locked` is tried again soon, and not only an interval later."""

    def __init__(self, folder: str, chores: list[Chore], lock: FileLock) -> None:
        """`lock` is free, and ours to close."""
        self._folder = folder
        self._lock = lock
        self._chores = chores
        self._due = {
            chore.name: time.monotonic()
            + (chore.interval_s if chore.first_s is None else chore.first_s)
            for chore in chores
        }
        self._stopped = False
        # No event: the garbage collector may come while somebody is at its lock, and wakes us too.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tailrace-upkeep", daemon=True)
        self._thread.start()

    def hurry(self, name: str) -> None:
        """Do a chore now."""
        self._due[name] = 0
        self._wake.put(None)

    def expect(self, name: str, within_s: float) -> None:
        """Do a chore within so many seconds. Waits for nobody: the garbage collector may call
        it."""
        due_s = time.monotonic() + within_s
        if due_s < self._due[name]:
            self._due[name] = due_s
            self._wake.put(None)

    def pace(self, name: str, interval_s: float) -> None:
        """Do a chore so often from now on."""
        for index, chore in enumerate(self._chores):
            if chore.name == name and chore.interval_s != interval_s:
                self._chores[index] = chore._replace(interval_s=interval_s)
                self._due[name] = min(self._due[name], time.monotonic() + interval_s)
                self._wake.put(None)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._lock.close()

    def _work(self) -> None:
        while True:
            self._sleep(min(self._due.values()) - time.monotonic())
            for chore in self._chores:
                if self._stopped:
                    return
                if self._due[chore.name] <= time.monotonic():
                    self._due[chore.name] = time.monotonic() + chore.interval_s
                    if chore.in_turn:
                        self._do_in_turn(chore)
                    else:
                        self._do(chore)

    def _sleep(self, for_s: float) -> None:
        with contextlib.suppress(Empty):
            self._wake.get(timeout=min(max(for_s, 0), threading.TIMEOUT_MAX))
            while True:  # who has called several times means the same
                self._wake.get_nowait()

    def _do_in_turn(self, chore: Chore) -> None:
        try:
            if not self._lock.acquire(wait=False):
                self._due[chore.name] = time.monotonic() + min(chore.interval_s, _SOON_S)
                return
        except OSError as error:
            self._complain(chore, error)
            return
        try:
            self._do(chore)
        finally:
            self._lock.release()

    def _do(self, chore: Chore) -> None:
        try:
            chore.do()
        except Closed:
            return
        except Locked as error:
            self.expect(chore.name, _LATER_S)
            logger.info("%s waits: %s", chore.name, error, extra={"path": self._folder})
        except (TailraceError, OSError) as error:
            self._complain(chore, error)
        except Exception:  # whatever it is, the other chores go on
            extra = {"path": self._folder}
            logger.exception("%s of %s failed", chore.name, self._folder, extra=extra)

    def _complain(self, chore: Chore, error: Exception) -> None:
        extra = {"path": self._folder}
        try:
            self._lock.check_in_place()
        except FileNotFoundError:  # as when another process has deleted the queue
            logger.warning("%s was taken away: nobody looks after it", self._folder, extra=extra)
            self._stopped = True
            return
        logger.error("%s of %s failed: %s", chore.name, self._folder, error, extra=extra)

    def stop(self) -> None:
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def end(self) -> None:
        """Stop soon. Waits for nobody: the garbage collector may call it."""
        self._stopped = True
        self._wake.put(None)
