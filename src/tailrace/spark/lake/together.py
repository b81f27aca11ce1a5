"""What a queue holds and what was archived of it, as one table: no row twice, and none missing.

Offsets that the archive has are read from its files, which never change; the others from the log.
The manifest is loaded after the look at where the log starts. Who deletes what is archived does so
when the manifest has it; so whatever is below that start, and not in the manifest, is lost.

What is deleted after the plan was made, the task that misses it finds in the archive, too, if it
was archived before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.errors import ConfigError, Corrupt, OffsetOutOfRange
from tailrace.log.fs import OsFileSystem
from tailrace.queue.archived import archive_folder
from tailrace.queue.settings import QueueSettings
from tailrace.spark.columns import OURS, Decoder, Projection, RowFilter, time_of
from tailrace.spark.lake.manifest import Manifest
from tailrace.spark.lake.reading import first_at, read_file, within
from tailrace.spark.lake.verify import is_of
from tailrace.spark.planning import Place, Range, cut, lost, next_readable, reachable, unseen

if TYPE_CHECKING:
    from tailrace.log.log import Log
    from tailrace.spark.options import SourceOptions

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["Whole", "archive_of", "find_whole", "read"]

_FS: Final = OsFileSystem()
# Which columns of an archive a column of the table is made of.
_MADE_OF: Final = {
    "key": "key",
    "value": "value",
    "timestamp": "timestamp",
    "headers": "headers",
    "topic": "topic",
    "routing_key": "routing_key",
    "expires_at": "expires_at",
}


def archive_of(place: Place, queue: str, given: str | dict[str, str] | None) -> str | None:
    """The folder of a queue's archive: as it was given, or as the queue itself knows; `None` if
    nobody does."""
    if isinstance(given, str):
        return archive_folder(given)
    if given is not None and queue in given:
        return archive_folder(given[queue])
    return place.archive(queue)


def find_whole(
    place: Place, queue: QueueSettings, options: SourceOptions, log: Log | None
) -> Whole | None:
    """`None` if nobody knows of an archive of it: of several queues, all need not have one."""
    folder = archive_of(place, queue.name, options.archive)
    if folder is not None:
        return Whole(folder, queue, options, log)
    if len(options.queues) != 1:
        return None
    raise ConfigError(
        f"archive: nobody knows where that of {queue.name!r} is; name its folder: "
        '.option("archive", "archive/orders")'
    )


class Whole:
    """A queue's log, if it has one yet, and its archive as it is now. Of one plan."""

    def __init__(
        self, folder: str, queue: QueueSettings, options: SourceOptions, log: Log | None
    ) -> None:
        self._log = log
        self._queue = queue
        self._options = options
        self._live = 0 if log is None else log.start_offset  # first: see above
        self._manifest = Manifest.load(_FS, folder)
        self._manifest.origin.check_is(queue.name, queue.incarnation, folder)
        self._ranges = self._manifest.ranges()
        if log is not None and self.end_offset > log.end_offset:
            raise ConfigError(
                f"archive: {folder} has offsets up to {self._ranges[-1][1]}, and the log of "
                f"{queue.name!r} ends at {log.end_offset}: it went back, as after a backup was "
                "restored, and gives offsets once more. Read them one by one"
            )
        if not is_of(_FS, self._manifest, log, self.end_offset):
            raise ConfigError(
                f"archive: {folder} has other messages than the log of {queue.name!r} at the same "
                "offsets: one of them went back, as after a backup was restored, and gave offsets "
                "once more. Read them one by one, or name the folder of the log's own archive"
            )

    @property
    def start_offset(self) -> int:
        starts = [first for first, _ in self._ranges[:1]]
        if self._log is not None:
            starts.append(self._live)
        return min(starts, default=0)

    @property
    def end_offset(self) -> int:
        ends = [last for _, last in self._ranges[-1:]]
        if self._log is not None:
            ends.append(self._log.end_offset)
        return max(ends, default=0)

    def offset_at(self, timestamp: int) -> int:
        archived = first_at(self._manifest, timestamp)
        found = [] if archived is None else [archived]
        if self._log is not None:
            found.append(self._log.offset_at(timestamp))
        return min(found, default=self.end_offset)

    def ranges(self, first: int, last: int, split_bytes: int) -> Iterator[Range]:
        """What tasks read, of about this size."""
        position = first
        for low, high in [*self._ranges, (last, last)]:
            low, high = max(low, first), min(high, last)
            if position < low:
                yield from self._of_log(position, min(low, last), split_bytes)
            if low < high:
                yield from self._of_archive(low, high, split_bytes)
            position = max(position, high)

    def _of_log(self, first: int, last: int, split_bytes: int) -> Iterator[Range]:
        live = max(first, min(self._live, last)) if self._log is not None else last
        if first < live and self._options.fail_on_loss:
            raise lost(
                OffsetOutOfRange(
                    f"offsets {first} to {live - 1} of {self._queue.name!r} are neither in its log "
                    f"nor in {self._manifest.folder}"
                ),
                "retention has deleted",
            )
        if self._log is not None and live < last:
            start, parts = self._cut(self._log, live, last, split_bytes)
            if live < start:  # it has moved on: the task looks into the archive
                yield self._range(live, min(start, last), 0)
            for part in parts:
                yield part._replace(archive=self._manifest.folder)

    def _cut(self, log: Log, first: int, last: int, split_bytes: int) -> tuple[int, list[Range]]:
        """What the log has of a range now, and where that begins."""
        while True:
            start = max(log.start_offset, first)
            try:
                if start >= last:
                    return start, []
                return start, list(cut(log, self._queue, start, last, split_bytes))
            except (OffsetOutOfRange, FileNotFoundError):  # deleted just now
                if log.start_offset <= start:
                    raise

    def _of_archive(self, first: int, last: int, split_bytes: int) -> Iterator[Range]:
        rows = self._options.rows
        for step in self._manifest.within(first, last):
            low, high = max(step.first, first), min(step.last, last)
            for file in step.files:
                if rows.since_ms is not None and file.last_ms < rows.since_ms:
                    continue
                if rows.until_ms is not None and file.first_ms >= rows.until_ms:
                    continue
                count = min(-(-file.size // split_bytes), high - low)
                bounds = [low + (high - low) * number // count for number in range(count + 1)]
                for number in range(count):
                    size = file.size // count
                    yield self._range(bounds[number], bounds[number + 1], size, file.path)

    def _range(self, first: int, last: int, size: int, file: str = "") -> Range:
        queue = self._queue
        return Range(queue.name, queue.incarnation, first, last, size, self._manifest.folder, file)


# --- in a task ------------------------------------------------------------------------------


def read(
    place: Place, part: Range, projection: Projection, rows: RowFilter, *, fail_on_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, of the log or of a file of the archive."""
    archived = _Archived(part.queue, projection, rows)
    if part.file:
        yield from _of_file(archived, part, part.file, fail_on_loss=fail_on_loss)
        return
    decoder = Decoder(part.queue, projection, rows)
    decoder.track()
    position = part.first
    with place.log(part.queue, part.incarnation) as log:
        if log is None:
            raise unseen(place.folder(part.queue))
        last = reachable(log, part.queue, part.last, fail_on_loss=fail_on_loss)
        while position < last:
            try:
                decoder.position = position
                yield from decoder.read(log, position, last)
                return
            except Corrupt as error:
                position = next_readable(error, decoder.position or 0, fail_on_loss=fail_on_loss)
            except OffsetOutOfRange as error:
                position = decoder.position or 0
                manifest = Manifest.load(_FS, part.archive)
                upto = min(manifest.reaches(position), last, max(error.low, position))
                if upto == position:
                    position = next_readable(error, position, fail_on_loss=fail_on_loss)
                    continue
                for step in manifest.within(position, upto):
                    wanted = part._replace(first=position, last=upto)
                    for file in step.files:
                        yield from _of_file(archived, wanted, file.path, fail_on_loss=fail_on_loss)
                position = upto


def _of_file(
    decoder: _Archived, part: Range, file: str, *, fail_on_loss: bool
) -> Iterator[pa.RecordBatch]:
    try:
        yield from decoder.of_file(os.path.join(part.archive, file), part.first, part.last)
    except Corrupt as error:
        if fail_on_loss:
            raise lost(error, "cannot be read") from error


class _Archived(Decoder):
    """Makes the same of rows of an archive as of those of a log."""

    def __init__(self, queue: str, projection: Projection, rows: RowFilter) -> None:
        super().__init__(queue, projection, rows)
        wanted = {*projection.names, *rows.needs}
        self._needed = ["offset", *(_MADE_OF[name] for name in _MADE_OF if name in wanted)]

    def of_file(self, path: str, first: int, last: int) -> Iterator[pa.RecordBatch]:
        for rows in read_file(path, self._needed, first, last):
            kept = within(rows, first, last)
            if kept.num_rows:
                made = self._make(kept)
                if made.num_rows:
                    yield made

    def _column(self, name: str, batch: pa.RecordBatch) -> Any:
        match name:
            case "key":
                key: Any = batch.column("key")
                return pc.if_else(pc.equal(pc.binary_length(key), 0), None, key)
            case "expires_at":
                return time_of(batch.column(name).view(pa.int64()))
            case "topic" | "routing_key":
                return batch.column(name)
            case "headers":
                return self._headers(_without_ours(batch.column("headers")))
            case _:
                return super()._column(name, batch)


def _without_ours(lists: Any) -> Any:
    """Without the headers that are columns of their own, or of no use."""
    offsets = lists.offsets
    pairs = lists.values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())
    names, _ = pairs.flatten()
    kept = pc.invert(pc.is_in(names, pa.array(OURS, pa.string())))
    before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(kept.cast(pa.int32()))])
    moved = before.take(pc.subtract(offsets, offsets[0]))
    return pa.ListArray.from_arrays(moved, pairs.filter(kept))
