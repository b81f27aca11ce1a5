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
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.errors import TailraceError
from tailrace.spark.columns import COLUMNS, ddl, kinds_in_sql

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

Found = TypeVar("Found")

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
_MAKES_TABLES: Final = (
    "CreateTable",
    "CreateTableAsSelect",
    "ReplaceTable",
    "ReplaceTableAsSelect",
)
_MAKES_VIEWS: Final = ("CreateTempViewUsing", "CreateView", "CreateViewCommand")
_CHANGES_TABLES: Final = (
    "AlterViewAs",
    "DeleteFromTable",
    "DropTable",
    "DropView",
    "MergeIntoTable",
    "RenameTable",
    "TruncateTable",
    "UpdateTable",
)
_ONLY_READS: Final = (
    "SQL only reads queues: `tailrace publish`, a pipeline or df.write put rows into one, and "
    "`tailrace delete` deletes one"
)
_LISTS: Final = ("ShowTables", "ShowTablesExtended", "ShowViews")
_KINDS: Final = kinds_in_sql()
_POSITION: Final = re.compile(r"\(?\bline (\d+),? pos(?:ition)? (\d+)\)?")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CLASS: Final = re.compile(r"^\s*\[[A-Z0-9_.]+\] ")
_PYTHON_ERROR: Final = re.compile(r"(?m)^([A-Za-z_][\w.]*): (.+)$")
_JAVA_ERROR: Final = re.compile(r"\b(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")
_CAUSE: Final = re.compile(r"(?m)^Caused by: (.+)$")
_OF_SPARK: Final = ("py4j.", "pyspark.")
# What is said of the whole of it: the statement, the query, or Spark's plan.
_MORE: Final = re.compile(r"\n==+ (?:SQL|Streaming Query)|;\n(?=[~'!+: -]*[A-Z]\w*)")
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
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
    parsed = _parsed(spark, statement)
    kind = str(parsed.getClass().getSimpleName())
    _check_bare(parsed, views)
    if kind in _MAKES_TABLES:
        _check_stays(spark, parsed)
    if kind in _MAKES_VIEWS and (kind != "CreateView" or _is_ours(spark, _target(parsed))):
        raise TailraceError(
            "a view is gone when the command ends; give a query its name within the statement: "
            "WITH name AS (SELECT …) SELECT …"
        )
    if kind in _CHANGES_TABLES and views.alike(".".join(_target(parsed))):
        raise TailraceError(_ONLY_READS)
    try:
        if kind in _LISTS:
            for name in queues:
                views.made[name] = name
                views.stand_in(name)
        elif kind == "ExplainCommand":  # by itself Spark explains that there are no such tables
            found = views.tried(lambda: _explained(spark, statement), views.stand_in)
            views.read(_needed(found))
        elif not _has_command(spark, parsed):
            views.read(needed(views.tried(lambda: spark.sql(statement), views.stand_in)))
        return views.tried(lambda: spark.sql(statement), views.make)
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

    def tried(self, do: Callable[[], Found], make: Callable[[str], None]) -> Found:
        """What comes of it when it finds all its tables, which are made meanwhile."""
        from pyspark.errors import AnalysisException

        while True:
            try:
                return do()
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
        alike = self.alike(name)
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

    def alike(self, name: str) -> list[str]:
        """The queues that are of this name to Spark."""
        if self._is_exact:
            return [queue for queue in self._queues if queue == name]
        return [queue for queue in self._queues if queue.lower() == name.lower()]

    @cached_property
    def _nothing(self) -> DataFrame:
        schema = ddl(has_headers=True, headers_as="array")
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), schema)

    def stand_in(self, view: str) -> None:
        self._nothing.createOrReplaceTempView(quoted(view))

    def read(self, columns: list[str]) -> None:
        """Have the views made so far be tables, of these columns, and those to come."""
        self.columns = columns
        for name in self.made:
            self.make(name)

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
    return _has_command(spark, _parsed(spark, statement))


