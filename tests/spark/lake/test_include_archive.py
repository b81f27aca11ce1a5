"""What a queue holds and what was archived of it are one table: no row twice, and none missing."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailrace import ConfigError, TailraceError
from tailrace.log.fs import OsFileSystem
from tailrace.spark.lake.manifest import Manifest
from tests.spark.lake.making import make_archive
from tests.spark.support import SMALL, T0, fill, open_store, schema, source

HOUR = 3_600_000
QUEUE = "q"
ROUNDS = 60


def rows_of(path: Path, *columns: str, **options: Any) -> list[dict[str, Any]]:
    """By the reader alone, as tasks read them."""
    reader = source(path, queue=QUEUE, **options).reader(schema(*columns))
    reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    found: list[dict[str, Any]] = []
    for part in parts:
        for batch in reader.read(part):
            found += batch.to_pylist()
    return in_order(found) if "offset" in columns else found


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["offset"])


def publish(path: Path, chance: random.Random, count: int) -> None:
    with open_store(path) as store:
        queue = store.stream(QUEUE, **SMALL)
        for number in range(count):
            queue.publish(
                chance.choice([b"", b"v", None, chance.randbytes(30)]),
                key=chance.choice([None, "", "a", "b", "c"]),
                headers=chance.choice([None, {"x": b"1"}, {"x": b"1", "y": b"\xff"}]),
                routing_key=chance.choice(["", "eu/1", "us/2"]),
                message_id=chance.choice([None, f"m{number}"]),
                ttl=chance.choice([None, "9d"]),
                timestamp=T0 + number * 60_000 - chance.randrange(2 * HOUR),
            )


def archived(
    path: Path, folder: Path, cuts: list[int], *, delete: int | None = None, **options: Any
) -> None:
    with open_store(path) as store:
        queue = store.get(QUEUE)
        ids: dict[str, Any] = {"queue": QUEUE, "incarnation": queue.settings.incarnation}
        make_archive(folder, queue.log, pairwise(cuts), **ids, **options)
        if delete is not None:
            queue.log.truncate_before(delete)
            queue.log.vacuum()


@pytest.mark.parametrize("turn", range(8))
def test_it_is_what_the_log_was(tmp_path: Path, turn: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, folder = tmp_path / "store", tmp_path / "archive"
    publish(path, chance, 150)
    choices: list[dict[str, Any]] = [
        {},
        {"includeHeaders": "true"},
        {"keys": "a,b"},
        {"filter": "eu/#"},
        {"startingOffsets": json.dumps({QUEUE: chance.randrange(150)})},
        {"endingOffsets": json.dumps({QUEUE: chance.randrange(150)})},
        {"startingTimestamp": str(T0 + chance.randrange(150) * 60_000)},
        {"endingTimestamp": str(T0 + chance.randrange(150) * 60_000), "exactTimestamps": "true"},
        {"startingTimestamp": str(T0 + 90 * 60_000), "exactTimestamps": "true"},
        {"minPartitions": "9", "splitBytes": "3000"},
    ]
    before = [rows_of(path, **choice) for choice in choices]
    counted = rows_of(path, "key", "message_id")
    assert len(before[0]) == 150
    cuts = sorted({0, *(chance.randrange(150) for _ in range(4))})
    archived(
        path,
        folder,
        cuts,
        delete=chance.choice([0, cuts[-1], chance.randrange(cuts[-1] + 1)]),
        partition_by=chance.choice(["", "hour", "date"]),
        row_group=chance.choice([5, 1000]),
    )
    both = {"includeArchive": "true", "archive": str(folder)}
    for choice, expected in zip(choices, before, strict=True):
        assert in_order(rows_of(path, **choice, **both)) == in_order(expected), choice
    found = rows_of(path, "key", "message_id", **both)
    assert sorted(found, key=repr) == sorted(counted, key=repr)
    reader = source(path, queue=QUEUE, headers="map", **both).reader(schema(headers="map"))
    assert sum(batch.num_rows for p in reader.partitions() for batch in reader.read(p)) == 150


def test_only_the_columns_that_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 60)
    archived(path, folder, [0, 30, 60], delete=60)
    from tailrace.spark.lake import reading, together

    asked: list[list[str]] = []
    inner = reading.read_file

    def watched(file: str, names: list[str], *bounds: int) -> Any:
        asked.append(names)
        return inner(file, names, *bounds)

    monkeypatch.setattr(together, "read_file", watched)
    both = {"includeArchive": "true", "archive": str(folder)}
    assert len(rows_of(path, "timestamp", "queue", **both)) == 60
    assert asked == [["offset", "timestamp"]] * 2
    asked.clear()
    late = {"startingTimestamp": str(T0 + 40_000), "exactTimestamps": "true"}
    assert len(rows_of(path, "offset", **both, **late)) == 20
    assert len(asked) == 1, "the other file is older"
    reader = source(path, queue=QUEUE, minPartitions="7", **both).reader(schema("offset"))
    assert len(reader.partitions()) >= 1


def test_splits_of_a_file(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 2_000)
    archived(path, folder, [0, 2_000], delete=2_000, row_group=100)
    both = {"includeArchive": "true", "archive": str(folder), "minPartitions": "3"}
    reader = source(path, queue=QUEUE, **both).reader(schema("offset"))
    parts = reader.partitions()
    assert len(parts) >= 3
    found = [row for p in parts for batch in reader.read(p) for row in batch.to_pylist()]
    assert [row["offset"] for row in in_order(found)] == list(range(2_000))


def test_a_plan_reads_the_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is made anew, to have as many tasks as are asked for."""
    path, folder = tmp_path / "store", tmp_path / "archive"
    publish(path, random.Random(1), 30)
    archived(path, folder, [0, 20], delete=10)
    loaded = []
    load = Manifest.load

    def counting(*given: Any) -> Manifest:
        loaded.append(given)
        return load(*given)

    monkeypatch.setattr(Manifest, "load", counting)
    options = {"includeArchive": "true", "archive": str(folder), "minPartitions": "25"}
    reader = source(path, queue=QUEUE, **options).reader(schema("offset"))
    assert len(reader.partitions()) >= 25
    assert len(loaded) == 1


