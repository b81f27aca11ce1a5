"""The benchmark of whole stores: it runs, and compares what it says. In a process of its own, which
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
from bench.pipeline import run
from bench.support.report import document, markdown
from bench.support.setting import TINY

folder = Path(sys.argv[1])
seen, rows, seconds = run(folder, TINY, sys.argv[2:], with_peers=False)
assert not any(folder.iterdir()), "the benchmark leaves files behind"
found = document(seen, rows, seconds)
assert "B/s" in markdown(found)
json.dump(found, sys.stdout)
"""


def measured(tmp_path: Path, *names: str) -> list[Any]:
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[Any] = json.loads(done.stdout.splitlines()[-1])["rows"]
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
