"""Queues as Spark tables. Needs the extra `spark`: `pip install 'tailrace[spark]'`.

`format("tailrace")` is found by itself where this package is installed; `register` is for sessions
that do not look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.spark.builder import Table

__all__ = ["register", "table", "views"]


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to a session."""
    from tailrace.spark.source import TailraceSource

    spark.dataSource.register(TailraceSource)


def table(spark: SparkSession, path: str, queue: str) -> Table:
    """A queue of the store in `path`, to say more about, and then `df()`."""
    from tailrace.spark.builder import Table

    return Table(spark, path, queue)


def views(spark: SparkSession, path: str) -> list[str]:
    """A temporary view for each queue of a store, by its name; which they are."""
    from tailrace.spark.builder import make_views

    return make_views(spark, path)
