"""Batches to and from Arrow record batches: pyarrow on one side, plain buffers on the other.

pyarrow is imported on first use; it comes with the extra `arrow`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tailrace import kernel
from tailrace.kernel.headers import encode_name
from tailrace.kernel.layout import MAX_OFFSET, NONE, too_many
from tailrace.kernel.shapes import (
    LONGEST_NUMBER,
    Binary,
    BinaryOut,
    HeaderLists,
    HeadersOut,
    Integers,
    Outputs,
    Rows,
    Wanted,
    check_picked,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from typing_extensions import Buffer

COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_MAX_BYTES: Final = (1 << 31) - 1  # what 32-bit offsets can address


def schema(columns: Sequence[str] = COLUMNS, picked: Sequence[str] = ()) -> pa.Schema:
    """The schema of `decode_arrow`'s result."""
    _refuse_text(picked, "picked")
    return _schema(tuple(columns), tuple(picked))


@lru_cache(128)  # any name can be picked, so there is no end of them
def _schema(columns: tuple[str, ...], picked: tuple[str, ...]) -> pa.Schema:
    lib = _pyarrow()
    check_picked(_wanted(columns, picked, (), False))
    both = [name for name in picked if name in columns]
    if both:
        raise ValueError(f"the picked header {both[0]!r} has the name of a column")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ValueError(f"no such column: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    header = lib.struct(
        [
            lib.field("key", lib.string(), nullable=False),
            lib.field("value", lib.binary(), nullable=False),
        ]
    )
    fields = {
        "offset": lib.field("offset", lib.int64(), nullable=False),
        "timestamp": lib.field("timestamp", lib.int64(), nullable=False),
        "key": lib.field("key", lib.binary()),
        "value": lib.field("value", lib.binary()),
        "headers": lib.field("headers", lib.list_(lib.field("item", header, nullable=False))),
    }
    found: pa.Schema = lib.schema(
        [
            *(fields[name] for name in columns),
            *(lib.field(name, lib.binary()) for name in picked),
        ]
    )
    return found


def _refuse_text(names: Sequence[str], parameter: str) -> None:
    if isinstance(names, str):  # or each of its letters would be a name
        raise TypeError(f"{parameter} must be a sequence of names, not one str; put it in a list")


def _wanted(
    columns: Sequence[str], picked: Sequence[str], hidden: Sequence[str], empty_key_is_null: bool
) -> Wanted:
    _refuse_text(hidden, "hidden")
    return Wanted("headers" in columns, _on_disk(picked), _on_disk(hidden), bool(empty_key_is_null))


def _on_disk(names: Sequence[str]) -> tuple[bytes, ...]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
    return tuple(map(encode_name, names))


