"""`tailrace pipeline run --all`, in the session of the tests: one of them fails, and each has
settings of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tailrace.cli import main
from tailrace.spark.pipelines.definition import settings
from tailrace.spark.session import is_static
from tests.spark.pipelines.support import Place


def test_one_that_fails(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others work off what is there, and what went wrong is told with exit code 2."""
    place.publish("numbers", b"1", b"0")
    place.publish("words", *(b"word %d" % number for number in range(30)))
    divided = "SELECT 1 / int(string(value)) AS value FROM numbers"
    copied = "SELECT value FROM words"
    (place.folder / "tailrace.yaml").write_text(
        yaml.safe_dump(
            {
                "pipelines": [
                    {"name": "bad", "from": "numbers", "sql": divided, "to": "divided"},
                    {"name": "good", "from": "words", "sql": copied, "to": "copied"},
                ]
            }
        )
    )
    monkeypatch.chdir(place.folder)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        done = CliRunner().invoke(main, ["pipeline", "run", "--all", "--once", "--json"])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert done.exit_code == 2, done.output
    assert "pipeline 'bad': " in done.stderr
    assert "Division by zero" in done.stderr
    assert place.values("copied") == [b"word %d" % number for number in range(30)]
    assert place.values("divided") == []
    seen = CliRunner().invoke(main, ["pipeline", "status", "--json"])
    states = {each["name"]: each["state"] for each in map(json.loads, seen.stdout.splitlines())}
    assert states["bad"] == "failed"
    assert states["good"] == "stopped"


def invoke(spark: Any, place: Place, pipelines: list[dict[str, Any]], *words: str) -> Any:
    (place.folder / "tailrace.yaml").write_text(yaml.safe_dump({"pipelines": pipelines}))
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place.folder)
            return CliRunner().invoke(main, ["pipeline", *words])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_each_has_settings_of_its_own(spark: Any, place: Place) -> None:
    place.publish("ev", {"at": "2026-01-31T12:00:00Z", "n": "x"})
    given = {"from": "ev", "format": "json", "schema": "at timestamp, n string"}
    sql = "SELECT string(at) AS t, try_cast(n AS int) AS n FROM ev"
    there = "spark.sql.session.timeZone=America/New_York"
    loose = "spark.sql.ansi.enabled=false"
    done = invoke(
        spark,
        place,
        [
            {"name": "a", **given, "sql": sql, "to": "a", "conf": [there]},
            {"name": "b", **given, "sql": sql, "to": "b"},
            {"name": "c", **given, "sql": sql.replace("try_", ""), "to": "c", "conf": [loose]},
        ],
        *("run", "--all", "--once"),
    )
    assert done.exit_code == 0, done.output
    assert place.documents("a") == [{"t": "2026-01-31 07:00:00", "n": None}]
    assert place.documents("b") == [{"t": "2026-01-31 12:00:00", "n": None}]
    assert place.documents("c") == [{"t": "2026-01-31 12:00:00", "n": None}]


def test_settings_that_are_wrong(spark: Any, place: Place) -> None:
    """It is the pipeline that has them which is wrong, and no other."""
    place.publish("ev", b"1")

    def define(name: str, *conf: str) -> dict[str, Any]:
        sql = "SELECT value FROM ev"
        return {"name": name, "from": "ev", "sql": sql, "to": name, "conf": [*conf]}

    zone, kept = "spark.sql.session.timeZone", "spark.sql.ui.retainedExecutions"
    pipelines = [
        define("zone", f"{zone}=Nowhere"),
        define("good", f"{zone}=UTC", "spark.sql.catalog.mine=of.no.Consequence"),
        define("one", f"{kept}=7"),
        define("two", f"{kept}=8"),
    ]
    done = invoke(spark, place, pipelines, "check")
    assert done.exit_code == 1, done.output
    said = done.stdout.splitlines()
    assert said[0].startswith(f"pipeline 'zone': conf: {zone}: ")
    assert said[1] == "pipeline 'good': no problem"
    assert said[2].startswith(f"pipeline 'one': conf: {kept} is 7, and pipeline 'two' has 8")
    assert said[3].startswith(f"pipeline 'two': conf: {kept} is 8, and pipeline 'one' has 7")
    done = invoke(spark, place, pipelines, "run", "zone", "--once")
    assert done.exit_code == 2
    assert f"pipeline 'zone': conf: {zone}: " in done.stderr


def test_what_spark_is_started_with(spark: Any, place: Place) -> None:
    zone, memory = "spark.sql.session.timeZone", "spark.executor.memory"
    conf = [f"{zone}=UTC", f"{memory}=2g", "spark.sql.ansi.enabled=true"]
    definition = place.define(sql="SELECT value FROM events", conf=conf)
    assert settings([definition], {zone: "CET"}) == (
        {memory: "2g", zone: "CET"},
        {"spark.sql.ansi.enabled": "true"},
    )
    assert is_static("spark.sql.extensions")
    assert not is_static(zone)
