"""Is an archive what the log is? Each file is read back, and each row compared.

The checksum of a whole file tells that it is as it was written; the comparison, that what was
written is what the log has: the same offsets, times, keys, values and headers, no row more and none
less. What is read from the log is checked by its own checksums. Rows that the log has lost since,
which somebody has accepted, are in the archive alone: they are passed over.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.log.cuts import given_up
from tailrace.spark.lake.files import Source
from tailrace.spark.lake.manifest import ArchivedFile, Manifest, Origin, Step
from tailrace.spark.lake.reading import MOST_FILES, check_file, reading
from tailrace.spark.lake.rows import by_time, read_rows, schema_of

if TYPE_CHECKING:
    from tailrace.log.fs import FileSystem
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["is_of", "verify"]

_ROWS: Final = 1 << 16


def verify(fs: FileSystem, log: Log, folder: str, origin: Origin, step: Step) -> None:
    """`Corrupt` if the files of a step do not have just the rows that the log has of its range.
    What they have before that is not looked at: the log may begin inside of a step."""
    for file in step.files:
        check_file(fs, folder, file)
    lost = given_up(log, step.first, step.last)
    known = {os.path.dirname(file.path): file for file in step.files}
    folders = sorted(known) or [""]

    def is_compared(each: str) -> bool:
        """Now, and not with other files."""
        if each not in known:
            raise Corrupt(
                f"{folder}: the archive has no file of {each or 'the offsets'} "
                f"{step.first} to {step.last}, and the log has rows there",
                path=folder,
            )
        return each in readings

    for first in range(0, len(folders), MOST_FILES):
        chosen = folders[first : first + MOST_FILES]
        with contextlib.ExitStack() as stack:
            readings = {
                each: stack.enter_context(_Reading(fs, folder, known[each], step.first, lost))
                for each in chosen
                if each in known
            }
            schema = schema_of(origin.format)
            for rows in read_rows(log, origin.queue, step.first, step.last, schema):
                for each, part in by_time(rows, origin.partition_by, is_compared):
                    readings[each].compare(part)
            for reading in readings.values():
                reading.check_end()


def is_of(fs: FileSystem, manifest: Manifest, log: Log | None, end: int) -> bool:
    """Whether an archive is of a log that ends there, as far as its end and the newest row tell
    that both have: where a log went back and on, all from there on are others. What cannot be read
    tells nothing here; who verifies says what is wrong with it."""
    if manifest.steps and manifest.steps[-1].last > end:
        return False
    newest = next((step for step in reversed(manifest.steps) if step.files), None)
    if newest is None or log is None:
        return True
    schema = schema_of(manifest.origin.format)
    try:
        paths = [os.path.join(manifest.folder, file.path) for file in newest.files]
        row = _last_row(fs, max(paths, key=lambda path: _last_offset(fs, path))).cast(schema)
        offset = row.column("offset")[0].as_py()
        found = list(read_rows(log, manifest.origin.queue, offset, offset + 1, schema))
    except (Corrupt, OSError, OffsetOutOfRange, pa.ArrowException):
        return True
    return all(not each.num_rows or _same(each, row) for each in found)


def _last_offset(fs: FileSystem, path: str) -> int:
    """Of a file's rows, by the bounds of the last row group, whose first column it is."""
    source: Any = Source(fs, path)
    with contextlib.closing(source), pq.ParquetFile(source) as file:
        group = file.metadata.row_group(file.metadata.num_row_groups - 1)
    bounds: Any = group.column(0).statistics
    return bounds.max if bounds is not None and bounds.has_min_max else 0


def _last_row(fs: FileSystem, path: str) -> pa.RecordBatch:
    source: Any = Source(fs, path)
    with contextlib.closing(source), pq.ParquetFile(source) as file:
        table = file.read_row_group(file.metadata.num_row_groups - 1)
    [row] = table.slice(table.num_rows - 1).combine_chunks().to_batches()
    return row


class _Reading:
    """A file, compared with the log's rows as they come."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        file: ArchivedFile,
        first: int,
        lost: list[tuple[int, int]],
    ) -> None:
        self._path = os.path.join(folder, file.path)
        self._source: Any = Source(fs, self._path)
        self._first = first
        self._lost = lost
        self._batches = self._read()
        self._batch: pa.RecordBatch | None = None

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *exception: object) -> None:
        self._batches.close()
        self._source.close()

    def _read(self) -> Any:
        with reading(self._path), pq.ParquetFile(self._source) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                yield batch.filter(self._to_compare(batch.column("offset")))

    def _to_compare(self, offsets: Any) -> Any:
        kept = pc.greater_equal(offsets, self._first)
        for first, last in self._lost:
            kept = pc.and_(kept, pc.or_(pc.less(offsets, first), pc.greater_equal(offsets, last)))
        return kept

    def _next(self) -> pa.RecordBatch | None:
        """What has been read and not compared."""
        while self._batch is None or not self._batch.num_rows:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return None
        return self._batch

    def compare(self, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            batch = self._next()
            count = 0 if batch is None else min(batch.num_rows, rows.num_rows)
            if batch is None or not _same(batch.slice(0, count), rows.slice(0, count)):
                offset = rows.column("offset")[0].as_py()
                raise Corrupt(
                    f"{self._path} does not have what the log has, from about offset {offset} on",
                    path=self._path,
                )
            self._batch, rows = batch.slice(count), rows.slice(count)

    def check_end(self) -> None:
        batch = self._next()
        if batch is not None:
            offset = batch.column("offset")[0].as_py()
            raise Corrupt(
                f"{self._path} has rows that the log does not have, from offset {offset} on",
                path=self._path,
            )


def _same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return one.schema.equals(other.schema) and one.equals(other)
