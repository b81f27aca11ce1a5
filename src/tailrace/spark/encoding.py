"""Rows of a DataFrame to the records of messages, a column at a time.

A message's record has headers of ours in front of the publisher's (`queue/message.py`). Where they
are the same for every row, which they mostly are, they are made once; where a column has a say they
are made by sorting the parts of all lists by row, with no loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.errors import ConfigError, InvalidName
from tailrace.queue.addresses import address_of, topic_in
from tailrace.queue.dead_letters import PREFIX as DEAD
from tailrace.queue.message import EXPIRES, ID, STATE, TOPIC
from tailrace.queue.topics import check_topic
from tailrace.spark.columns import MAX_TIME_MS

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["IGNORED", "TAKES", "Encoder", "as_text", "check_schema", "known_columns"]

_BYTES: Final = ("binary", "string")
_HEADERS: Final = (
    "map<string,binary>",
    "map<string,string>",
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
)
TAKES: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": _HEADERS,
    "timestamp": ("timestamp", "timestamp_ntz", "bigint"),
    "queue": ("string",),
    "topic": ("string",),
    "routing_key": ("string",),
    "message_id": ("string",),
    "expires_at": ("timestamp", "timestamp_ntz", "bigint"),
    "ttl": ("tinyint", "smallint", "int", "bigint", "decimal", "double", "float"),
}
# What a table has that is read, so that it can be written as it is.
IGNORED: Final = ("offset", "partition", "timestampType")
_BY_LOWER: Final = {name.lower(): name for name in (*TAKES, *IGNORED)}  # as Spark takes names
_VOID: Final = "void"  # what Spark calls the type of NULL
_NEEDED: Final[Any] = {"value": pa.binary(), "queue": pa.string(), "topic": pa.string()}
_IN_HEADERS: Final = {"headers", "topic", "routing_key", "message_id", "expires_at", "ttl"}

_PAIR: Final[Any] = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_LONGEST_TTL_S: Final = 2**40
_CHECKED_MOST: Final = 10_000  # routing keys and topics that are remembered
_NUMBER: Final = b"0"  # stands where a publisher without ids of its own would count


def check_schema(schema: Any) -> list[str]:
    """The names of the columns that count; `ConfigError` names one that is wrong."""
    given: dict[str, str] = {}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        name = _BY_LOWER.get(field.name.lower())
        if name is None:
            raise ConfigError(
                f"the column {field.name!r} is unknown; a queue takes {', '.join(TAKES)}"
            )
        if name in IGNORED:
            continue
        if kind != _VOID and kind.partition("(")[0] not in TAKES[name]:  # decimal(2,1)
            advice = "; cast it" if name != "headers" else ""
            raise ConfigError(
                f"the column {field.name!r} is {kind}; it has to be "
                f"{' or '.join(TAKES[name])}{advice}"
            )
        if field.name == given.get(name):
            raise ConfigError(f"the column {field.name!r} is there twice")
        if name in given:
            raise ConfigError(
                f"the columns {given[name]!r} and {field.name!r} are the same one: upper and lower "
                "case do not count; drop one of them"
            )
        given[name] = field.name
    if "value" not in given:
        raise ConfigError("there is no column 'value'; give one that name, as binary or string")
    return list(given)


def known_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Those that count, by the names that we know. Of those that are null by their type there are
    left only the ones of which that means something else than if they were not there."""
    columns = {}
    for given, column in zip(rows.schema.names, rows.columns, strict=True):
        name = _BY_LOWER[given.lower()]
        if name in IGNORED:
            continue
        if pa.types.is_null(column.type):
            if name not in _NEEDED:
                continue
            column = column.cast(_NEEDED[name])
        columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def as_text(name: str, column: Any) -> Any:
    """A column that has to be text: the strings of Spark may be any bytes."""
    raw = column.cast(pa.binary())
    try:
        return raw.cast(pa.string())  # which checks it
    except pa.ArrowInvalid:
        wrong = next(each for each in pc.unique(raw).to_pylist() if not _is_text(each))
        raise ConfigError(f"the column {name!r}: {wrong!r:.200} is not UTF-8") from None


def _is_text(value: bytes | None) -> bool:
    try:
        _ = value and value.decode()
    except UnicodeDecodeError:
        return False
    return True


