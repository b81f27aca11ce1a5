"""How what a group has written to its journal gets to the disk.

In a `sync` queue whoever settles waits for it. In an `async` one the thread that flushes the log
does so with the journals of this process's groups, too, and nothing if nobody has written. Claims
need no sync; they get one with the rest.

If the journal cannot be synced, what it says is written anew, as a snapshot: the old pages may be
lost, and asking again would not tell.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tailrace import hooks
from tailrace.errors import Closed, OutcomeUnknown

if TYPE_CHECKING:
    from tailrace.queue.group import Group

__all__ = ["finish", "flush", "wait"]


def wait(group: Group[Any], mark: tuple[int, int]) -> None:
    """Without the turn: return when what was written before the mark is on the disk."""
    try:
        _observe(group, group._journal.wait_durable(mark))
    except OSError as error:
        if group._is_deleted:
            group.check_open()
        _report(group, error)
        try:
            with group._turn:
                if group._journal.generation <= mark[0]:  # else another thread has done it
                    group._snapshot()
        except (OSError, Closed) as again:
            raise OutcomeUnknown(
                f"{group.files.folder}: the journal cannot be made durable ({again}). The "
                "operation counts now, but may not survive a power cut"
            ) from again


def flush(group: Group[Any]) -> None:
    """In the thread of the log: sync what was written, if anything was.

    Takes no turn, and asks for no settings: who has them may be waiting for this thread to end. So
    the snapshot that a failure calls for is left to the next one who writes, or to the thread of
    the store, which comes soon. It is asked for again until there is one.
    """
    journal = group._journal
    if not journal.is_at_risk:
        try:
            _observe(group, journal.flush())
            return
        except OSError as error:
            _report(group, error)
    group._compact_at = -1
    group.files.note_dropped()


def finish(group: Group[Any]) -> None:
    """With the turn, when it may as well take a while: the same, whatever it takes."""
    try:
        _observe(group, group._journal.flush())
    except OSError as error:
        _report(group, error)
        group._snapshot()


def _observe(group: Group[Any], took_s: float) -> None:
    if took_s:
        hooks.observe("fsync_seconds", [took_s], group.queue, group.id)


def _report(group: Group[Any], error: OSError) -> None:
    group._tell_of(logging.ERROR, "cannot sync the journal: %s", error)
