"""What a queue may delete, in whole segments, oldest first.

A classic queue with groups lets go of what all of them have settled; if it has limits of retention,
they say how much of that is kept for replay. Without groups nothing was settled, and the limits
alone count, as they do for a stream. So deletion never passes what a classic group still needs,
whatever the limits say.
"""

from __future__ import annotations

from typing import Final

from tailrace.log.options import Retention
from tailrace.log.retention import VacuumReport
from tailrace.log.staging import sweep
from tailrace.queue.handles import QueueLog
from tailrace.queue.looking import Look
from tailrace.queue.settings import QueueSettings

__all__ = ["floor_of", "limits_of", "vacuum"]

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


def limits_of(settings: QueueSettings, floor: int | None) -> Retention:
    """What is kept of what groups have settled, or of all."""
    if floor is not None and not settings.retention:
        return _NOTHING_IS_KEPT
    return settings.retention


def vacuum(look: Look, settings: QueueSettings, log: QueueLog) -> VacuumReport:
    floor = floor_of(look, settings)
    retention = limits_of(settings, floor)
    sweep(look.fs, log._folder, look.clock.wall_ms())  # what writers of much at once have left
    return log.let_go(retention, floor)
