"""Record, and the varints and header bytes that it is stored with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.kernel.coerce import as_bytes_or_none, as_offset, as_timestamp
from tailrace.kernel.headers import EMPTY, Headers, decode_name, encode_name
from tailrace.kernel.layout import RECORD_FAULTS, Malformed
from tailrace.kernel.record_support import FIELDS, describe, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from tailrace.kernel.headers import HeadersLike

    BytesLike = bytes | bytearray | memoryview | str


class Record:
    """One record: immutable; `key` and `value` are bytes or None, `headers` is never None.

    `offset` and `timestamp` (milliseconds) are None until the log gives them; on a record that was
    read both are ints. `str` is encoded as UTF-8, mutable buffers are copied.
    """

    # _headers: Headers, or bytes as on disk that the first access parses. Two threads that race
    # there make equal objects, and either may win.
    __slots__ = ("_headers", "_key", "_offset", "_timestamp", "_value")
    __match_args__ = FIELDS

    _headers: Headers | bytes
    _key: bytes | None
    _offset: int | None
    _timestamp: int | None
    _value: bytes | None

    def __init__(
        self,
        offset: int | None = None,
        timestamp: int | None = None,
        key: BytesLike | None = None,
        value: BytesLike | None = None,
        headers: HeadersLike = None,
    ) -> None:
        self._offset = None if offset is None else as_offset(offset)
        self._timestamp = None if timestamp is None else as_timestamp(timestamp)
        self._key = as_bytes_or_none(key, "key")
        self._value = as_bytes_or_none(value, "value")
        self._headers = Headers.of(headers)

    @property
    def offset(self) -> int | None:
        """Where the record is in its log."""
        return self._offset

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since the epoch."""
        return self._timestamp

    @property
    def key(self) -> bytes | None:
        """The key; None is not the same as empty."""
        return self._key

    @property
    def value(self) -> bytes | None:
        """The value; None is not the same as empty."""
        return self._value

    @property
    def headers(self) -> Headers:
        """The headers; empty if there are none."""
        headers = self._headers
        if isinstance(headers, bytes):
            headers = self._headers = parse_headers(headers)
        return headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return describe(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return restore if type(self) is Record else type(self), self._fields()

    def __copy__(self) -> Record:
        return self

    def __deepcopy__(self, memo: object) -> Record:
        return self

    def _fields(self) -> tuple[int | None, int | None, bytes | None, bytes | None, Headers]:
        return self._offset, self._timestamp, self._key, self._value, self.headers


def _varints() -> list[bytes]:
    """Every uvarint of one or two bytes: looking one up is much faster than making it."""
    one = [bytes((low,)) for low in range(0x80)]
    two = [bytes((low | 0x80, high)) for high in range(1, 0x80) for low in range(0x80)]
    return one + two


VARINTS: Final = _varints()
SHORT: Final = len(VARINTS)  # uvarints below this are in the table


def uvarint(number: int) -> bytes:
    """`number` (0 <= number < 2^64) in groups of seven bits, the low ones first."""
    if number < SHORT:
        return VARINTS[number]
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def svarint(number: int) -> bytes:
    """A signed 64-bit `number`, zigzag: small magnitudes are short whatever their sign."""
    return uvarint(number << 1 if number >= 0 else ~(number << 1))


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    """The uvarint at `position` and the position behind it.

    Raises IndexError where the data ends, Malformed if it is longer than 10 bytes or 64 bits.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    high = data[position + 1]
    if high < 0x80:
        return byte - 0x80 + (high << 7), position + 2
    number = byte & 0x7F | (high & 0x7F) << 7
    position += 2
    for shift in range(14, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, position
    raise Malformed(RECORD_FAULTS[1])


def wrap64(number: int) -> int:
    """`number` as a signed 64-bit field holds it."""
    if -(1 << 63) <= number < 1 << 63:
        return number
    return (number + (1 << 63) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)


def encode_headers(pairs: Sequence[tuple[str, bytes]]) -> bytes:
    """The number of headers and each of them, as they are on disk."""
    return encode_raw_headers([(encode_name(name), value) for name, value in pairs])


def encode_raw_headers(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """As `encode_headers`, of names that are bytes already."""
    parts = [uvarint(len(pairs))]
    for name, value in pairs:
        parts += (uvarint(len(name)), name, uvarint(len(value)), value)
    return b"".join(parts)


def raw_headers(record: Record) -> bytes:
    """A record's headers as they are on disk, without parsing those that came from there."""
    headers = record._headers
    return headers if isinstance(headers, bytes) else encode_headers(headers.pairs)


def skip_headers(data: bytes, position: int) -> int:
    """The position behind the headers at `position`, all of whose lengths were checked."""
    count, position = read_uvarint(data, position)
    end = len(data)
    for _ in range(2 * count):  # names and values have the same form
        length, position = read_uvarint(data, position)
        if length > end - position:
            raise IndexError
        position += length
    return position


def split_headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The names and values in bytes that `skip_headers` has passed."""
    count, position = read_uvarint(raw, 0)
    pairs: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        length, position = read_uvarint(raw, position)
        name = raw[position : position + length]
        position += length
        length, position = read_uvarint(raw, position)
        pairs.append((name, raw[position : position + length]))
        position += length
    return pairs


def parse_headers(raw: bytes) -> Headers:
    """The Headers in bytes that `skip_headers` has passed."""
    pairs = split_headers(raw)
    if not pairs:
        return EMPTY
    return Headers.from_pairs(tuple((decode_name(name), value) for name, value in pairs))


def numbered(head: bytes, number: int) -> bytes:
    """Headers as on disk: `head` has all of them but for the last one's value, which is the number
    in digits."""
    digits = b"%d" % number
    return b"%b%c%b" % (head, len(digits), digits)


def stamped(key: BytesLike | None, value: BytesLike | None, headers: bytes) -> Record:
    """A new record whose headers are as `encode_headers` made them: they are believed."""
    record = Record(None, None, key, value)
    record._headers = headers
    return record


def find_header(record: Record, name: bytes) -> bytes | None:
    """The value of a record's first header of that name, which is as on disk; None if it has none.

    Headers that nobody has parsed yet stay so: what comes by the million is looked into cheaply.
    """
    headers = record._headers
    if isinstance(headers, bytes):
        pairs = split_headers(headers)
    else:
        pairs = [(encode_name(text), value) for text, value in headers.pairs]
    return next((value for known, value in pairs if known == name), None)


def encode_record(
    index: int,
    delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
) -> bytes:
    """One record; `headers` are as `encode_headers` made them."""
    return b"".join(
        (
            uvarint(index),
            svarint(delta),
            NULL if key is None else svarint(len(key)) + key,
            NULL if value is None else svarint(len(value)) + value,
            headers,
        )
    )


NULL: Final = svarint(-1)
NO_HEADERS: Final = encode_headers(())
