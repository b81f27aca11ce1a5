"""Time that a test makes pass, and a machine that it switches off: those that users get, too."""

from __future__ import annotations

from tailrace.queue.timers import TICK_MS
from tailrace.testing.clock import ManualClock
from tailrace.testing.machine import Machine

__all__ = ["TICK_MS", "Machine", "ManualClock"]