def test_what_is_in_neither_is_lost(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 100)
    archived(path, folder, [0, 30], delete=60)
    with open_store(path) as store:
        start = store.get(QUEUE).log.start_offset
    both = {"includeArchive": "true", "archive": str(folder)}
    with pytest.raises(TailraceError, match=f"offsets 30 to {start - 1} of 'q' are neither"):
        rows_of(path, "offset", **both)
    found = rows_of(path, "offset", failOnDataLoss="false", **both)
    assert [row["offset"] for row in found] == [*range(30), *range(start, 100)]
    file = next(folder.glob("*.parquet"))
    file.write_bytes(b"no")
    with pytest.raises(TailraceError, match=rf"{file.name} cannot be read"):
        rows_of(path, "offset", failOnDataLoss="true", endingOffsets='{"q": 30}', **both)
    found = rows_of(path, "offset", failOnDataLoss="false", **both)
    assert [row["offset"] for row in found] == list(range(start, 100))


def test_what_is_deleted_after_the_plan_is_read_from_the_archive(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 100)
    archived(path, folder, [0, 20], delete=10)
    both = {"includeArchive": "true", "archive": str(folder)}
    reader = source(path, queue=QUEUE, **both).reader(schema("offset", "value"))
    parts = reader.partitions()
    archived(path, folder, [20, 55, 80], delete=80)
    found = [row for p in parts for batch in reader.read(p) for row in batch.to_pylist()]
    assert [row["offset"] for row in in_order(found)] == list(range(100))
    assert {bytes(row["value"]) for row in found} == {b"q %d" % n for n in range(100)}


def test_while_it_is_written_archived_and_deleted(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 100)
    archived(path, folder, [0, 10])
    both = {"includeArchive": "true", "archive": str(folder)}
    failures = []

    def work() -> None:
        try:
            with open_store(path) as store:
                queue = store.get(QUEUE)
                ids: dict[str, Any] = {"queue": QUEUE, "incarnation": queue.settings.incarnation}
                done = 10
                for _ in range(ROUNDS):
                    for _ in range(10):
                        queue.publish(f"q {queue.log.end_offset}", timestamp=T0)
                    queue.log.flush()
                    end = queue.log.end_offset - 20
                    make_archive(folder, queue.log, [(done, end)], **ids)
                    done = end
                    queue.log.truncate_before(end)
                    queue.log.vacuum()
        except BaseException as error:  # noqa: BLE001  told below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        is_over = False
        while not is_over:
            is_over = not thread.is_alive()  # before the last look
            found = rows_of(path, "offset", "value", **both)
            assert [row["offset"] for row in found] == list(range(len(found)))
            assert all(bytes(row["value"]) == b"q %d" % row["offset"] for row in found)
    finally:
        thread.join()
    assert not failures, failures
    assert len(found) == 100 + 10 * ROUNDS


def test_what_is_refused(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 5)
    fill(path, "other", 5)
    archived(path, folder, [0, 5])
    both = {"includeArchive": "true", "archive": str(folder)}
    with pytest.raises(ConfigError, match="a stream goes on"):
        source(path, queue=QUEUE, **both).streamReader(schema())
    with pytest.raises(ConfigError, match="includeArchive=true only"):
        source(path, queue=QUEUE, archive="x").reader(schema())
    with pytest.raises(ConfigError, match="there is no archive in"):
        rows_of(path, includeArchive="true", archive=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="nobody knows where"):
        rows_of(path, includeArchive="true")
    with pytest.raises(ConfigError, match="name the folder of each"):
        source(path, subscribe="q,other", **both).reader(schema())
    with pytest.raises(ConfigError, match="not of 'other'"):
        source(path, queue="other", **both).reader(schema()).partitions()
    for text in ("s3://bucket/lake", '{"q": "s3://bucket/lake"}'):
        with pytest.raises(ConfigError, match="s3://bucket/lake is an address"):
            rows_of(path, includeArchive="true", archive=text)
    with pytest.raises(ConfigError, match="is an address"):
        Manifest.load(OsFileSystem(), "s3://bucket/lake")
    for text in ("{", '{"q": 5}'):
        with pytest.raises(ConfigError, match="archive: "):
            source(path, queue=QUEUE, includeArchive="true", archive=text).reader(schema())


