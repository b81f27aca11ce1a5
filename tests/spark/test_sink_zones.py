"""A stream that is copied where it is not UTC: what is written is what was read, at any hour, and
whatever a version of Spark gives to the writers of streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tests.project import ROOT
from tests.spark.conftest import session_environment

ZONE = "America/New_York"
# An hour that comes twice there, and one half a year from it.
TIMES = [1_793_511_000_123, 1_793_514_600_123, 1_809_000_000_456]


def test_a_stream_in_another_time_zone(pyspark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    headers = {"h": b"1", "i": b"2"}
    with tailrace.open(data, flush="none") as store:
        source = store.stream("from")
        for moment in TIMES:
            source.publish("v", key="k", headers=headers, timestamp=moment, ttl=10**9)
        for name in ("array", "map"):
            store.stream(name)
    folders = [data, str(tmp_path / "checkpoint"), str(tmp_path / "scratch")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.zoned", *folders],
        cwd=ROOT,
        env={**os.environ, **session_environment(), "TZ": ZONE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with tailrace.open(data) as store:
        given = list(store.stream("from").read())
        for name in ("array", "map"):
            found = list(store.stream(name).read())
            assert [m.timestamp for m in found] == TIMES
            assert [m.expires_at for m in found] == [m.expires_at for m in given]
            assert [(m.value, m.key) for m in found] == [(b"v", b"k")] * 3
            assert [dict(m.headers) for m in found] == [headers] * 3


def test_streaming_writers_get_arrow() -> None:
    """Rows by the ten thousand of them would be gigabytes, and their times no longer certain."""
    datasource: Any = pytest.importorskip("pyspark.sql.datasource")
    from tailrace.spark.sink import StreamWriter

    stream = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceArrowWriter)
    assert issubclass(StreamWriter, stream)
    assert issubclass(StreamWriter, datasource.DataSourceStreamWriter)
