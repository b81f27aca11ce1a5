"""Counting the batches of a region, and making the entries that they get in the segment's indexes.

`log.index` describes the indexes, and can add one batch at a time; this does the same for all the
batches that one read brought in.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tailrace.kernel.layout import MAX_SPAN, Tally, too_long
from tailrace.kernel.pure.codec import region_of, walk

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["tally"]


def tally(
    buf: Buffer,
    start: int,
    stop: int,
    *,
    position: int,
    base: int,
    next_offset: int,
    contiguous_from: int | None,
    last_indexed: int,
    unindexed_bytes: int,
    index_interval: int,
    next_timestamp: int,
    time_index_interval_ms: int,
) -> Tally:
    """Count the batches of a checked region, up to the first that cannot follow the one before it.

    That is one whose offset goes back, or leaves a gap at or behind `contiguous_from` in the
    segment, or is too far from the segment's `base` for an index. `position` and `next_offset` say
    where in the segment the region starts. The rest is the state of the two indexes: the relative
    offset of the last entry by offset (-1: there is none), the bytes since then, and the smallest
    timestamp that gets an entry by time.
    """
    offsets, positions = array("I"), array("I")
    timestamps, timestamp_offsets = array("q"), array("I")
    end, shift = start, position - start
    records = first_timestamp = max_timestamp = 0
    with region_of(buf, start, stop) as view:
        for _, size, offset, count, _, _, _, timestamp, _ in walk(view, start, stop):
            relative, position = offset - base, end + shift
            strict = contiguous_from is not None and position >= contiguous_from
            if offset < next_offset or (strict and offset > next_offset):
                break
            if not 0 <= relative <= MAX_SPAN - count:
                break
            if not records:
                first_timestamp = max_timestamp = timestamp
            elif timestamp > max_timestamp:
                max_timestamp = timestamp
            due = last_indexed < 0
            if not due:
                unindexed_bytes += size
                if unindexed_bytes >= index_interval:
                    unindexed_bytes, due = 0, True
            # An append or a scan that was interrupted may have made the entry already.
            if due and relative > last_indexed:
                if not 0 <= position < 1 << 32:
                    raise too_long(position)
                offsets.append(relative)
                positions.append(position)
                last_indexed = relative
            if timestamp >= next_timestamp:
                timestamps.append(timestamp)
                timestamp_offsets.append(relative)
                next_timestamp = timestamp + max(time_index_interval_ms, 1)
            records += count
            next_offset = offset + count
            end += size
    return Tally(
        end,
        next_offset,
        records,
        first_timestamp,
        max_timestamp,
        unindexed_bytes,
        (offsets.tobytes(), positions.tobytes()),
        (timestamps.tobytes(), timestamp_offsets.tobytes()),
    )
