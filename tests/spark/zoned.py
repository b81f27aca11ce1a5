"""A program that copies a stream with all its columns, in the time zone of its environment.

    TZ=America/New_York python -m tests.spark.zoned STORE CHECKPOINT SCRATCH

Run with an interpreter of its own: so its workers have that zone, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.spark import local_session
from tests.spark.conftest import session_config

COLUMNS = ("value", "key", "headers", "timestamp", "expires_at", "routing_key")


def main(store: str, checkpoint: str, scratch: str) -> None:
    spark = local_session("local[2]", session_config(Path(scratch)))
    for headers in ("array", "map"):
        reader = spark.readStream.format("tailrace").option("path", store).option("queue", "from")
        reader = reader.option("startingOffsets", "earliest").option("headers", headers)
        df = reader.option("includeHeaders", "true").load().select(*COLUMNS)
        writer = df.writeStream.format("tailrace").option("path", store).option("queue", headers)
        writer = writer.option("checkpointLocation", f"{checkpoint}/{headers}")
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
