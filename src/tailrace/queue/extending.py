"""Keeping a message while a long job runs."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol

from tailrace.errors import Closed, LeaseLost, TailraceError

__all__ = ["AutoExtend"]


class _Extendable(Protocol):
    def extend(self, seconds: float | str | None = None) -> None: ...


class AutoExtend:
    """Extends a lease from a thread, well before it ends, until the block is left. `lost` is true
    if it was lost all the same: the machine slept, or the disk was full for too long."""

    def __init__(self, message: _Extendable, lease_s: float) -> None:
        self._message = message
        self._every_s = max(lease_s / 3, 0.01)
        self._done = threading.Event()
        self.lost = False
        self._thread = threading.Thread(target=self._run, name="tailrace-extend", daemon=True)

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            try:
                self._message.extend()
            except (LeaseLost, Closed):  # or settled in the block
                self.lost = not self._done.is_set()
                return
            except (TailraceError, OSError):  # there is time for another try
                continue

    def __enter__(self) -> AutoExtend:
        self._message.extend()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
