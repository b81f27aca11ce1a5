"""The queries of a pipeline, at work.

The main query goes from the inputs to the target. Where values are decoded, another one reads the
same messages and takes those that do not fit to the dead letters: a query has one sink, and what
does not fit is not in the rows of an aggregate. Each has a checkpoint of its own, and each writes
exactly once.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import TailraceError
from tailrace.log.fs import NO_SPACE
from tailrace.queue.store import Store
from tailrace.spark.checkpoints import is_local, use_local_checkpoints
from tailrace.spark.pipelines.definition import OF_SQL, Definition, Files
from tailrace.spark.pipelines.files import FileWriter, as_files
from tailrace.spark.pipelines.homes import Home, Made
from tailrace.spark.pipelines.planning import Planner, letters_of
from tailrace.spark.pipelines.status import Status, read_status, written_in
from tailrace.spark.pipelines.targets import check_places
from tailrace.spark.planning import DELETED, IF_PASSED_OVER, Place
from tailrace.spark.session import is_static
from tailrace.spark.statements import describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Run", "check", "told_apart"]

_MAIN: Final = "main"
_STARTS: Final = 3  # of a query
_TOO_BUSY: Final = "Python worker failed to connect back"
_MADE_ANEW: Final = "needs a new checkpoint"  # as the source says it of a queue

Told = Callable[[Definition, Mapping[str, Any]], object]


def told_apart(
    spark: SparkSession,
    definition: Definition,
    given: Mapping[str, str],
    beside: Iterable[Definition] = (),
) -> Any:
    """A session for one pipeline: its views and settings are nobody else's. Spark was started with
    what no session can change, for those `beside` it as well, so they have to agree in that."""
    from pyspark.errors import PySparkException

    session = spark.newSession()
    # Types are parsed by the settings of the active one.
    spark._jvm.SparkSession.setActiveSession(session._jsparkSession)  # type: ignore[union-attr]
    for name, value in {**definition.conf, **given}.items():
        if _is_changeable(session, name):
            try:
                session.conf.set(name, value)
            except PySparkException as error:
                said = f"pipeline {definition.name!r}: conf: {name}: {describe(error)}"
                raise TailraceError(said) from error
            continue
        for other in beside if name not in given else ():
            if other.conf.get(name, value) != value:
                raise TailraceError(
                    f"pipeline {definition.name!r}: conf: {name} is {value}, and pipeline "
                    f"{other.name!r} has {other.conf[name]}, where a process has one for all; let "
                    "them agree, or run each in a process of its own"
                )
    return session


def _is_changeable(session: Any, name: str) -> bool:
    """By a session, for itself."""
    is_known = session.conf.isModifiable(name)
    return is_known or (name.startswith(OF_SQL) and not is_static(name))


def check(
    spark: SparkSession, path: str, definition: Definition, coming: Collection[str] = ()
) -> None:
    """Plan it, and start nothing. `TailraceError` says what is wrong. `coming` are queues that it
    may read although they are not there yet."""
    check_places(path, definition)
    Planner(spark, path, definition, Place(path).queues(), coming=coming).plan()


class Run:
    """A pipeline that runs, until it is stopped or has no more to do. For one thread."""

    def __init__(
        self, spark: SparkSession, path: str, definition: Definition, *, once: bool = False
    ) -> None:
        self.definition = definition
        self.home = Home(path, definition)
        self.status = Status(definition.name, pid=os.getpid())
        self._spark = spark
        self._path = path
        self._once = once or definition.is_once
        self._queries: dict[str, Any] = {}
        self._starts_left: dict[str, int] = {}  # of queries for which the machine was too busy
        self._writers: dict[str, Any] = {}
        self._seen: dict[str, tuple[Any, ...]] = {}  # of each query, the last that it has told
        self._stopping: dict[str, int] | None = None
        self._later: dict[str, Any] = {}  # queries that wait for the first batch of the main one
        self._made: Made | None = None
        self._planner: Planner | None = None
        self._tables: dict[str, Any] = {}  # where those that are queues began, when it was planned

    # --- to start ---------------------------------------------------------------------------

    def start(self, *, keep_checkpoint: bool = False) -> None:
        """The pipeline has to be held (`Home.held`). `TailraceError` if it cannot begin."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            self._begin(keep_checkpoint)
        except (TailraceError, OSError, PySparkException, Py4JError) as error:
            if self.status.state == "failed":
                raise  # which was told, and noted
            if self.status.state == "starting":
                self.status.stay(self.home)
            self.fail(error)

    def _begin(self, keep_checkpoint: bool) -> None:
        check_places(self._path, self.definition)
        if not keep_checkpoint:
            self.home.check()
        place = Place(self._path)
        old = self.home.made()
        starts = self._starts(place) if old is None else old.starts
        planner = Planner(self._spark, self._path, self.definition, place.queues(), starts)
        self._tables = self._beginnings()
        frame = planner.plan()
        letters = {name: self._letters(name, place) for name in planner.decoded}
        self._make_queues(letters)
        made = self.home.make(starts)
        self._planner, self._made = planner, made
        self.status.go_on(made.id, read_status(self.home))
        use_local_checkpoints(self._spark, self.home.checkpoint)
        self.status.state, self.status.started_at = "running", time.time_ns() // 1_000_000
        for name, queue in letters.items():
            writer = planner.bad(name).writeStream.format("tailrace")
            self._later[name] = writer.option("path", self._path).option("queue", queue)
        self._start(_MAIN, self._target(frame, made), self.home.checkpoint)
        self._write()

    def _starts(self, place: Place) -> dict[str, int]:
        """Offsets that a new run begins with, by the names of the inputs, so that all of its
        queries begin with the same. `first` is one, too: retention may pass it before a query
        begins that starts later, which then has to say so."""
        found = {}
        there = place.queues()
        for name, given in self.definition.inputs.items():
            if given.is_stream and given.queue in there:
                queue = there[given.queue]
                with place.log(queue.name, queue.incarnation) as log:
                    if isinstance(given.start, int):
                        found[name] = given.start
                    elif log is None:
                        found[name] = 0
                    elif isinstance(given.start, datetime):
                        found[name] = log.offset_at(round(given.start.timestamp() * 1000))
                    else:
                        is_first = given.start == "first"
                        found[name] = log.start_offset if is_first else log.end_offset
        return found

    def _letters(self, name: str, place: Place) -> str:
        return letters_of(self.definition.inputs[name], place.queues())

    def _make_queues(self, letters: Mapping[str, str]) -> None:
        """Those that it writes to. What it reads has to be there."""
        to = self.definition.to
        there = Place(self._path).queues()
        with Store(self._path, upkeep=False) as store:
            if isinstance(to, str) and to not in there:
                store.stream(to)
            for name in letters.values():
                store.prepare_letters(name)

    def _target(self, frame: DataFrame, made: Made) -> Any:
        to, writer = self.definition.to, frame.writeStream
        writer = writer.outputMode(self.definition.output_mode)
        if isinstance(to, Files):
            if not to.is_local:
                return as_files(writer, to).option("path", to.path)
            owner = f"{self.definition.name}-{made.id[:8]}".replace("/", "_").replace("%", "_")
            return writer.foreachBatch(FileWriter(to, self.home.files, owner))
        if self.definition.output_mode == "append":
            return writer.format("tailrace").option("path", self._path).option("queue", to)
        return writer.foreachBatch(_QueueWriter(self._path, to, made.id))

    def _start(self, name: str, writer: Any, checkpoint: str) -> None:
        if is_local(checkpoint) and "://" not in checkpoint:
            checkpoint = f"file://{os.path.abspath(checkpoint)}"
        writer = writer.option("checkpointLocation", checkpoint)
        title = self.definition.name if name == _MAIN else f"{self.definition.name}: {name}"
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif isinstance(self.definition.trigger, int) and self.definition.trigger:
            writer = writer.trigger(processingTime=f"{self.definition.trigger} milliseconds")
        self._writers[name] = writer.queryName(title)
        self._starts_left[name] = _STARTS
        self._try(name)

    def _try(self, name: str) -> None:
        from pyspark.errors import PySparkException

        while True:
            self._starts_left[name] -= 1
            try:
                self._queries[name] = self._writers[name].start()
                return
            except PySparkException as error:
                if not self._may_try_again(name, error):
                    self.fail(error)

    def _may_try_again(self, name: str, error: BaseException) -> bool:
        """Spark gives the processes that it starts ten seconds, which a busy machine may need. What
        a query has done by then stays done."""
        is_wanted = self._stopping is None and self._starts_left[name] > 0
        return is_wanted and _TOO_BUSY in describe(error)

    # --- tables -----------------------------------------------------------------------------

    def _beginnings(self) -> dict[str, Any]:
        """The first offset that is there of each queue that is a table."""
        place, found = Place(self._path), {}
        there = place.queues()
        for name, given in self.definition.inputs.items():
            if not given.is_stream and given.queue in there:
                queue = there[given.queue]
                with place.log(queue.name, queue.incarnation) as log:
                    found[name] = [queue.incarnation, 0 if log is None else log.start_offset]
        return found

    def _lost_a_table(self, error: BaseException) -> bool:
        """Has retention passed what the query goes on reading as it was when it was planned? If no
        table begins elsewhere since, it is something else that is lost."""
        is_wanted = self._stopping is None and DELETED in describe(error)
        return is_wanted and self._beginnings() != self._tables

    def _plan_again(self) -> None:
        """With the tables as they are now, as a restart does."""
        assert self._planner is not None
        assert self._made is not None
        try:
            self._tables = self._beginnings()
            writer = self._target(self._planner.plan(), self._made)
        except (TailraceError, OSError) as error:
            self.fail(error)
        self._start(_MAIN, writer, self.home.checkpoint)

    # --- to go on ---------------------------------------------------------------------------

    def poll(self, told: Told | None = None) -> bool:
        """Take in what has happened; false when all has ended. `TailraceError` if it has failed.
        `told` gets each batch of the main query."""
        self._start_others()
        active = False
        for name, query in self._queries.items():
            is_active = query.isActive
            if self._take(name, query, told):
                self._write()
            if not is_active:
                error = query.exception()
                if error is not None and self._may_try_again(name, error):
                    self._try(name)
                    is_active = True
                elif error is not None and name == _MAIN and self._lost_a_table(error):
                    self._plan_again()
                    is_active = True
                elif error is not None:
                    self.fail(error)
            active = active or is_active
        return active or bool(self._later)

    def _start_others(self) -> None:
        """Once the main query has done something, or has nothing to do: each of them starts
        processes, and the rows are what is waited for."""
        main = self._queries[_MAIN]
        has_ended = not main.isActive and main.exception() is None
        if self._later and (main.lastProgress is not None or has_ended):
            for name, writer in self._later.items():
                self._start(name, writer, self.home.dead(name))
            self._later = {}

    def _take(self, name: str, query: Any, told: Told | None) -> bool:
        for progress in (new := self._news(name, query)):
            if "addBatch" not in progress["durationMs"]:  # it looked, and there was nothing
                if name == _MAIN:
                    self.status.look(progress)
            elif name == _MAIN:
                self.status.take(progress)
                if told is not None:
                    told(self.definition, progress)
            else:
                self.status.dead_letters += written_in(progress) or 0
        return bool(new)

    def _news(self, name: str, query: Any) -> list[dict[str, Any]]:
        """What a query has told since we last asked, by its place in the list: clocks go back."""
        if query.lastProgress is None:
            return []
        told = [json.loads(each.json) for each in query.recentProgress]  # the same on all versions
        known = self._seen.get(name)
        at = next((n for n in range(len(told), 0, -1) if _mark(told[n - 1]) == known), 0)
        if told:
            self._seen[name] = _mark(told[-1])
        return told[at:]

    def _write(self) -> None:
        self.status.write(self.home.status)

    def fail(self, error: BaseException) -> None:
        """Stop everything, and say why."""
        prefix = f"pipeline {self.definition.name!r}: "
        is_ours = isinstance(error, TailraceError)
        said = str(error).removeprefix(prefix) if is_ours else describe(error)
        said = said.replace(IF_PASSED_OVER, "With on_loss: skip the pipeline passes them over")
        if any(os.strerror(number) in said for number in NO_SPACE):
            to = self.definition.to
            said += (
                f". It writes to {to.path if isinstance(to, Files) else self._path}, and its "
                f"checkpoint is in {self.home.checkpoint}: make room, and run it again; it goes on "
                "where it was"
            )
        if _MADE_ANEW in said:
            said += f"; tailrace pipeline run {self.definition.name} --restart-from-scratch has one"
        self.status.state, self.status.error = "failed", said
        self._write()
        self.stop(now=True, state="failed")
        raise TailraceError(prefix + said) from error

    # --- to stop ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop each query when the batch that it is at is done. `poll` on until that is so."""
        self._later = {}  # what they have to do, they do the next time
        if self._stopping is None:
            self._stopping = {name: _batch(query) for name, query in self._queries.items()}
        for name, query in self._queries.items():
            if query.isActive and self._is_between(query, self._stopping[name]):
                query.stop()

    def _is_between(self, query: Any, first: int) -> bool:
        return not query.status["isTriggerActive"] or _batch(query) > first

    def stop(self, *, now: bool = False, state: str = "stopped") -> None:
        """It has ended, or is to end in the middle of what it does."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        for query in self._queries.values() if now else ():
            # What is wrong with it was told, or will be by who runs it next.
            with contextlib.suppress(PySparkException, Py4JError):
                query.stop()
        self.status.state = state
        self._write()


def _mark(progress: Mapping[str, Any]) -> tuple[Any, ...]:
    return progress["runId"], progress["batchId"], progress["timestamp"]


def _batch(query: Any) -> int:
    """The last batch that is done."""
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


class _QueueWriter:
    """Rows of a batch to a queue, for modes that Spark has no streaming sink in Python for. The
    batch is the transaction, as it is there."""

    def __init__(self, path: str, queue: str, owner: str) -> None:
        self._path = path
        self._queue = queue
        self._owner = owner

    def __call__(self, frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("tailrace").option("path", self._path)
        writer = writer.option("queue", self._queue).option("txnId", self._owner)
        writer.option("txnVersion", str(batch)).mode("append").save()
