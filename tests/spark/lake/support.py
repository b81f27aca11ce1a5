"""What the tests of archives share: a queue to archive, and what is to be in the archive then."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace import Queue, Store, Stream
from tailrace.log.fs import FileSystem

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")
datasets: Any = pytest.importorskip("pyarrow.dataset")
parquet: Any = pytest.importorskip("pyarrow.parquet")


from tailrace.queue.stats import look_through  # noqa: E402
from tailrace.spark.lake import archive as archiving  # noqa: E402
from tailrace.spark.lake.archive import ArchiveReport, Order, archive  # noqa: E402
from tailrace.spark.lake.engines import Direct, Task  # noqa: E402
from tailrace.spark.lake.files import Source  # noqa: E402
from tailrace.spark.lake.manifest import Manifest  # noqa: E402
from tailrace.spark.lake.rows import SCHEMA, read_rows  # noqa: E402
from tailrace.spark.lake.writing import Piece, Staged, write  # noqa: E402

T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z
HOUR = 3_600_000

# Segments so small that a few messages make many.
SMALL: dict[str, Any] = {"compression": "none", "segment_bytes": 1_000, "index_interval": 200}


class Inline:
    """One piece after the other, in this thread: so calls have the same order each time."""

    name = "inline"

    def run(
        self, fs: FileSystem, log: Any, task: Task, pieces: Sequence[Piece]
    ) -> Generator[Staged, None, None]:
        for piece in pieces:
            yield write(fs, log, task.origin, piece, task.staging)


def open_store(path: Path | str, **options: Any) -> Store:
    return Store(path, **{"upkeep": False, "flush": "async", **options})


def fill(queue: Queue | Stream, count: int, *, every_ms: int = 1_000, keys: int = 3) -> None:
    """So many messages, each in a batch of its own, from T0 on, with so many keys."""
    first = queue.log.end_offset
    for number in range(first, first + count):
        queue.publish(
            b"value %d" % number,
            key=f"k{number % keys}" if number % 4 else None,
            headers={"n": str(number), "same": b"\xff"},
            timestamp=T0 + number * every_ms,
            ttl="100d" if number % 5 == 0 else None,
        )
    queue.log.flush()


def order(queue: Queue | Stream, folder: Path | str, *, delete: bool = False, **more: Any) -> Order:
    drop = queue.drop_archived if delete else None
    return Order(queue.name, os.fspath(folder), drop=drop, **more)


def put(
    store: Store, queue: Queue | Stream, folder: Path | str, *, engine: Any = None, **more: Any
) -> ArchiveReport:
    return archive(look_through(store), order(queue, folder, **more), engine or Direct(2))


def logged(queue: Queue | Stream, first: int | None = None, last: int | None = None) -> Any:
    """The rows that the log has."""
    start = queue.log.start_offset if first is None else first
    end = queue.log.end_offset if last is None else last
    return pa.Table.from_batches(list(read_rows(queue.log, queue.name, start, end)), SCHEMA)


def archived(fs: FileSystem, folder: Path | str) -> Any:
    """The rows of all files of an archive, by offset, whether the manifest names them or not."""
    tables = [SCHEMA.empty_table()]
    for path in parquet_files(fs, os.fspath(folder)):
        source: Any = Source(fs, os.path.join(folder, path))
        with parquet.ParquetFile(source) as file:
            tables.append(file.read().replace_schema_metadata(None).cast(SCHEMA))
    return pa.concat_tables(tables).sort_by("offset")


def parquet_files(fs: FileSystem, folder: str, below: str = "") -> list[str]:
    """From the archive's folder on; as tools do that pass over names with an underscore."""
    found = []
    try:
        entries = fs.list(os.path.join(folder, below))
    except FileNotFoundError:
        return []
    for entry in entries:
        path = os.path.join(below, entry.name)
        if entry.name[0] in "_.":
            continue
        found += parquet_files(fs, folder, path) if entry.is_dir else [path]
    return sorted(found)


def check(fs: FileSystem, folder: Path | str, expected: Any) -> Manifest:
    """The archive has these rows, in the files that its manifest names, and nothing else."""
    manifest = Manifest.load(fs, os.fspath(folder))
    named = [file.path for step in manifest.steps for file in step.files]
    assert sorted(named) == parquet_files(fs, os.fspath(folder))
    assert len(set(named)) == len(named)
    assert archived(fs, folder).equals(expected)
    for step in manifest.steps:
        assert step.rows == sum(file.rows for file in step.files)
    return manifest


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few segments each."""
    monkeypatch.setattr(archiving, "PIECE_BYTES", 2_500)
