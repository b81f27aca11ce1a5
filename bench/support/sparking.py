"""What the rows about Spark share: one session, tables of the same rows, and sources and sinks that
do nothing, which are what the Python side of Spark can do at best."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

import tailrace
from tailrace.cli.measure import Sample
from tailrace.spark import local_session

__all__ = ["PARTS", "Sparking", "Table", "timed"]

ROOT = Path(__file__).resolve().parents[2]
_KEY = 16
_AT_ONCE = 10_000
PARTS = 8  # of a table of prebuilt batches
_PREBUILT_BYTES = 1 << 20  # of each of them: Spark takes no size quicker


def timed(count: int, do: Callable[[], object]) -> Sample:
    began = time.perf_counter()
    do()
    return Sample(count, time.perf_counter() - began)


class Ceiling(DataSource):
    """A table whose rows are there before anybody asks: the same batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return str(self.options["ddl"])

    def reader(self, schema: Any) -> _Prebuilt:
        return _Prebuilt(self.options["file"], int(self.options["times"]))


class _Prebuilt(DataSourceReader):
    def __init__(self, file: str, times: int) -> None:
        self._file = file
        self._times = times

    def partitions(self) -> Any:
        return [InputPartition(number) for number in range(PARTS)]

    def read(self, partition: Any) -> Iterator[Any]:
        with pa.memory_map(self._file) as source:
            [batch] = pa.ipc.open_file(source).read_all().to_batches()
            for _ in range(self._times):
                yield batch


class Nowhere(DataSource):
    """A table that throws away what is written to it."""

    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def schema(self) -> str:
        return "value binary"

    def writer(self, schema: Any, overwrite: bool) -> _Discarding:
        return _Discarding()


class _Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@dataclass(frozen=True)
class Table:
    """The same rows as a queue, as Parquet, and as prebuilt batches."""

    store: str
    queue: str
    parquet: str
    zstd: str
    ceiling: str
    ceiling_rows: int  # of its batch
    rows: int
    ddl: str


class Sparking:
    """A session, which is started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def spark(self) -> SparkSession:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        conf = {
            "spark.driver.memory": "4g",
            "spark.local.dir": str(self.folder / "spark"),
            "spark.sql.shuffle.partitions": "4",
        }
        spark = local_session("local[2]", conf)  # as users have it
        spark.dataSource.register(Ceiling)
        spark.dataSource.register(Nowhere)
        return spark

    def table(self, rows: int, value_bytes: int, codec: str) -> Table:
        """Made once for each size and codec."""
        folder = self.folder / f"{value_bytes}-{codec}"
        batch = max(min(_AT_ONCE, rows // PARTS), 1)
        times = rows // batch
        piece = max(min(_PREBUILT_BYTES // (value_bytes + _KEY), batch), 1)
        store = str(folder / "store")
        names = [str(folder / name) for name in ("parquet", "zstd", "ceiling.arrow")]
        reader = self.spark.read.format("tailrace").option("path", store).option("queue", "events")
        if not folder.exists():
            folder.mkdir(parents=True)
            with tailrace.open(store, flush="none") as opened:
                queue = opened.stream("events", compression=codec)
                for _ in range(times):
                    values = [os.urandom(value_bytes // 2) * 2 for _ in range(batch)]
                    queue.publish_many([(os.urandom(_KEY // 2).hex(), value) for value in values])
            frame = reader.load()
            frame.write.option("compression", "none").parquet(names[0])
            frame.write.option("compression", "zstd").parquet(names[1])
            first = next(
                pq.ParquetFile(next(iter(Path(names[0]).glob("*.parquet")))).iter_batches(piece)
            )
            schema = pa.schema(
                [
                    field.with_type(pa.timestamp("us", "UTC"))
                    if pa.types.is_timestamp(field.type)
                    else field
                    for field in first.schema
                ]
            )
            with pa.OSFile(names[2], "wb") as sink, pa.ipc.new_file(sink, schema) as target:
                target.write_batch(first.cast(schema))
        ddl = ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in reader.load().schema.fields
        )
        parquet, zstd, ceiling = names
        rows = times * batch
        with pa.memory_map(ceiling) as source:
            piece = pa.ipc.open_file(source).get_batch(0).num_rows
        return Table(store, "events", parquet, zstd, ceiling, piece, rows, ddl)

    def read(self, table: Table, ddl: str | None = None, **options: Any) -> Any:
        """Our table, as a DataFrame that is planned anew."""
        reader = self.spark.read.format("tailrace").option("path", table.store)
        reader = reader.option("queue", table.queue).options(**options)
        return (reader.schema(ddl) if ddl else reader).load()

    def scan(self, frame: Any) -> None:
        frame.write.format("noop").mode("append").save()

    def stop(self) -> None:
        if "spark" in vars(self):
            self.spark.stop()
