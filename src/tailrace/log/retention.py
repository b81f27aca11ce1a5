"""Which segments may go.

Whole segments, oldest first, and the first one that has to stay ends it. A segment may go when all
of it is below the log start offset, or older than `max_age` by its newest record, or when the log
keeps at least `max_bytes` or `max_records` without it. A record with a timestamp in the future
therefore holds its segment, and those behind it, until that time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import FileSystem
from tailrace.log.options import Retention
from tailrace.log.segments import Catalog, remove_segment
from tailrace.log.sidefiles import side_path

__all__ = ["VacuumReport", "count_expired", "delete_before", "deleting"]


class VacuumReport(NamedTuple):
    """What a vacuum removed."""

    segments: int
    bytes: int
    start_offset: int


def count_expired(
    catalog: Catalog,
    extents: Extents,
    end_offset: int,
    start_offset: int,
    retention: Retention,
    now_ms: int,
    below: int | None = None,
) -> int:
    """How many segments from the front may go, of those that are all below an offset if there is
    one. All of them means: the active one too.

    Only those that may go, and the first that may not, are looked at.
    """
    kept_bytes = extents.bytes
    kept_records: int | None = None  # unless they have to be counted
    for i, extent in enumerate(extents):
        bound = extents[i + 1].base if i + 1 < len(extents) else end_offset
        kept_bytes -= extent.size
        if kept_records is not None:
            kept_records -= catalog.records(extent, bound)
        elif retention.max_records is not None and end_offset - bound >= retention.max_records:
            kept_records = _count_records(catalog, extents[i + 1 :], end_offset)
        expired = (
            bound <= start_offset
            or (retention.max_bytes is not None and kept_bytes >= retention.max_bytes)
            or (
                retention.max_records is not None
                and kept_records is not None
                and kept_records >= retention.max_records
            )
            or (
                retention.max_age_ms is not None
                and now_ms - catalog.max_timestamp(extent) > retention.max_age_ms
            )
        )
        if not expired or (below is not None and bound > max(below, start_offset)):
            return i
    return len(extents)


def _count_records(catalog: Catalog, extents: Extents, end_offset: int) -> int:
    """They may be fewer than the offsets, never more."""
    bounds = [*(extent.base for extent in extents), end_offset][1:]
    return sum(catalog.records(*pair) for pair in zip(extents, bounds, strict=True))


def delete_before(
    catalog: Catalog, doomed: dict[Extent, int], start_offset: int, is_same: Callable[[], bool]
) -> VacuumReport:
    """Delete the segments that are `doomed` once the log starts at an offset, if it does: those
    that were just let go, and what others left who were killed while they did this. Somebody else
    may be at it now. What is deleted is doomed no more.

    It needs no turn, so others may go on meanwhile, and one of them may have put segments of the
    same names in front of the log since (`prepending.py`). That takes this lock, and `is_same`
    tells: then nothing is deleted before the next turn has shown what is doomed still.
    """
    if not doomed:
        return VacuumReport(0, 0, start_offset)
    with deleting(catalog.fs, catalog.folder):
        if not is_same():
            return VacuumReport(0, 0, start_offset)
        return _delete(catalog, doomed, start_offset)


@contextlib.contextmanager
def deleting(fs: FileSystem, folder: str) -> Iterator[None]:
    """Nobody else deletes segments, or puts some in front."""
    lock = fs.lock(side_path(folder, "lock.deletion"))
    try:
        lock.acquire()
        yield
    finally:
        lock.close()


def _delete(catalog: Catalog, doomed: dict[Extent, int], start_offset: int) -> VacuumReport:
    fs, folder = catalog.fs, catalog.folder
    deleted: list[Extent] = []
    failure: OSError | None = None
    for extent in sorted(doomed.copy()):
        if doomed.get(extent, start_offset + 1) > start_offset:
            continue
        try:
            was_there = remove_segment(fs, folder, extent.base)
        except OSError as error:  # the others may go all the same
            failure = failure or error
            continue
        doomed.pop(extent, None)
        catalog.forget(extent.base)
        if was_there:
            deleted.append(extent)
    if deleted:
        fs.sync_dir(folder)
    if failure is not None:
        raise failure
    return VacuumReport(len(deleted), sum(extent.size for extent in deleted), start_offset)
