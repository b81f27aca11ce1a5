"""A call fails, or an interrupt comes, anywhere in what a writer does; and its process lives on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from tailrace import TailraceError
from tailrace.testing import Call, Fail, Fault, FaultyFileSystem

__all__ = ["Do", "at_call", "at_line", "each_hit"]

Do = Callable[[], object]
_HERE = f"{os.sep}tailrace{os.sep}log{os.sep}"


def at_call(fs: FaultyFileSystem, error: int | None, number: int, do: Do) -> bool:
    """Have the n-th call from here on fail, or an interrupt come before it if there is no error.
    False if there are fewer."""
    first = len(fs.calls)

    def plan(call: Call) -> Fault | None:
        if call.n != first + number:
            return None
        if error is None:
            raise KeyboardInterrupt
        return Fail(error)

    fs.plan = plan
    try:
        _attempt(do)
    finally:
        fs.plan = None
    return len(fs.calls) > first + number


def at_line(modules: tuple[str, ...], number: int, do: Do) -> bool:
    """Have an interrupt come before the n-th line of some modules of a log; false if there are
    fewer."""
    countdown = _Countdown(number, tuple(f"{_HERE}{name}.py" for name in modules))
    before = sys.gettrace()
    sys.settrace(countdown)
    try:
        _attempt(do)
    finally:
        sys.settrace(before)
    return countdown.left < 0


def each_hit(run: Callable[[int], bool], step: int = 1) -> Iterator[int]:
    """Run it for each number, or some, until there is nothing to hit."""
    number = 0
    while run(number):
        yield number
        number += step


def _attempt(do: Do) -> None:
    with contextlib.suppress(TailraceError, KeyboardInterrupt):
        do()


class _Countdown:
    """For `sys.settrace`."""

    def __init__(self, lines: int, files: tuple[str, ...]) -> None:
        self.left = lines
        self._files = files

    def __call__(self, frame: FrameType, event: str, _argument: object) -> _Countdown | None:
        if event == "call" and not frame.f_code.co_filename.endswith(self._files):
            return None
        if event == "line":
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
        return self
