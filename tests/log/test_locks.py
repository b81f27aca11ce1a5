"""One writer at a time, told by name; the lock goes with its process."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace import Locked, Log
from tailrace.log.locks import ProcessLock
from tests.log.conftest import OpenLog
from tests.log.helpers import fill, offsets, run_python

HOLD = """
import sys, tailrace
log = tailrace.Log(sys.argv[1])
log.append([b"x"]).wait()
print("ready", flush=True)
sys.stdin.readline()
"""

TRY = """
import json, os, sys, tailrace
for note in sys.argv[2:]:
    with open(os.path.join(sys.argv[1], ".tailrace", "lock"), "w") as f:
        f.write(note)
try:
    tailrace.Log(sys.argv[1]).close()
    print(json.dumps(["opened", ""]))
except tailrace.Locked as error:
    print(json.dumps([str(error), error.holder]))
"""


def test_a_second_writer_in_this_process(log: Log, path: Path) -> None:
    with pytest.raises(Locked, match=f"pid {os.getpid()}.*share one Log between threads") as caught:
        Log(path)
    assert caught.value.holder == f"another Log in this process (pid {os.getpid()})"
    fill(log, 1)  # the first one still works, and still has the lock
    with pytest.raises(Locked):
        Log(path)


def test_by_another_name_of_the_same_folder(log: Log, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(Locked):
        Log(tmp_path / "link")


def test_readers_need_no_lock(log: Log, open_log: OpenLog) -> None:
    fill(log, 3)
    assert offsets(open_log(read_only=True).read()) == [0, 1, 2]


def test_a_second_writer_in_another_process(log: Log, path: Path) -> None:
    message, holder = run_python(TRY, path)
    assert f"pid {os.getpid()} on " in message
    assert "read_only=True" in message
    assert holder.startswith(f"pid {os.getpid()} on ")
    log.close()
    assert run_python(TRY, path) == ["opened", ""]


def test_a_process_that_is_killed_leaves_no_lock(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(Locked, match=f"pid {other.pid} on .* since 2"):
            Log(path)
        other.kill()
    with Log(path) as log:
        assert offsets(log.read()) == [0]


@pytest.mark.parametrize("note", ["", "junk", "[]", "{}", '{"pid": 1, "host": "h"}'])
def test_a_lock_file_that_says_nothing_useful(log: Log, path: Path, note: str) -> None:
    message, holder = run_python(TRY, path, note)
    assert holder == "another process"
    assert "is held by another process" in message


def test_the_lock_is_free_after_close_and_after_a_failed_open(path: Path) -> None:
    Log(path).close()
    with pytest.raises(Exception, match="flush"):
        Log(path, flush="none")
    Log(path).close()


FORK = """
import json, os, sys
from tailrace import Locked
from tailrace.log.locks import ProcessLock

lock = ProcessLock.acquire(sys.argv[1])
child = os.fork()
if not child:
    lock.release()  # what it inherited is not the lock
    try:
        ProcessLock.acquire(sys.argv[1])
    except Locked as error:
        os._exit(42 if f"pid {os.getppid()}" in str(error) else 1)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
try:
    ProcessLock.acquire(sys.argv[1])
    print(json.dumps([status, "opened twice"]))
except Locked:
    print(json.dumps([status, "locked"]))
lock.release()
"""


def test_a_forked_child_has_no_part_in_the_lock(tmp_path: Path) -> None:
    assert run_python(FORK, tmp_path / "lock") == [42, "locked"]


def test_a_file_system_that_has_no_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not being able to lock is not the same as being locked."""

    def refuse(fd: int, flags: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match="No locks available"):
            Log(path)
    Log(path).close()


def test_releasing_twice(path: Path) -> None:
    path.mkdir()
    lock = ProcessLock.acquire(str(path / "lock"))
    lock.release()
    lock.release()
    ProcessLock.acquire(str(path / "lock")).release()


def test_a_note_that_cannot_be_written_is_no_obstacle(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def full(fd: int, data: Any, position: int) -> int:
        if bytes(data).startswith(b'{"pid"'):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    Log(path).close()
    Log(path).close()
