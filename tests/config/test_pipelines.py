"""Pipelines in a file: both forms, and each thing that can be wrong, with its line and key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.config.pipelines import parse_start, parse_trigger
from tailrace.config.schema import TableEntry, TargetEntry
from tailrace.errors import ConfigError
from tests.config.support import EVERYTHING, loaded, problems

HEAD = "pipelines:\n- name: p\n  from: a\n  to: b\n  sql: SELECT 1\n"

MESSAGES = [
    # shapes
    ("  every: 5s", "6: pipelines[0].every: unknown key; there are name, from, format, "),
    ("  formt: csv", "6: pipelines[0].formt: unknown key; did you mean format?"),
    ("  format: xml", "6: pipelines[0].format: expected one of raw, json, csv, avro, got 'xml'"),
    ("  output_mode: all", "6: pipelines[0].output_mode: expected one of append, update, complete"),
    ("  on_loss: pass", "6: pipelines[0].on_loss: expected one of fail, skip, got 'pass'"),
    ("  watermark: {delay: 1s}", "6: pipelines[0].watermark.column: it is missing"),
    ("  watermark: at", "6: pipelines[0].watermark: expected a mapping of column, delay, got 'at'"),
    (
        "  max_offsets_per_trigger: 0",
        "6: pipelines[0].max_offsets_per_trigger: expected a whole number above 0, got 0",
    ),
    ("  tables: [a]", "6: pipelines[0].tables: expected a mapping, got a list"),
    (
        "  tables:\n    t: 5",
        "7: pipelines[0].tables.t: expected text, or a mapping of path, queue, ",
    ),
    ("  tables:\n    t: {path: x, paht: x}", "7: pipelines[0].tables.t.paht: unknown key; "),
    ("  tables: {'a b': x}", "6: pipelines[0].tables.'a b': a name here is made of"),
    ("  conf: spark", "6: pipelines[0].conf: expected a list such as"),
    # rules
    ("  sql_file: x.sql", "6: pipelines[0].sql_file: there is sql, too; keep one of them"),
    ("  format: json", "2: pipelines[0].schema: format json needs it, or schema_file"),
    ("  schema: id long", "6: pipelines[0].schema: it is for format json, csv or avro"),
    ("  delimiter: ';'", "6: pipelines[0].delimiter: it is for format csv"),
    ("  dead_letters: d", "6: pipelines[0].dead_letters: every value is as good as another"),
    ("  start: soon", "6: pipelines[0].start: 'soon' is not first, next, an offset, or a time"),
    ("  start: 2026-01-31T12:00:00", "6: pipelines[0].start: '2026-01-31T12:00:00' is a time with"),
    ("  start: -1", "6: pipelines[0].start: an offset is 0 or above, not -1"),
    (f"  start: {10**20}", "6: pipelines[0].start: an offset is 9223372036854775807 at most, not"),
    ("  trigger: often", "6: pipelines[0].trigger: 'often' is not a duration"),
    ("  watermark: {column: at, delay: late}", "6: pipelines[0].watermark.delay: 'late' is not a"),
    ("  conf: [ui=false]", "6: pipelines[0].conf: 'ui=false' is not name=value with a name such"),
    ("  tables: {t: {}}", "6: pipelines[0].tables.t.path: name files (path) or a queue (queue)"),
    ("  tables: {t: {path: x, queue: y}}", "6: pipelines[0].tables.t.path: name files (path) or a"),
    ("  tables: {t: {path: x, format: avro}}", "6: pipelines[0].tables.t.format: files are parq"),
    ("  tables: {t: {queue: x, format: parquet}}", "6: pipelines[0].tables.t.format: messages are"),
    ("  tables: {t: {path: x, stream: true}}", "6: pipelines[0].tables.t.stream: it is for a que"),
    ("  tables: {t: {queue: x, start: 1}}", "6: pipelines[0].tables.t.start: it is for a queue t"),
    ("  tables: {t: {queue: x, format: csv}}", "6: pipelines[0].tables.t.schema: format csv needs"),
    ("  tables: {t: {queue: ''}}", "6: pipelines[0].tables.t.queue: the name of a queue must not"),
    ("  tables: {a: x}", "6: pipelines[0].tables.a: 'a' is what the pipeline reads"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "said"), MESSAGES)
def test_what_is_wrong(tmp_path: Path, more: str, said: str) -> None:
    [found] = problems(tmp_path, HEAD + more)
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "pipelines: [{name: p, from: a, to: a, sql: x}]",
            "1: pipelines[0].to: it reads 'a', and would read what it writes",
        ),
        (
            "pipelines: [{name: p, from: Events, to: b, sql: x, tables: {events: y}}]",
            "1: pipelines[0].tables.events: 'events' is what the pipeline reads",
        ),
        (
            f"{HEAD}  format: csv\n  schema: id long\n  dead_letters: a\n",
            "8: pipelines[0].dead_letters: it would read what it has refused, for ever",
        ),
        (
            f"{HEAD}  format: csv\n  schema: id long\n  dead_letters: b\n",
            "8: pipelines[0].dead_letters: it is where the rows go; name another queue",
        ),
        (
            "pipelines: [{name: p, from: a, to: {path: x}, sql: x, output_mode: update}]",
            "1: pipelines[0].output_mode: files are only added to; update is for a queue",
        ),
        (
            "pipelines: [{name: p, from: a, to: {format: csv}, sql: x}]",
            "1: pipelines[0].to.path: it is missing",
        ),
        (
            "pipelines: [{name: p, from: a, to: {path: ''}, sql: x}]",
            "1: pipelines[0].to.path: it is empty; name a folder",
        ),
        ("pipelines: [{name: p, from: a, to: '', sql: x}]", "1: pipelines[0].to: the name of a q"),
        ("pipelines: [{name: p, from: '', to: b, sql: x}]", "1: pipelines[0].from: the name of a"),
        ("pipelines: [{name: p, from: a, to: 5, sql: x}]", "1: pipelines[0].to: expected text, or"),
        ("pipelines: [{name: p, from: a, to: b, sql: ' '}]", "1: pipelines[0].sql: it is empty"),
        ("pipelines: [{name: '', from: a, to: b, sql: x}]", "1: pipelines[0].name: the name of a"),
    ],
)
def test_what_is_wrong_with_what_has_to_be_there(tmp_path: Path, text: str, said: str) -> None:
    [found] = problems(tmp_path, text)
    assert found.startswith(said)


def chained(*pairs: str) -> str:
    """Pipelines from a queue to a queue: `a-b`."""
    one = "  - {name: %s, from: %s, to: %s, sql: x}\n"
    return "pipelines:\n" + "".join(one % (pair, *pair.split("-")) for pair in pairs)


def test_pipelines_that_go_round_in_a_circle(tmp_path: Path) -> None:
    said = "pipelines would read what comes of what they write, from "
    [found] = problems(tmp_path, chained("x-a", "a-b", "b-c", "c-a", "c-d"))
    assert found.startswith(f"3: pipelines[1].to: {said}'a' to 'b' to 'c' to 'a', and never come")
    first, second = problems(tmp_path, chained("a-b", "b-a", "c-d", "d-c"))
    assert f"{said}'a' to 'b' to 'a'" in first
    assert f"{said}'c' to 'd' to 'c'" in second
    assert problems(tmp_path, chained("a-b", "a-c", "b-d", "c-d", "d-e")) == []
    own = "pipelines: [{name: p, from: a, to: b, sql: x, tables: {t: {queue: b, stream: %s}}}]"
    [found] = problems(tmp_path, own % "true")
    assert found.startswith(f"1: pipelines[0].to: {said}'b' to 'b'")
    assert problems(tmp_path, own % "false") == []  # it is read once
    assert problems(tmp_path, "pipelines: [{name: p, to: b, sql: x}]") == [
        "1: pipelines[0].from: it is missing"
    ]


def test_both_forms(tmp_path: Path) -> None:
    short, long = loaded(tmp_path, EVERYTHING).pipelines
    assert (short.name, short.source, short.sql, short.to) == (
        *("revenue", "jobs", "SELECT 1"),
        "events",
    )
    assert short.format == "raw"
    assert long.to == TargetEntry(path="lake", format="json", partition_by=["day"])
    assert long.tables["prices"] == "prices.csv"
    events = long.tables["events"]
    assert isinstance(events, TableEntry)
    assert (events.queue, events.stream, events.start) == ("events", True, 17)
    assert events.watermark is not None
    assert events.watermark.delay == "10m"


def test_toml(tmp_path: Path) -> None:
    text = """
[[pipelines]]
name = "p"
from = "a"
sql = "SELECT 1"
to = { path = "lake" }
[pipelines.tables.t]
queue = "x"
stream = 1
"""
    [found] = problems(tmp_path, text, "tailrace.toml")
    assert found == "9: pipelines[0].tables.t.stream: expected true or false, got 1"


def test_moments() -> None:
    assert parse_start(5) == 5
    assert parse_start("next") == "next"
    assert parse_start("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(ConfigError):
        parse_start("last")
    with pytest.raises(ConfigError, match="write 2026-01-31T00:00:00Z for UTC"):
        parse_start("2026-01-31")
    assert parse_start("2026-01-31T00:00:00Z") == datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_trigger("10s") == 10_000
    assert parse_trigger("once") == "once"
    assert parse_trigger(None) is None
