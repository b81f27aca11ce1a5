"""The archive of Spark's classes: who makes it, who takes it, and that a bad one does no harm.

No Spark is started here; tests/cli/test_sql.py does that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailrace.spark.class_archive import ClassArchive

pytest.importorskip("pyspark")

WHOLE = bytes.fromhex("a8ab0bf0") + b"classes"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tailrace"


def archive(purpose: str = "tables", **settings: str) -> ClassArchive:
    found = ClassArchive.of("/usr/bin/java", settings, purpose)
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


def test_one_that_the_jvm_refuses_is_dropped(folder: Path) -> None:
    making(archive().options(is_heard=True)).write_bytes(WHOLE)
    used = archive()
    used.options(is_heard=True)
    used.drop_if_refused("[0.1s][info][cds] Mapped dynamic region #0 (ReadWrite)")
    assert len(list(folder.iterdir())) == 1
    used.drop_if_refused("[0.066s][info][cds] UseSharedSpaces: Checksum verification failed.")
    assert list(folder.iterdir()) == []


def test_another_class_path_is_another_archive(folder: Path) -> None:
    one = making(archive().options(is_heard=True))
    other = making(archive(**{"spark.jars": "more.jar"}).options(is_heard=True))
    assert one != other


def test_another_purpose_has_another_archive(folder: Path) -> None:
    path = making(archive("tables").options(is_heard=True))
    assert making(archive("pipelines").options(is_heard=True)) != path


def test_where_there_can_be_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=mine.jsa"}
    assert ClassArchive.of("/usr/bin/java", chosen, "tables") is None
    for place in ("/proc/nothing", str(folder / "with space")):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        assert ClassArchive.of("/usr/bin/java", {}, "tables") is None
