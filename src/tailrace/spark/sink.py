"""Writing to queues from Spark, exactly once.

Each task writes its rows, as batches of a log, to files that nobody reads. The driver then has each
queue's log take them in, all of them or nothing (`log/adoption.py`), as an idempotent append: the
producer is the query and the sequence its batch, or the transaction of a batch job. So a batch that
Spark runs again, a commit that it repeats because the first one failed after its work was done, and
a task that goes on after its job was given up change nothing.

A job that writes to several queues has that in each of them, one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tailrace import hooks
from tailrace.errors import ConfigError, Full, InvalidName, NotWritten, TailraceError
from tailrace.kernel import Record, TooLarge, encode, encode_headers
from tailrace.kernel.arrow import Source
from tailrace.log.adopting import adopt, is_adopted, pack_staged
from tailrace.log.adoption import Piece
from tailrace.log.fs import NO_SPACE, OsFileSystem
from tailrace.log.options import LogOptions
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER
from tailrace.log.staging import Stage, discard, staging_path, sweep, withdraw
from tailrace.queue.disk import DiskSettings, DiskWatch, Level
from tailrace.queue.inputs import no_batch_holds
from tailrace.queue.layout import find_root
from tailrace.queue.names import check_name, to_component
from tailrace.queue.settings import QueueSettings
from tailrace.queue.store import Store
from tailrace.queue.topics import Bindings, check_topic
from tailrace.spark.batches import plan_batches
from tailrace.spark.encoding import Encoder, as_text, check_schema, known_columns
from tailrace.spark.options import SinkOptions
from tailrace.spark.planning import Place, unseen
from tailrace.spark.versions import StreamArrowWriter
from tailrace.spark.workers import freeze_imports

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["BatchWriter", "StreamWriter"]

logger = logging.getLogger("tailrace")


@dataclass(frozen=True)
class Transaction:
    """What is written once, however often that is tried."""

    producer: str
    sequence: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return to_component(f"{self.producer}-{self.sequence}")


@dataclass
class Staged(WriterCommitMessage):
    """What a task has written, and where it ran: pieces, by queue, with the queue's incarnation,
    and when the last of its rows expires, if all do."""

    transaction: Transaction
    partition: int
    host: str
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)
    ends_ms: dict[str, int | None] = field(default_factory=dict)


class _Writer:
    """What both writers do. Pickled on its way to the tasks."""

    _MODE: ClassVar = "mode"
    _APPEND: ClassVar = 'write with mode("append")'

    def __init__(self, options: SinkOptions, schema: Any, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(f"{self._MODE}: a queue is only appended to; {self._APPEND}")
        self._options = options
        self._columns = check_schema(schema)
        self._host = socket.gethostname()  # the driver's
        is_named = options.queue is not None or options.topic is not None
        if not is_named and not {"queue", "topic"} & set(self._columns):
            raise ConfigError(
                "queue: name the queue, or the topic, by an option, or for each row by a column "
                "`queue` or `topic`"
            )
        if options.topic is not None:
            _check_topic(options.topic, "topic")
        place = Place(options.path)
        if options.queue is not None:
            self._check_there(options.queue, place.queues())
        if _disk_of(place).look() is Level.REFUSING:  # tasks would be refused: make room first
            with Store(options.path, upkeep=False) as store:
                store.disk.check()

    def _check_there(self, queue: str, there: Mapping[str, QueueSettings]) -> None:
        if queue not in there:
            known = f"there are {', '.join(sorted(there))}" if there else "it has none"
            raise ConfigError(f"queue: the store in {self._options.path} has no {queue!r}; {known}")

    # --- in a task --------------------------------------------------------------------------

    def _stage(self, batches: Iterator[pa.RecordBatch], transaction: Transaction) -> Staged:
        freeze_imports()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        place = Place(self._options.path)
        there = place.queues()
        if self._options.queue is not None and self._options.queue not in there:
            # The driver has seen it. Who is on the same machine has the same files.
            if socket.gethostname() != self._host:
                raise unseen(place.folder(self._options.queue))
            raise place.deleted(self._options.queue)
        routes = _Routes(self._options, there)
        staged = Staged(transaction, partition, socket.gethostname())
        stages: dict[str, _Staging] = {}
        try:
            for batch in batches:
                for queue, rows in routes.of(known_columns(batch)):
                    if queue.name not in stages:
                        stages[queue.name] = _Staging(queue, place, transaction)
                    stages[queue.name].add(rows)
            for name, stage in stages.items():
                staged.pieces[name] = stage.finish()
                staged.incarnations[name] = stage.queue.incarnation
                staged.ends_ms[name] = stage.last_end_ms
        except BaseException as error:
            for stage in stages.values():
                with contextlib.suppress(OSError):  # it stays until it is old
                    stage.withdraw()
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise _no_space(error, place.path) from error
            if isinstance(error, FileNotFoundError):
                for name, stage in stages.items():
                    place.check_same(name, stage.queue.incarnation)
                    path = staging_path(place.folder(name))
                    if not os.path.exists(path):
                        raise _removed(path) from error
            raise
        return staged

    # --- in the driver ----------------------------------------------------------------------

    def _publish(self, messages: list[Any]) -> None:
        freeze_imports()
        staged = sorted(
            (each for each in messages if isinstance(each, Staged)),
            key=lambda each: each.partition,
        )
        if not staged:
            return
        transaction = staged[0].transaction
        by_queue: dict[str, list[Piece]] = {}
        incarnations: dict[str, str] = {}
        for each in staged:
            incarnations |= each.incarnations
            for name, pieces in each.pieces.items():
                by_queue.setdefault(name, []).extend(pieces)
        place = Place(self._options.path)
        for name, incarnation in incarnations.items():
            place.check_same(name, incarnation)
        is_near = all(each.host == socket.gethostname() for each in staged)
        with Store(self._options.path, upkeep=False) as store:
            queues = {name: by_queue[name] for name in sorted(by_queue)}
            taken = _take_in(store, queues, transaction, is_near=is_near)
        for name in taken:
            _tell_if_expired(name, _count(by_queue[name]), staged)

    def _clear_up(self, messages: list[Any], *, is_done: bool) -> None:
        """What is left of a transaction that is done; of one that is given up, only what these
        tasks have staged, for another of its name may go on. And what others have left there long
        ago: nobody else may look after this store.

        What cannot be removed stays until it is old: a task that goes on may be writing to it, and
        what was published is published.
        """
        place = Place(self._options.path)
        fs = OsFileSystem()
        staged: dict[tuple[str, str], list[Piece]] = {}
        for each in messages:
            for name, pieces in each.pieces.items() if isinstance(each, Staged) else ():
                staged.setdefault((name, each.transaction.name), []).extend(pieces)
        for (name, transaction), pieces in sorted(staged.items()):
            folder = place.folder(name)
            try:
                if is_done:
                    discard(fs, folder, transaction)
                else:
                    withdraw(fs, folder, transaction, pieces)
                sweep(fs, folder, time.time_ns() // 1_000_000)
            except OSError as error:
                text = "what was staged for %r cannot be removed now: %s"
                logger.warning(text, name, error, extra={"queue": name})


def _take_in(
    store: Store, by_queue: Mapping[str, list[Piece]], transaction: Transaction, *, is_near: bool
) -> list[str]:
    """All that can be known to be in the way of one queue is found before another has taken any:
    who repeats a write that has no name would write the others' rows again. `is_near`: the tasks
    ran on this machine, and had its files. Returns the queues that have taken theirs now."""
    producer, sequence = transaction.producer, transaction.sequence
    due = [store.get(name) for name, pieces in by_queue.items() if pieces]
    due = [q for q in due if not is_adopted(q.log, producer=producer, sequence=sequence)]
    for queue in list(due):
        missing = _missing(store.layout.segments(queue.name), by_queue[queue.name])
        if missing is not None:
            if not is_adopted(queue.log, producer=producer, sequence=sequence):
                raise _removed(missing) if is_near else unseen(missing)
            due.remove(queue)  # somebody else has done it meanwhile, and cleared up
    for queue in sorted(due, key=lambda q: q.settings.limits.on_full == "drop_oldest"):
        queue.admit(queue.settings, _count(by_queue[queue.name]), block=False)  # may drop, so last
    taken = []
    for queue in due:
        pieces = by_queue[queue.name]
        try:
            packed = pack_staged(queue.log, pieces)
        except FileNotFoundError as error:  # since we have looked
            if not is_adopted(queue.log, producer=producer, sequence=sequence):
                raise _removed(error.filename) from error
            continue
        except OSError as error:
            if error.errno in NO_SPACE:
                raise _no_space(error, store.layout.root) from error
            raise
        adopt(queue.log, packed, producer=producer, sequence=sequence).wait()
        hooks.count("published", _count(pieces), queue.name)
        taken.append(queue.name)
    return taken


def _tell_if_expired(name: str, count: int, staged: list[Staged]) -> None:
    """Rows that nobody gets: the job took longer than they live."""
    ends = [each.ends_ms[name] for each in staged if each.pieces.get(name)]
    known = [end for end in ends if end is not None]
    late_ms = time.time_ns() // 1_000_000 - max(known, default=0)
    if count and len(known) == len(ends) and late_ms >= 0:
        logger.warning(
            "all %d rows written to the queue %r had expired before they were published, the last "
            "%.1f s ago: they live from when a task begins to write, and are published when the "
            "last task is done",
            count,
            name,
            late_ms / 1000,
            extra={"queue": name},
        )


def _count(pieces: list[Piece]) -> int:
    return sum(piece.records for piece in pieces)


def _missing(folder: str, pieces: list[Piece]) -> str | None:
    """A file that is not there: executors that see another folder have written to that."""
    paths = (staging_path(folder, piece.path) for piece in pieces)
    return next((path for path in paths if not os.path.exists(path)), None)


def _removed(path: str) -> TailraceError:
    return TailraceError(
        f"{path} was removed meanwhile, with rows that are to be written: what is staged for more "
        "than a day is swept. Nothing was written to this queue; write again"
    )


def _no_space(error: OSError, path: str) -> Full:
    where = error.filename or path
    return Full(
        f"{where}: the disk of {socket.gethostname()} is full ({error.strerror}). Nothing was "
        "written to this queue; free some space, and write again"
    )


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`. The transaction is the option `txnId`, with `txnVersion` one of many of that
    name, or this very write."""

    def __init__(self, options: SinkOptions, schema: Any, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        name = options.txn if options.txn is not None else uuid.uuid4().hex
        check_name("transaction", name)
        self._transaction = Transaction(f"spark-{name}", options.version)

    def write(self, iterator: Iterator[Any]) -> Staged:
        return self._stage(iterator, self._transaction)

    def commit(self, messages: list[Any]) -> None:
        try:
            self._publish(messages)
        except NotWritten as error:
            if error.last_sequence is None or self._options.txn is None:
                raise
            raise NotWritten(
                f"txnVersion {self._options.version} of txnId {self._options.txn!r} is below "
                f"{error.last_sequence}, which is already written: use a higher one"
            ) from None
        self._clear_up(messages, is_done=True)

    def abort(self, messages: list[Any]) -> None:
        """Also called when `commit` has failed after its work was done: that stands."""
        self._clear_up(messages, is_done=False)


class StreamWriter(_Writer, StreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream`. The transaction is the query's batch."""

    _MODE: ClassVar = "outputMode"
    _APPEND: ClassVar = (
        'write with outputMode("append"), for which aggregates need a watermark; or with '
        "foreachBatch, and txnId and txnVersion"
    )

    def __init__(self, options: SinkOptions, schema: Any, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        if options.txn is not None:
            raise ConfigError(
                "txnId: the batches of a stream have names of their own, by its checkpoint; leave "
                "it out"
            )

    def write(self, iterator: Iterator[Any]) -> Staged:
        context: Any = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return self._stage(iterator, Transaction(f"spark-{query}", int(batch)))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        self._publish(messages)
        self._clear_up(messages, is_done=True)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._clear_up(messages, is_done=False)


# --- which queue ----------------------------------------------------------------------------


class _Routes:
    """Which rows go to which queues."""

    def __init__(self, options: SinkOptions, there: Mapping[str, QueueSettings]) -> None:
        self._options = options
        self._there = there
        self._bindings: Bindings[str] = Bindings()
        for name, settings in there.items():
            for pattern in settings.topics:
                self._bindings.add(pattern, name)
        self._known: dict[str, list[QueueSettings]] = {}  # by topic

    def of(self, rows: pa.RecordBatch) -> Iterator[tuple[QueueSettings, pa.RecordBatch]]:
        options = self._options
        if options.queue is not None:
            yield self._there[options.queue], _addressed(rows)
        elif options.topic is not None:
            topic = pa.repeat(pa.scalar(options.topic, pa.string()), rows.num_rows)
            kept = _addressed(rows).append_column("topic", topic)
            for queue in self._bound(options.topic, "topic"):
                yield queue, kept
        elif "queue" in rows.schema.names:
            yield from self._by_column(rows.column("queue"), "queue", _addressed(rows), self._named)
        else:
            find = partial(self._bound, told_by="the column 'topic'")
            yield from self._by_column(rows.column("topic"), "topic", rows, find)

    def _by_column(
        self, column: Any, name: str, rows: pa.RecordBatch, find: Any
    ) -> Iterator[tuple[QueueSettings, pa.RecordBatch]]:
        """Each queue gets its rows in their order."""
        column = as_text(name, column)
        if column.null_count:
            raise ConfigError(f"the column {name!r} is null in a row: it says where that goes")
        values: dict[str, list[str]] = {}
        for value in pc.unique(column).to_pylist():
            for queue in find(value):
                values.setdefault(queue.name, []).append(value)
        for queue, wanted in values.items():
            mask = pc.is_in(column, pa.array(wanted, pa.string()))
            yield self._there[queue], rows.filter(mask)

    def _named(self, name: str) -> list[QueueSettings]:
        if name not in self._there:
            known = ", ".join(sorted(self._there))
            raise ConfigError(f"the column 'queue': there is no queue {name!r}; there are {known}")
        return [self._there[name]]

    def _bound(self, topic: str, told_by: str) -> list[QueueSettings]:
        found = self._known.get(topic)
        if found is None:
            _check_topic(topic, told_by)
            names = self._bindings.match(topic)
            if not names:
                raise ConfigError(f"{told_by}: no queue is bound to the topic {topic!r}")
            found = self._known[topic] = [self._there[name] for name in sorted(names)]
        return found


def _disk_of(place: Place) -> DiskWatch:
    """With the settings of the driver's store. It only looks."""
    fs = OsFileSystem()
    return DiskWatch(fs, find_root(fs, place.path), DiskSettings())


def _check_topic(topic: str, told_by: str) -> None:
    try:
        check_topic(topic)
    except InvalidName as error:
        raise ConfigError(f"{told_by}: {error}") from error


def _addressed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows for a queue that is named. What they came by, if they were read, counts no more: they
    get the address of that queue, with their routing key."""
    return rows.drop_columns([n for n in ("queue", "topic") if n in rows.schema.names])


class _Staging:
    """What one task writes for one queue."""

    def __init__(self, queue: QueueSettings, place: Place, transaction: Transaction) -> None:
        self.queue = queue
        options = LogOptions.parse(**queue.log_arguments())
        self._codec, self._largest = options.codec, options.max_batch_bytes
        self._now_ms = time.time_ns() // 1_000_000
        self._most = queue.limits.max_message_size
        self._encoder = Encoder(queue.name, queue.limits.message_ttl_ms, self._now_ms)
        self._same_headers = self._encoder.same_headers
        self._raw_headers = encode_headers(self._same_headers)
        self._stage = self._begin(place, transaction.name, options)
        self._marks = [
            (PRODUCER_HEADER, transaction.producer.encode()),
            (SEQUENCE_HEADER, b"%d" % transaction.sequence),
        ]

    def _begin(self, place: Place, transaction: str, options: LogOptions) -> Stage:
        """The folder of a queue is made by whoever uses it first, and goes when it is deleted. If
        that was just before we made it, nobody clears it up but us."""
        fs, folder = OsFileSystem(), place.folder(self.queue.name)
        disk = _disk_of(place)

        def check_room() -> None:
            disk.look()  # other tasks fill it as well
            disk.check()

        place.check_same(self.queue.name, self.queue.incarnation)
        stage = Stage(fs, folder, transaction, options, check_room)
        try:
            place.check_same(self.queue.name, self.queue.incarnation)
        except TailraceError:
            with contextlib.suppress(OSError):  # somebody makes one of the same name
                path = staging_path(folder, transaction)
                while path != os.path.dirname(os.path.dirname(folder)):
                    fs.remove_dir(path)
                    path = os.path.dirname(path)
            raise
        return stage

    def add(self, rows: pa.RecordBatch) -> None:
        records = self._encoder.records(rows)
        self._check_sizes(records)
        has_headers = "headers" in records.schema.names
        source = Source(records, None if has_headers else self._raw_headers)
        try:
            batches = plan_batches(source, self._largest)
        except TooLarge as error:
            raise no_batch_holds(self.queue.name, error) from None
        for start, stop in batches:
            if self._marks:  # one batch that says whose it is, in what each task has written
                first = self._record(records, start)
                self._stage.add(encode([first], self._now_ms, self._codec, self._marks))
                self._marks = []
                start += 1
            if start < stop:
                self._stage.add(source.encode(self._now_ms, self._codec, start, stop))

    def _record(self, records: pa.RecordBatch, row: int) -> Record:
        """A row as a record. Its value may be a string that is not UTF-8."""
        one = records.slice(row, 1)
        value, key = (one.column(name).cast(pa.binary())[0].as_py() for name in ("value", "key"))
        headers = self._same_headers
        if "headers" in one.schema.names:
            pairs = one.column("headers")[0].as_py()
            headers = [(pair["key"], pair["value"]) for pair in pairs]
        timestamp = None
        if "timestamp" in one.schema.names:
            timestamp = one.column("timestamp")[0].as_py()
        return Record(None, timestamp, key, value, headers)

    def _check_sizes(self, records: pa.RecordBatch) -> None:
        if not self._most:
            return
        largest = pc.max(pc.binary_length(records.column("value"))).as_py()
        if largest is not None and largest > self._most:
            raise Full(
                f"a value has {largest:,} bytes, and limits.max_message_size of the queue "
                f"{self.queue.name!r} is {self._most:,}"
            )

    @property
    def last_end_ms(self) -> int | None:
        """When the last row expires, if all do."""
        return self._encoder.last_end_ms

    def finish(self) -> list[Piece]:
        return self._stage.finish()

    def withdraw(self) -> None:
        self._stage.withdraw()
