"""Locks that die with their process, who is in the log, and who keeps the others out."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import ConfigError, Locked, Log
from tailrace.cli.output import as_time
from tailrace.log.fs import OsFileSystem
from tailrace.log.locks import ProcessLock
from tailrace.log.members import Member, Members, parse
from tests.log.conftest import OpenLog, open_files
from tests.log.helpers import WAIT, fill, offsets, run_python, side_file
from tests.log.processes import another_process

FS = OsFileSystem()
HOST = os.uname().nodename


@contextmanager
def locks(path: Path, count: int) -> Iterator[list[ProcessLock]]:
    found = [ProcessLock(str(path)) for _ in range(count)]
    yield found
    for lock in found:
        lock.close()


# --- ProcessLock ----------------------------------------------------------------------------


def test_it_is_free_until_it_is_taken(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        assert (tmp_path / "lock").read_bytes() == b""
        assert first.acquire(wait=False)
        assert not second.acquire(wait=False)
        assert not second.acquire_now()
        assert not second.acquire(shared=True, wait=False)
        assert first.acquire(wait=False)  # it has it
        first.release()
        first.release()
        assert second.acquire_now()
        assert not first.acquire(wait=False)


def test_sharing(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 3) as (first, second, third):
        assert first.acquire(shared=True, wait=False)
        assert second.acquire(shared=True, wait=False)
        assert not third.acquire(wait=False)
        first.close()
        assert not third.acquire(wait=False)
        second.release()
        assert third.acquire(wait=False)


def test_changing_one_sort_into_the_other(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        assert first.acquire(shared=True)
        assert first.acquire(wait=False)
        assert not second.acquire(shared=True, wait=False)
        assert first.acquire(shared=True)
        assert second.acquire(shared=True, wait=False)
        assert not first.acquire(wait=False)
        assert second.acquire(wait=False)  # the other one lost its share when it asked for more


def test_waiting_for_it(tmp_path: Path) -> None:
    order: list[str] = []
    with locks(tmp_path / "lock", 2) as (first, second):
        assert first.acquire()

        def wait() -> None:
            second.acquire()
            order.append("taken")

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.02)
        assert thread.is_alive()
        order.append("released")
        first.release()
        thread.join(WAIT)
    assert order == ["released", "taken"]


def test_it_counts_between_processes_and_dies_with_them(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process(path) as other, locks(path, 1) as (lock,):
        assert other.ask("(lock := ProcessLock(path)).acquire()") == "True"
        assert not lock.acquire(wait=False)
        other.kill()
        assert lock.acquire(wait=False)


def test_closing_it(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        assert first.acquire()
        first.close()
        first.close()
        first.release()
        assert second.acquire(wait=False)
    with pytest.raises(FileNotFoundError):
        ProcessLock(str(tmp_path / "nowhere" / "lock"))


def test_it_goes_with_the_object(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        dropped = ProcessLock(str(tmp_path / "lock"))
        assert dropped.acquire()
        assert not first.acquire(wait=False)
        del dropped
        assert second.acquire(wait=False)


FORK = """
import json, os, sys
from tailrace.log.locks import ProcessLock

path = sys.argv[1]
lock, other = ProcessLock(path), ProcessLock(path)
assert lock.acquire()
down, up = os.pipe(), os.pipe()
child = os.fork()
if not child:
    lock.close()  # what it inherited is not the lock
    lock.release()
    os.write(up[1], b"1" if ProcessLock(path).acquire(wait=False) else b"0")
    os.read(down[0], 1)
    os._exit(0)
answers = [os.read(up[0], 1).decode(), other.acquire(wait=False)]
lock.close()
answers.append(other.acquire(wait=False))  # the child is still there, and holds nothing up
os.write(down[1], b"x")
os.waitpid(child, 0)
print(json.dumps(answers))
"""


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    assert run_python(FORK, tmp_path / "lock") == ["0", False, True]


def test_a_program_that_is_started_has_no_part_in_it(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        assert first.acquire()
        with subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline()
            first.close()
            assert second.acquire(wait=False)
            program.communicate(b"\n")


def test_a_program_that_is_being_started_has_no_part_in_it(tmp_path: Path) -> None:
    """Between the fork and the exec it has our open files for a moment; closing the lock is to free
    it all the same."""
    done = threading.Event()

    def start_programs() -> None:
        while not done.is_set():
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=start_programs)
    thread.start()
    try:
        for _ in range(5_000):
            with locks(tmp_path / "lock", 1) as (lock,):
                assert lock.acquire(wait=False)
    finally:
        done.set()
        thread.join(WAIT)


def no_locks(patch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, flags: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "flock", refuse)


def test_a_file_system_that_has_no_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not being able to lock is not the same as being locked."""
    with monkeypatch.context() as patch:
        no_locks(patch)
        for options in ({}, {"exclusive": True}, {"mode": "shared"}):
            with pytest.raises(OSError, match="No locks available"):
                Log(path, **options)
    Log(path).close()
    with locks(path / "lock", 1) as (lock,), monkeypatch.context() as patch:
        no_locks(patch)
        for wait in (True, False):
            with pytest.raises(OSError, match="No locks available"):
                lock.acquire(wait=wait)
        lock.close()
        assert str(path / "lock") not in open_files().values()


