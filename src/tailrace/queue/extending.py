"""Keeping a message while a long job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from tailrace.errors import Closed, LeaseLost, TailraceError
from tailrace.queue.message import Message

__all__ = ["AutoExtend", "is_over", "pause_s"]


def pause_s(left_s: float) -> float:
    """When to extend a lease that lasts for so long: two more tries are possible after that."""
    return max(left_s / 3, 0.01)


def is_over(error: TailraceError | OSError) -> bool:
    """Is there nothing to extend any more: it was lost, or settled meanwhile, or the queue is gone?
    After any other error there is time for another try."""
    return isinstance(error, LeaseLost | Closed)


class AutoExtend:
    """Extends a lease from a thread, well before it ends, until the block is left. `lost` is true
    if it was lost all the same: the machine slept, or the disk was full for too long. A message
    that was settled in the block is not lost.

    How long a lease lasts is asked each time: the queue's `visibility_timeout` may change, and what
    somebody has extended for longer than that stays so.
    """

    def __init__(self, message: Message, keep: Callable[[Message], float]) -> None:
        """`keep` extends the lease, if it ends sooner than usual, and says for how many seconds it
        lasts."""
        self._message = message
        self._keep = keep
        self._done = threading.Event()
        self.lost = False
        self._thread: threading.Thread | None = None

    def _run(self, wait_s: float) -> None:
        while not self._done.wait(wait_s):
            try:
                wait_s = pause_s(self._keep(self._message))
            except (TailraceError, OSError) as error:
                if is_over(error):
                    self.lost = self._message.settled is None
                    return

    def __enter__(self) -> AutoExtend:
        wait_s = pause_s(self._keep(self._message))
        self._thread = threading.Thread(
            target=self._run, args=(wait_s,), name="tailrace-extend", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