class Encoder:
    """Makes batches as the log takes them (`value`, `key`, `timestamp`, `headers`) of those of one
    queue. Those have no `headers` whose rows all have the same: these are `same_headers`. Not
    thread-safe."""

    def __init__(self, queue: str, ttl_ms: int, now_ms: int) -> None:
        """`ttl_ms`: how long messages of the queue live that say nothing of it; 0 for ever."""
        self._queue = queue
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms
        self._checked: dict[str, set[str | None]] = {}
        self.last_end_ms: int | None = 0  # when the last row expires; `None`: one does not

    @property
    def same_headers(self) -> list[tuple[str, bytes]]:
        """What a row has as headers that says nothing of them."""
        lists = _lists(self._parts({}, 1, self._expiry({}, 1)), 1)
        return [(pair["key"], pair["value"]) for pair in lists[0].as_py()]

    def records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: rows.column(name) for name in rows.schema.names}
        made: dict[str, Any] = {"value": columns["value"]}
        expires = self._expiry(columns, rows.num_rows)
        self._note_ends(expires, rows.num_rows)
        if columns.keys() & _IN_HEADERS:
            made["headers"] = _lists(self._parts(columns, rows.num_rows, expires), rows.num_rows)
        if "key" in columns:
            made["key"] = pc.fill_null(columns["key"].cast(pa.binary()), b"")
        else:  # a message without a key has an empty one
            made["key"] = pa.repeat(pa.scalar(b"", pa.binary()), rows.num_rows)
        if "timestamp" in columns:
            given = _milliseconds(columns["timestamp"])
            unit = "milliseconds since 1970, or before it"
            _check_range("timestamp", given, MAX_TIME_MS + 1, unit, begin=-MAX_TIME_MS)
            made["timestamp"] = given
        return pa.RecordBatch.from_pydict(made)

    # --- headers ----------------------------------------------------------------------------

    def _note_ends(self, expires: Any, rows: int) -> None:
        if not rows or self.last_end_ms is None:
            return
        if expires is None or expires.null_count:
            self.last_end_ms = None
        else:
            self.last_end_ms = max(self.last_end_ms, pc.max(expires).as_py())

    def _parts(self, columns: dict[str, Any], rows: int, expires: Any) -> list[_Part]:
        """The headers in the order in which each row has them."""
        every = pa.array(range(rows), pa.int64())
        topic = self._topic(columns, rows)
        parts = [_Part.of(TOPIC, topic, every)]
        given = columns.get("message_id")
        if given is not None:
            given = as_text("message_id", given)
            parts.append(_Part.of(ID, given, every))
        parts.append(_Part.of(STATE, pa.repeat(pa.scalar(b"queued", pa.binary()), rows), every))
        number = pa.repeat(pa.scalar(_NUMBER, pa.binary()), rows)
        if given is not None:  # only where none was given
            number = pc.if_else(pc.is_null(given), number, pa.scalar(None, pa.binary()))
        parts.append(_Part.of(ID, number, every))
        if expires is not None:
            parts.append(_Part.of(EXPIRES, expires.cast(pa.string()), every))
        if "headers" in columns:
            parts.append(_given(columns["headers"]))
        return parts

    def _topic(self, columns: dict[str, Any], rows: int) -> Any:
        address = pa.repeat(pa.scalar(address_of(self._queue), pa.string()), rows)
        if "routing_key" in columns:
            keys = as_text("routing_key", columns["routing_key"])
            self._check_each("routing_key", keys, partial(topic_in, self._queue))
            longer = pc.binary_join_element_wise(address_of(self._queue), keys, "/")
            has_key = pc.fill_null(pc.greater(pc.binary_length(keys), 0), False)
            address = pc.if_else(has_key, longer, address)
        if "topic" in columns:
            topics = as_text("topic", columns["topic"])
            self._check_each("topic", topics, check_topic)
            address = pc.coalesce(topics, address)
        return address

    def _check_each(self, name: str, column: Any, check: Callable[[str], object]) -> None:
        """As when somebody publishes, once for each that is new."""
        known = self._checked.setdefault(name, {None})
        for text in pc.unique(column).to_pylist():
            if text not in known:
                try:
                    check(text)
                except InvalidName as error:
                    raise ConfigError(f"the column {name!r}: {error}") from error
                if len(known) < _CHECKED_MOST:
                    known.add(text)

    def _expiry(self, columns: dict[str, Any], rows: int) -> Any:
        """In milliseconds; null for ever."""
        found = None
        if self._ttl_ms:
            found = pa.repeat(pa.scalar(self._now_ms + self._ttl_ms, pa.int64()), rows)
        if "ttl" in columns:  # in seconds, and 0 is for ever
            ttl = columns["ttl"]
            if pa.types.is_decimal(ttl.type):
                ttl = ttl.cast(pa.float64())
            _check_range("ttl", ttl, _LONGEST_TTL_S, "seconds, from 0 on")
            ttl_ms = pc.multiply(ttl.cast(pa.float64()), 1000.0)
            until = pc.add(pc.round(ttl_ms).cast(pa.int64()), self._now_ms)
            never = pc.if_else(pc.equal(ttl, 0), None, until)
            found = never if found is None else pc.if_else(pc.is_null(until), found, never)
        if "expires_at" in columns:
            given = _milliseconds(columns["expires_at"])
            _check_range("expires_at", given, 2**53, "milliseconds since 1970, from 0 on")
            found = given if found is None else pc.coalesce(given, found)
        return found


