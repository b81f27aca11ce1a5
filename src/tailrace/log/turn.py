"""The turn to write: one handle at a time, among all the processes that have the log open.

The turn is a lock that dies with its process. In mode `shared` it is taken for each append. In mode
`owner`, the default, a handle that appends without a pause and finds itself alone keeps it from one
append to the next, which spares two system calls each time; it gives it back when somebody asks,
and when it has been idle for a moment, so that nobody waits for a process that sleeps.

Who finds the turn taken goes through the gate, a second lock: the one behind it asks, by the
board's attention byte, and waits; the others wait at the gate. So whoever dies while it waits
leaves nothing but the byte, which costs the owner a look.

Lock order: the handle's own thread lock, the turn, the turn to flush (`FlushTurn`).
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from tailrace.log.board import ATTENTION, Board
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import side_path

__all__ = ["FlushTurn", "Keeper", "Turn", "keeper"]

logger = logging.getLogger("tailrace")

# An owner begins to keep its turn when so many in a row, within that time, have found the log as
# it left it.
_UNDISTURBED = 64
_UNDISTURBED_S = 0.1

# How long, and how often, one waits for the end of somebody's append before one asks for the turn.
_LINGER_US = 50
_CATCHES = 50

# A waiter that died leaves the attention byte set. So often does a writer look whether it is true.
_DOUBTS = 256

# How often somebody looks who does not wait for ever: nothing tells him that a lock is free.
_LOOK_S = 0.001

_HAS_COMPANY = (os.cpu_count() or 1) > 1  # on one processor nobody writes while we look on


class Turn:
    """One handle's access to the turn. Guarded by the handle's thread lock, but for `look`."""

    def __init__(self, fs: FileSystem, folder: str, board: Board, mode: str) -> None:
        self.held = False
        self.board = board
        self.memory = board.memory
        self.exclusive = mode == "exclusive"
        self.shares = not self.exclusive  # give the turn back after each append?
        self._owner = mode == "owner"
        self.lock = fs.lock(side_path(folder, "lock"))
        self._gate = fs.lock(side_path(folder, "lock.next"))
        self._undisturbed = 0
        self._undisturbed_since = 0.0
        self._asked = 0

    def take(self) -> None:
        """Wait for the turn."""
        if not self.lock.acquire_now():
            self.wait()
        self.held = True

    def wait(self) -> None:
        """Take it when the others let us."""
        try:
            if not self._catch():
                self._queue()
        except BaseException:
            self.lock.release()
            raise

    def _catch(self) -> bool:
        """Most likely somebody is in the middle of an append, which takes a few microseconds. To be
        put to sleep and woken takes more, and it is the other one who pays for the waking."""
        for _attempt in range(_CATCHES if _HAS_COMPANY else 0):
            if self.memory[ATTENTION] or not self.board.notes.linger(_LINGER_US):
                return False
            if self.lock.acquire_now():
                return True
        return False

    def _queue(self) -> None:
        self._gate.acquire()
        try:
            self.board.want()
            self.lock.acquire()
            self.board.unwant()
        finally:
            self._gate.release()
        self.disturbed()

    def give(self) -> None:
        # Nobody else can join where one is exclusive, so its turn never ends; but the lock has to
        # be free for those who come to learn that.
        self.held = self.exclusive
        try:
            if self._owner or self.memory[ATTENTION]:
                self._note_wishes()
        finally:
            self.lock.release()

    def give_again(self) -> None:
        """After an interrupt, which may have hit `give` itself: nobody is to wait for us."""
        if not self.held:
            self.lock.release()

    @contextlib.contextmanager
    def in_one_go(self) -> Iterator[None]:
        """With the turn: what nobody may find half done. If it fails, or is interrupted, wherever
        that is, the turn is left as by one who died in it. Before anybody writes, we too, it is
        taken over (`Writer.take_turn`), so nothing has to be taken back here. The board has to say
        first how far the log is written."""
        self.held = False  # the lock is ours; but whatever comes next has to take the turn
        yield
        self.held = True

    def drop(self) -> None:
        """It could not be taken after all; not by one who is exclusive, either."""
        self.held = False
        self.lock.release()

    def _note_wishes(self) -> None:
        """Is it time to share, or to keep the turn from the next one on?"""
        if self.memory[ATTENTION]:
            self.disturbed()
            self._asked += 1
            if self._asked % _DOUBTS == 0 and self._gate.acquire_now():
                self.board.unwant()  # whoever asked is gone
                self._gate.release()
            return
        self._undisturbed += 1
        if self._owner and self._undisturbed >= _UNDISTURBED:
            now = time.monotonic()
            self.shares = now - self._undisturbed_since > _UNDISTURBED_S
            self._undisturbed, self._undisturbed_since = 0, now

    def disturbed(self) -> None:
        """There are others, or nothing to do."""
        self.shares = not self.exclusive
        self._undisturbed = 0
        self._undisturbed_since = time.monotonic()

    def close(self) -> None:
        self.held = False
        self.lock.close()
        self._gate.close()


class FlushTurn:
    """The turn to flush: a flush covers what every process has written, so one at a time is
    enough, and who waited for it looks first whether there is anything left to do."""

    def __init__(self, fs: FileSystem, folder: str, board: Board) -> None:
        self.incarnation = 0  # the one that we belong to
        self._board = board
        self._number = _draw()
        self._lock = fs.lock(side_path(folder, "lock.flush"))

    def wait(self, deadline: float | None = None) -> bool:
        """Wait for whoever has it; false if nobody does, and then it is ours already."""
        if self._lock.acquire_now():
            return False
        # With all who wait: they pass together.
        while not self._lock.acquire(shared=True, wait=deadline is None):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("another process is still flushing")
            time.sleep(_LOOK_S)
        self._lock.release()
        return True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def release(self) -> None:
        self._lock.release()

    def claim(self) -> bool:
        """We are about to flush. True if the last one who did was us."""
        if self._board.flusher == self._number:
            return True
        self._board.flusher = self._number
        return False

    def failure(self) -> OSError | None:
        """Why this handle cannot go on, if others know a reason."""
        if self._board.incarnation != self.incarnation:
            return OSError("a flush failed, and another process has recovered the log since")
        return OSError("a flush failed in another process") if self._board.poisoned else None

    def poison(self) -> None:
        self._board.poison()

    def close(self) -> None:
        self._lock.close()


def _draw() -> int:
    """A number of a handle's own, wherever its process runs: not its pid, which may be that of
    another in the next container."""
    return int.from_bytes(os.urandom(7), "little") + 1


class Kept(Protocol):
    """A handle that keeps its turn."""

    def look(self) -> bool:
        """Give the turn back if it is wanted or idle; true while it is kept."""


class Keeper:
    """Looks after the turns which this process keeps, in a thread that is there as long as there
    are any. One for all its logs."""

    INTERVAL_S = 0.005

    def __init__(self) -> None:
        self._kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._runs = False

    def add(self, kept: Kept) -> None:
        with self._lock:
            self._kept.add(kept)
            if not self._runs:
                # Not `threading.Thread`: an interrupt in its `start` leaves half a thread. If one
                # hits us between these two lines there are two threads for a while, no harm done.
                _thread.start_new_thread(self._run, ())
                self._runs = True

    def _run(self) -> None:
        pause = threading.Event()
        while self._look():
            pause.wait(self.INTERVAL_S)

    def _look(self) -> bool:
        with self._lock:
            kept = list(self._kept)
            self._kept.clear()  # first: who gives its turn back may take it again at once
        still_kept = [each for each in kept if _is_kept(each)]
        with self._lock:
            self._kept.update(still_kept)
            if not self._kept:
                self._runs = False
            return bool(self._kept)


def _is_kept(kept: Kept) -> bool:
    try:
        return kept.look()
    except Exception:  # whatever it is, the other turns are looked after
        logger.exception("a turn that is kept cannot be looked after")
        return False


keeper = Keeper()


def _start_afresh() -> None:
    """In a forked child the thread is gone, and the turns are the parent's."""
    keeper.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_start_afresh)
