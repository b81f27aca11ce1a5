"""A range of a log in pieces, for those who read it in parallel.

The files of segments are listed, and where a range begins or ends inside one its index is looked
into; no record is read. Pieces begin where batches do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.log.log import Log

__all__ = ["Cut", "cuts", "given_up", "sealed_end", "start_now"]


class Cut(NamedTuple):
    """Offsets `first <= o < last`, which take about so many bytes."""

    first: int
    last: int
    size: int


def cuts(log: Log, first: int, last: int, size: int) -> Iterator[Cut]:
    """Pieces of about this size in bytes, or smaller ones where segments are. They have every
    offset of the range up to the log's end: where a segment is missing, who reads them is to find
    that out. `OffsetOutOfRange` if the log does not reach back, or forward, to `first`."""
    view, first, last = log._range(first, last, None)
    catalog = log._observer.catalog
    if not view.extents and first < last:
        yield Cut(first, last, 1)
    bounds = [min(first, extent.base) for extent in view.extents[:1]]
    bounds += [*(extent.base for extent in view.extents[1:]), view.end]
    for extent, base, end in zip(view.extents, bounds, bounds[1:], strict=False):
        if end <= first or base >= last:
            continue
        is_whole = base >= first and end <= last
        if is_whole and extent.size <= size:
            yield Cut(base, end, extent.size)
            continue
        entries = catalog.facts(extent).offsets.entries()
        offsets = [offset for offset, _ in entries]
        positions = [position for _, position in entries]
        low, high = max(first, base), min(last, end)
        start = positions[max(bisect_left(offsets, low + 1) - 1, 0)] if entries else 0
        behind = bisect_left(offsets, high)
        stop = positions[behind] if behind < len(positions) else extent.size
        while low < high:
            index = bisect_left(positions, start + size)
            next_low, next_start = high, stop
            if index < len(positions) and offsets[index] < high:
                next_low, next_start = offsets[index], positions[index]
            yield Cut(low, next_low, max(next_start - start, 1))
            low, start = next_low, next_start


def sealed_end(log: Log) -> int:
    """Up to which offset nothing of a log changes any more: the last segment with records may be
    the one that is being written; and what an `async` log has not synced, a power cut may take
    from it."""
    view = log._observer.view()
    end = view.extents[-1].base if view.extents else view.start
    mark = log._observer.watermark()
    if mark is not None and log.flush_mode == "async":
        end = min(end, mark.durable)
    return max(end, view.start)


def given_up(log: Log, first: int, last: int) -> list[tuple[int, int]]:
    """Of a range, the offsets whose records are lost, which somebody has accepted."""
    log._observer.view()
    return [
        (max(gap.first, first), min(gap.next, last))
        for gap in log._observer.gaps.all()
        if gap.kind == "lost" and gap.acknowledged and gap.first < last and gap.next > first
    ]


def start_now(log: Log) -> int:
    """The first offset that can be read, whoever has deleted something: a handle that writes knows
    of others' deletions when it has its turn."""
    return log._observer.view().start
