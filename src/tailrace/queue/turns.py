"""A group's turn: who has it is alone, among the threads of this process and among processes."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.queue.group import Group

__all__ = ["Turn"]

_TRIES = 3
_reopening = threading.Lock()


class Turn:
    """`with group._turn:` for as short as possible: everybody else waits."""

    __slots__ = ("_group",)

    def __init__(self, group: Group[Any]) -> None:
        self._group = group

    def __enter__(self) -> None:
        group = self._group
        if group.closed or group._is_inherited:
            group.check_open()
            with _reopening:
                if group._is_inherited:
                    group._open()
        group.files.check()
        if group._mutex._is_owned():  # type: ignore[attr-defined]
            # Turns are not nested. A signal handler's exception (Ctrl-C) came where nothing could
            # be tidied up.
            self.recover()
        group._mutex.acquire()
        try:
            if group.closed:
                group.check_open()
            if not group._lock.acquire_now():
                _await(group)
            try:
                journal = group._journal
                if group._is_stale or journal.has_news:
                    group.begin()
            except BaseException:
                group._is_stale = True
                group._lock.release()
                raise
        except BaseException:
            group._mutex.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        group = self._group
        if error is not None and not isinstance(error, TailraceError):
            group._is_stale = True  # perhaps between writing and doing
        try:
            group._lock.release()
        finally:
            group._mutex.release()

    def recover(self) -> None:
        """Give back what this thread has of a turn that was broken off."""
        group = self._group
        group._is_stale = True
        group._lock.release()
        while group._mutex._is_owned():  # type: ignore[attr-defined]
            group._mutex.release()


def _await(group: Group[Any]) -> None:
    """Somebody has the lock, for moments mostly."""
    for _ in range(_TRIES):
        time.sleep(0)
        if group._lock.acquire_now():
            return
    group._lock.acquire()


def _start_afresh() -> None:
    """In a forked child: another thread of the parent may have had the lock."""
    global _reopening
    _reopening = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
