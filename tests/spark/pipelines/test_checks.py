"""What is wrong with a pipeline is said before anything runs; and what a checkpoint is for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tailrace.errors import ConfigError, Locked, TailraceError
from tailrace.spark.pipelines.homes import Home
from tailrace.spark.pipelines.running import Run, check, told_apart
from tailrace.spark.pipelines.status import Status, lag_of, read_status
from tests.spark.pipelines.support import Place, forget_last_commit

SCHEMA = {"format": "json", "schema": "id long, at timestamp"}
LAKE = {"to": {"path": "x"}}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a word": ({"sql": "SELECT *\nFORM events"}, "sql: line 2, column 6: Syntax error"),
    "a column": ({"sql": "SELECT id,\n  nothing FROM events", **SCHEMA}, "sql: line 2, column 3: "),
    "a table": (
        {"sql": "SELECT *\nFROM other"},
        "sql: line 2, column 6: there is no table 'other'; there are events",
    ),
    "a type": ({"sql": "SELECT id + at FROM events", **SCHEMA}, "sql: line 1, column 8: "),
    "a command": ({"sql": "DROP VIEW events"}, "sql: a pipeline is a query"),
    "no stream": ({"sql": "SELECT 1 AS value"}, "sql: the statement does not read events"),
    "no value": ({"sql": "SELECT key FROM events"}, "no column that would be the value"),
    "more": ({"sql": "SELECT value, 1 AS n FROM events"}, "column 'value', .* and 'n' beside it"),
    "twice": ({"sql": "SELECT 1 AS a, 2 AS a FROM events"}, "'a' is there twice"),
    "headers": ({"sql": "SELECT value, 1 AS headers FROM events"}, "'headers' is int"),
    "a schema": ({"sql": "SELECT 1", **SCHEMA, "schema": "id lnog"}, "schema: line 1, column 4: "),
    "no columns": ({"sql": "SELECT 1", **SCHEMA, "schema": "long"}, "schema: it has no columns"),
    "no line": (
        {"sql": "SELECT * FROM events", "format": "csv", "schema": "id long, a array<int>"},
        "schema: the column 'a' is array<int>, which is not in a line of CSV",
    ),
    "a queue": ({"sql": "SELECT 1", "from": "gone"}, "from: there is no queue 'gone'"),
    "its queue": (
        {"sql": "SELECT 1", "tables": {"t": {"queue": "gone"}}},
        "tables.t.queue: there is no queue 'gone'",
    ),
    "files": ({"sql": "SELECT 1", "tables": {"t": "t.csv"}}, "tables.t: .*does not exist"),
    "a watermark": (
        {"sql": "SELECT 1", "watermark": {"column": "when"}},
        "watermark: .*`when`",
    ),
    "no time": ({"sql": "SELECT 1", "watermark": {"column": "offset"}}, "watermark: "),
    "a mode": (
        {"sql": "SELECT key, count(*) AS n FROM events GROUP BY key"},
        "sql: .*[Aa]ppend",
    ),
    "a partition": (
        {"sql": "SELECT value FROM events", "to": {"path": "x", "partition_by": ["day"]}},
        "to.partition_by: there is no column 'day'; there are value",
    ),
    "a double": ({"sql": "SELECT 1 AS a, 2 AS A FROM events", **LAKE}, "'a' is there twice"),
    "parts twice": (
        {"sql": "SELECT key, 1 AS a FROM events", "to": {"path": "x", "partition_by": ["a", "A"]}},
        "to.partition_by: 'a' is there twice; remove one",
    ),
    "a list": (
        {
            "sql": "SELECT key, array(1) AS a FROM events",
            "to": {"path": "x", "partition_by": ["a"]},
        },
        "to.partition_by: the column 'a' is array<int>, of which no name of a folder",
    ),
    "an interval": (
        {"sql": "SELECT key, array(make_interval(1)) AS a FROM events", **LAKE},
        "to.format: the column 'a' is array<interval>, .* is in no file; write it as string",
    ),
    "no file": (
        {"sql": "SELECT struct(key) AS s FROM events", "to": {"path": "x", "format": "csv"}},
        "to.format: the column 's' is struct<key:binary>, which is not in a file of CSV",
    ),
    "no type": (
        {"sql": "SELECT key, null AS n FROM events", "to": {"path": "x", "format": "csv"}},
        "to.format: the column 'n' is void, which is not in a file of CSV",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(spark: Any, place: Place, name: str) -> None:
    given, said = WRONG[name]
    place.publish("events", b"")
    definition = place.define(**given)
    with pytest.raises(TailraceError, match=f"^pipeline 'p': .*{said}"):
        check(told_apart(spark, definition, {}), str(place.store), definition)
    with place.open() as store:
        assert [queue.name for queue in store.queues()] == ["events"]


def test_what_is_good(spark: Any, place: Place) -> None:
    place.publish("events", b"")
    (place.folder / "p.sql").write_text("SELECT id FROM events WHERE id IS NOT NULL\n")
    definition = place.define(sql_file="p.sql", **SCHEMA)
    check(told_apart(spark, definition, {}), str(place.store), definition)
    (place.folder / "p.sql").write_text("SELECT\nno FROM events\n")
    definition = place.define(sql_file="p.sql", **SCHEMA)
    with pytest.raises(TailraceError, match=r"^pipeline 'p': p\.sql: line 2, column 1: "):
        check(told_apart(spark, definition, {}), str(place.store), definition)


def test_what_files_take(spark: Any, place: Place) -> None:
    """Names in any case, as Spark has them; and doubles, where the file has no rule against it."""
    place.publish("events", b"")
    to: dict[str, Any] = {"path": "x", "partition_by": ["day"]}
    place.run(spark, place.define(sql="SELECT value, 1 AS Day FROM events", to=to))
    given: list[tuple[str, dict[str, Any]]] = [
        ("SELECT 1 AS a, 2 AS A FROM events", {"format": "csv"}),
        ("SELECT value, INTERVAL '1' DAY AS a FROM events", {}),
    ]
    for sql, to in given:
        definition = place.define(sql=sql, to={"path": "x", **to})
        check(told_apart(spark, definition, {}), str(place.store), definition)
    exact = place.define(
        sql="SELECT value, 1 AS a, 2 AS A FROM events",
        to={"path": "x", "partition_by": ["a"]},
        conf=["spark.sql.caseSensitive=true"],
    )
    check(told_apart(spark, exact, {}), str(place.store), exact)


def test_files_that_cannot_be_read(place: Place) -> None:
    with pytest.raises(
        ConfigError, match=r"tailrace\.yaml:\d+: pipelines\[0\]\.sql_file: .*p\.sql"
    ):
        place.define(sql_file="p.sql")
    (place.folder / "p.sql").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        place.define(sql_file="p.sql")
    with pytest.raises(ConfigError, match=r"pipelines\[0\]\.tables\.t\.format: .*does not tell"):
        place.define(sql="SELECT 1", tables={"t": "some/folder"})


def test_a_changed_statement(spark: Any, place: Place) -> None:
    place.publish("events", b"1", b"2")
    first = place.define(sql="SELECT value FROM events")
    place.run(spark, first)
    changed = place.define(sql="SELECT concat('x', string(value)) AS value FROM events")
    with pytest.raises(TailraceError, match="made for another sql") as caught:
        place.run(spark, changed)
    assert "--restart-from-scratch" in str(caught.value)
    assert "--keep-checkpoint" in str(caught.value)
    place.run(spark, first)  # as it was
    place.run(spark, place.define(sql="SELECT value FROM events", trigger="5s"))  # no other query
    assert place.values("out") == [b"1", b"2"]
    place.run(spark, changed, keep_checkpoint=True)
    place.publish("events", b"3")
    place.run(spark, changed)
    assert place.values("out") == [b"1", b"2", b"x3"]
    moved = Home(str(place.store), changed).begin_anew()
    assert len(moved) == 2
    place.run(spark, changed)
    assert place.values("out") == [b"1", b"2", b"x3", b"x1", b"x2", b"x3"]


def test_a_checkpoint_that_nobody_knows(spark: Any, place: Place) -> None:
    place.publish("events", b"1")
    definition = place.define(sql="SELECT value FROM events", checkpoint="elsewhere")
    run = place.run(spark, definition)
    assert (place.folder / "elsewhere" / "metadata").exists()
    forget_last_commit(run.home.checkpoint)
    (place.store / "queue/.tailrace/pipelines/p/pipeline.json").write_text("{}")
    with pytest.raises(TailraceError, match="made for another from, output_mode, sql, tables, to"):
        place.run(spark, definition)


def test_one_process_at_a_time(place: Place) -> None:
    place.publish("events", b"1")
    home = Home(str(place.store), place.define(sql="SELECT value FROM events"))
    assert not is_held(home)
    with home.held():
        assert is_held(home)
        with (
            pytest.raises(Locked, match=r"pipeline 'p': process \d+ runs it"),
            contextlib.ExitStack() as stack,
        ):
            stack.enter_context(home.held())
    assert not is_held(home)


def is_held(home: Home) -> bool:
    return home.is_held  # which changes, and nobody knows


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "given",
    [{}, {"output_mode": "update"}, {"to": {"path": "lake"}}],
    ids=["append", "update", "files"],
)
def test_a_query_that_fails(spark: Any, place: Place, given: dict[str, Any]) -> None:
    place.publish("events", b"1", b"0")
    sql = "SELECT\n  1 / int(string(value)) AS value FROM events"
    definition = place.define(sql=sql, **given)
    said = r"^pipeline 'p': line 2, column 3: Division by zero\."
    with pytest.raises(TailraceError, match=said) as caught:
        place.run(spark, definition)
    assert "SQLSTATE" not in str(caught.value)
    home = Home(str(place.store), definition)
    status = read_status(home)
    assert status is not None
    assert status.state == "failed"
    assert status.error is not None
    assert "Division by zero" in status.error
    if "to" in given:
        assert list(place.folder.glob("lake/*.parquet")) == []
    else:
        assert place.values("out") == []


def test_the_status(spark: Any, place: Place) -> None:
    place.publish("events", b"1", b"2")
    definition = place.define(sql="SELECT value FROM events")
    home = Home(str(place.store), definition)
    assert read_status(home) is None
    place.run(spark, definition)
    place.publish("events", b"3")
    status = read_status(home)
    assert status is not None
    assert (status.state, status.rows_in, status.rows_out, status.batch) == ("stopped", 2, 2, 0)
    assert lag_of(str(place.store), status.offsets) == {"events": 1}
    assert status.rate > 0


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "5", "null", '{"name": "p", "offsets": null}', '{"name": 5}'),
        *('{"name": "p", "offsets": {"a": "1"}}', '{"name": "p", "rate": "1"}'),
        *('{"name": "p", "batch_at": null}', '{"name": "p", "offsets": []}'),
    ],
)
def test_a_status_of_another_shape(place: Place, text: str) -> None:
    """It is as good as none."""
    place.publish("events", b"1")
    home = Home(str(place.store), place.define(sql="SELECT value FROM events"))
    with home.held():
        Path(home.status).write_text(text)
        assert read_status(home) is None
        Status("p", batch=3, rows_out=None, offsets={"events": 1}).write(home.status)
        found = read_status(home)
    assert found is not None
    assert (found.batch, found.rows_out, found.offsets) == (3, None, {"events": 1})


def test_the_status_after_a_run_with_nothing_to_do(spark: Any, place: Place) -> None:
    place.publish("events", b"1", b"2", timestamp=1_700_000_000_000)
    sql = "SELECT value, timestamp FROM events"
    definition = place.define(sql=sql, watermark={"column": "timestamp", "delay": "1s"})
    home = Home(str(place.store), definition)
    place.run(spark, definition)
    before = read_status(home)
    place.run(spark, definition)
    place.publish("events", b"3", b"4", b"5")
    status = read_status(home)
    assert before is not None
    assert status is not None
    assert (status.state, status.rows_in, status.batches) == ("stopped", 0, 0)
    assert lag_of(str(place.store), status.offsets) == {"events": 3}
    kept = ("batch", "batch_at", "batch_rows", "batch_ms", "rate")
    assert [getattr(status, name) for name in kept] == [getattr(before, name) for name in kept]
    assert status.watermark is not None
    assert status.watermark >= (before.watermark or "")
    home.begin_anew()  # another checkpoint, of which nothing is known
    place.run(spark, place.define(sql=sql, start="next"))
    status = read_status(home)
    assert status is not None
    assert (status.batch_rows, status.rate) == (0, 0)


def test_a_new_checkpoint_counts_from_zero(spark: Any, place: Place) -> None:
    """Its batches are others than those of the same numbers before."""

    def run(checkpoint: str) -> None:
        sql = "SELECT string(value) AS value, count(*) AS n FROM events GROUP BY value"
        sql = f"SELECT concat(value, ':', n) AS value FROM ({sql})"
        place.run(spark, place.define(sql=sql, output_mode="update", checkpoint=checkpoint))

    place.publish("events", b"1")
    run("one")
    place.publish("events", b"2")
    run("two")
    assert sorted(place.values("out")) == [b"1:1", b"1:1", b"2:1"]


def test_a_source_that_was_made_anew(spark: Any, place: Place) -> None:
    definition = place.define(sql="SELECT value FROM events")
    place.publish("events", b"1")
    place.run(spark, definition)
    with place.open() as store:
        store.delete("events")
    place.publish("events", b"2")
    with pytest.raises(TailraceError, match="tailrace pipeline run p --restart-from-scratch"):
        place.run(spark, definition)


def test_each_batch_counts_once_whatever_the_clock_does(place: Place) -> None:
    place.publish("events", b"1")
    definition = place.define(sql="SELECT value FROM events")
    run = Run(None, str(place.store), definition)  # type: ignore[arg-type]
    told: list[int] = []

    class Query:
        recentProgress: ClassVar[list[SimpleNamespace]] = []  # noqa: N815

        @property
        def lastProgress(self) -> SimpleNamespace:  # noqa: N802
            return self.recentProgress[-1]

    for batch in range(10):
        minute = 0 if batch < 5 else 59  # and so an hour back
        progress = {
            "runId": "r",
            "batchId": batch,
            "timestamp": f"2026-11-18T{13 - (batch >= 5)}:{minute:02}:0{batch}.000Z",
            "numInputRows": 10,
            "durationMs": {"addBatch": 1, "triggerExecution": 5},
            "sources": [],
            "sink": {"numOutputRows": 10},
        }
        told_by_spark = SimpleNamespace(json=json.dumps(progress))
        Query.recentProgress = [*Query.recentProgress, told_by_spark][-3:]
        run._take("main", Query(), lambda _, found: told.append(found["batchId"]))
    assert told == list(range(10))
    assert (run.status.rows_in, run.status.batches) == (100, 10)
