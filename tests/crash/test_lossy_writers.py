"""Two processes write to one log on the file system that forgets; both are killed, the power goes.

One is killed at some request to the file system or at some moment, and the other goes on for a
while. What is lost follows from a seed; who had come how far does not quite.

    python -m tests.crash.test_lossy_writers PLAN SLOT INCARNATION BOOT

is one of the processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.testing.history import PowerCut
from tests.crash.crowd import PATIENCE_S, Plan, Writer
from tests.crash.lossy import BootedFileSystem, Lossy
from tests.crash.test_crowd import judge, read_books
from tests.project import ROOT


class LossyWriter(Writer):
    """One that knows in which boot it is."""

    boot_id = b""

    def open(self, **options: Any) -> Log | None:
        return super().open(fs=BootedFileSystem(self.boot_id), **options)


@dataclass
class Pair:
    """Two writers, life after life. What they say is kept where nothing is lost."""

    lossy: Lossy
    plan: Plan
    rng: random.Random
    cuts: list[PowerCut] = field(default_factory=list)
    lives: int = 0
    story: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def spawn(self, slot: int) -> Iterator[subprocess.Popen[bytes]]:
        words = [str(self.plan), str(slot), str(self.lives), self.lossy.boot_id.hex()]
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.test_lossy_writers", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        with writer:
            try:
                yield writer
            finally:
                writer.kill()

    def live(self) -> None:
        """Both of them, and their ends."""
        rng = self.rng
        with self.spawn(0) as one, self.spawn(1) as other:
            if rng.random() < 0.7:
                n = rng.randrange(1, rng.choice((60, 400, 2000)))
                self.story.append(f"killed by request {n}")
                self.lossy.kill_at(n, one.pid)
            else:
                self._sleep_until_they_append()
                one.kill()
                self.story.append("killed at some moment")
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(PATIENCE_S / 20)  # it may never come so far
            time.sleep(rng.random() * 0.3)
            for writer in (one, other):
                writer.kill()
                assert writer.wait(PATIENCE_S) == -signal.SIGKILL
        self.lives += 1

    def _sleep_until_they_append(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not any("written" in path.read_text() for path in self._books()):
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(self.rng.random() * 0.3)

    def _books(self) -> list[Path]:
        return sorted(self.plan.books.glob(f"*-{self.lives:05d}"))

    def try_power_cut(self, seed: int) -> None:
        """Look at what it would leave, and leave all as it is."""
        self.lossy.save("before")
        self._cut(seed)
        self.lossy.restore("before")

    def cut_power(self, seed: int) -> None:
        self.story.append(f"power cut {seed}")
        self.cuts.append(self._cut(seed))

    def _cut(self, seed: int) -> PowerCut:
        now = time.monotonic()
        self.lossy.crash(seed)
        cut = PowerCut(now, resumed=0, flushed=read_books(self.plan).flushed)
        return self.check(cut)[-1]

    def check(self, *cuts: PowerCut) -> list[PowerCut]:
        books, report = judge(self.plan, self.lossy.fs, [*self.cuts, *cuts])
        assert report.ok, report
        return books.history.cuts


def run(lossy: Lossy, folder: Path, flush: str, seed: int, *, rounds: int, cuts: int) -> Pair:
    """Life after life, each with `cuts` power cuts at its end, of which one may come true."""
    rng = random.Random(f"{flush} {seed}")
    segments = rng.choice((("8KiB",), ("8KiB", "100KiB"), ("2MiB",)))
    plan = Plan(str(folder), seed, 0, flush, ("owner", "shared"), segment_bytes=segments)
    pair = Pair(lossy, replace(plan, mount=str(lossy.path)), rng)
    plan.books.mkdir()
    try:
        for _ in range(rounds):
            pair.live()
            for _ in range(cuts):
                pair.try_power_cut(rng.randrange(1 << 30))
            if rng.random() < 0.7:
                pair.cut_power(rng.randrange(1 << 30))
        pair.check()
    except BaseException as error:
        error.add_note(f"seed {seed}, segments of {segments}: {', '.join(pair.story)}")
        raise
    return pair


@pytest.mark.parametrize(("flush", "seed"), [("sync", 1), ("async", 2)])
def test_two_writers_and_power_cuts(lossy: Lossy, tmp_path: Path, flush: str, seed: int) -> None:
    run(lossy, tmp_path, flush, seed, rounds=3, cuts=3)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_two_writers_and_power_cuts_for_long(
    lossy: Lossy, tmp_path: Path, flush: str, seed: int
) -> None:
    run(lossy, tmp_path, flush, seed, rounds=25, cuts=10)


if __name__ == "__main__":
    LossyWriter.boot_id = bytes.fromhex(sys.argv[4])
    LossyWriter(Plan.parse(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
