"""Queues as Spark tables: `spark.read.format("tailrace")` and `spark.readStream`.

Filters are not pushed down, on purpose: Spark keeps the pushed-down plan with the DataFrame, and
the next query over it gets the rows of the first. What is to be left out is said by options.

Everything here is pickled on its way to the processes that plan and read, so it is plain data;
files are opened where they are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tailrace.errors import ConfigError, OffsetOutOfRange
from tailrace.log.log import Log
from tailrace.queue.settings import QueueSettings
from tailrace.spark.columns import Projection
from tailrace.spark.machine import processors
from tailrace.spark.options import SourceOptions, Start
from tailrace.spark.planning import (
    Place,
    Position,
    Positions,
    Range,
    Split,
    cut,
    next_readable,
    pack,
    parted,
    reachable,
    read,
    went_back,
)
from tailrace.spark.provider import TailraceSource
from tailrace.spark.versions import LIMITS
from tailrace.spark.workers import confirm_quickly, freeze_imports

if TYPE_CHECKING:
    from tailrace.spark.lake.together import Whole

_InSteps: Any = object if LIMITS is None else LIMITS.SupportsTriggerAvailableNow

__all__ = ["TailraceSource"]

_TASKS_EACH: Final = 4  # for each processor, so that all have about as much to do
_LEAST_BYTES: Final = 4096  # of a split; if more are wanted, they are cut inside of batches


class _Part(InputPartition):
    """A split, as Spark hands it on."""

    def __init__(self, split: Split) -> None:
        self.value = split


class _Wanted(NamedTuple):
    """Offsets `first <= o < last` of a queue."""

    queue: QueueSettings
    first: int
    last: int


class _Reader:
    """What both readers do."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def _chosen(self, place: Place) -> dict[str, QueueSettings]:
        there = place.queues()
        return {name: there[name] for name in self._options.chosen(there)}

    def _splits(
        self, place: Place, wanted: list[_Wanted], wholes: Mapping[str, Whole]
    ) -> list[InputPartition]:
        """Smaller and smaller ones, until there are as many as are asked for."""
        options = self._options
        split_bytes = options.split_bytes
        least = options.min_partitions or 1
        while True:
            ranges = [
                part
                for each in wanted
                if each.first < each.last
                for part in self._ranges(place, each, wholes.get(each.queue.name), split_bytes)
            ]
            if not ranges:
                return []
            size = self._size_of_tasks(ranges, split_bytes)
            splits = pack(iter(ranges), size, 2 * split_bytes)
            if len(splits) >= least:
                return [_Part(split) for split in splits]
            if split_bytes <= _LEAST_BYTES:
                return [_Part(split) for split in parted(splits, least)]
            total = sum(part.size for part in ranges)
            split_bytes = min(split_bytes // 2, max(total // least, _LEAST_BYTES))

    def _size_of_tasks(self, ranges: list[Range], split_bytes: int) -> int:
        """Twice as much in each, unless somebody has said something, where there are enough of them
        for each processor here all the same: a task takes some milliseconds, whatever it reads."""
        options = self._options
        if options.has_split_bytes or options.min_partitions is not None:
            return split_bytes
        total = sum(part.size for part in ranges)
        is_much = total >= _TASKS_EACH * processors() * 2 * split_bytes
        return 2 * split_bytes if is_much else split_bytes

    def _ranges(
        self, place: Place, wanted: _Wanted, whole: Whole | None, split_bytes: int
    ) -> list[Range]:
        queue, first, last = wanted
        if whole is not None:
            return list(whole.ranges(first, last, split_bytes))
        with place.log(queue.name, queue.incarnation) as log:
            return [] if log is None else self._cut(log, queue, first, last, split_bytes)

    def _cut(
        self, log: Log, queue: QueueSettings, first: int, last: int, split_bytes: int
    ) -> list[Range]:
        """Retention may have passed the offset, and may do so now."""
        last = reachable(log, queue.name, last, fail_on_loss=self._options.fail_on_loss)
        while first < last:
            try:
                return list(cut(log, queue, first, last, split_bytes))
            except OffsetOutOfRange as error:
                if error.low <= first:  # the log ends before it: it went back
                    raise
                first = next_readable(error, first, fail_on_loss=self._options.fail_on_loss)
            except FileNotFoundError:  # deleted just now: look again
                if log.start_offset <= first:
                    raise
        return []

    def read(self, partition: Any) -> Iterator[Any]:
        """In a task."""
        freeze_imports()
        if isinstance(partition, _Part):  # an empty table is one partition of nothing
            options = self._options
            yield from read(
                options.path,
                partition.value,
                self._projection,
                options.rows,
                fail_on_loss=options.fail_on_loss,
            )
        confirm_quickly()


class BatchReader(_Reader, DataSourceReader):
    """`spark.read`."""

    def partitions(self) -> list[InputPartition]:
        freeze_imports()
        place = Place(self._options.path)
        chosen = self._chosen(place)
        self._options.check_offsets(chosen)
        with contextlib.ExitStack() as stack:
            wholes = self._wholes(stack, place, chosen.values())
            wanted = [
                self._bounds(place, queue, wholes.get(queue.name)) for queue in chosen.values()
            ]
            return self._splits(place, wanted, wholes)

    def _wholes(
        self, stack: contextlib.ExitStack, place: Place, queues: Iterable[QueueSettings]
    ) -> dict[str, Whole]:
        """Queues with their archives, if those are wanted. Found once for a plan, as their
        manifests are read for that; their logs are open as long."""
        found: dict[str, Whole] = {}
        if self._options.has_archive:
            from tailrace.spark.lake import together

            for queue in queues:
                log = stack.enter_context(place.log(queue.name, queue.incarnation))
                whole = together.find_whole(place, queue, self._options, log)
                if whole is not None:
                    found[queue.name] = whole
        return found

    def _bounds(self, place: Place, queue: QueueSettings, whole: Whole | None) -> _Wanted:
        if whole is not None:
            return _Wanted(queue, *self._offsets(whole, queue.name))
        with place.log(queue.name, queue.incarnation) as log:
            return _Wanted(queue, *((0, 0) if log is None else self._offsets(log, queue.name)))

    def _offsets(self, log: Bounded, name: str) -> tuple[int, int]:
        options = self._options
        last = offset_of(log, name, options.end, "latest", "endingOffsets")
        if options.ending_ms is not None:
            last = min(last, log.offset_at(options.ending_ms))
        return first_of(log, name, options), last


class Bounded(Protocol):
    """What has offsets, and times: a log, or that with its archive."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def offset_at(self, timestamp: int, /) -> int: ...


def offset_of(log: Bounded, name: str, given: Start, default: str, option: str) -> int:
    """The offset that an option means; of a queue that it does not name, the `default`, which is a
    word."""
    word = given if isinstance(given, str) else default
    if isinstance(given, dict) and name in given:
        offset = given[name]
        if offset >= 0:
            if offset > log.end_offset:
                raise ConfigError(
                    f"{option}: offset {offset} of {name!r} is beyond its end, {log.end_offset}"
                )
            return offset
        word = "earliest" if offset == -2 else "latest"
    return log.start_offset if word == "earliest" else log.end_offset


def first_of(log: Bounded, name: str, options: SourceOptions) -> int:
    """Where reading begins: an offset and a time both hold."""
    first = offset_of(log, name, options.start, "earliest", "startingOffsets")
    return first if options.starting_ms is None else max(first, log.offset_at(options.starting_ms))


class StreamReader(_Reader, DataSourceStreamReader, _InSteps):  # type: ignore[misc]
    """`spark.readStream`. An offset of Spark's is where each queue was read up to:
    `{"orders": [17, "5d2f…"]}`, with the queue's incarnation; `""` if it had none yet."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        super().__init__(options, projection)
        self._target: Positions | None = None  # of Trigger.AvailableNow
        self._noted: Positions | None = None  # as the progress of the group

    def _chosen(self, place: Place) -> dict[str, QueueSettings]:
        found = super()._chosen(place)
        for name, queue in found.items() if self._options.group is not None else ():
            if queue.type != "stream":
                raise ConfigError(
                    f"group: {name!r} is a work queue, whose groups claim messages; the progress "
                    "of a query can be that of a stream's group only"
                )
        return found

    def initialOffset(self) -> Positions:  # noqa: N802
        options = self._options
        place = Place(options.path)
        chosen = self._chosen(place)
        options.check_offsets(chosen)
        found = {
            name: _position(place, queue, partial(first_of, name=name, options=options))
            for name, queue in chosen.items()
        }
        self._noted = found  # nothing is done yet
        return found

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        assert LIMITS is not None  # who has none does not ask
        most = self._options.max_offsets
        return LIMITS.ReadAllAvailable() if most is None else LIMITS.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> Positions:  # noqa: N802
        return self._ends()

    def latestOffset(  # noqa: N802
        self, start: Positions | None = None, limit: Any = None
    ) -> Positions:
        ends = self._ends() if self._target is None else self._target
        if start is None:
            return ends
        self._note(start)  # Spark asks when all below is committed, also while nothing comes
        start = self._still_read(start, ends)
        most = getattr(limit, "max_rows", None)
        return limited({**self._begins(ends.keys() - start.keys()), **start}, ends, most)

    def _still_read(self, start: Positions, ends: Positions) -> Positions:
        """Of where a query is, what there is to go on from: queues may have been deleted, or left
        out of the query, and logs may be older than they were."""
        options = self._options
        found: Positions = {}
        for name, (first, incarnation) in start.items():
            if name in ends:
                end, now = ends[name]
                if end < first and incarnation in ("", now):
                    if options.fail_on_loss:
                        raise went_back(name, Place(options.path).folder(name), first, end)
                    first = end
            elif not (options.fail_on_loss and options.reads(name)):
                continue
            found[name] = [first, incarnation]
        return found

    def _begins(self, names: Collection[str]) -> Positions:
        """Of queues that were made since: all of what they have is new."""
        place = Place(self._options.path)
        chosen = self._chosen(place) if names else {}
        return {name: _position(place, chosen[name], _start) for name in chosen if name in names}

    def _ends(self) -> Positions:
        place = Place(self._options.path)
        chosen = self._chosen(place)
        return {name: _position(place, queue, _end) for name, queue in chosen.items()}

    def partitions(self, start: Positions, end: Positions) -> list[InputPartition]:
        place = Place(self._options.path)
        there = place.queues()
        wanted = []
        for name, (last, incarnation) in end.items():
            if not self._options.reads(name):
                continue
            if name not in there and not self._options.fail_on_loss:
                continue
            place.check_same(name, incarnation)
            first, known = start.get(name, (None, incarnation))
            place.check_same(name, known)
            if first is None:  # it was made since, so all of it is new
                first, _ = _position(place, there[name], _start)
            elif first > last and self._options.fail_on_loss:  # before 4.2 nobody has looked yet
                raise went_back(name, place.folder(name), first, last)
            wanted.append(_Wanted(there[name], first, last))
        return self._splits(place, wanted, {})  # a stream has no archive

    def commit(self, end: Positions) -> None:
        """Spark has done with everything below. It tells so when the next batch begins, and not of
        the last one; from 4.2 on `latestOffset` knows it earlier."""
        self._note(end)

    def _note(self, done: Positions) -> None:
        if self._options.group is not None and done != self._noted:
            from tailrace.spark.progress import commit_progress

            commit_progress(self._options.path, self._options.group, done)
            self._noted = done

    def stop(self) -> None: ...


_start: Callable[[Log], int] = attrgetter("start_offset")
_end: Callable[[Log], int] = attrgetter("end_offset")


def _position(place: Place, queue: QueueSettings, find: Callable[[Log], int]) -> Position:
    """What is found in a queue's log; 0 if nobody has used it yet."""
    with place.log(queue.name, queue.incarnation) as log:
        return [0 if log is None else find(log), queue.incarnation]


def limited(start: Positions, ends: Positions, most: int | None) -> Positions:
    """As far as a trigger may go: each queue gets its share of so many offsets. Never back."""
    left = {
        name: max(end - (start[name][0] if name in start else 0), 0)
        for name, (end, _) in ends.items()
    }
    total = sum(left.values())
    found = dict(start)
    for name, (end, incarnation) in ends.items():
        first = start[name][0] if name in start else 0
        share = left[name]
        if most is not None and total > most:
            share = min(share, -(-left[name] * most // total))  # rounded up: all come to their end
        found[name] = [max(first, min(end, first + share)), incarnation]
    return found
