"""Disks that are full: who runs a pipeline is told which, and what to do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.spark.pipelines.homes import Home
from tailrace.spark.pipelines.status import Status, read_status
from tests.queue.support import small_disk_of
from tests.spark.pipelines.support import Place

SQL = "SELECT value FROM events"


def fill(place: Path) -> None:
    with contextlib.suppress(OSError), open(place / "rest", "wb", buffering=0) as rest:
        while rest.write(bytes(4096)):
            pass


def test_files(spark: Any, place: Place) -> None:
    with small_disk_of(place.folder, "1m") as small:
        place.publish("events", *(os.urandom(100_000) for _ in range(20)))
        definition = place.define(sql=SQL, to={"path": "small/lake"})
        with pytest.raises(TailraceError) as caught:
            place.run(spark, definition)
        said = str(caught.value)
        assert said.startswith("pipeline 'p': ")
        assert "IOException: No space left on device. It writes to " in said
        assert f"{small / 'lake'}, and its checkpoint is in {place.store}" in said
        assert "make room, and run it again" in said
        status = read_status(Home(str(place.store), definition))
        assert status is not None
        assert (status.state, f"pipeline 'p': {status.error}") == ("failed", said)


def test_the_disk_of_the_store(spark: Any, tmp_path: Path) -> None:
    with small_disk_of(tmp_path, "8m") as small:
        place = Place(small)
        place.publish("events", b"1")
        definition = place.define(sql=SQL)
        place.run(spark, definition)
        place.publish("events", b"2")
        fill(small)
        with pytest.raises(TailraceError) as caught:
            place.run(spark, definition)
        said = str(caught.value)
        assert said.startswith("pipeline 'p': ")
        assert "No space left on device. It writes to " in said
        assert f"{place.store}, and its checkpoint is in {place.store}" in said
        status = read_status(Home(str(place.store), definition))
        assert status is not None
        assert status.state == "failed"
        (small / "rest").unlink()
        place.run(spark, definition)
        assert place.values("out") == [b"1", b"2"]


def test_a_status_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "none" / "status.json"
    Status("p").write(str(path))
    path.parent.mkdir()
    Status("p", error="x" * 200).write(str(path))
    Path(f"{path}.{os.getpid()}.tmp").mkdir()  # no new file, as on a full disk
    Status("p", state="failed").write(str(path))
    assert '"state": "failed"' in path.read_text()
    assert path.read_text().endswith("}")
