"""Spark writes to a queue while others publish to it, from threads and from another process: each
message is there once, and each batch of Spark's is together, in its order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tailrace import Store
from tests.spark.conftest import session_environment
from tests.spark.support import fill, open_store

THREADS = 3
COPIED = 90
PER_TRIGGER = 40

# Publishes, now one and now some, until it is told to stop; then says how many.
OTHER = """
import select, sys, tailrace
count = 0
with tailrace.open(sys.argv[1]) as store:
    queue = store.get("q")
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        values = [f"other {count + n}" for n in range(1 + count % 4)]
        queue.publish_many(values).wait()
        count += len(values)
print(count)
"""


class Publisher(threading.Thread):
    """Publishes, now one and now some, through a store that it shares."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(name=name)
        self._queue = store.get("q")
        self._is_over = threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._is_over.wait(0.002):
                values = [f"{self.name} {self.count + n}" for n in range(1 + self.count % 4)]
                self._queue.publish_many(values).wait()
                self.count += len(values)
        except BaseException as error:  # noqa: BLE001  the test tells
            self.error = error

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.sample(2)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_everybody_publishes_at_once(spark: Any, tmp_path: Path, flush: str) -> None:
    data = str(tmp_path / "data")
    fill(data, "from", COPIED)
    with Store(data, flush=flush) as store:
        store.queue("q", segment_bytes=20_000)
        threads = [Publisher(store, f"thread-{n}") for n in range(THREADS)]
        command = [sys.executable, "-c", OTHER, data]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = session_environment()
        with subprocess.Popen(command, env=environment, text=True, **pipes) as other:
            try:
                for thread in threads:
                    thread.start()
                wait_for(lambda: holds(store, b"other 0"))
                query = copy(spark, data, tmp_path / "checkpoint")
                sizes = {f"batch-{n}": size for n, size in enumerate([3, 700, 1])}
                for name, size in sizes.items():  # some are copied, some become segments
                    write(spark, data, name, size)
                query.awaitTermination()
                before = sum(thread.count for thread in threads)
                wait_for(lambda: sum(thread.count for thread in threads) > before + 20)
            finally:
                for thread in threads:
                    thread.stop()
                counted, _ = other.communicate("stop\n", timeout=60)
        assert [thread.error for thread in threads] == [None] * THREADS
    with open_store(data) as store:
        found = [(message.value or b"").decode() for message in store.get("q").read()]
    assert max(Counter(found).values()) == 1
    published = {thread.name: thread.count for thread in threads} | {"other": int(counted)}
    for name, count in (published | sizes | {"from": COPIED}).items():
        mine = [value for value in found if value.split()[0] == name]
        assert mine == [f"{name} {n}" for n in range(count)]
    assert len(found) == sum(published.values()) + sum(sizes.values()) + COPIED
    batches = [*steps(query, "from"), *((f"{name} 0", size) for name, size in sizes.items())]
    check_together(found, batches)


def test_two_queries_at_once(spark: Any, tmp_path: Path) -> None:
    """Into one queue: each counts its own batches. A consumer gets all of it meanwhile."""
    data, names = str(tmp_path / "data"), ("one", "two")
    fill(data, "from", COPIED)
    with Store(data) as store:
        queue = store.queue("q", segment_bytes=20_000)
        with queue.consumer("w") as consumer:
            queries = [copy(spark, data, tmp_path / name, name) for name in names]
            got: list[str] = []
            while len(got) < len(names) * COPIED:
                messages = consumer.receive(50, wait=60)
                assert messages, [query.exception() for query in queries]
                consumer.ack(messages)
                got += [(message.value or b"").decode() for message in messages]
            for query in queries:
                query.awaitTermination()
        found = [(message.value or b"").decode() for message in queue.read()]
    for name in names:
        mine = [value for value in found if value.split()[0] == name]
        assert mine == [f"{name} {n}" for n in range(COPIED)]
    assert len(found) == len(names) * COPIED
    assert got == found
    for query, name in zip(queries, names, strict=True):
        check_together(found, steps(query, name))
    for name in names:  # started anew they have nothing to do
        copy(spark, data, tmp_path / name, name).awaitTermination()
    with open_store(data) as store:
        assert len(list(store.get("q").read())) == len(found)


def steps(query: Any, name: str) -> list[tuple[str, int]]:
    """The first row of each batch of a query that copies, and how many it has."""
    sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sum(sizes) == COPIED
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [(f"{name} {start}", size) for start, size in zip(starts, sizes, strict=True)]


def check_together(found: list[str], batches: list[tuple[str, int]]) -> None:
    """Nothing of others is within a batch."""
    for first, size in batches:
        place = found.index(first)
        assert {value.split()[0] for value in found[place : place + size]} == {first.split()[0]}


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def holds(store: Store, value: bytes) -> bool:
    return any(message.value == value for message in store.get("q").read())


def copy(spark: Any, path: str, checkpoint: Path, name: str = "from") -> Any:
    """By a streaming query, with another name in front."""
    reader = spark.readStream.format("tailrace").option("path", path).option("queue", "from")
    reader = reader.option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", PER_TRIGGER).load()
    frame = frame.selectExpr(f"concat('{name} ', substring_index(string(value), ' ', -1)) AS value")
    writer = frame.writeStream.format("tailrace").option("path", path).option("queue", "q")
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def write(spark: Any, path: str, name: str, size: int) -> None:
    frame = spark.range(0, size, 1, 2).selectExpr(f"concat('{name} ', id) AS value")
    frame.write.format("tailrace").mode("append").save(path, queue="q", txnId=name)
