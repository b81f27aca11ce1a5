"""Avro, decoded in the very task that reads the queue.

Spark's `from_avro` is in a jar that Spark does not come with. Another step in Python after the
source would send each value to the JVM and back; here it is decoded before it goes there at all,
and arrives as columns. Needs `fastavro`: `pip install 'tailrace[avro]'`.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from tailrace.errors import ConfigError, TailraceError
from tailrace.spark.columns import COLUMNS, Projection, ddl
from tailrace.spark.options import SourceOptions
from tailrace.spark.source import BatchReader, StreamReader, TailraceSource

__all__ = ["FIELDS", "REASON", "AvroSource", "columns_of"]

FIELDS: Final = "fields"  # the column of what was decoded
REASON: Final = "reason"  # and of why it was not
_SCHEMA: Final = "avroschema"  # options come in lower case

_PLAIN: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_NAMED: Final = ("record", "enum", "fixed")
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp_ltz",  # `timestamp` is what a session says
    ("long", "timestamp-micros"): "timestamp_ltz",
}
_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
# What fastavro raises at bytes that are something else.
_UNREADABLE: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
)
# What Arrow raises at values that are Avro of the schema, and none of the column's type.
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


def parse_schema(text: str) -> dict[str, Any]:
    """A record's schema; `ConfigError` says what cannot be columns."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"no Avro schema: {error}") from None
    _import_fastavro()
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    if not isinstance(document, Mapping) or document.get("type") != "record":
        raise ConfigError("no Avro schema of a record: it has to be an object of type record")
    try:
        parse_schema(dict(document))
    except (SchemaParseException, UnknownType, *_UNREADABLE) as error:
        raise ConfigError(f"no Avro schema: {type(error).__name__}: {error}") from None
    return dict(document)


def _import_fastavro() -> None:
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise TailraceError("fastavro is missing: pip install 'tailrace[avro]'") from None


def columns_of(text: str) -> str:
    """The columns of a schema, as Spark writes them: `struct<id:bigint,…>`."""
    try:
        return _Types().kind(parse_schema(text))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"no Avro schema: {type(error).__name__}: {error}") from None


class _Types:
    """Avro's types as Spark's. Named types may be used again by their names: whole ones, or short
    ones within their namespace, which is that around them if they name none."""

    def __init__(self) -> None:
        self._named: dict[str, str | None] = {}  # by whole names

    def kind(self, schema: Any, namespace: str = "") -> str:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.kind(kind, namespace)
        if kind not in _NAMED:
            return self._complex(schema, kind, namespace)
        name = _whole(schema["name"], schema.get("namespace", namespace))
        self._named[name] = None
        found = self._named[name] = self._complex(schema, kind, name.rpartition(".")[0])
        return found

    def _complex(self, schema: dict[str, Any], kind: str, namespace: str) -> str:
        if kind == "record":
            fields = [
                (each["name"], self.kind(each["type"], namespace)) for each in schema["fields"]
            ]
            return f"struct<{','.join(f'{name}:{each}' for name, each in fields)}>"
        if kind == "array":
            return f"array<{self.kind(schema['items'], namespace)}>"
        if kind == "map":
            return f"map<string,{self.kind(schema['values'], namespace)}>"
        logical = _logical(schema)
        if logical == "decimal":
            return f"decimal({schema['precision']},{schema.get('scale', 0)})"
        return logical or self._by_name(kind, namespace)

    def _union(self, branches: list[Any], namespace: str) -> str:
        others = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(others) > 1:
            raise ConfigError(
                "the Avro schema has a union of several types, which is no column; only null may "
                "be beside one type"
            )
        return self.kind(others[0] if others else "null", namespace)

    def _by_name(self, name: str, namespace: str) -> str:
        if name in _PLAIN:
            return _PLAIN[name]
        if name == "null":
            raise ConfigError(
                "the Avro schema has a type that is null and nothing else, which is no column"
            )
        found = self._named.get(_whole(name, namespace), "")
        if found is None:
            raise ConfigError(f"the Avro schema: {name} is inside itself, which is no column")
        if not found:
            raise ConfigError(f"the Avro schema: there is no type {name!r}")
        return found


def _whole(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: Mapping[str, Any]) -> str | None:
    """What a logical type is for Spark; `None` if it stays what it is stored as, as it does where
    Avro knows no such type."""
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str) or not isinstance(logical, str):
        return None
    if logical == "decimal":
        return logical if kind in ("bytes", "fixed") else None
    return _LOGICAL.get((kind, logical))


