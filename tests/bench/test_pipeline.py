"""The benchmark of whole stores: it runs, and compares what it says. In a process of its own, which
takes Spark along when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def test_verify(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "verify"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [row] = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert len(row["lines"]) == 8
    for line in row["lines"]:
        assert line["target"]
        assert [each["role"] for each in line["results"]] == ["tailrace", "base", "variant"]
        assert all(each["value"] > 0 for each in line["results"])
        assert all(check["value"] > 0 for check in line["checks"])
        assert len(line["checks"]) == ("from disk" in line["title"])
