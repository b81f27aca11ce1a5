"""Writing to queues: each row once, whatever is done again, and whoever dies.

Most of it needs no Spark: what a task does and what the driver does are two calls.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace import ConfigError, Full, NotWritten, Store, TailraceError
from tailrace.kernel import TooLarge, read_header
from tailrace.kernel.arrow import Source
from tailrace.log import staging
from tailrace.log.adopting import pack_staged
from tailrace.log.adoption import Adoption
from tailrace.log.fs import OsFile, OsFileSystem, Space

pyspark = pytest.importorskip("pyspark")

from pyspark.sql import types as t  # noqa: E402

from tailrace.spark import sink  # noqa: E402
from tailrace.spark.batches import plan_batches  # noqa: E402
from tailrace.spark.encoding import TAKES  # noqa: E402
from tailrace.spark.options import SinkOptions  # noqa: E402
from tailrace.spark.sink import BatchWriter, StreamWriter, Transaction  # noqa: E402

SMALL = {"segment_bytes": 20_000}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    with tailrace.open(path, flush="none") as store:
        store.queue("q", **SMALL)
    return path


KINDS: dict[str, tuple[Any, Any]] = {
    "binary": (t.BinaryType(), pa.binary()),
    "string": (t.StringType(), pa.string()),
    "timestamp": (t.TimestampType(), pa.timestamp("us", "UTC")),
    "bigint": (t.LongType(), pa.int64()),
    "timestamp_ntz": (t.TimestampNTZType(), pa.timestamp("us")),
    "smallint": (t.ShortType(), pa.int16()),
    "tinyint": (t.ByteType(), pa.int8()),
    "decimal": (t.DecimalType(4, 1), pa.decimal128(4, 1)),
    "double": (t.DoubleType(), pa.float64()),
    "map": (t.MapType(t.StringType(), t.BinaryType()), pa.map_(pa.string(), pa.binary())),
    "array": (
        t.ArrayType(
            t.StructType(
                [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
            )
        ),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ),
}


def schema(**kinds: str) -> t.StructType:
    return t.StructType([t.StructField(name, KINDS[kind][0]) for name, kind in kinds.items()])


def batch(kinds: dict[str, str], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    fields = [pa.field(name, KINDS[kind][1]) for name, kind in kinds.items()]
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


def writer(path: str, kinds: dict[str, str], **options: str) -> BatchWriter:
    given = {"path": path, **options}
    return BatchWriter(SinkOptions.parse(given), schema(**kinds), overwrite=False)


def write(path: str, kinds: dict[str, str], rows: list[dict[str, Any]], **options: str) -> None:
    """As one task, and the driver."""
    once = writer(path, kinds, **options)
    once.commit([once.write(iter([batch(kinds, rows)]))])


def messages(path: str, queue: str = "q") -> list[tailrace.Message]:
    with tailrace.open(path) as store:
        return list(store.get(queue).read())


def values(path: str, queue: str = "q") -> list[bytes | None]:
    return [message.value for message in messages(path, queue)]


def staged(path: str) -> list[Path]:
    return [each for each in Path(path).rglob("staging/*/*") if each.is_file()]


# --- columns --------------------------------------------------------------------------------


def test_what_a_row_becomes(path: str) -> None:
    kinds = {
        "value": "binary",
        "key": "string",
        "headers": "map",
        "timestamp": "bigint",
        "routing_key": "string",
        "message_id": "string",
        "ttl": "double",
    }
    rows: list[dict[str, Any]] = [
        {
            "value": b"one",
            "key": "k",
            "headers": [("a", b"1"), ("b", b"2")],
            "timestamp": 1_794_000_000_123,
            "routing_key": "eu/x",
            "message_id": "mine",
            "ttl": 3600.0,
        },
        {"value": None, "ttl": 0.0, "headers": []},
        {"value": b"", "key": "", "routing_key": ""},
    ]
    write(path, kinds, rows, queue="q")
    first, second, third = messages(path)
    assert (first.value, first.key, first.id) == (b"one", b"k", "mine")
    assert list(first.headers.items()) == [("a", b"1"), ("b", b"2")]
    assert (first.topic, first.routing_key) == ("$queue/q/eu/x", "eu/x")
    assert first.timestamp == 1_794_000_000_123
    assert first.expires_at is not None
    assert (second.value, second.key, second.expires_at) == (None, None, None)
    assert second.topic == third.topic == "$queue/q"
    assert (third.value, third.key) == (b"", None)
    assert third.timestamp > 1_794_000_000_123


def test_rows_are_messages_like_any(path: str) -> None:
    """A consumer gets them, and settles them."""
    with tailrace.open(path) as store:
        queue = store.queue("q")
        consumer = queue.consumer("w")
        rows = [{"value": b"%d" % n, "key": b"%d" % (n % 3)} for n in range(20)]
        write(path, {"value": "binary", "key": "binary"}, rows, queue="q")
        got = consumer.receive(50, wait=10)
        assert [m.value for m in got] == [row["value"] for row in rows]
        assert {m.key for m in got} == {b"0", b"1", b"2"}
        consumer.ack(got)
        assert queue.pending("w") == []
        consumer.close()


def test_headers_of_every_kind(path: str) -> None:
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    some: list[dict[str, Any]] = [{"value": b"1", "headers": pairs}, {"value": b"2"}]
    rows = [*some, {"value": b"3", "headers": []}]
    write(path, {"value": "binary", "headers": "array"}, rows, queue="q")
    found = [list(message.headers.items()) for message in messages(path)]
    assert found == [[("a", b"1"), ("a", b"2")], [], []]


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ({"key": "binary"}, "no column 'value'"),
        ({"value": "bigint"}, "'value' is bigint; it has to be binary or string; cast it"),
        ({"value": "binary", "colour": "string"}, "'colour' is unknown"),
        ({"value": "binary", "key": "double"}, "'key' is double"),
        ({"value": "binary", "headers": "string"}, "'headers' is string"),
        ({"value": "binary", "timestamp": "string"}, "'timestamp' is string"),
    ],
)
def test_schemas_that_are_refused(path: str, kinds: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        writer(path, kinds, queue="q")


def test_what_cannot_be_written(path: str) -> None:
    kinds = {"value": "binary", "headers": "map"}
    with pytest.raises(ConfigError, match="has no 'none'; there are q"):
        writer(path, {"value": "binary"}, queue="none")
    with pytest.raises(ConfigError, match="name the queue"):
        writer(path, {"value": "binary"})
    with pytest.raises(ConfigError, match="not both"):
        writer(path, {"value": "binary"}, queue="q", topic="t")
    with pytest.raises(ConfigError, match="there is no store in"):
        writer(path + "x", {"value": "binary"}, queue="q")
    options = SinkOptions.parse({"path": path, "queue": "q"})
    with pytest.raises(ConfigError, match=r'^mode: .* mode\("append"\)'):
        BatchWriter(options, schema(value="binary"), overwrite=True)
    with pytest.raises(ConfigError, match=r'^outputMode: .* outputMode\("append"\)'):
        StreamWriter(options, schema(value="binary"), overwrite=True)
    with pytest.raises(ConfigError, match=r"'_mine'.*reserved"):
        write(path, kinds, [{"value": b"", "headers": [("_mine", b"")]}], queue="q")
    with pytest.raises(ConfigError, match="null"):
        write(path, kinds, [{"value": b"", "headers": [("mine", None)]}], queue="q")
    with tailrace.open(path) as store:
        store.get("q").configure(limits={"max_message_size": 10, "max_depth": 2})
    with pytest.raises(Full, match=r"11 bytes.*max_message_size"):
        write(path, {"value": "binary"}, [{"value": b"x" * 11}], queue="q")
    with pytest.raises(Full, match="max_depth"):
        write(path, {"value": "binary"}, [{"value": b"x"}] * 3, queue="q")
    assert values(path) == []


def test_executors_that_do_not_see_the_store(path: str, tmp_path: Path) -> None:
    """They have the path, and nothing or something else is there; or the driver does not see what
    they have written."""
    once = writer(path, VALUE, queue="q")
    task = replace(once.write(iter([batch(VALUE, rows("a", 2))])), host="elsewhere")
    shutil.rmtree(next(Path(path).rglob("staging")))
    with pytest.raises(ConfigError, match=r"path: .*\.seg cannot be seen on .* the same path"):
        once.commit([task])
    assert values(path) == []
    os.rename(path, tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"path: there is no store in .* same path"):
        once.write(iter([batch(VALUE, rows("a", 2))]))
    with tailrace.open(path) as store:
        store.queue("another")
    once._host = "elsewhere"
    with pytest.raises(ConfigError, match=r"path: .*segments cannot be seen on .* the same path"):
        once.write(iter([batch(VALUE, rows("a", 2))]))


def test_what_was_staged_is_removed(path: str) -> None:
    """On the machine where it was written: that is not a matter of what can be seen where."""
    once = writer(path, VALUE, queue="q")
    task = once.write(iter([batch(VALUE, rows("a", 2))]))
    shutil.rmtree(next(Path(path).rglob("staging")))
    with pytest.raises(TailraceError, match=r"\.seg was removed meanwhile"):
        once.commit([task])
    assert values(path) == []


def test_a_twin_is_given_up(path: str) -> None:
    """Another driver of the same transaction goes on, with what it has staged."""
    one, two = (writer(path, VALUE, queue="q", txnId="once") for _ in range(2))
    tasks = [each.write(iter([batch(VALUE, rows("a", 2))])) for each in (one, two)]
    two.abort(tasks[1:])
    assert len(staged(path)) == 1
    one.commit(tasks[:1])
    assert len(values(path)) == 2
    assert not staged(path)


def test_an_aborted_commit_leaves_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever name its files had by then."""
    with tailrace.open(path) as store:
        store.stream("s", segment_bytes=20_000)
    once = writer(path, VALUE, queue="s")
    tasks = [once.write(iter([batch(VALUE, rows("a", 1_000))])) for _ in range(2)]

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no")

    with monkeypatch.context() as patched:
        patched.setattr(Adoption, "store", fails)
        with pytest.raises(NotWritten):
            once.commit(tasks)
    assert any(each.suffix == ".placed" for each in staged(path))
    once.abort(tasks)
    assert (staged(path), values(path, "s")) == ([], [])


