"""Bytes to columns: what a value is by the declared schema, and why it is not.

JSON and CSV are Spark's own functions; Avro was decoded where it was read (`avro.py`). A frame of
messages gets the column `fields`, a struct of the declared columns, and `is_bad`. Why is only asked
of those that are bad, which are few.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ConfigError
from tailrace.spark.columns import COLUMNS
from tailrace.spark.pipelines.avro import FIELDS, REASON, columns_of
from tailrace.spark.pipelines.definition import Input
from tailrace.spark.statements import describe, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["CSV", "bad_rows", "declared", "rows"]

CSV: Final = {"escape": '"'}  # a quote in quotes is doubled, as all have it but Spark

_BAD: Final = "is_bad"
_CORRUPT: Final = "_corrupt_record_"
_END: Final = "_end_"
_NOT_IN_LINES: Final = ("array", "map", "struct", "void")  # which `from_csv` says when it runs
_LONGEST: Final = 60  # characters of a value that a reason quotes
_OF_TABLES: Final = re.compile(r"\b(?:var)?char\(")  # types that no function of Spark's makes
# A number whose exponent has four digits: to make a decimal of it takes Spark minutes, or for ever.
_HUGE: Final = r"[+-]?[0-9]*+(?:\.[0-9]*+)?[eE][+-]?0*+[1-9][0-9]{3,}+"
_HUGE_TEXT: Final = f"\"{_HUGE}\"|'{_HUGE}'"  # Spark makes numbers of texts as well
_HUGE_VALUE: Final = f"(?:{_HUGE}|{_HUGE_TEXT})"  # of JSON
_TEXT: Final = "\"[^\"]*+\"|'[^']*+'"  # of JSON, where nothing is escaped


def declared(given: Input, key: str) -> StructType | None:
    """The columns that an input declares; `ConfigError` names the key if they cannot be read."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if given.schema is None:
        return None
    try:
        text = columns_of(given.schema) if given.format == "avro" else given.schema
        found = StructType.fromDDL(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    except PySparkException as error:
        raise ConfigError(f"{key}: {describe(error)}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigError(f"{key}: it has no columns; write them as 'id long, at timestamp'")
    for field in found.fields:
        if field.name == _CORRUPT:
            raise ConfigError(f"{key}: the column {field.name!r} has another meaning here")
        if _OF_TABLES.search(field.dataType.simpleString()):
            raise ConfigError(
                f"{key}: the column {field.name!r} is {field.dataType.simpleString()}, which is "
                "for tables; read it as string"
            )
        if given.format == "csv" and field.dataType.typeName() in _NOT_IN_LINES:
            raise ConfigError(
                f"{key}: the column {field.name!r} is {field.dataType.simpleString()}, which is "
                "not in a line of CSV; read it as string, and take it apart in the statement"
            )
    return found


def rows(frame: DataFrame, given: Input, schema: StructType | None) -> DataFrame:
    """What the statement sees: the declared columns, and beside them what else a message has. Of
    raw messages: all that a message has."""
    from pyspark.sql import functions as f

    if schema is None:
        return frame
    names = {field.name.lower() for field in schema.fields}
    beside = [n for n in frame.columns if n in COLUMNS and n != "value" and n.lower() not in names]
    found = _decoded(frame, given, schema).where(~f.col(_BAD))
    columns = [f.col(f"{FIELDS}.{quoted(field.name)}") for field in schema.fields]
    return found.select(*columns, *(f.col(name) for name in beside))


def bad_rows(frame: DataFrame, given: Input, schema: StructType) -> DataFrame:
    """Messages that do not fit, with the column `reason`."""
    from pyspark.sql import functions as f

    found = _decoded(frame, given, schema).where(f.col(_BAD))
    if given.format == "json":
        reason = _reason_json(given, schema)
    elif given.format == "csv":
        reason = _reason_csv(given, schema)
    else:
        reason = f.coalesce(f.col(REASON), _missing(schema))
    return found.withColumn(REASON, reason).drop(FIELDS, _BAD)


# --- what it is -----------------------------------------------------------------------------


def _decoded(frame: DataFrame, given: Input, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f

    if given.format == "avro":
        is_bad = f.col(FIELDS).isNull()
    else:
        frame = frame.withColumn(FIELDS, _parsed(given, schema))
        is_bad = f.col(FIELDS).isNull() | f.col(f"{FIELDS}.{_CORRUPT}").isNotNull()
        if given.format == "json":
            is_bad = is_bad | _has_more()
        elif len(schema.fields) > 1:
            is_bad = is_bad | _is_no_line()
    for field in schema.fields:
        if not field.nullable:
            is_bad = is_bad | f.col(f"{FIELDS}.{quoted(field.name)}").isNull()
    return frame.withColumn(_BAD, is_bad)


def _parsed(given: Input, schema: StructType) -> Column:
    from pyspark.sql import functions as f

    text = _text() if given.format == "json" else _line()
    if _has_decimals(schema):
        text = f.when(~_has_huge_number(given, schema), text)
    columns = {field.name: field.dataType for field in schema.fields}
    return _from_json(text, columns) if given.format == "json" else _from_csv(text, columns, given)


def _has_decimals(schema: StructType) -> bool:
    return "decimal(" in schema.simpleString()


def _has_huge_number(given: Input, schema: StructType) -> Column:
    """Where a decimal would be made of it. Nearly always a look at the text tells that there is
    none, so the second look may take its time."""
    from pyspark.sql import functions as f

    if given.format == "json":
        may_have, has = _text().rlike(rf"[:,\[]\s*{_HUGE_VALUE}"), _has_huge_field(schema)
    else:
        before = rf"(?:^|\"|{re.escape(given.delimiter)})\s*"
        may_have, has = _text().rlike(before + _HUGE), _has_huge_column(given, schema)
    return f.when(may_have, f.coalesce(has, f.lit(False))).otherwise(f.lit(False))


def _has_huge_field(schema: StructType) -> Column:
    """Without the texts, and without the values of other fields, unless their names are escaped or
    those of a map."""
    from pyspark.sql import functions as f

    names, holders = _decimals(schema)
    key = rf'"(?!(?:{"|".join(names)})")[^"\\]*+"\s*:\s*'
    others = "" if "map" in holders else f"{key}(?:{_TEXT}|{_HUGE})|"
    before = "[:,\\[]" if "array" in holders else ":"
    plain = f.regexp_replace(_text(), r"(?s)\\.", r"\\")  # of what is escaped, a backslash is left
    left = f.regexp_replace(plain, f"{others}({_HUGE_TEXT})|{_TEXT}", "$1")
    return left.rlike(rf"{before}\s*{_HUGE_VALUE}")


def _decimals(kind: Any) -> tuple[list[str], set[str]]:
    """The names of fields that are decimals, at any depth, as patterns; and what else holds some:
    an array, a map."""
    names: list[str] = []
    holders: set[str] = set()
    inside = [getattr(kind, name, None) for name in ("elementType", "valueType")]
    if any(_is_decimal(each) for each in inside):
        holders.add(kind.typeName())
    for field in getattr(kind, "fields", ()):
        inside.append(field.dataType)
        if _is_decimal(field.dataType):
            names.append(re.escape(field.name))
    for each in filter(None, inside):
        more, others = _decimals(each)
        names, holders = names + more, holders | others
    return names, holders


def _is_decimal(kind: Any) -> bool:
    return kind is not None and bool(kind.typeName() == "decimal")


def _has_huge_column(given: Input, schema: StructType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    texts = _from_csv(_line(), {field.name: StringType() for field in schema.fields}, given)
    columns = (texts.getField(each.name) for each in schema.fields if _is_decimal(each.dataType))
    return f.exists(f.array(*columns), lambda text: text.rlike(f"^{_HUGE}$"))


def _text() -> Column:
    """The value; null if it is no text, which no function of Spark's is to see."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    return f.when(f.is_valid_utf8(text), text)


def _options(**more: str) -> dict[str, str]:
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **more}


def _line() -> Column:
    """The text without the end of a line, which writers of CSV put there, and which is no data."""
    from pyspark.sql import functions as f

    return f.rtrim(_text(), f.lit("\r\n"))


def _from_json(text: Column, columns: Mapping[str, DataType]) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(name, kind) for name, kind in columns.items()]
    return f.from_json(text, StructType([*fields, StructField(_CORRUPT, StringType())]), _options())


def _has_more() -> Column:
    """Is there something behind a JSON object? `from_json` stops at its end, and does not look. So
    it gets the object in an array with a mark behind it, unless the only brace that closes is the
    last of the characters: most objects are flat, and need no second look."""
    from pyspark.sql import functions as f

    text = _text()
    marked = f.concat(f.lit("["), text, f.lit(f',{{"{_END}":"{_END}"}}]'))
    both = f.from_json(marked, f"array<struct<{_END}: string>>", {"mode": "PERMISSIVE"})
    is_one = (f.size(both) == 2) & (f.get(both, f.lit(1)).getField(_END) == _END)
    is_flat = f.instr(text, "}") == f.length(f.rtrim(text))
    return f.when(is_flat, f.lit(False)).otherwise(~f.coalesce(is_one, f.lit(False)))


def _from_csv(text: Column, columns: Mapping[str, DataType], given: Input) -> Column:
    """It takes its columns as text only; none of them has columns inside."""
    from pyspark.sql import functions as f

    kinds = [f"{quoted(name)} {kind.simpleString()}" for name, kind in columns.items()]
    written = ", ".join([*kinds, f"{_CORRUPT} string"])
    return f.from_csv(text, written, _options(sep=given.delimiter, **CSV))


def _is_no_line() -> Column:
    """Is there nothing at all? `from_csv` makes nulls of that, however many columns there are."""
    from pyspark.sql import functions as f

    text = _text()
    return (f.octet_length(text) <= 2) & (f.translate(text, "\r\n", "") == "")


# --- why it is not --------------------------------------------------------------------------


def _reason_json(given: Input, schema: StructType) -> Column:
    """Each field is tried by itself, and the first that does not fit is named."""
    from pyspark.sql import functions as f

    reason: Any = _no_reading(given, schema)
    whole = _from_json(_text(), {})
    reason = reason.when(whole.isNull(), f.lit("the value is empty"))
    reason = reason.when(
        whole.getField(_CORRUPT).isNotNull(),
        f.concat(f.lit("it is not a JSON object: "), _quote(_text())),
    )
    reason = reason.when(
        _has_more(), f.concat(f.lit("there is more after the JSON object: "), _quote(_text()))
    )
    for field in schema.fields:
        alone = _from_json(_text(), {field.name: field.dataType})
        said = f"the field {field.name!r} is no {field.dataType.simpleString()}: "
        reason = reason.when(
            alone.getField(_CORRUPT).isNotNull(),
            f.concat(f.lit(said), _quote(_json_field(field.name))),
        )
    found: Column = reason.otherwise(_missing(schema))
    return found


def _json_field(name: str) -> Column:
    """What is in a field, whatever it is."""
    from pyspark.sql import functions as f

    whole = f.from_json(_text(), f"{quoted(name)} string")
    return f.coalesce(whole.getField(name), f.lit(""))


def _reason_csv(given: Input, schema: StructType) -> Column:
    """Each column is tried by itself, the others as text, and the first that does not fit is
    named."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    def tried(at: int | None) -> Column:
        columns = {
            field.name: field.dataType if at == index else StringType()
            for index, field in enumerate(schema.fields)
        }
        return _from_csv(_line(), columns, given)

    whole = tried(None)
    reason = _no_reading(given, schema)
    if len(schema.fields) > 1:
        reason = reason.when(_is_no_line(), f.lit("the value is empty"))
    reason = reason.when(
        whole.isNull() | whole.getField(_CORRUPT).isNotNull(),
        f.concat(f.lit(f"it is not a line of {len(schema.fields)} columns: "), _quote(_text())),
    )
    for at, field in enumerate(schema.fields):
        said = f"the column {field.name!r} is no {field.dataType.simpleString()}: "
        reason = reason.when(
            tried(at).getField(_CORRUPT).isNotNull(),
            f.concat(f.lit(said), _quote(whole.getField(field.name))),
        )
    found: Column = reason.otherwise(_missing(schema))
    return found


def _no_reading(given: Input, schema: StructType) -> Any:
    """Why Spark was not even asked."""
    from pyspark.sql import functions as f

    reason = f.when(f.col("value").isNull(), f.lit("there is no value"))
    reason = reason.when(_text().isNull(), f.lit("it is not UTF-8"))
    if _has_decimals(schema):
        said = f.concat(f.lit("a number has too large an exponent: "), _quote(_text()))
        reason = reason.when(_has_huge_number(given, schema), said)
    return reason


def _missing(schema: StructType) -> Column:
    """Fields that have to be there."""
    from pyspark.sql import functions as f

    reason: Any = None
    for field in schema.fields:
        if not field.nullable:
            is_null = f.col(f"{FIELDS}.{quoted(field.name)}").isNull()
            said = f.lit(f"the field {field.name!r} is missing")
            reason = f.when(is_null, said) if reason is None else reason.when(is_null, said)
    other = f.lit("it does not fit the schema")
    return other if reason is None else f.coalesce(reason, other)


def _quote(text: Column) -> Column:
    from pyspark.sql import functions as f

    short = f.substring(text, 1, _LONGEST)
    return f.concat(
        f.lit("'"), short, f.when(f.length(text) > _LONGEST, "…").otherwise(""), f.lit("'")
    )
