"""Checkpoints on a disk of this machine, by a rename.

For each batch Spark writes two small files, each by way of a temporary one. The manager that it
chooses by itself works on any file system of Hadoop's. The other one renames the file, which is
atomic on a local disk, and takes less of each batch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_local", "use_local_checkpoints"]

_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLACES: Final = (  # it has moved between versions of Spark
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
)


def is_local(location: str) -> bool:
    """Is it a folder of this machine? Only there a rename is what it has to be."""
    return "://" not in location or location.startswith("file:///")


def use_local_checkpoints(spark: SparkSession, location: str) -> None:
    """For queries that this session starts from now on, whose checkpoints are in `location`.
    Nothing happens if it is elsewhere, or somebody has chosen another way."""
    if not is_local(location) or spark.conf.get(_SETTING, None):
        return
    os.makedirs(location.removeprefix("file://"), exist_ok=True)
    name = _found(spark)
    if name is not None:
        spark.conf.set(_SETTING, name)


def _found(spark: SparkSession) -> str | None:
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _PLACES:
        path = name.replace(".", "/") + ".class"
        if loader.getResource(path) is not None:
            return name
    return None
