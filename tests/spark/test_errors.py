"""What goes wrong names the option or the column, and says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, TailraceError
from tests.log.helpers import flip
from tests.spark.support import fill, open_store, read, said, schema, segments, source


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("orders", "audit"):
        fill(folder, name, 20)
    return folder


def load(spark: Any, **options: Any) -> Any:
    return spark.read.format("tailrace").options(**options).load()


# --- through Spark: the line that people read -----------------------------------------------


def test_options_are_refused_when_the_table_is_loaded(spark: Any, data: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as caught:
        load(spark, path=str(data), queue="orders", startingOfsets="earliest")
    message = said(caught.value)
    assert message.startswith(
        "startingofsets: unknown option (did you mean startingOffsets?); reading takes path, queue,"
    )
    *_, last, state = [line for line in str(caught.value).splitlines() if line.strip()]
    assert message in last  # no line of Spark's is behind it
    assert "SQLSTATE" in state


def test_a_path_and_a_queue_that_are_not_there(spark: Any, data: Path) -> None:
    from pyspark.errors import AnalysisException

    missing = str(data / "missing")
    with pytest.raises(AnalysisException) as caught:
        load(spark, path=missing, queue="orders").count()
    assert said(caught.value).startswith(f"path: there is no store in {missing} on ")
    assert "driver and executors have to see it under the same path" in said(caught.value)
    with pytest.raises(AnalysisException) as caught:
        load(spark, path=str(data), queue="order").count()
    assert said(caught.value) == (
        f"queue: the store in {data} has no 'order'; there are audit, orders"
    )


def test_a_wrong_column(spark: Any, data: Path) -> None:
    from pyspark.errors import AnalysisException

    reader = spark.read.format("tailrace").option("path", str(data)).option("queue", "orders")
    for given, expected in [
        ("offset long, ofset long", "there is no column 'ofset'; there are key, value, topic,"),
        ("offset int", "the column 'offset' is bigint, not int"),
        ("value string", "the column 'value' is binary, not string"),
        (
            "headers map<string,string>",
            "the column 'headers' is array<struct<key:string,value:binary>> or map<string,binary>",
        ),
        ("offset long NOT NULL", "the column 'offset' is NOT NULL"),
        (
            "headers array<struct<key: string NOT NULL, value: binary>>",
            "the column 'headers' is NOT NULL, in part or as a whole; leave that out",
        ),
        ("offset long, offset long", "the column 'offset' is there twice"),
    ]:
        with pytest.raises(AnalysisException) as caught:
            reader.schema(given).load().count()
        assert said(caught.value).startswith(f"the schema: {expected}")


def test_a_column_that_is_not_null_in_part() -> None:
    from pyspark.sql import types as t

    from tailrace.spark.columns import Projection

    text, binary = t.StringType(), t.BinaryType()
    noted = t.StructField("key", text, metadata={"is_indexed": False})  # which says nothing of null
    good = t.StructType([noted, t.StructField("value", binary)])
    bad = t.StructType([t.StructField("key", text, False), t.StructField("value", binary)])
    for kind in (t.ArrayType(good), t.MapType(text, binary)):
        given = t.StructType([t.StructField("headers", kind)])
        assert Projection.of(given).names == ["headers"]
    for field in (
        t.StructField("offset", t.LongType(), False),
        t.StructField("headers", t.ArrayType(good, False)),
        t.StructField("headers", t.ArrayType(bad)),
        t.StructField("headers", t.MapType(text, binary, False)),
    ):
        with pytest.raises(ConfigError, match=f"the column '{field.name}' is NOT NULL"):
            Projection.of(t.StructType([field]))


def test_a_damaged_segment(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    fill(tmp_path, "orders", 60)
    file = segments(tmp_path, "orders")[1]
    flip(file, 70)
    with pytest.raises(PythonException) as caught:
        load(spark, path=str(tmp_path), queue="orders").count()
    message, first = said(caught.value), int(file.stem)
    assert message.startswith(f"rows are lost, which cannot be read: {file}: bytes 0 to ")
    assert f"offsets {first} to {first} cannot be read" in message
    assert message.endswith("With failOnDataLoss=false they are passed over")
    assert load(spark, path=str(tmp_path), queue="orders", failOnDataLoss="false").count() == 59


# --- each option ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "queue: name one queue (queue), several (subscribe, with commas), or a pattern"),
        ({"queue": "orders", "subscribe": "orders"}, "queue and subscribe is given"),
        ({"subscribe": " , "}, "subscribe: it names no queue"),
        ({"subscribe": "orders,nope"}, "has no 'nope'; there are audit, orders"),
        ({"subscribePattern": "(" * 3}, "subscribePattern: '((('"),
        ({"queue": ""}, "has no ''"),
        ({"startingOffsets": "first"}, "startingOffsets: expected 'earliest', 'latest' or JSON"),
        ({"startingOffsets": "5"}, "startingOffsets: expected 'earliest', 'latest' or JSON"),
        ({"startingOffsets": "[5]"}, "startingOffsets: expected 'earliest', 'latest' or JSON"),
        ({"startingOffsets": '{"orders": {"1": 5}}'}, "'orders' has one partition, which is 0"),
        ({"startingOffsets": '{"orders": {"0": 5, "1": 7}}'}, "startingOffsets: 'orders' has one"),
        ({"endingOffsets": '{"orders": {}}'}, "endingOffsets: 'orders' has one partition"),
        ({"startingOffsets": '{"orders": {"0": "5"}}'}, "got '5'"),
        ({"startingOffsets": '{"orders": 1.5}'}, "startingOffsets: expected an offset of 'orders'"),
        ({"startingOffsets": '{"orders": true}'}, "got True"),
        ({"startingOffsets": '{"orders": "5"}'}, "got '5'"),
        ({"startingOffsets": '{"orders": -3}'}, "-1 for the latest; got -3"),
        ({"startingOffsets": '{"order": 1}'}, "startingOffsets: 'order' is not read"),
        ({"endingOffsets": '{"audit": 1}'}, "endingOffsets: 'audit' is not read; it may name ord"),
        ({"startingOffsets": '{"orders": 21}'}, "startingOffsets: offset 21 of 'orders' is beyond"),
        ({"endingOffsets": '{"orders": 99}'}, "endingOffsets: offset 99 of 'orders' is beyond its"),
        (
            {"startingOffsets": '{"orders": 11}', "endingOffsets": '{"orders": {"0": 10}}'},
            "startingOffsets: offset 11 of 'orders' is above endingOffsets, 10",
        ),
        ({"startingTimestamp": "2h"}, "startingTimestamp: expected milliseconds since 1970 or a"),
        ({"startingTimestamp": "--5"}, "startingTimestamp: expected milliseconds since 1970"),
        ({"startingTimestamp": "9" * 30}, "startingTimestamp: expected milliseconds since 1970"),
        ({"endingTimestamp": "²"}, "endingTimestamp: expected milliseconds since 1970 or a time"),
        ({"endingTimestamp": "2026-01-31T12:00"}, "has no time zone; write 2026-01-31T12:00:00Z"),
        ({"startingTimestamp": "2026-01-31"}, "has no time zone; write 2026-01-31T00:00:00Z for"),
        ({"startingTimestamp": "20240101"}, "write a date as 2024-01-01T00:00:00Z, and millis"),
        ({"endingTimestamp": "20240101"}, "endingTimestamp: '20240101' may be a date or millis"),
        ({"startingTimestamp": "2030"}, "startingTimestamp: '2030' may be a date or millis"),
        ({"endingTimestamp": "1704067200"}, "'1704067200' may be seconds or milliseconds"),
        ({"exactTimestamps": "yes"}, "exactTimestamps: expected true or false, got 'yes'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: expected a whole number above 0"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger: expected a whole number above 0"),
        ({"minPartitions": "²"}, "minPartitions: expected a whole number above 0, got '²'"),
        ({"minPartitions": "2.5"}, "minPartitions: expected a whole number above 0, got '2.5'"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss: expected true or false, got '1'"),
        ({"includeHeaders": ""}, "includeHeaders: expected true or false, got ''"),
        (
            {"headers": "map", "includeHeaders": "false"},
            "headers: 'map' says what the column is, and includeHeaders=false that there is none",
        ),
        ({"headers": "list"}, "headers: expected array or map, got 'list'"),
        ({"keys": "[1]"}, "keys: expected a list of strings, got '[1]'"),
        ({"keys": '["a"'}, "keys: no JSON list"),
        ({"keys": '["a\\ud800"]'}, r"keys: 'a\ud800' has half a character"),
        ({"filter": "a#"}, "the filter 'a#': in 'a#' a wildcard has to stand alone"),
        ({"filter": ""}, "a filter must not be empty"),
        ({"splitBytes": "0"}, "splitBytes: expected a size above 0, got '0'"),
        ({"splitBytes": "big"}, "splitBytes: 'big' is not a size; write it as"),
        ({"group": "a\0b"}, "the name of a group, 'a\\x00b', holds"),
        ({"nope": "1"}, "nope: unknown option; reading takes path"),
        ({"MINPARTITION": "1"}, "minpartition: unknown option (did you mean minPartitions?); read"),
    ],
)
def test_wrong_values(data: Path, options: dict[str, str], expected: str) -> None:
    names = {"queue", "subscribe", "subscribePattern"}
    if options and not names & options.keys():
        options = {"queue": "orders", **options}
    with pytest.raises(TailraceError, match=re.escape(expected)):
        read(data, "offset", **options)


def test_what_is_advised_is_taken(data: Path) -> None:
    assert read(data, "offset", queue="orders", startingTimestamp="2026-01-31T00:00:00Z") == []
    assert len(read(data, "offset", queue="orders", startingOffsets="Earliest")) == 20


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(data: Path, name: str) -> None:
    given = source(data, queue="orders", **{name: "latest" if name == "endingOffsets" else "0"})
    with pytest.raises(TailraceError, match=f"{name}: a stream has no end"):
        given.streamReader(schema("offset"))


def test_without_a_path() -> None:
    for path in ("", None):
        with pytest.raises(TailraceError, match="path: name the folder of the store"):
            source(path or "", queue="orders").schema()


def test_a_path_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(TailraceError, match="path: there is no store in"):
        read(tmp_path, queue="orders")
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(TailraceError, match=r"path: .*file is a file, not a folder"):
        read(file, queue="orders")


def test_a_store_without_queues(tmp_path: Path) -> None:
    with open_store(tmp_path):
        pass
    with pytest.raises(TailraceError, match=r"queue: the store in .* has no 'orders'; it has none"):
        read(tmp_path, queue="orders")


def test_executors_that_do_not_see_the_store(tmp_path: Path) -> None:
    """They have the path, and nothing or something else is there."""
    import shutil

    from tests.spark.support import splits

    fill(tmp_path, "orders", 3)
    reader, [part] = splits(tmp_path, queue="orders")
    shutil.rmtree(segments(tmp_path, "orders")[0].parent)
    with pytest.raises(TailraceError, match=r"path: .*segments cannot be seen on .*same path"):
        list(reader.read(part))
    shutil.rmtree(tmp_path / "queue")
    with pytest.raises(TailraceError, match=r"path: there is no store in .* same path"):
        list(reader.read(part))


# --- the builder ----------------------------------------------------------------------------


def test_the_builder_refuses_at_once(data: Path) -> None:
    from datetime import datetime

    from tailrace.spark import table

    nobody: Any = None
    found = table(nobody, str(data), "orders")
    with pytest.raises(TailraceError, match="there is no column 'ofset'; there are key,"):
        found.columns("ofset")
    with pytest.raises(TailraceError, match=r"keys: b'\\xff' is no UTF-8"):
        found.keys("a", b"\xff")
    with pytest.raises(TailraceError, match="s3://old is an address"):
        found.include_archive("s3://old")
    for wrong in ("yesterday", "2.5", "1704067200000000"):
        with pytest.raises(ConfigError, match=f"since: .* such as 2h or 7d, a time .* {wrong!r}"):
            found.since(wrong)
    with pytest.raises(TailraceError, match=r"until: .* has no time zone; .*tzinfo=UTC"):
        found.until(datetime(2026, 1, 31))  # noqa: DTZ001  that is the mistake
    with pytest.raises(TailraceError, match=r"since: .*; write 2026-01-31T00:00:00Z for UTC"):
        found.since("2026-01-31")
    for word in (found.since, found.until):
        with pytest.raises(TailraceError, match=r"'20240101' may be .* a date as 2024-01-01"):
            word("20240101")
        for number, advised in ((1_704_067_200, "'01704067200'"), (20_240_101, "'020240101'")):
            with pytest.raises(ConfigError, match=f"may be .* 0 in front, as text: {advised}"):
                word(number)
    for key in (5, None, ["a", 5]):
        no_key: Any = key
        with pytest.raises(TypeError, match="a key is text or bytes, not "):
            found.keys(no_key)
    for first, last in (-1, None), (None, -2), (-1, 5):
        with pytest.raises(ConfigError, match=r"offsets: -[12] is no offset"):
            found.offsets(first, last)
    with pytest.raises(ConfigError, match="offsets: the first, 50, is above the last, 10"):
        found.offsets(50, 10)
    with pytest.raises(TypeError, match="since takes a time, or how long ago, not True"):
        found.since(True)


@pytest.mark.parametrize(
    ("queue", "word", "value", "expected"),
    [
        ("orders", "startingOfsets", "earliest", "startingOfsets: unknown option"),
        ("orders", "filter", "a#", "the filter 'a#'"),
        ("order", "minPartitions", 2, "has no 'order'; there are audit, orders"),
        ("orders", "startingOffsets", '{"orders": -3}', "startingOffsets: expected an offset"),
        ("orders", "endingOffsets", '{"audit": 3}', "endingOffsets: 'audit' is not read"),
    ],
)
def test_the_builder_checks_before_spark_does(
    data: Path, queue: str, word: str, value: object, expected: str
) -> None:
    from tailrace.spark import table

    nobody: Any = None
    with pytest.raises(TailraceError, match=re.escape(expected)):
        table(nobody, str(data), queue).option(word, value).df()
    with pytest.raises(ConfigError, match="path: there is no store in"):
        table(nobody, str(data / "missing"), queue).df()


def test_keys_and_columns_may_be_lists() -> None:
    from tailrace.spark import table

    nobody: Any = None
    found = table(nobody, "data", "orders")
    assert found.keys(["a", b"b"])._options == found.keys("a", "b")._options
    assert found.keys("a", ("b",), {"c"})._options == found.keys("a", "b", "c")._options
    assert found.keys({"a": 1}.keys(), (each for each in "b"))._options == (
        found.keys("a", "b")._options
    )
    assert found.columns(["key", "offset"])._columns == ("key", "offset")
    assert found.columns("key", ["offset"])._columns == ("key", "offset")
    with pytest.raises(ConfigError, match="there is no column 'ofset'"):
        found.columns(["offset", "ofset"])


def test_the_builder_checks_nothing_for_spark_elsewhere(tmp_path: Path) -> None:
    """With Spark Connect the store is where the server is."""
    from unittest.mock import MagicMock

    from tailrace.spark import table

    session: Any = type("Session", (), {"read": MagicMock()})
    session.__module__ = "pyspark.sql.connect.session"
    found = table(session(), str(tmp_path / "missing"), "orders").df()
    assert found is session.read.format().option().option().options().load()


def test_views_of_no_store(tmp_path: Path) -> None:
    from tailrace.spark import views

    nobody: Any = None
    with pytest.raises(ConfigError, match="path: there is no store in"):
        views(nobody, str(tmp_path / "missing"))
