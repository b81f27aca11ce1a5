"""How much a queue has dropped that was no group's: of a stream, or where there was no group yet.

Groups count what is dropped of theirs in their journals. This is `dropped` in `.tailrace` of the
queue's folder: two slots, as logs have them, with the count (u64) and the queue's incarnation, so
that a file which outlived its queue says nothing of the next of its name. It is written by who
holds `lock.dropped`, and not synced: after a power cut it may be too low, never too high.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Final

from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import FOLDER, Slots
from tailrace.queue.layout import Layout

__all__ = ["MAGIC", "NAME", "Dropping", "count_dropped", "dropping", "is_whole", "unpack"]

logger = logging.getLogger("tailrace")

NAME: Final = "dropped"
MAGIC: Final = b"TRDR"

_LOCK: Final = "lock.dropped"


def unpack(payload: bytes) -> tuple[int, str] | None:
    """The count and the incarnation; `None` if it is something else."""
    if len(payload) < 8:
        return None
    return int.from_bytes(payload[:8], "little"), payload[8:].decode("ascii", "replace")


def is_whole(data: bytes) -> bool:
    """Is there a slot that counts, in the bytes of the file?"""
    places = (0, Slots.STRIDE)
    return any(Slots.parse(MAGIC, data[at : at + Slots.STRIDE]) is not None for at in places)


def count_dropped(fs: FileSystem, layout: Layout, queue: str, incarnation: str) -> int:
    """How much it was until now. Takes no lock."""
    try:
        return _count(_slots(fs, layout, queue).load(), incarnation)
    except NotADirectoryError:
        return 0


class Dropping:
    """The count of one queue, while nobody else adds to it. What it counts has happened, so it
    never raises: where the file cannot be written, that is logged."""

    def __init__(self, slots: Slots, queue: str, incarnation: str) -> None:
        self._slots = slots
        self._queue = queue
        self._incarnation = incarnation

    def add(self, count: int) -> None:
        try:
            total = count + _count(self._slots.load(), self._incarnation)
            payload = total.to_bytes(8, "little") + self._incarnation.encode("ascii")
            self._slots.store(payload, sync=False)
        except OSError as error:
            _warn(self._queue, error)


@contextlib.contextmanager
def dropping(fs: FileSystem, layout: Layout, queue: str, incarnation: str) -> Iterator[Dropping]:
    """One process, and one thread of it, at a time: or two of them would drop the same messages,
    and count them twice. On a full disk, where there may be no lock, better that than nothing."""
    with contextlib.ExitStack() as stack:
        try:
            fs.stat(layout.segments(queue))  # or the folder of a deleted queue would be made anew
            folder = os.path.join(layout.queue(queue), FOLDER)
            fs.make_dirs(folder)
            lock = fs.lock(os.path.join(folder, _LOCK))
            stack.callback(lock.close)
            lock.acquire()
        except OSError as error:
            _warn(queue, error)
        slots = _slots(fs, layout, queue)
        stack.callback(slots.close)
        yield Dropping(slots, queue, incarnation)


def _warn(queue: str, error: OSError) -> None:
    text = "%s: what is dropped may not be counted: %s"
    logger.warning(text, queue, error, extra={"queue": queue})


def _slots(fs: FileSystem, layout: Layout, queue: str) -> Slots:
    return Slots(fs, os.path.join(layout.queue(queue), FOLDER, NAME), MAGIC)


def _count(payload: bytes | None, incarnation: str) -> int:
    found = None if payload is None else unpack(payload)
    return found[0] if found is not None and found[1] == incarnation else 0
