"""Group commit: many appends, one fdatasync.

An append puts its batch into the file and is done; whoever needs it durable waits here. One thread
has the turn. A thread that finds it free takes it and flushes, so that a lone writer pays for no
hand-over; those that come meanwhile queue up. The turn then goes from one to the next: who is
covered by the flush passes it on and returns, and the first who is not flushes. So threads are
woken one after the other, which spares them the fight for the interpreter that waking all at once
would start, and those that were served have queued up again by the time the next flush begins.
asyncio tasks are served by a thread of our own, because a flush must not block the loop.

A flush covers what was in the file when it began, whoever wrote it. Waiters are told only then, and
only those whose bytes it covered. Processes take turns to flush, and the watermark file tells the
next one what the last has covered: often there is nothing left to do.

When fdatasync fails, the kernel may have dropped the pages and will report success the next time,
so nothing is tried again: the log is poisoned, on disk too, every waiter gets `OutcomeUnknown`, and
only reopening it, which goes back to the last good flush, makes it usable.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from tailrace import hooks
from tailrace.errors import OutcomeUnknown
from tailrace.log.extents import Extents
from tailrace.log.fs import File, FileSystem
from tailrace.log.sidefiles import Poison, Watermark, WatermarkFile

if TYPE_CHECKING:
    import asyncio

__all__ = ["Committer", "Past", "Receipt", "Rolled", "Written"]

logger = logging.getLogger("tailrace")

# How long a thread waits before it looks by itself: a turn that an interrupt swallowed costs this
# much, and is not the end.
_PATIENCE_S = 1.0

# What is synced may have to be opened. If that fails, nothing was tried, and nothing is lost.
_NOT_TRIED = (errno.EMFILE, errno.ENFILE)


class Rolled(NamedTuple):
    """A segment before the active one that may not be durable yet."""

    end_offset: int
    file: File


class Past(NamedTuple):
    """The segments before the active one. `rolled` are the last of them, with those that are not
    durable; `named` says that the name of the active one is."""

    extents: Extents
    rolled: tuple[Rolled, ...]
    named: bool


# What an asyncio task waits for: an end offset, its loop, and the future to complete there.
_Task: TypeAlias = "tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]"

# How far a log is written: file, base, size and next offset of the active segment, and its past. A
# plain tuple because each append makes one.
Written: TypeAlias = tuple[File, int, int, int, Past]


class Receipt:
    """What an append returns. The records have their offsets; `wait()` (or `await`) returns when
    they are as durable as the log's flush mode promises."""

    __slots__ = ("_committer", "count", "end_offset", "offset")

    def __init__(
        self, offset: int, end_offset: int, count: int, committer: Committer | None
    ) -> None:
        self.offset = offset
        self.end_offset = end_offset
        self.count = count
        self._committer = committer

    @property
    def done(self) -> bool:
        """Is there nothing to wait for?"""
        return self._committer is None or self._committer.durable >= self.end_offset

    def wait(self, timeout: float | None = None) -> Receipt:
        """Block until done. `TimeoutError` leaves the append as it is: wait again."""
        if self._committer is not None and self._committer.durable < self.end_offset:
            self._committer.wait(self.end_offset, timeout)
        return self

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self.done:
            assert self._committer is not None
            yield from self._committer.completion(self.end_offset).__await__()
        return self

    def __repr__(self) -> str:
        state = "done" if self.done else "pending"
        return f"Receipt(offset={self.offset}, count={self.count}, {state})"


class _Waiter(NamedTuple):
    end_offset: int
    thread: int
    turn: threading.Lock  # released when the turn has come to the thread


