"""Sorted runs: delayed messages on the disk, in the order in which they are due.

A run is a log that is written once and then only read. Its records are sorted by their key: when
they are due, and where they were in the log `incoming`, which is the order of publishing. The
record's timestamp is the first; its key begins with a letter and the second, in 8 bytes, and the
message's own key follows:

    m   a message
    c   a message that is in an older run, or was: it is cancelled
    v   a message that was cancelled, of which nothing else is left

Cancelled messages leave a mark until they would have been due, so that to cancel one again gives
the same answer. Not thread-safe: the schedule's turn guards it.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from heapq import merge as merge_sorted
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.fs import FileSystem, OsFileSystem, remove_tree
from tailrace.log.log import Log
from tailrace.queue.weighing import weigh_message

__all__ = [
    "CANCEL",
    "MESSAGE",
    "VOID",
    "WEIGHT",
    "Entry",
    "Key",
    "Merge",
    "Run",
    "RunInfo",
    "write_run",
]

logger = logging.getLogger("tailrace")

MESSAGE, CANCEL, VOID = b"m", b"c", b"v"
WEIGHT: Final = {MESSAGE: 1, CANCEL: -1, VOID: 0}  # what it adds to the number of messages

_HEAD = struct.Struct(">cQ")
_BATCH = 128  # entries; who looks for one reads a batch,
_BATCH_BYTES = 8 << 20  # which is no larger than this and one message
_AHEAD = 512  # entries that are read at a time,
_BYTES_AHEAD = 1 << 20  # or as many as take this, since there are many runs
_PROBES_MOST = 4096  # that are remembered
_STEP = 2_000  # entries that are merged at a time

Key = tuple[int, int]  # when it is due, and its offset in `incoming`


class Entry(NamedTuple):
    """Something in a run. A message's record is as it goes to the queue."""

    key: Key
    kind: bytes
    record: Record | None = None


class RunInfo(NamedTuple):
    """What the manifest says of a run: what lies before `position` is done with. The offsets of its
    entries are in `first..last`; `live` is the number of its messages less those it cancels."""

    name: str
    position: int
    end: int
    live: int
    first: int
    last: int
    tier: int


def write_run(
    fs: FileSystem, folder: str, entries: Iterable[Entry], tier: int, arguments: dict[str, Any]
) -> RunInfo | None:
    """Write a run, durably; `None` if there is nothing for it. What somebody may have left there
    goes first."""
    entries = iter(entries)
    first = next(entries, None)
    if first is None:
        return None
    writer = _Writer(fs, folder, tier, arguments)
    try:
        writer.add(first)
        for entry in entries:
            writer.add(entry)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Writer:
    """A run that is being written."""

    def __init__(self, fs: FileSystem, folder: str, tier: int, arguments: dict[str, Any]) -> None:
        _clear(fs, folder)
        self._folder = folder
        self._tier = tier
        self._batch: list[Record] = []
        self._bytes = 0  # of the batch
        self._live = self._end = 0
        self._first, self._last = 2**63, -1
        self._log = Log(folder, fs=_given(fs), upkeep=False, **arguments)

    def add(self, entry: Entry) -> None:
        (due, offset), kind, record = entry
        head = _HEAD.pack(kind, offset)
        if record is None:
            self._batch.append(Record(None, due, head))
        else:
            key = head + (record.key or b"")
            self._batch.append(Record(None, due, key, record.value, record.headers))
            self._bytes += weigh_message(record)
        self._live += WEIGHT[kind]
        self._end += 1
        self._first = min(self._first, offset)
        self._last = max(self._last, offset)
        if len(self._batch) == _BATCH or self._bytes >= _BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        self._log.append_many(self._batch)
        self._batch, self._bytes = [], 0

    def finish(self) -> RunInfo:
        if self._batch:
            self._write()
        self._log.flush()
        self._log.close()
        name = os.path.basename(self._folder)
        return RunInfo(name, 0, self._end, self._live, self._first, self._last, self._tier)

    def abandon(self) -> None:
        self._log.abandon()


