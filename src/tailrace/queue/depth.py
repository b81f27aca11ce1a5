"""`limits.max_depth`: how many messages a queue holds that are not settled, by its slowest group.

Publishers of several processes don't wait for each other, so what they publish at the same moment
may exceed the limit. To look costs a turn in each group; so a publisher that has found much room
takes an eighth of it without looking again, for a moment, and looks each time when there is little.
So each of the others may add an eighth of the room that it found in the last moment. What nobody
will ever get (it has expired, or a group's filter passes it by) is counted until there is no room,
and then no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from tailrace.errors import Full
from tailrace.queue.settings import QueueSettings

__all__ = ["Depth", "refuse_more_than_fit", "waits"]

_SHARE: Final = 8
_MOMENT_S: Final = 0.05
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.05


def waits() -> Iterator[float]:
    """For how many seconds to wait before looking again, and again."""
    wait_s = _FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


class Depth:
    """Lets publishers in. `measure` tells how many messages are not settled, `pass_by` settles
    those that nobody will ever get, and tells how many. `drop` drops the oldest that nobody has,
    until only so many are not settled; or nothing, and false. `now` gives the settings that count
    now: who waits goes by those. Thread-safe."""

    def __init__(
        self,
        measure: Callable[[], int],
        pass_by: Callable[[], int],
        drop: Callable[[int], bool],
        now: Callable[[], QueueSettings],
    ) -> None:
        self._measure = measure
        self._pass_by = pass_by
        self._drop = drop
        self._now = now
        self._lock = threading.Lock()
        self._room = 0  # that was found, and not used since
        self._limit = 0  # by which
        self._until_s = 0.0  # then others may have used it

    def admit(self, settings: QueueSettings, count: int, *, block: bool) -> bool:
        """Return when there is room for so many, or raise `Full`, as `limits.on_full` says; without
        `block` nobody waits. Did somebody?"""
        limit = settings.limits.max_depth
        with self._lock:
            if self._limit == limit and self._room >= count and monotonic() < self._until_s:
                self._room -= count
                return False
        pauses, has_waited = waits(), False
        while limit:
            refuse_more_than_fit(settings, count)
            looked_s = monotonic()
            room = limit - self._measure()
            if room >= count:
                with self._lock:
                    self._limit, self._room = limit, (room - count) // _SHARE
                    self._until_s = looked_s + _MOMENT_S
                break
            on_full = settings.limits.on_full
            if self._pass_by() or (on_full == "drop_oldest" and self._drop(limit - count)):
                continue
            if on_full != "block" or not block:
                raise _full(settings)
            time.sleep(next(pauses))
            has_waited = True
            settings = self._now()
            limit = settings.limits.max_depth
        return has_waited

    def disown(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()


def refuse_more_than_fit(settings: QueueSettings, count: int) -> None:
    """`Full` if there can never be room for so many at once."""
    limit = settings.limits.max_depth
    if count > limit > 0:
        error = Full(
            f"{count:,} messages at once are more than the queue {settings.name!r} holds: "
            f"limits.max_depth is {limit:,}"
        )
        error.of_depth = True
        raise error


def _full(settings: QueueSettings) -> Full:
    are = "are kept" if settings.type == "stream" else "are not settled"
    text = (
        f"the queue {settings.name!r} has as many messages that {are} as "
        f"limits.max_depth allows ({settings.limits.max_depth:,})"
    )
    if settings.limits.on_full == "drop_oldest":
        text += (
            ", and too few of them may be dropped: the others are being worked on, wait for a "
            "retry, or are not archived yet"
        )
    error = Full(text)
    error.of_depth = True
    error.may_wait = settings.limits.on_full == "block"
    return error
