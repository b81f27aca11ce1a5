"""Figures of messages that can be added up: what a task counts, and the driver puts together.

Each of them is of bounded size, however many messages there are. Up to that size it is exact; from
there on a distribution keeps ten binary digits of each value (an error of less than 0.2 %), and the
keys that are rare are let go, with the most that a count may be too low by. Each says whether it
is exact. To `add` another is to add what follows in the log: how far apart two messages are is
known across the seam, too. Not thread-safe.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its stubs know few of these calls

__all__ = ["LADDER_MS", "Distribution", "Figures", "Keys", "Timeline"]

_VALUES: Final = 16_384  # of a distribution, before they are rounded
_DIGITS: Final = 10  # binary ones, that are kept then
_KEYS: Final = 50_000
_POINTS: Final = 240  # in a timeline

_DAY: Final = 86_400_000
# Each divides the next, so that a finer timeline becomes a coarser one without an error.
LADDER_MS: Final[tuple[int, ...]] = (
    *(1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000),
    *(_DAY * 10**power for power in range(11)),
)


class Distribution:
    """How often each value occurred."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.is_exact = True
        self.count = 0
        self.least: int | None = None
        self.most: int | None = None

    def take(self, values: Any) -> None:
        """An array of integers, of which none is null."""
        for pair in pc.value_counts(values).to_pylist():
            self._put(pair["values"], pair["counts"])
        self._shrink()

    def put(self, value: int) -> None:
        self._put(value, 1)
        self._shrink()

    def add(self, other: Distribution) -> None:
        if not other.is_exact:
            self._round()
        for value, count in other.counts.items():
            self._put(value, count)
        for extreme in (other.least, other.most):
            if extreme is not None:
                self._stretch(extreme)
        self._shrink()

    def quantile(self, share: float) -> int | None:
        """The least value that so many of all do not exceed."""
        if not self.count or self.least is None or self.most is None:
            return None
        rank = max(-(-self.count * round(share * 1_000) // 1_000), 1)
        values = sorted(self.counts)
        for value, so_far in zip(
            values, accumulate(self.counts[value] for value in values), strict=True
        ):
            if so_far >= rank:
                return min(max(value, self.least), self.most)
        raise AssertionError("the counts do not add up")

    def _put(self, value: int, count: int) -> None:
        self._stretch(value)
        if not self.is_exact:
            value = _rounded(value)
        self.counts[value] = self.counts.get(value, 0) + count
        self.count += count

    def _stretch(self, value: int) -> None:
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)

    def _shrink(self) -> None:
        if self.is_exact and len(self.counts) > _VALUES:
            self._round()

    def _round(self) -> None:
        if self.is_exact:
            self.is_exact = False
            before, self.counts = self.counts, {}
            for value, count in before.items():
                value = _rounded(value)
                self.counts[value] = self.counts.get(value, 0) + count


def _rounded(value: int) -> int:
    """Towards zero."""
    spare = abs(value).bit_length() - _DIGITS
    if spare <= 0:
        return value
    rounded = abs(value) >> spare << spare
    return rounded if value > 0 else -rounded


class Timeline:
    """Sums over time, in steps that are as short as a bounded number of them allows. A row has so
    many sums, `columns`."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._step = 0
        self.rows: dict[int, list[int]] = {}  # by number: times so many steps since 1970

    @property
    def step_ms(self) -> int:
        return LADDER_MS[self._step]

    def take(self, timestamps: Any, columns: list[Any]) -> None:
        """A row for each message: when it was, and what it adds to each sum."""
        names = [f"c{number}" for number in range(self.columns)]
        table = pa.table([_floor(timestamps, self.step_ms), *columns], names=["at", *names])
        grouped: Any = table.group_by("at", use_threads=False)
        sums = grouped.aggregate([(name, "sum") for name in names])
        found = [sums.column(f"{name}_sum").to_pylist() for name in names]
        for at, *amounts in zip(sums.column("at").to_pylist(), *found, strict=True):
            self._put(at, amounts)
        self._shrink()

    def add(self, other: Timeline) -> None:
        while self._step < other._step:
            self._coarsen()
        times = self.step_ms // other.step_ms
        for at, amounts in other.rows.items():
            self._put(at // times, amounts)
        self._shrink()

    def points(self) -> list[tuple[int, list[int]]]:
        """When each step began, in milliseconds, and its sums; none is left out in between."""
        if not self.rows:
            return []
        nothing = [0] * self.columns
        return [
            (at * self.step_ms, self.rows.get(at, nothing))
            for at in range(min(self.rows), max(self.rows) + 1)
        ]

    def _put(self, at: int, amounts: list[int]) -> None:
        row = self.rows.get(at)
        if row is None:
            self.rows[at] = list(amounts)
        else:
            for number, amount in enumerate(amounts):
                row[number] += amount

    def _shrink(self) -> None:
        while self.rows and max(self.rows) - min(self.rows) >= _POINTS:
            self._coarsen()

    def _coarsen(self) -> None:
        times = LADDER_MS[self._step + 1] // self.step_ms
        self._step += 1
        before, self.rows = self.rows, {}
        for at, amounts in before.items():
            self._put(at // times, amounts)


def _floor(timestamps: Any, step_ms: int) -> Any:
    """Which step each is in. Arrow's division rounds towards zero, and a time may be before
    1970."""
    number = pc.divide(timestamps, step_ms)
    is_above = pc.greater(pc.multiply(number, step_ms), timestamps)
    return pc.subtract(number, is_above.cast(pa.int64()))


class Keys:
    """How often each key occurred, and when first and last. The most frequent ones are kept:
    `missed` is by how much a count may be too low, at most."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, int, int]] = {}  # count, first and last time
        self.missed = 0

    @property
    def is_exact(self) -> bool:
        return not self.missed

    def follow(self, key: bytes, count: int, first_ms: int, last_ms: int) -> int | None:
        """Count a key some more times, behind all others; how long after the last time, if it was
        there."""
        known = self.known.get(key)
        if known is None:
            self.known[key] = count, first_ms, last_ms
            return None
        self.known[key] = known[0] + count, known[1], last_ms
        return first_ms - known[2]

    def shrink(self) -> None:
        if len(self.known) <= _KEYS:
            return
        kept = heapq.nlargest(_KEYS // 2, self.known.items(), key=lambda item: item[1][0])
        remaining = dict(kept)
        dropped = max(count for key, (count, _, _) in self.known.items() if key not in remaining)
        self.known, self.missed = remaining, self.missed + dropped

    def top(self, number: int) -> list[tuple[bytes, int]]:
        """The most frequent ones; those that are equally so by their bytes."""
        ordered = heapq.nsmallest(
            number, self.known.items(), key=lambda item: (-item[1][0], item[0])
        )
        return [(key, count) for key, (count, _, _) in ordered]


@dataclass
class Figures:
    """Of messages that follow one another. `behind` are the groups of which the timeline counts
    what they have not processed: their names, and the first such offset of each."""

    behind: tuple[tuple[str, int], ...] = ()
    messages: int = 0
    bytes: int = 0  # of keys and values
    without_key: int = 0
    backwards: int = 0  # messages that are older than the one before
    oldest_ms: int | None = None
    newest_ms: int | None = None
    first_ms: int | None = None  # of the first message, by offset
    last_ms: int | None = None
    sizes: Distribution = field(default_factory=Distribution)
    gaps: Distribution = field(default_factory=Distribution)
    key_gaps: Distribution = field(default_factory=Distribution)
    keys: Keys = field(default_factory=Keys)
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = Timeline(2 + len(self.behind))

    def take(self, offsets: Any, timestamps: Any, keys: Any, values: Any) -> None:
        """Messages, as columns; times in milliseconds."""
        count = len(timestamps)
        if not count:
            return
        sizes = pc.add(_lengths(keys), _lengths(values))
        self.messages += count
        self.bytes += pc.sum(sizes).as_py()
        self.sizes.take(sizes)
        self._take_gaps(timestamps)
        self._take_keys(keys, timestamps)
        ones = pa.repeat(pa.scalar(1, pa.int64()), count)
        left = [pc.greater_equal(offsets, first).cast(pa.int64()) for _, first in self.behind]
        self.timeline.take(timestamps, [ones, sizes, *left])

    def _take_gaps(self, timestamps: Any) -> None:
        first, last = timestamps[0].as_py(), timestamps[-1].as_py()
        if self.last_ms is not None:
            self._put_gap(first - self.last_ms)
        gaps = pc.pairwise_diff(timestamps).slice(1)
        self.gaps.take(gaps)
        self.backwards += pc.sum(pc.less(gaps, 0)).as_py() or 0
        bounds = pc.min_max(timestamps).as_py()
        self._stretch(bounds["min"], bounds["max"], first, last)

    def _put_gap(self, gap: int) -> None:
        self.gaps.put(gap)
        self.backwards += gap < 0

    def _stretch(self, oldest: int, newest: int, first: int, last: int) -> None:
        self.oldest_ms = oldest if self.oldest_ms is None else min(self.oldest_ms, oldest)
        self.newest_ms = newest if self.newest_ms is None else max(self.newest_ms, newest)
        self.first_ms = first if self.first_ms is None else self.first_ms
        self.last_ms = last

    def _take_keys(self, keys: Any, timestamps: Any) -> None:
        """Sorted by key, and within a key as they are, neighbours are successive messages of it."""
        self.without_key += keys.null_count
        if keys.null_count:
            is_there = pc.is_valid(keys)
            keys, timestamps = keys.filter(is_there), timestamps.filter(is_there)
        if not len(keys):
            return
        encoded = pc.dictionary_encode(keys)
        order = pc.array_sort_indices(encoded.indices)  # a stable sort
        codes, moments = encoded.indices.take(order), timestamps.take(order)
        is_same = pc.equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        self.key_gaps.take(pc.pairwise_diff(moments).slice(1).filter(is_same))
        is_new = pa.concat_arrays([pa.array([True]), pc.invert(is_same)])
        firsts = pc.indices_nonzero(is_new)
        starts = firsts.to_pylist()
        bounds = [*starts[1:], len(codes)]
        begins = moments.take(firsts).to_pylist()
        ends = moments.take(pa.array([bound - 1 for bound in bounds])).to_pylist()
        names = encoded.dictionary.take(codes.take(firsts)).to_pylist()
        for key, start, bound, begin, end in zip(names, starts, bounds, begins, ends, strict=True):
            gap = self.keys.follow(key, bound - start, begin, end)
            if gap is not None:
                self.key_gaps.put(gap)
        self.keys.shrink()

    def add(self, other: Figures) -> None:
        """Add what follows these in the log."""
        if other.first_ms is None or other.last_ms is None:
            return
        assert other.oldest_ms is not None
        assert other.newest_ms is not None
        if self.last_ms is not None:
            self._put_gap(other.first_ms - self.last_ms)
        self._stretch(other.oldest_ms, other.newest_ms, other.first_ms, other.last_ms)
        self.messages += other.messages
        self.bytes += other.bytes
        self.without_key += other.without_key
        self.backwards += other.backwards
        self.sizes.add(other.sizes)
        self.gaps.add(other.gaps)
        self.key_gaps.add(other.key_gaps)
        self.timeline.add(other.timeline)
        for key, known in other.keys.known.items():
            gap = self.keys.follow(key, *known)
            if gap is not None:
                self.key_gaps.put(gap)
        self.keys.missed += other.keys.missed
        self.keys.shrink()


def _lengths(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
