"""From the inputs of a pipeline to the rows of its target, as Spark plans them.

First with stand-ins for the queues, which have the columns and no rows: so a mistake is found
before anything is started, and Spark's plan tells which columns are needed, which are all that are
decoded then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ConfigError, TailraceError
from tailrace.queue.dead_letters import queue_of
from tailrace.queue.settings import QueueSettings
from tailrace.spark import _register
from tailrace.spark.columns import COLUMNS, HEADERS_AS, kinds_in_sql
from tailrace.spark.encoding import IGNORED, TAKES, check_schema
from tailrace.spark.pipelines.avro import FIELDS, REASON, AvroSource, columns_of
from tailrace.spark.pipelines.decoding import CSV, bad_rows, declared, rows
from tailrace.spark.pipelines.definition import Definition, Files, FileTable, Input
from tailrace.spark.statements import (
    describe,
    is_command,
    needed,
    parts,
    place_of,
    quoted,
    with_all,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Planner", "letters_of", "messages"]

_KINDS: Final = kinds_in_sql()
_NO_TEXT: Final = ("array", "interval", "map", "struct", "variant", "void")
_NEEDED_OF_BAD: Final = ("key", "value", "topic", "offset", "headers", "message_id")


def letters_of(given: Input, queues: Mapping[str, QueueSettings]) -> str:
    """The queue that takes what does not fit."""
    return given.dead_letters or queue_of(queues[given.queue])


class Planner:
    """Plans one pipeline, in a session of its own. Every error is a `TailraceError` that begins
    with the name of the pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        definition: Definition,
        queues: Mapping[str, QueueSettings],
        starts: Mapping[str, int] | None = None,
        coming: Collection[str] = (),
    ) -> None:
        """`starts` are offsets, by the names of the inputs, from which a new query reads. `coming`
        are queues that need not be there yet."""
        self._spark = spark
        self._path = os.path.abspath(path)  # Spark may be in another folder than this process is
        self._definition = definition
        self._queues = queues
        self._starts = starts or {}
        self._coming = coming
        self._schemas: dict[str, StructType | None] = {}
        if any(given.format == "avro" for given in definition.inputs.values()):
            _register(spark, AvroSource)

    # --- the rows ---------------------------------------------------------------------------

    def plan(self) -> DataFrame:
        """The rows that go to the target, as a stream; nothing is read yet."""
        try:
            return self._planned()
        except TailraceError as error:
            raise self._wrong(str(error)) from error

    def bad(self, name: str) -> DataFrame:
        """What an input has that does not fit, as dead letters."""
        given = self._definition.inputs[name]
        schema = self._schemas[name]
        assert schema is not None
        found = bad_rows(self._read(name, schema, list(_NEEDED_OF_BAD)), given, schema)
        return _letters(found, self._queues[given.queue], self._definition.name)

    @property
    def decoded(self) -> list[str]:
        """The streams, by their names, that may have what does not fit."""
        return [
            name
            for name, given in self._definition.inputs.items()
            if given.is_stream and given.format != "raw"
        ]

    def _planned(self) -> DataFrame:
        definition = self._definition
        for name, given in definition.inputs.items():
            self._check_there(given.queue, self._key(name, "queue"))
            self._schemas[name] = declared(given, self._key(name, "schema"))
        self._make_views(None)
        columns = needed(self._target(self._statement()))
        self._make_views(columns)
        found = self._target(self._statement())
        if not found.isStreaming:
            names = ", ".join(n for n, each in definition.inputs.items() if each.is_stream)
            raise TailraceError(
                f"sql: the statement does not read {names}, so there is nothing to go on with"
            )
        self._check_mode(found)
        return found

    def _key(self, name: str, key: str) -> str:
        if name != self._definition.source.queue:
            return f"tables.{name}.{key}"
        return "from" if key == "queue" else key

    def _check_there(self, queue: str, key: str) -> None:
        if queue not in self._queues and queue not in self._coming:
            known = ", ".join(sorted(self._queues)) or "none"
            raise TailraceError(f"{key}: there is no queue {queue!r}; there are: {known}")

    # --- inputs -----------------------------------------------------------------------------

    def _make_views(self, columns: list[str] | None) -> None:
        """With stand-ins, if the columns are not known yet."""
        for name, given in self._definition.inputs.items():
            schema = self._schemas[name]
            if columns is None:
                frame = self._stand_in(given)
            else:
                wanted = [*columns, *_watermarked(given)]
                frame = with_all(self._read(name, schema, wanted), _KINDS)
            frame = rows(frame, given, schema)
            if given.watermark is not None:
                frame = self._with_watermark(frame, name, given)
            frame.createOrReplaceTempView(quoted(name))
        for name, table in self._definition.tables.items():
            if isinstance(table, FileTable) and columns is None:
                self._files(name, table).createOrReplaceTempView(quoted(name))

    def _with_watermark(self, frame: DataFrame, name: str, given: Input) -> DataFrame:
        from pyspark.errors import PySparkException

        assert given.watermark is not None
        delay = f"{given.watermark.delay_ms} milliseconds"
        try:
            found = frame.withWatermark(given.watermark.column, delay)
            _ = found.schema
        except PySparkException as error:
            raise TailraceError(f"{self._key(name, 'watermark')}: {describe(error)}") from error
        return found

    def _stand_in(self, given: Input) -> DataFrame:
        columns = ", ".join(f"{name} {kind}" for name, kind in _KINDS.items())
        if given.format == "avro" and given.schema is not None:
            columns += f", {FIELDS} {columns_of(given.schema)}, {REASON} string"
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), columns)

    def _read(self, name: str, schema: StructType | None, columns: list[str]) -> DataFrame:
        given = self._definition.inputs[name]
        wanted = {*columns, "value"} if given.format != "raw" else {*columns}
        kinds = [f"{each} {kind}" for each, kind in _KINDS.items() if each in wanted]
        reader: Any = self._spark.readStream if given.is_stream else self._spark.read
        if given.format == "avro" and schema is not None:
            assert given.schema is not None
            kinds += [f"{FIELDS} {columns_of(given.schema)}", f"{REASON} string"]
            reader = reader.format(AvroSource.name()).option("avroSchema", given.schema)
        else:
            reader = reader.format("tailrace")
        reader = reader.option("path", self._path).option("queue", given.queue)
        if self._definition.on_loss == "skip":
            reader = reader.option("failOnDataLoss", "false")
        if given.is_stream:
            reader = reader.options(**self._beginning(name, given))
            if given.most is not None:
                reader = reader.option("maxOffsetsPerTrigger", str(given.most))
        found: DataFrame = reader.schema(", ".join(kinds)).load()
        return found

    def _beginning(self, name: str, given: Input) -> dict[str, str]:
        start: Any = self._starts.get(name, given.start)
        if isinstance(start, datetime):
            return {"startingTimestamp": start.isoformat()}
        if isinstance(start, int):
            return {"startingOffsets": json.dumps({given.queue: start})}
        return {"startingOffsets": "latest" if start == "next" else "earliest"}

    def _files(self, name: str, table: FileTable) -> DataFrame:
        from pyspark.errors import PySparkException

        reader = self._spark.read.format(table.format)
        if table.format == "csv":
            # To infer columns where values have lines, Spark takes a path for a pattern twice.
            has_lines = table.schema is not None or "\\" not in table.path
            reader = reader.options(header="true", sep=table.delimiter, **CSV)
            reader = reader.option("multiLine", str(has_lines).lower())
            reader = reader.option("inferSchema", str(table.schema is None).lower())
        try:
            if table.schema is not None:
                reader = reader.schema(table.schema)
            path = table.path if "://" in table.path else f"file://{table.path}"
            return reader.load(path)
        except PySparkException as error:
            raise TailraceError(f"tables.{name}: {describe(error)}") from error

    # --- the statement ----------------------------------------------------------------------

    def _statement(self) -> DataFrame:
        from pyspark.errors import AnalysisException, PySparkException

        where = f"{self._definition.sql_file}: " if self._definition.sql_file else "sql: "
        try:
            if is_command(self._spark, self._definition.sql):
                raise TailraceError(f"{where}a pipeline is a query, such as SELECT …")
            return self._spark.sql(self._definition.sql)
        except AnalysisException as error:
            if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                raise TailraceError(where + describe(error)) from error
            found = parts((error.getMessageParameters() or {})["relationName"])
            known = ", ".join([*self._definition.inputs, *self._file_tables()])
            raise TailraceError(
                f"{where}{place_of(str(error))}there is no table {'.'.join(found)!r}; there are "
                f"{known}; others are named under tables"
            ) from error
        except PySparkException as error:
            raise TailraceError(where + describe(error)) from error

    def _file_tables(self) -> list[str]:
        return [n for n, each in self._definition.tables.items() if isinstance(each, FileTable)]

    def _check_mode(self, frame: DataFrame) -> None:
        """As Spark does when a query starts."""
        from pyspark.errors import PySparkException

        sql = self._spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        checker: Any = sql.catalyst.analysis.UnsupportedOperationChecker
        mode = getattr(sql.streaming.OutputMode, self._definition.output_mode.title())
        plan = frame._jdf.queryExecution().analyzed()
        try:
            checker.checkForStreaming(plan, mode())
        except PySparkException as error:
            raise TailraceError(f"sql: {describe(error)}") from error

    # --- the target -------------------------------------------------------------------------

    def _target(self, frame: DataFrame) -> DataFrame:
        to = self._definition.to
        if isinstance(to, str):
            return messages(frame)
        return _for_files(frame, to)

    def _wrong(self, said: str) -> TailraceError:
        return TailraceError(f"pipeline {self._definition.name!r}: {said}")


