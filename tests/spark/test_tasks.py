"""What becomes of the tasks of a table: how they are cut, how they end, and what comes of those
that are run more than once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailrace import Store
from tailrace.log.writer import Writer
from tests.log.helpers import WAIT
from tests.project import ROOT
from tests.spark.conftest import session_environment
from tests.spark.support import fill, pa, rows, schema, splits

from tailrace.spark.options import SinkOptions  # isort: skip  (behind what skips without Spark)
from tailrace.spark.planning import Range, pack  # isort: skip
from tailrace.spark.sink import BatchWriter  # isort: skip
from tailrace.spark import workers  # isort: skip

SMALL, LARGE = 5, 1_500  # rows: they are copied, or become segments
PLAIN: dict[str, Any] = {"compression": "none", "segment_bytes": 20_000}
COUNTS = pytest.mark.parametrize("count", [SMALL, LARGE])


def writer(path: str, **options: str) -> BatchWriter:
    parsed = SinkOptions.parse({"path": path, "queue": "q", **options})
    return BatchWriter(parsed, schema("value"), overwrite=False)


def stage(once: BatchWriter, count: int) -> Any:
    """What a task does."""
    return once.write(iter([pa.RecordBatch.from_pydict({"value": values(count)})]))


def values(count: int) -> list[bytes]:
    return [b"%040d" % number for number in range(count)]


def write(path: str, count: int, **options: str) -> None:
    once = writer(path, **options)
    once.commit([stage(once, count)])


def found(path: str) -> list[bytes | None]:
    with Store(path, upkeep=False) as store:
        return [message.value for message in store.get("q").read()]


def staged(path: Path) -> list[Path]:
    return [each for each in path.rglob("staging/*/*") if each.is_file()]


# --- how they are cut -----------------------------------------------------------------------


@pytest.mark.parametrize("other", [("b", "1"), ("a", "2")], ids=["queue", "incarnation"])
def test_a_queue_that_ends_where_the_next_begins(other: tuple[str, str]) -> None:
    """Their offsets follow one another, and are of two logs."""
    ranges = [Range("a", "1", 0, 10, 5), Range("a", "1", 10, 20, 5), Range(*other, 20, 30, 7)]
    [split] = pack(iter(ranges), 1_000)
    assert split.ranges == (Range("a", "1", 0, 20, 10), ranges[2])


def test_rows_of_a_queue_that_ends_where_the_next_begins(tmp_path: Path) -> None:
    fill(tmp_path, "a", 5)
    fill(tmp_path, "b", 9)
    starts = '{"a": 0, "b": 5}'
    reader, parts = splits(tmp_path, "queue", "offset", subscribe="a,b", startingOffsets=starts)
    assert len(parts) == 1
    got = [(row["queue"], row["offset"]) for row in rows(reader.read(parts[0]))]
    assert got == [("a", n) for n in range(5)] + [("b", n) for n in range(5, 9)]


# --- how they end ---------------------------------------------------------------------------


@pytest.mark.usefixtures("kept_logs")
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the system has no such option")
def test_a_task_that_is_over_has_what_comes_next_confirmed_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(tmp_path, "q", 3)
    reader, [part] = splits(tmp_path, "value", queue="q")
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(workers, "_frozen", 2)  # this is no worker after all
    option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        ours.setsockopt(*option, 0)
        assert len(rows(reader.read(part))) == 3
        assert ours.getsockopt(*option)


# --- those that are run more than once ------------------------------------------------------


@COUNTS
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_replay_when_retention_has_deleted_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, count: int, is_killed: bool
) -> None:
    """The transaction is known for longer than what it wrote, also if the driver was killed before
    it noted that: then whoever deletes does."""
    path = str(tmp_path)
    with Store(path, flush=flush, upkeep=False) as store:
        store.stream("q", **PLAIN, retention={"max_length_messages": 1})
    with monkeypatch.context() as patch:
        if is_killed:
            patch.setattr(Writer, "store_producers", lambda _: None)
        write(path, count, txnId="once")
    with Store(path, upkeep=False) as store:
        stream = store.stream("q")
        for _ in range(8):
            stream.publish_many([b"x" * 100] * 60)
        store.vacuum()
        assert stream.log.start_offset >= count
        before = stream.log.start_offset, stream.log.end_offset
        write(path, count, txnId="once")  # by another handle
        assert (stream.log.start_offset, stream.log.end_offset) == before
    write(path, count, txnId="once")
    with Store(path, upkeep=False) as store:
        log = store.stream("q").log
        assert (log.start_offset, log.end_offset) == before
    assert not staged(tmp_path)


@COUNTS
def test_a_task_that_was_run_twice_counts_once(tmp_path: Path, count: int) -> None:
    """Of two attempts that have both come to their end Spark takes one, and tells nobody of the
    other: what that has staged goes with the transaction."""
    with Store(tmp_path, upkeep=False) as store:
        store.queue("q", **PLAIN)
    once = writer(str(tmp_path))
    first, second = stage(once, count), stage(once, count)
    assert first.pieces != second.pieces
    once.commit([second])
    assert found(str(tmp_path)) == values(count)
    assert not staged(tmp_path)


RETRIES = """
import os, sys
from pyspark import TaskContext
from tailrace.spark import local_session
from tests.spark.conftest import session_config
from pathlib import Path

