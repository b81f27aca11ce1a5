"""Streaming queries: where they are, how far a trigger goes, and what becomes of them when queues
come, go, and lose their oldest messages."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, InvalidName, TailraceError
from tests.queue.fluxmq_store import write_queue
from tests.spark.support import T0, fill, open_store, rows, said, schema, source

LIMITED = pytest.mark.spark("4.2")  # from which on a trigger has a limit


def stream_reader(path: Path, **options: Any) -> Any:
    """Of a query, as it arrives in the process that plans for it."""
    reader = source(path, **options).streamReader(schema("queue", "offset"))
    return pickle.loads(pickle.dumps(reader))


def limit(most: int) -> Any:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    return ReadMaxRows(most)


def positions(offset: dict[str, list[Any]]) -> dict[str, int]:
    """Without the incarnations."""
    return {name: position for name, (position, _) in offset.items()}


def batch(reader: Any, start: Any, end: Any) -> list[tuple[str, int]]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    found = rows(each for part in parts for each in reader.read(part))
    return [(row["queue"], row["offset"]) for row in found]


class Query:
    """A query from queues to a list, with a checkpoint: run it, and run it again."""

    def __init__(self, spark: Any, path: Path, checkpoint: Path, **options: Any) -> None:
        self._spark = spark
        self._path = path
        self.checkpoint = checkpoint
        self._options = options
        self.progress: list[dict[str, Any]] = []

    def run(self, **more: Any) -> list[int]:
        """Up to what is there now; how many rows each batch had."""
        reader = self._spark.readStream.format("tailrace").option("path", str(self._path))
        df = reader.options(**{**self._options, **more}).schema("queue string, offset long").load()
        writer = df.writeStream.format("noop").option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return [each["numInputRows"] for each in self.progress if each["numInputRows"]]

    def committed(self) -> list[dict[str, int]]:
        """What the checkpoint says of each batch."""
        folder = self.checkpoint / "offsets"
        files = sorted((f for f in folder.iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        return [positions(json.loads(f.read_text().splitlines()[-1])) for f in files]


# --- with Spark -----------------------------------------------------------------------------


@LIMITED
def test_a_query_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "s", 20)
    options = {"queue": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"}
    query = Query(spark, data, tmp_path / "checkpoint", **options)
    assert query.run() == [8, 8, 4]
    assert query.committed() == [{"s": 8}, {"s": 16}, {"s": 20}]
    assert query.progress[-1]["sources"][0]["endOffset"]["s"][0] == 20
    fill(data, "s", 3)
    assert query.run() == [3]
    assert query.committed()[-1] == {"s": 23}
    assert query.run() == []


@LIMITED
def test_queues_get_their_shares_and_may_come_later(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "in-a", 30)
    fill(data, "in-b", 10)
    fill(data, "other", 5)
    options = {"subscribePattern": "in-.*", "startingOffsets": "earliest"}
    query = Query(spark, data, tmp_path / "checkpoint", **options, maxOffsetsPerTrigger="20")
    assert query.run() == [20, 20]
    assert query.committed() == [{"in-a": 15, "in-b": 5}, {"in-a": 30, "in-b": 10}]
    fill(data, "in-c", 4)
    assert query.run() == [4]
    assert query.committed()[-1] == {"in-a": 30, "in-b": 10, "in-c": 4}


def test_a_recreated_queue_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    data = tmp_path / "data"
    fill(data, "s", 5)
    query = Query(spark, data, tmp_path / "checkpoint", queue="s", startingOffsets="earliest")
    assert query.run() == [5]
    with open_store(data) as store:
        store.delete("s")
    fill(data, "s", 9)
    for _ in range(2):  # and it stays so
        with pytest.raises(StreamingQueryException) as caught:
            query.run()
        assert "deleted and made anew" in str(caught.value)
        assert "a streaming query needs a new checkpoint" in str(caught.value)


def test_a_store_of_fluxmqs_is_opened_for_writing_later(spark: Any, tmp_path: Path) -> None:
    """Which gives its queues their incarnations: the query goes on, and knows them from then on."""
    from pyspark.errors import StreamingQueryException

    data = tmp_path / "data"
    write_queue(data / "queue", "s", [b"a", b"b"], Type="stream")
    query = Query(spark, data, tmp_path / "checkpoint", queue="s", startingOffsets="earliest")
    assert query.run() == [2]
    fill(data, "s", 3)
    assert query.run() == [3]
    assert query.run() == []
    with open_store(data) as store:
        store.delete("s")
    fill(data, "s", 9)
    with pytest.raises(StreamingQueryException, match="deleted and made anew"):
        query.run()


def test_retention_passes_a_query(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    data = tmp_path / "data"
    fill(data, "s", 10)
    query = Query(spark, data, tmp_path / "checkpoint", queue="s", startingOffsets="earliest")
    assert query.run() == [10]
    fill(data, "s", 20)
    with open_store(data) as store:
        store.get("s").log.truncate_before(18)
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    assert "offset 10 is not in the log; it has offsets 18 to 29" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    assert query.run(failOnDataLoss="false") == [12]
    assert query.committed()[-1] == {"s": 30}


@LIMITED
def test_progress_of_a_group(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "s", 20)
    options = {"queue": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"}
    query = Query(spark, data, tmp_path / "checkpoint", **options, group="spark")
    assert query.run() == [8, 8, 4]
    assert progress(data) == [("spark", 20, 0)]
    with open_store(data) as store:
        store.stream("s").delete_group("spark")
    assert query.run() == []  # it says anew how far it is
    assert progress(data) == [("spark", 20, 0)]


@LIMITED
def test_progress_of_a_query_that_goes_on(spark: Any, tmp_path: Path) -> None:
    """Also when nothing comes any more."""
    data = tmp_path / "data"
    fill(data, "s", 5)
    reader = spark.readStream.format("tailrace").option("startingOffsets", "earliest")
    df = reader.load(str(data), queue="s", group="g")
    writer = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        wait_for(lambda: progress(data) == [("g", 5, 0)])
        fill(data, "s", 3)
        wait_for(lambda: progress(data) == [("g", 8, 0)])
    finally:
        query.stop()


@LIMITED
def test_a_batch_that_fails_is_no_progress(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    data = tmp_path / "data"
    fill(data, "s", 5)

    def fails(_df: Any, batch: int) -> None:
        if batch:
            raise RuntimeError("no")

    options = {"queue": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    for _ in range(2):  # it is done again first of all
        df = spark.readStream.format("tailrace").load(str(data), **options, group="g")
        writer = df.writeStream.foreachBatch(fails)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        assert progress(data) == [("g", 3, 2)]


def progress(path: Path) -> list[tuple[str, int, int]]:
    with open_store(path) as store:
        return [(group.id, group.committed, group.lag) for group in store.stream("s").groups()]


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_query_of_any_version(spark: Any, tmp_path: Path) -> None:
    """Where there are no limits they are passed over, and everything is there all the same."""
    data = tmp_path / "data"
    fill(data, "s", 20)
    options = {"queue": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    query = Query(spark, data, tmp_path / "checkpoint", **options)
    assert sum(query.run()) == 20
    fill(data, "s", 3)
    assert query.run() == [3]
    assert query.committed()[-1] == {"s": 23}


def test_wrong_options_are_said_at_the_start(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    fill(tmp_path / "data", "s", 1)
    query = Query(spark, tmp_path / "data", tmp_path / "checkpoint", queue="s")
    with pytest.raises(StreamingQueryException) as caught:
        query.run(endingOffsets="latest")
    assert said(caught.value) == "endingOffsets: a stream has no end; leave it out"


# --- how far a trigger goes -----------------------------------------------------------------


def test_a_query_begins_with_what_comes(tmp_path: Path) -> None:
    fill(tmp_path, "s", 20)
    for options, expected in [
        ({}, 20),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"s": 7}'}, 7),
        ({"startingTimestamp": str(T0 + 5000)}, 5),
        ({"startingTimestamp": str(T0 + 5000), "startingOffsets": '{"s": 7}'}, 7),
        ({"startingTimestamp": str(T0 + 5000), "startingOffsets": '{"s": 3}'}, 5),
    ]:
        reader = stream_reader(tmp_path, queue="s", **options)
        assert positions(reader.initialOffset()) == {"s": expected}


@LIMITED
def test_a_queue_that_nobody_has_used(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.stream("s")
    reader = stream_reader(tmp_path, queue="s")
    start = reader.initialOffset()
    assert positions(start) == {"s": 0}
    assert reader.latestOffset(start, limit(5)) == start
    fill(tmp_path, "s", 3)
    end = reader.latestOffset(start, limit(5))
    assert batch(reader, start, end) == [("s", 0), ("s", 1), ("s", 2)]


@LIMITED
def test_many_queues_all_come_to_their_end(tmp_path: Path) -> None:
    sizes = {"a": 50, "b": 1, "c": 13, "d": 0}
    for name, size in sizes.items():
        fill(tmp_path, name, size)
    reader = stream_reader(tmp_path, subscribe="a,b,c,d", startingOffsets="earliest")
    start, seen, triggers = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(start, limit(10))) != start:
        found = batch(reader, start, end)
        assert 0 < len(found) <= 10 + len(sizes) - 1  # each share is rounded up
        assert batch(reader, start, end) == found  # a batch that is run again is the same
        seen += found
        start, triggers = end, triggers + 1
    assert sorted(seen) == sorted((name, n) for name, size in sizes.items() for n in range(size))
    assert positions(start) == sizes
    assert 5 <= triggers <= 7


@LIMITED
def test_without_a_limit_a_trigger_is_still_bounded(tmp_path: Path) -> None:
    fill(tmp_path, "s", 1)
    assert stream_reader(tmp_path, queue="s").getDefaultReadLimit() == limit(5_000_000)
    reader = stream_reader(tmp_path, queue="s", maxOffsetsPerTrigger="3")
    assert reader.getDefaultReadLimit() == limit(3)


def test_spark_without_limits_asks_for_the_end(tmp_path: Path) -> None:
    """As versions before 4.2 do."""
    fill(tmp_path, "s", 20)
    reader = stream_reader(tmp_path, queue="s", maxOffsetsPerTrigger="3")
    assert positions(reader.latestOffset()) == {"s": 20}


@LIMITED
def test_available_now_is_what_there_was(tmp_path: Path) -> None:
    fill(tmp_path, "s", 10)
    reader = stream_reader(tmp_path, subscribePattern=".*", startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(tmp_path, "s", 10)
    fill(tmp_path, "t", 1)
    end = reader.latestOffset(start, limit(100))
    assert positions(end) == {"s": 10}
    assert reader.latestOffset(end, limit(100)) == end
    assert positions(reader.reportLatestOffset()) == {"s": 20, "t": 1}


@LIMITED
def test_a_log_that_is_older_than_the_query_is_refused(tmp_path: Path) -> None:
    """As one of a backup is: what comes in place of the messages that were read would be skipped
    until there are more of them."""
    fill(tmp_path, "s", 5)
    reader = stream_reader(tmp_path, queue="s")
    [(_, incarnation)] = reader.initialOffset().values()
    for known in (incarnation, ""):
        with pytest.raises(TailraceError, match=r"'s' ends at 5 .* before offset 9 .*new check"):
            reader.latestOffset({"s": [9, known]}, limit(5))
    with pytest.raises(TailraceError, match="before offset 9"):  # before 4.2 nobody asks for limits
        reader.partitions({"s": [9, incarnation]}, reader.latestOffset())
    reader = stream_reader(tmp_path, queue="s", failOnDataLoss="false")
    end = reader.latestOffset({"s": [9, incarnation]}, limit(5))
    assert end == {"s": [5, incarnation]}  # from there on it reads all that comes
    assert batch(reader, {"s": [9, incarnation]}, end) == []


def test_a_batch_whose_rows_are_gone_is_refused(tmp_path: Path) -> None:
    """It is run again after a crash; with fewer rows it would be another one."""
    fill(tmp_path, "s", 20)
    reader = stream_reader(tmp_path, queue="s")
    [(_, incarnation)] = reader.latestOffset().values()
    start, end = {"s": [10, incarnation]}, {"s": [30, incarnation]}
    with pytest.raises(TailraceError, match=r"'s' ends at 20 .* before offset 30"):
        reader.partitions(start, end)
    reader = stream_reader(tmp_path, queue="s", failOnDataLoss="false")
    assert batch(reader, start, end) == [("s", offset) for offset in range(10, 20)]


# --- queues that come and go ----------------------------------------------------------------


@LIMITED
def test_a_queue_that_was_made_since_may_have_lost_its_oldest(tmp_path: Path) -> None:
    """That was no loss of the query's: it has never seen it."""
    fill(tmp_path, "a", 2)
    reader = stream_reader(tmp_path, subscribePattern=".*", startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), limit(10))
    fill(tmp_path, "b", 30)
    with open_store(tmp_path) as store:
        store.get("b").log.truncate_before(20)
    seen = []
    while (end := reader.latestOffset(start, limit(4))) != start:
        seen += batch(reader, start, end)
        start = end
    assert seen == [("b", n) for n in range(20, 30)]


