"""The thread that looks after a log."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Locked, Log, NotWritten
from tailrace.log.fs import FileLock, OsFileSystem
from tailrace.log.offline.holders import find_holders
from tailrace.log.offline.verify import verify
from tailrace.log.tail import _ROLLED_MANY
from tailrace.log.upkeep import Chore, Upkeep
from tailrace.testing import Fail, FaultyFileSystem, SimulatedDisk, on
from tests.log.conftest import OpenLog
from tests.log.helpers import WAIT, bases, eventually, fill, offsets
from tests.log.processes import Other, another_process
from tests.threads import our_threads


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


def test_a_chore_that_finds_it_locked_comes_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only an interval later, which may be a day."""
    monkeypatch.setattr("tailrace.log.upkeep._LATER_S", 0.01)
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Locked("somebody is at it")

    upkeep = Upkeep("folder", [Chore("work", 3600, work, first_s=0.0)], free_lock())
    eventually(lambda: len(tries) == 3)
    time.sleep(0.05)
    upkeep.stop()
    assert len(tries) == 3


def test_a_chore_may_come_sooner_for_the_first_time() -> None:
    done: list[str] = []
    chores = [
        Chore("now", 3600, partial(done.append, "now"), first_s=0.0),
        Chore("later", 0.001, partial(done.append, "later"), first_s=3600),
    ]
    upkeep = Upkeep("folder", chores, free_lock())
    eventually(lambda: bool(done))
    upkeep.stop()
    assert done == ["now"]


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


def test_it_ends_when_the_folder_is_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if another process had deleted the queue: that is told once, and not at each interval."""
    folder = tmp_path / "log"
    log = Log(folder, flush="async", flush_interval="300ms", segment_bytes=200)
    for _ in range(4):
        log.append([bytes(150)])
    with caplog.at_level(logging.WARNING, "tailrace"):
        folder.rename(tmp_path / "elsewhere")
        eventually(lambda: not our_threads())
    log.abandon()
    *poisoned, last = caplog.messages
    assert last == f"{folder} was taken away: nobody looks after it"
    assert [each for each in poisoned if "flush" in each] == []


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


def test_whoever_finds_it_taken_comes_back_soon() -> None:
    """And not at its next turn, which may be hours away."""
    disk = SimulatedDisk()
    taken = disk.lock("lock.upkeep")
    assert taken.acquire()
    done: list[str] = []
    chore = Chore("retention", 3600, partial(done.append, "retention"))
    upkeep = Upkeep("folder", [chore], disk.lock("lock.upkeep"))
    for _ in range(2):
        upkeep.hurry("retention")
        assert not threading.Event().wait(0.05)
        assert not done
    taken.release()
    eventually(lambda: done == ["retention"])
    upkeep.stop()


def test_a_lock_that_cannot_be_taken_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    lock = disk.lock("lock.upkeep")
    disk.kill()  # so that nothing can be done with it any more
    with caplog.at_level(logging.ERROR, "tailrace"):
        upkeep = Upkeep("the/folder", [Chore("flush", 0.001, lambda: None)], lock)
        eventually(lambda: "flush of the/folder failed" in caplog.text)
        upkeep.stop()


# --- processes ------------------------------------------------------------------------------

# Each chore is between two lines of the file `diary`, which all the processes write to.
_WITH_DIARY = """
from functools import partial
from tailrace.log import writer
from tailrace.log.upkeep import Upkeep

