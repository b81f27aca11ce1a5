"""The benchmark of Spark tables: it runs, and compares what it says. In a process of its own, which
takes Spark along when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project import NEEDS_JAVA, ROOT

pytestmark = NEEDS_JAVA

RUN = """
import json, sys
from pathlib import Path
from bench.spark import run
from bench.support.report import document
from bench.support.setting import TINY

folder = Path(sys.argv[1])
seen, rows, seconds = run(folder, TINY, sys.argv[2:], with_peers=False)
assert not any(folder.iterdir()), "the benchmark leaves files behind"
json.dump(document(seen, rows, seconds), sys.stdout)
"""


def report(folder: Path, *rows: str) -> list[dict[str, Any]]:
    """Some rows, or all, of the smallest size."""
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), *rows],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rows"]
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
