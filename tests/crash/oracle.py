"""What a log was asked to keep, and whether it did.

An `Oracle` lives through every crash of a log. It is told of each append before it is made and of
each promise when it is given; `check` then compares a log with all of that:

- every promised record is there, with its exact content, at its offset;
- every record there was appended at that very offset, in some life, and none that was refused;
- a batch is there as a whole or not at all, and nothing is there twice;
- an offset that anybody ever saw, or had a receipt for, never holds another record;
- the next offset is above all of these, and the start never goes back;
- an offset without a record is in a recorded gap, or a reader is told that it is lost;
- a lookup by time finds what a scan finds.

Each record's value is its own, so a value tells which append it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace import Corrupt, Log, Record
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import Gap, Gaps
from tests.crash.world import FOLDER

__all__ = ["Oracle", "Scan", "Seen", "Told", "scan"]


@dataclass(eq=False)
class Told:
    """A batch that was to be appended. A retry of it may end up elsewhere, once."""

    records: tuple[Record, ...]
    bases: set[int] = field(default_factory=set)  # where it may be
    promised_at: int | None = None
    refused: bool = False  # the last word on it was that it is not there

    def offsets(self, base: int) -> range:
        return range(base, base + len(self.records))


class Seen(NamedTuple):
    """A record that was read, and its facts, which are all there."""

    offset: int
    timestamp: int
    value: bytes
    record: Record

    @classmethod
    def of(cls, record: Record) -> Seen:
        assert record.offset is not None
        assert record.timestamp is not None
        return cls(record.offset, record.timestamp, _value(record), record)


@dataclass
class Scan:
    """All that a log shows: its records, and the ranges it says are lost."""

    start: int
    end: int
    records: list[Seen]
    lost: list[range]

    def missing(self) -> Iterator[range]:
        """Offsets that hold no record and are not said to be lost."""
        there = [range(r.offset, r.offset + 1) for r in self.records]
        position = self.start
        for taken in sorted([*there, *self.lost], key=lambda taken: taken.start):
            if taken.start > position:
                yield range(position, min(taken.start, self.end))
            position = max(position, taken.stop)
        if position < self.end:
            yield range(position, self.end)

    def is_lost(self, offset: int) -> bool:
        return any(offset in lost for lost in self.lost)

    def offset_at(self, timestamp: int) -> int:
        """The answer of somebody who looks at every record."""
        return next((r.offset for r in self.records if r.timestamp >= timestamp), self.end)


def scan(log: Log) -> Scan:
    """Read everything; where the log says `Corrupt`, go on where it says."""
    view = log._observer.view()
    position = view.start
    records: list[Seen] = []
    lost: list[range] = []
    while True:
        try:
            for seen in map(Seen.of, log.read(position, view.end)):
                assert seen.offset >= position, f"{seen.record} comes after {position - 1}"
                records.append(seen)
                position = seen.offset + 1
            return Scan(view.start, view.end, records, lost)
        except Corrupt as error:
            damage = error
        first, after = damage.first_offset, damage.next_offset
        assert first is not None, damage
        assert after is not None, damage
        assert position < after <= view.end, f"reading at {position} of {view}: {damage}"
        lost.append(range(first, after))
        position = after


class Oracle:
    """The memory of one log's lives. `fs` is where its gaps are looked up."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs
        self.start = 0  # the log starts here or later
        self.start_limit = 0  # and not later than here
        self._by_value: dict[bytes, Told] = {}
        self._taken: dict[int, bytes] = {}  # by offset: what somebody saw, or has a receipt for

    def on(self, fs: FileSystem) -> Oracle:
        """The same memory, for a copy of the disk."""
        twin = Oracle(fs)
        twin.start, twin.start_limit = self.start, self.start_limit
        copies = {told: replace(told, bases=set(told.bases)) for told in self._by_value.values()}
        twin._by_value = {value: copies[told] for value, told in self._by_value.items()}
        twin._taken = dict(self._taken)
        return twin

    # --- what it is told --------------------------------------------------------------------

    def tell(self, records: Iterable[Record], offset: int) -> Told:
        """These records are about to be appended, and would be at `offset`."""
        batch = tuple(records)
        told = self._by_value.get(_value(batch[0]))
        if told is None:
            told = Told(batch)
            for record in batch:
                assert _value(record) not in self._by_value, "values must be unique"
                self._by_value[_value(record)] = told
        told.bases.add(offset)
        told.refused = False
        return told

    def refuse(self, told: Told) -> None:
        """The append was said to have left nothing behind."""
        told.refused = True

    def hand_out(self, told: Told, base: int) -> None:
        """Somebody has a completed receipt: the offsets are taken for good."""
        told.bases.add(base)
        for offset, record in zip(told.offsets(base), told.records, strict=True):
            self._take(offset, _value(record))

    def promise(self, told: Told, base: int) -> None:
        """The batch is durable at `base`."""
        self.hand_out(told, base)
        told.promised_at = base

    def promise_visible(self, log: Log) -> None:
        """Everything that the log shows was just made durable."""
        for seen in scan(log).records:
            told = self._by_value.get(seen.value)
            assert told is not None, f"nobody appended {seen.record}"
            self.promise(told, seen.offset - _index(told, seen.value))

    def give_up(self, offsets: range) -> None:
        """These are damaged on purpose: the promise of them is off, as long as the log tells."""
        for told in self._by_value.values():
            if told.promised_at is not None and told.promised_at in offsets:
                told.promised_at = None

    def forget_unpromised(self) -> None:
        """The power went, and the log's mode keeps no track of what was only seen."""
        promised = (
            told.offsets(told.promised_at)
            for told in self._by_value.values()
            if told.promised_at is not None
        )
        kept = {offset for offsets in promised for offset in offsets}
        self._taken = {offset: v for offset, v in self._taken.items() if offset in kept}
        for told in self._by_value.values():
            told.refused = False  # it was taken back, in the cache

    def truncate(self, offset: int) -> None:
        """The log starts at `offset` from now on."""
        self.start = max(self.start, offset)
        self.start_limit = max(self.start_limit, offset)

    def allow_start(self, offset: int) -> None:
        """The log may come to start there."""
        self.start_limit = max(self.start_limit, offset)

    # --- what it finds ----------------------------------------------------------------------

    def check(
        self,
        log: Log,
        *,
        damaged: Sequence[range] = (),
        gaps_known: bool = True,
        behind: bool = False,
    ) -> Scan:
        """Compare; `damaged` are offsets whose loss is no fault of the log's, if it tells. Where
        the record of gaps was damaged itself (not `gaps_known`), a gap may be unexplained. An
        observer may be `behind` when the watermark could not be written."""
        found = scan(log)
        self._check_start(found.start, binding=not log.read_only)
        self._check_contents(found)
        self._check_promises(found, damaged, behind)
        if gaps_known:
            self._check_gaps(found)
        self._check_times(log, found)
        if not log.read_only:
            last = max(self._taken, default=-1)
            assert log.end_offset > last, (
                f"the next offset is {log.end_offset}, and {last} has been given out"
            )
        return found

    def _check_start(self, start: int, *, binding: bool) -> None:
        """It is where it may be; if nothing was left, it is behind what recovery stepped over.
        An observer may see a start that a power cut takes back; a writer's is the log's."""
        latest = max(self.start, self.start_limit)
        for gap in self._gaps():
            if gap.kind == "skipped" and gap.first <= latest < gap.next:
                latest = gap.next
        assert self.start <= start <= latest, (
            f"the log starts at {start}, which should be in {self.start}..{latest}"
        )
        if binding:
            self.start = start

    def _check_contents(self, found: Scan) -> None:
        there = {seen.offset for seen in found.records}
        values: set[bytes] = set()
        for offset, _, value, record in found.records:
            told = self._by_value.get(value)
            assert told is not None, f"nobody appended {record}"
            assert value not in values, f"{record} is there twice"
            values.add(value)
            index = _index(told, value)
            base = offset - index
            assert base in told.bases, (
                f"{record} was appended at {sorted(b + index for b in told.bases)}"
            )
            assert not told.refused, f"{record} was said not to be written"
            _check_equal(record, told.records[index])
            for other in told.offsets(base):
                beyond = not found.start <= other < found.end
                assert other in there or beyond or found.is_lost(other), (
                    f"{record} is there, and {other} of the same batch is not"
                )
            self._take(offset, value)

    def _check_promises(self, found: Scan, damaged: Sequence[range], behind: bool) -> None:
        there = {r.offset for r in found.records}
        for told in set(self._by_value.values()):
            if told.promised_at is None:
                continue
            for offset in told.offsets(told.promised_at):
                if offset < found.start or offset in there or (behind and offset >= found.end):
                    continue
                excused = any(offset in d for d in damaged) and found.is_lost(offset)
                assert excused, (
                    f"offset {offset} was promised and is gone; the log has {found.start} to "
                    f"{found.end - 1}, and says that {found.lost} are lost"
                )

    def _check_gaps(self, found: Scan) -> None:
        gaps = self._gaps()
        for hole in found.missing():
            first = hole.start
            for gap in gaps:
                if gap.first <= first < gap.next:
                    first = gap.next
            assert first >= hole.stop, (
                f"offsets {first} to {hole.stop - 1} are missing, in silence; recorded: {gaps}"
            )

    def _gaps(self) -> list[Gap]:
        gaps = Gaps(self.fs, FOLDER)
        gaps.load()
        return sorted(gaps.all())

    def _check_times(self, log: Log, found: Scan) -> None:
        stamps = sorted({r.timestamp for r in found.records})
        if len(stamps) > 4:  # a few, others for each length
            stamps = [*stamps[1 :: len(stamps) // 3], stamps[-1]]
        for stamp in stamps:
            for timestamp in (stamp, stamp + 1):
                expected, answer = found.offset_at(timestamp), log.offset_at(timestamp)
                assert answer == expected, (
                    f"offset_at({timestamp}) is {answer}; a scan says {expected}"
                )

    def _take(self, offset: int, value: bytes) -> None:
        taken = self._taken.setdefault(offset, value)
        assert taken == value, f"offset {offset} held {taken!r} once, and now {value!r}"


def _value(record: Record) -> bytes:
    assert record.value is not None
    return bytes(record.value)


def _index(told: Told, value: bytes) -> int:
    return next(i for i, r in enumerate(told.records) if r.value == value)


def _check_equal(found: Record, told: Record) -> None:
    """All but the offset; an idempotent append adds headers of its own."""
    own = [pair for pair in found.headers.items() if pair[0] not in ("_producer", "_sequence")]
    there = (found.timestamp, found.key, found.value, own)
    expected = (told.timestamp, told.key, told.value, list(told.headers.items()))
    assert there == expected, f"{found} was appended as {told}"
