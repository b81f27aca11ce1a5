"""Batches to and from columns in Arrow's layout; `shapes` describes the buffers."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tailrace.kernel.coerce import as_timestamp
from tailrace.kernel.layout import (
    COMPRESSED,
    HAS_HEADERS,
    HAS_KEYS,
    HAS_TIMESTAMP,
    HEADER_SIZE,
    MAX_COUNT,
    MAX_OFFSET,
    MAX_SECTION,
    NONE,
    STILL_COMPRESSED,
    malformed_batch,
    too_large,
    too_many,
)
from tailrace.kernel.pure.codec import Draft, batches, decode, finish
from tailrace.kernel.pure.naming import write_names
from tailrace.kernel.pure.records import (
    NO_HEADERS,
    NULL,
    Record,
    encode_raw_headers,
    encode_record,
    raw_headers,
    split_headers,
    svarint,
    uvarint,
    wrap64,
)
from tailrace.kernel.shapes import (
    EVERYTHING,
    Binary,
    BinaryOut,
    HeaderLists,
    Integers,
    Outputs,
    Rows,
    Sizes,
    Wanted,
    buffers_too_small,
    check_hidden,
    check_max_records,
    check_picked,
    check_picked_outputs,
    invalid_column,
    null_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["encode_columns", "fill_columns", "measure_columns", "split_rows", "write_names"]
_LONGEST_VARINT = 10


def measure_columns(
    buf: Buffer,
    start: int,
    stop: int,
    first: int = 0,
    last: int = MAX_OFFSET,
    wanted: Wanted = EVERYTHING,
) -> Sizes:
    """What the columns of an uncompressed region need, for `first <= offset < last`."""
    names, hidden = check_picked(wanted), check_hidden(wanted)
    records = _decode(buf, start, stop, first, last)
    keys = _keys(records, wanted)
    values = [record.value for record in records]
    lists = _lists(records) if wanted.headers or names else []
    headers = [
        pair for pairs in lists for pair in pairs if wanted.headers and pair[0] not in hidden
    ]
    columns = [_picked(lists, name) for name in names]
    return Sizes(
        len(records),
        keys.count(None),
        _total(keys),
        values.count(None),
        _total(values),
        len(headers),
        sum(len(name) for name, _ in headers),
        sum(len(value) for _, value in headers),
        tuple(column.count(None) for column in columns),
        tuple(map(_total, columns)),
    )


def fill_columns(
    buf: Buffer,
    start: int,
    stop: int,
    first: int,
    last: int,
    outputs: Outputs,
    wanted: Wanted = EVERYTHING,
) -> None:
    """Write the columns that `outputs` has buffers for; they must be as large as measured."""
    names, hidden = check_picked(wanted), check_hidden(wanted)
    targets = check_picked_outputs(outputs, names)
    records = _decode(buf, start, stop, first, last)
    if outputs.offset is not None:
        _write(outputs.offset, array("q", [_int(record.offset) for record in records]))
    if outputs.timestamp is not None:
        _write(outputs.timestamp, array("q", [_int(record.timestamp) for record in records]))
    if outputs.key is not None:
        _write_binary(outputs.key, _keys(records, wanted))
    if outputs.value is not None:
        _write_binary(outputs.value, [record.value for record in records])
    lists = _lists(records) if outputs.headers is not None or names else []
    if outputs.headers is not None:
        shown = [[pair for pair in pairs if pair[0] not in hidden] for pairs in lists]
        _write(outputs.headers.offsets, _offsets(map(len, shown)))
        headers = [pair for pairs in shown for pair in pairs]
        _write_binary(outputs.headers.names, [name for name, _ in headers])
        _write_binary(outputs.headers.values, [value for _, value in headers])
    for name, target in zip(names, targets, strict=True):
        _write_binary(target, _picked(lists, name))


def encode_columns(table: Rows, now_ms: int, codec: int = NONE) -> Draft:
    """One batch of all rows; a row without a timestamp gets `now_ms`."""
    now_ms = as_timestamp(now_ms)
    if not 0 < table.rows <= MAX_COUNT:
        raise too_many(table.rows)
    timestamps = _integers(table.timestamp, table.rows, now_ms)
    keys = _optional_binary(table.key, table.rows, "key")
    values = _binary(table.value, table.rows, "value")
    headers = _headers(table)
    flags = HAS_TIMESTAMP
    if any(key is not None for key in keys):
        flags |= HAS_KEYS
    if any(raw != NO_HEADERS for raw in headers):
        flags |= HAS_HEADERS
    parts = [bytes(HEADER_SIZE)]  # the room that `finish` writes the batch's header to
    parts += (
        encode_record(index, wrap64(timestamp - now_ms), key, value, raw)
        for index, (timestamp, key, value, raw) in enumerate(
            zip(timestamps, keys, values, headers, strict=True)
        )
    )
    data = bytearray().join(parts)
    return finish(data, table.rows, flags, now_ms, max(timestamps), codec, MAX_SECTION)


def split_rows(table: Rows, max_records: int, max_bytes: int) -> list[tuple[int, int]]:
    """[start, stop) of the batches that hold at most so many records and bytes each.

    The size is an upper bound: a timestamp counts as the longest possible one when there are any.
    """
    max_records = check_max_records(max_records)
    max_bytes = min(max_bytes, MAX_SECTION)
    ranges: list[tuple[int, int]] = []
    if table.rows == 0:
        return ranges
    keys = _optional_binary(table.key, table.rows, "key")
    values = _binary(table.value, table.rows, "value")
    headers = _headers(table)
    timestamp_bytes = 1 if table.timestamp is None else _LONGEST_VARINT
    start = used = 0
    for row, (key, value, raw) in enumerate(zip(keys, values, headers, strict=True)):
        size = timestamp_bytes + _stored(key) + _stored(value) + len(raw)
        delta = len(uvarint(row - start))
        if row - start == max_records or used + delta + size > max_bytes:
            if row > start:
                ranges.append((start, row))
            start, used, delta = row, 0, 1
            if delta + size > max_bytes:
                raise too_large(delta + size, max_bytes, 1)
        used += delta + size
    ranges.append((start, table.rows))
    return ranges


def _decode(buf: Buffer, start: int, stop: int, first: int, last: int) -> list[Record]:
    for info in batches(buf, start, stop):
        if info.flags & COMPRESSED:
            raise malformed_batch(info.position, STILL_COMPRESSED)
    return decode(buf, start, stop, first, last)


def _keys(records: list[Record], wanted: Wanted) -> list[bytes | None]:
    if wanted.empty_key_is_null:
        return [record.key or None for record in records]
    return [record.key for record in records]


def _lists(records: list[Record]) -> list[list[tuple[bytes, bytes]]]:
    return [split_headers(raw_headers(record)) for record in records]


def _picked(lists: list[list[tuple[bytes, bytes]]], name: bytes) -> list[bytes | None]:
    """The value of each record's first header of that name."""
    return [next((value for known, value in pairs if known == name), None) for pairs in lists]


