"""An archive is what the log was, whoever reads it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import ConfigError, Corrupt, Locked, NotWritten, Record
from tailrace.log.cuts import sealed_end
from tailrace.log.fs import OsFileSystem
from tailrace.queue.stats import look_through
from tailrace.spark.lake import archive as archiving
from tailrace.spark.lake import verify as verifying
from tailrace.spark.lake import writing
from tailrace.spark.lake.archive import Order, archive, release, size_to_archive
from tailrace.spark.lake.manifest import Manifest, Origin, Writing
from tailrace.spark.lake.rows import SCHEMA, by_time, read_rows
from tailrace.spark.lake.writing import Staged
from tailrace.testing import SimulatedDisk
from tests.queue.support import small_disk_of
from tests.spark.lake.support import (
    HOUR,
    SMALL,
    T0,
    Inline,
    archived,
    check,
    datasets,
    fill,
    logged,
    open_store,
    pa,
    parquet,
    parquet_files,
    pieces,
    put,
)

__all__ = ["pieces"]

FS = OsFileSystem()


@pytest.mark.usefixtures("pieces")
def test_it_equals_the_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        report = put(store, stream, tmp_path / "lake")
        end = sealed_end(stream.log)
        assert 0 < end < 60
        assert (report.first, report.last, report.rows) == (0, end, end)
        assert report.remaining == 60 - end
        assert report.steps == report.files > 2
        manifest = check(FS, tmp_path / "lake", logged(stream, 0, end))
        assert manifest.ranges() == [(0, end)]
        size = sum(step.size for step in manifest.steps)
        assert report.bytes == size
        assert list((tmp_path / "lake" / "_tailrace" / "staging").iterdir()) == []


@pytest.mark.usefixtures("pieces")
def test_again_is_nothing_and_then_what_is_new(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 40)
        put(store, stream, tmp_path / "lake")
        before = parquet_files(FS, str(tmp_path / "lake"))
        again = put(store, stream, tmp_path / "lake")
        assert (again.steps, again.rows, again.first) == (0, 0, None)
        assert parquet_files(FS, str(tmp_path / "lake")) == before
        fill(stream, 40)
        look = look_through(store)
        assert size_to_archive(look, Order("events", str(tmp_path / "lake"))) > 0
        more = put(store, stream, tmp_path / "lake")
        assert more.first == again.remaining * 0 + 40 - again.remaining
        assert set(before) < set(parquet_files(FS, str(tmp_path / "lake")))
        check(FS, tmp_path / "lake", logged(stream, 0, sealed_end(stream.log)))
        assert size_to_archive(look, Order("events", str(tmp_path / "lake"))) == 0


def test_an_empty_queue_and_one_that_nobody_has_used(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        report = put(store, stream, tmp_path / "lake")
        assert (report.steps, report.rows, report.remaining) == (0, 0, 0)
        fill(stream, 2)  # in the segment that is being written
        report = put(store, stream, tmp_path / "lake", delete=True)
        assert (report.steps, report.remaining, report.deleted_segments) == (0, 2, 0)
        check(FS, tmp_path / "lake", SCHEMA.empty_table())
        assert len(logged(stream)) == 2


def test_every_kind_of_record(tmp_path: Path) -> None:
    """Null values, keys of no bytes, headers that repeat, times before 1970."""
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        records = [
            Record(timestamp=-5, key=None, value=None, headers=None),
            Record(timestamp=0, key=b"", value=b"", headers=[("a", b"1"), ("a", b"2")]),
            Record(timestamp=T0, key=b"\xff", value=bytes(3000), headers={"ü": b""}),
        ]
        stream.log.append(records).wait()
        fill(stream, 10)
        put(store, stream, tmp_path / "lake")
        rows = check(FS, tmp_path / "lake", logged(stream, 0, sealed_end(stream.log)))
        assert rows.steps[0].rows >= 3
        found = archived(FS, tmp_path / "lake").slice(0, 3).to_pylist()
        assert [row["value"] for row in found] == [None, b"", bytes(3000)]
        assert [len(row["headers"]) for row in found] == [0, 2, 1]


# --- partitions ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("by", ["date", "hour"])
def test_partitions_over_midnight(tmp_path: Path, by: str) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 80, every_ms=HOUR // 8)  # from 22:13 on, ten hours
        put(store, stream, tmp_path / "lake", partition_by=by)
        end = sealed_end(stream.log)
        check(FS, tmp_path / "lake", logged(stream, 0, end))
        for path in parquet_files(FS, str(tmp_path / "lake")):
            file: Any = parquet.ParquetFile(tmp_path / "lake" / path)
            assert file.metadata.metadata[b"tailrace.queue"] == b"events"
            for moment in file.read().column("timestamp").to_pylist():
                assert f"date={moment:%Y-%m-%d}" in path
                assert by == "date" or f"/hour={moment:%H}/" in path
        table = datasets.dataset(tmp_path / "lake", partitioning="hive").to_table()
        dates = sorted({str(date) for date in table.column("date").to_pylist()})
        assert dates == ["2023-11-14", "2023-11-15"]
        if by == "hour":
            assert set(table.column("hour").to_pylist()) >= {22, 23, 0, 1}
        assert sorted(table.column("offset").to_pylist()) == list(range(end))
        again = put(store, stream, tmp_path / "lake")  # as before
        assert again.steps == 0
        other = "hour" if by == "date" else "date"
        with pytest.raises(ConfigError, match=f"partitioned by {by}, not by {other}"):
            put(store, stream, tmp_path / "lake", partition_by=other)


def test_more_hours_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_FILES", 3)
    monkeypatch.setattr(writing, "WAITING_BYTES", 1_000)
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60, every_ms=HOUR)
        report = put(store, stream, tmp_path / "lake", partition_by="hour", delete=True)
        assert report.files == report.rows == report.verified
        assert archived(FS, tmp_path / "lake").column("offset").to_pylist() == list(
            range(report.rows)
        )


@pytest.mark.parametrize("where", [writing, verifying], ids=["writing", "verifying"])
def test_each_row_is_put_into_a_folder_once_however_many_there_are(
    tmp_path: Path, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def counted(*arguments: Any) -> Any:
        for folder, rows in by_time(*arguments):
            parts.append(rows.num_rows)
            yield folder, rows

    monkeypatch.setattr(where, "MOST_FILES", 3)
    monkeypatch.setattr(where, "by_time", counted)
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60, every_ms=HOUR)
        report = put(store, stream, tmp_path / "lake", partition_by="hour", delete=True)
        assert report.files > 30
        assert sum(parts) == report.rows


def test_rows_of_mixed_times_stay_in_their_order() -> None:
    chance = random.Random(1)
    times = [T0 + chance.randrange(50) * HOUR + chance.randrange(HOUR) for _ in range(3000)]
    times[::7] = [1 << 62] * len(times[::7])
    array = pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC"))
    nothing = [pa.nulls(3000, field.type) for field in SCHEMA][2:]
    rows = pa.RecordBatch.from_arrays([pa.array(range(3000)), array, *nothing], schema=SCHEMA)
    expected: dict[str, list[int]] = {}
    for offset, time in enumerate(times):
        if time == 1 << 62:
            folder = "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__"
        else:
            folder = f"{datetime.fromtimestamp(time / 1000, UTC):date=%Y-%m-%d/hour=%H}"
        expected.setdefault(folder, []).append(offset)
    found = [(at, part.column("offset").to_pylist()) for at, part in by_time(rows, "hour")]
    assert found == list(expected.items())
    some = set(list(expected)[::3])
    chosen = [at for at, _ in by_time(rows, "hour", lambda folder: folder in some)]
    assert chosen == list(expected)[::3]


def test_times_that_no_calendar_has() -> None:
    times = [-(1 << 62), -62_135_596_800_001, -62_135_596_800_000, 253_402_300_799_999, 1 << 62]
    array = pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC"))
    nothing = [pa.nulls(5, field.type) for field in SCHEMA][2:]
    offsets = pa.array(range(5), pa.int64())
    rows = pa.RecordBatch.from_arrays([offsets, array, *nothing], schema=SCHEMA)
    found = {folder: part.column("offset").to_pylist() for folder, part in by_time(rows, "hour")}
    none = "__HIVE_DEFAULT_PARTITION__"
    assert found == {
        f"date={none}/hour={none}": [0, 1, 4],
        "date=0001-01-01/hour=00": [2],
        "date=9999-12-31/hour=23": [3],
    }
    assert [folder for folder, _ in by_time(rows, "")] == [""]


# --- a part of it -------------------------------------------------------------------------------


@pytest.mark.usefixtures("pieces")
def test_since_and_until_choose_whole_records(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        end = sealed_end(stream.log)
        part = put(store, stream, tmp_path / "lake", since_ms=T0 + 9_500, until_ms=T0 + 20_000)
        assert (part.first, part.last, part.remaining) == (10, 20, 50)
        check(FS, tmp_path / "lake", logged(stream, 10, 20))
        rest = put(store, stream, tmp_path / "lake", delete=True)
        assert (rest.first, rest.last, rest.rows) == (0, end, end - 10)
        assert rest.verified == end
        assert Manifest.load(FS, str(tmp_path / "lake")).ranges() == [(0, end)]
        assert archived(FS, tmp_path / "lake").column("offset").to_pylist() == list(range(end))


def test_what_retention_deleted_before_is_told(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 20)
        put(store, stream, tmp_path / "lake")
        known = sealed_end(stream.log)
        fill(stream, 40)
        stream.configure(retention={"max_length_messages": 8})
        stream.vacuum()
        start = stream.log.start_offset
        assert start > known
        fill(stream, 20)  # so that there is something full to archive
        report = put(store, stream, tmp_path / "lake")
        assert (report.first, report.missed) == (start, start - known)


def test_what_somebody_else_deleted_is_passed(tmp_path: Path) -> None:
    """A handle that writes does not know of it yet."""
    with open_store(tmp_path / "data") as store, open_store(tmp_path / "data") as other:
        stream = store.stream("events", **SMALL, retention={"max_length_messages": 20})
        fill(stream, 60)
        other.stream("events").vacuum()
        start = other.stream("events").log.start_offset
        assert start > 0
        report = put(store, stream, tmp_path / "lake", delete=True)
        assert (report.first, report.verified) == (start, sealed_end(stream.log))


@pytest.mark.usefixtures("pieces")
def test_retention_and_appends_beside_it(tmp_path: Path) -> None:
    """Whatever was deleted before it was archived is missing; nothing is there twice or wrong."""
    stop = threading.Event()
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL, retention={"max_length_messages": 60})
        fill(stream, 50)
        sent: list[int] = []

        def work() -> None:
            while not stop.is_set() and len(sent) < 3000:
                sent.append(stream.publish(b"more %d" % len(sent)).offset)
                if len(sent) % 20 == 0:
                    stream.log.flush()
                    stream.vacuum()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(8):
                put(store, stream, tmp_path / "lake")
        finally:
            stop.set()
            thread.join()
        put(store, stream, tmp_path / "lake")
        manifest = Manifest.load(FS, str(tmp_path / "lake"))
        found = archived(FS, tmp_path / "lake")
        offsets = found.column("offset").to_pylist()
        assert offsets == [o for low, high in manifest.ranges() for o in range(low, high)]
        for row in found.to_pylist():
            if row["offset"] >= 50:
                assert row["value"] == b"more %d" % (row["offset"] - 50)


# --- where it may be ----------------------------------------------------------------------------


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream, other = store.stream("events", **SMALL), store.stream("other", **SMALL)
        put(store, stream, tmp_path / "lake")
        with pytest.raises(ConfigError, match="archive of the queue 'events', not of 'other'"):
            put(store, other, tmp_path / "lake")
        with pytest.raises(ConfigError, match="in the store itself"):
            put(store, stream, tmp_path / "data" / "queue" / "lake")
        (tmp_path / "link").symlink_to(tmp_path / "data" / "queue")
        with pytest.raises(ConfigError, match="in the store itself"):
            put(store, stream, tmp_path / "link" / "lake")
        put(store, store.stream("third", **SMALL), tmp_path / "data" / "beside")
        with pytest.raises(ConfigError, match="its name is empty"):
            put(store, stream, "")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter.txt").write_text("dear")
        with pytest.raises(ConfigError, match=r"no archive, and not empty: there is letter\.txt"):
            put(store, stream, tmp_path / "mine")
        with pytest.raises(ConfigError, match="is a file"):
            put(store, stream, tmp_path / "mine" / "letter.txt")
        store.delete("events")
        with pytest.raises(ConfigError, match="another queue 'events', which was deleted"):
            put(store, store.stream("events", **SMALL), tmp_path / "lake")
        for wrong in ({"format": "csv"}, {"partition_by": "minute"}):
            with pytest.raises(ConfigError, match="is not one of"):
                put(store, other, tmp_path / "new", **wrong)
        assert not (tmp_path / "new").exists()


def test_no_archive_is_in_another(tmp_path: Path) -> None:
    """Who reads the one around would read both."""
    with open_store(tmp_path / "data") as store:
        one, other = store.stream("one", **SMALL), store.stream("other", **SMALL)
        put(store, one, tmp_path / "lake")
        (tmp_path / "link").symlink_to(tmp_path / "lake")
        for inside in ("lake/other", "lake/a/b", "lake/date=2026-11-17", "link/other"):
            with pytest.raises(ConfigError, match=r"lake, which is an archive; .* beside those"):
                put(store, other, tmp_path / inside)
        assert [each.name for each in (tmp_path / "lake").iterdir()] == ["_tailrace"]
        put(store, one, tmp_path / "link")  # its own
        put(store, other, tmp_path / "all" / "other")
        with pytest.raises(ConfigError, match="not empty: there is other"):
            put(store, store.stream("third", **SMALL), tmp_path / "all")


def test_one_at_a_time(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        origin = Origin("events", stream.settings.incarnation)
        with (
            Writing(FS, str(tmp_path / "lake"), origin),
            pytest.raises(Locked, match="somebody else"),
        ):
            put(store, stream, tmp_path / "lake")


# --- full disks ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("pieces")
def test_a_full_disk_leaves_the_archive_whole() -> None:
    disk = SimulatedDisk()
    with open_store("/data", fs=disk) as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        put(store, stream, "/lake", until_ms=T0 + 10_000)
        used = sum(len(node) for node in _contents(disk))
        said: set[str] = set()
        for room in range(0, 30_000, 1_500):
            disk.capacity = used + room
            try:
                put(store, stream, "/lake")
            except NotWritten as error:
                said.add(str(error).partition(" (")[0])
            reached = Manifest.load(disk, "/lake").reaches(0)
            disk.capacity = None
            check(disk, "/lake", logged(stream, 0, reached))
        assert said == {"/lake: the disk is full"}
        put(store, stream, "/lake")
        check(disk, "/lake", logged(stream, 0, sealed_end(stream.log)))


def _contents(disk: SimulatedDisk, path: str = "/") -> list[bytes]:
    found = []
    for entry in disk.list(path):
        below = f"{path.rstrip('/')}/{entry.name}"
        if entry.is_dir:
            found += _contents(disk, below)
        else:
            found.append(bytes(entry.size))
    return found


# --- delete, and what it waits for --------------------------------------------------------------


@pytest.mark.usefixtures("pieces")
def test_delete_takes_what_is_verified_and_never_what_a_group_needs(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        queue = store.queue("orders", **SMALL)
        fill(queue, 60)
        everything = logged(queue)
        consumer = queue.consumer("w")
        messages = consumer.receive(20)
        for message in messages:
            message.ack()
        report = put(store, queue, tmp_path / "lake", delete=True)
        end = sealed_end(queue.log)
        assert report.verified == end
        assert report.deleted_segments > 0
        assert 0 < queue.log.start_offset <= 20
        check(FS, tmp_path / "lake", everything.slice(0, end))
        while batch := consumer.receive(10):
            for message in batch:
                message.ack()
        put(store, queue, tmp_path / "lake", delete=True)
        assert queue.log.start_offset == end  # the active segment stays
        fill(queue, 30)
        assert logged(queue, end).num_rows == 90 - end


def test_what_is_half_written_looks_like_no_parquet_file(tmp_path: Path) -> None:
    """Some tools go into each folder, whatever its name begins with."""
    lake = tmp_path / "lake"
    seen: list[str] = []

    class Looking(Inline):
        def run(self, *given: Any) -> Generator[Staged, None, None]:
            for staged in super().run(*given):
                seen.extend(path for path, _ in staged.files)
                assert not list(lake.rglob("*.parquet"))
                yield staged

    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 40)
        put(store, stream, lake, engine=Looking())
    assert len(seen) == len(list(lake.rglob("*.parquet"))) == 1


def test_what_is_damaged_in_the_archive_stays_in_the_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 40)
        put(store, stream, tmp_path / "lake")
        [path] = parquet_files(FS, str(tmp_path / "lake"))
        file = tmp_path / "lake" / path
        good = file.read_bytes()
        for bad, said in (
            (good[:-1], "is damaged"),
            (good[:100] + bytes([good[100] ^ 1]) + good[101:], "is damaged"),
            (None, "is missing"),
        ):
            file.unlink() if bad is None else file.write_bytes(bad)
            with pytest.raises(Corrupt, match=f"{path} {said}") as caught:
                put(store, stream, tmp_path / "lake", delete=True)
            assert caught.value.path == str(file)
            assert stream.log.start_offset == 0
        file.write_bytes(good)
        report = put(store, stream, tmp_path / "lake", delete=True)
        assert report.deleted_segments > 0


@pytest.mark.parametrize("change", ["value", "less", "more", "offset"])
def test_an_archive_that_is_not_the_log_is_told(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a store went back to a backup and on from there: checksums alone would not tell."""
    real = read_rows

    def other(*arguments: Any) -> Any:
        for rows in real(*arguments):
            table = rows.to_pylist()
            if change == "value":
                table[-1]["value"] = b"another"
            elif change == "less":
                table.pop()
            elif change == "more":
                table.append(table[-1] | {"offset": 10_000})
            else:
                table[0]["offset"] += 1
            yield pa.RecordBatch.from_pylist(table, schema=SCHEMA)

    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 40)
        monkeypatch.setattr(writing, "read_rows", other)
        put(store, stream, tmp_path / "lake")
        with pytest.raises(Corrupt, match="log"):
            put(store, stream, tmp_path / "lake", delete=True)
        assert stream.log.start_offset == 0


