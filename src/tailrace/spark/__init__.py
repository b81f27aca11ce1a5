"""Queues as Spark tables. Needs the extra `spark`: `pip install 'tailrace[spark]'`.

`format("tailrace")` is found by itself where this package is installed; `register` is for sessions
that do not look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.spark.builder import Table

__all__ = ["local_session", "register", "table", "views"]


def local_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session that suits queues: no web page, times in UTC, nothing of Spark's log on the
    terminal (`TAILRACE_DEBUG=1` shows it), and quick to start from the second time on.

    `master` is all cores of this machine (`local[*]`) unless it says otherwise; `conf` is added,
    and wins. If this process has a session already, that is the one.
    """
    from tailrace.spark import session

    return session.local_session(master, conf)


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to a session. Harmless where it is."""
    with _extra():
        from tailrace.spark.source import TailraceSource

    _register(spark, TailraceSource)


def _register(spark: SparkSession, source: Any) -> None:
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:  # another session has; or Spark 4.0, which replaces none
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def table(spark: SparkSession, path: str, queue: str) -> Table:
    """A queue of the store in `path`, to say more about, and then `df()`."""
    with _extra():
        from tailrace.spark.builder import Table

    return Table(spark, path, queue)


def views(spark: SparkSession, path: str, *, headers: bool = False) -> list[str]:
    """A temporary view for each queue of a store, by its name; which they are.

    Each is a snapshot, taken when it is first used: for what has come since, call it again.
    With `headers` they have that column, too. Spark tells no source which columns a query needs, so
    it is decoded for every query then.
    """
    with _extra():
        from tailrace.spark.builder import make_views

    return make_views(spark, path, headers=headers)


@contextlib.contextmanager
def _extra() -> Iterator[None]:
    """Imports of what comes with the extra: whoever does not have it is told how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pyspark", "pyarrow"):
            raise
        raise TailraceError(f"{missing} is missing: pip install 'tailrace[spark]'") from None
