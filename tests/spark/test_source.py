"""Queues as tables: what is in them, and what options make of them.

Most of it is asked of the source as Spark would ask it, in this process; what Spark itself may do
to rows is asked of Spark.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import Store
from tailrace.errors import ConfigError, TailraceError
from tailrace.kernel import Record, encode
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.repair import recover
from tailrace.log.prepending import Front, joint_of, prepend
from tailrace.queue.registry import Registry
from tailrace.spark.planning import Place, Range, pack
from tailrace.spark.source import _Wanted
from tests.log.helpers import flip
from tests.queue.fluxmq_store import write_queue
from tests.spark.support import (
    SMALL,
    T0,
    as_row,
    collect,
    column,
    fill,
    moment,
    offsets,
    open_store,
    pa,
    read,
    rows,
    schema,
    segments,
    source,
    splits,
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A queue with one message of each kind."""
    with open_store(tmp_path_factory.mktemp("shop")) as store:
        queue = store.queue("orders")
        queue.publish(b"plain")
        queue.publish("text", key="k1", routing_key="eu/de", timestamp=T0)
        queue.publish(b"", key=b"", routing_key="eu", timestamp=T0 + 1)
        queue.publish(None, key=b"\xff\x00", timestamp=T0 + 999)
        queue.publish(b"x", headers=[("a", b"1"), ("a", b"\xfe"), ("b", b"")])
        queue.publish(b"x", headers={"ä": "ö"}, message_id="mine", ttl="1h")
        store.publish("$queue/orders/a//b", b"by topic")
        yield store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store whose stream `s` has 60 messages in several segments."""
    fill(tmp_path, "s", 60)
    return tmp_path


def table(spark: Any, path: Path | str, queue: str = "s", **options: Any) -> Any:
    reader = spark.read.format("tailrace").option("path", str(path)).option("queue", queue)
    return reader.options(**options).load()


# --- columns --------------------------------------------------------------------------------


def test_rows_are_what_read_gives(shop: Store, spark: Any) -> None:
    expected = [as_row(message) for message in shop.get("orders").read()]
    assert len(expected) == 7
    df = table(spark, shop.path, "orders", includeHeaders="true")
    assert df.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("queue", "string"),
        ("routing_key", "string"),
        ("message_id", "string"),
        ("expires_at", "timestamp"),
    ]
    assert collect(df) == expected
    assert read(shop.path, queue="orders") == expected


def test_what_is_not_there_is_null(shop: Store) -> None:
    plain, _, empty, without_value, *_ = read(shop.path, queue="orders")
    assert plain["key"] is None
    assert plain["expires_at"] is None
    assert plain["routing_key"] == ""
    assert plain["headers"] == []
    assert empty["key"] is None  # as `Message.key` has it
    assert empty["value"] == b""
    assert without_value["value"] is None
    assert without_value["timestamp"] == moment(T0 + 999)


def test_headers_are_left_out_unless_asked_for(shop: Store, spark: Any) -> None:
    from tailrace.spark.columns import HEADERS_AS

    assert "headers" not in table(spark, shop.path, "orders").columns
    for kind, written in HEADERS_AS.items():
        assert f"headers {written}," in source(shop.path, queue="orders", headers=kind).schema()


def test_headers_as_a_map(shop: Store, spark: Any) -> None:
    df = table(spark, shop.path, "orders", headers="map")  # which implies includeHeaders
    assert dict(df.dtypes)["headers"] == "map<string,binary>"
    asked = ("map_keys(headers) AS names", "headers['a'] AS a", "headers['b'] AS b", "headers")
    found = df.selectExpr(*asked).collect()
    assert found[4].names == ["a", "a", "b"]  # both are there
    assert (found[4].a, found[4].b) == (b"1", b"")
    assert found[4].headers == {"a": b"\xfe", "b": b""}  # a dict keeps the last
    assert found[5].names == ["ä"]
    assert found[0].names == []


@pytest.mark.parametrize("kind", ["map<string,binary>", "array<struct<key:string,value:binary>>"])
def test_the_schema_may_say_what_headers_are(shop: Store, spark: Any, kind: str) -> None:
    reader = spark.read.format("tailrace").option("path", shop.path).option("queue", "orders")
    df = reader.schema(f"headers {kind}, offset bigint").load()
    assert df.dtypes == [("headers", kind), ("offset", "bigint")]
    assert df.selectExpr("sum(size(headers))").collect()[0][0] == 4


def test_a_schema_prunes_and_orders(shop: Store, spark: Any) -> None:
    expected = [as_row(message) for message in shop.get("orders").read()]
    reader = spark.read.format("tailrace").option("path", shop.path).option("queue", "orders")
    found = reader.schema("value binary, expires_at timestamp, offset long").load()
    assert found.columns == ["value", "expires_at", "offset"]
    assert collect(found) == [{name: row[name] for name in found.columns} for row in expected]


def test_times_are_moments_whatever_the_session_calls_a_timestamp(shop: Store, spark: Any) -> None:
    from tailrace.spark import table as build
    from tailrace.spark import views
    from tailrace.spark.statements import query

    session = spark.newSession()
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    names = ("timestamp", "expires_at")
    expected = [
        {name: as_row(message)[name] for name in names} for message in shop.get("orders").read()
    ]
    statement = "SELECT timestamp, expires_at FROM orders"
    made = views(session, str(shop.path))
    assert made == ["orders"]
    for found in (
        table(session, shop.path, "orders").select(*names),
        build(session, str(shop.path), "orders").columns(*names).df(),
        session.sql(statement),
        query(session, str(shop.path), made, statement),
        query(session, str(shop.path), made, statement.replace("orders", "(FROM orders)")),
    ):
        assert found.dtypes == [(name, "timestamp") for name in names]
        assert collect(found) == expected


def test_times_that_spark_does_not_have() -> None:
    from tailrace.spark.columns import MAX_TIME_MS, time_of

    most = MAX_TIME_MS
    given = pa.array([0, most, most + 1, -most, -most - 1, None], pa.int64())
    found = time_of(given).cast(pa.int64()).to_pylist()
    assert found == [0, most * 1000, None, -most * 1000, None, None]
    assert time_of(pa.nulls(2, pa.int64())).to_pylist() == [None, None]
    assert time_of(pa.array([], pa.int64())).to_pylist() == []


@pytest.mark.parametrize("name", schema().names)
def test_each_column_alone(shop: Store, name: str) -> None:
    expected = [as_row(message)[name] for message in shop.get("orders").read()]
    assert column(read(shop.path, name, queue="orders"), name) == expected


@pytest.mark.spark("4.1")
def test_rows_can_be_counted_without_columns(shop: Store, spark: Any) -> None:
    from pyspark.sql.types import StructType

    reader = spark.read.format("tailrace").option("path", shop.path).option("queue", "orders")
    assert reader.schema(StructType([])).load().count() == 7
    assert reader.option("keys", "k1").schema(StructType([])).load().count() == 1
    assert reader.load().count() == 1


def test_no_columns_are_refused_where_they_count_as_no_rows(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.types import StructType

    from tailrace.spark import provider as module

    monkeypatch.setattr(module, "COUNTS_WITHOUT_COLUMNS", False)  # as in 4.0
    with pytest.raises(ConfigError, match=r"no columns, and Spark 4\.0 would find no rows"):
        source(shop.path, queue="orders").reader(StructType([]))


def test_only_what_is_wanted_is_decoded(shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.log.log import Log

    asked: list[list[str]] = []
    original = Log.read_arrow

    def read_arrow(self: Log, *arguments: Any, **options: Any) -> Any:
        asked.append([*options["columns"], *options["picked"]])
        return original(self, *arguments, **options)

    monkeypatch.setattr(Log, "read_arrow", read_arrow)
    read(shop.path, "offset", queue="orders")
    read(shop.path, "queue", "partition", queue="orders")
    read(shop.path, "value", queue="orders", keys="k1", filter="eu/#")
    read(shop.path, "message_id", "expires_at", queue="orders")
    assert asked == [
        ["offset"],
        [],
        ["key", "value", "_topic"],
        ["offset", "_expires_at"],
    ]


def test_no_row_becomes_an_object(shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a row was decoded by itself")

    reader, [part] = splits(shop.path, queue="orders", includeHeaders="true")
    monkeypatch.setattr("tailrace.log.log.decode", refuse)
    with pytest.raises(AssertionError, match="by itself"):  # this is where records are made
        list(shop.get("orders").log.read())
    batches = list(reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 7
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)


def test_what_others_have_written(tmp_path: Path) -> None:
    """Their headers may be no text, and their times no numbers."""
    from tailrace import Record

    headers: list[list[tuple[str, Any]]] = [
        [("_topic", b"\xff/a"), ("_expires_at", b"soon")],
        [("_expires_at", b"99999999999999999999999")],
        [("_topic", "$queue/q/ä"), ("_expires_at", str(T0)), ("x", b"1")],
        [],
        [("_topic", b"\xff/a"), ("_expires_at", b"+5")],
    ]
    with open_store(tmp_path) as store:
        log = store.queue("q").log
        log.append([Record(timestamp=T0, value=b"v", headers=each) for each in headers])
    found = read(tmp_path, queue="q")
    assert column(found, "topic") == ["\ufffd/a", None, "$queue/q/ä", None, "\ufffd/a"]
    assert column(found, "routing_key") == ["", "", "ä", "", ""]
    assert column(found, "expires_at") == [None, None, moment(T0), None, None]
    assert [len(row["headers"]) for row in found] == [0, 0, 1, 0, 0]


def test_expiry_as_far_away_as_spark_has_times(tmp_path: Path) -> None:
    from tailrace import Record
    from tailrace.spark.columns import MAX_TIME_MS

    most = MAX_TIME_MS
    given: list[Any] = [10**15, most, most + 1, 10**18 - 1, 2**63 - 1, 2**63, f"{T0:030}"]
    with open_store(tmp_path) as store:
        queue = store.queue("q")
        queue.log.append([Record(headers=[("_expires_at", str(each))]) for each in given])
        assert [message.expires_at for message in queue.read()] == [int(each) for each in given]
    reader, [part] = splits(tmp_path, "expires_at", queue="q")
    [batch] = reader.read(part)  # Python has no such times
    micros = batch.column("expires_at").view(pa.int64()).to_pylist()
    assert micros == [10**18, most * 1000, None, None, None, None, T0 * 1000]


# --- which queues ---------------------------------------------------------------------------

NAMES = ["plain", "ünï cødé 漢字", "$dlq/plain", "a.b-c", "50%", "back`tick", ".hidden"]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("named")
    for name in NAMES:
        fill(folder, name, 2)
    return str(folder)


@pytest.mark.parametrize("name", NAMES)
def test_any_name(named: str, name: str) -> None:
    found = read(named, "queue", "value", "message_id", queue=name)
    assert column(found, "queue") == [name, name]
    assert column(found, "value") == [f"{name} {n}".encode() for n in range(2)]
    assert column(found, "message_id") == [f"{name}:{n}" for n in range(2)]


def test_names_travel_through_spark(named: str, spark: Any) -> None:
    names = ", ".join(NAMES)
    reader = spark.read.format("tailrace").option("path", named).option("subscribe", names)
    found = collect(reader.load().select("queue", "value").orderBy("queue", "value"))
    assert [(row["queue"], row["value"].decode()) for row in found] == sorted(
        (name, f"{name} {n}") for name in NAMES for n in range(2)
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("subscribe", "plain", {"plain"}),
        ("subscribe", " plain ,50%,", {"plain", "50%"}),
        ("subscribePattern", "plain", {"plain"}),
        ("subscribePattern", ".*plain", {"plain", "$dlq/plain"}),
        ("subscribePattern", "(?i)PLAIN|50.", {"plain", "50%"}),
        ("subscribePattern", ".*", set(NAMES)),
        ("subscribePattern", "nothing", set()),
    ],
)
def test_several_queues(named: str, option: str, value: str, expected: set[str]) -> None:
    found = column(read(named, "queue", **{option: value}), "queue")
    assert set(found) == expected
    assert len(found) == 2 * len(expected)


def test_an_empty_queue_and_one_that_nobody_has_used(tmp_path: Path, spark: Any) -> None:
    with open_store(tmp_path) as store:
        store.stream("unused")
        store.stream("empty").log.flush()
        store.stream("emptied").publish(b"gone")
        store.stream("emptied").log.truncate_before(1)
    for name in ("unused", "empty", "emptied"):
        assert read(tmp_path, queue=name) == []
        assert read(tmp_path, queue=name, startingOffsets="latest") == []
        assert read(tmp_path, queue=name, startingTimestamp=str(T0)) == []
        df = table(spark, tmp_path, name)
        assert df.count() == 0
        assert df.collect() == []


def test_a_store_by_its_inner_folder(data: Path) -> None:
    assert offsets(data / "queue", queue="s") == list(range(60))


def test_nothing_is_written(data: Path) -> None:
    from tests.log.helpers import tree

    before = tree(data)
    assert len(read(data, queue="s")) == 60
    assert tree(data) == before


# --- ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(60)),
        ("latest", "latest", range(0)),
        ("earliest", "earliest", range(0)),
        ('{"s": 10}', "latest", range(10, 60)),
        ('{"s": 10}', '{"s": 11}', range(10, 11)),
        ('{"s": {"0": 10}}', '{"s": {"0": 20}}', range(10, 20)),
        ('{"s": -2}', '{"s": -1}', range(60)),
        ('{"s": -1}', '{"s": -1}', range(0)),
        ('{"s": 60}', '{"s": 60}', range(0)),
        ('{"s": 60}', '{"s": -2}', range(0)),  # which are compared by nobody
        ("{}", "{}", range(60)),
    ],
)
def test_offsets(data: Path, start: str, end: str, expected: range) -> None:
    found = offsets(data, queue="s", startingOffsets=start, endingOffsets=end)
    assert found == list(expected)


def test_offsets_of_several_queues(data: Path) -> None:
    fill(data, "t", 5)
    found = read(
        data,
        "queue",
        "offset",
        subscribe="s,t",
        startingOffsets='{"s": 58}',
        endingOffsets='{"t": 3}',
    )
    expected = [("s", 58), ("s", 59), ("t", 0), ("t", 1), ("t", 2)]
    assert [(row["queue"], row["offset"]) for row in found] == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (str(T0 + 10_000), None, range(10, 60)),
        (str(T0 + 9_001), str(T0 + 20_000), range(10, 20)),
        ("2023-11-14T22:13:30+00:00", "2023-11-14T23:13:40+01:00", range(10, 20)),
        ("2023-11-14T22:13:29.500Z", "2023-11-14T22:13:39.001Z", range(10, 20)),
        ("-5", str(T0), range(0)),
        (None, str(T0 + 1), range(1)),
        (str(T0 + 10**9), None, range(0)),
    ],
)
def test_times(data: Path, start: str | None, end: str | None, expected: range) -> None:
    given = {"startingTimestamp": start, "endingTimestamp": end}
    options = {name: value for name, value in given.items() if value is not None}
    assert offsets(data, queue="s", **options) == list(expected)
    assert offsets(data, queue="s", **options, exactTimestamps="true") == list(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"s": 50}', "startingTimestamp": str(T0 + 10_000)}, range(50, 60)),
        ({"startingOffsets": '{"s": 5}', "startingTimestamp": str(T0 + 10_000)}, range(10, 60)),
        ({"endingOffsets": '{"s": 5}', "endingTimestamp": str(T0 + 20_000)}, range(5)),
        ({"endingOffsets": '{"s": 25}', "endingTimestamp": str(T0 + 20_000)}, range(20)),
        ({"startingOffsets": '{"s": 30}', "endingTimestamp": str(T0 + 20_000)}, range(0)),
        ({"startingOffsets": "latest", "startingTimestamp": str(T0 + 10_000)}, range(0)),
    ],
)
def test_offsets_and_times(data: Path, options: dict[str, str], expected: range) -> None:
    """Both hold."""
    assert offsets(data, queue="s", **options) == list(expected)


def test_times_are_offsets_unless_they_are_to_be_exact(tmp_path: Path) -> None:
    """Clocks go back: the first at or after a time has older ones behind it."""
    with open_store(tmp_path) as store:
        stream = store.stream("s")
        for second in (0, 5, 3, 7, 6, 9, 1):
            stream.publish(b"", timestamp=T0 + second * 1000)
    options = {"queue": "s", "startingTimestamp": str(T0 + 4000)}
    assert offsets(tmp_path, **options) == [1, 2, 3, 4, 5, 6]
    assert offsets(tmp_path, **options, exactTimestamps="TRUE") == [1, 3, 4, 5]
    options["endingTimestamp"] = str(T0 + 7000)
    assert offsets(tmp_path, **options) == [1, 2]
    options = {"queue": "s", "endingTimestamp": str(T0 + 5000), "exactTimestamps": "true"}
    assert offsets(tmp_path, **options) == [0]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("k1", 20),
        ("k1,k2", 40),
        (" k1 , k2 ", 40),
        ('["k1"]', 20),
        ('["k1", "k1", "k,2"]', 20),
        ("[]", 0),
        ("none", 0),
    ],
)
def test_keys(data: Path, keys: str, expected: int) -> None:
    found = read(data, "value", "key", queue="s", keys=keys)
    assert len(found) == expected
    assert set(column(found, "key")) <= {b"k1", b"k2"}
    assert len(read(data, "value", queue="s", keys=keys)) == expected


@pytest.mark.parametrize(
    "pattern",
    ["#", "eu", "eu/#", "eu/+", "+", "+/+", "+/#", "/#", "$x", "$x/#", "eu//+", "nothing"],
)
def test_filters_are_those_of_groups(tmp_path: Path, pattern: str) -> None:
    with open_store(tmp_path) as store:
        queue = store.queue("q")
        for key in ("", "eu", "eu/de", "eu/de/berlin", "us", "$x", "$x/y", "eu//x", "eu/"):
            queue.publish(b"", routing_key=key)
        store.publish("$queue/q/", b"")  # with a level, which is empty
        with queue.consumer("g", filter=pattern) as consumer:
            expected = [message.offset for message in consumer.receive(100)]
    assert offsets(tmp_path, queue="q", filter=pattern) == expected


def test_more_routing_keys_than_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.spark.columns._MOST_TOPICS", 3)
    with open_store(tmp_path) as store:
        queue = store.stream("s", **SMALL)
        for number in range(40):
            queue.publish(b"x", routing_key=f"{'even' if number % 2 == 0 else 'odd'}/{number}")
    assert offsets(tmp_path, queue="s", filter="even/#") == list(range(0, 40, 2))


def test_a_range_of_times_reads_only_its_segments(tmp_path: Path, spark: Any) -> None:
    """The others hold nothing that could be read."""
    from pyspark.errors import PySparkException

    from tailrace.spark import table as begin

    fill(tmp_path, "s", 140)
    *whole, _ = files = segments(tmp_path, "s")  # the last one tells where the log ends
    starts = [int(file.stem) for file in files]
    assert len(whole) > 4
    first, last = starts[2] + 1, starts[3] - 1  # in one segment
    for file in whole:
        if file != files[2]:
            file.write_bytes(b"\xff" * file.stat().st_size)
    events = begin(spark, str(tmp_path), "s")
    found = events.since(T0 + first * 1000).until(T0 + last * 1000)
    assert found.columns().df().count() == last - first
    assert offsets_of(found) == list(range(first, last))
    with pytest.raises(PySparkException, match="rows are lost, which cannot be read"):
        events.columns().df().count()


def test_all_of_it_together(data: Path, spark: Any) -> None:
    df = table(
        spark,
        data,
        STARTINGOFFSETS='{"s": 5}',
        endingtimestamp=str(T0 + 50_000),
        ExactTimestamps="True",
        Keys="k1",
        FILTER="#",
        splitbytes="1k",
        minpartitions="3",
        FAILONDATALOSS="FALSE",
        INCLUDEHEADERS="TRUE",
        Headers="MAP",
    )
    assert df.rdd.getNumPartitions() >= 3
    assert dict(df.dtypes)["headers"] == "map<string,binary>"
    assert sorted(column(collect(df), "offset")) == list(range(7, 50, 3))


# --- splits ---------------------------------------------------------------------------------


def test_splits_are_cut_and_packed(data: Path) -> None:
    files = segments(data, "s")
    assert len(files) > 2
    total = sum(file.stat().st_size for file in files)
    assert len(splits(data, queue="s")[1]) == 1  # all of it is small
    for size in (300, 1000, 2000, 5000):
        reader, parts = splits(data, "offset", queue="s", splitBytes=str(size))
        found = [
            row["offset"] for part in parts for b in reader.read(part) for row in b.to_pylist()
        ]
        assert found == list(range(60))
        assert len(parts) >= total // (2 * size + 500)
        # A batch is the least, and two follow each other in the index.
        assert all(part.value.size <= 2 * size + 500 for part in parts)


@pytest.mark.parametrize("segment", [1, 10, 40, 63.9, 64, 64.1, 70, 100, 127, 200])
def test_tasks_are_of_a_size(segment: float) -> None:
    """Whatever segments are, with the sizes by default."""
    from tailrace.spark.options import SourceOptions

    options = SourceOptions.parse({"path": "data", "queue": "q"}, is_stream=False)
    mebi, split = 1 << 20, options.split_bytes
    assert split == 64 * mebi
    ranges: list[Range] = []
    for _ in range(round(2_000 / segment)):
        left = round(segment * mebi)
        while left:  # as `cut` does
            size, first = min(left, split), len(ranges)
            ranges.append(Range("q", "", first, first + 1, size))
            left -= size
    *found, last = [each.size / mebi for each in pack(iter(ranges), split)]
    assert 55 < min(found) <= max(found) <= 128
    assert last <= 128
    assert sum(found) + last == pytest.approx(sum(part.size for part in ranges) / mebi)


@pytest.mark.parametrize("segment", [8.1, 24, 33, 48, 63.9, 100, 500])
def test_tasks_are_larger_where_there_are_many(
    segment: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task takes some time, whatever it reads; but each processor has several."""
    monkeypatch.setattr("tailrace.spark.source.processors", lambda: 3)
    mebi = 1 << 20

    def sizes(total: int, **options: str) -> tuple[list[float], list[float]]:
        """In MiB; and what they usually are."""
        reader = source("nowhere", queue="q", **options).reader(schema("offset"))
        parts: list[Range] = []
        for _ in range(round(total / segment)):
            left = round(segment * mebi)
            while left:
                size, first = min(left, 64 * mebi), len(parts)
                parts.append(Range("q", "", first, first + 1, size))
                left -= size
        monkeypatch.setattr(reader, "_ranges", lambda *_: parts)
        queue: Any = SimpleNamespace(name="q")
        found = reader._splits(None, [_Wanted(queue, 0, 1)], {})
        usual = [split.size / mebi for split in pack(iter(parts), 64 * mebi)]
        return [part.value.size / mebi for part in found], usual

    large, _ = sizes(4 * 3 * 128 + 512)
    assert 64 < min(large[:-1]) <= max(large) <= 128
    assert len(large) >= 4 * 3
    if segment > 60:
        assert statistics.mean(large[:-1]) > 90
    for found, usual in sizes(4 * 3 * 128 - 512), sizes(4_000, splitBytes="64MiB"):
        assert found == usual
    assert len(sizes(4_000, minPartitions="50")[0]) >= 50


