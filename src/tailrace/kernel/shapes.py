"""Columns as plain buffers, in Arrow's memory layout: what `arrow` and the twins hand each other.

Nothing here is trusted: a twin checks every offset against the buffer that it points into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.kernel.layout import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

MAX_PICKED: Final = 4  # the compiled twin has room for so many
MAX_HIDDEN: Final = 16
LONGEST_NUMBER: Final = 20  # digits and sign of an int64


class Binary(NamedTuple):
    """A column of byte strings to read: `rows` of them behind the first `skip`."""

    rows: int
    skip: int
    validity: Buffer | None  # a bitmap, a 1 for each row that is not null; None: none is null
    offsets: Buffer  # i64, skip + rows + 1 of them, into data
    data: Buffer


class Integers(NamedTuple):
    """A column of i64 to read."""

    rows: int
    skip: int
    validity: Buffer | None
    data: Buffer


class HeaderLists(NamedTuple):
    """A column of lists of (name, value) to read; `offsets` minus `base` point into both.

    `skip` is of the bitmap only; the offsets start with the first row's.
    """

    rows: int
    skip: int
    validity: Buffer | None
    base: int
    offsets: Buffer  # i64, rows + 1 of them
    names: Binary
    values: Binary


class Rows(NamedTuple):
    """Records to encode; the columns have the same number of rows. Headers are a column, or the
    same for all of them: as `encode_headers` made them, which is believed."""

    rows: int
    value: Binary
    key: Binary | None = None
    timestamp: Integers | None = None
    headers: HeaderLists | None = None
    same_headers: bytes | None = None


class Wanted(NamedTuple):
    """What to make of a region's keys and headers; names are as on disk.

    Measuring and filling must be asked for the same. Whether headers are written is what Outputs
    say: `headers` only keeps them from being measured.
    """

    headers: bool = True  # all of them as a column, but for the hidden
    picked: tuple[bytes, ...] = ()  # each is a column: of the first header of that name, or null
    hidden: tuple[bytes, ...] = ()
    empty_key_is_null: bool = False


EVERYTHING: Final = Wanted()


class Sizes(NamedTuple):
    """What the decoded columns of a region need; headers that are not wanted count as none."""

    rows: int
    null_keys: int
    key_bytes: int
    null_values: int
    value_bytes: int
    headers: int
    name_bytes: int
    header_bytes: int  # of the headers' values
    null_picked: tuple[int, ...] = ()  # for each name that is picked
    picked_bytes: tuple[int, ...] = ()


class BinaryOut(NamedTuple):
    """A column of byte strings to write: i32 offsets; the bitmap may be None if none is null."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer


class HeadersOut(NamedTuple):
    """A column of lists of headers to write: i32 list offsets, and two columns without nulls."""

    offsets: Buffer
    names: BinaryOut
    values: BinaryOut


class Outputs(NamedTuple):
    """Writable buffers for the columns that are wanted; None for the others."""

    offset: Buffer | None = None  # i64
    timestamp: Buffer | None = None  # i64
    key: BinaryOut | None = None
    value: BinaryOut | None = None
    headers: HeadersOut | None = None
    picked: tuple[BinaryOut, ...] = ()  # for each name that is picked


def invalid_column(name: str) -> ValueError:
    """The error for a column whose offsets do not fit its buffers."""
    return ValueError(f"column {name!r} is not a valid Arrow array: its offsets exceed its buffers")


def null_header(row: int) -> ValueError:
    """The error for a header that cannot be stored."""
    return ValueError(f"row {row}: a header's name and value must not be null")


def buffers_too_small() -> ValueError:
    """The error for outputs that are smaller than `measure_columns` said."""
    return ValueError("an output buffer is too small for these records; measure them again")


def check_names(names: Sequence[bytes], most: int, what: str) -> tuple[bytes, ...]:
    """`names` of headers if they are bytes and at most so many; nobody can change them then."""
    checked = tuple(names)
    if len(checked) > most:
        raise ValueError(f"at most {most} headers can be {what}, not {len(checked)}")
    for name in checked:
        if type(name) is not bytes:
            raise TypeError(f"the name of a {what} header must be bytes, not {type(name).__name__}")
    return checked


def check_picked(wanted: Wanted) -> tuple[bytes, ...]:
    """The names of the picked headers."""
    names = check_names(wanted.picked, MAX_PICKED, "picked")
    if len(set(names)) < len(names):
        raise ValueError("a header can be picked only once")
    return names


def check_picked_outputs(outputs: Outputs, names: tuple[bytes, ...]) -> tuple[BinaryOut, ...]:
    """The outputs for the picked headers: one for each."""
    columns = tuple(outputs.picked)
    if len(columns) != len(names):
        raise ValueError(f"{len(names)} headers are picked, and {len(columns)} have an output")
    return columns


def check_hidden(wanted: Wanted) -> tuple[bytes, ...]:
    """The names of the hidden headers."""
    return check_names(wanted.hidden, MAX_HIDDEN, "hidden")


def check_max_records(max_records: int) -> int:
    """The number of rows that a batch may get when a caller allows so many."""
    if max_records < 1:
        raise ValueError(f"max_records must be at least 1, not {max_records}")
    return min(max_records, MAX_COUNT)