def _watermarked(given: Input) -> list[str]:
    """The column that a watermark goes by: a stand-in is no stream, whose plan knows nothing of
    it."""
    column = "" if given.watermark is None else given.watermark.column
    return [name for name in COLUMNS if name.lower() == column.lower()]


def messages(frame: DataFrame) -> DataFrame:
    """Rows as messages. A column `value` is the value; else all that are not columns of a message
    are, as JSON."""
    from pyspark.sql import functions as f

    names = [name.lower() for name in frame.columns]  # which is how Spark tells them apart
    _check_once(frame.columns, names)
    known = {name.lower(): name for name in (*TAKES, *IGNORED)}
    own = [
        f.col(quoted(name)).alias(known[name.lower()])
        for name in frame.columns
        if name.lower() in known
    ]
    others = [name for name in frame.columns if name.lower() not in known]
    if "value" in names:
        if others:
            raise ConfigError(
                f"sql: there is a column 'value', which is the message, and {others[0]!r} beside "
                f"it; a message also has {', '.join(TAKES)}"
            )
        columns = own
    elif not others:
        raise ConfigError("sql: there is no column that would be the value; call one of them value")
    else:
        fields = f.struct(*(f.col(quoted(name)) for name in others))
        value = f.to_json(fields, {"ignoreNullFields": "false"}).alias("value")
        columns = [value, *own]
    found = frame.select(*columns)
    kinds = {field.name: field.dataType for field in found.schema.fields}
    for name in ("value", "key"):
        kind = kinds.get(name)
        if kind is None or kind.simpleString() in ("binary", "string"):
            continue
        is_nested = kind.typeName() in ("struct", "array", "map", "variant")
        text = f.to_json(f.col(name)) if is_nested else f.col(name).cast("string")
        found = found.withColumn(name, text)
    try:
        check_schema(found.schema)
    except ConfigError as error:
        raise ConfigError(f"sql: {error}") from None
    return found


