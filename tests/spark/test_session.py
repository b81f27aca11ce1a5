"""The settings of a session, the Java that it finds, and what it says of one that fails.

No Spark is started here; tests/cli/test_sql.py does that.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tailrace.spark import session
from tailrace.spark.java import find_java
from tailrace.spark.session import (
    _cores,
    _local_settings,
    _reason,
    _settings,
    _with_patience,
)

pytest.importorskip("pyspark")


def test_java_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TailraceError, match=r"is Java 1.8.0_402, too old for Spark: install Java"):
        find_java()


def test_settings() -> None:
    assert _cores("local") == 1
    assert _cores("local[3]") == _cores("local[3,4]") == 3
    assert _cores("local[*]") >= 1
    found = _settings("local[3]", {"spark.ui.enabled": "true"}, "/f")
    assert found["spark.sql.shuffle.partitions"] == "6"
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.sql.warehouse.dir"] == "/f"
    given = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "9"}
    found = _settings("spark://h:7077", given, "/f")
    assert found["spark.master"] == "local[2]"
    assert found["spark.sql.shuffle.partitions"] == "9"


def test_a_cluster_is_not_measured_by_this_machine() -> None:
    found = _settings("spark://h:7077", {}, "/f")
    assert "spark.sql.shuffle.partitions" not in found
    assert not [name for name in found if "socket" in name]
    assert "spark.sql.warehouse.dir" not in found  # where its tables are


@pytest.mark.parametrize("debug", [False, True])
def test_pyspark_logs_no_errors_that_it_raises(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.logger import PySparkLogger

    monkeypatch.setenv("TAILRACE_DEBUG", "1" if debug else "")
    session._quiet_pyspark()
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        logger.error("there is no column", errorClass="UNRESOLVED_COLUMN")
        assert logger.isEnabledFor(logging.ERROR) == debug
    monkeypatch.setenv("TAILRACE_DEBUG", "")
    session._quiet_pyspark()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            f"[info][cds] trying\n{session._TITLE}\nToo small maximum heap\n",
            "Too small maximum heap",
        ),
        (
            "Invalid maximum heap size: -Xmxx\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmxx",
        ),
        ("something\nelse\n", "else"),
        ("Error occurred during initialization of VM\n", session._TITLE),
        ("", ""),
    ],
)
def test_why_the_jvm_does_not_start(said: str, reason: str) -> None:
    assert _reason(io.BytesIO(said.encode())) == reason


def test_who_says_when_to_compile_is_heard() -> None:
    patient = _with_patience("")
    assert "-XX:Tier4InvocationThreshold=" in patient
    assert _with_patience("-Da=b") == f"{patient} -Da=b"
    for said in ("-Xint", "-Da=b -XX:TieredStopAtLevel=1", "-XX:-TieredCompilation"):
        assert _with_patience(said) == said


def test_python_is_talked_to_by_files_where_their_paths_are_short_enough() -> None:
    folder = "/" + "f" * 59
    found = _local_settings("local[1]", folder)
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["spark.python.unix.domain.socket.dir"] == folder
    found = _local_settings("local[1]", folder + "f")
    assert not [name for name in found if "socket" in name]


def test_a_child_leaves_the_folder_to_its_parent() -> None:
    """One that is forked, and ends as any process does."""
    code = """
import os, sys
from tailrace.spark.session import _folder_until_exit
folder = _folder_until_exit()
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
print(folder, os.path.isdir(folder))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    folder, was_there = done.stdout.split()
    assert (was_there, os.path.isdir(folder)) == ("True", False)
