"""The thread that looks after a log: flushes what is not durable, drops what may go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tailrace.errors import Closed, TailraceError

__all__ = ["Chore", "Upkeep"]

logger = logging.getLogger("tailrace")


class Chore(NamedTuple):
    """Something to do every so often."""

    name: str
    interval_s: float
    do: Callable[[], object]


class Upkeep:
    """Runs chores until it is stopped. A chore that fails is reported and tried again later: what
    an error means for the log is decided where it happens, not here."""

    def __init__(self, folder: str, chores: list[Chore]) -> None:
        self._folder = folder
        self._chores = chores
        self._due = {chore.name: time.monotonic() + chore.interval_s for chore in chores}
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-upkeep", daemon=True)
        self._thread.start()

    def hurry(self, name: str) -> None:
        """Do a chore now."""
        self._due[name] = 0
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(max(min(self._due.values()) - time.monotonic(), 0))
            self._wake.clear()
            for chore in self._chores:
                if self._stopped:
                    return
                if self._due[chore.name] <= time.monotonic():
                    self._due[chore.name] = time.monotonic() + chore.interval_s
                    self._do(chore)

    def _do(self, chore: Chore) -> None:
        try:
            chore.do()
        except Closed:
            return
        except (TailraceError, OSError) as error:
            logger.error("%s of %s failed: %s", chore.name, self._folder, error)
        except Exception:  # whatever it is, the other chores go on
            logger.exception("%s of %s failed", chore.name, self._folder)

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
