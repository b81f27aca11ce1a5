"""The columns of a queue as a Spark table, and how a region of a log becomes a batch of rows.

The names are those of Spark's Kafka source, where it has one, and ours. Only what is asked for is
decoded, in the kernel; what is made of it here is made a column at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.errors import ConfigError
from tailrace.kernel.arrow import names
from tailrace.queue.addresses import ROOT, address_of, is_selected

if TYPE_CHECKING:
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = [
    "COLUMNS",
    "HEADERS_AS",
    "MAX_TIME_MS",
    "OURS",
    "Decoder",
    "Projection",
    "RowFilter",
    "ddl",
    "kinds_in_sql",
    "numbers",
    "routing_keys",
    "texts",
    "time_of",
    "times",
]

# As Spark writes their types, which is how a user's schema is compared.
COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "",  # as one of those below
    "queue": "string",
    "routing_key": "string",
    "message_id": "string",
    "expires_at": "timestamp",
}
HEADERS_AS: Final = {
    "array": "array<struct<key:string,value:binary>>",
    "map": "map<string,binary>",
}

# Headers that are columns of their own, or of no use to anybody who reads rows.
OURS: Final = (
    *("_topic", "_id", "_state", "_expires_at", "_for_group"),
    *("_producer", "_sequence", "_settled"),
)

_PIECE_BYTES: Final = 2 << 20  # a batch of a log may have 16 MB and more
_MOST_TOPICS: Final = 100_000  # to remember of a task
_TIME: Final = pa.timestamp("us", "UTC")
# As far from 1970 as times of Spark go, which are 64 bits of microseconds.
MAX_TIME_MS: Final = (2**63 - 1) // 1000
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _TIME,
    HEADERS_AS["array"]: pa.list_(_HEADER),
    HEADERS_AS["map"]: pa.map_(pa.string(), pa.binary()),
}


def kinds_in_sql(headers_as: str = "array") -> dict[str, str]:
    """The types of all columns as one writes them. What `timestamp` is then, a setting of the
    session says (`spark.sql.timestampType`), and ours are of no other type."""
    kinds = {**COLUMNS, "headers": HEADERS_AS[headers_as]}
    return {n: "timestamp_ltz" if kind == "timestamp" else kind for n, kind in kinds.items()}


def ddl(*, has_headers: bool, headers_as: str) -> str:
    """The schema of a table from which nothing was left out."""
    kinds = kinds_in_sql(headers_as)
    return ", ".join(f"{n} {kind}" for n, kind in kinds.items() if has_headers or n != "headers")


@dataclass(frozen=True)
class Projection:
    """Which columns, in which order, and of which types. Picklable: it goes to the executors."""

    kinds: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, schema: Any) -> Projection:
        """Of a Spark schema: that of the table, or what a user has made of it."""
        kinds: list[tuple[str, str]] = []
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if field.name not in COLUMNS:
                raise ConfigError(
                    f"the schema: there is no column {field.name!r}; there are {', '.join(COLUMNS)}"
                )
            allowed = tuple(HEADERS_AS.values()) if field.name == "headers" else ()
            if kind not in (allowed or (COLUMNS[field.name],)):
                wanted = " or ".join(allowed or (COLUMNS[field.name],))
                raise ConfigError(f"the schema: the column {field.name!r} is {wanted}, not {kind}")
            if not (field.nullable and _may_be_null(field.dataType)):
                raise ConfigError(
                    f"the schema: the column {field.name!r} is NOT NULL, in part or as a whole; "
                    "leave that out: Spark takes no batch whose columns may be null for it"
                )
            if field.name in dict(kinds):
                raise ConfigError(f"the schema: the column {field.name!r} is there twice")
            kinds.append((field.name, kind))
        return cls(tuple(kinds))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.kinds]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in self.kinds])


def _may_be_null(kind: Any) -> bool:
    """Each part of a Spark type: keys of a map never are, and Spark asks nobody for that."""
    match kind.typeName():
        case "struct":
            return all(field.nullable and _may_be_null(field.dataType) for field in kind.fields)
        case "array":
            return bool(kind.containsNull) and _may_be_null(kind.elementType)
        case "map":
            return bool(kind.valueContainsNull) and _may_be_null(kind.valueType)
        case _:
            return True


@dataclass(frozen=True)
class RowFilter:
    """Which rows of a range of offsets: of some keys, with a routing key that matches, or of a
    time. `None` is all of them. Picklable."""

    keys: tuple[bytes, ...] | None = None
    pattern: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def needs(self) -> set[str]:
        """The columns that tell."""
        found = set()
        if self.keys is not None:
            found.add("key")
        if self.pattern is not None:
            found.add("topic")
        if self.since_ms is not None or self.until_ms is not None:
            found.add("timestamp")
        return found


class Decoder:
    """Batches of one queue's log as a projection has them. Of one task, so not thread-safe."""

    def __init__(self, queue: str, projection: Projection, rows: RowFilter) -> None:
        self.position: int | None = None  # after the last batch; known only after `track`
        self._queue = queue
        self._projection = projection
        self._rows = rows
        self._schema = projection.schema
        wanted = {*projection.names, *rows.needs}
        sources = {
            "offset": wanted & {"offset", "message_id"},
            "timestamp": wanted & {"timestamp"},
            "key": wanted & {"key"},
            "value": wanted & {"value"},
            "headers": wanted & {"headers"},
        }
        self._columns = [name for name, needed in sources.items() if needed]
        self._picked = [
            *(["_topic"] if wanted & {"topic", "routing_key"} else []),
            *(["_expires_at"] if "expires_at" in wanted else []),
        ]
        self._known: dict[str | None, bool] = {}  # which topics match
        self._repeats: dict[str | bytes | int, Any] = {}  # arrays of one value

    def track(self) -> None:
        """Tell how far `read` has come."""
        if "offset" not in self._columns:
            self._columns.append("offset")
        self.position = 0

    def read(self, log: Log, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """What is there of a range of offsets."""
        decoded = log.read_arrow(
            first,
            last,
            columns=self._columns,
            picked=self._picked,
            hidden=OURS,
            empty_key_is_null=True,
        )
        for batch in decoded:
            if self.position is not None:
                self.position = batch.column("offset")[-1].as_py() + 1
            yield from _pieces(self._make(batch))

    def _make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made: dict[str, Any] = {}
        for name in {*self._projection.names, *(self._rows.needs - {"timestamp"})}:
            made[name] = self._column(name, batch)
        kept = self._kept(made, batch)
        arrays = [made[name] for name in self._projection.names]
        if not arrays:  # a count is an answer, too
            rows = batch.num_rows if kept is None else kept.true_count
            empty: Any = pa.Array.from_buffers(pa.struct([]), rows, [None])
            return pa.RecordBatch.from_struct_array(empty)
        found = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return found if kept is None else found.filter(kept)

    def _column(self, name: str, batch: pa.RecordBatch) -> Any:
        rows = batch.num_rows
        match name:
            case "key" | "value" | "offset":
                return batch.column(name)
            case "timestamp":
                return time_of(batch.column("timestamp"))
            case "expires_at":
                return time_of(numbers(batch.column("_expires_at")))
            case "partition" | "timestampType":
                return self._same(0, rows)
            case "queue":
                return self._same(self._queue, rows)
            case "message_id":
                return names(f"{self._queue}:", batch.column("offset"))
            case "topic":
                if self._is_plain(batch):
                    return self._same(address_of(self._queue), rows)
                return texts(batch.column("_topic"))
            case "routing_key":
                if self._is_plain(batch):
                    return self._same("", rows)
                return routing_keys(self._queue, texts(batch.column("_topic")))
            case _:
                return self._headers(batch.column("headers"))

    def _same(self, value: Any, rows: int) -> Any:
        """One value in all rows. Kept for the batches to come, which have about as many."""
        known = self._repeats.get(value)
        if known is None or len(known) < rows:
            kind: Any = pa.int32() if isinstance(value, int) else None
            known = self._repeats[value] = pa.repeat(pa.scalar(value, kind), rows)
        return known.slice(0, rows)

    def _is_plain(self, batch: pa.RecordBatch) -> bool:
        """Was all of it published to the queue itself, as it mostly is? Quick to tell."""
        usual = self._same(address_of(self._queue).encode(), batch.num_rows)
        return bool(batch.column("_topic").equals(usual))

    def _headers(self, lists: Any) -> Any:
        """As the kernel gives them they cannot be null, and Spark's may be."""
        names, values = lists.values.flatten()
        if dict(self._projection.kinds)["headers"] == HEADERS_AS["map"]:
            return pa.MapArray.from_arrays(lists.offsets, names, values)
        pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
        return pa.ListArray.from_arrays(lists.offsets, pairs)

    def _kept(self, made: dict[str, Any], batch: pa.RecordBatch) -> Any:
        """Which rows are wanted; `None` if all are. Times as the log has them: not all of them are
        times to Spark."""
        rows, masks = self._rows, []
        if rows.keys is not None:
            masks.append(pc.is_in(made["key"], pa.array(rows.keys, pa.binary())))
        if rows.pattern is not None:
            masks.append(self._matching(made["topic"], rows.pattern))
        if rows.since_ms is not None or rows.until_ms is not None:
            found = batch.column("timestamp")
            if rows.since_ms is not None:
                masks.append(pc.greater_equal(found, rows.since_ms))
            if rows.until_ms is not None:
                masks.append(pc.less(found, rows.until_ms))
        kept = None
        for mask in masks:
            kept = mask if kept is None else pc.and_(kept, mask)
        return kept

    def _matching(self, topics: Any, pattern: str) -> Any:
        """There are few different ones, mostly, and each is looked at once."""
        known = self._known
        if len(known) > _MOST_TOPICS:
            known.clear()
        different = pc.unique(topics).to_pylist()
        for topic in different:
            if topic not in known:
                known[topic] = is_selected(pattern, self._queue, topic or "")
        fitting = [topic for topic in different if known[topic]]
        return pc.is_in(topics, pa.array(fitting, pa.string()))


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """As Spark likes them: it takes much larger ones more slowly than several of them. Views."""
    count = rows.num_rows
    most = max(count * _PIECE_BYTES // max(rows.nbytes, 1), 1)
    if count <= 2 * most:
        most = count
    for first in range(0, count, most or 1):
        yield rows.slice(first, most)


def time_of(milliseconds: Any) -> Any:
    """As Spark has times; null where there are no such microseconds."""
    return pc.multiply(times(milliseconds), 1000).view(_TIME)


def times(milliseconds: Any) -> Any:
    """Null where there are no such microseconds."""
    bounds = pc.min_max(milliseconds).as_py()
    if bounds["min"] is not None and (bounds["min"] < -MAX_TIME_MS or bounds["max"] > MAX_TIME_MS):
        is_time = pc.and_(
            pc.greater_equal(milliseconds, -MAX_TIME_MS), pc.less_equal(milliseconds, MAX_TIME_MS)
        )
        return pc.if_else(is_time, milliseconds, None)
    return milliseconds


def numbers(column: Any) -> Any:
    """Milliseconds as text; null where it is no number, or one that microseconds cannot tell."""
    if column.null_count == len(column):  # as it mostly is
        return pa.nulls(len(column), pa.int64())
    is_number = pc.match_substring_regex(column, rb"\A0*[0-9]{1,18}\z")  # which 64 bits can hold
    return times(pc.if_else(is_number, column, None).cast(pa.string()).cast(pa.int64()))


def texts(column: Any) -> Any:
    """Bytes as text. Others may have written what is no UTF-8; then each that differs from the
    others is looked at once."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        coded = column.dictionary_encode()
        decoded = [value.decode(errors="replace") for value in coded.dictionary.to_pylist()]
        return pa.array(decoded, pa.string()).take(coded.indices)


def routing_keys(queue: str, topic: Any) -> Any:
    """What comes after the queue's address in each topic."""
    if pc.all(pc.equal(topic, address_of(queue)), min_count=0).as_py():
        return pa.repeat(pa.scalar("", pa.string()), len(topic))  # which is quicker
    root = f"{ROOT}/{queue}/"
    rest = pc.utf8_slice_codeunits(topic, len(root))
    return pc.if_else(pc.fill_null(pc.starts_with(topic, root), False), rest, "")
