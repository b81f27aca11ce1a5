"""Encoding lists of records as batches. `layout` describes the bytes."""

from __future__ import annotations

import contextlib
from struct import Struct
from typing import TYPE_CHECKING, Final

from tailrace.kernel import compression
from tailrace.kernel.coerce import (
    CONTENTS,
    as_bytes,
    as_bytes_or_none,
    as_codec,
    as_offset,
    as_timestamp,
    refuse_record,
    refuse_single,
)
from tailrace.kernel.headers import as_pairs
from tailrace.kernel.layout import (
    COMPRESS_ABOVE,
    COMPRESSED,
    CRC_START,
    DRAFT_RESIZED,
    HAS_HEADERS,
    HAS_KEYS,
    HAS_TIMESTAMP,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_COUNT,
    MAX_OFFSET,
    MAX_SECTION,
    NONE,
    TAIL_START,
    VERSION,
    no_room,
    too_large,
    too_many,
)
from tailrace.kernel.pure.crc import crc32c, multiply, shift_operator
from tailrace.kernel.pure.records import (
    NO_HEADERS,
    NULL,
    SHORT,
    VARINTS,
    Record,
    encode_headers,
    encode_record,
    parse_headers,
    raw_headers,
    wrap64,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.kernel.headers import HeadersLike
    from tailrace.kernel.pure.records import BytesLike

_PLACED: Final = Struct("<IQ")  # crc, base_offset

# The pieces that most records are put together from.
_HEADS: Final = [varint + b"\x00" for varint in VARINTS]  # offset delta, the batch's timestamp
_NEXT_HEADS: Final = [NO_HEADERS + head for head in _HEADS]  # behind a record without headers
_LENGTHS: Final = VARINTS[::2]  # svarints of lengths that need one or two bytes
_LENGTHS_ONLY: Final = [NULL + varint for varint in _LENGTHS]  # no key, length of the value
_SHORT_LENGTH: Final = len(_LENGTHS)
_ROOM: Final = bytes(HEADER_SIZE)  # for the batch's header, which is written last
# Up to this size a batch's CRC is computed when its offset is known: that takes less than twice as
# long as combining would, and the operator for combining takes several times longer to make.
_DIRECT: Final = 128 << 10


class Draft:
    """An encoded batch that has no offset yet.

    `place` may be called again with another offset. Not thread-safe: a draft has one owner.
    """

    __slots__ = ("_operator", "_tail_crc", "count", "data", "max_timestamp", "size")

    def __init__(self, data: bytearray, count: int, max_timestamp: int) -> None:
        self.data = data
        self.size = len(data)
        self.count = count
        self.max_timestamp = max_timestamp
        self._operator = 0
        if self.size > _DIRECT:
            self._operator = shift_operator(self.size - TAIL_START)
            self._tail_crc = crc32c(memoryview(data)[TAIL_START:])

    def place(self, base_offset: int) -> bytearray:
        """Write the offset and the CRC into `data`, and return it."""
        base_offset = as_offset(base_offset)
        if base_offset > MAX_OFFSET - self.count:
            raise no_room(base_offset, self.count)
        data = self.data
        if len(data) != self.size:
            raise ValueError(DRAFT_RESIZED)
        _PLACED.pack_into(data, 4, 0, base_offset)
        if self._operator:
            crc = multiply(self._operator, crc32c(data[CRC_START:TAIL_START])) ^ self._tail_crc
        else:
            crc = crc32c(memoryview(data)[CRC_START:])
        _PLACED.pack_into(data, 4, crc, base_offset)
        return data


def encode(
    records: Sequence[object],
    now_ms: int,
    codec: int = NONE,
    extra_headers: Sequence[tuple[str, bytes]] = (),
    max_bytes: int = MAX_SECTION,
) -> Draft:
    """One batch of `records`; a record without a timestamp gets `now_ms`.

    An element is a value (bytes, str, a buffer, or None), (key, value), (key, value, headers) or a
    Record. `extra_headers` go in front of the first record's own.
    """
    refuse_single(records)
    items = list(records)  # our own: callers' code may run below, and change theirs
    count = len(items)
    if not 0 < count <= MAX_COUNT:
        raise too_many(count)
    now_ms = as_timestamp(now_ms)
    flags = HAS_TIMESTAMP
    max_timestamp: int | None = None
    parts = [_ROOM]
    if extra_headers:
        first = 1
        key, value, raw, max_timestamp = _fields(items[0], 0, now_ms)
        pairs = as_pairs(extra_headers) + parse_headers(raw).pairs
        delta = wrap64(max_timestamp - now_ms)
        parts.append(encode_record(0, delta, key, value, encode_headers(pairs)))
        flags |= HAS_HEADERS
        keyed = key is not None
        now_used = False
    else:
        first = _append_pairs(parts, items)
        keyed = now_used = first > 0

    for index in range(first, count):
        item = items[index]
        # The two common forms in line; `_fields` and `encode_record` do the same for all.
        if type(item) is bytes:
            if len(item) < _SHORT_LENGTH and index < SHORT:
                parts += (_HEADS[index], _LENGTHS_ONLY[len(item)], item, NO_HEADERS)
                now_used = True
                continue
        elif type(item) is tuple and len(item) == 2:
            key, value = item
            if type(key) is bytes and type(value) is bytes and index < SHORT:
                key_size = len(key)
                size = len(value)
                if key_size < _SHORT_LENGTH and size < _SHORT_LENGTH:
                    parts += (
                        _HEADS[index],
                        _LENGTHS[key_size],
                        key,
                        _LENGTHS[size],
                        value,
                        NO_HEADERS,
                    )
                    now_used = keyed = True
                    continue
        key, value, raw, timestamp = _fields(item, index, now_ms)
        if timestamp == now_ms:
            now_used = True
        elif max_timestamp is None or timestamp > max_timestamp:
            max_timestamp = timestamp
        if key is not None:
            keyed = True
        if raw != NO_HEADERS:
            flags |= HAS_HEADERS
        parts.append(encode_record(index, wrap64(timestamp - now_ms), key, value, raw))
    if keyed:
        flags |= HAS_KEYS
    if now_used and (max_timestamp is None or now_ms > max_timestamp):
        max_timestamp = now_ms
    assert max_timestamp is not None
    return finish(bytearray().join(parts), count, flags, now_ms, max_timestamp, codec, max_bytes)


def encode_one(
    value: BytesLike | None,
    key: BytesLike | None = None,
    headers: HeadersLike | bytes = None,
    timestamp: int | None = None,
    now_ms: int = 0,
    codec: int = NONE,
) -> Draft:
    """A batch of one record: what `encode` gives for one, with less ado. `headers` may be bytes, as
    `encode_headers` made them: they are believed."""
    now_ms = as_timestamp(now_ms)
    timestamp = now_ms if timestamp is None else as_timestamp(timestamp)
    key = as_bytes_or_none(key, "key")
    value = as_bytes_or_none(value, "value")
    flags = HAS_TIMESTAMP if key is None else HAS_TIMESTAMP | HAS_KEYS
    raw = NO_HEADERS
    if type(headers) is bytes:
        raw = headers
        flags |= HAS_HEADERS
    elif headers is not None:
        pairs = as_pairs(headers)  # type: ignore[arg-type]
        if pairs:
            raw = encode_headers(pairs)
            flags |= HAS_HEADERS
    data = bytearray(_ROOM + encode_record(0, wrap64(timestamp - now_ms), key, value, raw))
    return finish(data, 1, flags, now_ms, timestamp, codec, MAX_SECTION)


def encode_placed(
    value: BytesLike | None,
    key: BytesLike | None,
    headers: HeadersLike,
    timestamp: int | None,
    base_offset: int,
    now_ms: int,
) -> bytes | bytearray:
    """The bytes of a batch of one record at its offset, not compressed."""
    return encode_one(value, key, headers, timestamp, now_ms).place(base_offset)


def _append_pairs(parts: list[bytes], items: list[object]) -> int:
    """Append the records that `items` begins with, as long as they are short (bytes, bytes) tuples.

    Returns how many they are. Most lists are nothing else, so this does as little as possible for
    each: it appends what ends a record together with the head of the next one, and leaves lengths
    that are not in the table, and tuples of more than two, to the exceptions that they raise.
    """
    lengths = _LENGTHS
    start = len(parts)
    with contextlib.suppress(IndexError, ValueError):
        for head, item in zip(_NEXT_HEADS, items, strict=False):
            if type(item) is not tuple:
                break
            key, value = item
            if not type(key) is type(value) is bytes:
                break
            parts += (head, lengths[len(key)], key, lengths[len(value)], value)
    count = (len(parts) - start) // 5
    if count:
        parts[start] = _HEADS[0]
        parts.append(NO_HEADERS)
    return count


def finish(
    data: bytearray,
    count: int,
    flags: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: int,
    max_bytes: int,
) -> Draft:
    """A draft of the section behind the room for the header, compressed if `codec` says so and it
    helps.
    """
    codec = as_codec(codec)
    limit = min(max_bytes, MAX_SECTION)
    size = len(data) - HEADER_SIZE
    if size > limit:
        raise too_large(size, limit, count)
    if codec != NONE and size > COMPRESS_ABOVE:
        with memoryview(data) as view, view[HEADER_SIZE:] as section:
            smaller = compression.compress(codec, section)
        if len(smaller) < size:
            data = bytearray(_ROOM + smaller)
            size = len(smaller)
            flags |= COMPRESSED
    HEADER.pack_into(
        data, 0, MAGIC, 0, 0, size, count, flags, codec, VERSION, 0, base_timestamp, max_timestamp
    )
    return Draft(data, count, max_timestamp)


def _fields(item: object, index: int, now_ms: int) -> tuple[bytes | None, bytes | None, bytes, int]:
    """An element of encode()'s list as (key, value, headers as on disk, timestamp)."""
    if isinstance(item, Record):
        timestamp = now_ms if item._timestamp is None else item._timestamp
        return item._key, item._value, raw_headers(item), timestamp
    if isinstance(item, tuple):
        if len(item) == 2:
            key, value = item
            raw = NO_HEADERS
        elif len(item) == 3:
            key, value, headers = item
            raw = encode_headers(as_pairs(headers))
        else:
            refuse_record(item, index)
        key = key if type(key) is bytes else as_bytes_or_none(key, f"record {index}: key")
        if type(value) is not bytes:
            value = as_bytes_or_none(value, f"record {index}: value")
        return key, value, raw, now_ms
    if item is None:
        return None, None, NO_HEADERS, now_ms
    if not isinstance(item, CONTENTS):
        refuse_record(item, index)
    return None, as_bytes(item, "value"), NO_HEADERS, now_ms
