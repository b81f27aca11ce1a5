"""SQL over the queues of a store: which of them a statement names, which columns it needs, and what
is wrong with it, in a line.

A statement is tried; the table that Spark does not know is a queue, and it is tried again. For a
query the tables are stand-ins at first, which have the columns and no rows: so a mistake is found
before anything is read, and Spark's plan tells which columns are needed. By itself Spark would have
all of them read.

The statement is then understood once more, over tables of which only those columns are read. It may
name others, which Spark has found to have no say in what comes of it: those are there, and null.
What comes of a statement is the same for anything that they may hold, so it is for nulls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import TailraceError
from tailrace.spark.columns import COLUMNS, HEADERS_AS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "describe",
    "is_command",
    "needed",
    "parts",
    "place_of",
    "query",
    "quietly",
    "quoted",
    "with_all",
]

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
# Steps of a plan that name each column that they use, and hand on the others as they are.
_BY_NAME: Final = (
    "Aggregate",
    "Expand",
    "Filter",
    "Generate",
    "GlobalLimit",
    "Join",
    "LocalLimit",
    "Offset",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "Sort",
    "Window",
    "WindowGroupLimit",
)
_KINDS: Final = {**COLUMNS, "headers": HEADERS_AS["array"]}
_POSITION: Final = re.compile(r"\(?\bline (\d+),? pos(?:ition)? (\d+)\)?")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CLASS: Final = re.compile(r"^\s*\[[A-Z0-9_.]+\] ")
_PYTHON_ERROR: Final = re.compile(r"(?m)^([A-Za-z_][\w.]*): (.+)$")
_JAVA_ERROR: Final = re.compile(r"\b(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")
_CAUSE: Final = re.compile(r"(?m)^Caused by: (.+)$")
_OF_SPARK: Final = ("py4j.", "pyspark.")
_MORE: Final = re.compile(r"\n==+ (?:SQL|Streaming Query)")  # what is said of the whole of it
_DETAILS: Final = " Verify the spelling"


def query(
    spark: SparkSession,
    path: str,
    queues: Collection[str],
    statement: str,
    archives: Mapping[str, str] | None = None,
) -> DataFrame:
    """What a statement gives, over the queues and the `archives` of some of them. `TailraceError`
    in a line, if there is something wrong with it."""
    views = _Views(spark, path, queues, archives or {})
    try:
        if not is_command(spark, statement):
            views.columns = needed(views.tried(statement, views.stand_in))
            for name in views.made:
                views.make(name)
        return views.tried(statement, views.make)
    finally:  # what came of them knows them by more than their names
        for name in views.made:
            spark.catalog.dropTempView(name)


class _Views:
    """The queues that a statement names, as temporary views."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        queues: Collection[str],
        archives: Mapping[str, str],
    ) -> None:
        self._archives = archives
        self._spark = spark
        self._path = os.path.abspath(path)  # Spark may be in another folder than this process is
        self._queues = queues
        self._is_exact = spark.conf.get("spark.sql.caseSensitive") == "true"
        self.columns = list(COLUMNS)
        self.made: dict[str, str] = {}  # the view, and its queue

    def tried(self, statement: str, make: Any) -> DataFrame:
        from pyspark.errors import AnalysisException

        while True:
            try:
                return self._spark.sql(statement)
            except AnalysisException as error:
                if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                    raise
                found = parts((error.getMessageParameters() or {})["relationName"])
                queue = self._queue(found, place_of(str(error)))
                if found[-1] in self.made:
                    raise  # it is there, and yet it is not what was meant
                self.made[found[-1]] = queue
                make(found[-1])

    def _queue(self, parts: list[str], place: str) -> str:
        name = ".".join(parts)
        alike = [queue for queue in self._queues if queue == name]
        if not self._is_exact:
            alike = [queue for queue in self._queues if queue.lower() == name.lower()]
        if len(alike) > 1:
            raise TailraceError(
                f"{place}there are the queues {', '.join(sorted(alike))}, which are one name to "
                "Spark; tell them apart with --conf spark.sql.caseSensitive=true"
            )
        if not alike:
            known = ", ".join(sorted(self._queues)) or "none"
            raise TailraceError(f"{place}there is no queue {name!r}; there are: {known}")
        if len(parts) > 1:
            raise TailraceError(f"{place}write the name of a queue with dots as `{name}`")
        return alike[0]

    def stand_in(self, view: str) -> None:
        nothing = self._spark.sparkContext.emptyRDD()
        schema = ddl(has_headers=True, headers_as="array")
        self._spark.createDataFrame(nothing, schema).createOrReplaceTempView(quoted(view))

    def make(self, view: str) -> None:
        reader = self._spark.read.format("tailrace").option("path", self._path)
        queue = self.made[view]
        reader = reader.option("queue", queue)
        if queue in self._archives:
            reader = reader.option("includeArchive", "true").option(
                "archive", self._archives[queue]
            )
        reader = reader.schema(", ".join(f"{name} {_KINDS[name]}" for name in self.columns))
        with_all(reader.load(), _KINDS).createOrReplaceTempView(quoted(view))