def _parsed(spark: SparkSession, statement: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def _has_command(spark: SparkSession, parsed: Any) -> bool:
    jvm: Any = spark._jvm
    kinds = [jvm.java.lang.Class.forName(_PLANS + name) for name in ("Command", "ParsedStatement")]
    return any(kind.isInstance(node) for node in _nodes(parsed) for kind in kinds)


def _explained(spark: SparkSession, statement: str) -> Any:
    """How Spark would run what is to be explained. It is parsed anew: Spark leaves marks on a plan
    that it did not understand."""
    jvm: Any = spark._jvm
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    asked = _parsed(spark, statement).logicalPlan()
    execution = spark._jsparkSession.sessionState().executePlan(asked, skip)
    execution.assertAnalyzed()
    return execution


def _check_stays(spark: SparkSession, parsed: Any) -> None:
    """Refuse a table of the session's own catalog that goes with the session."""
    name = list(_each(parsed.name().nameParts()))
    if _is_ours(spark, name) and parsed.tableSpec().location().isEmpty():
        raise TailraceError(
            "a table is gone when the command ends; write what a query gives to files with "
            "--output parquet:PATH"
        )


def _check_bare(parsed: Any, views: _Views) -> None:
    """Refuse options after the name of a queue: Spark would ignore them for a view. It has some of
    its own there, for tables that are written to."""
    is_explained = parsed.getClass().getSimpleName() == "ExplainCommand"
    for node in _nodes(parsed.logicalPlan() if is_explained else parsed, with_names=True):
        if node.nodeName() != "UnresolvedRelation":
            continue
        if not views.alike(".".join(_each(node.multipartIdentifier()))):
            continue
        if any(not str(name).startswith("__") for name in node.options().keySet()):
            raise TailraceError(
                f"{node.tableName()} WITH (…): a queue takes no options in SQL; say it by a "
                "condition, or in Python by tailrace.spark.table"
            )


def _is_ours(spark: SparkSession, name: list[str]) -> bool:
    """Is it a name of the session's own catalog, which nobody sees after it?"""
    return (
        len(name) == 1
        and spark.conf.get("spark.sql.catalogImplementation") == "in-memory"
        and spark.conf.get("spark.sql.defaultCatalog") == "spark_catalog"
    )


def _target(parsed: Any) -> list[str]:
    """The name of the table that a command changes, which it has first."""
    first = next(node for node in _nodes(parsed) if not node.children().size())
    kind = first.nodeName()
    if not kind.startswith("Unresolved"):
        return []  # an expression tells
    bare = kind == "UnresolvedIdentifier"
    return list(_each(first.nameParts() if bare else first.multipartIdentifier()))


def needed(frame: DataFrame) -> list[str]:
    """The columns on which it depends what comes of a query, by its plan. By name alone, which may
    be too many."""
    return _needed(frame._jdf.queryExecution())


def _needed(execution: Any) -> list[str]:
    plan: Any = execution.optimizedPlan()
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


def _nodes(plan: Any, *, with_names: bool = False) -> Iterator[Any]:
    """The steps of a plan; `with_names`: those of the queries as well to which it gives names."""
    yield plan
    named = [plan.innerChildren()] if with_names and plan.nodeName() == "UnresolvedWith" else []
    for below in (plan.children(), plan.subqueries(), *named):
        for node in _each(below):
            yield from _nodes(node, with_names=with_names)


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
    if text.startswith("[UNSUPPORTED_INSERT"):  # it would name what stands for the queue here
        return _ONLY_READS
    ends = [_PYTHON_ERROR.search(text, each.end()) for each in _TRACEBACK.finditer(text)]
    raised = [each for each in ends if each is not None]
    ours = [each for each in raised if each[1].startswith("tailrace.")]
    if ours:  # which says what has to be known, whatever else Spark stumbled over because of it
        return ours[-1][2]
    if raised:
        last = raised[-1]
        if not last[1].startswith(_OF_SPARK):
            return f"{last[1]}: {last[2]}"
        text = text[last.start(2) :]  # a function of ours had Spark do something
    place = place_of(text)
    java = None if _CLASS.match(text) else _JAVA_ERROR.search(text)
    causes = _CAUSE.findall(text) if java is not None else []
    if java is not None:
        text = _named(java)
    text = _CLASS.sub("", _STATE.sub("", text))
    said = " ".join(_MORE.split(text)[0].split()).partition(_DETAILS)[0]
    cause = _JAVA_ERROR.search(causes[-1]) if causes else None
    if cause is not None and cause[2] not in said:
        said = f"{said.rstrip('.')}: {_CLASS.sub('', _STATE.sub('', _named(cause)))}"
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
