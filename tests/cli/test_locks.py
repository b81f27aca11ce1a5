"""`tailrace locks`: who has a log open, and who holds what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import Log
from tailrace.log.offline.holders import LOCKS, LockState, find_holders
from tests.cli.conftest import Run, lines, tailrace

needs_proc_locks = pytest.mark.skipif(
    not os.path.exists("/proc/locks"), reason="this system does not tell who holds a lock"
)


def test_nobody(run: Run, log: Path) -> None:
    result = run("locks", log)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"{log}: nobody writes to it"
    items = lines(run("locks", "--json", log))
    assert [item["name"] for item in items] == list(LOCKS)
    assert {item["type"] for item in items} == {"lock"}


@needs_proc_locks
def test_writers(run: Run, log: Path) -> None:
    with Log(log, upkeep=False, mode="shared"), Log(log, upkeep=False):
        text = run("locks", log).stdout
        items = lines(run("locks", "--json", log))
    assert text.splitlines()[0] == f"{log}: 2 writers"
    assert f"pid {os.getpid()}  shared, since 20" in text
    writers = [item for item in items if item["type"] == "writer"]
    assert [writer["mode"] for writer in writers] == ["shared", "owner"]
    assert {writer["pid"] for writer in writers} == {os.getpid()}
    assert all(writer["running"] for writer in writers)
    by_name = {item["name"]: item for item in items if item["type"] == "lock"}
    assert by_name["open"]["holders"] == [os.getpid()]
    assert by_name["open"]["shared"]
    assert by_name["append"]["holders"] == []


WAITS = """
import sys
from tailrace.log.locks import ProcessLock
lock = ProcessLock(sys.argv[1])
print("ready", flush=True)
lock.acquire()
"""


@needs_proc_locks
def test_who_holds_a_lock_and_who_waits(run: Run, log: Path) -> None:
    with Log(log, upkeep=False, mode="shared") as writer:
        assert writer._writer is not None
        writer._writer.turn.take()
        path = log / ".tailrace" / "lock"
        with subprocess.Popen(
            [sys.executable, "-c", WAITS, str(path)], stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            found = None
            while not found:
                found = find_holders(str(log)).locks[list(LOCKS).index("append")].waiting
            assert found == (other.pid,)
            line = next(line for line in run("locks", log).stdout.splitlines() if "append" in line)
            assert f"pid {os.getpid()}; waiting: pid {other.pid}" in line
            writer._writer.turn.give()
            assert other.wait(60) == 0


@needs_proc_locks
def test_an_exclusive_writer(run: Run, log: Path) -> None:
    with Log(log, upkeep=False, exclusive=True):
        items = lines(run("locks", "--json", log))
    assert items[0]["mode"] == "exclusive"
    assert not next(item for item in items if item.get("name") == "open")["shared"]


def test_a_system_that_does_not_tell(
    run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_holders(str(log), proc=str(tmp_path / "missing"))
    assert {lock.holders for lock in found.locks} == {None}
    monkeypatch.setattr("tailrace.cli.locks.find_holders", lambda _folder: found)
    assert "this system does not tell who holds a lock" in run("locks", log).stdout


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc to be filled in."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path / "proc"


def held(proc: Path, log: Path, *lines: str, device: int | None = None) -> LockState:
    """What is found of the lock to append if the table has these lines, with its place in them."""
    st = (log / ".tailrace" / "lock").stat()
    device = st.st_dev if device is None else device
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{st.st_ino}"
    (proc / "locks").write_text("".join(f"{line.format(place)} 0 EOF\n" for line in lines))
    found = find_holders(str(log), proc=str(proc)).locks[list(LOCKS).index("append")]
    assert found.name == "append"
    return found


def test_a_process_of_another_container(log: Path, proc: Path) -> None:
    append = held(
        proc,
        log,
        "1: POSIX  ADVISORY  WRITE 77 {}",
        "2: FLOCK  ADVISORY  WRITE 0 {}",
        "2: -> FLOCK  ADVISORY  WRITE -1 {}",
        "3: FLOCK  ADVISORY  READ 5 00:00:1",
    )
    assert (append.holders, append.waiting) == ((0,), (-1,))


SUPER = os.makedev(0, 9999)  # what the table of locks calls a file system with subvolumes


def mount(proc: Path, log: Path, device: int) -> None:
    """Let the log be on such a file system, mounted right above it, and something else above."""
    number = f"{os.major(device)}:{os.minor(device)}"
    (proc / "self" / "mountinfo").write_text(
        "1 0 0:9998 / / rw - ext4 /dev/vda rw\n"
        f"2 1 {number} /@data {log.parent} rw - btrfs /dev/vdb rw,subvol=/@data\n"
    )


def test_a_subvolume_has_a_number_of_its_own(log: Path, proc: Path) -> None:
    """The table of locks has that of the whole file system."""
    mount(proc, log, SUPER)
    lines = ["1: FLOCK  ADVISORY  WRITE 0 {}", "1: -> FLOCK  ADVISORY  WRITE -1 {}"]
    append = held(proc, log, *lines, device=SUPER)
    assert (append.holders, append.waiting) == ((0,), (-1,))
    assert held(proc, log, *lines, device=os.makedev(0, 9998)).holders == ()


def test_a_snapshot_is_not_held_by_those_who_hold_the_log(log: Path, proc: Path) -> None:
    """Its files have the same numbers. What a process has open tells, if one may look."""
    mount(proc, log, SUPER)
    for pid, target in (("77", log / ".tailrace" / "lock"), ("78", proc / "locks")):
        (proc / pid / "fd").mkdir(parents=True)
        (proc / pid / "fd" / "3").symlink_to(target)
    append = held(
        proc,
        log,
        "1: FLOCK  ADVISORY  READ 77 {}",
        "2: FLOCK  ADVISORY  READ 78 {}",
        "3: FLOCK  ADVISORY  READ 79 {}",
        "3: -> FLOCK  ADVISORY  WRITE 78 {}",
        device=SUPER,
    )
    assert (append.holders, append.waiting) == ((77, 79), ())


@pytest.mark.parametrize("table", [None, "", "junk\n", "1 0 x:y / / rw - ext4 /dev/vda rw\n"])
def test_without_a_table_of_mounts_the_device_of_the_file_counts(
    table: str | None, log: Path, proc: Path
) -> None:
    if table is not None:
        (proc / "self" / "mountinfo").write_text(table)
    assert held(proc, log, "1: FLOCK  ADVISORY  WRITE 77 {}").holders == (77,)


def test_a_writer_of_another_container(run: Run, log: Path) -> None:
    """It stays in the note when another one joins, though nobody can ask whether it runs."""
    note = log / ".tailrace" / "members"
    with Log(log, upkeep=False):
        members = json.loads(note.read_text())
        note.write_text(json.dumps([{**members[0], "host": "elsewhere.invalid"}]))
        with Log(log, upkeep=False, mode="shared"):
            items = lines(run("locks", "--json", log))
            text = run("locks", log).stdout
    writers = [item for item in items if item["type"] == "writer"]
    assert [(writer["host"], writer["running"]) for writer in writers] == [
        ("elsewhere.invalid", None),
        (os.uname().nodename, True),
    ]
    assert text.splitlines()[0] == f"{log}: 2 writers"
    assert "owner on elsewhere.invalid, since 20" in text


def test_not_a_log(tmp_path: Path) -> None:
    done = tailrace("locks", tmp_path)
    assert done.returncode == 2
    assert "holds no log" in done.stderr
