"""What a queue may delete, in whole segments, oldest first.

A classic queue with groups lets go of what all of them have settled; if it has limits of retention,
they say how much of that is kept for replay. Without groups nothing was settled, and the limits
alone count, as they do for a stream. So deletion never passes what a classic group still needs,
whatever the limits say; nor, where an archive has a say (`archived.py`), what is not verified in
it.
"""

from __future__ import annotations

from typing import Final

from tailrace.log.cuts import start_now
from tailrace.log.options import Retention
from tailrace.log.retention import VacuumReport
from tailrace.log.staging import sweep
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.handles import QueueLog
from tailrace.queue.looking import Look
from tailrace.queue.settings import QueueSettings

__all__ = ["archived_floor", "awaits_groups", "drop_archived", "floor_of", "limits_of", "vacuum"]

_NOTHING_IS_KEPT: Final = Retention(max_bytes=0)


def floor_of(look: Look, settings: QueueSettings) -> int | None:
    """The lowest offset that a group of a classic queue has not settled; `None` if no group has a
    say. It only rises, so what is read here is never too high when it counts."""
    if settings.type == "stream":
        return None
    found = [
        look.look_at(settings, group_id).state.committed
        for group_id in look.group_ids(settings.name)
    ]
    return min(found, default=None)


def awaits_groups(look: Look, settings: QueueSettings) -> bool:
    """Whether a queue has tasks that nobody has begun with: the first group is to find them all."""
    return settings.type != "stream" and not look.group_ids(settings.name)


def archived_floor(look: Look, settings: QueueSettings, start: int) -> int | None:
    """Below which offset the archive lets go of a log that starts there; `None` if it has no say.
    It only rises, unless somebody begins another archive."""
    note = ArchiveNote.load(look.fs, look.layout, settings.name)
    return None if note is None else note.floor(settings.incarnation, start)


def limits_of(settings: QueueSettings, floor: int | None) -> Retention:
    """What is kept of what groups have settled, or of all."""
    if floor is not None and not settings.retention:
        return _NOTHING_IS_KEPT
    return settings.retention


def vacuum(look: Look, settings: QueueSettings, log: QueueLog) -> VacuumReport:
    floor = floor_of(look, settings)
    retention = limits_of(settings, floor)
    sweep(look.fs, log._folder, look.clock.wall_ms())  # what writers of much at once have left
    start = start_now(log)
    return log.let_go(retention, _lower(floor, archived_floor(look, settings, start)), start)


def drop_archived(look: Look, settings: QueueSettings, log: QueueLog) -> VacuumReport:
    """Delete what is verified in the archive, and needed by no group, whatever is to be kept."""
    note = ArchiveNote.load(look.fs, look.layout, settings.name)
    if note is None or note.incarnation != settings.incarnation or awaits_groups(look, settings):
        return VacuumReport(0, 0, log.start_offset)
    start = start_now(log)
    floor = _lower(floor_of(look, settings), note.verified_of(start))
    return log.let_go(_NOTHING_IS_KEPT, floor, start)


def _lower(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)
