"""What a driver does on a cluster: reads a queue, writes to one, and streams from one to the other.
Run as a program: `cluster_job.py MASTER STORE CHECKPOINT`; prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from tests.project import LIGHT_JVM


def main(master: str, store: str, checkpoint: str) -> None:
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": LIGHT_JVM,
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.python.unix.domain.socket.enabled": "true",  # as the guide has it
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors, from the start
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    source = spark.read.format("tailrace").option("path", store).option("queue", "events")
    frame = source.option("minPartitions", "4").load()
    places = frame.rdd.mapPartitions(_place).collect()
    written = spark.sparkContext.parallelize(range(4), 4).mapPartitions(_place)
    frames = spark.createDataFrame(written.map(lambda place: (place,)), "value string")
    writer = frames.write.format("tailrace").option("path", store).option("queue", "places")
    writer.mode("append").save()
    by_key = {row["k"]: row["n"] for row in _counts(frame)}
    sums = frame.groupBy("key").count().withColumnRenamed("count", "n")
    sums = sums.selectExpr("key", "cast(n as string) as value")
    writer = sums.write.format("tailrace").option("path", store).option("queue", "sums")
    writer.option("txnId", "one").mode("append").save()
    stream = spark.readStream.format("tailrace").option("path", store).option("queue", "events")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700")
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("tailrace")
        .option("path", store)
        .option("queue", "copy")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [each["numInputRows"] for each in query.recentProgress]
    spark.stop()
    print(json.dumps({"by_key": by_key, "batches": batches, "places": places}))


def _place(rows: Any) -> list[str]:
    """The folder of the executor that this task runs in, when others have got theirs."""
    count = sum(1 for _ in rows)
    time.sleep(0.5)
    return [os.getcwd()] if count else []


def _counts(frame: Any) -> list[dict[str, Any]]:
    counted = frame.selectExpr("cast(key as string) as k").groupBy("k").count()
    return [{"k": row["k"], "n": row["count"]} for row in counted.collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
