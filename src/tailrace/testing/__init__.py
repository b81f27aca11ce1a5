"""Disks to test on: one that loses what was not synced, one that fails on demand, one that tells.

What tailrace tests itself with, for anything that is built on `tailrace.log.fs`.
"""

from __future__ import annotations

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

__all__ = [
    "OPERATIONS",
    "Call",
    "Crash",
    "Damage",
    "Event",
    "Fail",
    "Fault",
    "FaultyFileSystem",
    "LoseDirty",
    "Plan",
    "Range",
    "RecordingFileSystem",
    "Run",
    "ShortWrite",
    "SimulatedCrash",
    "SimulatedDisk",
    "assert_durable",
    "at",
    "every_call",
    "from_call",
    "on",
    "problems",
]
