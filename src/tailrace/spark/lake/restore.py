"""Bringing what was archived back to its queue, with the offsets that it had.

    a range of the archive → its files, checked → rows → batches in the log's staging folder
                           → segments, and the log starts there (`log/prepending.py`)

The last arrow is one step: everything is back, or nothing. Only that needs the turn to write, so
others go on with the log meanwhile. The rows are read in this process, some megabytes at a time.

A queue that never had a message takes those of any other. Whoever is killed in that may leave it
with another next offset, as if it had had some. So `.tailrace/restoring` of its log says before
whose they are, and up to where, and the same may be tried again.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow.compute

from tailrace.errors import ConfigError, NotWritten, OffsetOutOfRange
from tailrace.kernel import MAX_COUNT, TooLarge
from tailrace.kernel.arrow import Source
from tailrace.kernel.layout import MAX_SECTION
from tailrace.log.prepending import Front, Joint, joint_of, prepend
from tailrace.log.sidefiles import load_checked_json, side_path, store_checked_json
from tailrace.spark.batches import plan_batches
from tailrace.spark.lake.reading import check_file, first_at, in_order
from tailrace.spark.lake.rows import records_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.log.log import Log
    from tailrace.spark.lake.manifest import Manifest, Step

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["Bounds", "RestoreReport", "Wanted", "choose", "restore"]

_NOTE: Final = "restoring"
_COLUMNS: Final = ("offset", "value", "key", "timestamp", "headers")

T = TypeVar("T")
Progress = Callable[[int, int | None], object]


class Wanted(NamedTuple):
    """What a person asks for: offsets, or times, in milliseconds. `None` is all that there is."""

    start: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class Bounds(NamedTuple):
    """Which offsets come back, `first <= o < last`, and where to."""

    first: int
    last: int
    joint: Joint


class RestoreReport(NamedTuple):
    """What came back. `missing`: so many offsets of the range are in no file of the archive, or
    stay without a message between it and the next offset of a queue that had none."""

    first: int
    last: int
    records: int
    missing: int
    bytes: int
    segments: int


def choose(
    log: Log,
    manifest: Manifest,
    queue: str,
    incarnation: str,
    wanted: Wanted,
    *,
    force: bool = False,
) -> Bounds:
    """Which range fits. `ConfigError` or `OffsetOutOfRange` if none does. By `force` it may leave
    out for good what the archive has behind it."""
    joint, folder = joint_of(log), manifest.folder
    ranges = manifest.ranges()
    if not ranges:
        raise ConfigError(f"the archive in {folder} is empty")
    first, last = _asked_for(manifest, wanted, ranges[0][0])
    if last is None:
        last = joint.seam if joint.has_records else ranges[-1][1]
    _check_origin(log, manifest, queue, incarnation, joint)
    if joint.has_records and joint.seam <= ranges[0][0]:
        raise ConfigError(
            f"there is nothing to restore: {queue!r} starts at offset {joint.seam}, and the archive"
            f" in {folder} has nothing before it"
        )
    if joint.has_records and last != joint.seam:
        raise OffsetOutOfRange(
            f"{queue!r} starts at offset {joint.seam}, so what comes back has to end there, not at "
            f"{last}: --end {joint.seam}, or leave it out",
            offset=last,
            low=joint.start,
            high=joint.end,
        )
    reached = max((upto for low, upto in ranges if low < last), default=0)
    if reached < last and joint.has_records:
        raise OffsetOutOfRange(
            f"the archive in {folder} ends at offset {reached}, and {queue!r} starts at {last}: "
            "what is between is in neither. It can be restored into a queue without messages",
            offset=last,
            low=joint.start,
            high=joint.end,
        )
    last = min(last, reached)
    first = max(first, ranges[0][0])
    if first >= last:
        raise ConfigError(
            f"there is nothing to restore: the archive in {folder} has offsets "
            f"{', '.join(f'{low} to {high - 1}' for low, high in ranges)}, and {queue!r} "
            + (f"starts at {joint.seam}" if joint.has_records else "has no messages")
        )
    has_more = any(low < joint.end and high > last for low, high in ranges)
    if not joint.has_records and last < joint.end and has_more and not force:
        raise OffsetOutOfRange(
            f"{queue!r} goes on at offset {joint.end}, and what the archive has from {last} on "
            "could never come back after this: leave the end out, or say --force",
            offset=last,
            low=joint.start,
            high=joint.end,
        )
    return Bounds(first, last, joint)


def _asked_for(manifest: Manifest, wanted: Wanted, least: int) -> tuple[int, int | None]:
    first, last = wanted.start, wanted.end
    if wanted.since_ms is not None:
        found = first_at(manifest, wanted.since_ms)
        if found is None:
            raise ConfigError(f"the archive in {manifest.folder} has nothing from that time on")
        first = found
    if wanted.until_ms is not None:
        last = first_at(manifest, wanted.until_ms)
    return least if first is None else first, last


def _check_origin(log: Log, manifest: Manifest, queue: str, incarnation: str, joint: Joint) -> None:
    """Another queue's records may become those of one that never had any of its own."""
    if not joint.has_records:
        found = load_checked_json(log._fs, side_path(log._folder, _NOTE))
        if joint.end == 0 or found == _note_of(manifest, joint.end):  # an attempt was broken off
            return
    manifest.origin.check_is(queue, incarnation, manifest.folder)


