"""How many files a store has open: those of queues that are in use, and else a bounded number.

A queue opens its log when it is first needed, and its groups, and keeps them. When there are too
many files, the queues that were opened first rest: they close what they have, unless anybody uses
it, and open it anew when they need it. When the process may open no more, all rest that can.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from tailrace.errors import NotWritten, TailraceError
from tailrace.kernel import HEADER_SIZE, MAX_SECTION, Record, encode
from tailrace.log.commit import Receipt
from tailrace.log.extents import Extents
from tailrace.log.inputs import checked_sequence
from tailrace.log.log import Log
from tailrace.log.options import FlushMode, LogOptions, Retention
from tailrace.log.producers import Once, headers_of
from tailrace.log.retention import VacuumReport, count_expired
from tailrace.log.stricter import be_stricter, raise_promise
from tailrace.queue.open_files import advice_on, lacks_files

__all__ = ["Bounds", "Handles", "QueueLog", "look_at", "opening", "other_references"]

T = TypeVar("T")

# Options that an open log can change; the others count when it is opened.
_LIVE = ("codec", "segment_bytes", "segment_age_ms", "index_max_bytes", "max_batch_bytes")


class Flushed(Protocol):
    def flush(self) -> None:
        """Make durable what was written."""


class QueueLog(Log):
    """The log of a queue, which goes by the clock of its store."""

    _label = ""

    def __init__(self, path: str, *, wall_ms: Callable[[], int], **options: Any) -> None:
        self._wall_ms = wall_ms
        self._along: set[weakref.ref[Flushed]] = set()
        super().__init__(path, **options)

    def label(self, queue: str) -> None:
        """What is measured of it is told by this name."""
        self._label = queue
        if self._writer is not None:
            self._writer.committer.label = queue

    def flush_along(self, group: Flushed) -> None:
        """Have a group flushed, as long as there is one, whenever this log is in the background."""
        self._along.add(weakref.ref(group, self._along.discard))

    def _open(self) -> None:
        raise_promise(self._fs, self._folder, self.options.flush)
        # Its thread has to know nothing of this object, which ends it when it is dropped.
        self._manner = self._manner._replace(along=partial(_flush_each, self._along))
        super()._open()
        self.label(self._label)  # a forked child opens it anew

    def exact_end(self) -> int:
        """Where the log ends, also while another process keeps its turn, which has to give it."""
        writer = self._writing()
        with writer.my_turn():
            return writer.tail.end_offset

    def find(self, producer: str | None, sequence: int | None) -> Receipt | None:
        """The receipt of what a producer has appended under a sequence; `None` if that is new. Only
        a hint: another process may be about to append it, and `append` looks again."""
        found = self._writing().find(Once(*checked_sequence(producer, sequence)))
        if found is None:
            return None
        offset, count = found
        return Receipt(offset, offset + count, count, self._committer)

    def append_portions(self, portions: Iterable[list[Record]]) -> Receipt:
        """As `append_many` does, of records that come in lists which probably fit into a batch."""
        return self._append_chunks(portions)

    def append_accepted(self, records: list[Record], once: Once) -> Receipt:
        """Append as one batch what was accepted before, or takes its place: also if it is more than
        `max_batch_bytes` by now."""
        now_ms = self._wall_ms()
        draft = encode(records, now_ms, self._codec, headers_of(once), MAX_SECTION)
        offset, count = self._writing().append_once(draft, once, now_ms)
        return Receipt(offset, offset + count, count, self._committer)

    def adopt(self, **arguments: Any) -> None:
        """Go on with the options that it would be opened with now, as far as it can."""
        given = LogOptions.parse(**arguments)
        options = replace(self.options, **{name: getattr(given, name) for name in _LIVE})
        if options != self.options:
            self.options, self._codec = options, options.codec
            self._max_batch_size = HEADER_SIZE + options.max_batch_bytes
            writer = self._writer
            if writer is not None:
                with writer.lock:
                    writer.tail.adopt(options)
        self.promise(given.flush)

    def promise(self, mode: FlushMode | None) -> None:
        """From now on receipts wait for the disk, if they did not. What there is goes there now."""
        if mode is None or mode.rank >= FlushMode(self.flush_mode).rank:
            return
        self.options = replace(self.options, flush=mode)
        writer = self._writer
        if writer is not None:
            be_stricter(writer, mode)
            self._committer = writer.committer if mode is FlushMode.SYNC else None

    def let_go(self, retention: Retention, below: int | None, start_was: int = 0) -> VacuumReport:
        """Delete the segments that retention lets go, as far as they are all below an offset; none
        if the log starts lower than it did when that was decided."""
        report = self._writing().vacuum(retention, below, start_was)
        self._observer.refresh()
        return report

    def would_let_go(self, retention: Retention, below: int | None) -> int:
        """Where the log would start then; nothing is deleted."""
        writer = self._writing()
        with writer.my_turn():
            extents, end = writer.tail.extents()
            extents = extents if extents[-1].size else extents[:-1]
            start, now_ms = writer.start_offset, self._wall_ms()
            count = count_expired(writer.catalog, extents, end, start, retention, now_ms, below)
            return max(extents[count].base if count < len(extents) else end, start)

    def end_of_first_segment(self) -> int | None:
        """Where the second segment begins; `None` if there is one segment, or none."""
        extents = self._observer.view().extents
        return extents[1].base if len(extents) > 1 else None

    def age_of_first_segment(self) -> int | None:
        """How many milliseconds ago its newest record was, by which retention goes; `None` if there
        is no segment."""
        for extent in self._observer.view().extents:
            if extent.size:
                return self._wall_ms() - self._observer.catalog.max_timestamp(extent)
        return None


def _flush_each(groups: set[weakref.ref[Flushed]]) -> None:
    for reference in list(groups):
        group = reference()
        if group is not None:
            group.flush()


class Bounds(NamedTuple):
    """What a log holds for those who read: where it starts and ends, and its segments, with what
    each of them takes on the disk."""

    start: int
    end: int
    segments: Extents


def look_at(log: Log) -> Bounds:
    """At any log, whether it is open for writing or not."""
    view, segments = log._observer.footprint()
    return Bounds(view.start, view.end, segments)


@contextlib.contextmanager
def opening(what: str) -> Iterator[None]:
    """As long as something is being opened, an error of the system is one of ours: whatever it was
    to be opened for has not begun."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{what} cannot be opened: {error}{advice_on(error)}") from error


