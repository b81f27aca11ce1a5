"""Where a new pipeline begins: each of its queries and inputs at the offset that `start` means."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.log.options import Retention
from tailrace.spark.pipelines.definition import Definition
from tailrace.spark.pipelines.homes import Home
from tailrace.spark.pipelines.planning import Planner
from tailrace.spark.pipelines.running import Run, told_apart
from tailrace.spark.pipelines.status import Status, read_status
from tailrace.spark.planning import Place as StorePlace
from tests.spark.pipelines.support import Place

JSON = {"format": "json", "schema": "id long"}


def test_inputs_of_one_queue(place: Place) -> None:
    place.publish("events", *({"id": n} for n in range(10)))
    later = {"queue": "events", "stream": True, **JSON}
    definition = place.define(
        sql="SELECT 1",
        **JSON,
        tables={"later": {**later, "start": "next"}, "fifth": {**later, "start": 5}},
    )
    nothing: Any = None
    store = str(place.store)
    starts = Run(nothing, store, definition)._starts(StorePlace(store))
    assert starts == {"events": 0, "later": 10, "fifth": 5}
    planner = Planner(nothing, store, definition, {}, starts)
    found = {name: planner._beginning(name, each) for name, each in definition.inputs.items()}
    assert found == {
        name: {"startingOffsets": json.dumps({"events": start})} for name, start in starts.items()
    }


def test_a_start_that_retention_has_moved(place: Place) -> None:
    definition = fill(place)
    let_go(place)
    nothing: Any = None
    run = Run(nothing, str(place.store), definition)
    assert run._starts(StorePlace(str(place.store)))["events"] > 0


def test_what_does_not_fit_is_not_passed_over(spark: Any, place: Place) -> None:
    """The query of the dead letters starts later: what retention has deleted by then stops it."""
    definition = fill(place)
    session = told_apart(spark, definition, {})
    run = Run(session, str(place.store), definition, once=True)
    with run.home.held():
        run.start()
        run._queries["main"].awaitTermination()
        run.finish()  # as SIGTERM does, in the first batch
        run.poll()
        run.stop()
    let_go(place)
    with pytest.raises(
        TailraceError, match=r"retention has deleted.*\. With on_loss: skip the pip"
    ):
        place.run(spark, definition)
    run = place.run(spark, dataclasses.replace(definition, on_loss="skip"))
    assert (run.status.state, run.status.dead_letters) == ("stopped", 0)


def test_how_far_one_queue_is_read_by_several() -> None:
    """As far as the last of them."""
    status = Status("p", offsets={"other": 3})
    ends = [{"events": [20, "i"]}, {"events": [5, "i"]}, {"events": [7, "i"]}, "of another kind"]
    status.look({"sources": [{"endOffset": end} for end in ends]})
    assert status.offsets == {"events": 5, "other": 3}


def fill(place: Place) -> Definition:
    with place.open() as store:
        events = store.stream("events", compression="none", segment_bytes=1000)
        events.publish(b"bad")
        for n in range(100):
            events.publish(json.dumps({"id": n}).encode())
    return place.define(**JSON, sql="SELECT id FROM events")


def let_go(place: Place) -> None:
    with place.open() as store:
        log = store.get("events").log
        log.let_go(Retention(max_bytes=1), None)
        assert log.start_offset > 0


def test_one_that_cannot_begin(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status says so, and why; what the last run has come to stays known."""
    place.publish("events", b"x")
    definition = place.define(sql="SELECT 1")
    made = Home(str(place.store), definition)
    with made.held():
        known = Status("p", "stopped", 1, rows_in=300, checkpoint=made.make({}).id, batch=7)
        known.offsets = {"events": 300}
        known.write(made.status)
        said = "tables.prices: there is no file"

        def plan(_: Planner) -> Any:
            raise TailraceError(f"pipeline 'p': {said}")

        monkeypatch.setattr(Planner, "plan", plan)
        nothing: Any = None
        run = Run(nothing, str(place.store), definition)
        with pytest.raises(TailraceError, match=f"^pipeline 'p': {said}$"):
            run.start()
        found = read_status(made)
        assert found is not None
        assert (found.state, found.error, found.pid) == ("failed", said, os.getpid())
        assert (found.rows_in, found.batch, found.offsets) == (300, 7, {"events": 300})
        made.begin_anew()
        with pytest.raises(TailraceError, match=said):
            Run(nothing, str(place.store), definition).start()
        found = read_status(made)
        assert found is not None
        assert (found.state, found.rows_in, found.offsets) == ("failed", 0, {})


def test_a_folder_that_cannot_be_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: Home) -> None:
        raise PermissionError(13, "Permission denied", "pipeline.json")

    monkeypatch.setattr(Home, "check", check)
    place.publish("events", b"x")
    nothing: Any = None
    run = Run(nothing, str(place.store), place.define(sql="SELECT 1"))
    with run.home.held(), pytest.raises(TailraceError, match="Permission denied"):
        run.start()
    assert run.status.state == "failed"


class Busy:
    """A query of Spark's, and who starts it, on a machine that is too busy: it fails so many times,
    when it starts or then."""

    def __init__(self, failures: int, *, at_start: bool) -> None:
        self.failures = failures
        self.at_start = at_start
        self.starts = 0
        self.lastProgress = self.isActive = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self  # `option`, `trigger`, `queryName`, `stop`

    def start(self) -> Busy:
        self.starts += 1
        if self.at_start and self.starts <= self.failures:
            raise self.error()
        return self

    def exception(self) -> Exception | None:
        return self.error() if self.starts <= self.failures else None

    def error(self) -> Exception:
        from pyspark.errors import StreamingQueryException

        return StreamingQueryException("Python worker failed to connect back.")


@pytest.mark.parametrize("at_start", [False, True])
def test_a_machine_that_is_too_busy(place: Place, at_start: bool) -> None:
    """Spark waits ten seconds for a process of its own: the query is started again, but not for
    ever."""
    nothing: Any = None
    place.publish("events", b"x")
    run = Run(nothing, str(place.store), place.define(sql="SELECT 1"))
    query = Busy(2, at_start=at_start)
    run._start("main", query, "checkpoint")
    while run.poll():
        pass
    assert query.starts == 3
    assert run.status.error is None
    query = Busy(3, at_start=at_start)

    def start_and_poll() -> None:
        run._start("main", query, "checkpoint")
        while run.poll():
            pass

    with pytest.raises(TailraceError, match="failed to connect back"):
        start_and_poll()
    assert (query.starts, run.status.state) == (3, "failed")
