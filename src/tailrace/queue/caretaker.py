"""The thread that looks after the queues of a store, whether anybody uses them or not.

Each process that has the store open has one, and one at a time works, by a lock that ends with its
process. It deletes what may be deleted, expires groups where that is the rule, keeps the reserve,
and looks how full the disk is.

A queue in which nothing has happened since the last look is not opened: what that costs is the
times of a few files.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import TYPE_CHECKING, Final

from tailrace.errors import Closed, TailraceError
from tailrace.log.sidefiles import FOLDER
from tailrace.log.upkeep import Chore, Upkeep
from tailrace.queue.disk import Level
from tailrace.queue.settings import QueueSettings
from tailrace.units import parse_duration

if TYPE_CHECKING:
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.store import Store

__all__ = ["Caretaker"]

logger = logging.getLogger("tailrace")

LOCK: Final = "lock.upkeep"
_INTERVAL_S: Final = 300.0
_DISK_S: Final = 5.0
_SHORTEST_S: Final = 0.02

Sign = tuple[object, ...]


class Caretaker:
    """Looks after a store, until it is stopped or the store is gone."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._due_s: dict[str, float] = {}  # of retention, by queue
        self._signs: dict[str, Sign] = {}  # what a queue looked like when it was last seen to
        intervals = [self._interval_s(each) for each in store.registry.current().values()]
        shortest = max(min([*intervals, _INTERVAL_S]), _SHORTEST_S)
        chores = [
            Chore("retention", shortest, self.retain),
            Chore("a look at the disk", min(shortest, _DISK_S), self.mind_the_disk),
        ]
        lock = store.fs.lock(os.path.join(store.layout.side, LOCK))
        self._upkeep = Upkeep(store.path, chores, lock)
        weakref.finalize(store, self._upkeep.end).atexit = False

    def stop(self) -> None:
        self._upkeep.stop()

    def _interval_s(self, settings: QueueSettings) -> float:
        own = dict(settings.log_options).get("retention_check_interval")
        return _INTERVAL_S if own is None else parse_duration(own, "interval") / 1000

    # --- retention --------------------------------------------------------------------------

    def retain(self, *, is_pressed: bool = False) -> None:
        """Delete what may go, of the queues whose turn it is; `is_pressed`: of all, and now."""
        store = self._store()
        if store is None:
            return
        if not is_pressed and not store.disk.settings.may_delete(store.clock.wall_ms()):
            return
        for name, settings in store.registry.current().items():
            now_s = time.monotonic()
            if is_pressed or self._due_s.get(name, 0.0) <= now_s:
                self._due_s[name] = now_s + self._interval_s(settings)
                try:
                    self._see_to(store, settings, is_pressed)
                except Closed:  # deleted, or the store is
                    self._signs.pop(name, None)
                except (TailraceError, OSError) as error:
                    logger.error("retention of %s failed: %s", name, error, extra={"queue": name})

    def _see_to(self, store: Store, settings: QueueSettings, is_pressed: bool) -> None:
        if settings.ephemeral and not settings.retention:
            return
        sign = self._sign(store, settings)
        if sign == self._signs.get(settings.name) and not is_pressed:
            return
        queue = store.get(settings.name)
        is_open = queue.is_open
        try:
            if settings.expire_groups_ms:
                for group_id in queue.expire_groups(settings.expire_groups_ms / 1000):
                    extra = {"queue": queue.name, "group": group_id}
                    text = "%s: the group %r was idle, and is deleted"
                    logger.warning(text, queue, group_id, extra=extra)
            queue.vacuum()
        finally:
            if not is_open:
                queue.rest()
        if settings.retention.max_age_ms is None and not settings.expire_groups_ms:
            self._signs[settings.name] = self._sign(store, settings)

    def _sign(self, store: Store, settings: QueueSettings) -> Sign:
        """What tells that something was published, settled or deleted, or set otherwise."""
        fs, layout = store.fs, store.layout
        seen: list[object] = [settings]
        folder = layout.segments(settings.name)
        try:
            segments = [each for each in fs.list(folder) if each.name.endswith(".seg")]
        except FileNotFoundError:
            segments = []
        if segments:
            last = max(segments)
            seen += (len(segments), last.name, last.size, last.modified_ms)
        for group_id in layout.groups(settings.name):
            folder = layout.group(settings.name, group_id)
            for entry in fs.list(folder):
                if entry.name != FOLDER:
                    seen.append((group_id, entry.name, entry.size, entry.modified_ms))
        return tuple(seen)

    # --- the disk ---------------------------------------------------------------------------

    def mind_the_disk(self) -> None:
        store = self._store()
        if store is None:
            return
        store.reserve.have()
        level = store.disk.look()
        if level is Level.FINE:
            return
        self.retain(is_pressed=True)
        if store.disk.settings.force:
            self._force(store)
        level = store.disk.look()
        if level is not Level.FINE:
            logger.warning(
                "the disk of %s is too full (%s), and nothing more may be deleted",
                store.path,
                "publishing is refused" if level is Level.REFUSING else "disk.max_used_ratio",
                extra={"path": store.path},
            )

    def _force(self, store: Store) -> None:
        """Delete the oldest segments, of one queue after the other, as far as nobody has their
        messages, until the disk is fine."""
        queues: list[Queue | Stream] = store.queues()
        while queues and store.disk.look() is not Level.FINE:
            for queue in list(queues):
                try:
                    if not queue.drop_segment():
                        queues.remove(queue)
                except (TailraceError, OSError) as error:
                    extra = {"queue": queue.name}
                    logger.error("%s: cannot be made smaller: %s", queue, error, extra=extra)
                    queues.remove(queue)