def test_a_large_batch_comes_in_pieces(tmp_path: Path) -> None:
    half = 1 << 19
    with open_store(tmp_path) as store:
        stream = store.stream("s", compression="none")
        stream.publish_many([b"%d" % number + bytes(half) for number in range(13)])
        stream.publish_many([b"13", b"14"])
    reader, [part] = splits(tmp_path, "offset", "value", queue="s")
    batches = list(reader.read(part))
    assert all(batch.nbytes <= 5 * half for batch in batches)
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3, 1, 2]
    assert column(rows(batches), "offset") == list(range(15))
    assert [value.rstrip(b"\0") for value in column(rows(batches), "value")] == [
        b"%d" % number for number in range(15)
    ]
    reader, [part] = splits(tmp_path, queue="s")  # a count
    assert sum(batch.num_rows for batch in reader.read(part)) == 15


@pytest.mark.parametrize("segment", [20_000, 35_000])
def test_the_rest_of_a_segment_is_no_task(tmp_path: Path, segment: int) -> None:
    with open_store(tmp_path) as store:
        options = {"compression": "none", "segment_bytes": segment, "index_interval": 200}
        stream = store.stream("s", **options)
        for _ in range(350):
            stream.publish(bytes(900))
    reader, parts = splits(tmp_path, "offset", queue="s", splitBytes="32000")
    *found, last = [part.value.size for part in parts]
    assert 28_000 <= min(found) <= max(found) <= 64_000
    assert last <= 64_000
    offsets = [row["offset"] for part in parts for row in rows(reader.read(part))]
    assert offsets == list(range(350))


