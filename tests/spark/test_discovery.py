"""How a session knows `format("tailrace")`: it finds the package beside ours, or is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import session_environment
from tests.spark.support import fill

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import tailrace

settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.master": "local[1]"}
spark = SparkSession.builder.config(map=settings).getOrCreate()

def count():
    return spark.read.format("tailrace").load(path=sys.argv[1], queue="orders").count()

try:
    print("found", count())
except Exception as error:  # of a kind that depends on the version
    if "DATA_SOURCE_NOT_FOUND" not in str(error):
        raise
    print("unknown")
    tailrace.spark.register(spark)
    print("registered", count())
spark.stop()
"""


@pytest.mark.sample(2)
@pytest.mark.usefixtures("pyspark")
@pytest.mark.parametrize("is_found", [True, False])
def test_a_session_finds_the_format_or_is_told(tmp_path: Path, is_found: bool) -> None:
    data = tmp_path / "data"
    fill(data, "orders", 3)
    environment = {**os.environ, **session_environment(), "PYTHONWARNINGS": "ignore"}
    if not is_found:  # another one of that name, which says nothing, comes first
        hiding = tmp_path / "hiding"
        hiding.mkdir()
        (hiding / "pyspark_tailrace.py").write_text("")
        environment["PYTHONPATH"] = f"{hiding}{os.pathsep}{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(data)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = ["unknown", "registered 3"]
    assert done.stdout.splitlines() == (["found 3"] if is_found else told)