@pytest.mark.usefixtures("pieces")
def test_retention_waits_for_the_archive_until_it_is_released(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 30)
        put(store, stream, tmp_path / "lake", delete=True)
        start = stream.log.start_offset
        fill(stream, 60)
        stream.configure(retention={"max_length_messages": 5})
        assert stream.vacuum().segments == 0
        assert not stream.drop_segment()
        assert stream.log.start_offset == start
        with pytest.raises(ConfigError, match=r"waits for that one; .* --release"):
            put(store, stream, tmp_path / "other")
        note = release(look_through(store), "events")
        assert note is not None
        assert note.folder(store.layout) == str(tmp_path / "lake")
        assert stream.vacuum().segments > 0
        put(store, stream, tmp_path / "other")


def test_a_log_that_begins_inside_of_a_step(tmp_path: Path) -> None:
    """Retention was at it between archiving and the first verification."""
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        put(store, stream, tmp_path / "lake")
        stream.configure(retention={"max_length_messages": 30})
        stream.vacuum()
        assert stream.log.start_offset > 0
        report = put(store, stream, tmp_path / "lake", delete=True)
        assert report.verified == sealed_end(stream.log)


def test_a_manifest_that_lost_what_was_deleted_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 40)
        put(store, stream, tmp_path / "lake", delete=True)
        path = tmp_path / "lake" / "_tailrace" / "manifest.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + lines[1][:-5])
        with pytest.raises(Corrupt, match="was archived there; bring the archive back"):
            put(store, stream, tmp_path / "lake")
        path.write_bytes(b"".join(lines))
        put(store, stream, tmp_path / "lake")