@LIMITED
def test_a_deleted_queue_is_loss(tmp_path: Path) -> None:
    for name in "ab":
        fill(tmp_path, name, 2)
    options = {"subscribePattern": ".*", "startingOffsets": "earliest"}
    reader = stream_reader(tmp_path, **options)
    start = reader.latestOffset(reader.initialOffset(), limit(10))
    with open_store(tmp_path) as store:
        store.delete("a")
    assert reader.latestOffset(start, limit(10)) == start
    fill(tmp_path, "b", 1)
    end = reader.latestOffset(start, limit(10))
    with pytest.raises(TailraceError, match=r"'a' .* was deleted meanwhile"):
        batch(reader, start, end)
    reader = stream_reader(tmp_path, **options, failOnDataLoss="false")
    assert batch(reader, start, end) == [("b", 2)]  # what was planned before
    assert positions(reader.latestOffset(start, limit(10))) == {"b": 3}


@LIMITED
def test_a_queue_that_is_not_read_any_more_may_be_deleted(tmp_path: Path) -> None:
    for name in "ab":
        fill(tmp_path, name, 2)
    both = stream_reader(tmp_path, subscribe="a,b", startingOffsets="earliest")
    start = both.latestOffset(both.initialOffset(), limit(10))
    with open_store(tmp_path) as store:
        store.delete("a")
    fill(tmp_path, "b", 1)
    only = stream_reader(tmp_path, subscribe="b")
    end = only.latestOffset(start, limit(10))
    assert positions(end) == {"b": 3}
    assert batch(only, start, end) == [("b", 2)]
    assert batch(only, {}, start) == [("b", 0), ("b", 1)]