class _Part:
    """Names and values of headers, and the rows that they belong to."""

    def __init__(self, names: Any, values: Any, rows: Any) -> None:
        self.names = names
        self.values = values
        self.rows = rows

    @classmethod
    def of(cls, name: str, values: Any, rows: Any) -> _Part:
        """One header, in the rows where its value is not null."""
        values = values.cast(pa.binary())
        if values.null_count:
            there = pc.is_valid(values)
            values, rows = values.filter(there), rows.filter(there)
        return cls(pa.repeat(pa.scalar(name, pa.string()), len(values)), values, rows)


def _given(lists: Any) -> _Part:
    """The publisher's own."""
    if pa.types.is_map(lists.type):
        lists = lists.cast(
            pa.list_(pa.struct([("key", pa.string()), ("value", lists.type.item_type)]))
        )
    rows = pc.list_parent_indices(lists).cast(pa.int64())
    names, values = pc.list_flatten(lists).flatten()
    names = as_text("headers", names)
    reserved = pc.fill_null(pc.starts_with(names, "_"), False)
    reserved = pc.and_not(reserved, pc.fill_null(pc.starts_with(names, DEAD), False))
    if pc.any(reserved).as_py():
        name = names.filter(reserved)[0].as_py()
        raise ConfigError(f"the header {name!r}: names that begin with '_' are reserved")
    if names.null_count or values.null_count:
        raise ConfigError("a header whose name or value is null; leave it out of the map")
    return _Part(names, values.cast(pa.binary()), rows)


def _lists(parts: list[_Part], rows: int) -> Any:
    """All of it by row, in the order of the parts."""
    names = pa.concat_arrays([part.names for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    owners = pa.concat_arrays([part.rows for part in parts])
    order = pc.array_sort_indices(owners)  # stable
    pairs = pa.StructArray.from_arrays([names.take(order), values.take(order)], fields=_PAIR)
    counts = pc.value_counts(owners.take(order))  # each row has some, so they are in order
    ends = pc.cumulative_sum(counts.field(1)).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    assert len(ends) == rows
    return pa.ListArray.from_arrays(offsets, pairs)


def _check_range(name: str, column: Any, end: int, unit: str, begin: int = 0) -> None:
    """`ConfigError` unless all that are not null are from there on, and below the end."""
    is_wrong = pc.invert(pc.and_(pc.greater_equal(column, begin), pc.less(column, end)))
    wrong = pc.filter(column, pc.fill_null(is_wrong, False))
    if len(wrong):
        raise ConfigError(f"the column {name!r}: {wrong[0].as_py()} cannot be a number of {unit}")


def _milliseconds(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return (
            pc.floor_temporal(column, unit="millisecond")
            .cast(pa.timestamp("ms", column.type.tz), safe=False)
            .cast(pa.int64())
        )
    return column.cast(pa.int64())
