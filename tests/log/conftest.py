"""Every test of the log leaves no open file behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log.board import Board
from tailrace.testing import SimulatedDisk
from tests.log.boards import FOLDER, NOTHING

OpenLog = Callable[..., Log]


def open_files() -> dict[int, str]:
    """The files of this process: descriptor to path."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = open_files()
    yield
    if leaked(before):
        gc.collect()  # a recorded error holds the frames that it came through
    assert not leaked(before)


def leaked(before: dict[int, str]) -> list[str]:
    """Files of a log that are open and were not; what the test runner opens is its own."""
    now = open_files().items()
    new = [path.removesuffix(" (deleted)") for fd, path in now if before.get(fd) != path]
    return [path for path in new if ".tailrace" in path or path.endswith((".seg", ".idx", ".tix"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's log is."""
    return tmp_path / "log"


@pytest.fixture
def open_log(path: Path) -> Iterator[OpenLog]:
    """Opens the test's log, and closes whatever the test did not."""
    logs: list[Log] = []

    def open_it(**options: Any) -> Log:
        log = Log(path, **options)
        logs.append(log)
        return log

    yield open_it
    for log in reversed(logs):
        log.close()


@pytest.fixture
def log(open_log: OpenLog) -> Log:
    """A fresh log with every default."""
    return open_log()


@pytest.fixture
def disk() -> SimulatedDisk:
    """Where the board is."""
    disk = SimulatedDisk()
    disk.make_dirs(f"{FOLDER}/.tailrace")
    return disk


@pytest.fixture
def board(disk: SimulatedDisk) -> Board:
    """One that was set up."""
    board = Board(disk, FOLDER)
    board.set_up(NOTHING)
    return board