diary = os.open(path + "/../diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

def note(what, chore):
    os.write(diary, f"{os.getpid()} {what} {chore.name}\\n".encode())

def noted(chore):
    note("begin", chore)
    time.sleep(0.002)
    chore.do()
    note("end", chore)

class Noted(Upkeep):
    def __init__(self, folder, chores, lock):
        chores = [chore._replace(do=partial(noted, chore)) for chore in chores]
        super().__init__(folder, chores, lock)

writer.Upkeep = Noted
"""

# A log with much to do; but there is time for the chores of three processes, or one might find the
# lock taken whenever it comes.
OPTIONS: dict[str, Any] = {
    "flush": "async",
    "flush_interval": "20ms",
    "segment_bytes": 1_000,
    "retention": {"max_records": 40},
    "retention_check_interval": "20ms",
}

_APPENDING = f"""
log = Log(path, **{OPTIONS!r})

def append():
    number = 0
    while True:
        log.append_one(b"%d %d" % (os.getpid(), number))
        number += 1
        time.sleep(0.001)

threading.Thread(target=append, daemon=True).start()
"""

# A handle that comes no further than to a certain call of a chore, whose thread then sleeps. It has
# no retention if that call is a flush: retention flushes, too, and may leave nothing for the other.
_STUCK = f"""
from tailrace.log.fs import OsFileSystem
from tailrace.testing import FaultyFileSystem

is_stuck = threading.Event()

def get_stuck(call):
    if (call.op, call.path[-4:]) == (where, ".seg"):
        is_stuck.set()
        threading.Event().wait()

fs = FaultyFileSystem(OsFileSystem())
options = {OPTIONS!r}
if where == "sync":
    del options["retention"]
log = Log(path, fs=fs, mode="shared", **options)
fs.plan = get_stuck
"""


def do(other: Other, code: str) -> None:
    assert other.ask(f"exec({code!r}, globals())") == "None"


def at_work(path: Path) -> tuple[int, ...]:
    """The processes that have the lock of upkeep."""
    holders = {lock.name: lock.holders for lock in find_holders(str(path)).locks}["upkeep"]
    assert holders is not None
    return holders


def test_one_at_a_time_works(path: Path) -> None:
    """Three processes with a log, and hardly a moment without a chore. The one at work is stopped
    in the middle, so that the others come in vain, and then killed; a new one comes instead."""
    diary = path.parent / "diary"
    killed: list[str] = []
    path.mkdir()
    with contextlib.ExitStack() as everybody:

        def come() -> Other:
            other = everybody.enter_context(another_process(path))
            do(other, _WITH_DIARY)
            do(other, _APPENDING)
            return other

        others = [come() for _ in range(3)]
        reader = everybody.enter_context(Log(path, read_only=True))
        for _ in range(2):
            stopped = stop_one_at_work(path, others)
            before = diary.read_bytes()
            assert not threading.Event().wait(0.15)  # longer than they wait, each for each chore
            assert diary.read_bytes() == before
            assert at_work(path) == (stopped.pid,)
            start, end = reader.start_offset, reader.end_offset
            stopped.kill()
            others.remove(stopped)
            killed.append(str(stopped.pid))
            expected = {f"{other.pid} end {c}" for other in others for c in ("flush", "retention")}
            wait_for_lines(diary, expected, since=len(before))  # each of them takes its part
            wait_until_done(reader, durable=end, start=start + 1)
            others.append(come())
        assert not overlaps(diary.read_text(), killed)
    with Log(path) as log:
        assert offsets(log.read()) == list(range(log.start_offset, log.end_offset))
    assert not verify(OsFileSystem(), str(path)).problems


def wait_for_lines(diary: Path, lines: set[str], *, since: int) -> None:
    eventually(lambda: lines <= set(diary.read_bytes()[since:].decode().splitlines()))


def wait_until_done(log: Log, *, durable: int, start: int) -> None:
    """Until it is flushed so far, and deleted so far."""
    eventually(lambda: log.durable_offset >= durable and log.start_offset >= start)


def stop_one_at_work(path: Path, others: list[Other]) -> Other:
    """Stop the process that has the lock, if it has it still when it stands."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        for other in others:
            if other.pid in at_work(path):
                os.kill(other.pid, signal.SIGSTOP)
                eventually(partial(is_stopped, other.pid))
                if at_work(path) == (other.pid,):
                    return other
                os.kill(other.pid, signal.SIGCONT)
    raise AssertionError("nobody works")


def is_stopped(pid: int) -> bool:
    """All of its threads."""
    states = [
        file.read_text().rpartition(")")[2] for file in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return all(state.split()[0] in "Tt" for state in states)


def overlaps(diary: str, killed: list[str]) -> list[str]:
    """The lines at which a chore began while another was under way. One that was killed in its
    chore does not say that it ended."""
    found = []
    inside: tuple[str, str] | None = None
    entries = [tuple(line.split()) for line in diary.splitlines()]
    last_of = {pid: number for number, (pid, _what, _chore) in enumerate(entries)}
    for number, (pid, what, chore) in enumerate(entries):
        if inside is not None and inside[0] in killed and last_of[inside[0]] < number:
            inside = None
        expected = None if what == "begin" else (pid, chore)
        if inside != expected:
            found.append(f"line {number}: {pid} {what} {chore}, while {inside} was at work")
        inside = (pid, chore) if what == "begin" else None
    return found


@pytest.mark.parametrize("call", ["sync", "unlink"])
def test_what_a_killed_one_leaves_is_done_by_another(
    call: str, path: Path, open_log: OpenLog
) -> None:
    """One of two processes comes to the middle of a flush, or of a deletion, and no further. The
    other waits as long as that one lives, and has all to do that was to be done then."""
    with another_process(path) as first:
        assert first.ask(f"(where := {call!r})") == call
        do(first, _STUCK)
        do(first, "for number in range(60): log.append_one(b'theirs')")
        assert first.ask(f"is_stuck.wait({WAIT})") == "True"
        second = open_log(mode="shared", **OPTIONS)
        for _ in range(60):
            second.append_one(b"ours")
        assert not threading.Event().wait(0.25)  # it comes round twice at least
        assert at_work(path) == (first.pid,)
        assert second.durable_offset <= 60
        assert second.end_offset == 120
        first.kill()
        wait_until_done(second, durable=120, start=120 - 40 - 20)
        eventually(lambda: bases(path)[1] > second.start_offset)  # no file is left
        assert offsets(second.read()) == list(range(second.start_offset, 120))


def test_what_is_done_when_somebody_says_so() -> None:
    done: list[float] = []
    chore = Chore("tidying", math.inf, lambda: done.append(time.monotonic()), in_turn=False)
    disk = SimulatedDisk()
    taken = disk.lock("lock.upkeep")
    taken.acquire()  # it concerns nobody else, so nobody is waited for
    upkeep = Upkeep("folder", [chore], disk.lock("lock.upkeep"))
    try:
        time.sleep(0.05)
        assert not done
        began_s = time.monotonic()
        for _ in range(5):
            upkeep.expect("tidying", 0.1)
        eventually(lambda: len(done) == 1)
        time.sleep(0.15)
        assert len(done) == 1
        assert done[0] - began_s >= 0.1
        upkeep.expect("tidying", 10)
        upkeep.expect("tidying", 0)
        eventually(lambda: len(done) == 2)
    finally:
        upkeep.stop()
        taken.close()
