"""A real process, killed with SIGKILL at random, again and again, on real files.

The page cache outlives a process, so even a log that never syncs has lost nothing of what it
acknowledged.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path

import pytest

from tests.crash.processes import Ledger


def kill_loop(folder: Path, flush: str, rounds: int, seed: int) -> Ledger:
    rng = random.Random(seed)
    ledger = Ledger(folder, flush)
    for _ in range(rounds):
        child = ledger.spawn()
        assert child.stdout is not None
        lines = rng.choice((0, 1, 2, 10, 100, 400))
        for _, line in zip(range(lines), child.stdout, strict=False):
            ledger.note(line)
        child.kill()
        ledger.finish(child)
        if rng.random() < 0.7:  # now and then two lives in a row, with nothing in between
            ledger.check()
    ledger.check()
    return ledger


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_kill(flush: str, tmp_path: Path) -> None:
    ledger = kill_loop(tmp_path / "log", flush, rounds=12, seed=1)
    assert len(ledger.acked) > 100


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_kill_for_long(flush: str, seed: int, tmp_path: Path) -> None:
    kill_loop(tmp_path / "log", flush, rounds=150, seed=seed)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_killed_while_it_opens(flush: str, tmp_path: Path) -> None:
    """Recovery of a recovery: each child gets a little further before its end."""
    ledger = Ledger(tmp_path / "log", flush)
    child = ledger.spawn(60)
    assert "closed" in ledger.finish(child)
    for pause_s in (0.05, 0.1, 0.15, 0.2):
        child = ledger.spawn()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(pause_s)
        child.kill()
        ledger.finish(child)
    ledger.check()