@pytest.mark.parametrize("when", ["before", "first", "made", "later"])
def test_a_queue_that_is_deleted_meanwhile(
    path: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task says so, and leaves nothing of it."""
    once = writer(path, VALUE, queue="q")

    def delete() -> None:
        with tailrace.open(path) as store:
            store.delete("q")

    def batches() -> Iterator[pa.RecordBatch]:
        if when == "first":
            delete()
        yield batch(VALUE, rows("a", 1))
        if when == "later":
            delete()

    if when == "before":
        delete()
    elif when == "made":
        make_dirs = OsFileSystem.make_dirs

        def late(self: OsFileSystem, folder: str) -> None:
            monkeypatch.undo()
            delete()
            make_dirs(self, folder)

        monkeypatch.setattr(OsFileSystem, "make_dirs", late)
    with pytest.raises(TailraceError, match=r"'q' of .* was deleted meanwhile"):
        once.write(batches())
    assert list((Path(path) / "queue" / "queues").iterdir()) == []


def test_a_twin_has_published_and_cleared_up(path: str) -> None:
    """Another driver of the same transaction was quicker: what was staged is gone."""
    one, two = (writer(path, VALUE, queue="q", txnId="once") for _ in range(2))
    tasks = [each.write(iter([batch(VALUE, rows("a", 2))])) for each in (one, two)]
    one.commit(tasks[:1])
    two.commit(tasks[1:])
    assert len(values(path)) == 2


@pytest.mark.parametrize("when", ["first", "later", "last", "pack"])
def test_a_twin_clears_up_meanwhile(path: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes the folder in which another driver of the same transaction is writing."""
    one, two = (writer(path, VALUE, queue="q", txnId="once") for _ in range(2))
    done = one.write(iter([batch(VALUE, rows("a", 2))]))

    def late(*given: Any) -> Any:
        monkeypatch.undo()
        one.commit([done])
        return pack_staged(*given)

    def batches() -> Iterator[pa.RecordBatch]:
        if when == "first":  # its folder is there, but no file
            yield batch(VALUE, [])
            one.commit([done])
        yield batch(VALUE, rows("a", 1))
        if when == "later":
            one.commit([done])
            yield batch(VALUE, rows("b", 1_000))
        elif when == "last":
            one.commit([done])

    tasks = [two.write(batches()), two.write(iter([batch(VALUE, rows("a", 1))]))]
    if when == "pack":
        monkeypatch.setattr(sink, "pack_staged", late)
    two.commit(tasks)
    assert len(values(path)) == 2
    assert not staged(path)


def test_what_was_staged_is_removed_at_the_last_moment(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By nobody who has written it."""
    once = writer(path, VALUE, queue="q")

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(VALUE, rows("a", 1))
        shutil.rmtree(next(Path(path).rglob("staging")))

    with pytest.raises(TailraceError, match="staging was removed meanwhile"):
        once.write(batches())
    tasks = [once.write(iter([batch(VALUE, rows("a", 1))])) for _ in range(2)]

    def late(*given: Any) -> Any:
        shutil.rmtree(next(Path(path).rglob("staging")))
        return pack_staged(*given)

    monkeypatch.setattr(sink, "pack_staged", late)
    with pytest.raises(TailraceError, match=r"\.seg was removed meanwhile"):
        once.commit(tasks)
    assert values(path) == []


@pytest.mark.parametrize("rows_before", [0, 1, 2_000])
def test_a_task_that_fails_leaves_nothing(path: str, rows_before: int) -> None:
    """Of its own: others of its job have staged theirs."""
    once = writer(path, VALUE, queue="q")
    other = once.write(iter([batch(VALUE, rows("a", 2))]))
    before = staged(path)
    seen: list[Path] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(VALUE, rows("b", rows_before))
        seen.extend(staged(path))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        once.write(batches())
    assert len(seen) - len(before) == {0: 0, 1: 1}.get(rows_before, len(seen) - 1)
    assert staged(path) == before
    once.abort([other])
    with pytest.raises(RuntimeError, match="no"):
        once.write(batches())
    assert list(next(Path(path).rglob("staging")).iterdir()) == []


def test_the_queues_own_lifetime(path: str) -> None:
    with tailrace.open(path) as store:
        store.get("q").configure(limits={"message_ttl": "1h"})
    write(path, {"value": "binary"}, [{"value": b"1"}], queue="q")
    kinds = {"value": "binary", "ttl": "double"}
    write(path, kinds, [{"value": b"2", "ttl": 0.0}, {"value": b"3"}], queue="q")
    has_end = [message.expires_at is not None for message in messages(path)]
    assert has_end == [True, False, True]


def test_rows_that_have_expired_before_they_are_published(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """That is told, if it is so of all rows of a queue: nobody gets any."""
    kinds = {"value": "binary", "queue": "string", "ttl": "double"}
    with tailrace.open(path) as store:
        for name in ("short", "long", "mixed"):
            store.queue(name)
        store.queue("own", limits={"message_ttl": "1ms"})
        store.queue("never")

    def row(queue: str, ttl: float | None) -> dict[str, Any]:
        return {"value": b"x", "queue": queue, "ttl": ttl}

    def said(*tasks: list[dict[str, Any]], **options: str) -> list[str]:
        caplog.clear()
        once = writer(path, kinds, **options)
        done = [once.write(iter([batch(kinds, []), batch(kinds, each)])) for each in tasks]
        time.sleep(0.02)
        for _ in range(2):  # the second time is told of nothing
            once.commit(done)
        return sorted(each.getMessage() for each in caplog.records if each.name == "tailrace")

    one, two = said(
        [row("short", 0.001), row("long", 600.0), row("mixed", 600.0), row("own", None)],
        [row("short", 0.002), row("mixed", 0.001), row("never", None)],
    )
    assert "all 1 rows written to the queue 'own' had expired before they were published" in one
    assert "all 2 rows written to the queue 'short' had expired before they were published" in two
    assert said([row("own", 600.0), row("own", 0.0)]) == said([row("own", 0.0)]) == []
    simple = writer(path, VALUE, queue="own")
    task = simple.write(iter([batch(VALUE, rows("a", 3))]))
    time.sleep(0.02)
    caplog.clear()
    simple.commit([task])
    assert "all 3 rows written to the queue 'own'" in caplog.text


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "decimal"])
def test_a_lifetime_of_any_kind_of_number(path: str, kind: str) -> None:
    """A fraction in SQL is a decimal."""
    seconds = Decimal("1.5") if kind == "decimal" else 2
    given: list[dict[str, Any]] = [{"value": b"", "ttl": each} for each in (seconds, 0, None)]
    before = time.time_ns() // 1_000_000
    write(path, {"value": "binary", "ttl": kind}, given, queue="q")
    first, *others = [message.expires_at for message in messages(path)]
    assert first is not None
    assert 0 <= first - before - seconds * 1000 < 60_000
    assert others == [None, None]
    with pytest.raises(ConfigError, match=r"'ttl': -\d"):
        write(path, {"value": "binary", "ttl": kind}, [{"value": b"", "ttl": -seconds}], queue="q")


def test_an_end_without_a_zone(path: str) -> None:
    moment = datetime(2126, 1, 31, 9, 26, 53)  # noqa: DTZ001  as in Spark, of the session's zone
    kinds = {"value": "binary", "expires_at": "timestamp_ntz"}
    write(path, kinds, [{"value": b"", "expires_at": moment}], queue="q")
    [message] = messages(path)
    assert message.expires_at == round(moment.replace(tzinfo=UTC).timestamp() * 1000)


# --- where rows go --------------------------------------------------------------------------


def test_routes(path: str) -> None:
    with tailrace.open(path) as store:
        store.queue("eu", topics=["news/eu/#"])
        store.queue("all", topics=["news/#"])
    kinds = {"value": "binary", "topic": "string"}
    rows = [
        {"value": b"1", "topic": "news/eu/a"},
        {"value": b"2", "topic": "news/us"},
        {"value": b"3", "topic": "news/eu/b"},
    ]
    write(path, kinds, rows)
    assert values(path, "eu") == [b"1", b"3"]
    assert [m.topic for m in messages(path, "all")] == ["news/eu/a", "news/us", "news/eu/b"]
    write(path, {"value": "binary"}, [{"value": b"4"}], topic="news/eu/c")
    assert values(path, "eu")[-1] == values(path, "all")[-1] == b"4"
    by_name = {"value": "binary", "queue": "string"}
    write(path, by_name, [{"value": b"5", "queue": "q"}, {"value": b"6", "queue": "eu"}])
    assert (values(path), values(path, "eu")[-1]) == ([b"5"], b"6")
    with pytest.raises(ConfigError, match="no queue is bound to the topic 'old'"):
        write(path, kinds, [{"value": b"", "topic": "old"}])
    with pytest.raises(ConfigError, match="no queue 'none'"):
        write(path, by_name, [{"value": b"", "queue": "none"}])
    with pytest.raises(ConfigError, match="'queue' is null"):
        write(path, by_name, [{"value": b"", "queue": None}])


@pytest.mark.parametrize("by", ["option", "column"])
def test_the_queue_that_is_named_gives_the_address(path: str, by: str) -> None:
    """Rows as they are read have the topic of the queue that they come from."""
    with tailrace.open(path) as store:
        store.stream("b")
    kinds = dict.fromkeys(("value", "topic", "routing_key"), "string")
    topics = ["$queue/a/eu/x", "$queue/b/eu/x", "news/eu/x", None]
    rows: list[dict[str, Any]] = [
        {"value": "", "topic": topic, "routing_key": key}
        for topic in topics
        for key in ("eu/x", "")
    ]
    if by == "option":
        write(path, kinds, rows, queue="b")
    else:
        write(path, {**kinds, "queue": "string"}, [{**row, "queue": "b"} for row in rows])
    assert [m.topic for m in messages(path, "b")] == ["$queue/b/eu/x", "$queue/b"] * 4
    assert [m.routing_key for m in messages(path, "b")] == ["eu/x", ""] * 4


def test_a_queue_without_room_keeps_the_others_from_it(path: str) -> None:
    """Whatever their names are: who writes again, without a txnId, doubles nothing. And nothing is
    dropped for rows that do not come."""
    with tailrace.open(path) as store:
        store.queue("drops", limits={"max_depth": 2, "on_full": "drop_oldest"}).publish_many(
            ["a", "b"]
        )
        store.queue("full", limits={"max_depth": 1})
        store.queue("zoo")
    names = ("drops", "full", "full", "q", "zoo")
    rows = [{"value": b"new", "queue": name} for name in names]
    for _ in range(2):
        with pytest.raises(Full, match="'full'"):
            write(path, {"value": "binary", "queue": "string"}, rows)
    assert [values(path, name) for name in ("full", "q", "zoo")] == [[], [], []]
    with tailrace.open(path) as store:
        assert [m.value for m in store.queue("drops").consumer("g").receive(9, wait=5)] == [
            b"a",
            b"b",
        ]


# --- once -----------------------------------------------------------------------------------

VALUE = {"value": "binary"}


def rows(name: str, count: int) -> list[dict[str, Any]]:
    return [{"value": f"{name}-{n}".encode().ljust(50, b".")} for n in range(count)]


@pytest.mark.parametrize("count", [3, 2_000])
def test_a_batch_that_is_replayed_ten_times(path: str, count: int) -> None:
    for _ in range(10):
        write(path, VALUE, rows("a", count), queue="q", txnId="once")
    assert values(path) == [row["value"] for row in rows("a", count)]
    write(path, VALUE, rows("b", 2), queue="q", txnId="another")
    write(path, VALUE, rows("b", 2), queue="q")
    assert len(values(path)) == count + 4
    assert staged(path) == []


def test_names_of_transactions(path: str) -> None:
    for name in ("a/b", "../../c", ".d", "e" * 150):
        for _ in range(2):
            write(path, VALUE, rows("a", 1), queue="q", txnId=name)
    assert len(values(path)) == 4
    with pytest.raises(ConfigError, match=r"^txnId: must not be empty"):
        writer(path, VALUE, queue="q", txnId="")
    with pytest.raises(TailraceError, match="transaction"):
        writer(path, VALUE, queue="q", txnId="a\0b")


def test_a_version_below_one_that_is_written(path: str) -> None:
    write(path, VALUE, rows("a", 1), queue="q", txnId="ver", txnVersion="5")
    said = "^txnVersion 3 of txnId 'ver' is below 5, which is already written: use a higher one$"
    with pytest.raises(NotWritten, match=said):
        write(path, VALUE, rows("a", 1), queue="q", txnId="ver", txnVersion="3")
    assert len(values(path)) == 1


def abandon(path: str) -> None:
    writer(path, VALUE, queue="q").write(iter([batch(VALUE, rows("a", 10))]))


def make_old(path: str) -> None:
    """What is staged."""
    for folder in Path(path).rglob("staging/*"):
        for each in (*folder.iterdir(), folder):
            os.utime(each, (0, 0))


def test_what_was_abandoned_is_swept(path: str) -> None:
    """By whoever looks after the queue, when it is a day old."""
    abandon(path)
    with tailrace.open(path, upkeep=False) as store:
        store.vacuum()
        assert staged(path)
        make_old(path)
        store.vacuum()
        assert not staged(path)


def test_a_store_that_only_spark_uses_is_swept(path: str) -> None:
    """By the next write."""
    abandon(path)
    make_old(path)
    abandon(path)
    assert len(staged(path)) == 2
    write(path, VALUE, rows("b", 3), queue="q")
    assert len(staged(path)) == 1, "which is of somebody who may still come"
    assert len(values(path)) == 3


def test_partitions_in_their_order(path: str) -> None:
    once = writer(path, VALUE, queue="q")
    tasks = [once.write(iter([batch(VALUE, rows(str(n), 300))])) for n in range(5)]
    for number, task in enumerate(tasks):
        task.partition = number
    random.Random(1).shuffle(tasks)
    once.commit([*tasks, None])
    assert values(path) == [row["value"] for n in range(5) for row in rows(str(n), 300)]


def test_uneven_partitions_leave_no_litter(path: str) -> None:
    """Large ones become segments, and small ones go with them."""
    with tailrace.open(path) as store:
        store.queue("u", **SMALL, compression="none")
    expected: list[bytes] = []
    for number in range(5):
        once = writer(path, VALUE, queue="u")
        counts = [100, 1, 100, 1, 1, 100, 1, 100]
        if number % 2:
            counts = [1, *counts]
        tasks = []
        for partition, count in enumerate(counts):
            some = rows(f"{number}-{partition}", count)
            expected += [row["value"] for row in some]
            tasks.append(once.write(iter([batch(VALUE, some)])))
            tasks[-1].partition = partition
        once.commit(tasks)
    assert values(path, "u") == expected
    segments = list(Path(path).rglob("u/segments/*.seg"))
    assert len(segments) <= 5 * 4
    assert min(each.stat().st_size for each in segments) > SMALL["segment_bytes"] // 4


def test_nothing_is_written_by_no_rows(path: str) -> None:
    once = writer(path, VALUE, queue="q")
    once.commit([once.write(iter([])), once.write(iter([batch(VALUE, [])]))])
    assert values(path) == []


def test_a_name_is_remembered_with_its_rows(path: str) -> None:
    for count in (0, 3, 5):
        write(path, VALUE, rows("a", count), queue="q", txnId="x")
    assert len(values(path)) == 3


def test_an_aborted_job_leaves_nothing(path: str) -> None:
    once = writer(path, VALUE, queue="q")
    task = once.write(iter([batch(VALUE, rows("a", 10))]))
    assert staged(path)
    once.abort([task, None, None])
    assert (staged(path), values(path)) == ([], [])
    once.write(iter([batch(VALUE, rows("a", 10))]))  # a task that nobody has told
    assert values(path) == []


def test_an_abort_after_the_commit_changes_nothing(path: str) -> None:
    once = writer(path, VALUE, queue="q")
    tasks = [once.write(iter([batch(VALUE, rows("a", 10))]))]
    once.commit(tasks)
    once.abort(tasks)
    assert len(values(path)) == 10


def test_a_task_that_goes_on_does_not_undo_a_commit(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes a file where the driver clears up."""
    once = writer(path, VALUE, queue="q")
    tasks = [once.write(iter([batch(VALUE, rows("a", 10))]))]
    remove_dir = OsFileSystem.remove_dir

    def late(self: OsFileSystem, folder: str) -> None:
        (Path(folder) / "late.seg").touch()
        remove_dir(self, folder)

    monkeypatch.setattr(OsFileSystem, "remove_dir", late)
    once.commit(tasks)
    assert "what was staged for 'q' cannot be removed now" in caplog.text
    once.abort(tasks)
    monkeypatch.undo()
    assert len(values(path)) == 10
    make_old(path)
    write(path, VALUE, rows("b", 1), queue="q")
    assert not staged(path)


@pytest.mark.parametrize("options", [{"txnId": "x"}, {"txnId": "x", "txnVersion": "3"}])
def test_a_stream_has_no_name_of_its_own(path: str, options: dict[str, str]) -> None:
    given = SinkOptions.parse({"path": path, "queue": "q", **options})
    with pytest.raises(ConfigError, match=r"txnId: the batches of a stream .* leave it out"):
        StreamWriter(given, schema(**VALUE), overwrite=False)


def test_a_full_queue_is_not_waited_for(path: str) -> None:
    with tailrace.open(path) as store:
        store.queue("f", limits={"max_depth": 2, "on_full": "block"}).publish_many([b"1", b"2"])
    with pytest.raises(Full):
        write(path, VALUE, rows("a", 1), queue="f")
    assert values(path, "f") == [b"1", b"2"]


def test_a_disk_that_is_too_full(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for one who publishes: refused when a task begins, and when it gets so full meanwhile. For
    the rest there is a path in the error."""
    large = [{"value": os.urandom(3 << 20)} for _ in range(10)]
    once = writer(path, VALUE, queue="q")
    asked = 0

    def space(full_at: int) -> Callable[..., Space]:
        def measure(*_: object) -> Space:
            nonlocal asked
            asked += 1
            return Space(100 << 30, (5 if asked >= full_at else 50) << 30)

        return measure

    with tailrace.open(path) as store:
        store.get("q").configure(segment_bytes="64MiB")
    for full_at in (1, 3):
        asked = 0
        with monkeypatch.context() as patched:
            patched.setattr(OsFileSystem, "space", space(full_at))
            with pytest.raises(
                Full, match=r"the disk of .*data.* is fuller than disk\.refuse_ratio"
            ):
                once.write(iter([batch(VALUE, large)]))
        assert asked == full_at
        assert staged(path) == []
    with monkeypatch.context() as patched:
        patched.setattr(staging, "write_all", fails(errno.ENOSPC))
        with pytest.raises(Full, match=rf"{path}.*: the disk of .* is full .* write again"):
            once.write(iter([batch(VALUE, large)]))
    assert staged(path) == []
    task = once.write(iter([batch(VALUE, large)]))
    with monkeypatch.context() as patched:
        patched.setattr(sink, "pack_staged", fails(errno.EDQUOT))
        with pytest.raises(Full, match=rf"{path}.*: the disk of .* is full .* write again"):
            once.commit([task])
        patched.setattr(sink, "pack_staged", fails(errno.EIO))
        with pytest.raises(OSError, match="no"):
            once.commit([task])
    assert values(path) == []
    once.commit([task])
    assert len(values(path)) == 10


def test_room_is_made_before_tasks_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what retention may delete, as for one who publishes; perhaps nobody else ever does."""
    with tailrace.open(path, upkeep=False) as store:
        stream = store.stream("much", segment_bytes=20_000, retention={"max_length_bytes": 40_000})
        for _ in range(40):
            stream.publish(os.urandom(5_000))

    def used() -> int:
        return sum(file.stat().st_size for file in Path(path).rglob("*.seg"))

    total = used() * 100 // 93

    def space(*_: object) -> Space:
        return Space(total, max(total - used(), 0))

    monkeypatch.setattr(OsFileSystem, "space", space)
    write(path, VALUE, rows("a", 3), queue="much")
    assert used() < total // 2
    with tailrace.open(path, upkeep=False) as store:
        assert [m.value for m in store.stream("much").read()][-3:] == [
            row["value"] for row in rows("a", 3)
        ]


def fails(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(code, "no")

    return fail


def test_batches_of_queries(path: str) -> None:
    """Each query counts by itself; an old batch, of somebody who was given up, is refused."""
    options = SinkOptions.parse({"path": path, "queue": "q"})
    sink = StreamWriter(options, schema(**VALUE), overwrite=False)
    expected = []
    for number in range(70):
        for query in ("one", "two"):
            transaction = Transaction(f"spark-{query}", number)
            for _ in range(2):
                task = sink._stage(iter([batch(VALUE, rows(query, 2))]), transaction)
                sink.commit([task], number)
            expected += [row["value"] for row in rows(query, 2)]
    assert values(path) == expected
    late = sink._stage(iter([batch(VALUE, rows("one", 2))]), Transaction("spark-one", 1))
    with pytest.raises(TailraceError, match="sequences must rise"):
        sink.commit([late], 1)
    assert values(path) == expected


def test_a_queue_that_was_made_anew(path: str) -> None:
    once = writer(path, VALUE, queue="q")
    task = once.write(iter([batch(VALUE, rows("a", 10))]))
    with tailrace.open(path) as store:
        store.delete("q")
        store.queue("q")
    with pytest.raises(TailraceError, match="made anew"):
        once.commit([task])
    assert values(path) == []


def test_others_publish_meanwhile(path: str) -> None:
    with tailrace.open(path) as store:
        queue = store.get("q")
        for number in range(20):
            queue.publish(b"%d" % number)
            count = 3 if number % 2 else 400
            write(path, VALUE, rows(str(number), count), queue="q", txnId=str(number))
            queue.publish_many([b"%d" % number] * 2)
        found = [message.value for message in queue.read()]
    expected: list[bytes] = []
    for number in range(20):
        expected.append(b"%d" % number)
        expected += [row["value"] for row in rows(str(number), 3 if number % 2 else 400)]
        expected += [b"%d" % number] * 2
    assert found == expected


# --- whoever dies ---------------------------------------------------------------------------


def dying_at(number: int) -> Callable[[], None]:
    """Patches what changes files such that the process ends at the n-th of those calls."""
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            os._exit(9)

    def patch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            count()
            return real(*args, **options)

        setattr(owner, name, counted)

    def arm() -> None:
        for name in ("rename", "unlink", "sync_dir", "make_dirs"):
            patch(OsFileSystem, name)
        for name in ("sync", "truncate"):
            patch(OsFile, name)

    return arm


def run_child(do: Callable[[], None], arm: Callable[[], None]) -> int:
    """In a forked process; how it ended."""
    pid = os.fork()
    if not pid:
        try:
            arm()
            do()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the parent sees the code
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [5, 1_500])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_kill_at_each_step(tmp_path: Path, count: int, flush: str) -> None:
    """Stage, intent, publish, record: then the job is run again, and each row is there once."""
    number, code = 0, 9
    while code == 9:
        number += 1
        path = str(tmp_path / str(number))
        with Store(path, flush=flush, upkeep=False) as store:
            store.queue("q", **SMALL).publish(b"first")

        def job(path: str = path) -> None:
            write(path, VALUE, rows("a", count), queue="q", txnId="once")

        code = run_child(job, dying_at(number))
        assert code in (0, 9)
        seen = values(path)
        assert len(seen) in (1, 1 + count), "all of it, or nothing"
        job()
        assert values(path) == [b"first", *(row["value"] for row in rows("a", count))]
    assert number > 15


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_between_the_queues_of_a_job(tmp_path: Path, step: int) -> None:
    """Each queue has all of its rows, or none; and all of them once, when the job is run again."""
    kinds = {"value": "binary", "queue": "string"}
    given = [{**row, "queue": "ab"[n % 2]} for n, row in enumerate(rows("r", 10))]
    number, code, halves = 0, 9, 0
    while code == 9:
        number += step
        path = str(tmp_path / str(number))
        with Store(path, upkeep=False) as store:
            for name in "ab":
                store.queue(name, **SMALL)

        def job(path: str = path) -> None:
            write(path, kinds, given, txnId="once")

        code = run_child(job, dying_at(number))
        assert code in (0, 9)
        seen = [len(values(path, name)) for name in "ab"]
        assert set(seen) <= {0, 5}
        halves += seen == [5, 0]
        for _ in range(2):
            job()
        for name in "ab":
            assert values(path, name) == [r["value"] for r in given if r["queue"] == name]
    assert halves > 0


# --- values that publishing would refuse --------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "column", "value", "message"),
    [
        ("string", "routing_key", "a/#", "routing_key.*wildcard"),
        ("string", "routing_key", "a/$ack", "routing_key.*verb"),
        ("string", "routing_key", "a\0b", "routing_key.*NUL"),
        ("string", "topic", "a/+", "the column 'topic': .*'a/\\+' has a wildcard"),
        ("string", "topic", "", "the column 'topic': a topic must not be empty"),
        ("bigint", "ttl", -5, "'ttl': -5 cannot be a number of seconds, from 0 on"),
        ("bigint", "ttl", 2**62, "'ttl'.* cannot be a number of seconds"),
        ("double", "ttl", float("nan"), "'ttl': nan cannot be"),
        ("double", "ttl", float("inf"), "'ttl': inf cannot be"),
        ("bigint", "expires_at", -5, "'expires_at': -5 cannot be"),
        ("bigint", "timestamp", 2**62, "'timestamp': 4611686018427387904 cannot be"),
        ("bigint", "timestamp", -(10**16), "'timestamp': -10000000000000000 cannot be"),
    ],
)
def test_values_that_are_refused(
    path: str, kind: str, column: str, value: Any, message: str
) -> None:
    """Before anything is to be seen."""
    where = {} if column == "topic" else {"queue": "q"}
    made = writer(path, {"value": "binary", column: kind}, **where)
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"1", b"2"]), column: pa.array([None, value], KINDS[kind][1])}
        if column != "topic"
        else {"value": pa.array([b"1"]), "topic": pa.array([value])}
    )
    with pytest.raises(TailraceError, match=message):
        made.write(iter([rows]))
    with tailrace.open(path) as store:
        assert len(store.get("q")) == 0