class Others(Protocol):
    """The other processes that flush this log: one at a time does, as a context manager."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: Any) -> None: ...

    def wait(self, deadline: float | None = None) -> bool:
        """Wait for whoever flushes now; false if nobody does, and then it is our turn. After the
        deadline, `TimeoutError`."""

    def claim(self) -> bool:
        """In our turn: we are about to flush. False if one of them has since we last did."""

    def release(self) -> None:
        """Let them."""

    def failure(self) -> OSError | None:
        """Why nothing can become durable any more, if somebody has found that out."""

    def poison(self) -> None:
        """Tell them that a flush failed."""


class Committer:
    """Makes a log durable. `written` tells how far the file is written; it is called at the start
    of each flush. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        written: Callable[[], Written],
        watermark_file: WatermarkFile,
        watermark: Watermark,
        others: Others,
    ) -> None:
        self.durable = watermark.durable
        self.watermark = watermark
        self.failure: OSError | None = None
        self._fs = fs
        self._folder = folder
        self._written = written
        self._watermark_file = watermark_file
        self._others = others
        self._lock = threading.Lock()
        self._mark_lock = threading.Lock()  # the watermark; innermost
        self._holder = 0  # the thread that has the turn
        self._waiters: list[_Waiter] = []
        self._tasks: list[_Task] = []
        self._retired: list[File] = []
        self._flusher: _TaskFlusher | None = None
        self.label = ""  # the name of the queue whose log it is

    # --- waiting ----------------------------------------------------------------------------

    def wait(self, end_offset: int, timeout: float | None = None) -> None:
        """Return when everything below `end_offset` is durable."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self.durable < end_offset:
                if self._take_turn(end_offset, deadline):
                    self._flush(end_offset, deadline)
            self._pass_turn_on()
        except BaseException:
            self._withdraw()
            raise

    def _take_turn(self, end_offset: int, deadline: float | None = None) -> bool:
        """True when the caller is to flush now. Otherwise it has waited until there was news."""
        me = threading.get_ident()
        with self._lock:
            if self.durable >= end_offset:
                return False
            self.check()
            if self._holder in (0, me):
                self._holder = me
                return True
            waiter = _Waiter(end_offset, me, threading.Lock())
            waiter.turn.acquire()
            self._waiters.append(waiter)
        self._await_turn(waiter, deadline)
        return False

    def _await_turn(self, waiter: _Waiter, deadline: float | None) -> None:
        patience = _PATIENCE_S
        if deadline is not None:
            patience = min(patience, max(deadline - time.monotonic(), 0))
        if waiter.turn.acquire(timeout=patience):
            return
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if not self._is_here(self._holder):
                self._holder = 0
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"offset {waiter.end_offset - 1} is not durable yet")

    def _is_here(self, thread: int) -> bool:
        """Is a thread waiting or flushing? One that is not cannot have the turn: a second interrupt
        must have hit its clean-up after the first."""
        frame = sys._current_frames().get(thread)
        while frame is not None:
            if frame.f_code in _WITH_TURN and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _withdraw(self) -> None:
        """After an interrupt, wherever it came: nobody is to wait for us."""
        me = threading.get_ident()
        if self._holder == me:
            self._others.release()
        with self._lock:
            self._waiters = [waiter for waiter in self._waiters if waiter.thread != me]
        self._pass_turn_on()

    def _pass_turn_on(self) -> None:
        """Give the turn, if we have it, to the next thread.

        Wherever an interrupt hits this, nobody is stuck: a waiter looks by itself after a while,
        and finds that nobody has the turn, or that it has.
        """
        if self._holder != threading.get_ident():
            return
        with self._lock:
            self._holder = 0
            retired, self._retired = self._retired, []
            if self._waiters:
                waiter = self._waiters.pop(0)
                self._holder = waiter.thread
                waiter.turn.release()
        for file in retired:
            file.close()

    def completion(self, end_offset: int) -> asyncio.Future[None]:
        """A future of the running loop that is done when everything below is durable."""
        # Importing it takes long, and whoever has a running loop has it already.
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self.failure is not None:
                self.check()
            if self.durable >= end_offset:
                future.set_result(None)
                return future
            if self._flusher is None:
                self._flusher = _TaskFlusher(self)
            self._flusher.request(loop)
            self._tasks.append((end_offset, loop, future))
        return future

    def check(self) -> None:
        """Raise if nothing can become durable any more."""
        if self.failure is not None:
            raise OutcomeUnknown(
                f"a flush of {self._folder} failed ({self.failure}); what was not durable before "
                "may be lost. Reopen the log, and repeat the append with its producer id"
            ) from self.failure

    # --- flushing ---------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable that is written now."""
        _file, _segment, _position, end_offset, _past = self._written()
        self.wait(end_offset)

    def force(self) -> None:
        """Sync the file even if it has no new records."""
        try:
            while not (self._take_turn(_EVERYTHING) and self._flush(_EVERYTHING)):
                continue
            self._pass_turn_on()
        except BaseException:
            self._withdraw()
            raise

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process flushes meanwhile, and what they have flushed is known."""
        try:
            with self._others:
                self._learn(our_turn=True)
                yield
        except OSError as error:
            raise OutcomeUnknown(f"cannot flush {self._folder}: {error}; try again") from error

    def _learn(self, *, our_turn: bool = False) -> None:
        """What have the others done? If it is not our turn somebody may be writing it down now:
        then we look later."""
        self.failure = self.failure or self._others.failure()
        self.check()
        if our_turn and self._others.claim():
            return
        mark = self._watermark_file.load()
        if mark is not None and mark.durable > self.durable:
            self.watermark, self.durable = mark, mark.durable

    def _flush(self, wanted: int, deadline: float | None = None) -> bool:
        """Do one flush, with the turn, unless what is below `wanted` is durable by now. It covers
        everything that is written when it begins. False if another process did one instead, which
        may have been enough."""
        others = self._others
        try:
            if others.wait(deadline):
                self._learn()
                return False
            try:
                self._learn(our_turn=True)
                if self.durable < wanted:
                    self._sync(*self._written())
            finally:
                others.release()
            return True
        except TimeoutError:
            raise
        except OSError as error:
            raise OutcomeUnknown(f"cannot flush {self._folder}: {error}; try again") from error
        finally:
            if self._waiters:
                with self._lock:  # those who are covered go first
                    self._waiters.sort(key=attrgetter("end_offset"))
            if self._tasks:
                self.settle_tasks()

    def _sync(self, file: File, segment: int, position: int, end_offset: int, past: Past) -> None:
        is_first = not past.named and segment != self.watermark.segment  # in this segment
        begun = time.perf_counter() if hooks.listeners else 0.0
        try:
            for rolled in past.rolled:
                if rolled.end_offset > self.durable:
                    rolled.file.sync()
            if is_first:
                self._fs.sync_dir(self._folder)
            file.sync()
        except OSError as error:
            if error.errno in _NOT_TRIED:
                raise
            self.failure = error  # at once: an interrupt must not make us forget it
            self.poison(error)
            self.check()
        # A watermark that a power cut takes back must not make what is durable look like what is
        # being written, over whole segments.
        self.advance(segment, position, end_offset, is_first)
        if begun:
            hooks.observe("fsync_seconds", [time.perf_counter() - begun], self.label)

    def sync_by(
        self, sync: Callable[[int], None], segment: int, position: int, end_offset: int
    ) -> None:
        """Where nobody flushes as a rule: have everything made durable up to there, from a segment
        on that `sync` is told."""
        with self.alone():
            try:
                sync(self.watermark.segment)
            except OSError as error:
                if error.errno in _NOT_TRIED:
                    message = f"cannot flush {self._folder}: {error}; try again"
                    raise OutcomeUnknown(message) from error
                self.poison(error)
                self.check()
            self.advance(segment, position, end_offset)

    def advance(self, segment: int, position: int, end_offset: int, sync: bool = False) -> None:
        """Everything up to there is on the disk: say so. Somebody may have said more meanwhile."""
        with self._mark_lock:
            mark = self.watermark
            if end_offset < mark.durable:
                return
            mark = Watermark(end_offset, segment, position, mark.boot_id)
            try:
                self._watermark_file.store(mark, sync)
            except OSError as error:
                # The records are durable all the same. The file is behind until the next flush,
                # and recovery does not mind that.
                logger.warning(
                    "cannot write the watermark of %s: %s", self._folder, error, extra=self._extra
                )
            self.watermark = mark
            self.durable = end_offset

    def retire(self, file: File) -> None:
        """Close the file of a segment that is durable, once no flush uses it any more."""
        with self._lock:
            if self._holder:
                self._retired.append(file)
                return
        file.close()

    def poison(self, error: OSError) -> None:
        """A flush failed: nothing can be written to this log any more until it is reopened."""
        self.failure = error
        self._others.poison()
        mark = self.watermark
        poison = Poison(mark.durable, mark.segment, mark.position, str(error))
        try:
            poison.store(self._fs, self._folder)
        except OSError as second:
            logger.error(
                "%s is poisoned, which cannot be written down: %s",
                self._folder,
                second,
                extra=self._extra,
            )

    @property
    def _extra(self) -> dict[str, str]:
        """What log records carry."""
        return {"path": self._folder, **({"queue": self.label} if self.label else {})}

    def flush_for_tasks(self) -> None:
        """One flush for all the tasks that wait now. Each is told how it went."""
        with self._lock:
            asked = list(self._tasks)
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001  whatever it is, they are told
            with self._lock:
                told = [task for task in asked if task in self._tasks and self.failure is None]
                self._tasks = [task for task in self._tasks if task not in told]
            _settle(told, partial(_raise, error))
        self.settle_tasks()  # also when somebody else had made them durable

    def settle_tasks(self) -> None:
        """Complete the futures of tasks that are covered."""
        with self._lock:
            bound = self.durable if self.failure is None else _EVERYTHING
            done = [task for task in self._tasks if task[0] <= bound]
            if done:
                self._tasks = [task for task in self._tasks if task[0] > bound]
        _settle(done, self.check)

    def abandon(self) -> None:
        """The log was let go of without a close: whoever holds a receipt is told."""
        self.failure = self.failure or OSError("the Log was dropped without a close")

    def disown(self) -> None:
        """We are in a forked child: nothing here can become durable."""
        self._lock, self._mark_lock = threading.Lock(), threading.Lock()
        self._flusher = None
        self._waiters, self._tasks, self._retired, self._holder = [], [], [], 0
        self.failure = OSError("the log was opened before a fork")

    def close(self) -> None:
        """Stop. Nobody waits any more: what could become durable is."""
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None


_EVERYTHING = 1 << 64
_WITH_TURN = (Committer.wait.__code__, Committer.force.__code__)


def _settle(tasks: list[_Task], check: Callable[[], None]) -> None:
    """Complete the futures, each in its own loop, with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for _end_offset, loop, future in tasks:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_complete, futures, check)


def _complete(futures: list[asyncio.Future[None]], check: Callable[[], None]) -> None:
    waiting = [future for future in futures if not future.done()]  # the others were cancelled
    for future in waiting:
        try:
            check()
        except Exception as error:  # noqa: BLE001  the task's
            future.set_exception(error)
        else:
            future.set_result(None)


def _raise(error: Exception) -> NoReturn:
    raise error


class _TaskFlusher:
    """The thread that flushes for asyncio."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._asked: set[asyncio.AbstractEventLoop] = set()  # loops that are about to request
        self._thread = threading.Thread(target=self._run, name="tailrace-commit", daemon=True)
        self._thread.start()

    def request(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for a flush, later in this turn of the running loop: one serves every task of the
        turn."""
        if loop not in self._asked:
            for closed in [other for other in self._asked if other.is_closed()]:
                self._asked.discard(closed)
            loop.call_soon(self._put_request, loop)
            self._asked.add(loop)

    def _put_request(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asked.discard(loop)
        self._requests.put(True)

    def stop(self) -> None:
        self._requests.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._requests.get():
            while not self._requests.empty():  # one flush answers all the requests made so far
                if not self._requests.get():
                    return
            self._committer.flush_for_tasks()