def _check_once(columns: list[str], names: list[str]) -> None:
    """`names` are the columns as they are told apart."""
    for column, name in zip(columns, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError(f"sql: the column {column!r} is there twice; rename one with AS")


def _for_files(frame: DataFrame, to: Files) -> DataFrame:
    """What Spark itself refuses, but only when it has a batch to write."""
    fields = frame.schema.fields
    is_exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    names = [name if is_exact else name.lower() for name in frame.columns]
    folders = [name if is_exact else name.lower() for name in to.partition_by]
    if to.format != "csv" or any(names.count(name) > 1 for name in folders):
        _check_once(frame.columns, names)
    for given, name in zip(to.partition_by, folders, strict=True):
        if name not in names:
            raise ConfigError(
                f"to.partition_by: there is no column {given!r}; there are "
                f"{', '.join(frame.columns)}"
            )
        if folders.count(name) > 1:
            raise ConfigError(f"to.partition_by: {given!r} is there twice; remove one")
        kind = fields[names.index(name)].dataType
        if kind.typeName() in _NO_TEXT or kind.simpleString().startswith("string collate"):
            raise ConfigError(
                f"to.partition_by: the column {given!r} is {kind.simpleString()}, of which no name "
                "of a folder can be made"
            )
    if len(folders) == len(names):
        raise ConfigError("to.partition_by: no column would be left for the files")
    for field in fields:
        shown = field.dataType.simpleString()
        if to.format == "csv" and field.dataType.typeName() in _NO_TEXT:
            raise ConfigError(
                f"to.format: the column {field.name!r} is {shown}, which "
                "is not in a file of CSV; write parquet or json, or its parts as columns"
            )
        if any(kind.typeName() == "interval" for kind in _kinds(field.dataType)):
            raise ConfigError(
                f"to.format: the column {field.name!r} is {shown}, and an interval of months and "
                "days in one is in no file; write it as string"
            )
    return frame


def _kinds(kind: Any) -> Iterator[Any]:
    """A type, and all that are in it."""
    yield kind
    inside = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    inside += [field.dataType for field in getattr(kind, "fields", ())]
    for each in inside:
        if each is not None:
            yield from _kinds(each)


def _letters(frame: DataFrame, queue: QueueSettings, pipeline: str) -> DataFrame:
    """As a group's dead letters are (`queue/dead_letters.py`), so that `tailrace dead` shows them
    and `redrive` brings them back: each message once, so they tell which one it was for ever."""
    from pyspark.sql import functions as f

    now = f.date_format(f.current_timestamp(), "yyyy-MM-dd'T'HH:mm:ss'Z'")
    told = {
        "_dlq_pipeline": f.lit(pipeline),
        "_dlq_original_queue": f.lit(queue.name),
        "_dlq_original_incarnation": f.lit(queue.incarnation),
        "_dlq_original_topic": f.coalesce(f.col("topic"), f.lit("")),
        "_dlq_group": f.lit(""),
        "_dlq_delivery_count": f.lit("1"),
        "_dlq_moved_at": now,
        "_dlq_original_id": f.col("message_id"),
        "_dlq_original_offset": f.col("offset").cast("string"),
        "_dlq_reason": f.col(REASON),
    }
    pairs = [
        f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
        for name, value in told.items()
    ]
    given = f.filter(
        f.coalesce(f.col("headers"), f.array().cast(HEADERS_AS["array"])),
        lambda pair: ~f.startswith(pair["key"], f.lit("_")),
    )
    return frame.select("key", "value", f.concat(given, f.array(*pairs)).alias("headers"))
