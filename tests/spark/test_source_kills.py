"""A streaming query that is killed at any moment between plan and commit goes on with the same
batches: nothing twice, nothing missing, while others publish and retention follows it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT
from tests.spark.conftest import session_environment
from tests.spark.support import fill, open_store

KILLS = 3
WAIT = 120.0  # for a session to start and to do something, on any machine


TASK = pytest.param("task", marks=pytest.mark.long)


@pytest.mark.parametrize("moment", [TASK, "before commit", "after commit"])
def test_a_process_is_killed_between_plan_and_commit(
    spark: Any, tmp_path: Path, moment: str
) -> None:
    """One kill, in a JVM that goes on; the query is started anew."""
    from pyspark.errors import StreamingQueryException

    data, killed = tmp_path / "data", tmp_path / "killed"
    fill(data, "from", 20)
    fill(data, "to", 0)
    spark.dataSource.register(dying_source(moment, str(killed)))

    def run() -> None:
        reader = spark.readStream.format("tailrace").option("path", str(data))
        frame = reader.option("queue", "from").option("startingOffsets", "earliest").load()
        writer = frame.select("key", "value").writeStream.format(f"dying {moment}")
        writer = writer.option("path", str(data)).option("queue", "to")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException):
        run()
    assert killed.exists()
    assert plans(tmp_path / "checkpoint") == 1
    assert copied(data) == (20 if moment == "after commit" else 0)
    fill(data, "from", 5)  # which is not in the batch that was planned
    for _ in range(2):  # before 4.2 a run is one batch
        run()
    assert plans(tmp_path / "checkpoint") == 2
    with open_store(data) as store:
        found = [message.value for message in store.stream("to").read()]
    assert found == [b"from %d" % number for number in range(25)]


def dying_source(moment: str, note: str) -> Any:
    """The source, but for a process that is killed once, at that moment. Made here, such that it
    travels by value: those who run it cannot import tests."""
    from tailrace.spark.options import SinkOptions
    from tailrace.spark.sink import StreamWriter
    from tailrace.spark.source import TailraceSource

    def die(where: str) -> None:
        if where == moment and not os.path.exists(note):
            with open(note, "w"):
                os.kill(os.getpid(), signal.SIGKILL)

    class DyingWriter(StreamWriter):
        def write(self, iterator: Any) -> Any:
            staged = super().write(iterator)
            die("task")
            return staged

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
            die("before commit")
            super().commit(messages, batchId)
            die("after commit")

    class DyingSource(TailraceSource):
        @classmethod
        def name(cls) -> str:
            return f"dying {moment}"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return DyingWriter(SinkOptions.parse(dict(self.options)), schema, overwrite=overwrite)

    return DyingSource


def copied(data: Path) -> int:
    with open_store(data) as store:
        return store.stream("to").log.end_offset


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("pyspark")
def test_killed_queries_copy_each_row_once(tmp_path: Path) -> None:
    """While somebody publishes, and deletes what the query is done with."""
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    rng = random.Random(7)
    fill(data, "from", 150)
    fill(data, "to", 0)
    with Others(data) as others:
        for kill in range(KILLS):
            process = start(data, checkpoint, tmp_path / f"scratch{kill}")
            try:
                aim = plans(checkpoint) + rng.randint(2, 4)
                while plans(checkpoint) < aim and process.poll() is None:
                    time.sleep(0.005)
                assert process.poll() is None, "it was to be killed before it ends"
                time.sleep(rng.uniform(0, 0.4))  # a batch takes about as long
            finally:
                stop(process)
        published = others.published  # what the last run finds, at least
        process = start(data, checkpoint, tmp_path / "scratch")
        try:
            assert process.wait(WAIT * 2) == 0
        finally:
            stop(process)
    assert others.error is None
    assert others.deletions > KILLS
    with open_store(data) as store:
        found = [message.value for message in store.stream("to").read()]
        keys = [message.key for message in store.stream("to").read()]
    assert len(found) >= published > 150
    assert found == [b"from %d" % number for number in range(len(found))]
    assert keys == [b"k%d" % (number % 3) for number in range(len(found))]


class Others(threading.Thread):
    """Publishes some messages, and deletes what the query has told that it is done with, again and
    again until it is left."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self._data = data
        self._is_over = threading.Event()
        self.published = 0  # so far, by anybody
        self.deletions = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        start = 0
        try:
            while not self._is_over.wait(0.3):
                fill(self._data, "from", 1)
                retain(self._data)
                with open_store(self._data) as store:
                    log = store.stream("from").log
                    self.published = log.end_offset
                    self.deletions += log.start_offset > start
                    start = log.start_offset
        except BaseException as error:  # noqa: BLE001  the test tells
            self.error = error

    def __enter__(self) -> Others:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


def start(*folders: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **session_environment()}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-m", "tests.spark.copier", *map(str, folders)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: the group is its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT)


def plans(checkpoint: Path) -> int:
    """How many batches the query has planned."""
    return sum(1 for file in (checkpoint / "offsets").glob("[0-9]*"))


def retain(data: Path) -> None:
    """Delete what the query has told that it is done with."""
    with open_store(data) as store:
        stream = store.stream("from")
        for group in stream.groups():
            stream.log.truncate_before(group.committed)
        stream.log.vacuum()