def _total(fields: list[bytes | None]) -> int:
    return sum(map(len, filter(None, fields)))


def _stored(field: bytes | None) -> int:
    return len(NULL) if field is None else len(svarint(len(field))) + len(field)


def _int(number: int | None) -> int:
    assert number is not None, "a decoded record has an offset and a timestamp"
    return number


# Writing buffers


def _write(target: Buffer, content: Buffer) -> None:
    with memoryview(target).cast("B") as out, memoryview(content).cast("B") as source:
        if len(out) < len(source):
            raise buffers_too_small()
        out[: len(source)] = source


def _write_binary(target: BinaryOut, fields: Sequence[bytes | None]) -> None:
    _write(target.offsets, _offsets(0 if field is None else len(field) for field in fields))
    _write(target.data, b"".join(filter(None, fields)))
    if target.validity is not None:
        bitmap = bytearray(len(fields) + 7 >> 3)
        for row, field in enumerate(fields):
            if field is not None:
                bitmap[row >> 3] |= 1 << (row & 7)
        _write(target.validity, bitmap)


def _offsets(lengths: Iterable[int]) -> array[int]:
    offsets = array("i", (0,))
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets


# Reading buffers


def _numbers(data: Buffer, count: int, name: str) -> memoryview:
    view = memoryview(data).cast("B")
    if len(view) < 8 * count:
        raise invalid_column(name)
    return view[: 8 * count].cast("q")


def _valid(validity: Buffer | None, skip: int, count: int, name: str) -> list[bool]:
    if validity is None:
        return [True] * count
    bitmap = memoryview(validity).cast("B")
    if len(bitmap) < skip + count + 7 >> 3:
        raise invalid_column(name)
    return [bool(bitmap[row >> 3] >> (row & 7) & 1) for row in range(skip, skip + count)]


def _integers(column: Integers | None, count: int, default: int) -> list[int]:
    if column is None:
        return [default] * count
    if column.rows < count or column.skip < 0:
        raise invalid_column("timestamp")
    numbers = _numbers(column.data, column.skip + count, "timestamp")[column.skip :]
    valid = _valid(column.validity, column.skip, count, "timestamp")
    return [number if known else default for number, known in zip(numbers, valid, strict=True)]


def _optional_binary(column: Binary | None, count: int, name: str) -> list[bytes | None]:
    return [None] * count if column is None else _binary(column, count, name)


def _binary(column: Binary, least: int, name: str) -> list[bytes | None]:
    fields: list[bytes | None] = []
    if column.rows < least or column.skip < 0:
        raise invalid_column(name)
    if column.rows == 0:
        return fields
    offsets = _numbers(column.offsets, column.skip + column.rows + 1, name)
    valid = _valid(column.validity, column.skip, column.rows, name)
    with memoryview(column.data).cast("B") as data:
        for row, known in enumerate(valid, column.skip):
            if not known:
                fields.append(None)
                continue
            start, stop = offsets[row], offsets[row + 1]
            if not 0 <= start <= stop <= len(data):
                raise invalid_column(name)
            fields.append(bytes(data[start:stop]))
    return fields


def _headers(table: Rows) -> list[bytes]:
    """Each row's headers as they are on disk."""
    if table.same_headers is not None:
        return [table.same_headers] * table.rows
    return _header_lists(table.headers, table.rows)


def _header_lists(column: HeaderLists | None, count: int) -> list[bytes]:
    if column is None:
        return [NO_HEADERS] * count
    if column.rows < count or column.skip < 0 or column.base < 0:
        raise invalid_column("headers")
    names = _binary(column.names, 0, "headers")
    values = _binary(column.values, 0, "headers")
    most = min(len(names), len(values))
    offsets = _numbers(column.offsets, count + 1, "headers")
    lists: list[bytes] = []
    for row, known in enumerate(_valid(column.validity, column.skip, count, "headers")):
        if not known:
            lists.append(NO_HEADERS)
            continue
        start, stop = offsets[row] - column.base, offsets[row + 1] - column.base
        if not 0 <= start <= stop <= most:
            raise invalid_column("headers")
        pairs: list[tuple[bytes, bytes]] = []
        for name, value in zip(names[start:stop], values[start:stop], strict=True):
            if name is None or value is None:
                raise null_header(row)
            pairs.append((name, value))
        lists.append(encode_raw_headers(pairs))
    return lists
