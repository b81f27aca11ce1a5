"""`tailrace pipeline run --all`, in the session of the tests: one of them fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tailrace.cli import main
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