# --- who reads it -------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [3, 1000])
def test_keys_of_which_few_come_again_have_no_dictionary(tmp_path: Path, keys: int) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 80, keys=keys)
        put(store, stream, tmp_path / "lake")
        check(FS, tmp_path / "lake", logged(stream, 0, sealed_end(stream.log)))
    [path] = (tmp_path / "lake").glob("*.parquet")
    group = parquet.ParquetFile(path).metadata.row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    assert columns["key"].has_dictionary_page == (keys == 3)
    assert columns["topic"].has_dictionary_page


@pytest.mark.parametrize("keys", [3, 1000])
@pytest.mark.usefixtures("pieces")
def test_duckdb_reads_it(tmp_path: Path, keys: int) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is missing: tailrace[dev]")
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 80, every_ms=HOUR // 4, keys=keys)
        put(store, stream, tmp_path / "lake", partition_by="date")
        end = sealed_end(stream.log)
        expected = logged(stream, 0, end)
    found = duckdb.sql(
        f"select * from read_parquet('{tmp_path}/lake/*/*.parquet', hive_partitioning=true) "
        'order by "offset"'
    ).to_arrow_table()
    for name in ("offset", "key", "value", "topic", "routing_key"):
        assert found.column(name).to_pylist() == expected.column(name).to_pylist()
    moments = [moment.astimezone(UTC) for moment in found.column("timestamp").to_pylist()]
    assert moments[0] == datetime.fromtimestamp(T0 / 1000, UTC)
    assert [str(moment.date()) for moment in moments] == [
        str(date) for date in found.column("date").to_pylist()
    ]