# --- notes ----------------------------------------------------------------------------------


def test_notes(tmp_path: Path) -> None:
    with locks(tmp_path / "lock", 2) as (first, second):
        assert first.read_note() == b""
        first.write_note(b"a long note")
        second.write_note(b"short")
        assert first.read_note() == (tmp_path / "lock").read_bytes() == b"short"


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_note_that_cannot_be_written_is_no_obstacle(
    call: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(os, call)
    refused: list[int] = []

    def full(fd: int, *arguments: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/members"):
            refused.append(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(fd, *arguments)

    monkeypatch.setattr(os, call, full)
    with Log(path), Log(path), pytest.raises(Locked, match="is held by another process; "):
        Log(path, exclusive=True)
    assert refused
    Log(path, exclusive=True).close()


def test_who_is_running() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(WAIT)
    assert Member(os.getpid(), HOST, 0, "owner").running is True
    assert Member(1, HOST, 0, "owner").running is True  # not ours to send a signal to
    assert Member(ended.pid, HOST, 0, "owner").running is False
    assert Member(2**80, HOST, 0, "owner").running is False
    assert Member(os.getpid(), "elsewhere.invalid", 0, "owner").running is None


def test_notes_that_make_no_sense() -> None:
    good = {"pid": 7, "host": "h", "since": 8, "mode": "shared"}
    assert parse(json.dumps([good, good]).encode()) == [Member(7, "h", 8, "shared")] * 2
    for wrong in ({"pid": -1}, {"pid": "7"}, {"host": 1}, {"since": -1}, {"since": 0.5}, {"a": 1}):
        assert parse(json.dumps([{**good, **wrong}]).encode()) == []
    assert parse(json.dumps([{**good, "pid": 0}, good]).encode()) == [Member(7, "h", 8, "shared")]
    for note in (b"", b"junk", b"{}", b"1", b"[1]", b"null", b"\xff", json.dumps(good).encode()):
        assert parse(note) == []


ZONES = ["UTC", "Asia/Kolkata", "America/Los_Angeles"]


@pytest.mark.parametrize("zone", ZONES)
def test_a_member_is_described_by_pid_host_and_time(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In UTC, as the commands give it."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        told = str(Member(2**30, HOST, 1_700_000_000, "owner"))
        assert told == f"pid {2**30} on {HOST} since 2023-11-14T22:13:20Z"
        assert as_time(1_700_000_000_000) == "2023-11-14T22:13:20.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()
    ours = str(Member(os.getpid(), HOST, 0, "owner"))
    who = f"pid {os.getpid()} on {HOST} since 1970-01-01T00:00:00Z"
    assert ours == f"another Log in this process ({who})"


def test_the_same_pid_elsewhere_is_not_this_process() -> None:
    """In a container the first process, and often the only one, has the pid 1."""
    told = str(Member(os.getpid(), "elsewhere.invalid", 0, "owner"))
    assert told == f"pid {os.getpid()} on elsewhere.invalid since 1970-01-01T00:00:00Z"


@pytest.mark.parametrize("since", [2**62, 2**64, 10**40])
def test_a_time_that_no_calendar_has(since: int) -> None:
    assert str(Member(2**30, "h", since, "owner")) == f"pid {2**30} on h since {since}"


# --- Members --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / ".tailrace").mkdir()
    return str(tmp_path)


def test_the_first_and_the_last_are_told(folder: str) -> None:
    first, second, third = (Members(FS, folder, mode) for mode in ("owner", "shared", "owner"))
    assert first.join()
    assert not second.join()
    assert [(m.pid, m.mode) for m in Members.find(FS, folder)] == [
        (os.getpid(), "owner"),
        (os.getpid(), "shared"),
    ]
    assert not first.leave()
    assert not third.join()
    assert not second.leave()
    assert [m.mode for m in Members.find(FS, folder)] == ["owner"]
    assert third.leave()
    assert Members.find(FS, folder) == []
    late = Members(FS, folder, "owner")
    with pytest.raises(Locked):  # the last one has it until it has closed everything
        late.join()
    third.close()
    last = Members(FS, folder, "owner")
    assert last.join()
    for members in (first, second, last):
        members.close()


def test_leaving_takes_only_oneself_off_the_list(folder: str) -> None:
    """Even if somebody else says just the same of itself, as handles of one process may."""
    handles = [Members(FS, folder, "owner") for _ in range(3)]
    for members in handles:
        members.join()
    left = []
    for members in handles:
        members.leave()
        members.close()
        left.append(len(Members.find(FS, folder)))
    assert left == [2, 1, 0]


def test_exclusive_in_both_directions(folder: str) -> None:
    first = Members(FS, folder, "exclusive")
    assert first.join()
    for mode in ("owner", "shared", "exclusive"):
        with pytest.raises(Locked) as caught:
            Members(FS, folder, mode).join()
        (member,) = Members.find(FS, folder)
        assert caught.value.holder == str(member)
        assert str(member).startswith(f"another Log in this process (pid {os.getpid()} on {HOST} ")
        advice = "close it there first" if mode == "exclusive" else "open it with read_only=True"
        assert advice in str(caught.value)
    assert first.leave()
    first.close()
    for mode in ("owner", "shared"):
        first = Members(FS, folder, mode)
        assert first.join()
        with pytest.raises(Locked, match=r"is held by another Log.*; close it there first"):
            Members(FS, folder, "exclusive").join()
        assert first.leave()  # the refused left no trace
        first.close()


def test_the_refused_are_told_by_whom(path: Path) -> None:
    with another_process(path) as other, another_process(path) as third:
        other.ask("(log := Log(path, mode='shared')).path")
        with pytest.raises(Locked, match=rf"pid {other.pid} on {HOST} since 2") as caught:
            Log(path, exclusive=True)
        assert str(caught.value).startswith(f"{path} is held by {caught.value.holder}; ")
        third.ask("(log := Log(path)).path")
        with pytest.raises(Locked, match=rf"pid {other.pid} on .* and 1 more; close it there"):
            Log(path, exclusive=True)
        other.kill()
        with pytest.raises(Locked) as caught:  # it is not taken for one who is there
            Log(path, exclusive=True)
        holder = caught.value.holder or ""
        assert holder.startswith(f"pid {third.pid} on {HOST} since 2")
        assert "more" not in holder


@pytest.mark.parametrize("note", ["", "junk", "[]", "{}", '[{"pid": 1, "host": "h"}]'])
def test_a_note_that_says_nothing_useful(path: Path, note: str) -> None:
    with another_process(path) as other:
        other.ask("(log := Log(path)).path")
        side_file(path, "members").write_text(note)
        with pytest.raises(Locked, match="is held by another process; close it") as caught:
            Log(path, exclusive=True)
        assert caught.value.holder == "another process"
        with Log(path, upkeep=False):
            assert [m.pid for m in Members.find(FS, str(path))] == [os.getpid()]


def test_those_who_were_killed_are_off_the_list_with_the_next_join(path: Path) -> None:
    with Log(path), another_process(path) as other:
        other.ask("(log := Log(path)).path")
        note = json.loads(side_file(path, "members").read_text())
        assert [member["pid"] for member in note] == [os.getpid(), other.pid]
        other.kill()
        assert [m.pid for m in Members.find(FS, str(path))] == [os.getpid()]
        with Log(path, mode="shared"):
            note = json.loads(side_file(path, "members").read_text())
            assert [member["mode"] for member in note] == ["owner", "shared"]
            assert {member["pid"] for member in note} == {os.getpid()}


@pytest.fixture
def elsewhere(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """One who has joined in another container, as far as the name of the machine tells."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere.invalid"))
        members = Members(FS, folder, "owner")
    assert members.join()
    yield members
    members.close()


def test_those_who_cannot_be_asked_stay_on_the_list(folder: str, elsewhere: Members) -> None:
    here = Members(FS, folder, "shared")
    assert not here.join()
    assert [(m.host, m.running) for m in Members.find(FS, folder)] == [
        ("elsewhere.invalid", None),
        (HOST, True),
    ]
    with pytest.raises(Locked, match=r"pid \d+ on elsewhere.invalid since .*Z and 1 more; close"):
        Members(FS, folder, "exclusive").join()
    assert not here.leave()
    here.close()
    with pytest.raises(Locked, match=r"is held by pid \d+ on elsewhere.invalid since .*Z; close"):
        Members(FS, folder, "exclusive").join()
    assert elsewhere.leave()
    assert Members.find(FS, folder) == []


def test_the_list_does_not_grow_for_ever(folder: str, elsewhere: Members) -> None:
    """Others of that place are killed, again and again, and nobody here can know."""
    note = side_file(Path(folder), "members")
    killed = [Member(pid, "h" * 255, 8, "exclusive") for pid in range(10**9, 10**9 + 1_000)]
    for first in range(0, len(killed), 50):
        more = [member._asdict() for member in killed[first : first + 50]]
        note.write_text(json.dumps(json.loads(note.read_text()) + more))
        here = Members(FS, folder, "shared")
        assert not here.join()
        found = Members.find(FS, folder)
        assert found[-51:-1] == killed[first : first + 50]  # the newest, and who came just now
        assert found[-1].host == HOST
        assert len(found) <= 128
        assert note.stat().st_size < 1 << 16  # as much as is read
        assert not here.leave()
        here.close()


# --- Log(exclusive=True) --------------------------------------------------------------------


def test_a_log_that_somebody_keeps_for_itself(path: Path, open_log: OpenLog) -> None:
    with another_process(path) as other:
        other.ask("(log := Log(path, exclusive=True)).path")
        for options in ({}, {"mode": "shared"}, {"exclusive": True}):
            with pytest.raises(Locked, match=rf"pid {other.pid} on {HOST} since 2"):
                Log(path, **options)
        assert other.ask("log.append([b'x', b'y']).wait().offset") == "0"
        assert offsets(open_log(read_only=True).read()) == [0, 1]
        for number in range(2, 300):  # the refused do not get in its way
            if number % 100 == 0:
                with pytest.raises(Locked):
                    Log(path)
            assert other.ask("log.append_one(b'z').offset") == str(number)
        other.kill()
    log = open_log(exclusive=True)
    assert offsets(log.read()) == list(range(300))


def test_a_log_that_others_have_open_cannot_be_kept(path: Path, open_log: OpenLog) -> None:
    log = open_log(mode="shared")
    with another_process(path) as other:
        refused = other.ask("Log(path, exclusive=True)")
        assert f"is held by pid {os.getpid()} on {HOST} since 2" in refused
        assert refused.endswith("; close it there first")
        fill(log, 3)
        assert other.ask("(log := Log(path)).append_one(b'x').wait().offset") == "3"
        log.close()
        with pytest.raises(Locked):
            Log(path, exclusive=True)
        other.ask("log.close()")
        with Log(path, exclusive=True) as log:
            assert "is held by pid" in other.ask("Log(path)")
            assert log.append_one(b"x").wait().offset == 4
        assert other.ask("Log(path).end_offset") == "5"


def test_another_name_of_the_same_folder(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    with Log(path, exclusive=True):
        link.symlink_to(path)
        with pytest.raises(Locked, match="in this process"):
            Log(link)
    with Log(path) as log, Log(link, mode="shared") as other:
        with pytest.raises(Locked):
            Log(link, exclusive=True)
        for number in range(0, 10, 2):
            assert log.append_one(b"x").wait().offset == number
            assert other.append_one(b"y").wait().offset == number + 1
        assert offsets(log.read()) == offsets(other.read()) == list(range(10))


def test_readers_need_no_lock(open_log: OpenLog) -> None:
    log = open_log(exclusive=True)
    fill(log, 3)
    assert offsets(open_log(read_only=True).read()) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"exclusive: .* read-only"):
        open_log(read_only=True, exclusive=True)


def test_a_mode_that_there_is_not(path: Path) -> None:
    for mode in ("exclusive", "", "Owner"):
        with pytest.raises(ConfigError, match=r"mode: .* is not one of owner, shared"):
            Log(path, mode=mode)  # type: ignore[arg-type]
    assert not path.exists()


def test_an_open_that_fails_keeps_nobody_out(path: Path) -> None:
    Log(path).close()
    for options in ({}, {"exclusive": True}):
        with pytest.raises(ConfigError, match="flush"):
            Log(path, flush="none", **options)  # type: ignore[arg-type]
        Log(path, exclusive=True).close()
    with Log(path) as log:
        with pytest.raises(ConfigError, match="flush"):
            Log(path, flush="none")
        fill(log, 2)
    Log(path, exclusive=True).close()
