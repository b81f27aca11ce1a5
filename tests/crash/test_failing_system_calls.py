"""The real engine on a real kernel, with strace making chosen system calls fail or fatal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tailrace import Log
from tests.crash.processes import Ledger

APPENDS = 20


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A log that has some records already."""
    ledger = Ledger(tmp_path / "log", "sync")
    assert "closed" in ledger.finish(ledger.spawn(APPENDS))
    return ledger


def run_with(strace: str, ledger: Ledger, injection: str, *, count: int = APPENDS) -> list[str]:
    call = injection.partition(":")[0]
    wrapper = [strace, "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    child = ledger.spawn(count, wrapper=[*wrapper, "-e", f"inject={injection}"])
    said = ledger.finish(child)
    assert said or child.returncode == -signal.SIGKILL, f"strace ended with {child.returncode}"
    return said


def is_traceable(strace: str) -> bool:
    tried = subprocess.run(
        [strace, "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.fixture
def tracer(strace: str) -> str:
    if not is_traceable(strace):
        pytest.skip("strace may not trace here")
    return strace


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EINTR"])
def test_a_write_fails(tracer: str, ledger: Ledger, error: str) -> None:
    """Once: the append is refused, and the next one works. (Python repeats after EINTR.)"""
    said = run_with(tracer, ledger, f"pwrite64:error={error}:when=15")
    assert said[-1] == "closed"
    assert said.count("not-written") <= 1
    assert said.count("ack") >= APPENDS - 1
    if error == "EINTR":
        assert said.count("ack") == APPENDS
    ledger.check()


def test_a_disk_that_stays_full(tracer: str, ledger: Ledger) -> None:
    said = run_with(tracer, ledger, "pwrite64:error=ENOSPC:when=15+")
    assert "not-written" in said
    ledger.check()
    assert said.count("ack") < APPENDS
    assert "closed" in ledger.finish(ledger.spawn(APPENDS)), "there is space again"
    ledger.check()


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_sync_fails(tracer: str, ledger: Ledger, error: str) -> None:
    """The log is poisoned: nothing is acknowledged after it, and the next life goes on."""
    said = run_with(tracer, ledger, f"fdatasync:error={error}:when=9")
    assert "unknown" in said or said[-1] == "closed"
    if "unknown" in said:
        assert "ack" not in said[said.index("unknown") :]
    with Log(ledger.folder, read_only=True) as log:
        assert [r.offset for r in log.read()]
    ledger.check(gaps=True)
    assert "closed" in ledger.finish(ledger.spawn(APPENDS))
    ledger.check(gaps=True)


@pytest.mark.parametrize(
    ("call", "nth"),
    [("fdatasync", 1), ("fdatasync", 5), ("fdatasync", 20), ("pwrite64", 2), ("pwrite64", 25)],
)
def test_killed_at_the_nth_call(tracer: str, ledger: Ledger, call: str, nth: int) -> None:
    said = run_with(tracer, ledger, f"{call}:signal=KILL:when={nth}")
    ledger.check()
    assert "closed" in ledger.finish(ledger.spawn(5)), f"after {said[-1:]}"
    ledger.check()
