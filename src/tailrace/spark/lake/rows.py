"""The rows of an archive: what a log had, in columns that anybody can read, and back.

`headers` has all headers of a record, those of ours (`_topic`, `_id`, …) as well, so that the
record can be made again as it was. The columns `topic`, `routing_key` and `expires_at` are made of
them, for those who read. A key of no bytes is that of a message without one, as in the log.

A log takes any number as a time, and many tools refuse a file with a time that microseconds cannot
tell. So `timestamp` is null then, and `timestamp_ms` is what the log has. Archives that were begun
before it was there (format 1) go on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.spark.columns import numbers, routing_keys, texts, times

if TYPE_CHECKING:
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["NO_TIME", "SCHEMA", "by_time", "milliseconds", "read_rows", "records_of", "schema_of"]

_TIME: Final = pa.timestamp("ms", "UTC")
_PAIR: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

_FIELDS: Final[list[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _TIME),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("routing_key", pa.string()),
    pa.field("expires_at", _TIME),
    pa.field("headers", pa.list_(pa.field("item", _PAIR, nullable=False))),
]
SCHEMA: Final = pa.schema(_FIELDS)
_FORMAT_1: Final = pa.schema(
    [_FIELDS[0], pa.field("timestamp", _TIME, nullable=False), *_FIELDS[3:]]
)

# Times that a calendar has. The others are in a folder whose name means "none" to those who read
# partitions.
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIME: Final = "__HIVE_DEFAULT_PARTITION__"


def schema_of(format_: int) -> pa.Schema:
    """That of an archive's files."""
    return _FORMAT_1 if format_ == 1 else SCHEMA


def read_rows(
    log: Log, queue: str, first: int, last: int, schema: pa.Schema = SCHEMA
) -> Iterator[pa.RecordBatch]:
    """What a log has of a range of offsets, as rows of an archive."""
    for batch in log.read_arrow(first, last, picked=["_topic", "_expires_at"]):
        topic, given = texts(batch.column("_topic")), batch.column("timestamp")
        is_plain = schema is _FORMAT_1
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("offset"),
                *([given.view(_TIME)] if is_plain else [times(given).view(_TIME), given]),
                batch.column("key"),
                batch.column("value"),
                topic,
                routing_keys(queue, topic),
                numbers(batch.column("_expires_at")).view(_TIME),
                batch.column("headers"),
            ],
            schema=schema,
        )


def milliseconds(rows: pa.RecordBatch) -> Any:
    """The times as the log has them."""
    if "timestamp_ms" in rows.schema.names:
        return rows.column("timestamp_ms")
    return rows.column("timestamp").cast(pa.int64())


def records_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What the kernel makes batches of a log from (`kernel.arrow.Source`), without offsets."""
    chosen: pa.RecordBatch = rows.select(["value", "key", "timestamp", "headers"])
    return chosen


def by_time(
    rows: pa.RecordBatch,
    partition_by: str,
    is_wanted: Callable[[str], bool] = lambda folder: True,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each date, or each hour, with the folder that they belong to; of none: all. Those
    of a folder that is not wanted cost next to nothing, however many there are."""
    if not partition_by:
        if is_wanted(""):
            yield "", rows
        return
    times = rows.column("timestamp")
    is_known = pc.and_(
        pc.greater_equal(times, _moment(_FIRST)), pc.less_equal(times, _moment(_LAST))
    )
    known = pc.if_else(is_known, times, None)
    floors = pc.floor_temporal(known, unit="hour" if partition_by == "hour" else "day")
    encoded = floors.dictionary_encode("encode")
    moments = encoded.dictionary.view(pa.int64()).to_pylist()
    folders = [_folder(each, partition_by) for each in moments]
    wanted = [number for number, folder in enumerate(folders) if is_wanted(folder)]
    if len(folders) == 1:  # as it mostly is
        if wanted:
            yield folders[0], rows
        return
    if not wanted:
        return
    # Folders are numbered as they come, and so they are counted.
    counts = pc.value_counts(encoded.indices).field("counts").to_pylist()
    starts = [0, *accumulate(counts)]
    places = pc.array_sort_indices(encoded.indices)  # those of a folder in their order
    for number in wanted:
        # A copy: a part does not keep the whole batch in memory.
        yield folders[number], rows.take(places.slice(starts[number], counts[number]))


def _moment(at: datetime) -> Any:
    return pa.scalar(at, _TIME)


@lru_cache(1 << 14)  # all batches of a step may have the same thousands
def _folder(moment_ms: int | None, partition_by: str) -> str:
    moment = None if moment_ms is None else _EPOCH + timedelta(milliseconds=moment_ms)
    date = NO_TIME if moment is None else moment.date().isoformat()
    if partition_by == "date":
        return f"date={date}"
    return f"date={date}/hour={NO_TIME if moment is None else f'{moment.hour:02d}'}"
