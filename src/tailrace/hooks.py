"""What happens inside, for whoever wants to be told.

Nobody listens as a rule. So every place that has something to tell looks at `listeners` first, and
nothing is measured, made or called as long as it is empty: that look is all it costs. What is told,
and by which names, is in `tailrace.metrics`.

What a listener does cannot harm what it is told of: an error of its own goes to the log. It is
called by the thread that did the work, after the work, and mostly without a lock; it must not call
tailrace.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Listener", "carry_context", "count", "observe", "subscribe", "unsubscribe"]

logger = logging.getLogger("tailrace")


class Listener(Protocol):
    """Who is told. Any thread may call it, several at once. `group` is empty where it is about the
    queue as such, and `queue` where it is about a log without a queue."""

    def count(self, name: str, number: int, queue: str, group: str) -> None:
        """So many more of something: `count("acked", 3, "orders", "workers")`."""

    def observe(self, name: str, values: Sequence[float], queue: str, group: str) -> None:
        """One or more measurements: `observe("ack_seconds", [0.002], "orders", "workers")`."""


listeners: tuple[Listener, ...] = ()

# Adds to the headers of what is published the context in which that is done, if anybody wants it.
carry_context: Callable[[Any], Any] | None = None

_lock = threading.Lock()  # of those who subscribe
_failed: set[int] = set()  # listeners whose errors were told


def subscribe(listener: Listener) -> None:
    """Tell it from now on, in this process; a forked child tells its own copy. Twice is once."""
    global listeners
    with _lock:
        if not any(each is listener for each in listeners):
            listeners = (*listeners, listener)


def unsubscribe(listener: Listener) -> None:
    """Tell it no more. A thread that is about to may do so once."""
    global listeners
    with _lock:
        listeners = tuple(each for each in listeners if each is not listener)
        _failed.discard(id(listener))


def count(name: str, number: int, queue: str, group: str = "") -> None:
    """Tell of so many; of none nobody is told."""
    if number:
        for listener in listeners:
            try:
                listener.count(name, number, queue, group)
            except Exception as error:  # noqa: BLE001  it goes to the log
                _complain(listener, error)


def observe(name: str, values: Sequence[float], queue: str, group: str = "") -> None:
    if values:
        for listener in listeners:
            try:
                listener.observe(name, values, queue, group)
            except Exception as error:  # noqa: BLE001  it goes to the log
                _complain(listener, error)


def _complain(listener: Listener, error: Exception) -> None:
    """Once: it may be called a million times a minute."""
    if id(listener) not in _failed:
        _failed.add(id(listener))
        text = "the listener %r fails, which is told this once: %s"
        logger.error(text, listener, error, exc_info=error)


def _start_afresh() -> None:
    """In a forked child: another thread of the parent may have had the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
