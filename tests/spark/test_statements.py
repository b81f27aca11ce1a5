"""Which columns a statement needs, by Spark's plan of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.support import schema

ALL = schema().names
NULLS = ", ".join("null" for _ in ALL)


@pytest.fixture
def table(spark: Any) -> Iterator[None]:
    """A stand-in: Spark does not know that it has no rows."""
    from tailrace.spark.columns import ddl

    schema = ddl(has_headers=True, headers_as="array")
    frame = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
    frame.createOrReplaceTempView("needing")
    yield
    spark.catalog.dropTempView("needing")


@pytest.mark.usefixtures("table")
def test_needed(spark: Any) -> None:
    from tailrace.spark.statements import needed

    for statement, expected in {
        "SELECT * FROM needing": ALL,
        "SELECT offset, KEY FROM needing": ["key", "offset"],
        "SELECT count(*) FROM needing": ["offset"],
        "SELECT count(*) FROM (SELECT * FROM needing ORDER BY value)": ["offset"],
        "SELECT key FROM (SELECT * FROM needing)": ["key"],
        "SELECT key AS k FROM needing WHERE length(value) > 1": ["key", "value"],
        "SELECT key FROM needing UNION ALL SELECT value FROM needing": ["key", "value"],
        f"SELECT * FROM VALUES ({NULLS}) UNION ALL SELECT * FROM needing": ALL,
        f"SELECT col2 FROM (VALUES ({NULLS}) UNION ALL SELECT * FROM needing)": ["value"],
        "SELECT * FROM (SELECT key, offset FROM needing) EXCEPT SELECT key, 1 FROM needing": [
            "key",
            "offset",
        ],
        "SELECT 1 WHERE 2 IN (SELECT length(value) FROM needing WHERE topic = 't')": [
            "value",
            "topic",
        ],
    }.items():
        assert needed(spark.sql(statement)) == expected, statement


def test_columns_that_were_not_read_are_null(spark: Any) -> None:
    from tailrace.spark.statements import with_all

    frame = spark.sql("SELECT 1L AS offset, 'x' AS more")
    made = with_all(frame, {"key": "binary", "offset": "bigint"})
    assert made.dtypes == [("key", "binary"), ("offset", "bigint"), ("more", "string")]
    assert made.collect() == [(None, 1, "x")]
