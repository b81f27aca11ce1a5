"""A range of a log as Parquet files in the staging folder: what one task does.

Rows come from the log a batch at a time, and go to a file for each date or hour that they are of.
What is waiting to become a row group is bounded, all files together, and so is how many files are
open: if a range has more dates or hours than that, it is read again for the others.

Files are zstd; values and offsets have no dictionary, which would cost time and save nothing, and
neither have keys of which few come again.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from tailrace.spark.lake.files import Sink
from tailrace.spark.lake.manifest import ArchivedFile, Origin
from tailrace.spark.lake.rows import by_time, milliseconds, read_rows, schema_of

if TYPE_CHECKING:
    from tailrace.log.fs import FileSystem
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["Piece", "Staged", "options_for", "remove", "write"]

GROUP_BYTES: Final = 32 << 20  # of a row group, before it is compressed
GROUP_ROWS: Final = 1 << 20
WAITING_BYTES: Final = 96 << 20  # of all that wait to be one
MOST_FILES: Final = 32  # that are open at once
_ENDING: Final = ".staged"  # of half a file, which a pattern like `**/*.parquet` must not find
MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1

_SAMPLE: Final = 4096  # rows, by which the keys of a file are judged

_DICTIONARIES: Final = ["topic", "routing_key", "headers.list.element.key"]
_ENCODINGS: Final = dict.fromkeys(("offset", "timestamp", "timestamp_ms"), "DELTA_BINARY_PACKED")
_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "data_page_size": 2 << 20,  # fewer calls of the compressor: values take a fifteenth less time
    "write_statistics": [
        *("offset", "timestamp", "timestamp_ms", "expires_at"),
        *("key", "topic", "routing_key"),
    ],
}


def options_for(rows: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    """How pyarrow is to write a file that begins with these rows."""
    keys = rows.column("key").slice(0, _SAMPLE).drop_null()
    if 2 * len(keys.unique()) > len(keys):
        encodings = {**_ENCODINGS, "key": "DELTA_LENGTH_BYTE_ARRAY"}
        return {**_OPTIONS, "use_dictionary": _DICTIONARIES, "column_encoding": encodings}
    return {**_OPTIONS, "use_dictionary": ["key", *_DICTIONARIES], "column_encoding": _ENCODINGS}


@dataclass(frozen=True)
class Piece:
    """Offsets `first <= o < last`, which take about so many bytes in the log. Picklable."""

    first: int
    last: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.first:020d}-{self.last:020d}.parquet"


@dataclass(frozen=True)
class Staged:
    """What a task has made of a piece: each file, and where in the staging folder it is."""

    piece: Piece
    files: tuple[tuple[str, ArchivedFile], ...]


def write(fs: FileSystem, log: Log, origin: Origin, piece: Piece, staging: str) -> Staged:
    """All rows that the log has of a piece, in files that are on the disk. If it fails, none is
    left."""
    files: list[tuple[str, ArchivedFile]] = []
    done: set[str] = set()
    try:
        while True:
            writing = _Writing(fs, origin, piece, staging, done)
            try:
                schema = schema_of(origin.format)
                for rows in read_rows(log, origin.queue, piece.first, piece.last, schema):
                    writing.take(rows)
            except BaseException:
                writing.abandon()
                raise
            files += writing.finish()
            done |= writing.folders
            if not writing.has_more:
                return Staged(piece, tuple(files))
    except BaseException:
        remove(fs, [path for path, _ in files])
        raise


def remove(fs: FileSystem, paths: list[str]) -> None:
    """Files that are of no use, as far as they are there; what cannot be removed now goes when the
    next one archives."""
    for path in paths:
        with contextlib.suppress(OSError):
            fs.unlink(path)


class _Writing:
    """One reading of a piece. Not thread-safe."""

    def __init__(
        self, fs: FileSystem, origin: Origin, piece: Piece, staging: str, done: set[str]
    ) -> None:
        self._fs = fs
        self._origin = origin
        self._piece = piece
        self._staging = staging
        self._done = done
        self._chosen: set[str] = set()
        self._open: dict[str, _Parquet] = {}
        self._waiting = 0
        self.has_more = False

    @property
    def folders(self) -> set[str]:
        return set(self._open)

    def take(self, rows: pa.RecordBatch) -> None:
        for folder, part in by_time(rows, self._origin.partition_by, self._is_chosen):
            file = self._open.get(folder)
            if file is None:
                path = os.path.join(self._staging, uuid.uuid4().hex + _ENDING)
                target = os.path.join(folder, self._piece.name)
                schema = rows.schema.with_metadata(self._notes())
                file = self._open[folder] = _Parquet(self._fs, path, target, schema)
            self._waiting += file.take(part)
            while self._waiting > WAITING_BYTES:
                self._waiting -= max(self._open.values(), key=lambda each: each.waiting).flush()

    def _is_chosen(self, folder: str) -> bool:
        """Whether it is written in this reading: as many are as files may be open."""
        if folder in self._chosen:
            return True
        if folder in self._done:
            return False
        if len(self._chosen) >= MOST_FILES:
            self.has_more = True
            return False
        self._chosen.add(folder)
        return True

    def _notes(self) -> dict[str, str]:
        """What a file says of itself."""
        origin, piece = self._origin, self._piece
        return {
            "tailrace.queue": origin.queue,
            "tailrace.incarnation": origin.incarnation,
            "tailrace.first": str(piece.first),
            "tailrace.last": str(piece.last),
        }

    def finish(self) -> list[tuple[str, ArchivedFile]]:
        try:
            return [(file.path, file.finish()) for file in self._open.values()]
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()
        remove(self._fs, [file.path for file in self._open.values()])


class _Parquet:
    """A Parquet file that is being written."""

    def __init__(self, fs: FileSystem, path: str, target: str, schema: pa.Schema) -> None:
        self.path = path
        self.waiting = 0
        self._target = target
        self._sink = Sink(fs, path)
        self._schema = schema
        self._writer: Any = None
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._waiting_rows = 0
        self._first_ms, self._last_ms = MAX_TIME, MIN_TIME

    def take(self, rows: pa.RecordBatch) -> int:
        """By how much more is waiting now."""
        before = self.waiting
        times = pc.min_max(milliseconds(rows)).as_py()
        self._first_ms = min(times["min"], self._first_ms)
        self._last_ms = max(times["max"], self._last_ms)
        self._batches.append(rows)
        self._rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self.waiting += rows.nbytes
        if self.waiting >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self.flush()
        return self.waiting - before

    def flush(self) -> int:
        """Make a row group of what is waiting; how much that was."""
        table = pa.Table.from_batches(self._batches, self._schema)
        if self._writer is None:
            sink: Any = self._sink
            self._writer = pq.ParquetWriter(sink, self._schema, **options_for(table))
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
        flushed, self.waiting, self._waiting_rows = self.waiting, 0, 0
        self._batches.clear()
        return flushed

    def finish(self) -> ArchivedFile:
        self.flush()
        self._writer.close()
        sink = self._sink
        sink.sync()
        size, crc = sink.size, sink.crc32c
        sink.close()
        return ArchivedFile(self._target, self._rows, size, crc, self._first_ms, self._last_ms)

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None and not self._sink.closed:
                self._writer.close()
        self._sink.close()
