"""Every test of the log leaves no open file and no thread behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log

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


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tailrace")]


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = open_files()
    yield
    left = {fd: path for fd, path in open_files().items() if before.get(fd) != path}
    # What belongs to the test runner and to libraries that were imported meanwhile is not ours.
    left = {fd: path for fd, path in left.items() if ".tailrace" in path or path[-4:] in _OURS}
    assert not left, f"left open: {sorted(left.values())}"
    assert not our_threads()


_OURS = (".seg", ".idx", ".tix")


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