def decode_arrow(
    buf: Buffer,
    start: int,
    stop: int,
    first: int = 0,
    last: int = MAX_OFFSET,
    columns: Sequence[str] = COLUMNS,
    *,
    picked: Sequence[str] = (),
    hidden: Sequence[str] = (),
    empty_key_is_null: bool = False,
) -> pa.RecordBatch:
    """The records of a checked region with `first <= offset < last`, only the columns asked for.

    A record without headers has an empty list; header names that are not UTF-8 get U+FFFD. Behind
    the columns is one for each `picked` header, of its name: the value of a record's first header
    of that name, null if it has none. The `hidden` ones are left out of the column `headers`. With
    `empty_key_is_null` a key of no bytes is null, as in queues, which write one for no key.
    """
    lib = _pyarrow()
    result = schema(columns, picked)
    wanted = _wanted(columns, picked, hidden, empty_key_is_null)
    region = kernel.inflate(buf, start, stop)
    size = memoryview(region).nbytes
    sizes = kernel.columns.measure_columns(region, 0, size, first, last, wanted)
    largest = max(
        sizes.key_bytes,
        sizes.value_bytes,
        sizes.name_bytes,
        sizes.header_bytes,
        *sizes.picked_bytes,
    )
    if largest > _MAX_BYTES:
        raise ValueError(
            f"a column of these records has {largest} bytes and Arrow's binary type can hold "
            f"{_MAX_BYTES}; pass fewer batches"
        )
    rows = sizes.rows
    names = set(columns)
    offset = lib.allocate_buffer(8 * rows) if "offset" in names else None
    timestamp = lib.allocate_buffer(8 * rows) if "timestamp" in names else None
    key = _allocate(rows, sizes.null_keys, sizes.key_bytes) if "key" in names else None
    value = _allocate(rows, sizes.null_values, sizes.value_bytes) if "value" in names else None
    headers = None
    if "headers" in names:
        headers = HeadersOut(
            lib.allocate_buffer(4 * (rows + 1)),
            _allocate(sizes.headers, 0, sizes.name_bytes),
            _allocate(sizes.headers, 0, sizes.header_bytes),
        )
    found = tuple(
        _allocate(rows, nulls, length)
        for nulls, length in zip(sizes.null_picked, sizes.picked_bytes, strict=True)
    )
    outputs = Outputs(offset, timestamp, key, value, headers, found)
    kernel.columns.fill_columns(region, 0, size, first, last, outputs, wanted)

    arrays: dict[str, Any] = {}
    if offset is not None:
        arrays["offset"] = lib.Array.from_buffers(lib.int64(), rows, [None, offset], 0)
    if timestamp is not None:
        arrays["timestamp"] = lib.Array.from_buffers(lib.int64(), rows, [None, timestamp], 0)
    if key is not None:
        arrays["key"] = _binary_array(rows, sizes.null_keys, key)
    if value is not None:
        arrays["value"] = _binary_array(rows, sizes.null_values, value)
    if headers is not None:
        item = result.field("headers").type
        children = [
            _text_array(sizes.headers, headers.names),
            _binary_array(sizes.headers, 0, headers.values),
        ]
        pairs = lib.Array.from_buffers(item.value_type, sizes.headers, [None], 0, 0, children)
        arrays["headers"] = lib.Array.from_buffers(
            item, rows, [None, headers.offsets], 0, 0, [pairs]
        )
    made = [arrays[name] for name in columns]
    made += [
        _binary_array(rows, nulls, column)
        for nulls, column in zip(sizes.null_picked, found, strict=True)
    ]
    batch: pa.RecordBatch
    if made:
        batch = lib.RecordBatch.from_arrays(made, schema=result)
    else:  # a count is an answer, too
        empty = lib.Array.from_buffers(lib.struct([]), rows, [None])
        batch = lib.RecordBatch.from_struct_array(empty)
    return batch


def names(prefix: str, numbers: Any) -> Any:
    """The prefix and the number of each row, as strings; of an int64 array without nulls."""
    lib = _pyarrow()
    if not numbers.type.equals(lib.int64()) or numbers.null_count:
        raise TypeError(f"the numbers must be int64 without nulls, not {numbers.type}")
    rows, text = len(numbers), prefix.encode()
    source = numbers.buffers()[1].slice(8 * numbers.offset, 8 * rows) if rows else b""
    room = rows * (len(text) + LONGEST_NUMBER)
    if room > _MAX_BYTES:
        raise ValueError(f"{rows} names may be longer than Arrow's string type can hold")
    offsets, data = lib.allocate_buffer(4 * (rows + 1)), lib.allocate_buffer(room)
    used = kernel.columns.write_names(text, source, offsets, data)
    return lib.Array.from_buffers(lib.string(), rows, [None, offsets, data.slice(0, used)], 0)


