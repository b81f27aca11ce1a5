"""Which segments may go.

Whole segments, oldest first, and the first one that has to stay ends it. A segment may go when all
of it is below the log start offset, or older than `max_age` by its newest record, or when the log
keeps at least `max_bytes` or `max_records` without it. A record with a timestamp in the future
therefore holds its segment, and those behind it, until that time.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.log.options import Retention
from tailrace.log.segments import Catalog, Extent, list_segments, remove_segment, sealed_before

__all__ = ["VacuumReport", "count_expired", "delete_before"]


class VacuumReport(NamedTuple):
    """What a vacuum removed."""

    segments: int
    bytes: int
    start_offset: int


def count_expired(
    catalog: Catalog,
    extents: tuple[Extent, ...],
    end_offset: int,
    start_offset: int,
    retention: Retention,
    now_ms: int,
    below: int | None = None,
) -> int:
    """How many segments from the front may go, of those that are all below an offset if there is
    one. All of them means: the active one too."""
    if not extents:
        return 0
    bounds = [extent.base for extent in extents[1:]] + [end_offset]
    records = [0] * len(extents)
    if retention.max_records is not None:
        records = [catalog.records(*pair) for pair in zip(extents, bounds, strict=True)]
    kept_bytes = sum(extent.size for extent in extents)
    kept_records = sum(records)
    for i, extent in enumerate(extents):
        kept_bytes -= extent.size
        kept_records -= records[i]
        expired = (
            bounds[i] <= start_offset
            or (retention.max_bytes is not None and kept_bytes >= retention.max_bytes)
            or (retention.max_records is not None and kept_records >= retention.max_records)
            or (
                retention.max_age_ms is not None
                and now_ms - catalog.max_timestamp(extent) > retention.max_age_ms
            )
        )
        if not expired or (below is not None and bounds[i] > max(below, start_offset)):
            return i
    return len(extents)


def delete_before(catalog: Catalog, active: int, start_offset: int) -> VacuumReport:
    """Delete the segments before the active one that are all below the log start offset: those
    that were just let go, and what others left who were killed while they did this. Somebody else
    may be at it now."""
    fs, folder = catalog.fs, catalog.folder
    listed = [e for e in list_segments(fs, folder).extents if e.size and e.base < active]
    kept = set(sealed_before(tuple(listed), active, start_offset))
    deleted: list[Extent] = []
    failure: OSError | None = None
    for extent in listed:
        if extent in kept:
            break
        try:
            remove_segment(fs, folder, extent.base)
        except OSError as error:  # the others may go all the same
            failure = failure or error
            continue
        catalog.forget(extent.base)
        deleted.append(extent)
    if deleted:
        fs.sync_dir(folder)
    if failure is not None:
        raise failure
    return VacuumReport(len(deleted), sum(extent.size for extent in deleted), start_offset)
