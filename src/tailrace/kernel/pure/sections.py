"""The records in a section of a batch, from its bytes."""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING, Final

from tailrace.kernel.headers import EMPTY
from tailrace.kernel.layout import RECORD_FAULTS, Malformed
from tailrace.kernel.pure.records import (
    SHORT,
    VARINTS,
    Record,
    read_uvarint,
    skip_headers,
    wrap64,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    _Reader: TypeAlias = tuple[Callable[[bytes, int], tuple[Any, ...]], int]

# What the first byte of a value's length means: the length; for the first of two bytes its part of
# the length plus _TWO, a negative number; _NULL for a negative length; _OTHER for what is rare.
_TWO: Final = -0x40
_NULL: Final = -0x41
_OTHER: Final = -0x42
_SIZES: Final = [_NULL if byte & 1 else byte >> 1 for byte in range(0x80)] + [
    _OTHER if byte & 1 else _TWO + (byte - 0x80 >> 1) for byte in range(0x80, 0x100)
]


def _readers(delta: str) -> list[_Reader]:
    """What reads a record up to its value, by the key's length as it is stored, in one byte.

    A reader gives the offset delta, the timestamp delta, the length of the key, the key, the first
    byte of the value's length, and the byte behind that: every record has one. Beside it is the
    number of bytes that it reads.
    """
    readers: list[_Reader] = []
    for byte in range(0x80):
        key = 0 if byte & 1 else byte >> 1
        form = struct.Struct(f"<{delta}BB{key}sBB")
        readers.append((form.unpack_from, form.size))
    return readers


# By the width of the offset delta: the first record that has it, the one behind the last, readers.
_STARTS: Final = ((0, 0x80, _readers("B")), (0x80, SHORT, _readers("H")))
_DELTAS: Final = [int.from_bytes(varint, "little") for varint in VARINTS]  # as a reader sees them
_UNKNOWN: Final = -1  # none of them


def read_records(section: bytes, count: int, base_offset: int, base_timestamp: int) -> list[Record]:
    """The first `count` records of a section; the bytes behind them are not read.

    Raises Malformed, or IndexError where something is past the end. Nothing is compared with the
    end, because a byte is read behind every slice.

    The time goes into the interpreter's steps. So the records are made all at once, to be filled
    in, and one call reads all that is in front of a record's value. It has to know the length of
    the key; the guess is that of the record before. What is rare is left to `_read_any`.
    """
    records = list(map(object.__new__, repeat(Record, count)))
    sizes = _SIZES
    no_headers = EMPTY
    position = 0
    known = 0
    for begin, end, readers in _STARTS:
        end = min(end, count)
        read, length = readers[known]
        for record, offset, expected in zip(
            records[begin:end],
            range(base_offset + begin, base_offset + end),
            _DELTAS[begin:end],
            strict=True,
        ):
            try:
                delta, number, key_size, key, low, high = read(section, position)
                if key_size != known:
                    if number < 0x80 and key_size < 0x80:
                        known = key_size
                        read, length = readers[known]
                        delta, number, _, key, low, high = read(section, position)
                    else:
                        delta = _UNKNOWN
            except struct.error:  # near the end, where the key is shorter or the record is damaged
                delta = _UNKNOWN
            if delta != expected or number > 0x7F:
                position = _read_any(record, section, position, offset, base_offset, base_timestamp)
                continue

            start = position + length
            size = sizes[low]
            if size >= 0:
                start -= 1
                stop = start + size
                record._value = section[start:stop]
            elif size >= _TWO and high < 0x80:
                stop = start + (high << 6) + size - _TWO
                record._value = section[start:stop]
            elif size == _NULL:
                stop = start - 1
                record._value = None
            else:
                position = _read_any(record, section, position, offset, base_offset, base_timestamp)
                continue
            record._offset = offset
            record._key = None if known & 1 else key
            record._timestamp = base_timestamp
            if number:
                record._timestamp = wrap64(base_timestamp + (number >> 1 ^ -(number & 1)))
            record._headers = no_headers
            position = stop + 1
            if section[stop]:
                position = skip_headers(section, stop)
                record._headers = section[stop:position]

    for offset, record in enumerate(records[SHORT:], base_offset + SHORT):
        position = _read_any(record, section, position, offset, base_offset, base_timestamp)
    return records


def _read_any(
    record: Record,
    section: bytes,
    position: int,
    offset: int,
    base_offset: int,
    base_timestamp: int,
) -> int:
    """Fill in any record from its bytes at `position`, and return the position behind it."""
    delta, position = read_uvarint(section, position)
    if delta != offset - base_offset:
        raise Malformed(RECORD_FAULTS[3])
    number, position = read_uvarint(section, position)
    record._offset = offset
    record._timestamp = base_timestamp
    if number:
        record._timestamp = wrap64(base_timestamp + (number >> 1 ^ -(number & 1)))
    record._key, position = _read_field(section, position)
    record._value, position = _read_field(section, position)
    record._headers = EMPTY
    if section[position] == 0:
        return position + 1
    stop = skip_headers(section, position)
    record._headers = section[position:stop]
    return stop


def _read_field(section: bytes, position: int) -> tuple[bytes | None, int]:
    """A key or a value, and the position behind it, which may be past the end."""
    number = section[position]
    if number < 0x80:
        position += 1
    else:
        number, position = read_uvarint(section, position)
    if number & 1:
        return None, position
    stop = position + (number >> 1)
    return section[position:stop], stop
