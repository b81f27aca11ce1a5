"""The thread that delivers delayed messages when they are due.

Each process that has the store open with upkeep has one; it sleeps until there is something to do.
One at a time works, by the lock `pump`. The others sleep as long as that one does and then try the
lock: if it has died, it is theirs. And if it has not stirred for longer than it ever sleeps, it is
stopped (SIGSTOP), or stuck: then another works without the lock, and it finds out when it goes on
(see `Alarm`). If two work at once, nothing comes twice, as each queue has a turn of its own.

Each queue has a turn of a few batches, and then the others have theirs: so none waits for all that
is due in another one.

The queues in which something is due soon, or has just come, are awake: they are open, and each look
asks them for news. The others sleep: nothing of them is open, and nobody looks at them until
something is due, or whoever publishes calls (see `Alarm`). So a look costs no more where many
queues have something scheduled for later.

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
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import TYPE_CHECKING, Final

from tailrace.errors import Closed, TailraceError
from tailrace.log.changes import prepare
from tailrace.log.fs import FileLock, OsFileSystem
from tailrace.log.watch import Watch
from tailrace.queue.alarm import NEVER, call_of
from tailrace.queue.open_files import FILES_OF_DELAYS, most_files

if TYPE_CHECKING:
    from tailrace.queue.delays import Delays
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.store import Store

__all__ = ["Pump", "deliver_due"]

logger = logging.getLogger("tailrace")

_LONGEST_MS: Final = 1_000
_SILENT_MS: Final = 2 * _LONGEST_MS  # after which the one who delivers is given up
_GRACE_MS: Final = 20  # that others leave to the one who delivers
_SHORTEST_MS: Final = 40  # between two tries to become that one
_BLIND_S: Final = 0.01  # between two looks where nothing tells of the bell
_AFTER_ERROR_MS: Final = 1_000  # in which nobody rings
_HELD_UP_MS: Final = 250
_TURN_S: Final = 0.02  # of a queue, in which it has a batch delivered at least
_SOON_MS: Final = 60_000  # what is due later need not be open,
_QUIET_S: Final = 10.0  # if nothing has come for so long
_OPEN_MOST: Final = 32  # if more are open, only what is due at once need be; fewer, where a
_AT_ONCE_MS: Final = 100  # process may have few files


class _Seen:
    """What is known of a queue that has, or had, delayed messages."""

    __slots__ = ("busy_s", "has_opened", "name", "next_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_ms = 0  # when to look at it
        self.busy_s = 0.0  # when we last did so
        self.has_opened = False  # its log was opened for this


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
        self.is_delivering = False  # we were the last to say so
        self._number = 0  # with which we did
        self._knows_all = False
        self._seen: dict[str, _Seen] = {}  # by incarnation
        self._awake: set[str] = set()
        self._due: list[tuple[int, str]] = []  # a heap: of those that sleep, and of what was
        self._open_most = min(_OPEN_MOST, most_files(8) // FILES_OF_DELAYS)
        if isinstance(store.fs, OsFileSystem):
            prepare()
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
                except Exception as error:  # noqa: BLE001  it may be over the next time
                    if not isinstance(error, Closed):
                        _complain(error)
                    self._stopping.wait(_AFTER_ERROR_MS / 1000)
                    is_called = True
                else:
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
        is_new = not self.is_delivering
        if not self._is_ours(store):
            now_ms = store.clock.wall_ms()
            wait_ms = min(alarm.next_ms - now_ms + _GRACE_MS, _LONGEST_MS)
            return max(wait_ms, _SHORTEST_MS) / 1000
        self._stir(store)
        alarm.next_ms = 0
        next_ms = self._deliver(store, is_called)
        now_ms = store.clock.wall_ms()
        alarm.next_ms = NEVER if next_ms == NEVER else min(next_ms, now_ms + _LONGEST_MS)
        if self._look_again(store, next_ms):  # it may have come before they could read that
            return 0.0
        if is_new:
            alarm.ring()
        return min(max(next_ms - now_ms, 0), _LONGEST_MS) / 1000

    def _is_ours(self, store: Store) -> bool:
        """Is it for us to deliver?"""
        alarm = self._alarm
        if self._lock is None:
            self._lock = store.fs.lock(os.path.join(alarm.folder, "pump"))
        if self.is_delivering:
            if alarm.is_with(self._number):
                return True
            # We were given up. Whose calls we have taken since then, the other one does not know.
            self.is_delivering = False
            self._lock.release()
            alarm.call_all()
            return False
        if not self._lock.acquire(wait=False):
            silent_ms = store.clock.boot_ms() - alarm.stirred_ms
            if silent_ms <= _SILENT_MS:
                return False
            text = "who delivers delayed messages has not stirred for %d ms: now this process does"
            logger.info(text, silent_ms, extra={"path": store.path})
        self._number = alarm.take_over()
        self.is_delivering = True
        self._knows_all = False  # others may have done anything
        return True

    def _stir(self, store: Store) -> None:
        self._alarm.stirred_ms = store.clock.boot_ms()

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
        calls = self._alarm.take_calls()
        if self._knows_all:
            self._knows_all = False  # unless we get to the end
            wanted = self._wanted(store, is_called, calls)
        else:
            for known in (self._seen, self._awake, self._due):
                known.clear()
            wanted = list(queues_of(store))
        for queue in wanted:
            if self._stopped:
                return NEVER
            self._see_to(store, queue)
        self._knows_all = True
        soonest = min((self._seen[each].next_ms for each in self._awake), default=NEVER)
        return min(soonest, self._due[0][0]) if self._due else soonest

    def _wanted(self, store: Store, is_called: bool, calls: frozenset[int]) -> list[Queue | Stream]:
        """The queues in which there may be something to do: of those that sleep, where something
        is due, or somebody has called."""
        now_ms, wanted = store.clock.wall_ms(), []
        for queue in self._queues(store, self._awake):
            is_due = self._seen[queue.incarnation].next_ms <= now_ms
            if is_due or is_called or queue.delays.has_news():
                wanted.append(queue)
        due = set()
        while self._due and self._due[0][0] <= now_ms:
            next_ms, incarnation = heappop(self._due)
            seen = self._seen.get(incarnation)
            if seen is not None and seen.next_ms == next_ms and incarnation not in self._awake:
                due.add(incarnation)
        wanted += [queue for queue in self._queues(store, due) if queue.delays.exists]
        for settings in store.registry.current().values() if calls else ():
            incarnation = settings.incarnation
            if call_of(incarnation) in calls and incarnation not in {*self._awake, *due}:
                queue = store.get(settings.name)
                delays = queue.delays
                if delays.is_open or (delays.exists and delays.has_news()):
                    wanted.append(queue)
        return wanted

    def _queues(self, store: Store, incarnations: Iterable[str]) -> Iterator[Queue | Stream]:
        """Those that we know, and that were not deleted."""
        current = store.registry.current()
        for incarnation in list(incarnations):
            settings = current.get(self._seen[incarnation].name)
            if settings is not None and settings.incarnation == incarnation:
                yield store.get(settings.name)
            else:
                del self._seen[incarnation]
                self._awake.discard(incarnation)

    def _see_to(self, store: Store, queue: Queue | Stream) -> None:
        incarnation = queue.incarnation
        self._stir(store)
        seen = self._seen.setdefault(incarnation, _Seen(queue.name))
        if incarnation not in self._awake:
            seen.has_opened = not queue.is_open
            self._awake.add(incarnation)
        seen.busy_s = monotonic()
        try:
            seen.next_ms = self._deliver_one(store, queue.delays)
            if len(self._awake) > self._open_most and not queue.delays.is_held_up:
                self._let_rest(store, queue, None if seen.next_ms == NEVER else seen.next_ms)
        except Closed:
            seen.next_ms = store.clock.wall_ms() + _AFTER_ERROR_MS
        except Exception as error:  # noqa: BLE001  the other queues are waiting
            if incarnation in _names(store):  # else it was deleted under us
                _complain(error, queue=queue.name)
            seen.next_ms = store.clock.wall_ms() + _AFTER_ERROR_MS

    def _deliver_one(self, store: Store, delays: Delays) -> int:
        """As much as a turn lets it: there may be much more, and more may come all the time."""
        end_s = monotonic() + _TURN_S
        while delays.deliver() is not None and not self._stopped:
            self._stir(store)
            if monotonic() >= end_s:
                break
        next_ms = delays.next_due()
        now_ms = store.clock.wall_ms()
        if delays.is_held_up:
            return now_ms + _HELD_UP_MS
        if next_ms is not None and next_ms <= now_ms:
            return next_ms
        delays.tidy()
        if delays.merge():
            return 0
        return NEVER if next_ms is None else next_ms

    def _look_again(self, store: Store, next_ms: int) -> bool:
        """Is there anything sooner by now?"""
        for queue in self._queues(store, self._awake):
            if self._stopped:
                return False
            self._stir(store)
            if not queue.delays.is_held_up:
                with contextlib.suppress(Exception):  # the next look tells of it
                    next_due = queue.delays.next_due()
                    seen = self._seen[queue.incarnation]
                    known, seen.next_ms = seen.next_ms, NEVER if next_due is None else next_due
                    if seen.next_ms < min(known, next_ms):
                        return True
                    self._let_rest(store, queue, next_due)
        return self._alarm.is_called

    def _let_rest(self, store: Store, queue: Queue | Stream, next_due: int | None) -> None:
        """Not all queues for which something is scheduled need be open, nor are those that have had
        their turn and have more to deliver, if they are many."""
        are_many = len(self._awake) > self._open_most
        soon_ms = _AT_ONCE_MS if are_many else _SOON_MS
        now_ms = store.clock.wall_ms()
        has_more = are_many and next_due is not None and next_due <= now_ms
        if next_due is not None and next_due < now_ms + soon_ms and not has_more:
            return
        incarnation = queue.incarnation
        seen = self._seen[incarnation]
        if are_many or monotonic() - seen.busy_s > _QUIET_S:
            queue.delays.fall_asleep(next_due)
            if queue.delays.is_open:  # it is in use
                return
            self._awake.discard(incarnation)
            if next_due is not None:
                heappush(self._due, (next_due, incarnation))
            if len(self._due) > 2 * len(self._seen):  # most of it is about what was
                asleep = self._seen.keys() - self._awake
                self._due = [(self._seen[each].next_ms, each) for each in asleep]
                heapify(self._due)
            if seen.has_opened:
                queue.rest()


def _complain(error: Exception, **extra: str) -> None:
    trace = None if isinstance(error, TailraceError | OSError) else error
    text = "delayed messages cannot be delivered: %s"
    logger.error(text, error, extra=extra, exc_info=trace)


def queues_of(store: Store) -> Iterator[Queue | Stream]:
    """The queues that have delayed messages."""
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
                yield queue


def _names(store: Store) -> dict[str, str]:
    """The names of the queues, by incarnation."""
    return {each.incarnation: each.name for each in store.registry.current().values()}


def deliver_due(store: Store) -> int:
    """Deliver what is due in all queues; how many messages that were."""
    count = 0
    for queue in queues_of(store):
        while (delivered := queue.delays.deliver()) is not None:
            count += delivered
    return count
