"""Sleep until a file or a directory changes, whoever changes it.

A `Watch` tells that something happened to its paths. It may tell so for nothing and never keeps
quiet, so whoever follows a file looks at it, and when there is nothing new waits, in a loop.

It sleeps, and does not poll: the kernel tells (inotify). What the kernel cannot tell is looked at
by one of those who wait: every millisecond, and when nothing happens less and less often, down to
every 10 ms (`changes.py` says when that is so). On network file systems the kernel does not hear of
other machines; `TAILRACE_WATCH=poll` in the environment has everything looked at.

`hub.py` has what the Watches of a process share, and why none misses anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from tailrace.log import hub
from tailrace.log.hub import Ear, Hub, Task, Thread

__all__ = ["Watch"]


class Watch:
    """Tells when anything happens to one of some paths: files, whose contents change, or
    directories, where names come and go and files change. Thread-safe; any number of threads and
    tasks may wait, and each is told.

    A forked child may go on with a Watch. Its first wait there returns True at once.
    """

    def __init__(self, *paths: str, names_in: Sequence[str] = (), aside: bool = False) -> None:
        """`names_in` are directories of which only the names count: to look at a large one is much
        work. `aside` is for a thread that waits all the time for what seldom comes: it would lead
        for everybody else. `OSError` if there is nothing at a path."""
        for path in (*paths, *names_in):
            os.stat(path)
        self._is_aside = aside
        self._ear = Ear(*([os.path.abspath(path) for path in each] for each in (paths, names_in)))
        self._hub.adopt(self._ear)

    @property
    def _hub(self) -> Hub:
        """Of this process: a fork changes it."""
        return hub.aside if self._is_aside and hub.aside.hears else hub.current

    @property
    def is_looking(self) -> bool:
        """Is there a path of which the kernel does not tell?"""
        return any(place.wd < 0 for place in self._ear.places)

    def wait(self, timeout: float | None = None) -> bool:
        """True when something happened since the Watch was made, or since the last wait that
        returned True. False when the time has passed, or the Watch is closed.

        An exception from a signal handler comes out at once, and takes nothing away: what had
        happened is told by the next wait.
        """
        ours, ear = self._hub, self._ear
        if ear.hub is not ours:
            ours.adopt(ear)
        thread = Thread(ear)
        if not thread.is_over:
            try:
                ours.join(thread)
                ours.sleep(thread, timeout)
            finally:
                try:
                    ours.leave(thread)
                except BaseException:  # a signal handler's, here of all places: others rely on us
                    ours.leave(thread)
                    raise
        return ear.take(thread.seen)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """`wait` for a task. It may be cancelled at any time, which takes nothing away."""
        task = self.task()
        timer = None if timeout is None else task.loop.call_later(timeout, task.settle)
        try:
            self.begin(task)
            await task.future
            if not task.is_over:  # the time has passed; something may have come with it
                self._hub.take_in(task.loop)
        finally:
            try:
                self._hub.unattend(task, timer)
            except BaseException:  # see `wait`
                self._hub.unattend(task, timer)
                raise
        return self.take(task)

    # The steps of `wait_async`, for those who are in a hurry.

    def task(self) -> Task:
        """The running task, which is about to wait."""
        ear = self._ear
        if ear.hub is not self._hub:
            self._hub.adopt(ear)
        # Importing asyncio takes long, and whoever has a running loop has it already.
        return Task(ear, sys.modules["asyncio"].get_running_loop())

    def begin(self, task: Task) -> None:
        """Its future is done when there is something, or the Watch was closed."""
        ear, seen = self._ear, task.seen
        if ear.tick == seen and not ear.closed:
            self._hub.attend(task)
            if ear.tick == seen and not ear.closed:
                return
        task.settle()

    def leave(self, task: Task) -> None:
        """Whatever has happened to it."""
        try:
            self._hub.unattend(task)
        except BaseException:
            self._hub.unattend(task)
            raise

    def take(self, task: Task) -> bool:
        """What `wait_async` returns."""
        return self._ear.take(task.seen)

    @property
    def closed(self) -> bool:
        return self._ear.closed

    def close(self) -> None:
        """Stop. Whoever waits returns False at once. This waits for nobody, so that a signal
        handler or the garbage collector may call it, wherever they have interrupted a thread."""
        ear = self._ear
        ear.closed = True
        for sleeper in list(ear.sleepers):
            sleeper.rouse()
        self._hub.retire(ear)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process the kernel tidies up. No ear: there was nothing at a path.
        if not _is_finalizing() and hasattr(self, "_ear"):
            self.close()
