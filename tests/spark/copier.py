"""A program that copies a stream by a streaming query, and is killed while it does.

    python -m tests.spark.copier STORE CHECKPOINT SCRATCH

Run with a whole interpreter of its own: what is killed is all of it, the JVM and the workers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.spark import local_session
from tests.spark.conftest import session_config

PER_TRIGGER = 7


def main(store: str, checkpoint: str, scratch: str) -> None:
    config = session_config(Path(scratch))
    spark = local_session("local[2]", config)
    reader = spark.readStream.format("tailrace").option("path", store).option("queue", "from")
    reader = reader.option("startingOffsets", "earliest").option("group", "copier")
    df = reader.option("maxOffsetsPerTrigger", PER_TRIGGER).load().select("key", "value")
    writer = df.writeStream.format("tailrace").option("path", store).option("queue", "to")
    writer = writer.option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
