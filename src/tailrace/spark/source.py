"""Queues as Spark tables: `spark.read.format("tailrace")` and `spark.readStream`.

Filters are not pushed down, on purpose: Spark keeps the pushed-down plan with the DataFrame, and
the next query over it gets the rows of the first. What is to be left out is said by options.

Everything here is pickled on its way to the processes that plan and read, so it is plain data;
files are opened where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tailrace.errors import ConfigError, OffsetOutOfRange
from tailrace.log.log import Log
from tailrace.queue.settings import QueueSettings
from tailrace.spark.columns import Projection
from tailrace.spark.options import SourceOptions, Start
from tailrace.spark.planning import Place, Range, Split, cut, next_readable, pack, parted, read
from tailrace.spark.provider import TailraceSource
from tailrace.spark.versions import LIMITS
from tailrace.spark.workers import confirm_quickly, freeze_imports

if TYPE_CHECKING:
    from tailrace.spark.lake.together import Whole

_InSteps: Any = object if LIMITS is None else LIMITS.SupportsTriggerAvailableNow

__all__ = ["TailraceSource"]

_LEAST_BYTES: Final = 4096  # of a split; if more are wanted, they are cut inside of batches


class _Part(InputPartition):
    """A split, as Spark hands it on."""

    def __init__(self, split: Split) -> None:
        self.value = split


class _Reader:
    """What both readers do."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def _chosen(self, place: Place) -> dict[str, QueueSettings]:
        there = place.queues()
        return {name: there[name] for name in self._options.chosen(there)}

    def _splits(self, place: Place, wanted: Mapping[str, tuple[QueueSettings, int, int]]) -> Any:
        options = self._options
        split_bytes = options.split_bytes
        while True:
            ranges = list(self._ranges(place, wanted, split_bytes))
            splits = pack(iter(ranges), split_bytes)
            least = options.min_partitions or 1
            if len(splits) >= least:
                return [_Part(split) for split in splits]
            if split_bytes <= _LEAST_BYTES:
                return [_Part(split) for split in parted(splits, least)]
            total = sum(part.size for part in ranges)
            split_bytes = min(split_bytes // 2, max(total // least, _LEAST_BYTES))

    def _ranges(
        self,
        place: Place,
        wanted: Mapping[str, tuple[QueueSettings, int, int]],
        split_bytes: int,
    ) -> Iterator[Range]:
        for queue, first, last in wanted.values():
            with place.log(queue.name, queue.incarnation) as log:
                whole = self._whole(place, queue, log)
                if whole is not None:
                    yield from whole.ranges(first, last, split_bytes)
                elif log is not None:
                    yield from self._cut(log, queue, first, last, split_bytes)

    def _whole(self, place: Place, queue: QueueSettings, log: Log | None) -> Whole | None:
        """With its archive, if that is wanted."""
        if not self._options.has_archive:
            return None
        from tailrace.spark.lake import together

        return together.find_whole(place, queue, self._options, log)

    def _cut(
        self, log: Log, queue: QueueSettings, first: int, last: int, split_bytes: int
    ) -> list[Range]:
        """Retention may have passed the offset, and may do so now."""
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

    def partitions(self) -> Any:
        freeze_imports()
        place = Place(self._options.path)
        chosen = self._chosen(place)
        self._options.check_offsets(chosen)
        wanted = {name: (queue, *self._bounds(place, queue)) for name, queue in chosen.items()}
        return self._splits(place, wanted)

    def _bounds(self, place: Place, queue: QueueSettings) -> tuple[int, int]:
        options = self._options
        with place.log(queue.name, queue.incarnation) as found:
            log: Bounded | None = self._whole(place, queue, found) or found
            if log is None:
                return 0, 0
            last = offset_of(log, queue.name, options.end, None, "endingOffsets")
            if options.ending_ms is not None:
                last = min(last, log.offset_at(options.ending_ms))
            return first_of(log, queue.name, options), last


class Bounded(Protocol):
    """What has offsets, and times: a log, or that with its archive."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def offset_at(self, timestamp: int, /) -> int: ...


def offset_of(log: Bounded, name: str, given: Start, at_ms: int | None, option: str) -> int:
    """The offset that an option means. Of a queue that it does not name: all of it."""
    if at_ms is not None:
        return log.offset_at(at_ms)
    word = given if isinstance(given, str) else None
    if isinstance(given, dict):
        offset = given.get(name)
        if offset is None:
            word = "earliest" if option == "startingOffsets" else "latest"
        elif offset >= 0:
            if offset > log.end_offset:
                raise ConfigError(
                    f"{option}: offset {offset} of {name!r} is beyond its end, {log.end_offset}"
                )
            return offset
        else:
            word = "earliest" if offset == -2 else "latest"
    return log.start_offset if word == "earliest" else log.end_offset


def first_of(log: Bounded, name: str, options: SourceOptions) -> int:
    """Where reading begins: an offset and a time both hold."""
    first = offset_of(log, name, options.start, None, "startingOffsets")
    return first if options.starting_ms is None else max(first, log.offset_at(options.starting_ms))


class StreamReader(_Reader, DataSourceStreamReader, _InSteps):  # type: ignore[misc]
    """`spark.readStream`. An offset of Spark's is where each queue was read up to:
    `{"orders": [17, "5d2f…"]}`, with the queue's incarnation; `""` if it had none yet."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        super().__init__(options, projection)
        self._target: dict[str, list[Any]] | None = None  # of Trigger.AvailableNow
        self._noted: dict[str, list[Any]] | None = None  # as the progress of the group

    def _chosen(self, place: Place) -> dict[str, QueueSettings]:
        found = super()._chosen(place)
        for name, queue in found.items() if self._options.group is not None else ():
            if queue.type != "stream":
                raise ConfigError(
                    f"group: {name!r} is a work queue, whose groups claim messages; the progress "
                    "of a query can be that of a stream's group only"
                )
        return found

    def initialOffset(self) -> dict[str, list[Any]]:  # noqa: N802
        options = self._options
        place = Place(options.path)
        found = {}
        chosen = self._chosen(place)
        options.check_offsets(chosen)
        for name, queue in chosen.items():
            with place.log(name, queue.incarnation) as log:
                offset = 0 if log is None else first_of(log, name, options)
            found[name] = [offset, queue.incarnation]
        self._noted = found  # nothing is done yet
        return found

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        assert LIMITS is not None  # who has none does not ask
        most = self._options.max_offsets
        return LIMITS.ReadAllAvailable() if most is None else LIMITS.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, list[Any]]:  # noqa: N802
        return self._ends()

    def latestOffset(  # noqa: N802
        self, start: dict[str, list[Any]] | None = None, limit: Any = None
    ) -> dict[str, list[Any]]:
        ends = self._ends() if self._target is None else self._target
        if start is None:
            return ends
        self._note(start)  # Spark asks when all below is committed, also while nothing comes
        if not self._options.fail_on_loss:  # queues may be deleted
            start = {name: start[name] for name in start if name in ends}
        most = getattr(limit, "max_rows", None)
        return limited({**self._begins(ends.keys() - start.keys()), **start}, ends, most)

    def _begins(self, names: Collection[str]) -> dict[str, list[Any]]:
        """Of queues that were made since: all of what they have is new."""
        place = Place(self._options.path)
        found = {}
        for name, queue in self._chosen(place).items() if names else ():
            if name in names:
                with place.log(name, queue.incarnation) as log:
                    found[name] = [0 if log is None else log.start_offset, queue.incarnation]
        return found

    def _ends(self) -> dict[str, list[Any]]:
        place = Place(self._options.path)
        found = {}
        for name, queue in self._chosen(place).items():
            with place.log(name, queue.incarnation) as log:
                found[name] = [0 if log is None else log.end_offset, queue.incarnation]
        return found

    def partitions(self, start: dict[str, list[Any]], end: dict[str, list[Any]]) -> Any:
        place = Place(self._options.path)
        there = place.queues()
        wanted = {}
        for name, (last, incarnation) in end.items():
            if name not in there and not self._options.fail_on_loss:
                continue
            place.check_same(name, incarnation)
            first, known = start.get(name, (None, incarnation))
            place.check_same(name, known)
            if first is None:  # it was made since, so all of it is new
                with place.log(name, incarnation) as log:
                    first = 0 if log is None else log.start_offset
            wanted[name] = there[name], first, last
        return self._splits(place, wanted)

    def commit(self, end: dict[str, list[Any]]) -> None:
        """Spark has done with everything below. It tells so when the next batch begins, and not of
        the last one; from 4.2 on `latestOffset` knows it earlier."""
        self._note(end)

    def _note(self, done: dict[str, list[Any]]) -> None:
        if self._options.group is not None and done != self._noted:
            from tailrace.spark.progress import commit_progress

            commit_progress(self._options.path, self._options.group, done)
            self._noted = done

    def stop(self) -> None: ...


def limited(
    start: dict[str, list[Any]], ends: dict[str, list[Any]], most: int | None
) -> dict[str, list[Any]]:
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
