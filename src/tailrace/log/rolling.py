"""The roll rule: when a segment has to end, whoever writes it.

The tail of a log folds it into numbers that each append compares with (`tail.py`). What is written
where nobody looks, to become segments behind the log (`staging.py`) or in front of it
(`prepending.py`), keeps to it as well: retention deletes whole segments, and an index is read at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.kernel import Draft
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.options import RELATIVE_OFFSET_MAX, LogOptions
from tailrace.log.scan import Facts

__all__ = ["POSITION_MAX", "index_room", "must_roll", "must_roll_before"]

POSITION_MAX: Final = 2**32 - 1  # a position in `.idx` has 32 bits


def must_roll(
    options: LogOptions, size: int, age_ms: int, offsets: int, room: Callable[[], int]
) -> bool:
    """May a segment not have all this in it? So many bytes, so much time since its first batch, and
    so many offsets from its base on. `room`, of its indexes, is asked last: it may have to look."""
    return (
        size > min(options.segment_bytes, POSITION_MAX)
        or age_ms > options.segment_age_ms
        or offsets - 1 > RELATIVE_OFFSET_MAX
        or room() < 0
    )


def index_room(options: LogOptions, offsets_size: int, times_size: int) -> int:
    """How many bytes of entries the fuller index has left, the next one not counted; and of those
    by time one is in reserve."""
    most = max(offsets_size + OffsetIndex.ENTRY.size, times_size + 2 * TimeIndex.ENTRY.size)
    return options.index_max_bytes - most


def must_roll_before(options: LogOptions, facts: Facts, draft: Draft, offset: int) -> bool:
    """Has a segment to end before a batch that is to have this offset? An empty one never."""
    return bool(facts.size) and must_roll(
        options,
        facts.size + draft.size,
        draft.max_timestamp - facts.first_timestamp,
        offset + draft.count - facts.base,
        lambda: index_room(options, facts.offsets.file_size, facts.times.file_size),
    )