def test_a_topic_that_is_an_option(path: str) -> None:
    for topic, says in [("a/#", "wildcard"), ("", "must not be empty")]:
        with pytest.raises(ConfigError, match=rf"^topic: .*{says}"):
            writer(path, {"value": "binary"}, topic=topic)
    made = writer(path, {"value": "binary"}, topic="a/b")
    with pytest.raises(ConfigError, match=r"^topic: no queue is bound to the topic 'a/b'"):
        made.write(iter([pa.RecordBatch.from_pydict({"value": pa.array([b"1"])})]))


def test_rows_that_are_larger_than_the_usual_batch(path: str) -> None:
    """As `publish` takes them: up to what the queue takes, and not a byte more."""
    sizes = [10, 1 << 20, 3 << 20, 10, 10 << 20, 10]
    large = [{"value": os.urandom(size)} for size in sizes]
    write(path, VALUE, large, queue="q")
    assert values(path) == [row["value"] for row in large]
    with tailrace.open(path) as store:
        limits = {"max_message_size": "1MiB"}
        store.queue("narrow", max_batch_bytes="1MiB", limits=limits)
    with pytest.raises(Full, match=r"'narrow' takes: max_batch_bytes is 1,048,576"):
        write(path, VALUE, [{"value": bytes(1 << 20)}], queue="narrow")
    assert values(path, "narrow") == []


