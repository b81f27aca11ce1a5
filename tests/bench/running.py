"""Benchmarks of what runs on Spark: each in a process of its own, which takes Spark along when it
ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT

__all__ = ["run_tiny"]

_RUN = """
import json, sys
from importlib import import_module
from pathlib import Path
from bench.support.report import document, markdown
from bench.support.setting import TINY

run, folder = import_module(f"bench.{sys.argv[1]}").run, Path(sys.argv[2])
seen, rows, seconds = run(folder, TINY, sys.argv[3:], with_peers=False)
assert not any(folder.iterdir()), "the benchmark leaves files behind"
found = document(seen, rows, seconds)
assert markdown(found)
json.dump(found, sys.stdout)
"""


def run_tiny(name: str, folder: Path, *rows: str) -> list[dict[str, Any]]:
    """Some rows, or all, of the smallest size."""
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, name, str(folder), *rows],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rows"]
    return made