def encode_arrow(
    batch: pa.RecordBatch, now_ms: int, codec: int = NONE, start: int = 0, stop: int | None = None
) -> kernel.Draft:
    """One batch of the rows [start, stop).

    Column `value` is required, `key`, `timestamp` and `headers` are optional, `offset` is ignored
    (the log gives offsets), others are refused. A null timestamp is `now_ms`.
    """
    if stop is None:
        stop = batch.num_rows
    if not 0 <= start <= stop <= batch.num_rows:
        raise ValueError(f"[{start}, {stop}) is not a range of {batch.num_rows} rows")
    if start == stop:
        raise too_many(0)
    return Source(batch.slice(start, stop - start)).encode(now_ms, codec, 0, stop - start)


def plan_batches(batch: pa.RecordBatch, max_records: int, max_bytes: int) -> list[tuple[int, int]]:
    """The ranges of rows to pass to `encode_arrow` so that each batch is within the limits."""
    return Source(batch).plan(max_records, max_bytes)


class Source:
    """A record batch that becomes several batches: what Arrow has is looked at once, not for each.

    `same_headers` are those of all rows, as `encode_headers` made them, instead of a column: they
    are copied to each row as they are.
    """

    def __init__(self, batch: pa.RecordBatch, same_headers: bytes | None = None) -> None:
        if same_headers is not None and "headers" in batch.schema.names:
            raise ValueError("headers are a column, or the same for all rows, not both")
        self._rows = _rows(batch)._replace(same_headers=same_headers)

    @property
    def rows(self) -> int:
        return self._rows.rows

    def plan(
        self, max_records: int, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> list[tuple[int, int]]:
        """The ranges of rows to pass to `encode` so that each batch is within the limits; of the
        rows [start, stop)."""
        some = _cut(self._rows, start, self._rows.rows if stop is None else stop)
        found = kernel.columns.split_rows(some, max_records, max_bytes)
        return [(start + first, start + last) for first, last in found] if start else found

    def encode(self, now_ms: int, codec: int, start: int, stop: int) -> kernel.Draft:
        """One batch of the rows [start, stop)."""
        return kernel.columns.encode_columns(_cut(self._rows, start, stop), now_ms, codec)


def _pyarrow() -> Any:
    try:
        import pyarrow  # an extra, and slow to import
    except ImportError as error:
        raise ImportError("this needs pyarrow: pip install 'tailrace[arrow]'") from error
    return pyarrow


# Arrow to buffers


def _rows(batch: pa.RecordBatch) -> Rows:
    lib = _pyarrow()
    names = batch.schema.names
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            raise ValueError(
                f"column {name!r} is unknown or repeated; the columns may be {', '.join(COLUMNS)}"
            )
    if "value" not in names:
        raise ValueError(f"column 'value' is missing; there are {', '.join(names) or 'none'}")
    columns = dict(zip(names, batch.columns, strict=True))
    return Rows(
        batch.num_rows,
        _binary(columns["value"], "value"),
        _binary(columns["key"], "key") if "key" in names else None,
        _integers(lib, columns["timestamp"]) if "timestamp" in names else None,
        _header_lists(lib, columns["headers"]) if "headers" in names else None,
    )


def _cut(rows: Rows, start: int, stop: int) -> Rows:
    """The rows [start, stop). The twins check what comes of offsets that are not valid."""
    if (start, stop) == (0, rows.rows):
        return rows
    count, headers = stop - start, rows.headers
    if headers is not None:
        offsets = memoryview(headers.offsets).cast("B").cast("q")
        base = offsets[start]
        first, pairs = base - headers.base, offsets[stop] - base
        headers = HeaderLists(
            count,
            headers.skip + start,
            headers.validity,
            base,
            offsets[start : stop + 1],
            headers.names._replace(rows=pairs, skip=headers.names.skip + first),
            headers.values._replace(rows=pairs, skip=headers.values.skip + first),
        )
    return Rows(
        count,
        rows.value._replace(rows=count, skip=rows.value.skip + start),
        rows.key and rows.key._replace(rows=count, skip=rows.key.skip + start),
        rows.timestamp and rows.timestamp._replace(rows=count, skip=rows.timestamp.skip + start),
        headers,
        rows.same_headers,
    )


def _cast(array: Any, wanted: Any, name: str, safe: bool = True) -> Any:
    lib = _pyarrow()
    try:
        return array if array.type.equals(wanted) else array.cast(wanted, safe=safe)
    except (lib.ArrowInvalid, lib.ArrowNotImplementedError, lib.ArrowTypeError) as error:
        raise TypeError(f"column {name!r} of type {array.type} is not {wanted}: {error}") from None


def _buffer(buffer: Buffer | None) -> Buffer:
    return b"" if buffer is None else buffer


def _binary(array: Any, name: str) -> Binary:
    lib = _pyarrow()
    types = lib.types
    if not (types.is_null(array.type) or _is_bytes(types, array.type)):
        raise TypeError(f"column {name!r} must be binary or string, not {array.type}")
    array = _cast(array, lib.large_binary(), name)
    validity, offsets, data = array.buffers()
    if array.null_count == 0:
        validity = None
    return Binary(len(array), array.offset, validity, _buffer(offsets), _buffer(data))


def _is_bytes(types: Any, kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
    )


def _integers(lib: Any, array: Any) -> Integers:
    kind = array.type
    if lib.types.is_timestamp(kind):
        # Milliseconds are the format's resolution: finer ones are cut off.
        array = _cast(array, lib.timestamp("ms", kind.tz), "timestamp", safe=False)
    elif not (lib.types.is_integer(kind) or lib.types.is_null(kind)):
        raise TypeError(f"column 'timestamp' must be int64 milliseconds or timestamp, not {kind}")
    array = _cast(array, lib.int64(), "timestamp")
    validity, data = array.buffers()
    if array.null_count == 0:
        validity = None
    return Integers(len(array), array.offset, validity, _buffer(data))


def _header_lists(lib: Any, array: Any) -> HeaderLists | None:
    kind = array.type
    types = lib.types
    if types.is_null(kind):
        return None
    if types.is_map(kind):
        fields = [0, 1]
    elif (types.is_list(kind) or types.is_large_list(kind)) and types.is_struct(kind.value_type):
        fields = [kind.value_type.get_field_index(name) for name in ("key", "value")]
    else:
        fields = [-1]
    if -1 in fields:
        raise TypeError(
            f"column 'headers' must be list<struct<key, value>> or map<string, binary>, not {kind}"
        )
    validity = array.buffers()[0] if array.null_count else None
    offsets = _cast(array.offsets, lib.int64(), "headers")
    base = offsets[0].as_py()
    # Only what these rows refer to: a slice of a large array must not cost as much as all of it.
    pairs = array.values.slice(base, offsets[-1].as_py() - base).flatten()
    names, values = (_binary(pairs[field], "headers") for field in fields)
    data = offsets.buffers()[1].slice(8 * offsets.offset)
    return HeaderLists(len(array), array.offset, validity, base, data, names, values)


# Buffers to Arrow


def _allocate(rows: int, nulls: int, size: int) -> BinaryOut:
    lib = _pyarrow()
    return BinaryOut(
        lib.allocate_buffer(rows + 7 >> 3) if nulls else None,
        lib.allocate_buffer(4 * (rows + 1)),
        lib.allocate_buffer(size),
    )


def _binary_array(rows: int, nulls: int, buffers: BinaryOut) -> Any:
    lib = _pyarrow()
    return lib.Array.from_buffers(lib.binary(), rows, list(buffers), nulls)


def _text_array(rows: int, buffers: BinaryOut) -> Any:
    """Header names as strings; Arrow's must be UTF-8, ours need not be."""
    lib = _pyarrow()
    if not rows:  # nothing to check, which takes long
        return lib.Array.from_buffers(lib.string(), 0, list(buffers), 0)
    names = _binary_array(rows, 0, buffers)
    try:
        return names.cast(lib.string())
    except lib.ArrowInvalid:
        return lib.array(
            [name.decode(errors="replace") for name in names.to_pylist()], lib.string()
        )
