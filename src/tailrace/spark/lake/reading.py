"""Reading what is in an archive: its files, checked, and their rows in the order of their offsets.

The files of a step are of times, if the archive is partitioned, and each has its rows in order. In
a log whose clocks went back the offsets of two files may overlap; `in_order` merges them. A step
may have any number of files, so only some are open at once.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from tailrace.errors import Corrupt
from tailrace.kernel.layout import MAX_OFFSET
from tailrace.log.fs import FileSystem
from tailrace.queue.backup_files import checksum
from tailrace.spark.lake.rows import SCHEMA

if TYPE_CHECKING:
    from tailrace.spark.lake.manifest import ArchivedFile, Manifest, Step

pc: Any = pyarrow.compute  # its stubs know few of these calls
pq: Any = pyarrow.parquet

__all__ = ["MOST_FILES", "check_file", "first_at", "in_order", "read_file", "reading", "within"]

MOST_FILES: Final = 32  # that are open at once

# As the log has them: their times are numbers.
_READ: Final = SCHEMA.remove(SCHEMA.get_field_index("timestamp_ms")).set(
    SCHEMA.get_field_index("timestamp"), pa.field("timestamp", pa.int64())
)
_AT_ONCE: Final = 8 << 20  # bytes of rows, about
_MOST_ROWS: Final = 1 << 16


def check_file(fs: FileSystem, folder: str, file: ArchivedFile) -> None:
    """`Corrupt` unless the file has the bytes that the manifest says."""
    path = os.path.join(folder, file.path)
    found = checksum(fs, path)
    if found is None:
        raise Corrupt(f"{path} is missing: the archive in {folder} is not whole", path=path)
    if found != (file.size, file.crc32c):
        raise Corrupt(
            f"{path} is damaged: it has {found.size} bytes, or others, and should have {file.size}",
            path=path,
        )


def read_file(
    path: str, columns: Sequence[str], first: int = 0, last: int = MAX_OFFSET
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some at a time: about as many as fit into some megabytes. Those that are
    not in a range of offsets are left out where that costs nothing. `timestamp` is a number, as the
    log has it."""
    with contextlib.ExitStack() as stack:
        with reading(path):
            file = stack.enter_context(pq.ParquetFile(path))
            rows = max(file.metadata.num_rows, 1)
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            at_once = min(max(_AT_ONCE * rows // max(size, 1), 1), _MOST_ROWS)
            chosen = [n for n, group in enumerate(groups) if _may_have(group, first, last)]
            names = list(columns)
            if "timestamp" in names and "timestamp_ms" in file.schema_arrow.names:
                names[names.index("timestamp")] = "timestamp_ms"
            batches = file.iter_batches(at_once, row_groups=chosen, columns=names)
        schema = pa.schema([_READ.field(name) for name in columns])
        while True:
            with reading(path):
                batch = next(batches, None)
                if batch is None:
                    return
                arrays = [
                    batch.column(name).cast(field.type)
                    for name, field in zip(names, schema, strict=True)
                ]
                made = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else batch
            if made.num_rows:
                yield made


def _may_have(group: Any, first: int, last: int) -> bool:
    """By the bounds of its offsets, which are the first column."""
    bounds = group.column(0).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return bool(bounds.min < last and bounds.max >= first)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """`Corrupt` names the file, if it is damaged. What the system refuses for other reasons, as one
    more open file, says nothing of the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise Corrupt(f"{path} is missing: the archive is not whole", path=path) from error
    except (OSError, pa.ArrowException, KeyError) as error:
        # Those of a file that is no Parquet have no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        said = " ".join(str(error).split())
        raise Corrupt(f"{path} cannot be read: {said}", path=path) from error


def within(rows: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """The rows of a range of offsets, `first <= o < last`."""
    offsets = rows.column("offset")
    if first <= offsets[0].as_py() and offsets[-1].as_py() < last:
        return rows
    kept = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, last))
    return rows.filter(kept)


def in_order(
    folder: str, step: Step, first: int, last: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a step that are in a range of offsets, which is the first of the columns.

    A file is opened when it is its turn. The largest are read some rows at a time and stay open
    meanwhile; of the others, each has but a small part of the step, and is read as a whole."""
    assert columns[0] == "offset"
    by_size = sorted(step.files, key=lambda file: file.size, reverse=True)
    sources: list[Iterator[pa.RecordBatch]] = []
    coming: list[tuple[int, int]] = []  # from which offset on a source has more, and its number
    for number, file in enumerate(by_size):
        path = os.path.join(folder, file.path)
        rows = read_file(path, columns, first, last)
        sources.append(rows if number < MOST_FILES else _whole(rows))
        coming.append((_first_offset(path), number))
    heapq.heapify(coming)
    held: list[pa.RecordBatch] = []  # in no order, and some of them may have to wait
    size, enough = 0, _AT_ONCE // 2
    while coming:
        bound, number = coming[0]
        if size >= enough:
            ready, held = _cut(held, bound)
            yield from _sorted(ready)
            size = sum(rows.nbytes for rows in held)
            enough = size + max(size, _AT_ONCE // 2)  # so each row is looked at a few times only
        found = next(sources[number], None)
        if found is None:
            heapq.heappop(coming)
            continue
        heapq.heapreplace(coming, (found.column("offset")[-1].as_py() + 1, number))
        found = within(found, first, last)
        if found.num_rows:
            held.append(found)
            size += found.nbytes
    yield from _sorted(held)


def _first_offset(path: str) -> int:
    """Below it the file has no row."""
    with reading(path), pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
    bounds = [group.column(0).statistics for group in groups]
    return min((each.min if each and each.has_min_max else 0 for each in bounds), default=0)


def _whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of them at once, when the first is asked for."""
    yield from list(batches)


def _cut(
    batches: Sequence[pa.RecordBatch], bound: int
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The rows below an offset, and the others. Each batch is in order."""
    below, others = [], []
    for rows in batches:
        here = rows.num_rows
        if rows.column("offset")[-1].as_py() >= bound:
            here = pc.sum(pc.less(rows.column("offset"), bound)).as_py()
        if here:
            below.append(rows.slice(0, here))
        if here < rows.num_rows:
            others.append(rows.slice(here))
    return below, others


def _sorted(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in order, of batches that are so each: about as many at a time as `read_file`
    gives."""
    if len(batches) <= 1:
        yield from batches
        return
    low = min(rows.column("offset")[0].as_py() for rows in batches)
    high = max(rows.column("offset")[-1].as_py() for rows in batches)
    if low < high and sum(rows.nbytes for rows in batches) > 2 * _AT_ONCE:
        for part in _cut(batches, (low + high) // 2 + 1):
            yield from _sorted(part)
        return
    [rows] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    yield rows.take(pc.array_sort_indices(rows.column("offset")))


def first_at(manifest: Manifest, timestamp: int) -> int | None:
    """The first archived offset whose row is not older than a time, in milliseconds."""
    for step in manifest.steps:
        found: list[int] = []
        for file in step.files:
            if file.last_ms < timestamp:
                continue
            path = os.path.join(manifest.folder, file.path)
            for rows in read_file(path, ("offset", "timestamp")):
                kept = rows.filter(pc.greater_equal(rows.column("timestamp"), timestamp))
                if kept.num_rows:
                    found.append(kept.column("offset")[0].as_py())
                    break
        if found:
            return min(found)
    return None
