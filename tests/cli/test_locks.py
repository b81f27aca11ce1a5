"""`tailrace locks`: who has a log open, and who holds what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import Log
from tailrace.log.offline.holders import LOCKS, find_holders
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
    found = find_holders(str(log), str(tmp_path / "missing"))
    assert {lock.holders for lock in found.locks} == {None}
    monkeypatch.setattr("tailrace.cli.locks.find_holders", lambda _folder: found)
    assert "this system does not tell who holds a lock" in run("locks", log).stdout


def test_a_process_of_another_container(log: Path, tmp_path: Path, run: Run) -> None:
    st = (log / ".tailrace" / "lock").stat()
    place = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino}"
    table = tmp_path / "locks"
    table.write_text(
        "1: POSIX  ADVISORY  WRITE 77 " + place + " 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 0 " + place + " 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE -1 " + place + " 0 EOF\n"
        "3: FLOCK  ADVISORY  READ 5 00:00:1 0 EOF\n"
    )
    append = find_holders(str(log), str(table)).locks[1]
    assert (append.name, append.holders, append.waiting) == ("append", (0,), (-1,))


def test_not_a_log(tmp_path: Path) -> None:
    done = tailrace("locks", tmp_path)
    assert done.returncode == 2
    assert "holds no log" in done.stderr
