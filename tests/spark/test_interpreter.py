"""The script that starts Python for Spark: what is on the path of what it starts, and where there
is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")

from tailrace.spark import interpreter, session  # noqa: E402

HOME = Path(pyspark.__file__).parent


def run(script: str, code: str, path: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [script, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> str:
    found = interpreter.script_in(str(tmp_path))
    assert found is not None
    return found


def test_the_path_has_what_was_given_and_nothing_of_sparks(script: str) -> None:
    jars = [str(each) for each in HOME.glob("jars/spark-core_*.jar")]
    zips = [str(each) for each in HOME.glob("python/lib/*.zip")]
    given = ["/some where/*", "/else/python/lib/pyspark.zip"]
    assert jars
    assert zips
    show = "import os; print(os.environ['PYTHONPATH'])"
    assert run(script, show, [*zips, *jars, *given]).split(os.pathsep) == given
    assert run(script, show, zips) == ""


def test_pyspark_is_the_one_that_is_installed(script: str) -> None:
    """Which is compiled. Spark's zip is not."""
    zips = [str(each) for each in HOME.glob("python/lib/*.zip")]
    code = "import sys, pyspark, py4j; print(pyspark.__file__, sys.executable)"
    assert run(script, code, zips).split() == [pyspark.__file__, sys.executable]


def test_there_is_none_for_modules_that_a_new_python_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "_searched", lambda: {str(tmp_path)})
    assert interpreter.script_in(str(tmp_path)) is None


def test_there_is_none_for_another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert interpreter.script_in(str(tmp_path)) is None


def test_there_is_none_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert interpreter.script_in(str(tmp_path / "missing")) is None


@pytest.mark.parametrize("name", ["it's one", "two words", "$HOME", "a;b", "a*"])
def test_there_is_none_where_a_shell_reads_something_else(tmp_path: Path, name: str) -> None:
    """Spark asks one whether there is such a command, and takes the format for unknown if not."""
    folder = tmp_path / name
    folder.mkdir()
    assert interpreter.script_in(str(folder)) is None


def test_there_is_none_where_nothing_can_be_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert interpreter.script_in(str(tmp_path)) is None


def test_spark_is_told_of_it_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    with session._python("/script", {}):
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == "/script"
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize("settings", [{}, {"spark.pyspark.python": "/other"}])
def test_what_somebody_has_chosen_stays(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sys.executable if settings else "/mine"
    monkeypatch.setenv("PYSPARK_PYTHON", mine)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with session._python("/script", settings):
        assert os.environ["PYSPARK_PYTHON"] == mine
        assert "PYSPARK_DRIVER_PYTHON" not in os.environ


def test_who_looks_for_the_format_loads_nothing_that_reads() -> None:
    """Spark starts a process just for that, and waits for it."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_tailrace; "
        "print(*sorted(name for name in sys.modules if name not in before and "
        "name.startswith(('pyarrow', 'numpy', 'tailrace.log', 'tailrace.queue'))))"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
