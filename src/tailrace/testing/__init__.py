"""Disks to test on: one that loses what was not synced, one that fails on demand, one that tells.
A clock that the test moves, and stores for the tests of an application (see `plugin`).

What tailrace tests itself with, for anything that is built on `tailrace.log.fs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tailrace.testing.contents import Damage
from tailrace.testing.disk import SimulatedDisk
from tailrace.testing.faults import (
    OPERATIONS,
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    Plan,
    Run,
    ShortWrite,
    SimulatedCrash,
    at,
    every_call,
    from_call,
    on,
)
from tailrace.testing.recording import (
    Event,
    Range,
    RecordingFileSystem,
    assert_durable,
    problems,
)

if TYPE_CHECKING:
    from tailrace.testing.clock import ManualClock
    from tailrace.testing.machine import Machine
    from tailrace.testing.stores import FaultyStorePlace, StorePlace

__all__ = [
    "OPERATIONS",
    "Call",
    "Crash",
    "Damage",
    "Event",
    "Fail",
    "Fault",
    "FaultyFileSystem",
    "FaultyStorePlace",
    "LoseDirty",
    "Machine",
    "ManualClock",
    "Plan",
    "Range",
    "RecordingFileSystem",
    "Run",
    "ShortWrite",
    "SimulatedCrash",
    "SimulatedDisk",
    "StorePlace",
    "assert_durable",
    "at",
    "every_call",
    "from_call",
    "on",
    "problems",
]

# Imported when they are needed: pytest loads the plugin, and this, in every run.
_LATER = {
    "FaultyStorePlace": "stores",
    "Machine": "machine",
    "ManualClock": "clock",
    "StorePlace": "stores",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tailrace.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tailrace.testing.{_LATER[name]}"), name)
