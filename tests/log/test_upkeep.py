"""The thread that looks after a log."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

import pytest

from tailrace import Closed, Log, NotWritten
from tailrace.log.fs import FileLock, OsFileSystem
from tailrace.log.tail import _ROLLED_MANY
from tailrace.log.upkeep import Chore, Upkeep
from tailrace.testing import Fail, FaultyFileSystem, SimulatedDisk, on
from tests.log.conftest import our_threads
from tests.log.helpers import WAIT, eventually, fill


def free_lock() -> FileLock:
    return SimulatedDisk().lock("lock.upkeep")


def test_chores_come_round_at_their_own_pace() -> None:
    counts = {"often": 0, "rarely": 0}

    def count(name: str) -> None:
        counts[name] += 1

    chores = [
        Chore("often", 0.001, lambda: count("often")),
        Chore("rarely", 3600, lambda: count("rarely")),
    ]
    upkeep = Upkeep("folder", chores, free_lock())
    eventually(lambda: counts["often"] > 3)
    upkeep.stop()
    assert counts["rarely"] == 0
    assert not our_threads()
    upkeep.stop()  # again


def test_a_chore_can_be_hurried() -> None:
    done: list[str] = []
    chores = [Chore(name, 3600, partial(done.append, name)) for name in ("one", "two")]
    upkeep = Upkeep("folder", chores, free_lock())
    upkeep.hurry("two")
    eventually(lambda: done == ["two"])
    upkeep.hurry("two")
    eventually(lambda: done == ["two", "two"])
    upkeep.stop()


def test_a_log_that_is_ahead_of_the_disk_does_not_wait_for_the_interval(path: Path) -> None:
    with Log(path, flush="async", flush_interval="1h", segment_bytes=200) as log:
        for _ in range(_ROLLED_MANY):
            log.append([bytes(150)])
        assert log.durable_offset == 0
        log.append([bytes(150)])
        eventually(lambda: log.durable_offset >= _ROLLED_MANY)


@pytest.mark.parametrize("error", [OSError("no disk"), NotWritten("no room")])
def test_an_error_is_reported_and_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def fail() -> None:
        nonlocal tried
        tried += 1
        raise error

    with caplog.at_level(logging.ERROR, "tailrace"):
        upkeep = Upkeep("the/folder", [Chore("flush", 0.001, fail)], free_lock())
        eventually(lambda: tried > 2)
        upkeep.stop()
    assert f"flush of the/folder failed: {error}" in caplog.messages


def test_a_log_that_was_closed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def closed() -> None:
        done.set()
        raise Closed("closed")

    upkeep = Upkeep("folder", [Chore("flush", 0.001, closed)], free_lock())
    assert done.wait(WAIT)
    upkeep.stop()
    assert not caplog.messages


def test_a_chore_may_stop_the_upkeep() -> None:
    stopped = threading.Event()
    upkeeps: list[Upkeep] = []

    def stop() -> None:
        eventually(lambda: bool(upkeeps))
        upkeeps[0].stop()
        stopped.set()

    upkeeps.append(Upkeep("folder", [Chore("stop", 0.001, stop)], free_lock()))
    assert stopped.wait(WAIT)
    eventually(lambda: not our_threads())


def test_a_failed_background_flush_is_told_and_blocks_the_next_append(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    log = Log(path, fs=fs, flush="async", flush_interval="5ms")
    fill(log, 3)
    fs.plan = on("sync", Fail(), path="*.seg")
    log.append([b"x"])
    eventually(lambda: any("flush of" in message for message in caplog.messages))
    with pytest.raises(NotWritten, match=r"a flush failed .* reopen the log"):
        log.append([b"y"])
    log.close()
    with Log(path) as log:
        assert log.durable_offset >= 3
        log.append([b"again"]).wait()


def test_segments_below_the_start_go_without_any_limit(path: Path) -> None:
    with Log(path, segment_bytes=100, retention_check_interval=0.01) as log:
        for _ in range(10):
            log.append([b"x" * 50]).wait()
        before = len(list(path.glob("*.seg")))
        log.truncate_before(8)
        eventually(lambda: len(list(path.glob("*.seg"))) < before - 5)


def test_one_at_a_time_works() -> None:
    """Of two processes; the other comes back when the first is done, or dead."""
    disk = SimulatedDisk()
    at_work, done = threading.Event(), threading.Event()
    counts = {"first": 0, "second": 0}

    def hold() -> None:
        counts["first"] += 1
        at_work.set()
        done.wait(WAIT)

    def count() -> None:
        counts["second"] += 1

    first = Upkeep("folder", [Chore("flush", 0.001, hold)], disk.lock("lock.upkeep"))
    assert at_work.wait(WAIT)
    second = Upkeep("folder", [Chore("flush", 0.001, count)], disk.lock("lock.upkeep"))
    assert not threading.Event().wait(0.05)
    assert counts == {"first": 1, "second": 0}
    disk.kill()  # the first one's lock goes with its process
    second.stop()
    second = Upkeep("folder", [Chore("flush", 0.001, count)], disk.lock("lock.upkeep"))
    eventually(lambda: counts["second"] > 0)
    done.set()
    first.stop()
    second.stop()


def test_a_lock_that_cannot_be_taken_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    lock = disk.lock("lock.upkeep")
    disk.kill()  # so that nothing can be done with it any more
    with caplog.at_level(logging.ERROR, "tailrace"):
        upkeep = Upkeep("the/folder", [Chore("flush", 0.001, lambda: None)], lock)
        eventually(lambda: "flush of the/folder failed" in caplog.text)
        upkeep.stop()
