"""To be stopped where nothing is half done, and to be stopped for sure.

A command that hands messages on is stopped while it opens its queue or waits for a message, and not
between writing one out and acknowledging it. So a signal is only noted, and raised where the
command says that it may be.

A command that has Spark at work is stopped anywhere, by SIGTERM as by Ctrl-C, and removes its
files. What is raised in a finalizer, and py4j has one for each of its objects, Python only reports;
so it is raised again.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Insisting", "Stopped", "Stopping", "Terminated"]

_AGAIN_S = 0.2


class Stopped(BaseException):
    """The signal that stops the command. `code` is what shells make of it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.code = 128 + signum


class Terminated(KeyboardInterrupt):
    """An interrupt that SIGTERM has made. `code` is what shells make of it."""

    code = 128 + signal.SIGTERM


class Stopping:
    """`with Stopping() as stopping:` minds SIGINT and SIGTERM. For the main thread; in another one
    signals go on as before."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._count = 0
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
        self._count += 1
        if self._is_waiting:
            raise Stopped(signum)
        if self.pass_on is not None and signum == signal.SIGTERM:  # a terminal tells everybody
            self.pass_on(signum)

    def is_stopping(self) -> bool:
        return self._signum is not None

    def is_insisting(self) -> bool:
        """Has somebody told it again, who will not wait?"""
        return self._count > 1

    @property
    def signal(self) -> int | None:
        """What it was told by, if it was."""
        return self._signum

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


class Insisting:
    """`with Insisting():` raises an interrupt until somebody handles it, and `Terminated` after
    SIGTERM. For the main thread."""

    def __init__(self) -> None:
        self._old: list[tuple[int, Any]] = []
        self._first: int | None = None  # that has come

    def __enter__(self) -> None:
        with contextlib.suppress(ValueError):  # not the main thread
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                self._old.append((signum, signal.signal(signum, self._interrupt)))
        self._report_others = sys.unraisablehook
        sys.unraisablehook = self._report

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.unraisablehook = self._report_others
        if self._old:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._old:
            # After an interrupt the command is about to end, and another would spoil it.
            signal.signal(signum, handler if self._first is None else signal.SIG_IGN)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = signum
        if not _is_handled(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            raise Terminated if self._first == signal.SIGTERM else KeyboardInterrupt

    def _report(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._report_others(unraisable)


def _is_handled(kind: type[BaseException]) -> bool:
    """Is there an error of that kind, or one that came of it, which is being handled now?"""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, kind):
        error = error.__context__
    return error is not None