_OWN_REFERENCES = 0  # which calls and variables have: that differs between versions of Python


def other_references(thing: object) -> int:
    """How many there are besides the caller's variable."""
    return sys.getrefcount(thing) - _OWN_REFERENCES


def _count_own_references() -> int:
    thing = object()
    return other_references(thing)


_OWN_REFERENCES = _count_own_references()


class Resting(Protocol):
    @property
    def files(self) -> int:
        """About how many it has open."""

    def rest(self) -> bool:
        """Let go of everything that is not in use; false if something is."""


class Handles:
    """Which queues have files open, oldest first. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[Resting, None] = {}

    def opened(self, queue: Resting) -> None:
        """It has more files now. Without a lock of a queue: have others rest, if these are too
        many."""
        for other in self._surplus(queue):
            if not other.rest():
                with self._lock:
                    self._open.setdefault(other)

    def open(self, queue: Resting | None, do: Callable[[], T]) -> T:
        """Without a lock of a queue: do what opens files, of one or of none; and again, if there
        may be no more of them, and others that nobody uses have let go of theirs."""
        try:
            return do()
        except (TailraceError, OSError) as error:
            if not lacks_files(error) or not self._let_rest(queue):
                raise
        return do()

    def _let_rest(self, queue: Resting | None) -> bool:
        """All that can; was there any?"""
        with self._lock:
            others = [each for each in self._open if each is not queue and each.files]
            for each in others:
                del self._open[each]
        has_rested = False
        for each in others:
            if each.rest():
                has_rested = True
            else:
                with self._lock:
                    self._open.setdefault(each)
        return has_rested

    def _surplus(self, queue: Resting) -> list[Resting]:
        with self._lock:
            self._open[queue] = self._open.pop(queue, None)
            surplus = sum(each.files for each in self._open) - self._most
            chosen = []
            surplus *= 2  # if some are in use, it is others that rest
            for each in list(self._open):
                if surplus <= 0:
                    break
                if each is not queue:
                    surplus -= each.files
                    chosen.append(each)
                    del self._open[each]
            return chosen

    def forget(self, queue: Resting) -> None:
        with self._lock:
            self._open.pop(queue, None)

    def disown(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()
