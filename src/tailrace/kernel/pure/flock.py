"""Locks on files that are free, most likely. Each append takes one and gives it back."""

from __future__ import annotations

import fcntl

__all__ = ["lock_now", "unlock"]

_EXCLUSIVE_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK = fcntl.LOCK_UN


def lock_now(fd: int) -> bool:
    """Lock an open file if nobody has; neither call waits."""
    try:
        fcntl.flock(fd, _EXCLUSIVE_NOW)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    fcntl.flock(fd, _UNLOCK)
