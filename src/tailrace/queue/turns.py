"""A group's turn: who has it is alone, among the threads of this process and among processes.

Between processes it is a turn as logs have it (`log/turn.py`): who goes from claim to claim and
finds nobody else keeps it meanwhile, so that nothing has to be locked, looked up or unlocked; who
waits asks for it by the group's board.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tailrace.errors import Locked, TailraceError
from tailrace.log.board import ATTENTION, Board
from tailrace.log.fs import FileSystem
from tailrace.log.turn import Turn as ProcessTurn
from tailrace.log.turn import keeper
from tailrace.queue.closing import is_amid_call

if TYPE_CHECKING:
    from tailrace.queue.group import Group

__all__ = ["Turn", "turn_of"]

_reopening = threading.Lock()


class Turn:
    """`with group._turn:` for as short as possible: everybody else waits."""

    __slots__ = ("__weakref__", "_board", "_group", "_memory", "_processes", "_seen")

    def __init__(self, group: Group[Any]) -> None:
        fs, folder = group.files.fs, group.files.folder
        self._group = group
        self._board = Board(fs, folder)
        self._memory = self._board.memory
        self._processes = ProcessTurn(fs, folder, self._board, group.files.mode)
        self._seen = (0, 0)  # how far the journal was, when the keeper looked last

    def __enter__(self) -> None:
        group, turn = self._group, self
        group.files.check()  # first: if the queue was deleted, that is what one is told
        if group._closed or group._is_deleted or group._is_inherited:
            turn = self._revived()
        mutex = group._mutex
        if mutex._is_owned():  # type: ignore[attr-defined]
            # Turns are not nested. Either it is still under way, and has been interrupted; or a
            # signal handler's exception (Ctrl-C) came where nothing could be tidied up.
            if is_amid_call():
                raise Locked(
                    f"the group {group.id!r} is in the middle of a call of this thread, which a "
                    "signal handler or a finalizer has interrupted; close consumers or the store "
                    "there, or set a flag, and do the rest after that call"
                )
            turn.recover()
        mutex.acquire()
        try:
            if group._closed or group._is_deleted:
                group.check_open()
            if group._is_stale or not turn._processes.held:
                turn._take()
        except BaseException as error:
            mutex.release()
            if isinstance(error, TailraceError | OSError):
                group.files.check()  # its files may have gone with the queue, just now
            raise

    def _revived(self) -> Turn:
        """That of a forked child, which opens the group anew; `Closed` if there is nothing to."""
        group = self._group
        group.check_open()
        with _reopening:
            if group._is_inherited:
                group._open()
        return group._turn

    def _take(self) -> None:
        """Have the turn, and know what others have done."""
        processes, group = self._processes, self._group
        try:
            if not processes.held:
                processes.take()
                self._board.begin()
            if group._is_stale or group._journal.has_news:
                processes.disturbed()
                group.begin()
            elif not processes.shares:
                self._seen = group._journal.mark
                keeper.add(self)
        except BaseException:
            group._is_stale = True
            self._give()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        group = self._group
        turn = group._turn  # the one that began: see `_revived`
        processes = turn._processes
        if error is not None and not isinstance(error, TailraceError):
            group._is_stale = True  # perhaps between writing and doing
            processes.disturbed()
        try:
            if processes.shares or turn._memory[ATTENTION]:
                turn._give()
        finally:
            group._mutex.release()
        if isinstance(error, TailraceError | OSError):
            group.files.check()  # likewise

    def _give(self) -> None:
        group = self._group
        if not group._is_stale:
            self._board.cursor = group.state.cursor
        self._board.end()
        self._processes.give()

    def foresee(self, prepare: Callable[[int], None]) -> None:
        """Before a turn that is not ours yet: do what nobody has to wait for. `prepare` gets the
        cursor that the group will have then, or one that it has had."""
        group = self._group
        if self._processes.held or group._is_stale or group._is_inherited:
            return
        mutex = group._mutex
        if mutex._is_owned() or not mutex.acquire(blocking=False):  # type: ignore[attr-defined]
            return
        try:
            if not group._closed and not group._is_deleted:
                prepare(self._board.cursor)
        finally:
            mutex.release()

    def look(self) -> bool:
        """Give the turn back if it is wanted or idle; true while it is kept. The keeper asks."""
        group, processes = self._group, self._processes
        if not group._mutex.acquire(blocking=False):
            return True  # somebody has it, and looks when it is over
        try:
            if group.closed or not processes.held:
                return False
            mark = group._journal.mark
            if mark != self._seen and not self._memory[ATTENTION]:
                self._seen = mark
                return True
            processes.disturbed()
            self._give()
            return False
        finally:
            group._mutex.release()

    def recover(self) -> None:
        """Give back what this thread has of a turn that was broken off."""
        group = self._group
        group._is_stale = True
        self._give()
        while group._mutex._is_owned():  # type: ignore[attr-defined]
            group._mutex.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While the group is being opened: no other process has a turn."""
        self._processes.take()
        try:
            yield
        finally:
            self._processes.give()

    def close(self) -> None:
        """Let go of it, and of the files."""
        self._processes.close()
        self._board.close()


@contextlib.contextmanager
def turn_of(fs: FileSystem, folder: str) -> Iterator[None]:
    """Have the turn of a group that one has not opened; `FileNotFoundError` if there is none."""
    board = Board(fs, folder)
    turn = ProcessTurn(fs, folder, board, "shared")
    try:
        turn.take()
        turn.lock.check_in_place()  # else the group was deleted meanwhile
        yield
    finally:
        turn.close()
        board.close()


def _start_afresh() -> None:
    """In a forked child: another thread of the parent may have had the lock."""
    global _reopening
    _reopening = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