class Run:
    """A run that is read, from its position on."""

    def __init__(self, fs: FileSystem, folder: str, info: RunInfo) -> None:
        self.info = info
        self.position = info.position
        self.live = info.live
        self._folder = folder
        self._log = Log(folder, read_only=True, fs=_given(fs))
        self._ahead: list[tuple[int, Entry]] = []  # with their positions, from `position` on
        self._read_to = info.position
        self._probes: dict[int, Key] = {}

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def is_spent(self) -> bool:
        return self.position >= self.info.end

    def now(self) -> RunInfo:
        return self.info._replace(position=self.position, live=self.live)

    def ahead(self) -> Iterator[tuple[int, Entry]]:
        """What there is, with its positions; nothing is taken out."""
        at = 0
        while True:
            while at < len(self._ahead):
                yield self._ahead[at]
                at += 1
            if not self._read_on():
                return

    def is_lost_from(self, position: int) -> bool:
        """Should there be more, and can nothing of it be read?"""
        return position < self.info.end and all(at < position for at, _ in self.ahead())

    def _read_on(self) -> bool:
        if self._read_to >= self.info.end:
            return False
        stop, size = min(self._read_to + _AHEAD, self.info.end), 0
        for position, entry in self._entries(self._read_to, stop):
            self._ahead.append((position, entry))
            size += weigh_message(entry.record) if entry.record is not None else 0
            if size >= _BYTES_AHEAD:
                stop = position + 1
                break
        self._read_to = stop
        return True

    def entries(self) -> Iterator[Entry]:
        """The same, beside: for who takes their time with it."""
        for first in range(self.position, self.info.end, _AHEAD):
            for _, entry in self._entries(first, min(first + _AHEAD, self.info.end)):
                yield entry

    def _entries(self, first: int, stop: int) -> Iterator[tuple[int, Entry]]:
        while first < stop:
            try:
                for record in self._log.read(first, stop):
                    position: int = record.offset  # type: ignore[assignment]
                    yield position, _entry(record)
                    first = position + 1
                return
            except Corrupt as error:
                if error.next_offset is None or error.next_offset <= first:
                    raise
                extra = {"path": self._log.path, "offset": first}
                logger.error("delayed messages are lost: %s", error, extra=extra)
                first = error.next_offset
            except OffsetOutOfRange as error:
                extra = {"path": self._log.path, "offset": first}
                logger.error("delayed messages are lost: %s", error, extra=extra)
                return

    def advance(self, position: int, live: int) -> None:
        """What lies before is done with."""
        if position <= self.position:
            return
        self.position, self.live = position, live
        done = 0
        while done < len(self._ahead) and self._ahead[done][0] < position:
            done += 1
        del self._ahead[:done]
        self._read_to = max(self._read_to, position)

    def at(self, positions: Iterable[int]) -> Iterator[Entry]:
        """Entries by their positions, also those that are done with."""
        for position in positions:
            for _, entry in self._entries(position, position + 1):
                yield entry

    def find(self, key: Key) -> bytes | None:
        """Of what kind the entry with this key is, if there is one ahead."""
        if not self.info.first <= key[1] <= self.info.last:
            return None
        low, high = self.position, self.info.end
        while low < high:
            middle = (low + high) // 2
            if self._key_at(middle, high) < key:
                low = middle + 1
            else:
                high = middle
        found = next(self._entries(low, self.info.end), None) if low < self.info.end else None
        return found[1].kind if found is not None and found[1].key == key else None

    def _key_at(self, position: int, end: int) -> Key:
        """Of the entry there, or of the first behind it that can be read."""
        key = self._probes.get(position)
        if key is None:
            found = next(self._entries(position, end), None)
            if found is None:
                return (2**63, 0)
            key = found[1].key
            if len(self._probes) < _PROBES_MOST:
                self._probes[position] = key
        return key

    def position_of(self, key: Key) -> int:
        """The first position whose key is not below."""
        low, high = 0, self.info.end
        while low < high:
            middle = (low + high) // 2
            if self._key_at(middle, high) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        self._log.close()


class Merge:
    """Makes one run of several, by and by. Its inputs are those that the manifest has, and stay as
    they are; what is delivered of them meanwhile comes off in the end."""

    def __init__(
        self, fs: FileSystem, folder: str, infos: list[RunInfo], tier: int, options: dict[str, Any]
    ) -> None:
        """`folder` is where runs are."""
        self.names = {info.name for info in infos}
        self._fs = fs
        self._folder = os.path.join(folder, "merged.tmp")
        self._inputs: list[Run] = []
        self._writer = _Writer(fs, self._folder, tier, options)
        try:
            for info in infos:
                self._inputs.append(Run(fs, os.path.join(folder, info.name), info))
        except BaseException:
            self.abandon()
            raise
        self._entries = _merged(run.entries() for run in self._inputs)

    def step(self) -> bool:
        """Go on for a moment; false if it is done."""
        for number, entry in enumerate(self._entries, 1):
            self._writer.add(entry)
            if number == _STEP:
                return True
        return False

    def install(self, name: str, inputs: list[Run]) -> Run:
        """Give it its name, and have it begin where its inputs, of which some is left, are now."""
        info = self._writer.finish()._replace(name=name)
        self._close()
        folder = os.path.join(os.path.dirname(self._folder), name)
        _clear(self._fs, folder)
        self._fs.rename(self._folder, folder)
        self._fs.sync_dir(os.path.dirname(folder))
        made = Run(self._fs, folder, info)
        heads = [entry.key for run in inputs for _, entry in islice(run.ahead(), 1)]
        made.advance(made.position_of(min(heads)) if heads else info.end, 0)
        made.live = sum(run.live for run in inputs)
        return made

    def abandon(self) -> None:
        self._writer.abandon()
        self._close()
        remove_tree(self._fs, self._folder)

    def _close(self) -> None:
        for run in self._inputs:
            run.close()


def _merged(sources: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """The entries of several runs in one. Of a message and what cancels it, a mark is left."""
    for key, same in groupby(merge_sorted(*sources, key=_key_of), key=_key_of):
        found = {entry.kind: entry for entry in same}
        if len(found) > 1:
            yield Entry(key, VOID)
        else:
            yield from found.values()


def _key_of(entry: Entry) -> Key:
    return entry.key


def _entry(record: Record) -> Entry:
    head: bytes = record.key  # type: ignore[assignment]
    due: int = record.timestamp  # type: ignore[assignment]
    kind, offset = _HEAD.unpack_from(head)
    if kind != MESSAGE:
        return Entry((due, offset), kind)
    message = Record(None, due, head[_HEAD.size :], record.value, record.headers)
    return Entry((due, offset), kind, message)


def _clear(fs: FileSystem, folder: str) -> None:
    """Remove what somebody has left there who was killed, so that it never comes back."""
    try:
        fs.stat(folder)
    except FileNotFoundError:
        return
    remove_tree(fs, folder)
    fs.sync_dir(os.path.dirname(folder))


def _given(fs: FileSystem) -> FileSystem | None:
    """Without a file system of its own a log is in earnest about where it is."""
    return None if isinstance(fs, OsFileSystem) else fs