@pytest.mark.parametrize("keys", [3, 1000])
@pytest.mark.usefixtures("pieces")
def test_spark_reads_it(spark: Any, tmp_path: Path, keys: int) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 80, every_ms=HOUR // 4, keys=keys)
        put(store, stream, tmp_path / "lake", partition_by="hour")
        expected = logged(stream, 0, sealed_end(stream.log)).to_pylist()
    frame = spark.read.parquet(str(tmp_path / "lake")).orderBy("offset")
    found = frame.toArrow().to_pylist()
    assert [row["offset"] for row in found] == [row["offset"] for row in expected]
    assert [row["key"] for row in found] == [row["key"] for row in expected]
    assert [row["value"] for row in found] == [row["value"] for row in expected]
    assert [row["timestamp"] for row in found] == [row["timestamp"] for row in expected]
    assert [row["expires_at"] for row in found] == [row["expires_at"] for row in expected]
    assert [row["headers"] for row in found] == [row["headers"] for row in expected]
    assert {row["hour"] for row in found} == {row["timestamp"].hour for row in expected}


@pytest.mark.usefixtures("pieces")
def test_spark_writes_it(spark: Any, tmp_path: Path) -> None:
    from tailrace.spark.lake.engines import OnSpark

    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 80, every_ms=HOUR // 4)
        look = look_through(store)
        what = Order("events", str(tmp_path / "lake"), partition_by="date")
        report = archive(look, what, OnSpark(spark))
        end = sealed_end(stream.log)
        assert (report.engine, report.rows) == ("spark", end)
        assert report.steps > 4  # more than a round
        check(FS, tmp_path / "lake", logged(stream, 0, end))
        assert archive(look, what, OnSpark(spark)).steps == 0


