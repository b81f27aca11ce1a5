"""Which columns a statement needs, by Spark's plan of it, and its errors in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
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


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM orders WITH (startingOffsets = 'latest')",
        "WITH few AS (SELECT * FROM orders WITH (keys = 'a')) SELECT * FROM few",
        "SELECT 1 WHERE 2 IN (SELECT offset FROM orders WITH (keys = 'a'))",
        "EXPLAIN SELECT * FROM orders WITH (keys = 'a')",
    ],
)
def test_options_of_a_table_are_refused(spark: Any, statement: str) -> None:
    """Spark takes none for a view, and does not say so."""
    from tailrace.spark.statements import query

    with pytest.raises(TailraceError, match=r"^orders WITH \(…\): a queue takes no options"):
        query(spark, "nowhere", ["orders"], statement)


def test_files_take_options(spark: Any, tmp_path: Path) -> None:
    from tailrace.spark.statements import query

    file = tmp_path / "prices.csv"
    file.write_text("name,price\ncup,2\n")
    statement = f"SELECT name, price FROM csv.`{file}` WITH (header = 'true')"
    assert query(spark, "nowhere", ["orders"], statement).collect() == [("cup", "2")]


def test_columns_that_were_not_read_are_null(spark: Any) -> None:
    from tailrace.spark.statements import with_all

    frame = spark.sql("SELECT 1L AS offset, 'x' AS more")
    made = with_all(frame, {"key": "binary", "offset": "bigint"})
    assert made.dtypes == [("key", "binary"), ("offset", "bigint"), ("more", "string")]
    assert made.collect() == [(None, 1, "x")]


def test_a_mistake_says_nothing_of_its_own_on_the_terminal(
    spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException):
        spark.sql("SELECT kee FROM VALUES (1) AS t(key)")
    assert capfd.readouterr().err == ""


# --- errors in a line, as Spark 4.2 says them -----------------------------------------------

RELATION = (
    "~StreamingRelationV2 org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2@3"
    "f50f16e, tailrace, [path=data, queue=orders], [key#253, value#254], name=<Unassigned>\n"
)


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        (
            "Sorting is not supported on streaming DataFrames/Datasets, unless it is on one",
            f"~Sort [offset#257L ASC NULLS FIRST], true\n+- {RELATION}",
        ),
        (
            "Limits are not supported on streaming DataFrames/Datasets in Update output mode",
            f"~LocalLimit 3\n+- {RELATION}",
        ),
        (
            "FullOuter joins with streaming DataFrames/Datasets on the left is not supported",
            f"~Join FullOuter, (offset#257L = id#323L)\n:- ~SubqueryAlias a\n:  +- {RELATION}",
        ),
        ("Something else", f"'Project ['nope]\n+- {RELATION}"),
    ],
)
def test_the_plan_is_no_part_of_what_is_wrong(said: str, plan: str) -> None:
    from tailrace.spark.statements import describe

    assert describe(RuntimeError(f"{said};\n{plan}")) == said


CHAINED = """[STREAM_FAILED] Query [id = e] terminated: Traceback (most recent call last):
  File "/x/pyspark/sql/streaming/python_streaming_source_runner.py", line 258, in main
    reader = _streamReader(data_source, schema)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/pyspark/sql/streaming/python_streaming_source_runner.py", line 295, in main
    reader.stop()
    ^^^^^^
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = e]
"""


def test_what_follows_from_an_error_of_ours_is_not_told() -> None:
    from tailrace.spark.statements import describe

    ours = "tailrace.errors.ConfigError: endingOffsets: a stream has no end; leave it out"
    expected = "endingOffsets: a stream has no end; leave it out"
    assert describe(RuntimeError(CHAINED.format(error=ours))) == expected
    others = describe(RuntimeError(CHAINED.format(error="ValueError: of somebody else's")))
    assert others.startswith("UnboundLocalError: cannot access")
