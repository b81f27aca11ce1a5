"""What is written through a real Spark: each column that a queue takes, of each type, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tailrace
from tests.spark.support import collect, said

NOW = 1_794_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    with tailrace.open(path, flush="none") as store:
        store.queue("a")
        store.queue("b")
        store.queue("news", topics=["news/#"])
    return path


def write(frame: Any, path: str, **options: str) -> None:
    frame.write.format("tailrace").mode("append").options(path=path, **options).save()


def load(spark: Any, path: str, **options: str) -> Any:
    reader = spark.read.format("tailrace").options(path=path, includeHeaders="true", **options)
    return reader.load()


def messages(path: str, queue: str) -> list[tailrace.Message]:
    with tailrace.open(path) as store:
        return list(store.get(queue).read())


def test_all_columns_and_back(spark: Any, path: str) -> None:
    frame = spark.range(5).selectExpr(
        "concat('v', id) AS value",
        "concat('k', id) AS key",
        "map('a', concat('x', id), 'b', 'y') AS headers",
        f"timestamp_millis({NOW} + id) AS timestamp",
        "cast(id * 3600 AS int) AS ttl",
        "concat('eu/', id) AS routing_key",
        "concat('m', id) AS message_id",
    )
    write(frame.coalesce(1), path, queue="a")
    found = messages(path, "a")
    assert [m.value for m in found] == [b"v%d" % n for n in range(5)]
    assert [m.key for m in found] == [b"k%d" % n for n in range(5)]
    assert [dict(m.headers) for m in found] == [{"a": b"x%d" % n, "b": b"y"} for n in range(5)]
    assert [m.timestamp for m in found] == [NOW + n for n in range(5)]
    assert [m.routing_key for m in found] == [f"eu/{n}" for n in range(5)]
    assert [m.id for m in found] == [f"m{n}" for n in range(5)]
    assert [m.expires_at is not None for m in found] == [False, True, True, True, True]

    for headers in ("array", "map"):  # as it is read, it can be written to another
        write(load(spark, path, queue="a", headers=headers).drop("queue", "topic"), path, queue="b")
    first, second = messages(path, "b")[:5], messages(path, "b")[5:]
    for copied in (first, second):
        for old, new in zip(found, copied, strict=True):
            assert (new.value, new.key, new.timestamp) == (old.value, old.key, old.timestamp)
            assert list(new.headers.items()) == list(old.headers.items())
            assert (new.routing_key, new.expires_at) == (old.routing_key, old.expires_at)
            assert new.id == old.message_id  # where it comes from
    assert [row["queue"] for row in collect(load(spark, path, queue="b"))] == ["b"] * 10


def test_other_types_of_columns(spark: Any, path: str) -> None:
    pairs = [f"named_struct('key', 'h', 'value', cast('{n}' AS binary))" for n in (1, 2)]
    frame = spark.range(1).selectExpr(
        "cast('v' AS binary) AS value",
        "cast('k' AS binary) AS key",
        f"array({', '.join(pairs)}) AS headers",
        f"{NOW}L AS timestamp",
        f"timestamp_millis({NOW} + 3600000) AS expires_at",
    )
    write(frame, path, queue="b")
    [found] = messages(path, "b")
    assert (found.value, found.key) == (b"v", b"k")
    assert list(found.headers.items()) == [("h", b"1"), ("h", b"2")]
    assert (found.timestamp, found.expires_at) == (NOW, NOW + 3_600_000)


def test_rows_say_where_they_go(spark: Any, path: str) -> None:
    by_topic = "concat('t', id) AS value", "if(id % 2 = 0, 'news/x', 'news/y') AS topic"
    write(spark.range(0, 4, 1, 1).selectExpr(*by_topic), path)
    found = [(m.topic, m.value) for m in messages(path, "news")]
    assert found == [(f"news/{'y' if n % 2 else 'x'}", b"t%d" % n) for n in range(4)]
    by_queue = "concat('t', id) AS value", "if(id % 2 = 0, 'a', 'b') AS queue"
    write(spark.range(0, 4, 1, 1).selectExpr(*by_queue), path)
    assert [m.value for m in messages(path, "a")] == [b"t0", b"t2"]
    assert [m.value for m in messages(path, "b")] == [b"t1", b"t3"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["'x' AS value", "1 AS colour"], "the column 'colour' is unknown"),
        (["id AS value"], "the column 'value' is bigint"),
        (["'x' AS value", "'soon' AS ttl"], "the column 'ttl' is string"),
    ],
)
def test_schemas_that_are_refused(spark: Any, path: str, columns: list[str], says: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as caught:
        write(spark.range(1).selectExpr(*columns), path, queue="a")
    assert said(caught.value).startswith(says)


def test_what_spark_calls_strings_and_columns(spark: Any, path: str, tmp_path: Path) -> None:
    """A string is any bytes, the case of a name does not count, and NULL has a type of its own."""
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9\nok\n")
    write(spark.read.text(str(file)).selectExpr("value AS Value", "NULL AS Key"), path, queue="a")
    write(
        spark.range(1).selectExpr("'ok' AS value", "cast(X'ff' AS string) AS KEY"), path, queue="a"
    )
    found = [(m.value, m.key) for m in messages(path, "a")]
    assert found == [(b"caf\xe9", None), (b"ok", None), (b"ok", b"\xff")]
