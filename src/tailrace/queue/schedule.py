"""What is to be delivered later, and when: the state behind a queue's delayed messages.

It is like the tree of a log-structured store. What is published goes to the log `incoming`, in the
order of publishing, and is kept in memory by those who have to know; when that has become much, it
is written to a sorted run (`sorted_runs.py`), and memory and log begin anew. So however much is
scheduled, memory holds a bounded number of the latest messages, and of each run what is due next.

The state is the manifest `schedule.json` (which runs there are, and from where on `incoming`
counts), and then the records of `incoming`, in order:

    a message    its timestamp is when it is due
    cancel       a message is not to be delivered
    deliver      these messages go to the queue now

The last two are operations, which are JSON; their keys are short since there are many:

    k   of `cancel`, the key of the message: when it is due, and its offset; of `deliver`, the key
        of the last that was looked at, up to which everything is done with
    m   which messages of `incoming` go: runs of their offsets
    r   by the name of a sorted run: its next position, what is live from there on, and which go:
        runs of their positions
    p   the producer by whose name their batch is in the queue; its sequence is this offset
    x   where the queue ended, from where on one looks for the batch
    b   the boot it was written in
    f   below this offset of `incoming` the queue has all intents, durably if it promises that

So everybody who reads the files has the same state. Not thread-safe: the turn guards it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from heapq import merge as merge_sorted
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt
from tailrace.kernel import Record, find_header
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.sidefiles import load_checked_json, store_checked_json
from tailrace.queue.runs import Runs, offsets_of, runs_of
from tailrace.queue.sorted_runs import CANCEL, MESSAGE, VOID, WEIGHT, Entry, Key, Run, RunInfo
from tailrace.queue.weighing import weigh_message

__all__ = [
    "OP",
    "Batch",
    "Intent",
    "Manifest",
    "Schedule",
    "is_op",
    "most_unsorted",
    "op_record",
]

OP: Final = "_delays"  # the header that says what a record of `incoming` is, if it is no message
_RAW_OP: Final = OP.encode()
_FORMAT: Final = 1
_MANIFEST_LIMIT: Final = 4 << 20

# When memory is full: so many records of `incoming`, or so many bytes.
_RECORDS_MOST: Final = 50_000
_BYTES_MOST: Final = 16 << 20

# What is left of runs that are done with is not worth a new manifest before it is so much.
_SPENT_MUCH: Final = 4_096
_QUIET_RECORDS: Final = 1_024

_NEVER_OVER: Final = 2**63
_BEFORE_ALL: Final = (-1, 0)  # a key


class Manifest(NamedTuple):
    """Which runs there are, the number of the next, and from where on `incoming` counts. The `id`
    is drawn when there is something to be scheduled for the first time, or again: offsets begin
    anew then."""

    id: str = ""
    incoming: int = 0
    next_run: int = 1
    runs: tuple[RunInfo, ...] = ()

    @staticmethod
    def path(folder: str) -> str:
        return os.path.join(folder, "schedule.json")

    @classmethod
    def read(cls, fs: FileSystem, folder: str) -> bytes | None:
        """The bytes of the file, to see whether it is another; `None` if there is none yet."""
        return read_file(fs, cls.path(folder), _MANIFEST_LIMIT)

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> Manifest:
        path = cls.path(folder)
        document = load_checked_json(fs, path, _MANIFEST_LIMIT)
        if document is None:
            if cls.read(fs, folder) is None:
                return cls()
            raise Corrupt(
                f"{path} is damaged: what was to be delivered when is not known. Restore it from a "
                "backup, or remove its folder to give up the delayed messages of the queue",
                path=path,
            )
        try:
            if document["format"] > _FORMAT:
                raise ConfigError(
                    f"{path} has the format {document['format']}; this tailrace knows formats up "
                    f"to {_FORMAT}: upgrade tailrace to open it"
                )
            runs = tuple(RunInfo(*each) for each in document["runs"])
            return cls(document["id"], document["incoming"], document["next_run"], runs)
        except (KeyError, TypeError, ValueError) as error:
            text = f"{path} says nothing that makes sense: {error!r}"
            raise Corrupt(text, path=path) from error

    def store(self, fs: FileSystem, folder: str) -> None:
        document = {"format": _FORMAT, **self._asdict(), "runs": [list(run) for run in self.runs]}
        store_checked_json(fs, self.path(folder), document)


class Intent(NamedTuple):
    """That messages go to the queue: the record `deliver` at an offset of `incoming`. From when it
    is there they are not scheduled any more; if whoever wrote it dies, the next one does it."""

    offset: int
    op: dict[str, Any]

    @property
    def is_empty(self) -> bool:
        """Is it only about messages that were cancelled?"""
        return not self.op["m"] and not any(part[2] for part in self.op["r"].values())


class Batch(NamedTuple):
    """What is due next. `last` is the key of the last that was looked at, which is done with."""

    records: list[Record]
    last: Key
    offsets: Runs  # of those that are in `incoming`
    runs: dict[str, list[Any]]  # by name: the next position, what is live then, which were taken


class _Part:
    """How far a look at a run has come."""

    def __init__(self, run: Run) -> None:
        self.name = run.name
        self.position, self.live = run.position, run.live
        self.taken: list[int] = []


class Schedule:
    def __init__(self, fs: FileSystem, folder: str, manifest: Manifest) -> None:
        self.manifest = manifest
        self.next_offset = manifest.incoming  # of `incoming`, up to which everything is applied
        self.waiting: dict[int, Record] = {}  # messages, by their offset there
        self.runs: list[Run] = []
        self.spent: list[Run] = []  # whose files are still needed until there is a new manifest
        self.intents: list[Intent] = []  # of which the queue may not have everything durably
        self._heap: list[Key] = []  # of what waits, and of some that do not any more
        # What was cancelled, until it would have been due; true if the message is in a run.
        self._cancelled: dict[Key, bool] = {}
        self._cancelled_heap: list[Key] = []
        self._cancelled_in_runs = 0
        self.bytes = 0
        try:
            for info in manifest.runs:
                self.runs.append(Run(fs, os.path.join(folder, "runs", info.name), info))
        except BaseException:
            self.close()
            raise

    # --- what happened ----------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """The next record of `incoming`."""
        offset: int = record.offset  # type: ignore[assignment]
        self.next_offset = offset + 1
        self.bytes += weigh_message(record)
        kind = find_header(record, _RAW_OP)
        if kind is None:
            due: int = record.timestamp  # type: ignore[assignment]
            self.waiting[offset] = record
            heappush(self._heap, (due, offset))
            return
        op = json.loads(record.value or b"{}")
        if kind == b"deliver":
            self._deliver(Intent(offset, op))
        elif kind == b"cancel":
            self._cancel((op["k"][0], op["k"][1]))

    def _deliver(self, intent: Intent) -> None:
        op = intent.op
        for offset in offsets_of(op["m"]):
            self.waiting.pop(offset, None)
        for run in list(self.runs):
            if run.name in op["r"]:
                position, live, _taken = op["r"][run.name]
                run.advance(position, live)
                if run.is_spent:
                    self.runs.remove(run)
                    self.spent.append(run)
        last = tuple(op["k"])
        while self._cancelled_heap and self._cancelled_heap[0] <= last:
            if self._cancelled.pop(heappop(self._cancelled_heap), False):
                self._cancelled_in_runs -= 1
        self.intents = [each for each in self.intents if each.offset >= op["f"]]
        self.intents.append(intent)

    def _cancel(self, key: Key) -> None:
        if key in self._cancelled:
            return
        is_in_run = self.waiting.pop(key[1], None) is None
        self._cancelled[key] = is_in_run
        self._cancelled_in_runs += is_in_run
        heappush(self._cancelled_heap, key)

    # --- what there is ----------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Messages that are to be delivered. Where runs are damaged it may be somewhat off."""
        live = sum(run.live for run in self.runs)
        return max(len(self.waiting) + live - self._cancelled_in_runs, 0)

    @property
    def is_over(self) -> bool:
        """Is there nothing to be delivered? What is damaged does not count."""
        return not self.count and next(self.all(), None) is None

    @property
    def next_due(self) -> int | None:
        """When there is something to do next."""
        heap = self._heap
        while heap and heap[0][1] not in self.waiting:
            heappop(heap)
        times = [heap[0][0]] if heap else []
        for run in self.runs:
            times += [entry.key[0] for _, entry in islice(run.ahead(), 1)]
        return min(times, default=None)

    def find(self, key: Key) -> bytes | None:
        """`MESSAGE` if it is to be delivered, `VOID` if it was cancelled, `None` if it is neither:
        delivered, or never heard of."""
        if key in self._cancelled:
            return VOID
        record = self.waiting.get(key[1])
        if record is not None:
            return MESSAGE if record.timestamp == key[0] else None
        kinds = {run.find(key) for run in self.runs} - {None}
        if not kinds:
            return None
        return MESSAGE if kinds == {MESSAGE} else VOID

    @property
    def is_full(self) -> bool:
        records = self.next_offset - self.manifest.incoming
        return records >= _RECORDS_MOST or self.bytes >= _BYTES_MOST

    @property
    def is_untidy(self) -> bool:
        """Is it worth a new manifest?"""
        spent = sum(run.info.end for run in self.spent)
        if spent and (spent >= _SPENT_MUCH or not self.waiting):
            return True
        is_over = not (self.waiting or self.runs)
        return is_over and self.next_offset - self.manifest.incoming >= _QUIET_RECORDS

    def take(self, now_ms: int, most: int, most_bytes: int) -> Batch | None:
        """What is due, in order, up to so much; nothing is taken out before `deliver` is applied.
        `None` if nothing is due, and no run ends before what it was to hold."""
        parts = [_Part(run) for run in self.runs]
        popped: list[Key] = []
        sources = [self._due_here(now_ms, popped)]
        sources += [_due_of(run, i, now_ms) for i, run in enumerate(self.runs)]
        records: list[Record] = []
        offsets: list[int] = []
        size, last = 0, None
        for key, same in groupby(merge_sorted(*sources, key=_first_of), key=_first_of):
            if len(records) >= most or size >= most_bytes:
                break
            last, chosen = key, self._choose(key, list(same), parts, offsets)
            if chosen is not None:
                records.append(chosen)
                size += weigh_message(chosen)
        for key in popped:
            heappush(self._heap, key)
        runs = {}
        for part, run in zip(parts, self.runs, strict=True):
            if run.is_lost_from(part.position):  # or it would stay for ever
                part.position, part.live = run.info.end, 0
            if part.position != run.position:
                taken = runs_of(part.taken) if part.taken else []
                runs[part.name] = [part.position, part.live, taken]
        if last is None and not runs:
            return None
        in_memory = runs_of(sorted(offsets)) if offsets else []
        return Batch(records, last or _BEFORE_ALL, in_memory, runs)

    def _due_here(self, now_ms: int, popped: list[Key]) -> Iterator[_Candidate]:
        heap, waiting = self._heap, self.waiting
        while heap and heap[0][0] <= now_ms:
            key = heappop(heap)
            record = waiting.get(key[1])
            if record is not None:
                popped.append(key)
                yield key, -1, key[1], Entry(key, MESSAGE, record)

    def _choose(
        self, key: Key, same: list[_Candidate], parts: list[_Part], offsets: list[int]
    ) -> Record | None:
        """The message with a key, unless it is cancelled. The runs are gone past it."""
        is_cancelled = key in self._cancelled or any(each[3].kind != MESSAGE for each in same)
        chosen = None
        for _, source, position, entry in same:
            if source >= 0:
                part = parts[source]
                part.position = position + 1
                part.live -= WEIGHT[entry.kind]
            if is_cancelled or chosen is not None:
                continue
            chosen = entry.record
            if source >= 0:
                parts[source].taken.append(position)
            else:
                offsets.append(position)
        return chosen

    def entries(self, now_ms: int) -> list[Entry]:
        """What is not in runs, sorted, to be written to one."""
        found = [
            Entry((record.timestamp, offset), MESSAGE, record)  # type: ignore[arg-type]
            for offset, record in self.waiting.items()
        ]
        for key, is_in_run in self._cancelled.items():
            if is_in_run:
                found.append(Entry(key, CANCEL))
            elif key[0] > now_ms:
                found.append(Entry(key, VOID))
        found.sort(key=lambda entry: entry.key)
        return found

    def all(self) -> Iterator[tuple[Key, Record]]:
        """Everything that is to be delivered, in order."""
        here = [entry for entry in self.entries(_NEVER_OVER) if entry.kind == MESSAGE]
        sources: list[Iterable[Entry]] = [here]
        sources += [run.entries() for run in self.runs]
        for key, same in groupby(merge_sorted(*sources, key=_key_of), key=_key_of):
            found = list(same)
            if key not in self._cancelled and all(entry.kind == MESSAGE for entry in found):
                assert found[0].record is not None
                yield key, found[0].record

    def taken(self, intent: Intent) -> Iterator[Entry]:
        """What an intent takes from runs."""
        by_name = {run.name: run for run in (*self.runs, *self.spent)}
        for name, (_position, _live, taken) in intent.op["r"].items():
            if taken:
                yield from by_name[name].at(offsets_of(taken))

    def close(self) -> None:
        for run in (*self.runs, *self.spent):
            run.close()
        self.runs, self.spent = [], []


# A key, the number of the run (-1: it is in memory), the position there (or the offset), and what
# it is.
_Candidate = tuple[Key, int, int, Entry]


def _due_of(run: Run, number: int, now_ms: int) -> Iterator[_Candidate]:
    for position, entry in run.ahead():
        if entry.key[0] > now_ms:
            return
        yield entry.key, number, position, entry


def _first_of(candidate: _Candidate) -> Key:
    return candidate[0]


def _key_of(entry: Entry) -> Key:
    return entry.key


def most_unsorted() -> tuple[int, int]:
    """How many records of `incoming`, and how many bytes, who publishes leaves to others to sort:
    more than fills the memory of whoever delivers, who is to do it if there is one."""
    return 2 * _RECORDS_MOST, 2 * _BYTES_MOST


def is_op(record: Record) -> bool:
    """Is a record of `incoming` something else than a message?"""
    return find_header(record, _RAW_OP) is not None


def op_record(kind: str, op: dict[str, Any], now_ms: int) -> Record:
    value = json.dumps(op, separators=(",", ":"))
    return Record(None, now_ms, None, value, [(OP, kind)])
