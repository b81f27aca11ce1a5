"""Closing many things, of which some may fail; and by whom, in the middle of what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType

__all__ = ["close_all", "is_amid_call"]

_OURS = ("tailrace.queue.", "tailrace.log.")
_PASSED_BY = frozenset({"contextlib", "functools", "weakref"})  # what calls us for ourselves


def close_all(closes: Iterable[Callable[[], object]]) -> None:
    """Call all of them, in their order, whichever fail; then raise the first error."""
    first: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  it is raised in the end
            first = first or error
    if first is not None:
        raise first


def is_amid_call() -> bool:
    """Has somebody else's code called us while this thread is in the middle of another call of
    ours? That was interrupted by a signal handler or the garbage collector, and goes on when we
    return: what it has locked is not ours to wait for, nor to give away."""
    frame: FrameType | None = sys._getframe(1)
    is_others = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS):
            if is_others:
                return True
        elif module not in _PASSED_BY and not module.startswith("tailrace."):
            is_others = True
        frame = frame.f_back
    return False
