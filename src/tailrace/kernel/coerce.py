"""What callers may pass for bytes, timestamps and offsets, and the errors when they don't.

Both twins call these for whatever their fast paths don't recognise, so that the rules and the
messages exist once.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Final, NoReturn

from tailrace.kernel.layout import CODEC_NAMES, MAX_OFFSET, MAX_TIMESTAMP, MIN_TIMESTAMP

# Tuples, not unions: those would be made anew at each call.
BUFFERS: Final = (bytes, bytearray, memoryview)
CONTENTS: Final = (str, bytes, bytearray, memoryview)


def as_bytes(value: object, what: str) -> bytes:
    """`value` as bytes; text becomes UTF-8 and mutable buffers are copied."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, BUFFERS):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or str, not {type(value).__name__}")


def as_bytes_or_none(value: object, what: str) -> bytes | None:
    """As `as_bytes`, but None (null, which is not the same as empty) stays None."""
    return value if value is None or type(value) is bytes else as_bytes(value, what)


def as_timestamp(value: object) -> int:
    """`value` as integer milliseconds that fit in a signed 64-bit field."""
    return _as_int(value, "timestamp", MIN_TIMESTAMP, MAX_TIMESTAMP)


def as_offset(value: object) -> int:
    """`value` as the offset of a record."""
    return _as_int(value, "offset", 0, MAX_OFFSET)


def as_codec(value: object) -> int:
    """`value` as the number of a known codec."""
    if isinstance(value, int) and value in CODEC_NAMES:
        return int(value)
    known = ", ".join(f"{number} ({name})" for number, name in CODEC_NAMES.items())
    raise ValueError(f"codec {value!r} is unknown; the codecs are {known}")


def refuse_record(item: object, index: int) -> NoReturn:
    """Raise for an element of `encode`'s list that is no record."""
    given = f"a tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
    raise TypeError(
        f"record {index} must be bytes, str, None, (key, value), (key, value, headers) "
        f"or a Record, not {given}"
    )


def refuse_single(records: object) -> None:
    """Raise if `records` is one value: iterating over it would make a record of each byte."""
    if isinstance(records, CONTENTS):
        raise TypeError(
            f"records must be a sequence of records, not one {type(records).__name__}; "
            "put it in a list"
        )


def _as_int(value: object, what: str, low: int, high: int) -> int:
    if type(value) is int and low <= value <= high:
        return value
    try:
        number = as_index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{what} {number} is outside [{low}, {high}]")
    return number
