"""What people give to a log, checked and cut to size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from tailrace.errors import ConfigError
from tailrace.kernel import MAX_COUNT, Record
from tailrace.kernel.coerce import CONTENTS
from tailrace.kernel.headers import as_pairs
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER, SETTLED_HEADER

__all__ = [
    "check_records",
    "check_timeout",
    "check_whole",
    "checked_mode",
    "checked_sequence",
    "chunks",
    "refuse_reserved",
]


def chunks(records: Iterable[Any], max_bytes: int) -> Iterator[list[Any]]:
    """Lists of records that probably fit into a batch, without holding more than that."""
    chunk: list[Any] = []
    size = 0
    for record in records:
        if type(record) is Record:  # most of what queues give
            weight = len(record.key or b"") + len(record.value or b"")
        else:
            weight = len(record) if isinstance(record, bytes) else _weight(record)
        size += weight + 16
        if chunk and (size > max_bytes or len(chunk) == MAX_COUNT):
            yield chunk
            chunk, size = [], weight + 16
        chunk.append(record)
    if chunk:
        yield chunk


def _weight(record: object) -> int:
    match record:
        case Record():
            return len(record.key or b"") + len(record.value or b"")
        case (key, value, *_):
            return _weight(key) + _weight(value)
        case Sized():
            return len(record)
        case _:
            return 0


def check_records(records: object) -> None:
    """What the kernel would take, and the log does not."""
    if isinstance(records, tuple):
        raise TypeError("a tuple is one record with its key; put the records in a list")
    match records:
        case [Record(headers=headers), *_] | [(_, _, headers), *_] if headers:
            refuse_reserved(headers)


def refuse_reserved(headers: Any) -> None:
    """The log believes these two when it finds them in a batch's first record."""
    if isinstance(headers, CONTENTS):
        as_pairs(headers)  # type: ignore[arg-type]  # raises
    names = headers if isinstance(headers, Mapping) else [pair[0] for pair in headers]
    for name in (PRODUCER_HEADER, SEQUENCE_HEADER, SETTLED_HEADER):
        if name in names:
            raise ValueError(f"the header {name!r} is the log's own; append with producer=…")


def checked_mode(mode: str, exclusive: bool, read_only: bool) -> str:
    if mode not in ("owner", "shared"):
        raise ConfigError(f"mode: {mode!r} is not one of owner, shared")
    if exclusive and read_only:
        raise ConfigError("exclusive: a log that is open read-only keeps nobody out")
    return "exclusive" if exclusive else mode


def check_whole(name: str, number: object, meaning: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} is {meaning}, a whole number, not {number!r}")


def check_timeout(timeout: object) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | None):
        raise TypeError(f"timeout is a number of seconds, or None for ever, not {timeout!r}")
    if timeout != timeout:  # as nan alone
        raise ValueError("timeout is a number of seconds, or None for ever, not nan")


def checked_sequence(producer: str | None, sequence: int | None) -> tuple[str, int]:
    if not isinstance(producer, str) or not 0 < len(producer) <= 255:
        raise ValueError(f"a producer id is 1 to 255 characters, not {producer!r}")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < 2**63:
        raise ValueError(f"a sequence is a whole number from 0 on, not {sequence!r}")
    return producer, sequence
