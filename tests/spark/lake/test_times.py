"""A log takes any number as a time. Its archive can be read by any tool all the same, and gives the
number back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import Record, Store, Stream
from tailrace.log.fs import OsFileSystem
from tailrace.spark.columns import MAX_TIME_MS
from tailrace.spark.lake import restore as restoring
from tailrace.spark.lake.manifest import Manifest, Origin, Writing
from tailrace.spark.lake.reading import first_at
from tests.spark.lake.support import SMALL, T0, datasets, fill, open_store, parquet, put

FS = OsFileSystem()
LEAST, MOST = -(1 << 63), (1 << 63) - 1
# Good ones, as nanoseconds, and as far as numbers and microseconds go.
BOUNDS = [-MAX_TIME_MS, MAX_TIME_MS, -MAX_TIME_MS - 1, MAX_TIME_MS + 1]
STRANGE = [T0, T0 * 10**6, LEAST, MOST, *BOUNDS, -1, 0]
NAMES = ["offset", "timestamp", "key", "value", "headers"]


@contextmanager
def strange_stream(path: Path) -> Iterator[tuple[Store, Stream]]:
    with open_store(path / "data") as store:
        stream = store.stream("events", **SMALL)
        stream.log.append([Record(value=b"x", timestamp=each) for each in STRANGE])
        fill(stream, 40)
        yield store, stream


def everything(stream: Stream) -> list[tuple[Any, ...]]:
    return [tuple(getattr(each, name) for name in NAMES) for each in stream.log.read()]


def begin_old(store: Store, folder: Path, partition_by: str = "") -> None:
    """An archive of an earlier version."""
    origin = Origin("events", store.get("events").settings.incarnation, partition_by, 1)
    Writing(FS, str(folder), origin).close()


def bring_back(stream: Stream, folder: Path) -> None:
    manifest = Manifest.load(FS, str(folder))
    wanted, incarnation = restoring.Wanted(), stream.settings.incarnation
    bounds = restoring.choose(stream.log, manifest, stream.name, incarnation, wanted)
    restoring.restore(stream.log, manifest, bounds)


@pytest.mark.parametrize("by", ["", "date", "hour"])
@pytest.mark.parametrize("is_old", [False, True])
def test_any_time_comes_back_as_it_was(tmp_path: Path, by: str, is_old: bool) -> None:
    lake = tmp_path / "lake"
    with strange_stream(tmp_path) as (store, stream):
        if is_old:
            begin_old(store, lake, by)
        before = everything(stream)
        put(store, stream, lake, partition_by=by, delete=True)
        fill(stream, 40)
        before += everything(stream)[len(before) - stream.log.start_offset :]
        put(store, stream, lake, delete=True)
        start = stream.log.start_offset
        assert start > 40
        manifest = Manifest.load(FS, str(lake))
        assert manifest.origin.format == (1 if is_old else 2)
        files = [file for step in manifest.steps for file in step.files]
        assert min(file.first_ms for file in files) == LEAST
        assert max(file.last_ms for file in files) == MOST
        assert first_at(manifest, MOST) == 3
        bring_back(stream, lake)
        assert everything(stream) == before


def test_files_say_what_the_number_is_and_have_no_time_that_is_none(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with strange_stream(tmp_path) as (store, stream):
        put(store, stream, lake)
    rows = datasets.dataset(str(lake)).to_table().sort_by("offset").slice(0, len(STRANGE))
    assert rows.column("timestamp_ms").to_pylist() == STRANGE
    numbers = rows.column("timestamp").cast("int64").to_pylist()
    assert numbers == [each if abs(each) <= MAX_TIME_MS else None for each in STRANGE]


@pytest.mark.parametrize("by", ["", "date"])
def test_duckdb_reads_every_time(tmp_path: Path, by: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is missing: tailrace[dev]")
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        stream.log.append([Record(value=b"x", timestamp=each) for each in (T0, T0 * 10**6)])
        fill(stream, 40)
        count = put(store, stream, lake, partition_by=by).rows
    wanted = "count(*), count(timestamp), max(epoch_ms(timestamp)), max(timestamp_ms)"
    found = duckdb.sql(f"SELECT {wanted} FROM read_parquet('{lake}/**/*.parquet')").fetchall()
    assert found == [(count, count - 1, T0 + (count - 1) * 1_000, T0 * 10**6)]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("by", ["", "date"])
@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg")
def test_tables_go_on(tmp_path: Path, kind: str, library: str, by: str, is_old: bool) -> None:
    """One that was made before the column was there has none of it; no other lacks it."""
    pytest.importorskip(library, reason=f"tailrace[{kind}] is missing")
    from tests.spark.lake.test_tables import rows_of

    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        if is_old:
            begin_old(store, lake, by)
        else:
            nanoseconds = [Record(value=b"x", timestamp=T0 * 10**6 + n) for n in range(3)]
            stream.log.append(nanoseconds)
        fill(stream, 40)
        rows = put(store, stream, lake, format=kind, partition_by=by).rows
        fill(stream, 40)
        rows += put(store, stream, lake).rows
    found = rows_of(lake, kind)
    assert found.num_rows == rows
    assert ("timestamp_ms" in found.column_names) is not is_old
    assert found.column("timestamp").null_count == (0 if is_old else 3)
    for path in lake.rglob("0*.parquet"):
        assert ("timestamp_ms" in parquet.read_schema(path).names) is not is_old


@pytest.mark.parametrize("is_old", [False, True])
def test_one_table_of_both_has_each_row(tmp_path: Path, is_old: bool) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    from tests.spark.support import schema, source

    lake = tmp_path / "lake"

    def rows(**options: Any) -> list[dict[str, Any]]:
        given = {"queue": "events", **options}
        reader = source(tmp_path / "data", **given).reader(schema("offset", "timestamp"))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        found = [row for batch in batches for row in batch.to_pylist()]
        return sorted(found, key=lambda row: row["offset"])

    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        stream.log.append([Record(value=b"x", timestamp=each) for each in (T0, T0 * 10**6)])
        fill(stream, 40)
        before = rows()
        late = {"startingTimestamp": str(T0 * 10), "exactTimestamps": "true"}
        assert [row["offset"] for row in rows(**late)] == [1]
        if is_old:
            begin_old(store, lake)
        put(store, stream, lake, delete=True)
        assert stream.log.start_offset > 2
    both = {"includeArchive": "true", "archive": str(lake)}
    assert rows(**both) == before
    assert [row["offset"] for row in rows(**both, **late)] == [1]