def test_only_large_rows_have_batches_of_their_own(path: str) -> None:
    """Who reads a small one reads no large one."""
    sizes = [1_000] * 3_000
    for row, size in {0: 2 << 20, 1_500: 1 << 20, 1_501: 3 << 20, 2_999: 4 << 20}.items():
        sizes[row] = size
    with tailrace.open(path) as store:
        store.stream("s", compression="none")
    given = [{"value": bytes(size)} for size in sizes]
    write(path, VALUE, given, queue="s")
    assert [len(value or b"") for value in values(path, "s")] == sizes
    found: list[tuple[int, int]] = []  # records and bytes of each batch
    for file in sorted(Path(path).rglob("s/segments/*.seg")):
        data = file.read_bytes()
        position = 0
        while position < len(data) and any(data[position : position + 4]):
            info = read_header(data, position)
            found.append((info.count, info.size))
            position += info.size
    assert sum(count for count, _ in found) == len(sizes)
    assert [count for count, size in found if size > 1 << 20] == [1] * 4
    usual = [count for count, size in found if size <= 1 << 20]
    assert len(usual) == 2 * 2  # what is between them, each more than a megabyte


def test_rows_that_are_all_large(path: str) -> None:
    sizes = [1 << 20, 2 << 20, 1 << 20]
    source = Source(batch(VALUE, [{"value": bytes(size)} for size in sizes]))
    assert plan_batches(source, 16 << 20) == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(TooLarge):
        plan_batches(source, 1 << 20)


