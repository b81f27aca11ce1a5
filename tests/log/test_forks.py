"""A forked child has no part in its parent's log, and nothing in this process loses the lock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace import Locked, Log
from tests.log.helpers import run_python, values

FORK = """
import json, os, sys
from tailrace import Closed, Log, OutcomeUnknown

log = Log(sys.argv[1])
log.append_one(b"parent 0").wait()
pending = log.append_one(b"parent 1")
child = os.fork()
if not child:
    refused = 0
    for call in (
        lambda: log.append_one(b"child"),
        lambda: log.append([b"child"]),
        lambda: log.append([b"child"], producer="p", sequence=0),
        lambda: pending.wait(),
        log.flush,
        log.vacuum,
    ):
        try:
            call()
        except (Closed, OutcomeUnknown) as error:
            refused += "fork" in str(error) or "closed" in str(error)
    log.close()
    os._exit(refused)
refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
log.append_one(b"parent 2").wait()
log.close()
print(json.dumps(refused))
"""


def test_a_child_writes_nothing_into_its_parents_log(path: Path) -> None:
    assert run_python(FORK, path) == 6
    with Log(path) as log:
        assert log._writer is not None
        assert log._writer.diagnosis.clean
        assert values(log.read()) == [b"parent 0", b"parent 1", b"parent 2"]


def test_copying_the_folder_does_not_drop_the_lock(path: Path, tmp_path: Path) -> None:
    code = """
import json, sys
from tailrace import Locked, Log
try:
    Log(sys.argv[1]).close()
    print(json.dumps("opened"))
except Locked:
    print(json.dumps("locked"))
"""
    with Log(path) as log:
        log.append_one(b"x").wait()
        shutil.copytree(path, tmp_path / "copy")
        assert run_python(code, path) == "locked"
        with pytest.raises(Locked, match="in this process"):
            Log(path)
    assert run_python(code, path) == "opened"
    with Log(tmp_path / "copy") as copy:
        assert values(copy.read()) == [b"x"]


def test_a_log_that_is_dropped_can_be_opened_again(path: Path) -> None:
    log = Log(path, flush="async")
    log.append_one(b"x")
    del log
    with Log(path) as log:
        assert values(log.read()) == [b"x"]