@pytest.mark.parametrize("least", [1, 2, 3, 7])
def test_min_partitions(tmp_path: Path, least: int) -> None:
    fill(tmp_path, "s", 60, segment_bytes=1 << 20, index_interval=200)
    with open_store(tmp_path) as store:
        for _ in range(40):
            store.get("s").publish(bytes(1000))
    assert len(splits(tmp_path, queue="s", minPartitions=str(least))[1]) >= least
    assert offsets(tmp_path, queue="s", minPartitions=str(least)) == list(range(100))


@pytest.mark.parametrize("least", [4, 16, 47, 99])
def test_more_partitions_than_batches(tmp_path: Path, least: int) -> None:
    with open_store(tmp_path) as store:
        for number in range(3):
            store.stream("s").publish_many([b"%d" % number * 1000] * 33)
    assert len(splits(tmp_path, queue="s", minPartitions=str(least))[1]) >= least
    assert offsets(tmp_path, queue="s", minPartitions=str(least)) == list(range(99))
    values = [row["value"] for row in read(tmp_path, "value", queue="s", minPartitions=str(least))]
    assert values == [b"%d" % (number // 33) * 1000 for number in range(99)]


def test_more_partitions_than_there_can_be(tmp_path: Path) -> None:
    fill(tmp_path, "s", 3)
    assert offsets(tmp_path, queue="s", minPartitions="1000") == [0, 1, 2]
    assert len(splits(tmp_path, queue="s", minPartitions="1000")[1]) == 3


def test_nothing_to_read_is_planned_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller splits would not make more of it."""
    from tailrace.spark.source import BatchReader

    planned = []
    ranges = BatchReader._ranges

    def counting(self: Any, *given: Any) -> Any:
        planned.append(given)
        return ranges(self, *given)

    monkeypatch.setattr(BatchReader, "_ranges", counting)
    empty = source(data, queue="s", startingOffsets="latest").reader(schema("offset"))
    assert empty.partitions() == []
    assert planned == []
    with open_store(data) as store:
        store.stream("s").log.truncate_before(60)
    assert source(data, queue="s").reader(schema("offset")).partitions() == []
    assert planned == []


def test_queues_share_a_split(tmp_path: Path) -> None:
    for name in "abc":
        fill(tmp_path, name, 3)
    _, parts = splits(tmp_path, subscribe="a,b,c")
    assert len(parts) == 1
    assert [part.queue for part in parts[0].value.ranges] == ["a", "b", "c"]


# --- loss -----------------------------------------------------------------------------------


def test_retention_has_passed_the_offset(data: Path) -> None:
    with open_store(data) as store:
        store.get("s").log.truncate_before(25)
    assert offsets(data, queue="s") == list(range(25, 60))
    options = {"queue": "s", "startingOffsets": '{"s": 10}'}
    with pytest.raises(TailraceError, match=r"retention has deleted.* offset 10 .* 25 to 59"):
        offsets(data, **options)
    assert offsets(data, **options, failOnDataLoss="false") == list(range(25, 60))
    assert offsets(data, **options, endingOffsets='{"s": 20}', failOnDataLoss="false") == []


def test_retention_is_faster_than_a_plan(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes something after the plan has looked where the log starts."""
    from tailrace.spark import source as planned
    from tailrace.spark.planning import cut

    left = [5, 12]

    def late(*given: Any) -> Any:
        if left:
            with open_store(data) as store:
                log = store.get("s").log
                log.truncate_before(left.pop(0))
                log.vacuum()
        return cut(*given)

    monkeypatch.setattr(planned, "cut", late)
    with pytest.raises(TailraceError, match=r"retention has deleted.*failOnDataLoss=false"):
        offsets(data, queue="s")
    assert left == [12]
    assert offsets(data, queue="s", failOnDataLoss="false") == list(range(12, 60))


def test_retention_deletes_a_file_that_a_plan_looks_into(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace.spark import source as planned
    from tailrace.spark.planning import cut

    deleted = [20]

    def gone(*given: Any) -> Any:
        yield from list(cut(*given))[:1]
        if deleted:
            with open_store(data) as store:
                store.get("s").log.truncate_before(deleted.pop())
            raise FileNotFoundError("00000000000000000000.idx")
        yield from list(cut(*given))[1:]

    monkeypatch.setattr(planned, "cut", gone)
    assert offsets(data, queue="s", failOnDataLoss="false") == list(range(20, 60))
    deleted.append(20)
    with pytest.raises(FileNotFoundError):  # nobody has deleted it
        offsets(data, queue="s", failOnDataLoss="false")


def test_a_checkpoint_beyond_the_end(data: Path) -> None:
    """The log is older than it was, as after a backup was restored."""
    reader = source(data, queue="s").streamReader(schema("offset"))
    [(end, incarnation)] = reader.latestOffset().values()
    with pytest.raises(TailraceError, match=r"ends at 60 .* before offset 80 that was there"):
        reader.partitions({"s": [end + 10, incarnation]}, {"s": [end + 20, incarnation]})


def test_a_log_that_is_older_than_the_plan(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A task that has fewer rows than were planned says so, whatever happened."""
    older = tmp_path_factory.mktemp("older") / "copy"
    shutil.copytree(data, older)
    fill(data, "s", 20)
    reader, parts = splits(data, "offset", queue="s")
    passing, _ = splits(data, "offset", queue="s", failOnDataLoss="false")
    shutil.rmtree(data)
    older.rename(data)
    with pytest.raises(TailraceError, match=r"ends at 60 .* before offset 80 that was there"):
        rows(batch for part in parts for batch in reader.read(part))
    found = rows(batch for part in parts for batch in passing.read(part))
    assert column(found, "offset") == list(range(60))


def test_rows_come_once_when_their_files_are_replaced(data: Path) -> None:
    """Retention takes files that a task has read, and others bring the rows back in new ones: it
    goes on where it is."""
    reader, [part] = splits(data, "offset", queue="s", failOnDataLoss="false")
    found = reader.read(part)
    seen = column(rows([next(found)]), "offset")
    with open_store(data) as store:
        log = store.get("s").log
        log.truncate_before(59)
        log.vacuum()
        joint = joint_of(log)
        assert joint.first > seen[-1] + 1
        with Front(log, "back") as front:
            for offset in range(joint.first):
                front.add(encode([Record(value=b"back")], T0, 0), offset)
            prepend(log, front, front.finish(), 0, joint.seam)
    seen += column(rows(found), "offset")
    assert seen == list(range(60))


def test_queues_are_looked_up_once_for_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not once for each of them: there may be thousands."""
    for number in range(20):
        fill(tmp_path, f"q{number}", 1)
    parsed: list[object] = []
    parse = Registry._parse

    def counted(registry: Registry, *given: Any) -> Any:
        parsed.append(registry)
        return parse(registry, *given)

    monkeypatch.setattr(Registry, "_parse", counted)
    reader, parts = splits(tmp_path, "queue", subscribePattern=".*")
    found = rows(batch for part in parts for batch in reader.read(part))
    assert len(found) == 20
    stream = source(tmp_path, subscribePattern=".*").streamReader(schema("queue"))
    assert stream.partitions({}, stream.latestOffset())
    assert len(parsed) == 3 + len(parts)


def test_another_store_in_the_place_of_one_that_is_looked_at(data: Path, tmp_path: Path) -> None:
    place = Place(str(data))
    assert set(place.queues()) == {"s"}
    shutil.rmtree(data)
    fill(data, "t", 1)
    assert set(place.queues()) == {"t"}
    with open_store(data) as store:
        store.stream("u")
    assert set(place.queues()) == {"t", "u"}
    shutil.rmtree(data)
    with pytest.raises(TailraceError, match=r"'u' .* was deleted meanwhile"):
        place.check_same("u", "")


def test_retention_is_faster_than_a_task(data: Path) -> None:
    """A plan is older than what its tasks read."""
    for fails in ("true", "false"):
        reader, parts = splits(data, "offset", queue="s", failOnDataLoss=fails, splitBytes="1k")
        with open_store(data) as store:
            log = store.get("s").log
            log.truncate_before(log.start_offset + 10)
            log.vacuum()
        if fails == "true":
            with pytest.raises(TailraceError, match=r"retention has deleted.*failOnDataLoss=false"):
                rows(batch for part in parts for batch in reader.read(part))
        else:
            found = rows(batch for part in parts for batch in reader.read(part))
            assert column(found, "offset") == list(range(20, 60))


def test_damaged_bytes(data: Path) -> None:
    file = segments(data, "s")[1]
    flip(file, 70)
    first = int(file.stem)
    with pytest.raises(TailraceError, match="cannot be read") as caught:
        offsets(data, queue="s")
    assert str(file) in str(caught.value)
    assert f"offsets {first} to {first} cannot be read" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    kept = [offset for offset in range(60) if offset != first]
    for size in ("300", "64MiB"):
        assert offsets(data, queue="s", failOnDataLoss="false", splitBytes=size) == kept
    # Who does not ask for what is lost does not hear of it.
    assert offsets(data, queue="s", endingOffsets=f'{{"s": {first}}}') == list(range(first))


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_is_missing(data: Path, which: int) -> None:
    files = segments(data, "s")
    bases = [*(int(file.stem) for file in files), 60]
    lost = range(bases[which % len(files)], bases[which % len(files) + 1])
    with open_store(data) as store:
        expected = [n for n in range(60) if n not in lost]
        folder = Path(store.layout.segments("s"))
    files[which].unlink()
    with pytest.raises(TailraceError, match="rows are lost") as caught:
        offsets(data, queue="s")
    assert str(folder) in str(caught.value)
    assert offsets(data, queue="s", failOnDataLoss="false") == expected


def test_all_segments_are_missing(data: Path) -> None:
    for file in segments(data, "s"):
        file.unlink()
    with pytest.raises(TailraceError, match="rows are lost"):
        offsets(data, queue="s")
    assert offsets(data, queue="s", failOnDataLoss="false") == []


def test_what_is_in_quarantine_is_loss(data: Path) -> None:
    """As long as nobody has acknowledged it."""
    file = segments(data, "s")[-1]
    first = int(file.stem)
    flip(file, 20)
    (file.parent / ".tailrace" / "clean").unlink()  # as if it had not been closed
    with open_store(data) as store:
        new = store.stream("s").publish(b"x").offset  # recovers it before
    with pytest.raises(TailraceError, match="rows are lost, which") as caught:
        offsets(data, queue="s")
    assert f"offsets {first} to" in str(caught.value)
    assert str(file.parent) in str(caught.value)
    kept = offsets(data, queue="s", failOnDataLoss="false")
    assert (kept[:first], kept[-1], first in kept) == ([*range(first)], new, False)


def test_an_acknowledged_gap_is_no_loss(data: Path) -> None:
    """A person has looked at it, and has said so."""
    file = segments(data, "s")[1]
    flip(file, 70)
    recover(OsFileSystem(), str(file.parent), apply=True)
    kept = [offset for offset in range(60) if offset != int(file.stem)]
    for size in ("300", "64MiB"):
        assert offsets(data, queue="s", splitBytes=size) == kept


def test_another_queue_of_the_same_name(data: Path) -> None:
    """Which took the place of the one that was planned for."""
    reader, parts = splits(data, queue="s")
    with open_store(data) as store:
        store.delete("s")
    with pytest.raises(TailraceError, match=r"'s' .* was deleted meanwhile"):
        list(reader.read(parts[0]))
    fill(data, "s", 60)
    with pytest.raises(TailraceError, match=r"deleted and made anew.* Load the table again"):
        list(reader.read(parts[0]))


def test_a_queue_of_fluxmqs_is_opened_for_writing_after_the_plan(tmp_path: Path) -> None:
    """Which gives it its incarnation."""
    write_queue(tmp_path / "queue", "orders", [b"a", b"b"])
    reader, [part] = splits(tmp_path, "offset", queue="orders")
    with open_store(tmp_path):
        pass
    assert column(rows(reader.read(part)), "offset") == [0, 1]


# --- Spark ----------------------------------------------------------------------------------


def test_a_filter_does_not_stay(data: Path, spark: Any) -> None:
    """Spark would keep a filter that was pushed down with the DataFrame: none is."""
    df = table(spark, data)
    assert df.filter("offset >= 50").count() == 10
    assert df.count() == 60
    assert df.filter("offset < 5").union(df.filter("offset >= 50")).count() == 15
    df.createOrReplaceTempView("kept")
    assert spark.sql("SELECT * FROM kept WHERE offset < 3").count() == 3
    assert spark.sql("SELECT * FROM kept").count() == 60
    joined = df.alias("a").join(df.alias("b"), "offset").filter("a.offset % 2 = 0")
    assert joined.count() == 30
    assert spark.catalog.dropTempView("kept")


@pytest.mark.spark("4.1")
def test_a_dataframe_is_a_snapshot(data: Path, spark: Any) -> None:
    df = table(spark, data)
    assert df.count() == 60
    fill(data, "s", 5)
    assert df.count() == 60
    assert table(spark, data).count() == 65


@pytest.mark.spark("4.1")
def test_a_view_is_a_snapshot(data: Path, spark: Any) -> None:
    from tailrace.spark import views

    def count() -> int:
        found: int = spark.sql("SELECT count(*) FROM s").collect()[0][0]
        return found

    views(spark, str(data))
    assert count() == 60
    fill(data, "s", 5)
    assert count() == 60
    assert spark.sql("SELECT max(offset) FROM s").collect()[0][0] == 59
    views(spark, str(data))
    assert count() == 65


def test_sql(data: Path, spark: Any) -> None:
    spark.sql(
        f"CREATE TEMP VIEW by_option USING tailrace OPTIONS (path '{data}', queue 's', keys 'k1')"
    )
    assert spark.sql("SELECT count(*) FROM by_option").collect()[0][0] == 20
    assert spark.catalog.dropTempView("by_option")
    spark.sql("CREATE TABLE bare (offset BIGINT, value BINARY) USING tailrace")
    try:
        found = spark.sql(
            f"SELECT offset FROM bare WITH (path='{data}', queue='s', "
            """startingOffsets='{"s": 57}')"""
        )
        assert sorted(row.offset for row in found.collect()) == [57, 58, 59]
    finally:
        spark.sql("DROP TABLE bare")


def test_it_can_be_registered(data: Path, spark: Any) -> None:
    from tailrace.spark import register

    for _ in range(2):  # the second time changes nothing
        register(spark)
        assert table(spark, data).count() == 60


def test_the_path_may_be_given_to_load(data: Path, spark: Any) -> None:
    reader = spark.read.format("tailrace").option("queue", "s")
    assert reader.load(str(data)).count() == 60


def test_no_schema_is_asked_of_the_store(tmp_path: Path) -> None:
    """Its columns are the same whatever is there."""
    found = source(tmp_path / "nowhere", queue="q").schema()
    assert found.startswith("key binary, value binary, topic string")
    assert len(schema()) == 12


# --- builder --------------------------------------------------------------------------------


def test_the_builder(data: Path, spark: Any) -> None:
    from datetime import UTC, datetime

    from tailrace.spark import table as begin

    whole = begin(spark, str(data), "s")
    assert whole.df().count() == 60
    df = whole.offsets(5, 50).keys("k1", "k2").columns("offset", "key").df()
    assert df.columns == ["offset", "key"]
    assert sorted(column(collect(df), "offset")) == [n for n in range(5, 50) if n % 3]
    soon = datetime.fromtimestamp(T0 / 1000 + 20, UTC)
    df = whole.since(T0 + 10_000).until(soon).columns("offset").df()
    assert column(collect(df), "offset") == list(range(10, 20))
    assert offsets_of(whole.offsets(50).since(T0 + 10_000)) == list(range(50, 60))
    assert offsets_of(whole.offsets(0, 5).until(soon)) == list(range(5))
    assert offsets_of(whole.keys(b"k1", "k2").offsets(0, 6)) == [1, 2, 4, 5]
    assert offsets_of(whole.since(str(T0 + 58_000))) == [58, 59]
    assert whole.since("2h").df().count() == 0
    for early in (-2_024_010, datetime(1970, 1, 1, 8, tzinfo=UTC), "020240101"):
        assert whole.since(early).until(soon).df().count() == 20  # no text that may be a date
    assert whole.until("2h").df().count() == 60
    assert whole.since(soon.isoformat()).filter("#").df().count() == 40
    assert whole.option("includeHeaders", True).option("splitBytes", 300).df().count() == 60
    df = whole.option("headers", "MAP").columns("headers", "offset").df()
    assert df.dtypes[0] == ("headers", "map<string,binary>")
    assert df.count() == 60
    assert whole.columns().df().count() == 60
    assert whole.df().count() == 60  # it is what it was


def offsets_of(wanted: Any) -> list[int]:
    return sorted(column(collect(wanted.columns("offset").df()), "offset"))


def test_a_relative_path_is_that_of_this_process(
    data: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own folder is where it was started."""
    from tailrace.spark import table as begin
    from tailrace.spark import views
    from tailrace.spark.statements import query

    spark.catalog.dropTempView("s")
    (data / "inner").mkdir()
    monkeypatch.chdir(data / "inner")
    counted = query(spark, "..", ["s"], "SELECT count(*) FROM s")
    found = begin(spark, "..", "s")
    views(spark, "..")
    monkeypatch.chdir(data)
    assert found.df().count() == 60
    assert spark.sql("SELECT count(*) FROM s").collect()[0][0] == 60
    assert counted.collect()[0][0] == 60


def test_since_leaves_out_what_is_older_and_behind(tmp_path: Path, spark: Any) -> None:
    from tailrace.spark import table as begin

    with open_store(tmp_path) as store:
        stream = store.stream("s")
        for second in (0, 5, 3, 7):
            stream.publish(b"", timestamp=T0 + second * 1000)
    found = begin(spark, str(tmp_path), "s").since(T0 + 4000).columns("offset").df()
    assert column(collect(found), "offset") == [1, 3]


def test_views(named: str, spark: Any) -> None:
    from tailrace.spark import views

    assert views(spark, named) == sorted(NAMES)
    found = []
    for name in NAMES:
        quoted = name.replace("`", "``")
        df = spark.sql(f"SELECT * FROM `{quoted}`")
        assert "headers" not in df.columns  # which would be decoded whether it is needed or not
        found.append(df.select("queue"))
    union = reduce(lambda one, other: one.union(other), found)
    assert column(collect(union), "queue") == [name for name in NAMES for _ in range(2)]
    views(spark, named, headers=True)
    assert "headers" in spark.sql("SELECT * FROM plain").columns


def test_views_of_names_that_are_one_to_spark(tmp_path: Path, spark: Any) -> None:
    from tailrace.spark import views

    path = str(tmp_path / "data")
    with Store(path, flush="none") as store:
        store.queue("Orders")
        store.queue("orders")
    with pytest.raises(TailraceError, match="'Orders' and 'orders' are one to Spark"):
        views(spark, path)
