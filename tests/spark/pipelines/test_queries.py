"""What statements can do: windows, joins, each sort of target. Results are held against models."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.log.fs import OsFileSystem
from tailrace.log.options import Retention
from tailrace.queue.backup_restore import restore_backup
from tailrace.queue.offline.verify import verify_store
from tailrace.spark.pipelines.running import Run, told_apart
from tests.spark.pipelines.support import PATIENCE_S, Place, forget_last_commit

T0 = 1_700_000_040_000  # a whole minute
MINUTE = 60_000


def at(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


@pytest.mark.spark("4.2")  # in steps
def test_windows_with_a_watermark(spark: Any, place: Place) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(400):  # nobody is late by two minutes
        moment = T0 + number * 3_000 - rng.randrange(119_000)
        rows.append({"who": f"w{rng.randrange(3)}", "at": moment})
    late = [{"who": "late", "at": T0 - 3_600_000} for _ in range(50)]
    after = [{"who": "w0", "at": T0 + 400 * 3_000} for _ in range(50)]
    everything = [{**row, "at": at(row["at"])} for row in [*rows, *late, *after]]
    place.publish("events", *everything)
    definition = place.define(
        format="json",
        schema="who string, at timestamp",
        watermark={"column": "at", "delay": "2m"},
        max_offsets_per_trigger=50,
        sql="""
            SELECT who AS key, unix_millis(window.start) AS start, count(*) AS n
            FROM events GROUP BY who, window(at, '1 minute')
        """,
    )
    run = place.run(spark, definition)
    closed = max(int(row["at"]) for row in [*rows, *after]) - 2 * MINUTE
    expected = Counter((str(row["who"]), int(row["at"]) // MINUTE * MINUTE) for row in rows)
    expected = Counter({k: n for k, n in expected.items() if k[1] + MINUTE <= closed})
    found = Counter(
        {
            ((message.key or b"").decode(), row["start"]): row["n"]
            for message, row in zip(place.messages("out"), place.documents("out"), strict=True)
        }
    )
    assert len(place.messages("out")) == len(expected)
    assert found == expected
    assert run.status.watermark == at(closed).replace("+00:00", ".000Z")


def test_joins_with_files_and_other_queues(spark: Any, place: Place) -> None:
    (place.folder / "prices.csv").write_text("item,price\ncup,2.5\nplate,4\n")
    (place.folder / "colours.json").write_text('{"item": "cup", "colour": "red"}\n')
    place.publish("people", {"id": 1, "name": "ada"}, b"nobody")
    place.publish("events", {"item": "cup", "who": 1}, {"item": "plate", "who": 2})
    place.publish("payments", {"who": 1, "paid": 9})
    definition = place.define(
        format="json",
        schema="item string, who long",
        tables={
            "prices": "prices.csv",
            "colours": {"path": "colours.json", "schema": "item string, colour string"},
            "persons": {"queue": "people", "format": "json", "schema": "id long, name string"},
            "payments": {
                "queue": "payments",
                "stream": True,
                "format": "json",
                "schema": "who long, paid long",
            },
        },
        sql="""
            SELECT e.item, price, colour, name, paid FROM events e
            JOIN prices USING (item)
            LEFT JOIN colours USING (item)
            LEFT JOIN persons ON persons.id = e.who
            JOIN payments ON payments.who = e.who
        """,
    )
    place.run(spark, definition)
    cup = {"item": "cup", "price": 2.5, "colour": "red", "name": "ada", "paid": 9}
    assert place.documents("out") == [cup]
    place.publish("payments", {"who": 2, "paid": 5}, b"{")  # its other half is known from before
    run = place.run(spark, definition)
    plate = {"item": "plate", "price": 4.0, "colour": None, "name": None, "paid": 5}
    assert place.documents("out") == [cup, plate]
    assert list(place.reasons("payments")) == [b"{"]
    assert place.reasons("people") == {}  # it is read at each start: they are left out
    assert run.status.offsets == {"events": 2, "payments": 3}


@pytest.mark.spark("4.1")  # before it a table is read again for each batch, whatever was deleted
def test_a_table_that_retention_has_passed(spark: Any, place: Place) -> None:
    """It is read again, as it is by then. If it is as it was, something else is lost."""
    place.publish("events", b"1")
    place.publish("prices", b"5", b"6")
    definition = place.define(
        tables={"prices": {"queue": "prices"}},
        sql="SELECT concat(string(e.value), ':', p.of) AS value FROM events e "
        "CROSS JOIN (SELECT string(count(*)) AS of FROM prices) p",
    )
    run = Run(told_apart(spark, definition, {}), str(place.store), definition)
    with run.home.held():
        run.start()
        wait_for(run, place, 1)
        place.publish("prices", b"7", b"8")  # which it does not see: it has read the table
        with place.open() as store:
            store.get("prices").log.let_go(Retention(max_bytes=0), None)
        place.publish("prices", b"9")
        place.publish("events", b"2")
        wait_for(run, place, 2)
        run.stop(now=True)
        assert not run._lost_a_table(TailraceError("rows are lost, which retention has deleted"))
    assert place.values("out") == [b"1:2", b"2:1"]


def wait_for(run: Run, place: Place, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while run.status.rows_out != count:
        assert run.poll()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.spark("4.2")  # a watermark moves with the second batch of a run
def test_columns_that_are_named_and_not_needed(spark: Any, place: Place) -> None:
    """They are not read; the one of a watermark is, whatever the statement does with it."""
    place.publish("events", b"1", b"2", key="a", headers={"a": "b"}, timestamp=T0)
    place.publish("events", b"3", key="b", timestamp=T0 + MINUTE)
    definition = place.define(
        watermark={"column": "timestamp", "delay": "1s"},
        output_mode="update",
        sql="""
            WITH every AS (SELECT key, value, headers, timestamp, routing_key FROM events)
            SELECT key, count(*) AS n FROM every WHERE value IS NOT NULL OR true GROUP BY key
        """,
    )
    run = place.run(spark, definition)
    found = zip(place.messages("out"), place.documents("out"), strict=True)
    assert {message.key: row["n"] for message, row in found} == {b"a": 2, b"b": 1}
    assert run.status.watermark == at(T0 + MINUTE - 1_000).replace("+00:00", ".000Z")


def test_a_restart_goes_on(spark: Any, place: Place) -> None:
    definition = place.define(sql="SELECT key, value, timestamp, headers FROM events", start="next")
    place.publish("events", b"before")
    place.run(spark, definition)
    place.publish("events", b"1", key="k", headers={"a": "b"}, timestamp=T0)
    place.run(spark, definition)
    place.publish("events", b"2")
    place.run(spark, definition)
    first, second = place.messages("out")
    assert (first.key, first.value, first.headers["a"]) == (b"k", b"1", b"b")
    assert first.timestamp == T0
    assert second.value == b"2"


def test_a_backup_goes_on_where_it_was(spark: Any, place: Place) -> None:
    definition = place.define(sql="SELECT value FROM events")
    place.publish("events", b"1")
    place.run(spark, definition)
    with place.open() as store:
        store.backup(place.folder / "kept")
    assert verify_store(OsFileSystem(), str(place.store / "queue")).ok
    shutil.rmtree(place.store)
    restore_backup(place.folder / "kept", place.store)
    place.publish("events", b"2")
    place.run(spark, definition)
    assert place.values("out") == [b"1", b"2"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("start", [2, at(T0 + 2)])
def test_where_it_begins(spark: Any, place: Place, start: Any) -> None:
    for number in range(4):
        place.publish("events", b"%d" % number, timestamp=T0 + number)
    definition = place.define(sql="SELECT offset AS value FROM events", start=start)
    place.run(spark, definition)
    assert place.values("out") == [b"2", b"3"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_changes_of_an_aggregate(spark: Any, place: Place, mode: str) -> None:
    """A batch that is replayed writes nothing a second time."""
    definition = place.define(
        sql="SELECT key, count(*) AS n FROM events GROUP BY key", output_mode=mode
    )
    place.publish("events", b"", b"", key="a")
    place.run(spark, definition)
    place.publish("events", b"", key="b")
    run = place.run(spark, definition)
    expected = {"update": 2, "complete": 3}[mode]
    assert len(place.messages("out")) == expected
    forget_last_commit(run.home.checkpoint)
    place.run(spark, definition)
    assert len(place.messages("out")) == expected
    last = {message.key: json.loads(message.value or b"")["n"] for message in place.messages("out")}
    assert last == {b"a": 2, b"b": 1}


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_files(spark: Any, place: Place, form: str) -> None:
    dataset: Any = pytest.importorskip("pyarrow.dataset")

    definition = place.define(
        sql="SELECT string(key) AS key, string(value) AS text FROM events",
        to={"path": "lake/out", "format": form, "partition_by": ["key"]},
    )
    place.publish("events", b"1", b"2", key="a")
    place.publish("events", b"3", key="b")
    place.run(spark, definition)
    place.publish("events", b"4", key="b")
    run = place.run(spark, definition)
    lake = place.folder / "lake" / "out"

    def rows() -> list[tuple[str, str]]:
        found = dataset.dataset(lake, format=form, partitioning="hive").to_table().to_pylist()
        return sorted((row["key"], str(row["text"])) for row in found)

    expected = [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")]
    assert rows() == expected
    forget_last_commit(run.home.checkpoint)
    place.run(spark, definition)
    assert rows() == expected
    assert {path.name.rpartition(".")[2] for path in files(lake)} == {form}
    assert {path.parent.name for path in files(lake)} == {"key=a", "key=b"}


@pytest.mark.parametrize("name", ["_hidden", ".hidden"])
def test_readers_see_the_files_whatever_the_pipeline_is_called(
    spark: Any, place: Place, name: str
) -> None:
    dataset: Any = pytest.importorskip("pyarrow.dataset")

    place.publish("events", b"1", b"2")
    definition = place.define(
        name=name, sql="SELECT string(value) AS text FROM events", to={"path": "lake"}
    )
    place.run(spark, definition)
    lake = place.folder / "lake"
    assert dataset.dataset(lake, format="parquet").count_rows() == 2
    assert spark.read.parquet(str(lake)).count() == 2


def test_columns_of_a_message_in_any_case(spark: Any, place: Place) -> None:
    place.publish("events", b"1", key="k")
    place.run(spark, place.define(sql="SELECT key AS KEY, value AS Value FROM events"))
    assert [(m.key, m.value) for m in place.messages("out")] == [(b"k", b"1")]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_folder_that_looks_like_a_pattern(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path / "a{b,c}[d]")
    place.folder.mkdir()
    (place.folder / "t.csv").write_text("n,p\n1,x\n2,y\n")
    place.publish("events", {"n": 1}, {"n": 3})
    definition = place.define(
        format="json",
        schema="n long",
        tables={"t": "t.csv"},
        sql="SELECT e.n, p FROM events e JOIN t ON e.n = t.n",
        to={"path": "lake", "format": "json"},
    )
    place.run(spark, definition)
    [file] = (place.folder / "lake").iterdir()
    assert json.loads(file.read_text()) == {"n": 1, "p": "x"}
    place.publish("events", {"n": 4})
    run = place.run(spark, definition)
    assert run.status.batches == 1
    assert list((place.folder / "lake").iterdir()) == [file]  # none of a batch without rows
