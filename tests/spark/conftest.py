"""One Spark for all tests of the tables that need one: it takes seconds to start, and a gigabyte.
Each worker that runs some has its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tests.project import NEEDS_JAVA

FOLDER = Path(__file__).parent
SOURCES = Path(tailrace.__file__).parent.parent


@pytest.hookimpl(tryfirst=True)  # before they are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            if "pyspark" in getattr(item, "fixturenames", ()):
                item.add_marker(NEEDS_JAVA)
            # py4j leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture
def kept_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The logs that this process keeps open while it stands for one of Spark's."""
    from tailrace.spark import kept

    held: dict[str, Any] = {}
    monkeypatch.setattr(kept, "_kept", held)
    yield held
    for log in held.values():
        log.close()


def session_environment() -> dict[str, str]:
    """What a driver's environment needs: workers run this very Python, and find these sources."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(SOURCES), *(path for path in known if path and path != str(SOURCES))]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def session_config(folder: Path) -> dict[str, Any]:
    """Small and quiet, and it leaves nothing outside of the folder."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@pytest.fixture(scope="session")
def pyspark() -> Any:
    """The module, if it and what it runs on are there."""
    return pytest.importorskip("pyspark.sql", reason="pyspark is missing: tailrace[spark]")


@pytest.fixture(scope="session")
def spark(pyspark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session."""
    from tailrace.spark import local_session

    interrupt = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in session_environment().items():
            patch.setenv(name, value)
        config = session_config(tmp_path_factory.mktemp("spark"))
        session = local_session("local[2]", config)  # which is quick to start
        yield session
        session.stop()
    signal.signal(signal.SIGINT, interrupt)  # Spark has put its own there
