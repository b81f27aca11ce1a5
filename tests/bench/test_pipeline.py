"""The benchmark of jobs, archives and pipelines: it runs, and compares what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.running import run_tiny
from tests.project import NEEDS_JAVA

pytestmark = [NEEDS_JAVA, pytest.mark.long]


def measured(folder: Path, *names: str) -> list[dict[str, Any]]:
    rows = run_tiny("pipeline", folder, *names)
    for row in rows:
        for line in row["lines"]:
            assert line["target"]
            assert all(each["value"] > 0 for each in line["results"])
            assert all(check["value"] > 0 for check in line["checks"])
    return rows


def test_verify(tmp_path: Path) -> None:
    [row] = measured(tmp_path, "verify")
    assert len(row["lines"]) == 8
    for line in row["lines"]:
        assert [each["role"] for each in line["results"]] == ["tailrace", "base", "variant"]
        assert len(line["checks"]) == ("from disk" in line["title"])


@pytest.mark.long
def test_archives_and_pipelines(tmp_path: Path) -> None:
    rows = measured(tmp_path, "archive", "restore", "windows", "start")
    assert [row["number"] for row in rows] == [2, 3, 4, 5]
    assert [len(row["lines"]) for row in rows] == [2, 2, 1, 1]
