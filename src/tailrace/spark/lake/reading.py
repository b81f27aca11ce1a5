"""Reading what is in an archive: its files, checked, and their rows in the order of their offsets.

The files of a step are of times, if the archive is partitioned, and each has its rows in order. In
a log whose clocks went back the offsets of two files may overlap; `in_order` merges them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
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

__all__ = ["check_file", "first_at", "in_order", "read_file", "within"]

_AT_ONCE: Final = 8 << 20  # bytes of rows, about
_MOST_ROWS: Final = 1 << 16


def check_file(
    fs: FileSystem,
    folder: str,
    file: ArchivedFile,
    tell: Callable[[int], object] = lambda size: None,
) -> None:
    """`Corrupt` unless the file has the bytes that the manifest says."""
    path = os.path.join(folder, file.path)
    found = checksum(fs, path, tell)
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
    not in a range of offsets are left out where that costs nothing."""
    with contextlib.ExitStack() as stack:
        with _reading(path):
            file = stack.enter_context(pq.ParquetFile(path))
            rows = max(file.metadata.num_rows, 1)
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            at_once = min(max(_AT_ONCE * rows // max(size, 1), 1), _MOST_ROWS)
            chosen = [n for n, group in enumerate(groups) if _may_have(group, first, last)]
            batches = file.iter_batches(at_once, row_groups=chosen, columns=list(columns))
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        while True:
            with _reading(path):
                batch = next(batches, None)
                if batch is None:
                    return
                arrays = [batch.column(field.name).cast(field.type) for field in schema]
                made = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else batch
            yield made


def _may_have(group: Any, first: int, last: int) -> bool:
    """By the bounds of its offsets, which are the first column."""
    bounds = group.column(0).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return bool(bounds.min < last and bounds.max >= first)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Corrupt(f"{path} is missing: the archive is not whole", path=path) from error
    except (OSError, pa.ArrowException, KeyError) as error:
        said = " ".join(str(error).split())
        raise Corrupt(f"{path} cannot be read: {said}", path=path) from error


def within(rows: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """The rows of a range of offsets, `first <= o < last`."""
    offsets = rows.column("offset")
    if not rows.num_rows:
        return rows
    if first <= offsets[0].as_py() and offsets[-1].as_py() < last:
        return rows
    kept = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, last))
    return rows.filter(kept)


def in_order(
    folder: str, step: Step, first: int, last: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a step that are in a range of offsets, which is the first of the columns."""
    assert columns[0] == "offset"
    paths = [os.path.join(folder, file.path) for file in step.files]
    sources = [read_file(path, columns, first, last) for path in paths]
    waiting: dict[int, pa.RecordBatch] = {}
    while True:
        for number, source in enumerate(sources):
            while number not in waiting:
                rows = next(source, None)
                if rows is None:
                    break
                rows = within(rows, first, last)
                if rows.num_rows:
                    waiting[number] = rows
        if not waiting:
            return
        if len(waiting) == 1:
            [(number, rows)] = waiting.items()
            del waiting[number]
            yield rows
            continue
        # Behind the end of what one of them has at hand, it may have more.
        bound = min(rows.column("offset")[-1].as_py() for rows in waiting.values())
        parts = []
        for number, rows in list(waiting.items()):
            here = pc.sum(pc.less_equal(rows.column("offset"), bound)).as_py()
            parts.append(rows.slice(0, here))
            if here == rows.num_rows:
                del waiting[number]
            else:
                waiting[number] = rows.slice(here)
        together = pa.Table.from_batches(parts).combine_chunks()
        [rows] = together.to_batches()
        ordered = pc.array_sort_indices(rows.column("offset"))
        yield rows.take(ordered)


def first_at(manifest: Manifest, timestamp: int) -> int | None:
    """The first archived offset whose row is not older than a time, in milliseconds."""
    moment = pa.scalar(timestamp, SCHEMA.field("timestamp").type)
    for step in manifest.steps:
        found: list[int] = []
        for file in step.files:
            if file.last_ms < timestamp:
                continue
            path = os.path.join(manifest.folder, file.path)
            for rows in read_file(path, ("offset", "timestamp")):
                kept = rows.filter(pc.greater_equal(rows.column("timestamp"), moment))
                if kept.num_rows:
                    found.append(kept.column("offset")[0].as_py())
                    break
        if found:
            return min(found)
    return None
