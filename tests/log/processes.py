"""Another process that does as it is told, so that a test says when it does what, and kills it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.log.helpers import WAIT

# A line at a time, each answered with one; what is assigned in a line is there for the next.
_CODE = """
import os, signal, sys, threading, time
from tailrace import Locked, Log
from tailrace.log.locks import ProcessLock

path = sys.argv[1]
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except Locked as error:
        print(error, flush=True)
"""


class Other:
    """Another process, in which `path` is the test's."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._input, self._output = self.process.stdin, self.process.stdout

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, expression: str) -> None:
        """Have it evaluate something, and don't wait for that."""
        _there(self._input).write(expression + "\n")
        _there(self._input).flush()

    def answer(self) -> str:
        """The next answer; empty if it died."""
        return _there(self._output).readline().rstrip("\n")

    def ask(self, expression: str) -> str:
        self.tell(expression)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT)


def _there(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextmanager
def another_process(path: Path) -> Iterator[Other]:
    other = Other(path)
    with other.process:
        try:
            yield other
        finally:
            other.kill()
