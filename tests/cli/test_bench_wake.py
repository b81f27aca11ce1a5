"""`tailrace bench wake`: what it measures is in order, and it leaves nothing behind.

No figure is checked: machines that run tests are shared and slow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.cli import stamps
from tests.cli.conftest import Run, command


def measured(run: Run, *arguments: object) -> dict[str, Any]:
    done = run("bench", "wake", *arguments, "--json")
    assert done.exit_code == 0, done.output
    made: dict[str, Any] = json.loads(done.stdout)
    return made


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_json(flush: str, run: Run, tmp_path: Path) -> None:
    made = measured(run, tmp_path, "--count", 10, "--flush", flush)
    seen = made["conditions"]
    assert (seen["flush"], seen["count"], seen["records"]) == (flush, 10, 10)
    assert seen["followers"] == 1
    for name in ("tailrace", "kernel", "file_system", "device", "processor", "python"):
        assert name in seen
    assert [row["work"] for row in made["rows"]] == ["append", "append → seen"]
    for row in made["rows"]:
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]
    assert not any(tmp_path.iterdir())


def test_many_followers(run: Run, tmp_path: Path) -> None:
    made = measured(run, tmp_path, "--count", 5, "--followers", 8, "--flush", "async")
    works = {row["work"]: row for row in made["rows"]}
    assert list(works) == ["append", "append → seen", "append → seen by all"]
    assert works["append → seen by all"]["max_us"] == works["append → seen"]["max_us"]


def test_for_people(run: Run, tmp_path: Path) -> None:
    done = run("bench", "wake", tmp_path, "--count", 3)
    assert done.exit_code == 0, done.output
    for word in ("append → seen", "p50", "p99", "max", "3 records"):
        assert word in done.stdout


def test_the_current_directory_is_where_it_writes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("bench", "wake", "--count", 1).exit_code == 0
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["--count", "0"], ["--followers", "0"], ["--flush", "none"], ["nowhere"]]
)
def test_wrong_usage(arguments: list[str], run: Run) -> None:
    assert run("bench", "wake", *arguments).exit_code == 2


def test_help_has_an_example(run: Run) -> None:
    shown = run("bench", "wake", "--help").stdout
    assert "tailrace bench wake --flush async --followers 10" in shown
    assert "[DIR]" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_ctrl_c(tmp_path: Path) -> None:
    """As a terminal sends it: to the process that appends, and to the one that follows."""
    with subprocess.Popen(
        command("bench", "wake", tmp_path, "--count", 100_000),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_for_records(tmp_path, process)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert (output, errors) == (b"", b"")
    assert not any(tmp_path.iterdir())


def wait_for_records(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until it has appended some, so that both processes are at work."""
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob("*/log/*.seg")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def follower(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", stamps.__name__, str(folder), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_that_follows_does_not_outlive_the_other(tmp_path: Path) -> None:
    with Log(tmp_path), follower(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()
        assert process.wait(30) == 0
        assert process.stdout.read() == ""


def test_every_follower_sees_every_record(tmp_path: Path) -> None:
    with Log(tmp_path, flush="async") as log, follower(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stamps.write_stamps(log.append_one, 7, pause_s=0.001)
        output, errors = process.communicate("end\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert [len(seen) for seen in json.loads(output)] == [7, 7]
    assert all(age > 0 for seen in json.loads(output) for age in seen)


def test_followers_that_miss_something_are_told_of(tmp_path: Path) -> None:
    with Log(tmp_path, flush="async") as log:
        following = stamps.FollowingThreads(log, 2)
        with pytest.raises(TimeoutError, match="2 followers"):
            following.join(seconds=0.05)
