"""When somebody last looked through the queues of a store for what may be deleted.

It is on the disk, because no process may live as long as it is from one look to the next. This is
`retained` in `.tailrace` of the store: two slots, as logs have them, with the time (u64, in
milliseconds since 1970) and, if a look since then was broken off, the name of the queue at which
the next one goes on. So many who each have a moment get through all queues together. Who looks has
`lock.upkeep`. Nothing hangs on this file but when the next look comes: it is not synced, and an
error is no reason not to look.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import Slots
from tailrace.queue.clock import Clock

__all__ = ["MAGIC", "NAME", "Rounds", "unpack"]

NAME: Final = "retained"
MAGIC: Final = b"TRRT"

_MOST: Final = 240  # bytes of a name; no queue of ours has a longer one


def unpack(payload: bytes) -> tuple[int, str] | None:
    """The time, and where to go on; `None` if it is something else."""
    if len(payload) < 8:
        return None
    return int.from_bytes(payload[:8], "little"), payload[8:].decode("utf-8", "replace")


class Rounds:
    """The looks at the store whose side files are in `folder`."""

    def __init__(self, fs: FileSystem, folder: str, clock: Clock) -> None:
        self._fs = fs
        self._path = os.path.join(folder, NAME)
        self._clock = clock

    def left_s(self, interval_s: float) -> float:
        """How long it is until a look is due. If nobody knows of one, it counts from now."""
        found = self._load(self._slots())
        if found is None:
            self.note()
            return interval_s
        since_s = (self._clock.wall_ms() - found[0]) / 1000
        # A look in the future: the clock was set, and who knows how long ago it was.
        return interval_s - since_s if 0 <= since_s < interval_s else 0.0

    def left_of(self, names: Iterable[str]) -> list[str]:
        """The queues that are to be looked at: if a look was broken off, those that it has not come
        to, or many who each begin anew would never get to the last ones."""
        found = self._load(self._slots())
        go_on_at = "" if found is None else found[1]
        return sorted(name for name in names if name >= go_on_at)

    def note(self, broken_off_at: str = "") -> None:
        """A look is over, or was broken off at a queue."""
        slots = self._slots()
        found, now_ms = self._load(slots), self._clock.wall_ms()
        looked_ms = found[0] if found is not None and broken_off_at else now_ms
        name = broken_off_at.encode("utf-8", "replace")[:_MOST]
        with contextlib.suppress(OSError), contextlib.closing(slots):
            slots.store(looked_ms.to_bytes(8, "little") + name, sync=False)

    def _slots(self) -> Slots:
        return Slots(self._fs, self._path, MAGIC)

    def _load(self, slots: Slots) -> tuple[int, str] | None:
        with contextlib.suppress(OSError):
            payload = slots.load()
            return None if payload is None else unpack(payload)
        return None
