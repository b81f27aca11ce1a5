"""What the tests of the command line share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tailrace import Log, Record
from tailrace.cli import main

T0 = 1_700_000_000_000

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a command in this process."""

    def run_it(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run_it


def tailrace(
    *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def command(*arguments: object) -> list[str]:
    code = "import sys; from tailrace.cli import main; sys.argv[0] = 'tailrace'; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def lines(result: Result) -> list[dict[str, Any]]:
    """The JSON objects that a command wrote; every line is one."""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log of several segments, with an index entry for every other batch."""
    path = tmp_path / "log"
    with Log(path, upkeep=False, segment_bytes=600, index_interval=100) as log:
        for i in range(12):
            record = Record(timestamp=T0 + 2_000 * i, key="k", value=b"value %d" % i)
            log.append([record, b"\xff\x00", ("k", None, {"h": b"\x01", "t": b"text"})]).wait()
    return path


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))


def pid_of_nobody() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