def _without_others(schema: Any) -> Any:
    """Without the logical types that stay what they are stored as."""
    if isinstance(schema, list):
        return [_without_others(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _without_others(each) for name, each in schema.items()}
    if _logical(made) is None:
        made.pop("logicalType", None)
    return made


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of one of Spark's."""
    name = kind.simpleString()
    if name in _ARROW:
        return _ARROW[name]
    if name.startswith("struct"):
        return pa.struct([pa.field(each.name, arrow_type(each.dataType)) for each in kind.fields])
    if name.startswith("array"):
        return pa.list_(arrow_type(kind.elementType))
    if name.startswith("map"):
        return pa.map_(pa.string(), arrow_type(kind.valueType))
    return pa.decimal128(kind.precision, kind.scale)


class _Decoding:
    """What both readers do beside reading. Picklable."""

    def __init__(
        self, options: SourceOptions, projection: Projection, schema: str, columns: Any
    ) -> None:
        super().__init__(options, projection)  # type: ignore[call-arg]
        self._avro = schema
        self._columns = columns

    @classmethod
    def make(cls, options: SourceOptions, avro: str, schema: Any) -> _Decoding:
        from pyspark.sql.types import BinaryType, StructField, StructType

        raw = [field for field in schema.fields if field.name in COLUMNS]
        if "value" not in [field.name for field in raw]:
            raw.append(StructField("value", BinaryType()))
        return cls(options, Projection.of(StructType(raw)), avro, schema)

    def read(self, partition: Any) -> Iterator[Any]:
        _import_fastavro()
        from fastavro import parse_schema

        schema = parse_schema(_without_others(json.loads(self._avro)))
        for batch in super().read(partition):  # type: ignore[misc]
            yield self._decoded(batch, schema)

    def _decoded(self, batch: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
        found, reasons = [], []
        for value in batch.column("value").to_pylist():
            fields, reason = decode(value, schema)
            found.append(fields)
            reasons.append(reason)
        made = {name: batch.column(name) for name in batch.schema.names}
        for field in self._columns.fields:
            if field.name == FIELDS:
                made[FIELDS] = _as_column(found, reasons, arrow_type(field.dataType))
        made[REASON] = pa.array(reasons, pa.string())
        names = [field.name for field in self._columns.fields]
        return pa.RecordBatch.from_arrays([made[name] for name in names], names=names)


def _as_column(found: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array[Any]:
    """What was decoded, as a column. Avro takes a decimal of more digits than its schema has, and
    Arrow does not: one such value is not to fail its batch, so it gets a reason instead."""
    with contextlib.suppress(*_UNFIT):  # which of them it is, is not told
        return pa.array(found, kind)
    for at, fields in enumerate(found):
        try:
            pa.array([fields], kind)
        except _UNFIT as error:
            found[at], reasons[at] = None, f"a field does not fit its type: {error}"
    return pa.array(found, kind)


def decode(value: bytes | None, schema: Any) -> tuple[Any, str | None]:
    """The fields of a value, or why there are none."""
    from fastavro import schemaless_reader

    if value is None:
        return None, "there is no value"
    data = io.BytesIO(value)
    try:
        fields = schemaless_reader(data, schema)
    except _UNREADABLE as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return None, f"it is not Avro of the schema: {said}"
    left = len(value) - data.tell()
    if left:
        return None, f"it is not Avro of the schema: {left} bytes are left over"
    return fields, None


class _AvroBatch(_Decoding, BatchReader):
    """`spark.read`."""


class _AvroStream(_Decoding, StreamReader):
    """`spark.readStream`."""


class AvroSource(TailraceSource):
    """`format("tailrace_avro")`: a queue, with what its values are in the column `fields`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace_avro"

    def _split(self, *, is_stream: bool) -> tuple[SourceOptions, str]:
        given = dict(self.options)
        avro = given.pop(_SCHEMA)
        return SourceOptions.parse(given, is_stream=is_stream), avro

    def schema(self) -> str:
        options, avro = self._split(is_stream=False)
        raw = ddl(has_headers=options.has_headers, headers_as=options.headers_as)
        return f"{raw}, {FIELDS} {columns_of(avro)}, {REASON} string"

    def reader(self, schema: Any) -> Any:
        return _AvroBatch.make(*self._split(is_stream=False), schema)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  Spark's name
        return _AvroStream.make(*self._split(is_stream=True), schema)