path, scratch = sys.argv[1:]
spark = local_session("local[2,4]", session_config(Path(scratch)))

def fail_at_first(batches):
    context = TaskContext.get()
    fails = context.attemptNumber() < context.partitionId()  # 0 to 3 times
    for number, batch in enumerate(batches):
        yield batch
        if fails and number == 1:
            Path(scratch, f"{context.partitionId()}-{context.attemptNumber()}.failed").touch()
            raise ValueError("on purpose")

spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
frame = spark.range(0, 8000, 1, 4).selectExpr("string(id) AS value")
frame = frame.mapInArrow(fail_at_first, "value string")
frame.write.format("tailrace").mode("append").save(path, queue="q")
spark.stop()
"""


@pytest.mark.long
@pytest.mark.usefixtures("pyspark")
def test_tasks_that_fail_and_are_tried_again(tmp_path: Path) -> None:
    """In a session of its own: `local[2]` tries each task once."""
    data = tmp_path / "data"
    with Store(data, upkeep=False) as store:
        store.queue("q", **PLAIN)
    environment = {**os.environ, **session_environment()}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-c", RETRIES, str(data), str(tmp_path / "scratch")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    failed = sorted(each.stem for each in (tmp_path / "scratch").glob("*.failed"))
    assert failed == ["1-0", "2-0", "2-1", "3-0", "3-1", "3-2"]
    assert found(str(data)) == [b"%d" % number for number in range(8000)]
    assert not staged(data)


# --- a queue that goes when nobody uses it --------------------------------------------------

# Consumes what comes to an ephemeral queue, so many messages for each line of its input.
CONSUMER = """
import sys, tailrace

with tailrace.open(sys.argv[1]) as store:
    store.publish("$queue/q/a", b"first")
    with store.get("q").consumer("g") as consumer:
        for line in iter(sys.stdin.readline, ""):
            left = int(line)
            while left:
                messages = consumer.receive(left, wait=30)
                assert messages
                consumer.ack(messages)
                left -= len(messages)
            print("got", flush=True)
"""


@contextmanager
def consuming(path: str) -> Iterator[Any]:
    command = [sys.executable, "-c", CONSUMER, path]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process
            process.communicate(timeout=WAIT)
        finally:
            process.kill()
    assert process.returncode == 0


def test_an_ephemeral_queue_that_another_process_uses(tmp_path: Path) -> None:
    path, total = str(tmp_path), 1
    with consuming(path) as process:

        def gets(count: int) -> None:
            print(count, file=process.stdin, flush=True)
            assert process.stdout.readline() == "got\n"

        gets(1)
        for count in (SMALL, LARGE):
            write(path, count)
            gets(count)
            total += count
            with Store(path, upkeep=False) as store:
                assert store.get("q").settings.ephemeral
                assert store.get("q").log.end_offset == total
    assert not staged(tmp_path)
