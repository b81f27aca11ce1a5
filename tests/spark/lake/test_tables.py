"""Archives as tables of Delta Lake and Iceberg: each file once, with the right partition."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import ConfigError, Record, Store, Stream, TailraceError
from tailrace.log.cuts import sealed_end
from tailrace.log.fs import OsFileSystem
from tailrace.spark.lake.manifest import Manifest
from tailrace.spark.lake.tables import TableBehind, formats_in, open_table
from tests.spark.lake.support import (
    HOUR,
    SMALL,
    T0,
    fill,
    logged,
    open_store,
    pieces,
    put,
)

__all__ = ["pieces"]

pytestmark = [
    pytest.mark.usefixtures("pieces"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg"),
]
KINDS = ["delta", "iceberg"]
LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
PARTS = ["", "date", "hour"]


@contextlib.contextmanager
def stream_in(path: Path, count: int = 60) -> Iterator[tuple[Store, Stream]]:
    with open_store(path / "data") as store:
        stream = store.stream("my.events", **SMALL)
        fill(stream, count, every_ms=HOUR // 4)
        yield store, stream


def iceberg_table(lake: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{lake}/_tailrace/iceberg.db"
    catalog = SqlCatalog("tailrace", uri=uri)
    try:
        [name] = catalog.list_tables("tailrace")
        return catalog.load_table(name)
    finally:
        catalog.close()


def rows_of(lake: Path, kind: str) -> Any:
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(lake)).to_pyarrow_table()
    else:
        table = iceberg_table(lake).scan().to_arrow()
    return table.sort_by("offset")


def columns(table: Any) -> dict[str, Any]:
    names = ("offset", "timestamp", "key", "value", "topic", "expires_at", "headers")
    return {name: table.column(name).to_pylist() for name in names}


@pytest.mark.parametrize("by", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_the_log(tmp_path: Path, kind: str, by: str) -> None:
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / "lake"
    with stream_in(tmp_path) as (store, stream):
        report = put(store, stream, lake, format=kind, partition_by=by)
        assert report.table_files == report.files > 1
        expected = logged(stream, 0, sealed_end(stream.log))
        found = rows_of(lake, kind)
        assert columns(found) == columns(expected)
        if kind == "delta" and by:
            for row in found.to_pylist():
                assert row["date"] == row["timestamp"].date()
                assert by == "date" or row["hour"] == row["timestamp"].hour
        assert formats_in(str(lake)) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_it_catches_up_with_the_manifest(tmp_path: Path, kind: str) -> None:
    """Whatever was archived without it, or by one who was killed before the table was told."""
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / "lake"
    with stream_in(tmp_path) as (store, stream):
        plain = put(store, stream, lake, until_ms=T0 + 5 * HOUR)
        first = put(store, stream, lake, format=kind, until_ms=T0 + 5 * HOUR)
        assert (first.files, first.table_files) == (0, plain.files)
        assert put(store, stream, lake, format=kind, until_ms=T0).table_files == 0
        more = put(store, stream, lake)  # as before
        assert more.table_files == more.files > 0
        fill(stream, 40, every_ms=HOUR // 4)
        put(store, stream, lake, format="parquet")
        assert put(store, stream, lake).table_files > 0
        expected = logged(stream, 0, sealed_end(stream.log))
        assert columns(rows_of(lake, kind)) == columns(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_of_time_finds_its_rows(tmp_path: Path, kind: str) -> None:
    """Statistics and partitions are right: what they rule out has no such rows."""
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / "lake"
    with stream_in(tmp_path) as (store, stream):
        put(store, stream, lake, format=kind, partition_by="hour")
        expected = logged(stream, 0, sealed_end(stream.log)).to_pylist()
    since = datetime(2023, 11, 15, 3, tzinfo=UTC)
    wanted = [row["offset"] for row in expected if row["timestamp"] >= since]
    assert 0 < len(wanted) < len(expected)
    if kind == "iceberg":
        scan = iceberg_table(lake).scan(row_filter=f"timestamp >= '{since.isoformat()}'")
        assert len(list(scan.plan_files())) < len(list(iceberg_table(lake).scan().plan_files()))
        found = scan.to_arrow()
    else:
        from deltalake import DeltaTable

        found = DeltaTable(str(lake)).to_pyarrow_table(filters=[("timestamp", ">=", since)])
    assert sorted(found.column("offset").to_pylist()) == wanted


def test_what_was_compacted_does_not_come_again(tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="tailrace[delta] is missing")
    from deltalake import DeltaTable

    lake = tmp_path / "lake"
    with stream_in(tmp_path) as (store, stream):
        put(store, stream, lake, format="delta")
        DeltaTable(str(lake)).optimize.compact()
        assert len(DeltaTable(str(lake)).file_uris()) == 1
        fill(stream, 40, every_ms=HOUR // 4)
        put(store, stream, lake)
        expected = logged(stream, 0, sealed_end(stream.log))
        assert columns(rows_of(lake, "delta")) == columns(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_that_is_missing_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == LIBRARIES[kind]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, LIBRARIES[kind], None)
    with stream_in(tmp_path) as (store, stream):
        with pytest.raises(TailraceError, match=rf"pip install 'tailrace\[{kind}\]'"):
            put(store, stream, tmp_path / "lake", format=kind)
        assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_more_steps_than_there_are_is_refused(tmp_path: Path, kind: str) -> None:
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = str(tmp_path / "lake")
    with stream_in(tmp_path) as (store, stream):
        put(store, stream, lake, format=kind)
    manifest = Manifest.load(OsFileSystem(), lake)
    shorter = Manifest(lake, manifest.origin, manifest.steps[:-1], 0, manifest.added[:-1])
    table = open_table(kind, lake, manifest.origin)
    assert table is not None
    with pytest.raises(TailraceError, match="not the table of this archive"):
        table.catch_up(shorter)
    assert table.catch_up(manifest) == 0


def has_dates(path: Path) -> bool:
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None).select(["timestamp", "expires_at"])
    try:
        table.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


@pytest.mark.parametrize("by", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_times_that_no_calendar_has(
    tmp_path: Path, kind: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Iceberg takes no file with one. It is left out of the table, and the archive goes on."""
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / "lake"
    with stream_in(tmp_path, 10) as (store, stream):
        for micros in (T0 * 1000, -(10**15)):
            stream.publish(b"strange", timestamp=micros)
        fill(stream, 20, every_ms=HOUR // 4)
        far = ("_expires_at", str(T0 + 5_000_000 * 24 * HOUR))  # as others may write it
        stream.log.append([Record(None, T0, b"", b"for ever", [far])])
        fill(stream, 20, every_ms=HOUR // 4)
        report = put(store, stream, lake, format=kind, partition_by=by, delete=True)
        assert report.deleted_segments > 0
        fill(stream, 10, every_ms=HOUR // 4)
        put(store, stream, lake, delete=True)
    manifest = Manifest.load(OsFileSystem(), str(lake))
    files = [file for step in manifest.added for file in step.files]
    dated = [file for file in files if has_dates(lake / file.path)]
    assert 0 < len(dated) < len(files)
    listed = [record for record in caplog.records if "not in the Iceberg table" in record.message]
    if kind == "iceberg":
        assert rows_of(lake, kind).num_rows == sum(file.rows for file in dated)
        assert [vars(record)["count"] for record in listed] == [len(files) - len(dated)]
    else:
        from deltalake import DeltaTable

        assert len(DeltaTable(str(lake)).file_uris()) == len(files)
        assert not listed


ERRORS = [OverflowError("date value out of range"), ValueError("odd"), OSError(5, "no disk")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_cannot_be_changed(
    tmp_path: Path, kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is archived, verified and deleted without it; it is told in the end, and the next one
    catches up."""
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / "lake"

    def add(*_: object) -> int:
        raise error

    with stream_in(tmp_path) as (store, stream):
        expected = logged(stream, 0, sealed_end(stream.log))
        with monkeypatch.context() as broken:
            tables: Any = import_module("tailrace.spark.lake.tables")
            broken.setattr(getattr(tables, f"_{kind.title()}"), "_add", add)
            with pytest.raises(TableBehind, match="cannot be changed: "):
                put(store, stream, lake, format=kind, delete=True)
        assert stream.log.start_offset == sealed_end(stream.log)
        assert Manifest.load(OsFileSystem(), str(lake)).reaches(0) == sealed_end(stream.log)
        assert put(store, stream, lake, format=kind).table_files > 0
    assert columns(rows_of(lake, kind)) == columns(expected)


@pytest.mark.parametrize(
    ("kind", "character"),
    [("delta", "%"), ("iceberg", "%"), ("iceberg", "#"), ("iceberg", "?")],
)
def test_a_folder_that_libraries_misread(tmp_path: Path, kind: str, character: str) -> None:
    lake = tmp_path / f"a{character}20b" / "lake"
    with stream_in(tmp_path) as (store, stream):
        with pytest.raises(ConfigError, match=f"{kind} .* '[{character}]' in its path"):
            put(store, stream, lake, format=kind)
        assert not lake.exists()
        assert put(store, stream, lake).files > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_with_other_characters(tmp_path: Path, kind: str) -> None:
    pytest.importorskip(LIBRARIES[kind], reason=f"tailrace[{kind}] is missing")
    lake = tmp_path / ("a b+ü;:'*[c]" + "#?" * (kind == "delta")) / "lake"
    with stream_in(tmp_path, 10) as (store, stream):
        put(store, stream, lake, format=kind)
        fill(stream, 10)
        put(store, stream, lake)
        expected = logged(stream, 0, sealed_end(stream.log))
    assert columns(rows_of(lake, kind)) == columns(expected)