def parts(name: str) -> list[str]:
    """The parts of a name as Spark writes it in messages: `` `a`.`b` ``."""
    return [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", name)]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- what Spark makes of it -----------------------------------------------------------------


def is_command(spark: SparkSession, statement: str) -> bool:
    """Is it more than a query? Spark runs it as soon as it understands it."""
    jvm: Any = spark._jvm
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    kinds = [jvm.java.lang.Class.forName(_PLANS + name) for name in ("Command", "ParsedStatement")]
    return any(kind.isInstance(node) for node in _nodes(parsed) for kind in kinds)


def needed(frame: DataFrame) -> list[str]:
    """The columns on which it depends what comes of a query, by its plan. By name alone, which may
    be too many."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    names = set(_names(plan.output()))
    for node in _nodes(plan):
        names.update(_names(node.references().toSeq()))
        if node.nodeName() not in _BY_NAME:  # a union takes columns by their places
            for below in _each(node.children()):
                names.update(_names(below.output()))
    lower = {name.lower() for name in names}
    return [name for name in COLUMNS if name.lower() in lower] or ["offset"]  # rows are counted


def with_all(frame: DataFrame, kinds: Mapping[str, str]) -> DataFrame:
    """With all of these columns, in their order, and then its others: those that are not needed,
    and were not read, are null."""
    from pyspark.sql import functions as f

    there = set(frame.columns)
    columns = [
        f.col(name) if name in there else f.lit(None).cast(kind).alias(name)
        for name, kind in kinds.items()
    ]
    return frame.select(*columns, *(f.col(name) for name in frame.columns if name not in kinds))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for below in (plan.children(), plan.subqueries()):
        for node in _each(below):
            yield from _nodes(node)


def _names(attributes: Any) -> list[str]:
    return [attribute.name() for attribute in _each(attributes)]


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


# --- what is wrong with it ------------------------------------------------------------------


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """pyspark logs the errors that it raises, and py4j that it was interrupted."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def describe(error: BaseException) -> str:
    """An error of Spark's in a line, with the place in the statement if it knows one."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        found = _PYTHON_ERROR.search(text, text.rindex("Traceback (most recent"))
        if found is not None:  # of ours, which says what has to be known, or of some function's
            if not found[1].startswith(_OF_SPARK):
                is_ours = found[1].startswith("tailrace.")
                return found[2] if is_ours else f"{found[1]}: {found[2]}"
            text = text[found.start(2) :]  # a function of ours had Spark do something
    place = place_of(text)
    java = None if _CLASS.match(text) else _JAVA_ERROR.search(text)
    causes = _CAUSE.findall(text) if java is not None else []
    if java is not None:
        text = _named(java)
    text = _CLASS.sub("", _STATE.sub("", text))
    said = " ".join(_MORE.split(text)[0].split()).partition(_DETAILS)[0]
    last = _JAVA_ERROR.search(causes[-1]) if causes else None
    if last is not None and last[2] not in said:
        said = f"{said.rstrip('.')}: {_CLASS.sub('', _STATE.sub('', _named(last)))}"
    return f"{place}{said or type(error).__name__}"


def _named(java: re.Match[str]) -> str:
    """An error of Java's: what has a class of Spark's says enough without its name."""
    return java[2] if java[2].startswith("[") else f"{java[1]}: {java[2]}"


def place_of(text: str) -> str:
    """Where in the statement; columns count from 1, as in editors."""
    found = _POSITION.search(text)
    if found is None:
        return ""
    column = int(found[2]) + ("position" not in found[0])  # Spark counts in both ways
    return f"line {found[1]}, column {column}: "
