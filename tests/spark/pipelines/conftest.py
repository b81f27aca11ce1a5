"""The tests of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.pipelines.support import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """A pipeline has a session of its own, which stays the JVM's active one when it is over."""
    yield
    if "spark" in request.fixturenames:
        from pyspark.sql import SparkSession

        spark: Any = request.getfixturevalue("spark")
        sessions: Any = SparkSession
        sessions._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
