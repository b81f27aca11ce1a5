"""Archives for tests, made in the plainest way: what a log has, in steps, as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[spark]")

from pyarrow import compute as _compute  # noqa: E402
from pyarrow import parquet  # noqa: E402

from tailrace import Log  # noqa: E402
from tailrace.log.fs import OsFileSystem  # noqa: E402
from tailrace.queue.backup_files import checksum  # noqa: E402
from tailrace.spark.lake.manifest import (  # noqa: E402
    ArchivedFile,
    Manifest,
    Origin,
    Step,
    Writing,
)
from tailrace.spark.lake.rows import SCHEMA, by_time, milliseconds, read_rows  # noqa: E402

FS = OsFileSystem()
compute: Any = _compute


def make_archive(
    folder: Path | str,
    log: Log,
    steps: Iterable[tuple[int, int]],
    *,
    queue: str = "q",
    incarnation: str = "",
    partition_by: str = "",
    row_group: int = 50,
) -> Manifest:
    """Add steps to an archive, which is made if there is none."""
    with Writing(FS, str(folder), Origin(queue, incarnation, partition_by)) as writing:
        for first, last in steps:
            writing.add([_step(str(folder), log, queue, first, last, partition_by, row_group)])
        return writing.manifest


def _step(
    folder: str, log: Log, queue: str, first: int, last: int, partition_by: str, row_group: int
) -> Step:
    batches = list(read_rows(log, queue, max(first, log.start_offset), last))
    table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    files = []
    for rows in table.to_batches():
        for place, part in by_time(rows, partition_by):
            path = os.path.join(place, f"{first:020d}-{last:020d}.parquet")
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            parquet.write_table(pa.Table.from_batches([part]), target, row_group_size=row_group)
            found = checksum(FS, target)
            assert found is not None
            bounds = compute.min_max(milliseconds(part)).as_py()
            files.append(ArchivedFile(path, part.num_rows, *found, bounds["min"], bounds["max"]))
    return Step(first, last, tuple(files))
