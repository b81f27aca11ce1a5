"""Running `child.py`, ending it, and comparing what it said with what is on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace import Log, OffsetOutOfRange
from tests.crash.oracle import scan

CHILD = Path(__file__).with_name("child.py")
PATIENCE_S = 60


@dataclass
class Ledger:
    """What the children said over all their lives."""

    folder: Path
    flush: str
    acked: dict[int, int] = field(default_factory=dict)  # offset: life
    start: int = 0
    lives: int = 0

    def spawn(self, *count: int, wrapper: Sequence[str] = ()) -> subprocess.Popen[str]:
        """The next life."""
        self.lives += 1
        words = [str(CHILD), str(self.folder), self.flush, str(self.lives), *map(str, count)]
        return subprocess.Popen(
            [*wrapper, sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def note(self, line: str) -> str:
        """Take down a line, and return its first word."""
        word, *numbers = line.split()
        if word == "ack":
            offset, count = map(int, numbers)
            for acked in range(offset, offset + count):
                assert acked not in self.acked, f"offset {acked} was given out twice"
                self.acked[acked] = self.lives
        elif word == "start":
            self.start = max(self.start, int(numbers[0]))
        assert word != "error", line
        return word

    def finish(self, child: subprocess.Popen[str]) -> list[str]:
        """Read what the child still had to say, and wait for its end."""
        output, _ = child.communicate(timeout=PATIENCE_S)
        lines = output.splitlines(keepends=True)
        return [self.note(line) for line in lines if line.endswith("\n")]

    def check(self, *, gaps: bool = False) -> None:
        """Open the log, as the next one would, and look for everything. A kill leaves no gaps; a
        failed flush may."""
        with Log(self.folder, upkeep=False) as log:
            found = scan(log)
            assert not found.lost
            assert found.start >= self.start
            there = {}
            for seen in found.records:
                words = seen.value.split(b" ")
                assert int(words[1]) == seen.offset, f"{seen.record} is in the wrong place"
                there[seen.offset] = int(words[0])
            for offset, life in self.acked.items():
                assert offset < found.start or there.get(offset) == life, (
                    f"offset {offset} was acknowledged in life {life}; "
                    f"what is there is of life {there.get(offset)}"
                )
            assert log.end_offset > max(self.acked, default=-1)
            assert gaps or not list(found.missing()), "there is a gap"
            if found.start > 0:
                with pytest.raises(OffsetOutOfRange) as caught:
                    log.read(found.start - 1)
                assert caught.value.low == found.start
