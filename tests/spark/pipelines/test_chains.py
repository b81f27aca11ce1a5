"""Pipelines that read what others write: who begins when, and a chain that is run and checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tailrace.cli import main
from tailrace.spark.pipelines.chains import make_between, ready
from tailrace.spark.pipelines.definition import Definition, Files, Input
from tests.spark.pipelines.support import Place


def pipeline(name: str, source: str, to: str | None = None, **more: Any) -> Definition:
    letters = more.pop("dead_letters", None)
    target = Files("x") if to is None else to
    return Definition(name, Input(source, dead_letters=letters), "", target, **more)


def order(*pipelines: Definition, once: bool = True) -> list[str]:
    """Who begins, step by step, if each step ends before the next; those that run on do not."""
    steps: list[str] = []
    waiting, working = list(pipelines), list[Definition]()
    while waiting:
        found = ready(waiting, working, once=once)
        assert found
        steps.append("".join(each.name for each in found))
        waiting = [each for each in waiting if each not in found]
        working = [each for each in (*working, *found) if not (once or each.is_once)]
    return steps


def table(queue: str, *, is_stream: bool = False) -> dict[str, Input]:
    return {"t": Input(queue, is_stream=is_stream)}


def test_each_begins_when_those_that_feed_it_have_ended() -> None:
    a, b, c = pipeline("a", "1", "2"), pipeline("b", "2", "3"), pipeline("c", "3")
    assert order(c, b, a) == ["a", "b", "c"]
    assert order(a, pipeline("z", "other"), c, b) == ["az", "b", "c"]
    beside = pipeline("d", "2", "3")
    assert order(c, beside, b, a) == ["a", "db", "c"]
    assert order(pipeline("j", "1", "4", tables=table("3", is_stream=True)), b, a) == [*"abj"]
    assert order(pipeline("t", "1", "4", tables=table("3")), b, a) == [*"abt"]
    assert order(pipeline("l", "bad"), pipeline("a", "1", "2", dead_letters="bad")) == [*"al"]


def test_those_at_work_are_waited_for() -> None:
    a, b = pipeline("a", "1", "2"), pipeline("b", "2", "3")
    assert ready([b], [a], once=True) == []
    assert ready([b], [], once=True) == [b]


def test_those_that_run_on_wait_for_nobody_and_nobody_for_them() -> None:
    a, b = pipeline("a", "1", "2"), pipeline("b", "2", "3")
    assert order(b, a, once=False) == ["ba"]
    last = pipeline("c", "3", trigger="once")
    assert order(last, b, a, once=False) == ["cba"]
    first = pipeline("a", "1", "2", trigger="once")
    assert order(last, b, first, once=False) == ["cba"]
    both = pipeline("b", "2", "3", trigger="once")
    assert order(last, both, first, pipeline("z", "3"), once=False) == ["az", "b", "c"]


def test_what_goes_round_over_tables_or_dead_letters_is_cut_there() -> None:
    known = pipeline("a", "1", "2", tables=table("2"))  # what it wrote before
    assert order(known) == ["a"]
    repair = pipeline("b", "bad", "1")
    assert order(pipeline("a", "1", "2", dead_letters="bad"), repair) == ["b", "a"]
    assert order(pipeline("b", "2", "3"), pipeline("a", "1", "2", tables=table("3"))) == ["a", "b"]


def test_what_lies_between_is_made(place: Place) -> None:
    place.publish("1", b"")
    first = pipeline("a", "1", "2", dead_letters="bad")
    last, letters = pipeline("b", "2", "3"), pipeline("c", "bad", "2")
    with place.open() as store:
        make_between(store, [first], [first, last, letters])
        assert [queue.name for queue in store.queues()] == ["1"]  # it makes its own targets
        make_between(store, [last], [first, last, letters])
        assert {queue.name for queue in store.queues()} == {"1", "2"}
        make_between(store, [last, letters], [first, last, letters])
        assert {queue.name: queue.settings.type for queue in store.queues()} == {
            "1": "stream",
            "2": "stream",
            "bad": "classic",
        }


# --- with Spark -----------------------------------------------------------------------------


@pytest.fixture
def chain(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """From `orders` over `mid` to `sums`, in the other order; and one that has `sums` as a
    table."""
    place.publish("orders", {"n": 1}, {"n": 2}, {"n": "x"})
    entries = [
        {
            "name": "joined",
            "from": "mid",
            "tables": {"doubled": {"queue": "doubled"}},
            "sql": "SELECT string(d.value) AS value FROM mid JOIN doubled d ON mid.key = d.key",
            "to": "joined",
        },
        {
            "name": "double",
            "from": "mid",
            "format": "json",
            "schema": "n long",
            "sql": "SELECT key, string(2 * n) AS value FROM mid",
            "to": "doubled",
        },
        {
            "name": "clean",
            "from": "orders",
            "format": "json",
            "schema": "n long",
            "sql": "SELECT string(n) AS key, n FROM orders",
            "to": "mid",
        },
    ]
    (place.folder / "tailrace.yaml").write_text(yaml.safe_dump({"pipelines": entries}))
    monkeypatch.chdir(place.folder)
    return place


def pipelines(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments, "--json"])


def test_a_chain(spark: Any, chain: Place) -> None:
    """It is good before anything was run, and one run with `--once` goes through all of it."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        checked, done = pipelines("check"), pipelines("run", "--all", "--once")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert checked.exit_code == 0, checked.output
    assert [json.loads(line)["ok"] for line in checked.stdout.splitlines()] == [True] * 3
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in found if each["type"] == "pipeline"] == [
        *("clean", "double", "joined")
    ]
    assert chain.values("doubled") == [b"2", b"4"]
    assert sorted(chain.values("joined")) == [b"2", b"4"]
    shown = CliRunner().invoke(main, ["pipeline", "status", "--json"])
    lags = {each["name"]: each["lag"] for each in map(json.loads, shown.stdout.splitlines())}
    assert lags == {"clean": {"orders": 0}, "double": {"mid": 0}, "joined": {"mid": 0}}