def raw(*values: bytes | None) -> Any:
    """Strings of any bytes, as Spark has them."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_strings_that_are_not_utf8(path: str) -> None:
    """Values and keys are bytes, in the first row of a task as in any other."""
    given = [b"caf\xe9", b"ok", b"caf\xe9", b"\xff"]
    rows = pa.RecordBatch.from_pydict({"value": raw(*given), "key": raw(*reversed(given))})
    once = writer(path, {"value": "string", "key": "string"}, queue="q")
    once.commit([once.write(iter([rows]))])
    assert [(m.value, m.key) for m in messages(path)] == list(
        zip(given, reversed(given), strict=True)
    )


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("column", ["headers", "routing_key", "topic", "queue", "message_id"])
def test_text_that_is_not_utf8(path: str, column: str, row: int) -> None:
    """The column is named, whichever row it is."""
    texts = [b"q", b"q"]
    texts[row] = b"caf\xe9"
    given = raw(*texts)
    kind = "string"
    if column == "headers":
        kind = "map"
        lists: Any = pa.MapArray
        given = lists.from_arrays(pa.array([0, 1, 2], pa.int32()), given, pa.array([b"", b""]))
    where = {} if column in ("topic", "queue") else {"queue": "q"}
    once = writer(path, {"value": "binary", column: kind}, **where)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2"]), column: given})
    with pytest.raises(ConfigError, match=rf"^the column '{column}': b'caf\\xe9' is not UTF-8"):
        once.write(iter([rows]))
    assert not staged(path)


def test_names_of_columns_in_any_case(path: str) -> None:
    """As in Spark; one that is null throughout has no type."""
    fields = [("Value", t.StringType()), ("KEY", t.NullType()), ("TimestampType", t.LongType())]
    kinds = t.StructType([t.StructField(name, kind) for name, kind in fields])
    once = BatchWriter(SinkOptions.parse({"path": path, "queue": "q"}), kinds, overwrite=False)
    rows: dict[str, Any] = {
        "Value": pa.array(["x", None]),
        "KEY": pa.nulls(2),
        "TimestampType": pa.array([0, 0]),
    }
    once.commit([once.write(iter([pa.RecordBatch.from_pydict(rows)]))])
    assert [(m.value, m.key) for m in messages(path)] == [(b"x", None), (None, None)]
    for name, says in [("VALUE", "'Value' and 'VALUE' are the same"), ("Value", "is there twice")]:
        alike = t.StructType([*kinds.fields, t.StructField(name, t.StringType())])
        with pytest.raises(ConfigError, match=says):
            BatchWriter(SinkOptions.parse({"path": path, "queue": "q"}), alike, overwrite=False)


@pytest.mark.parametrize("name", [n for n in TAKES if n not in ("queue", "topic")])
def test_columns_that_are_null_by_their_type(path: str, name: str) -> None:
    fields = {"value": t.BinaryType(), name: t.NullType()}
    kinds = t.StructType([t.StructField(each, kind) for each, kind in fields.items()])
    once = BatchWriter(SinkOptions.parse({"path": path, "queue": "q"}), kinds, overwrite=False)
    rows: dict[str, Any] = {"value": pa.array([b"x", b"y"]), name: pa.nulls(2)}
    once.commit([once.write(iter([pa.RecordBatch.from_pydict(rows)]))])
    assert values(path) == ([None, None] if name == "value" else [b"x", b"y"])


@pytest.mark.parametrize("name", ["queue", "topic"])
def test_rows_that_do_not_say_where_they_go(path: str, name: str) -> None:
    fields = {"value": t.BinaryType(), name: t.NullType()}
    kinds = t.StructType([t.StructField(each, kind) for each, kind in fields.items()])
    once = BatchWriter(SinkOptions.parse({"path": path}), kinds, overwrite=False)
    rows: dict[str, Any] = {"value": pa.array([b"x"]), name: pa.nulls(1)}
    with pytest.raises(ConfigError, match=f"the column '{name}' is null in a row"):
        once.write(iter([pa.RecordBatch.from_pydict(rows)]))


def test_large_strings(path: str) -> None:
    """As Spark sends them if it is told to."""
    made = writer(path, {"value": "string", "routing_key": "string"}, queue="q")
    rows = pa.RecordBatch.from_pydict(
        {name: pa.array(["a"], pa.large_string()) for name in ("value", "routing_key")}
    )
    made.commit([made.write(iter([rows]))])
    with tailrace.open(path) as store:
        assert [(m.value, m.routing_key) for m in store.get("q").read()] == [(b"a", "a")]
