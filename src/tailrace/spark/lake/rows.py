"""The rows of an archive: what a log had, in columns that anybody can read, and back.

`headers` has all headers of a record, those of ours (`_topic`, `_id`, …) as well, so that the
record can be made again as it was. The columns `topic`, `routing_key` and `expires_at` are made of
them, for those who read. A key of no bytes is that of a message without one, as in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.spark.columns import numbers, routing_keys, texts

if TYPE_CHECKING:
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["SCHEMA", "by_time", "read_rows", "records_of"]

_TIME: Final = pa.timestamp("ms", "UTC")
_PAIR: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

_FIELDS: Final[list[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _TIME, nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("routing_key", pa.string()),
    pa.field("expires_at", _TIME),
    pa.field("headers", pa.list_(pa.field("item", _PAIR, nullable=False))),
]
SCHEMA: Final = pa.schema(_FIELDS)

_FORMATS: Final = {"date": ("date=%Y-%m-%d",), "hour": ("date=%Y-%m-%d", "hour=%H")}


def read_rows(log: Log, queue: str, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """What a log has of a range of offsets, as rows of an archive."""
    for batch in log.read_arrow(first, last, picked=["_topic", "_expires_at"]):
        topic = texts(batch.column("_topic"))
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("offset"),
                batch.column("timestamp").view(_TIME),
                batch.column("key"),
                batch.column("value"),
                topic,
                routing_keys(queue, topic),
                numbers(batch.column("_expires_at")).view(_TIME),
                batch.column("headers"),
            ],
            schema=SCHEMA,
        )


def records_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What the kernel makes batches of a log from (`kernel.arrow.Source`), without offsets."""
    chosen: pa.RecordBatch = rows.select(["value", "key", "timestamp", "headers"])
    return chosen


def by_time(rows: pa.RecordBatch, partition_by: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each date, or each hour, with the folder that they belong to; of none: all."""
    if not partition_by:
        yield "", rows
        return
    hours = pc.floor_temporal(
        rows.column("timestamp"), unit="hour" if partition_by == "hour" else "day"
    )
    for moment in pc.unique(hours).to_pylist():
        folder = "/".join(moment.strftime(part) for part in _FORMATS[partition_by])
        kept = rows.filter(pc.equal(hours, pa.scalar(moment, hours.type)))
        yield folder, kept
