"""How delayed messages get into their queue, each once, whoever dies when.

`schedule.py` says what is scheduled; here is how processes share it. Publishing takes no more than
an append to the log `incoming`. Whoever delivers or cancels takes the turn (a lock between threads,
and one between processes that the kernel drops when its holder dies), reads what others have
written since, and decides.

Whoever delivers notes first which messages that are (an intent: the record `deliver`, durable
unless the queue promises nothing), and then appends them to the queue as one batch that bears the
name of the note. Whoever finds an intent and does not know that it was carried out looks for the
batch in the queue, from where the queue ended then, and appends it if it is not there; nobody
writes another intent before. Three things tell that one was carried out: a page of memory that
processes share, which counts for the boot it was written in; a later intent, which also tells up to
which one the queue had everything durably; and the manifest, which is written when it has. The
log's own table of producers guards the batch as well, where retention has deleted what one would
look at.

From the intent on it is too late to cancel. Before, a `cancel` is a record in the same log: one of
the two comes first, for everybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from tailrace import hooks
from tailrace.errors import Closed, Corrupt, Full, NotWritten, OffsetOutOfRange, TailraceError
from tailrace.kernel import CODEC_NAMES, MAX_SECTION, Record, TooLarge, encode, first_headers
from tailrace.log.fs import FileLock, FileSystem, remove_tree
from tailrace.log.log import Log
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER, Once, headers_of
from tailrace.queue.handles import QueueLog
from tailrace.queue.observing import published, weigh
from tailrace.queue.outlook import lifetime_ms
from tailrace.queue.schedule import Batch, Intent, Manifest, Schedule, is_op, op_record
from tailrace.queue.settings import QueueSettings
from tailrace.queue.sorted_runs import Entry, Key, Merge, Run, write_run
from tailrace.queue.unsorted import Unsorted

__all__ = ["Delivery", "Target", "records_of"]

logger = logging.getLogger("tailrace")

_AT_ONCE: Final = 4_096  # messages in a batch
_BYTES_AT_ONCE: Final = 4 << 20
_UNFLUSHED_MOST: Final = 32  # batches; a log remembers 64 of a producer
_PORTION: Final = 1_024  # records between two looks at how much it is, and who is still there

_MERGE_AT: Final = 16  # runs of about the same size

_MARK: Final = struct.Struct("<8sQ")  # the boot, and the offset behind the intent
_MARK_AT: Final = 8
_LONGEST: Final = 2**63 - 1  # a sequence with the most digits
_LOOKS: Final = 1_000


class Target(Protocol):
    """What is asked of the queue."""

    name: str
    incarnation: str

    @property
    def settings(self) -> QueueSettings: ...

    @property
    def log(self) -> QueueLog: ...

    def admit(self, settings: QueueSettings, count: int, *, block: bool = True) -> bool: ...

    def check_open(self) -> None: ...

    def note_opened(self) -> None: ...

    def note_due(self) -> None: ...


class Delivery:
    """The turn, and what is done in it. Thread-safe."""

    def __init__(
        self, fs: FileSystem, folder: str, queue: Target, wall_ms: Callable[[], int]
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._queue = queue
        self._wall_ms = wall_ms
        self._reset()

    def _reset(self) -> None:
        # The turn, inside of this process. Who has it may find that the queue was deleted, and let
        # go of everything.
        self._mutex = threading.RLock()
        self._lock: FileLock | None = None
        self._page: memoryview | None = None
        self._unsorted: Unsorted | None = None  # as long as everything is open
        self._state: Schedule | None = None
        self._manifest: bytes | None = None  # what the state began with
        self._seen = -1  # the end of `incoming`, when we last caught up
        self._producer = ""  # nobody else's, and another each time that everything is opened
        self._unflushed: deque[tuple[int, int]] = deque()  # intents, and where their batches end
        self._merge: Merge | None = None
        self._is_broken_off = False  # the last turn: by an interrupt, or since the store is closed
        self.is_held_up = False  # something is due, and the queue has no room for it

    @property
    def queue_name(self) -> str:
        return self._queue.name

    @property
    def incoming(self) -> QueueLog:
        raise NotImplementedError

    # --- the turn ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self, *, to_look: bool = False) -> Iterator[Schedule]:
        """What others were about to do is done in it; unless that fails, and it is only `to_look`
        at the rest."""
        with self._mutex:
            incoming = self.incoming  # opens everything
            lock = self._lock
            assert lock is not None
            lock.acquire()
            try:
                self._refresh(incoming)
                try:
                    self._resolve()
                except (NotWritten, OSError):  # as on a full disk
                    if not to_look:
                        raise
                self._is_broken_off = False
                yield self._current()
            except BaseException as error:
                self._forget()  # whatever is half done, the files know
                self._is_broken_off |= not isinstance(error, Exception)
                raise
            finally:
                lock.release()

    def _current(self) -> Schedule:
        assert self._state is not None
        return self._state

    def _forget(self) -> None:
        state, self._state = self._state, None
        self._unflushed.clear()
        if state is not None:
            state.close()

    def _refresh(self, incoming: QueueLog) -> None:
        """Come to know what others have done."""
        manifest = Manifest.read(self._fs, self._folder)
        if self._state is None or manifest != self._manifest:
            self._forget()
            self._load()
        self._catch_up(incoming)

    def _load(self) -> None:
        self._manifest = Manifest.read(self._fs, self._folder)
        self._state = Schedule(self._fs, self._folder, Manifest.load(self._fs, self._folder))
        if self._unsorted is not None:
            self._unsorted.sorted_to(self._state.next_offset)

    def _catch_up(self, incoming: QueueLog) -> None:
        """All that was written before this began is known after it."""
        unsorted = self._unsorted
        bytes_before = 0 if unsorted is None else unsorted.bytes
        end = _end_of(incoming)
        last_op: int | None = None
        state = self._current()
        while state.next_offset < end:
            if state.is_full:
                # What an operation names has to be where it was when the operation was written.
                if last_op is None:
                    last_op = _last_op(incoming, state.next_offset, end)
                if state.next_offset > last_op:
                    state = self._sort()
            first, most_bytes = state.next_offset, state.bytes + _BYTES_AT_ONCE
            for record in islice(records_of(incoming, first, end), _PORTION):
                state.apply(record)
                if state.bytes >= most_bytes:
                    break
            if state.next_offset == first:
                state.next_offset = end  # there are offsets that hold nothing
            if state.next_offset < end:
                self._check_open()
        if state.is_full:
            state = self._sort()
        self._seen = end
        if unsorted is not None:
            unsorted.correct(state.bytes, bytes_before)

    def _note(self, kind: str, op: dict[str, Any]) -> int:
        """Write an operation, which counts from then on; its offset."""
        return self.incoming.append([op_record(kind, op, self._wall_ms())]).offset

    # --- deliver ----------------------------------------------------------------------------

    def deliver(self) -> int | None:
        """Deliver a batch of what is due: how many messages that were. `None` if nothing is, or the
        queue has no room."""
        with self._turn() as state:
            log, incoming = self._queue.log, self.incoming
            batch = self._next_batch(state, log)
            if batch is None:
                return None
            op = {  # `schedule.py` says what they mean
                "p": self._producer,
                "x": log.end_offset,
                "b": self._fs.boot_id().hex(),
                "f": self._flushed(state, log),
                "k": list(batch.last),
                "m": batch.offsets,
                "r": batch.runs,
            }
            offset = self._note("deliver", op)
            if incoming.flush_mode != "none":
                incoming.flush()
            self._carry_out(log, Intent(offset, op), batch.records)
            self._catch_up(incoming)
            return len(batch.records)

    def _next_batch(self, state: Schedule, log: Log) -> Batch | None:
        """What is due, as far as the queue has room, and it fits into a batch or is one message."""
        most, most_bytes = _AT_ONCE, min(_BYTES_AT_ONCE, log.options.max_batch_bytes // 2)
        self.is_held_up = False
        while True:
            batch = state.take(self._wall_ms(), most, most_bytes)
            if batch is None or not batch.records:
                return batch
            count = len(batch.records)
            now_ms = self._wall_ms()  # what has expired needs no room: nobody gets it
            living = sum(lifetime_ms(record) >= now_ms for record in batch.records)
            try:
                self._queue.admit(self._queue.settings, living, block=False)
                _try_to_encode(batch.records, log, self._producer)
                return batch
            except Full:
                if count == 1:
                    self.is_held_up = True
                    return None
            except TooLarge:
                if count == 1:  # `max_batch_bytes` was larger when it was published
                    return batch
            most = count // 2

    def _flushed(self, state: Schedule, log: Log) -> int:
        """The offset below which all intents are in the queue durably, if they have to be."""
        if not state.intents:
            return 0
        last = state.intents[-1]
        if log.flush_mode == "async":
            unflushed = self._unflushed
            if last.op["p"] != self._producer or len(unflushed) >= _UNFLUSHED_MOST:
                log.flush()
                unflushed.clear()
            durable = log.durable_offset
            while unflushed and unflushed[0][1] <= durable:
                unflushed.popleft()
            if unflushed:
                return unflushed[0][0]
        return last.offset + 1

    def _carry_out(self, log: QueueLog, intent: Intent, records: list[Record]) -> None:
        if records:
            receipt = log.append_accepted(records, Once(intent.op["p"], intent.offset))
            receipt.wait()
            self._unflushed.append((intent.offset, receipt.end_offset))
            if hooks.listeners:
                size = sum(weigh(record.key, record.value) for record in records)
                published(self._queue.name, receipt, size)
        self._mark(intent)

    def _mark(self, intent: Intent) -> None:
        """Tell everybody, for this boot, that it is carried out."""
        if self._page is not None:
            _MARK.pack_into(self._page, _MARK_AT, self._fs.boot_id()[:8], intent.offset + 1)

    def _is_marked(self, intent: Intent) -> bool:
        if self._page is None:
            return False
        boot, behind = _MARK.unpack_from(self._page, _MARK_AT)
        return bool(boot == self._fs.boot_id()[:8] and behind > intent.offset)

    def _resolve(self) -> None:
        """See that what somebody was about to do is done."""
        state = self._current()
        if not state.intents or self._is_marked(state.intents[-1]):
            return
        log, last = self._queue.log, state.intents[-1]
        doubtful = [last]
        if log.flush_mode == "async" and last.op["b"] != self._fs.boot_id().hex():
            # The queue may have lost what was not flushed when the power went.
            doubtful = [each for each in state.intents if each.offset >= last.op["f"]]
        doubtful = [each for each in doubtful if not each.is_empty]
        if doubtful:
            if log.flush_mode == "sync":
                log.flush()  # see `_catch_up`
            present = _present(log, min(each.op["x"] for each in doubtful))
            for intent in doubtful:
                if (intent.op["p"], intent.offset) not in present:
                    self._carry_out_late(state, log, intent)
            if log.flush_mode == "async":
                log.flush()
                self._unflushed.clear()
        self._mark(last)

    def _carry_out_late(self, state: Schedule, log: QueueLog, intent: Intent) -> None:
        records = self._fetch(state, intent)
        try:
            self._carry_out(log, intent, records)
        except NotWritten:
            # Where one cannot look any more, the table of producers may know later ones.
            if intent.op["x"] >= log.start_offset:
                raise

    def _fetch(self, state: Schedule, intent: Intent) -> list[Record]:
        """The messages of an intent, in their order."""
        found: list[tuple[Key, Record]] = []
        numbers = iter(intent.op["m"])
        for first, count in zip(numbers, numbers, strict=True):
            for record in records_of(self.incoming, first, first + count):
                due, offset = record.timestamp, record.offset
                assert due is not None
                assert offset is not None
                found.append(((due, offset), record))
        for entry in state.taken(intent):
            assert entry.record is not None
            found.append((entry.key, entry.record))
        found.sort(key=lambda each: each[0])
        return [record for _, record in found]

    # --- runs -------------------------------------------------------------------------------

    def _sort(self, *, keep: bool = True, merged: Run | None = None) -> Schedule:
        """With the turn: write what is in memory to a run, and begin anew. What is delivered is in
        the queue, durably, before its traces go. Without `keep` everything is dropped."""
        state, log, incoming = self._current(), self._queue.log, self.incoming
        self._resolve()
        if log.flush_mode != "none":
            log.flush()
            incoming.flush()
        number = state.manifest.next_run + (merged is not None)
        runs = []
        if keep:
            runs = [run.now() for run in state.runs]
            made = write_run(
                self._fs,
                os.path.join(self._folder, "runs", f"{number:08d}"),
                self._as_long_as_open(state.entries(self._wall_ms())),
                0,
                self._run_options(log),
            )
            if made is not None:
                runs.append(made)
        manifest = state.manifest._replace(
            incoming=state.next_offset, next_run=number + 1, runs=tuple(runs)
        )
        manifest.store(self._fs, self._folder)
        self._forget()
        self._load()
        self._drop_runs()
        state = self._current()
        incoming.truncate_before(state.next_offset)
        incoming.vacuum()
        return state

    def _as_long_as_open(self, entries: list[Entry]) -> Iterator[Entry]:
        """The same. `Closed` if the store is closed meanwhile: that need not wait for a run, which
        whoever comes next can write."""
        for number, entry in enumerate(entries, 1):
            if number % _PORTION == 0:
                self._check_open()
            yield entry

    def _check_open(self) -> None:
        """In the middle of what takes long: who closes the store does not wait for that."""
        try:
            self._queue.check_open()
        except Closed:
            self._is_broken_off = True
            raise

    def _sort_away(self, unsorted: Unsorted) -> None:
        """See that what is not sorted is not too much, unless somebody else has done it by now. If
        that fails, one can publish all the same."""
        try:
            unsorted.sorted_to(Manifest.load(self._fs, self._folder).incoming)
            if unsorted.is_much:
                with self._turn():
                    pass  # it begins with that
        except Closed:
            raise
        except (TailraceError, OSError) as error:
            unsorted.put_off()
            extra = {"queue": self._queue.name, "path": self._folder}
            logger.warning("%s: not sorted: %s", self._folder, error, extra=extra)

    def _drop_runs(self) -> None:
        """With the turn: remove the runs that are not in the manifest."""
        folder = os.path.join(self._folder, "runs")
        known = {run.name for run in self._current().runs}
        try:
            listed = self._fs.list(folder)
        except FileNotFoundError:
            return
        for entry in listed:
            if entry.name not in known and not entry.name.endswith(".tmp"):
                remove_tree(self._fs, os.path.join(folder, entry.name))

    def _run_options(self, log: Log) -> dict[str, Any]:
        return {
            "flush": "async",
            "compression": CODEC_NAMES[log.options.codec],
            "max_batch_bytes": MAX_SECTION,  # whatever was accepted has a place
        }

    def tidy(self) -> None:
        """Give back space, if there is enough of it."""
        state = self._state
        if state is not None and state.is_untidy:
            with self._turn() as state:
                if state.is_untidy:
                    self._sort()

    def merge(self) -> bool:
        """Do some of the work of making one run of many; is there more to do? For one process at a
        time, when it has nothing better to do: nobody waits for it."""
        merge = self._merge
        if merge is None:
            merge = self._merge = self._begin_merge()
        if merge is None:
            return False
        try:
            if not merge.step():
                self._merge = None
                self._end_merge(merge)
        except BaseException as error:
            self._merge = None
            merge.abandon()
            if not isinstance(error, OSError | TailraceError) or self._has(merge.names):
                raise
            return False  # its runs are done with, and another process has removed them
        return True

    def _has(self, names: set[str]) -> bool:
        return names <= {run.name for run in Manifest.load(self._fs, self._folder).runs}

    def _begin_merge(self) -> Merge | None:
        state = self._state
        if state is None or len(state.runs) < _MERGE_AT:
            return None
        with self._turn() as state:
            tiers = [run.info.tier for run in state.runs]
            tier = min((each for each in tiers if tiers.count(each) >= _MERGE_AT), default=None)
            if tier is None:
                return None
            chosen = [run.now() for run in state.runs if run.info.tier == tier]
            options = self._run_options(self._queue.log)
            return Merge(self._fs, os.path.join(self._folder, "runs"), chosen, tier + 1, options)

    def _end_merge(self, merge: Merge) -> None:
        """Put the new run in the place of the others. What was delivered of them meanwhile is what
        comes first in it: everything is delivered in the order of the keys."""
        with self._turn() as state:
            inputs = [run for run in state.runs if run.name in merge.names]
            if len(inputs) != len(merge.names):  # some are done with, or everything was dropped
                merge.abandon()
                return
            number = state.manifest.next_run
            made = merge.install(f"{number:08d}", inputs)
            state.runs = [run for run in state.runs if run not in inputs]
            state.spent += inputs
            # Of inputs that cannot be read nothing is left.
            (state.spent if made.is_spent else state.runs).append(made)
            self._sort(merged=made)


def records_of(log: Log, first: int, end: int) -> Iterator[Record]:
    """Records of `incoming`. What is damaged is told of, and passed by."""
    first = max(first, log.start_offset)
    while first < end:
        try:
            for record in log.read(first, end):
                yield record
                first = record.offset + 1  # type: ignore[operator]
            return
        except Corrupt as error:
            if error.next_offset is None or error.next_offset <= first:
                raise
            extra = {"path": log.path, "offset": first}
            logger.error("delayed messages are lost: %s", error, extra=extra)
            first = error.next_offset


def _end_of(log: QueueLog) -> int:
    """The end of a log, such that everything below can be read."""
    end = log.exact_end()
    if log.flush_mode == "sync":
        log.flush()  # only what is durable is seen, and a dead writer may have left some
    for _ in range(_LOOKS):
        try:
            log.read(end, end)
        except OffsetOutOfRange:  # segments are being changed
            time.sleep(0.001)
        else:
            return end
    raise NotWritten(f"{log.path} cannot be read up to its end, which is {end}")


def _last_op(incoming: Log, first: int, end: int) -> int:
    """The offset of the last record that is no message; -1 if there is none."""
    ops = (record.offset for record in records_of(incoming, first, end) if is_op(record))
    last = -1
    for offset in ops:
        last = offset if offset is not None else last
    return last


def _present(log: Log, first: int) -> set[tuple[str, int]]:
    """Which batches of producers the queue has from an offset on."""
    found: set[tuple[str, int]] = set()
    first = max(first, log.start_offset)
    while first < log.end_offset:
        try:
            for batch in log.read_batches(first):
                for _base, _count, _time, headers in first_headers(batch.data, 0, len(batch.data)):
                    if headers and PRODUCER_HEADER in headers and SEQUENCE_HEADER in headers:
                        producer = headers[PRODUCER_HEADER].decode("utf-8", "replace")
                        with contextlib.suppress(ValueError):
                            found.add((producer, int(headers[SEQUENCE_HEADER])))
                first = batch.base_offset + batch.count
            return found
        except Corrupt as error:
            if error.next_offset is None or error.next_offset <= first:
                raise
            first = error.next_offset
    return found


def _try_to_encode(records: list[Record], log: Log, producer: str) -> None:
    """`TooLarge` if they don't fit into a batch."""
    headers = headers_of(Once(producer, _LONGEST))
    encode(records, 0, log.options.codec, headers, log.options.max_batch_bytes)
