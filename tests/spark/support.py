"""What the tests of the tables share: a source without a Spark around it, and words for rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Message, Store

# Whoever imports this is skipped without them.
pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[spark]")

from tailrace.spark.columns import COLUMNS, HEADERS_AS, MAX_TIME_MS  # noqa: E402

T0 = 1_700_000_000_000  # a time, in milliseconds

# Segments and batches so small that a few messages make many.
SMALL: dict[str, Any] = {
    "compression": "none",
    "segment_bytes": 2_000,
    "index_interval": 200,
}


def open_store(path: Path | str, **options: Any) -> Store:
    return Store(path, **{"upkeep": False, "flush": "async", **options})


def fill(path: Path | str, queue: str, count: int, **options: Any) -> None:
    """So many messages, one batch each: `{queue} {number}`, of a second each from T0 on."""
    with open_store(path) as store:
        found = store.stream(queue, **{**SMALL, **options})
        first = found.log.end_offset
        for number in range(first, first + count):
            found.publish(f"{queue} {number}", key=f"k{number % 3}", timestamp=T0 + number * 1000)


def segments(path: Path | str, queue: str) -> list[Path]:
    with open_store(path) as store:
        return sorted(Path(store.layout.segments(queue)).glob("*.seg"))


def schema(*names: str, headers: str = "array") -> Any:
    """Of these columns, or all."""
    from pyspark.sql import types as t

    fields = [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
    kinds = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        HEADERS_AS["array"]: t.ArrayType(t.StructType(fields)),
        HEADERS_AS["map"]: t.MapType(t.StringType(), t.BinaryType()),
    }
    wanted = {**COLUMNS, "headers": HEADERS_AS[headers]}
    return t.StructType([t.StructField(n, kinds[wanted[n]]) for n in names or COLUMNS])


def source(path: Path | str, **options: Any) -> Any:
    """The source, as Spark makes it."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from tailrace.spark.source import TailraceSource

    return TailraceSource(CaseInsensitiveDict({"path": str(path), **options}))


def splits(path: Path | str, *columns: str, **options: Any) -> tuple[Any, list[Any]]:
    """A reader and what its tasks are given, as they arrive there."""
    reader = source(path, **options).reader(schema(*columns))
    reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return reader, parts


def read(path: Path | str, *columns: str, **options: Any) -> list[dict[str, Any]]:
    """The rows, planned and read as Spark would, in this process."""
    reader, parts = splits(path, *columns, **options)
    return rows(batch for part in parts for batch in reader.read(part))


def rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def column(found: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in found]


def offsets(path: Path | str, **options: Any) -> list[int]:
    return column(read(path, "offset", **options), "offset")


def collect(df: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame, with times as they are, whatever the time zone is here."""
    found: list[dict[str, Any]] = df.toArrow().to_pylist()
    return found


def as_row(message: Message) -> dict[str, Any]:
    """What a message has to look like in a table."""
    return {
        "key": message.key,
        "value": message.value,
        "topic": message.topic or None,  # others may write records without one
        "partition": 0,
        "offset": message.offset,
        "timestamp": moment(message.timestamp),
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in message.headers.items()],
        "queue": message.queue,
        "routing_key": message.routing_key,
        "message_id": message.message_id,
        "expires_at": moment(message.expires_at),
    }


def moment(milliseconds: int | None) -> Any:
    """As Arrow gives it. What is too far away is no time to Spark."""
    is_time = milliseconds is not None and abs(milliseconds) <= MAX_TIME_MS
    micros = milliseconds * 1000 if milliseconds is not None and is_time else None
    return pa.scalar(micros, pa.timestamp("us", "UTC")).as_py()


def said(error: BaseException) -> str:
    """What Spark's error says of ours, which is all that people need of its many lines."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("tailrace.errors.")]
    assert ours, str(error)
    return ours[-1].partition(": ")[2]
