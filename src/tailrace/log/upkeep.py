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
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start = time.monotonic()
        due = [start + chore.interval_s for chore in self._chores]
        while not self._stopped.wait(max(min(due) - time.monotonic(), 0)):
            for i, chore in enumerate(self._chores):
                if due[i] <= time.monotonic():
                    self._do(chore)
                    due[i] = time.monotonic() + chore.interval_s

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
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
