"""What the Watches of a process share: one inotify instance, and the turn to sleep on it.

There is one instance because a user may have few (128, often). There is no thread of our own, which
would cost a hop on every wake-up. Of the threads that wait, one leads: it sleeps on the inotify
descriptor, and tells the others, who each sleep on a lock. When it leaves, another leads. An
asyncio loop has a reader on the descriptor while one of its tasks waits. So several may find the
same event; one reads it, and whoever does tells all. (Threads in the background, which wait all the
time for what seldom comes, would always lead, and be that hop: they have a hub `aside`.) When
nobody waits nobody reads, and the kernel keeps (and merges) the events.

Nobody sleeps through a change, for these reasons:

- Every Watch has a tick that grows with each event. Whoever waits puts himself on the list of those
  to be roused, and then compares the tick with the one that he has seen, each time before he
  sleeps.
- The tick grows before he is roused, and what rouses him stays: a lock that is free, an eventfd
  that is readable, a future that is done. Roused between the comparison and the sleep, he does not
  sleep.
- Reading and telling is one step, under the hub's lock. If an interrupt breaks it, or the kernel
  dropped events, all are told.
- Threads that are told are roused one after the other, which spares them the fight for the
  interpreter: each rouses the next when it leaves. All who are on the list leave sooner or later,
  so the chain does not break.
- Nobody leads only while all threads that wait have been told and are about to leave: the one who
  leaves the lead hands it to somebody who was not, and whoever comes takes it if it is free.

A forked child does not read its parent's events: it gets a hub of its own, where the Watches that
it inherited subscribe when they next wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from tailrace.log.changes import LOOK_FIRST_S, LOOK_LAST_S, Changes, Place

if TYPE_CHECKING:
    import asyncio

__all__ = ["Ear", "Hub", "Task", "Thread", "aside", "current", "start_afresh"]

logger = logging.getLogger("tailrace")

_SLEEP_MAX_S = 86_400.0  # at a time; a poll cannot count much further

_ABREAST = 2  # how many threads are roused at once


class Ear:
    """What the hub knows of a Watch. It does not know the Watch, so that one which is forgotten
    goes, and this with it."""

    __slots__ = ("closed", "hub", "places", "seen", "sleepers", "tick")

    def __init__(self, paths: list[str], names_in: list[str]) -> None:
        self.places = [Place(self, path) for path in paths]
        self.places += [Place(self, path, names_only=True) for path in names_in]
        self.hub: Hub | None = None
        self.tick = 0
        self.seen = 0  # the tick of the last wait that returned True
        self.closed = False
        self.sleepers: dict[Thread | Task, None] = {}

    def take(self, seen: int) -> bool:
        """What a wait returns that began at `seen`."""
        tick = self.tick
        if self.closed or tick == seen:
            return False
        self.seen = tick
        return True


class Thread:
    """A thread that waits. It sleeps on the gate, or leads."""

    __slots__ = ("_gate", "_hub", "ear", "seen")

    def __init__(self, ear: Ear) -> None:
        self.ear = ear
        self.seen = ear.seen
        self._hub = ear.hub
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def is_over(self) -> bool:
        """Is there nothing to wait for any more? Once true, it stays so."""
        return self.ear.tick != self.seen or self.ear.closed

    def doze(self, patience: float | None) -> bool:
        """Sleep on the gate; False if nobody opened it."""
        return self._gate.acquire(timeout=-1 if patience is None else patience)

    def open_gate(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            return  # it is open: somebody else was faster

    def rouse(self) -> None:
        """Have it compare ticks again, wherever it sleeps. Needs no lock."""
        self.open_gate()
        if self._hub is not None and self._hub.leader is self:
            self._hub.ring()


class Task:
    """A task that waits, for a future of its loop."""

    __slots__ = ("ear", "future", "loop", "seen")

    def __init__(self, ear: Ear, loop: asyncio.AbstractEventLoop) -> None:
        self.ear = ear
        self.seen = ear.seen
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self.ear.tick != self.seen or self.ear.closed

    def settle(self) -> None:
        """End the wait, from within the loop."""
        if not self.future.done():
            self.future.set_result(None)

    def rouse(self) -> None:
        """End the wait, from anywhere."""
        try:
            self.loop.call_soon_threadsafe(self.settle)
        except RuntimeError:  # the loop was closed, so the task never goes on
            self.ear.sleepers.pop(self, None)
            if self.ear.hub is not None:
                self.ear.hub.forget(self.loop)


class _Attendance:
    """The tasks of a loop that wait, with the loop's reader, and its timer for looking."""

    __slots__ = ("fd", "tasks", "timer")

    def __init__(self) -> None:
        self.tasks: set[Task] = set()
        self.fd = -1
        self.timer: asyncio.TimerHandle | None = None


