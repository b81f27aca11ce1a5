"""What pipelines stand on, and others may use, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.options import SinkOptions
from tests.spark.support import open_store

SETTING = "spark.sql.streaming.checkpointFileManagerClass"


def test_local_checkpoints(spark: Any, tmp_path: Path) -> None:
    from tailrace.spark.checkpoints import use_local_checkpoints

    session = spark.newSession()
    use_local_checkpoints(session, "hdfs://somewhere/checkpoint")
    assert session.conf.get(SETTING, None) is None
    use_local_checkpoints(session, str(tmp_path / "checkpoint"))
    assert session.conf.get(SETTING).endswith(".FileSystemBasedCheckpointFileManager")
    mine = spark.newSession()
    mine.conf.set(SETTING, "another")
    use_local_checkpoints(mine, str(tmp_path / "checkpoint"))
    assert mine.conf.get(SETTING) == "another"


def test_versions_of_a_transaction(spark: Any, tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.stream("out")
    for version in (0, 0, 1, 1, 2):
        frame = spark.createDataFrame([(f"{version}",)], "value string")
        writer = frame.write.format("tailrace").option("path", str(tmp_path))
        writer = writer.option("queue", "out").option("txnId", "counts")
        writer.option("txnVersion", str(version)).mode("append").save()
    with open_store(tmp_path) as store:
        assert [message.value for message in store.stream("out").read()] == [b"0", b"1", b"2"]


def test_versions_that_are_none() -> None:
    with pytest.raises(ConfigError, match="txnVersion: expected a whole number"):
        SinkOptions.parse({"path": "x", "txnId": "a", "txnVersion": "-1"})
    with pytest.raises(ConfigError, match="txnVersion: it counts the writes of a txnId"):
        SinkOptions.parse({"path": "x", "txnVersion": "1"})
