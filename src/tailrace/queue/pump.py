"""The thread that delivers delayed messages when they are due.

Each process that has the store open with upkeep has one; it sleeps until there is something to do.
One at a time works, by the lock `pump`. The others sleep as long as that one does and then try the
lock: if it has died, it is theirs. As long as nothing is scheduled nobody has the lock. Who takes
it then, and finds something, rings for the others: whoever published it did not, if its own process
was looking just then.

Where anything was ever scheduled sleep is never longer than a second, because the clock may be set,
and because one may be killed before it rings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Final

from tailrace.errors import Closed, TailraceError
from tailrace.log.fs import FileLock, OsFileSystem
from tailrace.log.watch import Watch
from tailrace.queue.alarm import NEVER
from tailrace.queue.handles import FILES_OF_DELAYS, most_files

if TYPE_CHECKING:
    from tailrace.queue.delays import Delays
    from tailrace.queue.store import Store

__all__ = ["Pump", "delays_of", "deliver_due"]

logger = logging.getLogger("tailrace")

_LONGEST_MS: Final = 1_000
_GRACE_MS: Final = 20  # that others leave to the one who delivers
_SHORTEST_MS: Final = 40  # between two tries to become that one
_BLIND_S: Final = 0.01  # between two looks where nothing tells of the bell
_AFTER_ERROR_MS: Final = 1_000
_HELD_UP_MS: Final = 250
_SOON_MS: Final = 60_000  # what is due later need not be open,
_QUIET_S: Final = 10.0  # if nothing has come for so long
_OPEN_MOST: Final = 32  # if more are open, only what is due at once need be; fewer, where a
_AT_ONCE_MS: Final = 100  # process may have few files


class Pump:
    """Delivers for a store, until it is stopped or the store is gone."""

    def __init__(self, store: Store) -> None:
        # At the end of the process threads stop wherever they are, and never give a lock back.
        self._store = weakref.ref(store, lambda _: None if sys.is_finalizing() else self._end())
        self._alarm = store.alarm
        self._side = store.layout.side
        self._stopped = False
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._watched = ""
        self._lock: FileLock | None = None
        self.is_delivering = False  # the lock is ours
        self._next: dict[str, int] = {}  # when to look at a queue, by its incarnation
        self._open_most = min(_OPEN_MOST, most_files(8) // FILES_OF_DELAYS)
        self._busy_s: dict[str, float] = {}  # when we last did so, of those that may be open
        self._thread = threading.Thread(target=self._run, name="tailrace-delays", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _end(self) -> None:
        """Waits for nobody: the garbage collector may call it."""
        self._stopped = True
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        is_called = True
        try:
            while not self._stopped:
                try:
                    wait_s = self._look(is_called)
                except Closed:
                    wait_s = _AFTER_ERROR_MS / 1000
                except (TailraceError, OSError) as error:
                    logger.error("delayed messages cannot be delivered: %s", error)
                    wait_s = _AFTER_ERROR_MS / 1000
                except Exception:  # whatever it is, it may be over the next time
                    logger.exception("delayed messages cannot be delivered")
                    wait_s = _AFTER_ERROR_MS / 1000
                is_called = self._sleep(wait_s)
        finally:
            for each in (self._lock, self._watch):
                if each is not None:
                    each.close()

    def _sleep(self, wait_s: float | None) -> bool:
        """Sleep for so long, or until the bell rings: has it?"""
        watch = self._watch
        if watch is None:  # nothing tells of it
            self._stopping.wait(_BLIND_S if wait_s is None else min(wait_s, _BLIND_S))
            return True
        return watch.wait(wait_s)

    def _look(self, is_called: bool) -> float | None:
        """Do what there is to do; how many seconds to sleep, or until the bell rings."""
        store = self._store()
        if store is None:
            return 0.0
        if not self._attend(store):
            return None  # nothing was ever scheduled here
        alarm = self._alarm
        if self._lock is None:
            self._lock = store.fs.lock(os.path.join(alarm.folder, "pump"))
        if not self.is_delivering and not self._lock.acquire(wait=False):
            now_ms = store.clock.wall_ms()
            wait_ms = min(alarm.next_ms - now_ms + _GRACE_MS, _LONGEST_MS)
            return max(wait_ms, _SHORTEST_MS) / 1000
        is_new = not self.is_delivering
        if is_new:
            self.is_delivering = is_called = True
            self._next.clear()  # others may have done anything
        alarm.next_ms = 0
        next_ms = self._deliver(store, is_called)
        now_ms = store.clock.wall_ms()
        alarm.next_ms = NEVER if next_ms == NEVER else min(next_ms, now_ms + _LONGEST_MS)
        if self._look_again(store, next_ms):  # it may have come before they could read that
            return 0.0
        if next_ms == NEVER:
            self.is_delivering = False
            self._lock.release()
            return _LONGEST_MS / 1000
        if is_new:
            alarm.ring()
        return min(max(next_ms - now_ms, 0), _LONGEST_MS) / 1000

    def _attend(self, store: Store) -> bool:
        """Hear the bell; false if there is none yet. Then the names in the folder tell when there
        is."""
        is_there = os.path.basename(self._alarm.folder) in {
            entry.name for entry in store.fs.list(self._side)
        }
        wanted = self._alarm.bell if is_there else self._side
        if is_there:
            self._alarm.open()
        if wanted != self._watched and isinstance(store.fs, OsFileSystem):
            watch = Watch(wanted, aside=True) if is_there else Watch(names_in=[wanted], aside=True)
            old, self._watch, self._watched = self._watch, watch, wanted
            if old is not None:
                old.close()
            if self._stopped:  # meanwhile
                watch.close()
            if not is_there:
                return self._attend(store)  # it may have come before the watch
        return is_there

    # --- queues -----------------------------------------------------------------------------

    def _deliver(self, store: Store, is_called: bool) -> int:
        """Deliver what is due in all queues; when there is something to do next."""
        soonest = NEVER
        for delays, incarnation in delays_of(store):
            if self._stopped:
                break
            next_ms = self._next.get(incarnation, 0)
            is_called_here = is_called and delays.is_open
            if next_ms <= store.clock.wall_ms() or is_called_here or delays.has_news():
                try:
                    next_ms = self._deliver_one(store, delays)
                except Closed:
                    next_ms = store.clock.wall_ms() + _AFTER_ERROR_MS
                except Exception as error:  # whatever it is, the other queues are waiting
                    if incarnation in _names(store):  # else it was deleted under us
                        extra = {"queue": delays.queue_name}
                        trace = None if isinstance(error, TailraceError | OSError) else error
                        text = "delayed messages cannot be delivered: %s"
                        logger.error(text, error, extra=extra, exc_info=trace)
                    next_ms = store.clock.wall_ms() + _AFTER_ERROR_MS
                self._next[incarnation] = next_ms
                self._busy_s[incarnation] = monotonic()
            soonest = min(soonest, next_ms)
        return soonest

    def _deliver_one(self, store: Store, delays: Delays) -> int:
        while delays.deliver() is not None and not self._stopped:
            continue
        next_ms = delays.next_due()
        if delays.is_held_up:
            return store.clock.wall_ms() + _HELD_UP_MS
        delays.tidy()
        if delays.merge():
            return 0
        return NEVER if next_ms is None else next_ms

    def _look_again(self, store: Store, next_ms: int) -> bool:
        """Is there anything sooner by now?"""
        for delays, incarnation in delays_of(store):
            if self._stopped:
                return False
            if incarnation not in self._next:
                return True
            if not delays.is_open:
                self._busy_s.pop(incarnation, None)
                if delays.has_news():
                    return True
            elif not delays.is_held_up:
                with contextlib.suppress(Exception):  # the next look tells of it
                    next_due = delays.next_due()
                    known = self._next[incarnation]
                    self._next[incarnation] = NEVER if next_due is None else next_due
                    if self._next[incarnation] < min(known, next_ms):
                        return True
                    self._let_rest(store, delays, incarnation, next_due)
        return False

    def _let_rest(
        self, store: Store, delays: Delays, incarnation: str, next_due: int | None
    ) -> None:
        """Not all queues for which something is scheduled need be open."""
        are_many = len(self._busy_s) > self._open_most
        soon_ms = _AT_ONCE_MS if are_many else _SOON_MS
        if next_due is not None and next_due < store.clock.wall_ms() + soon_ms:
            return
        quiet_s = monotonic() - self._busy_s.get(incarnation, 0.0)
        if are_many or quiet_s > _QUIET_S:
            self._busy_s.pop(incarnation, None)
            delays.fall_asleep(next_due)


def delays_of(store: Store) -> Iterator[tuple[Delays, str]]:
    """The delayed messages of each queue that has any, with its incarnation."""
    try:
        entries = store.fs.list(store.alarm.folder)
    except FileNotFoundError:
        return
    names = _names(store)
    for entry in sorted(entries):
        name = names.get(entry.name)
        if entry.is_dir and name is not None:
            queue = store.get(name)
            if queue.incarnation == entry.name:
                yield queue.delays, entry.name


def _names(store: Store) -> dict[str, str]:
    """The names of the queues, by incarnation."""
    return {each.incarnation: each.name for each in store.registry.current().values()}


def deliver_due(store: Store) -> int:
    """Deliver what is due in all queues; how many messages that were."""
    count = 0
    for delays, _ in delays_of(store):
        while (delivered := delays.deliver()) is not None:
            count += delivered
    return count