class Hub:
    """What changes, and who waits for it.

    All of it is guarded by the lock, but for `leader` and `news`, which anybody may look at, and
    the attendances, which belong each to the thread of its loop. The lock is held for moments.
    Under it nothing is logged and nothing waits, because the garbage collector may want it
    anywhere.
    """

    def __init__(self) -> None:
        self.leader: Thread | None = None
        self.news = 0  # how often anybody was told anything
        self._lock = threading.Lock()
        self._changes: Changes[Ear] = Changes()
        self._queue: dict[Thread, None] = {}  # who waits, in the order in which they came
        self._chain: deque[Thread] = deque()  # who has been told, and is to be roused
        self._attendances: dict[asyncio.AbstractEventLoop, _Attendance] = {}
        self._retired: deque[Ear] = deque()
        self._has_complained = False

    @property
    def hears(self) -> bool:
        """Does the kernel tell us anything?"""
        if not self._changes.is_open:
            with self._lock:
                self._changes.open()
        return self._changes.inotify is not None

    # --- who subscribes ---------------------------------------------------------------------

    def adopt(self, ear: Ear) -> None:
        """Subscribe an ear that is new, or from before a fork."""
        with self._lock:
            if ear.hub is not self and not ear.closed:
                for place in ear.places:
                    self._changes.add(place)
                if ear.hub is not None:
                    ear.tick += 1  # what happened meanwhile nobody heard
                ear.hub = self
                if self._changes.looked and self.leader is not None:
                    self.leader.rouse()  # it may sleep without looking
        self._tidy()

    def retire(self, ear: Ear) -> None:
        """Unsubscribe, now or, if the lock is held, when it is released."""
        self._retired.append(ear)
        self._tidy()

    def _tidy(self) -> None:
        """Do what was not to be done under the lock. If somebody holds it again, he will.

        If the lock is free, then not even this thread holds it, further up its stack; to wait a
        moment for another is safe.
        """
        while self._retired and not self._lock.locked():
            with self._lock:
                while self._retired:
                    for place in self._retired.popleft().places:
                        self._changes.remove(place)
        if self._changes.complaint is not None and not self._has_complained:
            self._has_complained = True
            logger.warning(
                "inotify fails (%s): files are looked at every %g to %g ms instead. Raise "
                "fs.inotify.max_user_instances, fs.inotify.max_user_watches or the number of open "
                "files, and start again",
                self._changes.complaint,
                LOOK_FIRST_S * 1000,
                LOOK_LAST_S * 1000,
            )

    # --- who waits: threads -----------------------------------------------------------------

    def join(self, thread: Thread) -> None:
        with self._lock:
            thread.ear.sleepers[thread] = None
            self._queue[thread] = None
            if self.leader is None:
                self.leader = thread

    def sleep(self, thread: Thread, timeout: float | None) -> None:
        """Return when there is nothing to wait for any more, or the time has passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        patience = None
        is_late = False
        while not thread.is_over and not is_late:
            if deadline is not None:
                left = deadline - time.monotonic()
                is_late = left <= 0
                patience = min(max(left, 0), _SLEEP_MAX_S)
            if self.leader is thread:
                self._lead(thread, patience)
            elif not thread.doze(patience):
                self.take_in(thread)  # the leader may not have come to it yet

    def _lead(self, thread: Thread, patience: float | None) -> None:
        changes = self._changes
        if changes.looked:
            every = changes.look_every_s
            patience = every if patience is None else min(patience, every)
        if changes.inotify is None:
            thread.doze(patience)
        else:
            changes.inotify.sleep(patience)
        self.take_in(thread)

    def leave(self, thread: Thread) -> None:
        """Hand the lead on, and rouse the next. Done again, it does the rest of what an interrupt
        left undone."""
        with self._lock:
            thread.ear.sleepers.pop(thread, None)
            self._queue.pop(thread, None)
            if self.leader is thread:
                heir = None
                for other in self._queue:
                    if not other.is_over:
                        heir = other
                        break
                self.leader = heir  # at one stroke, for the same reason
            if self.leader is not None:
                self.leader.open_gate()
            if self._chain:
                self._rouse_next(1)
        if self._retired:
            self._tidy()

    def _rouse_next(self, count: int) -> None:
        while count and self._chain:
            if self._chain[0] in self._queue:
                self._chain[0].open_gate()
                count -= 1
            self._chain.popleft()  # last, lest an interrupt lose it

    def ring(self) -> None:
        """End the leader's sleep."""
        inotify = self._changes.inotify
        if inotify is not None:
            inotify.ring()

    # --- who waits: tasks -------------------------------------------------------------------

    def attend(self, task: Task) -> None:
        """Have the task's loop read while it waits."""
        task.ear.sleepers[task] = None  # at one stroke, like the pop: that needs no lock
        loop, inotify = task.loop, self._changes.inotify
        attendance = self._attendances.get(loop)
        if attendance is None:
            for closed in [old for old in list(self._attendances) if old.is_closed()]:
                self.forget(closed)
            attendance = self._attendances[loop] = _Attendance()
        attendance.tasks.add(task)
        if inotify is not None and attendance.fd < 0:
            attendance.fd = inotify.fd
            loop.add_reader(inotify.fd, self.take_in, loop)
        if self._changes.looked and attendance.timer is None:
            self._set_timer(loop, attendance)

    def unattend(self, task: Task, timer: asyncio.TimerHandle | None = None) -> None:
        """May be done again, like `leave`."""
        if timer is not None:
            timer.cancel()
        task.ear.sleepers.pop(task, None)
        attendance = self._attendances.get(task.loop)
        if attendance is not None:
            attendance.tasks.discard(task)
            if not attendance.tasks and not task.loop.is_closed():
                task.loop.call_soon(self._dismiss, task.loop, attendance)
        if self._retired:
            self._tidy()

    def _dismiss(self, loop: asyncio.AbstractEventLoop, attendance: _Attendance) -> None:
        """Take the loop's reader away, unless a task waits again by now: to remove and add it for
        every wait would take longer than a wake-up."""
        if attendance.tasks:
            return
        if attendance.timer is not None:
            attendance.timer.cancel()
        if attendance.fd >= 0:
            loop.remove_reader(attendance.fd)
        self.forget(loop)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of a loop that has nobody waiting, or is closed."""
        self._attendances.pop(loop, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, attendance: _Attendance) -> None:
        every = self._changes.look_every_s
        attendance.timer = loop.call_later(every, self._look_again, loop, attendance)

    def _look_again(self, loop: asyncio.AbstractEventLoop, attendance: _Attendance) -> None:
        attendance.timer = None
        self.take_in(loop)
        if attendance.tasks and self._changes.looked:
            self._set_timer(loop, attendance)

    # --- what happened ----------------------------------------------------------------------

    def take_in(self, here: object) -> None:
        """Find out what changed, without waiting, and tell whom it concerns. `here` is who calls:
        a thread that waits, or a loop."""
        try:
            with self._lock:
                changes = self._changes
                was_looking = bool(changes.looked)
                ears = changes.take()
                if ears:
                    self._tell(ears, here)
                if not was_looking and changes.looked and self.leader is not None:
                    self.leader.rouse()
        except BaseException:
            # An interrupt, most likely. What was read has perhaps not been told.
            try:
                self._tell_all()
            except BaseException:
                self._tell_all()
                raise
            raise
        if self._retired or self._changes.complaint is not None:
            self._tidy()

    def _tell(self, ears: Collection[Ear], here: object) -> None:
        self.news += 1  # first: who finds that it is told must not find it unchanged
        for ear in ears:
            ear.tick += 1
            for sleeper in list(ear.sleepers):
                if isinstance(sleeper, Task):
                    if sleeper.loop is not here:
                        sleeper.rouse()
                    elif not sleeper.future.done():
                        sleeper.future.set_result(None)
                elif sleeper is self.leader:
                    if sleeper is not here:
                        sleeper.rouse()
                else:
                    self._chain.append(sleeper)
        if self._chain:
            self._rouse_next(_ABREAST)

    def _tell_all(self) -> None:
        with self._lock:
            self._tell(self._changes.renew(), None)
            if self.leader is not None:
                self.leader.rouse()

    def disown(self) -> None:
        """Let go of everything; nobody waits here any more."""
        self.leader = None
        for ear in self._changes.close():
            ear.sleepers.clear()


current = Hub()
aside = Hub()


def start_afresh() -> None:
    """Begin with hubs of our own: in a forked child, and in tests, when nobody waits."""
    global current, aside
    old = current, aside
    current, aside = Hub(), Hub()
    for each in old:
        each.disown()


os.register_at_fork(after_in_child=start_afresh)