@LIMITED
def test_a_recreated_queue_is_refused_however_long_it_is(tmp_path: Path) -> None:
    fill(tmp_path, "s", 5)
    reader = stream_reader(tmp_path, queue="s", startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), limit(10))
    for count in (0, 5, 9):
        with open_store(tmp_path) as store:
            store.delete("s")
        fill(tmp_path, "s", count)
        end = reader.latestOffset(start, limit(10))
        assert end != start  # so Spark asks what is in between
        with pytest.raises(TailraceError, match="deleted and made anew"):
            reader.partitions(start, end)


@LIMITED
def test_an_incarnation_that_is_not_known_yet_is_learned(tmp_path: Path) -> None:
    """Also if no message has come since; and a batch that is run again may begin without it."""
    write_queue(tmp_path / "queue", "s", [b"a", b"b"])
    reader = stream_reader(tmp_path, queue="s", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit(10))
    assert (start, end) == ({"s": [0, ""]}, {"s": [2, ""]})
    with open_store(tmp_path) as store:
        incarnation = store.get("s").settings.incarnation
    assert batch(reader, start, end) == [("s", 0), ("s", 1)]
    learned = reader.latestOffset(end, limit(10))
    assert learned == {"s": [2, incarnation]}
    assert batch(reader, end, learned) == []
    with open_store(tmp_path) as store:
        store.delete("s")
    fill(tmp_path, "s", 5)
    with pytest.raises(TailraceError, match="deleted and made anew"):
        reader.partitions(learned, reader.latestOffset(learned, limit(10)))


