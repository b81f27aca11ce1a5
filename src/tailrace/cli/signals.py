"""To be stopped where nothing is half done.

A command that hands messages on is stopped while it waits for one, and not between writing one out
and acknowledging it. So a signal is only noted, and raised where the command says that it may be.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stopped", "Stopping"]


class Stopped(BaseException):
    """The signal that stops the command. `code` is what shells make of it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.code = 128 + signum


class Stopping:
    """`with Stopping() as stopping:` minds SIGINT and SIGTERM. For the main thread; in another one
    signals go on as before."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._is_waiting = False
        self._old: list[tuple[int, Any]] = []
        self.pass_on: Callable[[int], object] | None = None  # to whom a signal is told

    def __enter__(self) -> Stopping:
        with contextlib.suppress(ValueError):  # not the main thread
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._old.append((signum, signal.signal(signum, self._note)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._old:
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        if self._is_waiting:
            raise Stopped(signum)
        if self.pass_on is not None and signum == signal.SIGTERM:  # a terminal tells everybody
            self.pass_on(signum)

    def is_stopping(self) -> bool:
        return self._signum is not None

    def check(self) -> None:
        if self._signum is not None:
            raise Stopped(self._signum)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """In this block it may be stopped anywhere."""
        self._is_waiting = True
        try:
            self.check()
            yield
        finally:
            self._is_waiting = False
