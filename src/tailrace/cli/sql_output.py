"""Rows of a DataFrame as CSV, as JSON lines, and as Parquet; `sql_table` shows them to people.

Bytes are shown as text where they are that, as in other commands. Times are made text by Spark: it
has some that Python has not, of years before 1 and after 9999.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Final

from tailrace.cli.output import as_json
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "check_place",
    "shown",
    "with_told_times",
    "write_csv",
    "write_json",
    "write_parquet",
]

_SECOND: Final = 1_000_000  # in microseconds
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


# --- times ----------------------------------------------------------------------------------


def with_told_times(found: DataFrame) -> DataFrame:
    """With text for all times. Names of columns are other ones, since some may be there twice."""
    names = [f"_{place}" for place in range(len(found.columns))]
    frame = found.toDF(*names)
    return frame.select(
        *(
            _told(frame[name], field.dataType)
            for name, field in zip(names, found.schema.fields, strict=True)
        )
    )


def _told(column: Column, kind: Any) -> Column:
    """The same of a column whose type is, or has in it, that of a time."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if not any(name in kind.json() for name in ("timestamp", "date")):
        return column
    match kind:
        case t.TimestampType():
            return _moment(column)
        case t.TimestampNTZType() | t.DateType():
            return column.cast("string")
        case t.ArrayType():
            return f.transform(column, lambda each: _told(each, kind.elementType))
        case t.MapType():
            keys = f.transform_keys(column, lambda key, _: _told(key, kind.keyType))
            return f.transform_values(keys, lambda _, value: _told(value, kind.valueType))
        case t.StructType():
            fields = [_told(column[each.name], each.dataType).alias(each.name) for each in kind]
            return f.when(column.isNotNull(), f.struct(*fields))
    return column


def _moment(time: Column) -> Column:
    """In UTC. Spark would write it in the zone of its session."""
    from pyspark.sql import functions as f

    def div(number: Column, by: int) -> Column:
        return f.call_function("div", number, f.lit(by))  # `/` is no longer a whole number

    micros = f.unix_micros(time)
    day = div(micros, _DAY) - f.when(micros % _DAY < 0, 1).otherwise(0)
    rest = f.pmod(micros, f.lit(_DAY))
    units = [div(rest, _HOUR), div(rest, _MINUTE) % 60, div(rest, _SECOND) % 60, rest % _SECOND]
    clock = f.regexp_replace(f.format_string("%02d:%02d:%02d.%06d", *units), "000$", "")
    date = f.date_from_unix_date(day.cast("int")).cast("string")
    return f.concat(date, f.lit("T"), clock, f.lit("Z"))


# --- values ---------------------------------------------------------------------------------


def plain(value: Any, of_bytes: Callable[[bytes], object] = as_json) -> Any:
    """A value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no such numbers
        case bytes() | bytearray():
            return of_bytes(bytes(value))
        case Decimal() | timedelta():
            return str(value)
        case dict():  # keys may be anything there
            return {_name(key): plain(each, of_bytes) for key, each in value.items()}
        case tuple() if hasattr(value, "asDict"):  # a row in a row
            return {name: plain(each, of_bytes) for name, each in value.asDict().items()}
        case list() | tuple():
            return [plain(each, of_bytes) for each in value]
    return str(value)


def _name(key: Any) -> str:
    made = plain(key, _shown_bytes)
    return made if isinstance(made, str) else json.dumps(made)


def _shown_bytes(value: bytes) -> str:
    found = as_json(value)
    return found if isinstance(found, str) else f"0x{value.hex()}"


def shown(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    made = plain(value, _shown_bytes)
    if isinstance(made, str):
        return made
    return (
        json.dumps(made, ensure_ascii=False) if isinstance(made, list | dict | bool) else str(made)
    )


# --- rows -----------------------------------------------------------------------------------


def write_csv(schema: Any, rows: Iterable[Any], out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(field.name for field in schema.fields)
    writer.writerows([shown(value) for value in row] for row in rows)


def write_json(schema: Any, rows: Iterable[Any], out: IO[str]) -> None:
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise TailraceError(f"the column {name!r} is there twice; rename one of them with AS")
    for row in rows:
        made = {name: plain(value) for name, value in zip(names, row, strict=True)}
        out.write(json.dumps(made) + "\n")


# --- files ----------------------------------------------------------------------------------


def check_place(folder: str) -> None:
    """Refuse where no new folder can be made, which Spark would say at length when it has read all.
    Only trying tells."""
    if "://" in folder:
        return
    if os.path.lexists(folder):
        raise TailraceError(f"{folder} is there already; name a new folder")
    place = os.path.abspath(folder)
    while not os.path.lexists(os.path.dirname(place)):  # Spark makes those between
        place = os.path.dirname(place)
    trial = _temporary(place)
    try:
        os.mkdir(trial)
        os.rmdir(trial)
    except OSError as error:
        raise TailraceError(
            f"{folder} cannot be made: {error.strerror}; name a folder that can be written"
        ) from error


def write_parquet(found: DataFrame, folder: str) -> int | None:
    """How many rows there are in the folder, if that can be told. It gets its name when it is
    whole."""
    if "://" in folder:
        found.write.mode("error").parquet(folder)
        return None
    folder = os.path.abspath(folder)
    with _whole(folder) as place:
        try:
            found.write.mode("error").parquet(f"file://{place}")
        except KeyboardInterrupt:
            from tailrace.spark.session import end_jvm

            end_jvm()  # its tasks would go on, and write to what is removed
            raise
        return _count(place)


@contextlib.contextmanager
def _whole(folder: str) -> Iterator[str]:
    place = _temporary(folder)
    try:
        yield place
        os.rename(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _temporary(folder: str) -> str:
    return f"{folder}.{uuid.uuid4().hex[:8]}.tmp"


def _count(folder: str) -> int:
    from pyarrow import parquet

    names = [name for name in os.listdir(folder) if name.endswith(".parquet")]
    return sum(parquet.read_metadata(os.path.join(folder, name)).num_rows for name in names)
