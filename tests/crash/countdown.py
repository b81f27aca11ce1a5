"""A process that dies at a line of the code under test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["Countdown"]


class Countdown:
    """For `sys.settrace`: kills its process when the n-th line of the functions that count is about
    to run. `passed` are the functions of those before it."""

    def __init__(self, lines: int, counts: Callable[[FrameType], bool]) -> None:
        self.passed: list[str] = []
        self._lines = lines
        self._counts = counts

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Countdown | None:
        if event == "call" and not self._counts(frame):
            return None
        if event == "line":
            self.passed.append(frame.f_code.co_qualname)
            if len(self.passed) == self._lines:
                os.kill(os.getpid(), signal.SIGKILL)
        return self
