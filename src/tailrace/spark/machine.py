"""What there is on this machine."""

from __future__ import annotations

import os

__all__ = ["processors"]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
