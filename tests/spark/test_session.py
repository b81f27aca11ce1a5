"""The archive of Spark's classes: who makes it, who takes it, and that a bad one does no harm.

No Spark is started here; tests/cli/test_sql.py does that.
"""

from __future__ import annotations

import io
import logging
import os
import time
from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tailrace.spark import session
from tailrace.spark.session import (
    Archive,
    _cores,
    _find_java,
    _local_settings,
    _reason,
    _settings,
    _with_patience,
)

pytest.importorskip("pyspark")

WHOLE = bytes.fromhex("a8ab0bf0") + b"classes"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tailrace"


def archive(purpose: str = "tables", **settings: str) -> Archive:
    found = Archive.of("/usr/bin/java", settings, purpose)
    assert found is not None
    return found


def making(options: str) -> Path:
    prefix = "-XX:ArchiveClassesAtExit="
    assert options.startswith(prefix)
    return Path(options.removeprefix(prefix))


def test_the_first_makes_one_and_later_ones_use_it(folder: Path) -> None:
    path = making(archive().options(is_heard=True))
    assert path.parent == folder
    assert archive().options(is_heard=True) == ""  # one is enough
    path.unlink()  # as the JVM does before it writes
    path.write_bytes(WHOLE)
    used = archive()
    [option, *_] = used.options(is_heard=True).split()
    [found] = folder.iterdir()
    assert option == f"-XX:SharedArchiveFile={found}"
    assert found.name.endswith(f"-{len(WHOLE)}.jsa")
    assert used.is_used


def test_one_that_is_not_finished_is_not_used(folder: Path) -> None:
    path = making(archive().options(is_heard=True))
    path.write_bytes(b"\0" * 100)  # the header comes last
    assert archive().options(is_heard=True) == ""
    os.utime(path, (0, time.time() - 3600))  # nobody finishes it any more
    assert making(archive().options(is_heard=True)) == path
    os.utime(path, (0, 0))
    making(archive().options(is_heard=True))
    assert path.stat().st_size == 0  # it was cleared, and begun anew


def test_one_that_was_cut_short_is_not_used(folder: Path) -> None:
    making(archive().options(is_heard=True)).write_bytes(WHOLE)
    archive().options(is_heard=True)
    [found] = folder.iterdir()
    os.truncate(found, 5)  # it would kill the JVM
    making(archive().options(is_heard=True))


def test_one_that_the_jvm_does_not_take_is_dropped(folder: Path) -> None:
    making(archive().options(is_heard=True)).write_bytes(WHOLE)
    used = archive()
    used.options(is_heard=False)
    used.drop()
    assert list(folder.iterdir()) == []
    used.drop()  # somebody else had the same thought
    said = "[0.066s][info][cds] UseSharedSpaces: Checksum verification failed."
    assert session._REFUSED.search(said)
    assert not session._REFUSED.search("[0.1s][info][cds] Mapped dynamic region #0 (ReadWrite)")


def test_another_class_path_is_another_archive(folder: Path) -> None:
    one = making(archive().options(is_heard=True))
    other = making(archive(**{"spark.jars": "more.jar"}).options(is_heard=True))
    assert one != other


def test_another_purpose_has_another_archive(folder: Path) -> None:
    path = making(archive("tables").options(is_heard=True))
    assert making(archive("pipelines").options(is_heard=True)) != path


def test_where_there_can_be_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=mine.jsa"}
    assert Archive.of("/usr/bin/java", chosen, "tables") is None
    for place in ("/proc/nothing", str(folder / "with space")):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        assert Archive.of("/usr/bin/java", {}, "tables") is None


def test_java_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TailraceError, match=r"is Java 1.8.0_402, too old for Spark: install Java"):
        _find_java()


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
    assert found["spark.sql.warehouse.dir"] == "/f"  # and not one in the current folder


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
    assert found == {"spark.sql.shuffle.partitions": "2"}