@pytest.mark.usefixtures("pieces")
def test_spark_finds_the_disk_full(spark: Any, tmp_path: Path) -> None:
    from tailrace.spark.lake.engines import OnSpark

    with open_store(tmp_path / "data") as store, small_disk_of(tmp_path, "1m") as small:
        stream = store.stream("events", **{**SMALL, "segment_bytes": 1_000_000})
        for _ in range(40):
            stream.publish(os.urandom(100_000))
        stream.log.flush()
        with pytest.raises(NotWritten) as caught:
            archive(look_through(store), Order("events", str(small / "lake")), OnSpark(spark))
    assert str(caught.value).startswith(f"{small / 'lake'}: the disk is full")
    assert str(caught.value).endswith("make room, and archive again")


def test_steps_are_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments go together, large ones are cut."""
    monkeypatch.setattr(archiving, "PIECE_BYTES", 5_000)
    with open_store(tmp_path / "data") as store:
        small = store.stream("small", **{**SMALL, "segment_bytes": 400})
        large = store.stream("large", **{**SMALL, "segment_bytes": 20_000})
        for stream in (small, large):
            fill(stream, 200)
            put(store, stream, tmp_path / stream.name)
            steps = Manifest.load(FS, str(tmp_path / stream.name)).steps
            assert len(steps) > 2
            assert all(step.last - step.first >= 10 for step in steps[:-1])
            check(FS, tmp_path / stream.name, logged(stream, 0, sealed_end(stream.log)))