# --- group ----------------------------------------------------------------------------------


def test_a_group_of_a_work_queue_is_refused_at_the_start(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.queue("work").publish(b"")
        store.stream("s").publish(b"")
    reader = stream_reader(tmp_path, subscribe="s,work", group="g")
    for ask in (reader.initialOffset, reader.latestOffset, reader.prepareForTriggerAvailableNow):
        with pytest.raises(ConfigError, match="group: 'work' is a work queue"):
            ask()
    with pytest.raises(InvalidName, match="group must not be empty"):
        stream_reader(tmp_path, subscribe="s", group="")


@LIMITED
def test_progress_is_of_the_queue_that_was_read(tmp_path: Path) -> None:
    for name in "ab":
        fill(tmp_path, name, 5)
    options = {"subscribePattern": ".*", "startingOffsets": "earliest", "group": "g"}
    reader = stream_reader(tmp_path, **options)
    end = reader.latestOffset(reader.initialOffset(), limit(4))
    reader.commit(end)
    with open_store(tmp_path) as store:
        assert [store.stream(name).groups()[0].committed for name in "ab"] == [2, 2]
        assert [store.stream(name).groups()[0].lag for name in "ab"] == [3, 3]
        store.delete("a")
        store.stream("a")
    stream_reader(tmp_path, **options).commit(end)
    with open_store(tmp_path) as store:
        assert store.stream("a").groups() == []
        store.delete("a")
    stream_reader(tmp_path, **options).commit(end)


@LIMITED
def test_what_spark_asks_tells_how_far_it_is(tmp_path: Path) -> None:
    """Where a query begins is no progress."""
    fill(tmp_path, "s", 5)
    reader = stream_reader(tmp_path, queue="s", startingOffsets="earliest", group="g")
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit(3))
    assert progress(tmp_path) == []
    reader.latestOffset(end, limit(3))
    assert progress(tmp_path) == [("g", 3, 2)]
    with open_store(tmp_path) as store:
        store.stream("s").group("g").seek(1)
    reader.latestOffset(end, limit(3))  # nothing is new: it is not written at every look
    assert progress(tmp_path) == [("g", 1, 4)]
    again = stream_reader(tmp_path, queue="s", group="g")
    again.latestOffset(end, limit(3))  # with a checkpoint
    assert progress(tmp_path) == [("g", 3, 2)]


@LIMITED
def test_progress_in_a_queue_of_fluxmqs(tmp_path: Path) -> None:
    """To note it is what gives the queue its incarnation."""
    write_queue(tmp_path / "queue", "s", [b"a", b"b", b"c"], Type="stream")
    reader = stream_reader(tmp_path, queue="s", startingOffsets="earliest", group="g")
    end = reader.latestOffset(reader.initialOffset(), limit(2))
    reader.commit(end)
    with open_store(tmp_path) as store:
        assert [group.committed for group in store.stream("s").groups()] == [2]
    assert batch(reader, end, reader.latestOffset(end, limit(2))) == [("s", 2)]


@LIMITED
def test_offsets_are_exact(tmp_path: Path) -> None:
    """What is between two offsets does not depend on what has come since."""
    fill(tmp_path, "s", 30)
    reader = stream_reader(tmp_path, queue="s", startingOffsets="earliest", splitBytes="500")
    start = reader.initialOffset()
    offset = json.loads(json.dumps(reader.latestOffset(start, limit(17))))
    before = batch(reader, start, offset)
    fill(tmp_path, "s", 30)
    assert batch(reader, start, offset) == before == [("s", n) for n in range(17)]