def _note_of(manifest: Manifest, last: int) -> dict[str, Any]:
    origin = manifest.origin
    return {"queue": origin.queue, "incarnation": origin.incarnation, "last": last}


def restore(
    log: Log, manifest: Manifest, bounds: Bounds, progress: Progress | None = None
) -> RestoreReport:
    """Bring a range back. `Corrupt` names the file that is damaged, `NotWritten` if there is no
    room, and then everything is as it was."""
    first, last = bounds.first, bounds.last
    # What the first segment has below the start is not needed: it comes back by itself.
    limit = min(bounds.joint.first, last) if bounds.joint.has_records else last
    steps = list(manifest.within(first, min(last, limit)))
    total = sum(step.size for step in steps)
    is_empty = not bounds.joint.has_records
    note = side_path(log._folder, _NOTE)
    with Front(log, f"restore-{secrets.token_hex(8)}") as front:
        try:
            for rows, done in _ahead(_rows(log, manifest, steps, first, limit)):
                _stage(log, front, rows)
                if progress is not None:
                    progress(done, total)
            staged = front.finish()
            if not staged.seals and first < limit:
                if limit == last:
                    raise ConfigError(f"the archive in {manifest.folder} has no row of that range")
                first = limit  # all there is of it is the log's own
            if is_empty:
                store_checked_json(log._fs, note, _note_of(manifest, last))
        except OSError as error:
            raise NotWritten(f"{log.path}: nothing is restored: {error}") from error
        prepend(log, front, staged, first, last)
    with contextlib.suppress(OSError):  # it says nothing of a log that has records
        if is_empty:
            log._fs.unlink(note)
    start = staged.seals[0].base if staged.seals else first
    own = last - max(limit, first) if last > limit else 0  # of the log's own
    behind = max(bounds.joint.end - last, 0) if is_empty else 0
    return RestoreReport(
        start,
        last,
        staged.records + own,
        (limit - start - staged.records if staged.seals else 0) + behind,
        staged.size,
        len(staged.seals),
    )


def _rows(
    log: Log, manifest: Manifest, steps: Sequence[Step], first: int, last: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of a range, and how many bytes of files are read by then."""
    done = 0
    for step in steps:
        for file in step.files:
            check_file(log._fs, manifest.folder, file)
        read = 0
        for rows in in_order(manifest.folder, step, first, last, _COLUMNS):
            read += rows.num_rows
            yield rows, done + step.size * read // max(step.rows, 1)
        done += step.size


def _ahead(source: Iterator[T]) -> Iterator[T]:
    """The next is made in a thread while one is used: who decodes needs no lock of Python's."""
    with ThreadPoolExecutor(1, "tailrace-restore") as pool:
        coming = pool.submit(next, source, None)
        while (found := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield found


def _stage(log: Log, front: Front, rows: pa.RecordBatch) -> None:
    """As batches, of which each has offsets without a gap."""
    offsets, records = rows.column("offset"), records_of(rows)
    timestamps: Any = rows.column("timestamp")
    for start, stop in _runs(offsets):
        source = Source(records.slice(start, stop - start))
        base = offsets[start].as_py()
        for low, high in _plan(source, log.options.max_batch_bytes):
            draft = source.encode(timestamps[start + low].as_py(), log.options.codec, low, high)
            front.add(draft, base + low)


def _plan(source: Source, largest: int) -> list[tuple[int, int]]:
    """A record that was in a log once is never too large for another."""
    try:
        return plan_batches(source, largest)
    except TooLarge:
        return source.plan(MAX_COUNT, MAX_SECTION)


def _runs(offsets: Any) -> Iterator[tuple[int, int]]:
    """Where offsets follow one another, from row to row."""
    count = len(offsets)
    if not count:
        return
    if offsets[-1].as_py() - offsets[0].as_py() == count - 1:
        yield 0, count
        return
    steps = pc.subtract(offsets.slice(1), offsets.slice(0, count - 1))
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
    start = 0
    for stop in [*(each + 1 for each in breaks), count]:
        yield start, stop
        start = stop
