"""Tables for people: say what is wanted, word by word, and get a DataFrame."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError
from tailrace.queue.archived import archive_folder
from tailrace.spark.columns import COLUMNS, HEADERS_AS, kinds_in_sql
from tailrace.spark.options import SourceOptions
from tailrace.spark.planning import Place
from tailrace.spark.times import parse_time_or_age

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Table", "make_views"]


class Table:
    """A queue as a table. Each word gives a new one, so one can be kept and gone on from.

    `df()` is a snapshot, taken when it is first used: for what has come since, call it again.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        queue: str,
        options: dict[str, str] | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self._spark = spark
        self._path = os.path.abspath(path)  # Spark may be in another folder than this process is
        self._queue = queue
        self._options = options or {}
        self._columns = columns

    def _with(self, **options: Any) -> Table:
        given = {**self._options, **{name: str(value) for name, value in options.items()}}
        return Table(self._spark, self._path, self._queue, given, self._columns)

    def since(self, when: str | int | datetime) -> Table:
        """Only messages from then on: how long ago ("2h"), a time, or milliseconds since 1970.

        A number of 4, 8 or 10 digits is refused, as it looks like a year, a date or seconds. If you
        mean milliseconds, give it as text with a 0 in front.
        """
        return self._with(startingTimestamp=_option_time(when, "since"), exactTimestamps="true")

    def until(self, when: str | int | datetime) -> Table:
        """Only messages from before then, and before the first that is not: if the clock went back
        after that, older messages that follow are left out, too."""
        return self._with(endingTimestamp=_option_time(when, "until"), exactTimestamps="true")

    def offsets(self, first: int | None = None, last: int | None = None) -> Table:
        """Only those at `first <= offset < last`."""
        for offset in first, last:
            if offset is not None and offset < 0:  # -1 and -2 have a meaning as options
                raise ConfigError(
                    f"offsets: {offset} is no offset, as they count from 0; leave out `first` for "
                    "the earliest message, and `last` for the end"
                )
        if first is not None and last is not None and first > last:
            raise ConfigError(f"offsets: the first, {first}, is above the last, {last}")
        table = self
        if first is not None:
            table = table._with(startingOffsets=json.dumps({self._queue: first}))
        if last is not None:
            table = table._with(endingOffsets=json.dumps({self._queue: last}))
        return table

    def keys(self, *keys: str | bytes | Iterable[str | bytes]) -> Table:
        """Only messages with one of these keys, given one by one or as a list. Bytes have to be
        UTF-8."""
        return self._with(keys=json.dumps([_text(key) for key in _each(keys)]))

    def filter(self, pattern: str) -> Table:
        """Only messages whose routing key matches, as in `consume`."""
        return self._with(filter=pattern)

    def include_archive(self, folder: str | None = None) -> Table:
        """Also what was archived and is deleted in the queue, from its archive or this folder."""
        table = self._with(includeArchive="true")
        return table if folder is None else table._with(archive=archive_folder(str(folder)))

    def columns(self, *names: str | Iterable[str]) -> Table:
        """Only these columns, given one by one or as a list. The others are not even decoded, which
        `select` cannot see to."""
        found = tuple(_each(names))
        for name in found:
            if name not in COLUMNS:
                raise ConfigError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        return Table(self._spark, self._path, self._queue, self._options, found)

    def option(self, name: str, value: Any) -> Table:
        """Any option of `format("tailrace")`."""
        return self._with(**{name: str(value).lower() if isinstance(value, bool) else value})

    def df(self) -> DataFrame:
        """The DataFrame. What is wrong with the options is said here, without Spark's traceback."""
        self._check()
        reader = self._spark.read.format("tailrace").option("path", self._path)
        reader = reader.option("queue", self._queue).options(**self._options)
        if self._columns is None:
            return reader.load()
        if not self._columns:  # which can be counted
            from tailrace.spark.versions import COUNTS_WITHOUT_COLUMNS

            if not COUNTS_WITHOUT_COLUMNS:
                return reader.schema(self._schema(("offset",))).load().select()
        return reader.schema(self._schema(self._columns)).load()

    def _check(self) -> None:
        """As the source will, which plans on this machine, too; but not with Spark Connect."""
        if type(self._spark).__module__.startswith("pyspark.sql.connect."):
            return
        given = {"path": self._path, "queue": self._queue, **self._options}
        options = SourceOptions.parse(given)
        options.check_offsets(options.chosen(Place(options.path).queues()))

    def _schema(self, columns: tuple[str, ...]) -> Any:
        from pyspark.sql.types import StructType

        given = {name.lower(): value.lower() for name, value in self._options.items()}
        kinds = {
            **kinds_in_sql(),
            "headers": HEADERS_AS.get(given.get("headers", "array"), "binary"),
        }
        if not columns:
            return StructType([])
        return ", ".join(f"{name} {kinds[name]}" for name in columns)


def _each(given: Iterable[Any]) -> Iterator[Any]:
    """Of words, and of lists of words, or whatever else has several."""
    for each in given:
        if isinstance(each, Iterable) and not isinstance(each, str | bytes | bytearray):
            yield from each
        else:
            yield each


def _text(key: str | bytes) -> str:
    if isinstance(key, str):
        return key
    if not isinstance(key, bytes | bytearray):  # bytes(5) would be five zeros
        raise TypeError(f"a key is text or bytes, not {key!r}")
    try:
        return bytes(key).decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"keys: {key!r} is no UTF-8, and an option is text; filter the column key instead"
        ) from None


def _option_time(when: str | int | datetime, word: str) -> str:
    """As the option takes it: with a 0 in front, digits are milliseconds however many they are."""
    return f"{parse_time_or_age(when, word):011d}"


def make_views(spark: SparkSession, path: str, *, headers: bool) -> list[str]:
    """A temporary view for each queue."""
    path = os.path.abspath(path)
    names = sorted(Place(path).queues())
    if spark.conf.get("spark.sql.caseSensitive") != "true":
        for one, other in pairwise(sorted(names, key=str.lower)):
            if one.lower() == other.lower():
                raise ConfigError(
                    f"the names of the queues {one!r} and {other!r} are one to Spark: set "
                    "spark.sql.caseSensitive to true"
                )
    for name in names:
        reader = spark.read.format("tailrace").option("path", path).option("queue", name)
        reader = reader.option("includeHeaders", str(headers).lower())
        quoted = name.replace("`", "``")
        reader.load().createOrReplaceTempView(f"`{quoted}`")
    return names
