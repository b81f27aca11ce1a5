"""A queue's lock, and who lets go of a queue that was deleted.

With this lock, or with a group's turn, nobody lets go of what the queue has open, nor waits for the
registry: to let go one waits for the lock and for each group's turn, and whoever deletes a queue
has the registry and waits for the lock. So who finds with the lock that the queue was deleted only
says so, and lets go when it has given the lock back. With a turn nobody asks: settings are read
before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["QueueLock"]


class QueueLock:
    """One that the thread that has it may take again; `left` is called, without it, each time a
    thread has given it back for good."""

    def __init__(self, left: Callable[[], object]) -> None:
        self._left = left
        self._lock = threading.RLock()

    @property
    def is_ours(self) -> bool:
        """Has this thread got it?"""
        is_owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return is_owned

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        if not self.is_ours:
            self._left()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def disown(self) -> None:
        """In a forked child: another thread of the parent may have had it."""
        self._lock = threading.RLock()
