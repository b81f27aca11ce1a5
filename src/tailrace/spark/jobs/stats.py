"""What is in a queue: rates, sizes, keys, how far messages are apart, and groups behind.

Tasks read ranges of the log, decode the columns that count, and return figures of bounded size
(`figures.py`), which are put together here in the order of the log. The groups are looked at here,
before the log, so that none is ahead of it.

Where a group was in the past is not stored anywhere, only where it is now. Lag over time is made of
that: of the messages that the group has not processed now, how many had been published by then. As
a group goes forward, it was that far behind then, or further.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tailrace.queue.looking import Look, records
from tailrace.queue.stats import GroupStats, queue_stats
from tailrace.spark.columns import COLUMNS, MAX_TIME_MS, Projection, RowFilter
from tailrace.spark.jobs.figures import Distribution, Figures
from tailrace.spark.jobs.running import PIECE_BYTES, Means, Running
from tailrace.spark.planning import Place, Split, cut, pack, read

if TYPE_CHECKING:
    from tailrace.log.log import Log

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["GroupLag", "Point", "QueueFigures", "TopKey", "count_queue"]

_NAMES: Final = ("offset", "timestamp", "key", "value")
_PROJECTION: Final = Projection(tuple((name, COLUMNS[name]) for name in _NAMES))
_MOST_SPLITS: Final = 128  # what came of them is all here in the end


@dataclass(frozen=True)
class Point:
    """A step of time, and what was published in it."""

    at_ms: int
    messages: int
    bytes: int
    messages_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Quantiles:
    """`exact` is false if values were rounded, by less than 0.2 %, or if some are not known; the
    least and the greatest are never rounded."""

    count: int
    min: int | None
    median: int | None
    p95: int | None
    p99: int | None
    max: int | None
    exact: bool


@dataclass(frozen=True)
class TopKey:
    key: bytes
    count: int


@dataclass(frozen=True)
class GroupLag:
    """How far a group is behind now: in messages, in time (from its first message that is not
    processed to the last one there is), and how old that first one is. `points` are the messages
    that it has not processed now and that had been published by the end of a step."""

    id: str
    committed: int
    messages: int
    behind_ms: int | None
    age_ms: int | None
    points: list[tuple[int, int]] = field(default_factory=list)
    error: str | None = None


@dataclass
class QueueFigures:
    """What `count_queue` found. `missing` are offsets in the range that no readable message has;
    `None` if only a part of the time was asked for."""

    queue: str
    kind: str
    start_offset: int = 0
    end_offset: int = 0
    messages: int = 0
    bytes: int = 0
    missing: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    step_ms: int = 1
    points: list[Point] = field(default_factory=list)
    sizes: Quantiles | None = None
    distinct_keys: int = 0
    without_key: int = 0
    keys_missed: int = 0  # by how much a count of a key may be too low; 0: they are exact
    top_keys: list[TopKey] = field(default_factory=list)
    gaps: Quantiles | None = None
    backwards: int = 0
    key_gaps: Quantiles | None = None
    groups: list[GroupLag] = field(default_factory=list)

    @property
    def span_ms(self) -> int:
        if self.oldest_ms is None or self.newest_ms is None:
            return 0
        return self.newest_ms - self.oldest_ms

    def per_second(self, amount: int) -> float | None:
        """On the average, if they did not all come at once."""
        return amount * 1_000 / self.span_ms if self.span_ms else None

    def peak(self, name: str) -> float | None:
        return max((getattr(point, name) for point in self.points), default=None)

    def as_document(self) -> dict[str, Any]:
        """As JSON, but for keys, which are bytes."""
        found = asdict(self)
        found["groups"] = [
            {**asdict(group), "points": [list(point) for point in group.points]}
            for group in self.groups
        ]
        rates = {
            "messages_per_second": self.per_second(self.messages),
            "bytes_per_second": self.per_second(self.bytes),
            "peak_messages_per_second": self.peak("messages_per_second"),
            "peak_bytes_per_second": self.peak("bytes_per_second"),
        }
        return {**found, "span_ms": self.span_ms, "rates": rates}


@dataclass(frozen=True)
class _Task:
    path: str
    split: Split
    rows: RowFilter
    behind: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return self.split.size


def count_queue(
    look: Look,
    path: str,
    queue: str,
    means: Means,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    top: int = 10,
    split_bytes: int = PIECE_BYTES,
) -> tuple[QueueFigures, Running]:
    """Count what is in a queue of the store in `path`, from `since_ms` on, before `until_ms`."""
    settings = look.settings(queue)
    seen = queue_stats(look, settings)
    groups = [group for group in seen.groups if not group.error]
    behind = tuple((group.id, group.committed) for group in groups)
    report = QueueFigures(queue, settings.type)
    place = Place(path)
    first = last = 0
    splits: list[Split] = []
    with place.log(queue, settings.incarnation) as log:
        if log is not None:
            report.start_offset, report.end_offset = log.start_offset, log.end_offset
            first, last = log.start_offset, log.end_offset
            if since_ms is not None:
                first = max(first, log.offset_at(since_ms))
            if first < last:
                total = sum(piece.size for piece in cut(log, settings, first, last, 1 << 40))
                share = max(split_bytes, total // _MOST_SPLITS)
                splits = pack(cut(log, settings, first, last, share), share)
    rows = RowFilter(since_ms=since_ms, until_ms=until_ms)
    tasks = [_Task(path, split, rows, behind) for split in splits]
    running = Running(means, sum(task.size for task in tasks))
    figures = Figures(behind)
    for part in running.run(_count, tasks):
        figures.add(part)
    running.finish()
    if since_ms is None and until_ms is None:
        report.missing = last - first - figures.messages
    _fill(report, figures, top)
    baselines = {name: max(first - max(offset, report.start_offset), 0) for name, offset in behind}
    with look.log(queue) as log:
        report.groups = list(_groups(seen.groups, log, figures, baselines))
    return report, running


def _count(task: _Task) -> Figures:
    figures = Figures(task.behind)
    batches: Iterator[Any] = read(task.path, task.split, _PROJECTION, task.rows, fail_on_loss=False)
    for batch in batches:
        moments = _moments(batch.column("timestamp"))
        figures.take(batch.column("offset"), moments, batch.column("key"), batch.column("value"))
    return figures


def _moments(timestamps: Any) -> Any:
    """In milliseconds. Those that are too far away for Spark are as far as it goes."""
    return pc.fill_null(pc.divide(timestamps.cast(pa.int64()), 1_000), MAX_TIME_MS)


def _fill(report: QueueFigures, figures: Figures, top: int) -> None:
    report.messages, report.bytes = figures.messages, figures.bytes
    report.oldest_ms, report.newest_ms = figures.oldest_ms, figures.newest_ms
    report.step_ms = figures.timeline.step_ms
    seconds = report.step_ms / 1_000
    report.points = [
        Point(at, messages, size, messages / seconds, size / seconds)
        for at, (messages, size, *_) in figures.timeline.points()
    ]
    report.sizes = _quantiles(figures.sizes)
    report.gaps = _quantiles(figures.gaps)
    own = _quantiles(figures.key_gaps)  # without those of keys that were let go
    report.key_gaps = replace(own, exact=own.exact and figures.keys.is_exact)
    report.backwards = figures.backwards
    report.distinct_keys, report.without_key = len(figures.keys.known), figures.without_key
    report.keys_missed = figures.keys.missed
    report.top_keys = [TopKey(key, count) for key, count in figures.keys.top(top)]


def _quantiles(found: Distribution) -> Quantiles:
    median, p95, p99 = (found.quantile(share) for share in (0.5, 0.95, 0.99))
    return Quantiles(found.count, found.least, median, p95, p99, found.most, found.is_exact)


def _groups(
    groups: tuple[GroupStats, ...], log: Log | None, figures: Figures, baselines: dict[str, int]
) -> Iterator[GroupLag]:
    points = figures.timeline.points()
    step = figures.timeline.step_ms
    columns = {name: 2 + number for number, (name, _) in enumerate(figures.behind)}
    now_ms = time.time_ns() // 1_000_000
    for group in groups:
        if group.error:
            yield GroupLag(group.id, group.committed, 0, None, None, error=group.error)
            continue
        behind_ms = age_ms = None
        if log is not None and group.lag:
            oldest = _time_at(log, group.committed, log.end_offset)
            newest = _time_at(log, log.end_offset - 1, log.end_offset)
            if oldest is not None and newest is not None:
                behind_ms, age_ms = newest - oldest, now_ms - oldest
        so_far, curve = baselines[group.id], []
        for at, row in points:
            so_far += row[columns[group.id]]
            curve.append((at + step, so_far))
        yield GroupLag(group.id, group.committed, group.lag, behind_ms, age_ms, curve)


def _time_at(log: Log, first: int, end: int) -> int | None:
    """Of the first message from an offset on."""
    with contextlib.closing(records(log, first, end)) as found:  # type: ignore[type-var]
        return next((record.timestamp for record in found), None)
