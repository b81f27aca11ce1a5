"""The thread that looks after the queues of a store, whether anybody uses them or not.

Each process that has the store open has one, and one at a time works, by a lock that ends with its
process. It deletes what may be deleted, expires groups where that is the rule, keeps the reserve,
and looks how full the disk is. And each parts with the consumers of its own process that nobody has
closed, a moment after they are gone.

When somebody last looked for what may be deleted is on the disk (`rounds.py`). So the first look of
a process comes when it is due, whoever made the last one; and where no process lives until then,
the next one that closes the store has a look that takes a moment, and others go on from there.

A queue in which nothing has happened since the last look, and of which nothing has become too old,
is not opened: what that costs is the times of a few files. On a disk that is too full, what could
be deleted is looked for at every look, and when somebody publishes, before it is refused; where
there are so many queues that this takes long, and nothing is found, it is rarer.

Without upkeep there is no thread: whoever publishes to a disk that is too full does that itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace.errors import Closed, TailraceError
from tailrace.log.sidefiles import FOLDER
from tailrace.log.upkeep import Chore, Upkeep
from tailrace.queue import archived
from tailrace.queue.disk import Level
from tailrace.queue.rounds import Rounds
from tailrace.queue.settings import QueueSettings
from tailrace.units import parse_duration

if TYPE_CHECKING:
    from tailrace.log.fs import Entry
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.registry import Queues
    from tailrace.queue.store import Store

__all__ = ["Caretaker"]

logger = logging.getLogger("tailrace")

LOCK: Final = "lock.upkeep"
_INTERVAL_S: Final = 300.0
_DISK_S: Final = 5.0
_LONGEST_S: Final = 60.0  # between two searches for what could go from a disk that is too full:
_SHARE: Final = 5  # they take one part in so many of the time, as long as nothing is found
_PATIENCE_S: Final = 1.0  # that one who publishes has with a search
_STUCK_S: Final = 300.0  # a lease may end without a trace
_SHORTEST_S: Final = 0.02
_FIRST_S: Final = 0.5  # after which whoever opens the store does what is overdue
_PASSING_S: Final = 0.02  # that whoever closes it spends on that
_NOTE_S: Final = 0.1  # after which a process that ends without a word leaves where it was
_AT_ONCE_MS: Final = 20  # in which the time of a file may not change
_TIDY_S: Final = 0.5  # whoever closes a consumer, or opens the next, tidies before that
_RETENTION, _DISK, _TIDYING = "retention", "a look at the disk", "tidying"

Sign = tuple[object, ...]


class Caretaker:
    """Looks after a store, until it is stopped or the store is gone."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._queues: Queues | None = None  # whose intervals these are
        self._intervals_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}  # when retention was last seen to, by queue
        # What a queue looked like when there was nothing to do, and when there may be something
        # although it still looks like that.
        self._signs: dict[str, Sign] = {}
        self._wakes_ms: dict[str, float] = {}
        self._stuck: dict[str, tuple[Sign, float]] = {}  # nothing of it goes by force; until when
        self._level = Level.FINE  # that was told of
        self._search_s = 0.0  # when to look again for what could go
        self._waiting: deque[threading.Event] = deque()  # of those who wait for a look at the disk
        self._lock_path = os.path.join(store.layout.side, LOCK)
        self._rounds = Rounds(store.fs, store.layout.side, store.clock)
        self._shortest_s = shortest_s = self._learn(store)
        self._upkeep: Upkeep | None = None
        if store.upkeep:
            self._upkeep = self._begin(store, shortest_s)

    def _begin(self, store: Store, shortest_s: float) -> Upkeep:
        first_s = min(max(self._rounds.left_s(shortest_s), _FIRST_S), shortest_s)
        chores = [
            Chore(_RETENTION, shortest_s, self.retain, first_s),
            Chore(_DISK, min(shortest_s, _DISK_S), self.mind_the_disk),
            Chore(_TIDYING, math.inf, self.tidy, in_turn=False),
        ]
        upkeep = Upkeep(store.path, chores, store.fs.lock(self._lock_path))
        weakref.finalize(store, upkeep.end).atexit = False
        return upkeep

    def stop(self) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()

    # --- consumers --------------------------------------------------------------------------

    def tidy_soon(self) -> None:
        """Waits for nobody: the garbage collector may call it."""
        self._expect(_TIDYING, _TIDY_S)

    def _expect(self, name: str, within_s: float) -> None:
        if self._upkeep is not None:
            self._upkeep.expect(name, within_s)

    def tidy(self) -> None:
        store = self._store()
        if store is not None:
            try:
                store.tidy()
            except (TailraceError, OSError):
                self._expect(_TIDYING, _LONGEST_S)
                raise

    # --- how often --------------------------------------------------------------------------

    def adapt(self) -> None:
        """Go by the intervals of the queues that there are now. Any thread may call it; what other
        processes change is noticed with the next look at the disk."""
        store = self._store()
        if store is not None and store.registry.current() is not self._queues:
            self._shortest_s = shortest_s = self._learn(store)
            if self._upkeep is not None:
                self._upkeep.pace(_RETENTION, shortest_s)
                self._upkeep.pace(_DISK, min(shortest_s, _DISK_S))

    def _learn(self, store: Store) -> float:
        """The intervals of all queues; the shortest of them."""
        queues = store.registry.current()
        intervals_s = {name: _interval_s(settings) for name, settings in queues.items()}
        self._queues, self._intervals_s = queues, intervals_s
        return max(min([*intervals_s.values(), _INTERVAL_S]), _SHORTEST_S)

    # --- retention --------------------------------------------------------------------------

    def look_in_passing(self) -> None:
        """Before the store is closed: begin with what is overdue, or go on with it."""
        if self._upkeep is not None and self._rounds.left_s(self._shortest_s) <= 0:
            self._in_turn(_RETENTION, lambda: self.retain(for_s=_PASSING_S))

    def retain(self, *, is_pressed: bool = False, for_s: float = math.inf) -> bool:
        """Delete what may go, of the queues whose turn it is; `is_pressed`: of all, and now. Was
        there anything? At other times than those in which messages may be deleted, only groups.
        It takes not much longer than `for_s`."""
        store = self._store()
        if store is None:
            return False
        self.adapt()
        may_delete = is_pressed or store.disk.settings.may_delete(store.clock.wall_ms())
        queues, deleted = store.registry.current(), 0
        self._forget_all_but(queues)
        noted_s = time.monotonic()
        end_s = noted_s + for_s
        for name in queues if is_pressed else self._rounds.left_of(queues):
            settings, now_s = queues[name], time.monotonic()
            due_s = self._seen_s.get(name, -math.inf) + self._intervals_s.get(name, 0.0)
            is_due = due_s <= now_s and (may_delete or settings.expire_groups_ms)
            if is_pressed or is_due:
                if now_s >= min(end_s, noted_s + _NOTE_S) and not is_pressed:
                    self._rounds.note(name)
                    noted_s = now_s
                if now_s >= end_s:
                    return deleted > 0
                self._seen_s[name] = now_s
                try:
                    deleted += self._see_to(store, settings, may_delete)
                except Closed:  # deleted, or the store is
                    self._signs.pop(name, None)
                    if not _is_open(store):
                        if not is_pressed:
                            self._rounds.note(name)
                        return deleted > 0
                except (TailraceError, OSError) as error:
                    logger.error("retention of %s failed: %s", name, error, extra={"queue": name})
        if not is_pressed:
            self._rounds.note()
        return deleted > 0

    def _forget_all_but(self, queues: Queues) -> None:
        for known in (self._seen_s, self._signs, self._wakes_ms, self._stuck):
            for name in known.keys() - queues.keys():
                known.pop(name)

    def _see_to(self, store: Store, settings: QueueSettings, may_delete: bool) -> int:
        """How many segments and groups are deleted."""
        if settings.ephemeral and not settings.retention:
            return 0
        name = settings.name
        sign = self._sign(store, settings)  # before: what happens meanwhile is seen next time
        is_same = sign == self._signs.get(name)
        if is_same and store.clock.wall_ms() < self._wakes_ms.get(name, 0):
            return 0
        queue = store.get(name)
        is_open = queue.is_open
        try:
            deleted = queue.expire_by_rule()
            if not may_delete:
                return deleted
            deleted += queue.drop_segments().segments
            wake_ms = _wake_ms(queue, settings, store.clock.wall_ms())
        finally:
            if not is_open:
                queue.rest()
        self._wakes_ms[name] = wake_ms
        if deleted:
            self._signs.pop(name, None)
        else:
            self._signs[name] = sign
        return deleted

    def _sign(self, store: Store, settings: QueueSettings) -> Sign:
        """What tells that something was published, settled or deleted, or set otherwise. Files may
        be written to again without another size or time, if that is at once: so one that has just
        been written to looks like no other."""
        fs, layout, now_ms = store.fs, store.layout, store.clock.wall_ms()
        seen: list[object] = [settings]
        newest_ms = 0
        segments = _segments(store, settings.name)
        if segments:
            last = max(segments)
            newest_ms = last.modified_ms
            seen += (len(segments), last.name, last.size, last.modified_ms)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            note = fs.stat(os.path.join(layout.queue(settings.name), FOLDER, archived.NAME))
            seen.append(note)
        for group_id in layout.groups(settings.name):
            folder = layout.group(settings.name, group_id)
            for entry in fs.list(folder):
                if entry.name != FOLDER:
                    seen.append((group_id, entry.name, entry.size, entry.modified_ms))
                    newest_ms = max(newest_ms, entry.modified_ms)
        if abs(now_ms - newest_ms) < _AT_ONCE_MS:
            seen.append(object())
        return tuple(seen)

    # --- the disk ---------------------------------------------------------------------------

    def relieve(self, level: Level) -> None:
        """Somebody who is about to publish has found the disk too full: see to it now. Before
        publishing is refused, that is waited for, but not for long. Any thread may call it."""
        if self._upkeep is None:
            if level is Level.REFUSING:
                self._in_turn(_DISK, self.mind_the_disk)
        elif level is Level.REFUSING:
            done = threading.Event()
            self._waiting.append(done)
            self._expect(_DISK, 0)
            done.wait(_PATIENCE_S)
        else:
            self._expect(_DISK, 0)

    def _in_turn(self, name: str, do: Callable[[], object]) -> None:
        """In the thread of who calls, unless another thread or process is at it."""
        store = self._store()
        if store is None:
            return
        try:
            with contextlib.closing(store.fs.lock(self._lock_path)) as lock:
                if lock.acquire(wait=False):
                    do()
        except (TailraceError, OSError) as error:  # then all is as it was
            extra = {"path": store.path}
            logger.error("%s of %s failed: %s", name, store.path, error, extra=extra)

    def mind_the_disk(self) -> None:
        try:
            store = self._store()
            if store is not None:
                self._mind_the_disk(store)
        finally:
            while self._waiting:
                self._waiting.popleft().set()

    def _mind_the_disk(self, store: Store) -> None:
        self.adapt()
        store.reserve.have()
        level, begun_s = store.disk.measure(), time.monotonic()
        if level is not Level.FINE and (level > self._level or begun_s >= self._search_s):
            has_deleted = self.retain(is_pressed=True)
            if store.disk.settings.force:
                has_deleted |= self._force(store)
            ended_s = time.monotonic()
            pause_s = 0.0 if has_deleted else min(_SHARE * (ended_s - begun_s), _LONGEST_S)
            self._search_s = ended_s + pause_s
        self._tell(store, store.disk.look())

    def _tell(self, store: Store, level: Level) -> None:
        """Once: it may stay so for days."""
        before, self._level = self._level, level
        extra = {"path": store.path}
        if level is Level.FINE:
            if before is not Level.FINE:
                logger.info("the disk of %s has room again", store.path, extra=extra)
        elif level is not before:
            logger.warning(
                "the disk of %s is too full (%s), and nothing more may be deleted",
                store.path,
                "publishing is refused" if level is Level.REFUSING else "disk.max_used_ratio",
                extra=extra,
            )

    def _force(self, store: Store) -> bool:
        """Delete the oldest segments, of one queue after the other, as far as nobody has their
        messages, until the disk is fine. Was there anything?"""
        queues = [queue for queue in store.queues() if not self._is_stuck(store, queue)]
        has_deleted = False
        while queues and store.disk.measure() is not Level.FINE:
            for queue in list(queues):
                if self._drop_segment(store, queue):
                    has_deleted = True
                else:
                    queues.remove(queue)
        return has_deleted

    def _is_stuck(self, store: Store, queue: Queue | Stream) -> bool:
        """Is it known that nothing of it can go, unless something happens?"""
        if len(_segments(store, queue.name)) < 2:
            return True
        sign, until_s = self._stuck.get(queue.name, ((), 0.0))
        return time.monotonic() < until_s and sign == self._sign(store, queue.settings)

    def _drop_segment(self, store: Store, queue: Queue | Stream) -> bool:
        is_open = queue.is_open
        try:
            if queue.drop_segment():
                return True
        except Closed:  # deleted
            return False
        except (TailraceError, OSError) as error:
            extra = {"queue": queue.name}
            logger.error("%s: cannot be made smaller: %s", queue, error, extra=extra)
        finally:
            if not is_open:
                queue.rest()
        self._stuck[queue.name] = self._sign(store, queue.settings), time.monotonic() + _STUCK_S
        return False


def _is_open(store: Store) -> bool:
    try:
        store.check_open()
    except Closed:
        return False
    return True


def _segments(store: Store, name: str) -> list[Entry]:
    try:
        return store.fs.list(store.layout.segments(name), ending=".seg")
    except FileNotFoundError:
        return []


def _interval_s(settings: QueueSettings) -> float:
    own = dict(settings.log_options).get("retention_check_interval")
    return _INTERVAL_S if own is None else parse_duration(own, "interval") / 1000


def _wake_ms(queue: Queue | Stream, settings: QueueSettings, now_ms: int) -> float:
    """When something may have to go although nothing has happened to the queue. What is too old
    already is held by a group, and that tells when it lets go."""
    wake_ms = math.inf
    max_age_ms = settings.retention.max_age_ms
    if max_age_ms is not None:
        age_ms = queue.log.age_of_first_segment()
        if age_ms is not None and age_ms <= max_age_ms:
            wake_ms = now_ms + max_age_ms - age_ms + 1
    if settings.expire_groups_ms:
        for idle_ms in queue.idle_ms().values():  # those whose time is over are in use
            wake_ms = min(wake_ms, now_ms + max(settings.expire_groups_ms - idle_ms, 0))
    return wake_ms
