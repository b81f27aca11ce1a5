"""`tailrace pipeline run` is killed at any moment, while others publish: what comes out in the end
is what would have come out."""

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
from tests.spark.pipelines.support import Place

PATIENCE_S = 400  # two cores may be all that many share
CONF = ("spark.ui.enabled=false", "spark.driver.memory=1g", "spark.sql.shuffle.partitions=2")


def start(place: Place, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **session_environment()}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    confs = [word for conf in CONF for word in ("--conf", conf)]
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", "p", *arguments, *confs]
    with (place.folder / "said").open("ab") as said:
        return subprocess.Popen(
            [*command, "--master", "local[2]"],
            cwd=place.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: the group is its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


class Producer(threading.Thread):
    """Publishes while the pipeline is killed. Every seventh value is none that fits."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self.count = 0
        self.is_done = threading.Event()

    def run(self) -> None:
        with self._place.open() as store:
            events = store.stream("events")
            while not self.is_done.wait(0.05):
                events.publish(as_value(self.count), key=b"k%d" % (self.count % 3))
                self.count += 1


def as_value(number: int) -> bytes:
    return b"bad %d" % number if number % 7 == 6 else b'{"n": %d}' % number


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("pyspark")
def test_each_row_is_there_once(place: Place, kills: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    place.publish("events")
    given = {
        "format": "json",
        "schema": "n long",
        "sql": "SELECT key, string(n * 2) AS value FROM events",
    }
    definition = place.define(**given, max_offsets_per_trigger=10)
    checkpoint = place.store / "queue/.tailrace/pipelines" / definition.name / "checkpoint"
    producer = Producer(place)
    producer.start()
    try:
        for _ in range(kills):
            process = start(place)
            try:
                if rng.random() < 0.2:  # while it starts
                    time.sleep(rng.uniform(0, 15))
                else:
                    aim = planned(checkpoint) + rng.randint(1, 3)
                    until = time.monotonic() + PATIENCE_S
                    while planned(checkpoint) < aim and process.poll() is None:
                        assert time.monotonic() < until, (planned(checkpoint), producer.count)
                        time.sleep(0.005)
                    time.sleep(rng.uniform(0, 0.6))  # a batch takes about as long
                assert process.poll() is None, (place.folder / "said").read_text()
            finally:
                stop(process)
    finally:
        producer.is_done.set()
        producer.join()
    place.define(**given)  # in larger steps, which is no other query
    for _ in range(2):  # before Spark 4.2 the first may only finish a batch that was cut short
        process = start(place, "--once")
        try:
            assert process.wait(PATIENCE_S * 4) == 0, (place.folder / "said").read_text()
        finally:
            stop(process)
    good = [n for n in range(producer.count) if n % 7 != 6]
    found = [(message.key, message.value) for message in place.messages("out")]
    assert found == [(b"k%d" % (n % 3), b"%d" % (2 * n)) for n in good]
    bad = [as_value(n) for n in range(producer.count) if n % 7 == 6]
    assert list(place.reasons("events")) == bad


def planned(checkpoint: Path) -> int:
    """How many batches the query has planned, and perhaps done and forgotten."""
    names = [path.name for path in (checkpoint / "offsets").glob("[0-9]*")]
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


def test_killed_and_never_run_again(place: Place, pyspark: Any) -> None:
    """What its status says, if nobody runs it."""
    from tailrace.spark.pipelines.homes import Home
    from tailrace.spark.pipelines.status import Status, read_status

    place.publish("events")
    home = Home(str(place.store), place.define(sql="SELECT value FROM events"))
    with home.held():
        Status("p", state="running", pid=os.getpid()).write(home.status)
        found = read_status(home)
        assert found is not None
        assert found.state == "running"
    found = read_status(home)
    assert found is not None
    assert found.state == "unknown"
