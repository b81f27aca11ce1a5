"""What queues promise holds for tasks, too: these are the tests of the blocking side, and each of
their verbs is that of `tailrace.aio`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

from tailrace.testing import machine as machines
from tests.aio import facade
from tests.queue import (
    conftest,
    test_changed_options,
    test_checklist,
    test_checklist_dead,
    test_checklist_streams,
    test_delays,
    test_deletion,
    test_errors,
    test_expiry,
    test_fan_out,
    test_outgoing,
    test_publishing,
    test_redrive,
)
from tests.queue.conftest import clock, machine, open_store, store

__all__ = ["clock", "machine", "open_store", "store"]

SUITE = (
    test_changed_options,
    test_checklist,
    test_checklist_dead,
    test_checklist_streams,
    test_delays,
    test_deletion,
    test_errors,
    test_expiry,
    test_fan_out,
    test_outgoing,
    test_publishing,
    test_redrive,
)


def suite_of(module: Any) -> Iterator[tuple[str, FunctionType]]:
    for name, each in vars(module).items():
        if isinstance(each, FunctionType) and name.startswith("test_"):
            yield f"{name}__{module.__name__.rpartition('.test_')[2]}", each


for _module in SUITE:
    vars(sys.modules[__name__]).update(suite_of(_module))


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever opens a store opens one of `tailrace.aio`."""
    loop = facade.Loop()
    monkeypatch.setattr(facade.Store, "loop", loop, raising=False)
    for module in (machines, conftest, *SUITE):
        if hasattr(module, "Store"):
            monkeypatch.setattr(module, "Store", facade.Store)
    yield
    loop.close()
