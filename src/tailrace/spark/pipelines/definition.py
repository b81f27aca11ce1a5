"""What a pipeline is, as the configuration says. Nothing of Spark's is here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tailrace.config.model import Config
from tailrace.config.pipelines import ONCE, parse_start, parse_trigger
from tailrace.config.schema import Pipeline, TableEntry, WatermarkEntry
from tailrace.errors import ConfigError
from tailrace.units import parse_duration

__all__ = [
    "OF_SQL",
    "Definition",
    "FileTable",
    "Files",
    "Input",
    "Watermark",
    "choose",
    "definitions",
    "settings",
]

OF_SQL = "spark.sql."  # which the names of its settings begin with
_PATTERN = re.compile(r"[\\{}\[\]*?]")  # what means something in a pattern of Spark's
_ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


@dataclass(frozen=True)
class Watermark:
    """How late a row may come."""

    column: str
    delay_ms: int


@dataclass(frozen=True)
class Input:
    """A queue that is read. `schema` is text: of columns as Spark writes them, or Avro's."""

    queue: str
    format: str = "raw"
    schema: str | None = None
    delimiter: str = ","
    watermark: Watermark | None = None
    start: int | str | datetime = "first"
    most: int | None = None  # messages in one batch
    is_stream: bool = True
    dead_letters: str | None = None  # else those of the queue

    @property
    def facts(self) -> str:
        """What a checkpoint hangs on."""
        return repr((self.queue, self.format, self.schema, self.delimiter, self.watermark))


@dataclass(frozen=True)
class FileTable:
    """Files that are read, as they are when the query starts. `path` may be a pattern."""

    path: str
    format: str
    schema: str | None = None
    delimiter: str = ","


@dataclass(frozen=True)
class Files:
    """A folder that takes rows."""

    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return "://" not in self.path


@dataclass(frozen=True)
class Definition:
    """A pipeline. `sql_file` is the file of its statement, for who has to find a mistake in it."""

    name: str
    source: Input
    sql: str
    to: str | Files
    tables: dict[str, Input | FileTable] = field(default_factory=dict)
    sql_file: str | None = None
    trigger: int | str | None = None
    output_mode: str = "append"
    checkpoint: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    on_loss: str = "fail"

    @property
    def is_once(self) -> bool:
        return self.trigger == ONCE

    @property
    def inputs(self) -> dict[str, Input]:
        """The queues that it reads, by the names that the statement has for them."""
        others = {n: table for n, table in self.tables.items() if isinstance(table, Input)}
        return {self.source.queue: self.source, **others}

    @property
    def target(self) -> str:
        return self.to if isinstance(self.to, str) else self.to.path

    @property
    def fingerprint(self) -> dict[str, str]:
        """What may not change under a checkpoint, by its key: the state of an old query means
        nothing to another one."""
        streams = {
            name: table.facts
            for name, table in self.tables.items()
            if isinstance(table, Input) and table.is_stream
        }
        return {
            "from": self.source.facts,
            "sql": self.sql,
            "tables": repr(sorted(streams.items())),
            "to": repr(self.to),
            "output_mode": self.output_mode,
        }


def definitions(config: Config | None) -> dict[str, Definition]:
    """The pipelines of a configuration, by their names. Files that it names are read here."""
    if config is None:
        return {}
    reader = _Reader(config)
    return {entry.name: reader.pipeline(entry) for entry in config.pipelines}


def choose(config: Config | None, names: Iterable[str]) -> list[Definition]:
    """Those of these names, each once; all if there are none."""
    there, names = definitions(config), list(dict.fromkeys(names))
    where = "there is no configuration" if config is None else str(config.path)
    if not there:
        raise ConfigError(f"{where}: there are no pipelines; add them under the key pipelines")
    for name in names:
        if name not in there:
            known = ", ".join(there)
            raise ConfigError(f"{where}: there is no pipeline {name!r}; there are {known}")
    return [there[name] for name in names] or list(there.values())


class _Reader:
    """Makes definitions of what the configuration has. Relative paths are beside its file."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder = os.path.dirname(os.path.abspath(config.path)) if config.path else os.curdir

    def pipeline(self, entry: Pipeline) -> Definition:
        number = self._config.pipelines.index(entry)
        key = f"pipelines[{number}]"
        source = Input(
            entry.source,
            entry.format,
            self._text(entry.schema, entry.schema_file, f"{key}.schema_file"),
            entry.delimiter or ",",
            _watermark(entry.watermark),
            parse_start(entry.start),
            entry.max_offsets_per_trigger,
            dead_letters=entry.dead_letters,
        )
        sql = self._text(entry.sql, entry.sql_file, f"{key}.sql_file")
        assert sql is not None  # or the file would not have been loaded
        to = entry.to
        return Definition(
            entry.name,
            source,
            sql,
            to
            if isinstance(to, str)
            else Files(self._path(to.path), to.format, tuple(to.partition_by or ())),
            {n: self._table(t, f"{key}.tables.{n}") for n, t in entry.tables.items()},
            entry.sql_file,
            parse_trigger(entry.trigger),
            entry.output_mode,
            None if entry.checkpoint is None else self._path(entry.checkpoint),
            dict(each.split("=", 1) for each in entry.conf or ()),
            entry.on_loss,
        )

    def _table(self, entry: str | TableEntry, key: str) -> Input | FileTable:
        if isinstance(entry, str):
            entry = TableEntry(path=entry)
        schema = self._text(entry.schema, entry.schema_file, f"{key}.schema_file")
        if entry.queue is not None:
            return Input(
                entry.queue,
                entry.format or "raw",
                schema,
                entry.delimiter or ",",
                _watermark(entry.watermark),
                parse_start("first" if entry.start is None else entry.start),
                entry.max_offsets_per_trigger,
                is_stream=entry.stream,
            )
        path = entry.path or ""
        if "://" not in path:  # the folder is that one, whatever its name would mean in a pattern
            path = os.path.join(_PATTERN.sub(r"\\\g<0>", self._folder), path)
        form = entry.format or _ENDINGS.get(os.path.splitext(path)[1].lower())
        if form is None:
            known = ", ".join(_ENDINGS)
            raise self._wrong(
                f"{key}.format",
                f"the name {entry.path!r} does not tell; give it, or end it with {known}",
            )
        return FileTable(path, form, schema, entry.delimiter or ",")

    def _text(self, given: str | None, file: str | None, key: str) -> str | None:
        if file is None:
            return given
        path = self._path(file)
        try:
            with open(path, encoding="utf-8") as opened:
                return opened.read()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise self._wrong(key, f"{path}: {said}") from None

    def _path(self, given: str) -> str:
        return given if "://" in given else os.path.join(self._folder, given)

    def _wrong(self, key: str, said: str) -> ConfigError:
        origin = self._config.origin(key)
        where = self._config.path if origin == "default" else origin
        return ConfigError(f"{where}: {key}: {said}")


def _watermark(entry: WatermarkEntry | None) -> Watermark | None:
    if entry is None:
        return None
    return Watermark(entry.column, parse_duration(entry.delay, "delay"))


def settings(
    chosen: Iterable[Definition], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Settings that Spark is started with, for these pipelines: theirs, and those that were given,
    which win. And theirs of Spark SQL that were not given: most of them each session has for
    itself, which only Spark knows."""
    theirs: dict[str, str] = {}
    for definition in chosen:
        theirs |= definition.conf
    of_sql = {n: value for n, value in theirs.items() if n.startswith(OF_SQL) and n not in given}
    others = {n: value for n, value in theirs.items() if not n.startswith(OF_SQL)}
    return {**others, **given}, of_sql
