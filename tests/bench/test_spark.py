"""The benchmark of Spark tables: it runs, and compares what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.running import run_tiny
from tests.project import NEEDS_JAVA

pytestmark = [NEEDS_JAVA, pytest.mark.long]


def report(folder: Path, *rows: str) -> list[dict[str, Any]]:
    made = run_tiny("spark", folder, *rows)
    for row in made:
        for line in row["lines"]:
            assert line["target"]
            assert line["results"][0]["role"] == "tailrace"
            assert line["results"][0]["value"] > 0
    return made


def test_some_rows(tmp_path: Path) -> None:
    columns, time_range = report(tmp_path, "columns", "time-range")
    assert [each["role"] for each in columns["lines"][0]["results"]] == ["tailrace", "base"]
    assert columns["lines"][0]["checks"][0]["value"] > 0
    assert time_range["lines"][0]["checks"][0]["value"] < 1  # the share of the bytes


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_every_row(tmp_path: Path) -> None:
    rows = report(tmp_path)
    assert [row["number"] for row in rows] == [1, 2, 3, 4, 5]
    for line in rows[0]["lines"]:
        assert [each["role"] for each in line["results"]] == ["tailrace", "limit", "base", "base"]
    for row in rows[3:]:
        for line in row["lines"]:
            assert all(check["value"] > 0 for check in line["checks"])
