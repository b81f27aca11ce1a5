"""Every crash test runs with the clock of `world`, which moves only when a test says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from tests.crash.lossy import CannotMount, Lossy
from tests.crash.world import CLOCK, NOW_MS, Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock, at its start, in the place of the system's in every module of the log."""
    CLOCK.now_ms = NOW_MS
    standing = SimpleNamespace(**vars(time))
    standing.time_ns = CLOCK.time_ns
    for name, module in list(sys.modules.items()):
        if name.startswith("tailrace.log."):
            if isinstance(getattr(module, "time", None), ModuleType):
                monkeypatch.setattr(module, "time", standing)
            if getattr(module, "time_ns", None) is time.time_ns:
                monkeypatch.setattr(module, "time_ns", CLOCK.time_ns)
    return CLOCK


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    """A lossy file system. One for a module, since it takes a while to start."""
    try:
        lossy = Lossy(tmp_path_factory.mktemp("mount"))
    except CannotMount as error:
        pytest.skip(f"no lossy file system here: {error}")
    with lossy:
        lossy.save("empty")
        yield lossy


@pytest.fixture
def lossy(mounted: Lossy) -> Lossy:
    """An empty one."""
    mounted.restore("empty")
    return mounted