def test_an_archive_that_ends_behind_the_log_is_refused(tmp_path: Path) -> None:
    """The log went back, as that of a backup does."""
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 5)
    shutil.copytree(path, tmp_path / "before")
    fill(path, QUEUE, 5)
    archived(path, folder, [0, 10])
    both = {"includeArchive": "true", "archive": str(folder)}
    assert len(rows_of(path, "offset", **both)) == 10
    with pytest.raises(ConfigError, match=r"up to 10, and the log of 'q' ends at 5"):
        rows_of(tmp_path / "before", "offset", **both)


def test_an_archive_with_the_rows_of_a_copy_is_refused(tmp_path: Path) -> None:
    """Both went on from the same log, and the copy has archived more."""
    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 5)
    shutil.copytree(path, tmp_path / "copy")
    fill(path, QUEUE, 10)
    with open_store(tmp_path / "copy") as store:
        store.get(QUEUE).publish(b"another")
    both = {"includeArchive": "true", "archive": str(folder)}
    archived(tmp_path / "copy", folder, [0, 6])
    assert len(rows_of(tmp_path / "copy", "offset", **both)) == 6
    with pytest.raises(ConfigError, match="has other messages than the log of 'q'"):
        rows_of(path, "offset", **both)


def test_of_several_queues(tmp_path: Path) -> None:
    path = tmp_path / "store"
    folders = {}
    for queue in (QUEUE, "other"):
        fill(path, queue, 20)
        with open_store(path) as store:
            found = store.get(queue)
            ids: dict[str, Any] = {"queue": queue, "incarnation": found.settings.incarnation}
            folders[queue] = str(tmp_path / queue)
            make_archive(folders[queue], found.log, [(0, 15)], **ids)
            found.log.truncate_before(15)
            found.log.vacuum()
    options = {"includeArchive": "true", "archive": json.dumps(folders)}
    reader = source(path, subscribe="q,other", **options).reader(schema("queue", "offset"))
    rows = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    expected = [{"queue": queue, "offset": n} for queue in ("other", QUEUE) for n in range(20)]
    assert sorted(rows, key=lambda row: (row["queue"], row["offset"])) == expected
    fill(path, "plain", 3)  # which was never archived
    for which in ({"subscribe": "q,other,plain"}, {"subscribePattern": ".*"}):
        found = source(path, **which, **options).reader(schema("queue", "offset"))
        parts = [row for p in found.partitions() for b in found.read(p) for row in b.to_pylist()]
        assert len(parts) == 43


def test_the_folder_is_known_from_archiving(tmp_path: Path) -> None:
    """A queue that was archived remembers where, and nobody need name it."""
    from tests.spark.lake.support import put

    path = tmp_path / "store"
    fill(path, QUEUE, 200)
    with open_store(path) as store:
        queue = store.get(QUEUE)
        assert put(store, queue, tmp_path / "archive", delete=True).rows > 50
        assert queue.log.start_offset > 50
    found = rows_of(path, "offset", includeArchive="true")
    assert [row["offset"] for row in found] == list(range(200))
    shutil.move(tmp_path / "archive", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="there is no archive in"):
        rows_of(path, "offset", includeArchive="true")
    named = {"includeArchive": "true", "archive": str(tmp_path / "elsewhere")}
    assert len(rows_of(path, "offset", **named)) == 200


def test_with_spark(spark: Any, tmp_path: Path) -> None:
    from tailrace.spark import table
    from tailrace.spark.statements import query

    path, folder = tmp_path / "store", tmp_path / "archive"
    fill(path, QUEUE, 200)
    archived(path, folder, [0, 50, 120], delete=120)
    both = table(spark, str(path), QUEUE).include_archive(str(folder))
    assert both.df().count() == 200
    assert both.columns("offset").offsets(10, 130).df().count() == 120
    named = table(spark, str(path), QUEUE).option("includeArchive", True)
    assert named.option("archive", str(folder)).df().count() == 200
    found = query(
        spark, str(path), [QUEUE], "SELECT min(offset), count(*) FROM q", {QUEUE: str(folder)}
    )
    assert [tuple(row) for row in found.collect()] == [(0, 200)]
    assert query(spark, str(path), [QUEUE], "SELECT count(*) FROM q").collect()[0][0] == 80
