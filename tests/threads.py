"""The threads of ours that run, and that none is left behind by a test."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

_PATIENCE_S = 10.0  # one that has told its last result is about to end

_of_others: set[threading.Thread] = set()  # what an earlier test left behind is told of there


def our_threads() -> list[str]:
    """The names of those that the running test has started."""
    return [thread.name for thread in _running()]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """The last thing that is looked at. A store that was forgotten may be in a cycle, which the
    collector finds when it likes."""
    _of_others.update(_running())
    yield
    if not _running():
        return
    gc.unfreeze()
    gc.collect()
    deadline = time.monotonic() + _PATIENCE_S
    while left := _running():
        if time.monotonic() > deadline:
            _of_others.update(left)
            pytest.fail("\n".join(map(_where, left)))
        time.sleep(0.001)


def _running() -> list[threading.Thread]:
    everything = set(threading.enumerate())
    _of_others.intersection_update(everything)
    return [each for each in everything - _of_others if each.name.startswith("tailrace")]


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.format_stack(frame) if frame is not None else []
    return f"{thread.name} was left behind:\n{''.join(lines)}"
