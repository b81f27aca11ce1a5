"""The two clocks of a queue.

Leases run by the boot clock: it never jumps, goes on while the machine sleeps, and is the same for
all processes of a machine; with the boot it starts anew, and that ends every lease. What outlives a
boot (expiry of messages, the rest of a delay) goes by the wall clock.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Milliseconds."""

    def boot_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
