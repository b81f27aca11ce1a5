"""Did a log keep its word? A history of what processes sent and saw, compared with what is left.

    history = History(sends=[...], polls=[...], log=[(0, b"a"), (1, b"b")])
    report = check(history)
    assert report.ok, report

Many processes write to one log, many follow it, and all of them are killed and started again at
random. Each value is sent once, so it tells which send it came from, and every record is accounted
for. What is wrong has one of these names, after Jepsen's:

    lost                 acked, and neither in the log nor below its start
    duplicate            a value twice in the log, or twice given to one incarnation of a follower
    reordered            sent by one process after the other was answered, and before it in the log
    inconsistent offset  two values at one offset, or a value at two, by the log, polls and receipts
    phantom              in the log or given to a follower, and nobody sent it
    aborted              in the log or given to a follower, and its sender was told `NotWritten`
    skipped              a follower stepped over an offset that has a record
    non-monotonic        a follower went back without a seek
    torn                 a part of a batch
    unseen               acked, and not given to a follower that had read to the end
    taken back           given to a follower, and not in the log any more
    hole                 offsets without a record that no gap accounts for

One thing may have several: a record that goes from the middle of the log is lost, a hole, and taken
back from those who saw it. A follower that goes back is non-monotonic, and what it reads again on
the way is not counted as duplicate too.

The death of a process takes nothing, in any flush mode: what has a receipt is in the page cache. A
power cut takes an end of what was appended: in a `sync` log nothing that was acked or given to a
follower, in an `async` log nothing below the last flush. So nothing that it left may lie behind
something that it took. A log that never flushes promises less, and is checked without power cuts.

Everything here is pure, and takes a few seconds for a million records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias, get_args

from tailrace.testing.history_events import History, Poll, PowerCut, Send, Value, dump, load

__all__ = [
    "NAMES", "Anomaly", "History", "Name", "Poll", "PowerCut", "Report", "Send", "Value", "check",
    "dump", "load",
]  # fmt: skip

Name: TypeAlias = Literal[
    "lost", "duplicate", "reordered", "inconsistent offset", "phantom", "aborted", "skipped",
    "non-monotonic", "torn", "unseen", "taken back", "hole",
]  # fmt: skip
NAMES: tuple[Name, ...] = get_args(Name)

# What the attempts of one append come to: the best of them.
_RANK = {"failed": 0, "unknown": 1, "written": 2, "acked": 3}

_COLUMNS = 80
_EXAMPLES = 5  # of a name, in the text of a report


class Anomaly(NamedTuple):
    name: Name
    evidence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}"


@dataclass
class Report:
    """The anomalies, and how many there were of what. `happened` and `absent` are the sends with
    an unknown outcome whose records were, or were not, found in the log or by a follower."""

    anomalies: list[Anomaly]
    sends: int
    acked: int
    written: int
    failed: int
    happened: int
    absent: int
    records: int  # in the log
    read: int  # by followers

    @property
    def ok(self) -> bool:
        return not self.anomalies

    @property
    def names(self) -> Counter[Name]:
        """How many there are of each name."""
        return Counter(anomaly.name for anomaly in self.anomalies)

    def __str__(self) -> str:
        unknown = f"{self.happened + self.absent} unknown"
        lines = [
            f"{len(self.anomalies) or 'no'} anomalies in {self.sends} sends",
            f"  {self.acked} acked, {self.written} written, {self.failed} failed, {unknown}",
            f"  of the unknown {self.happened} happened, {self.absent} did not",
            f"  {self.records} records in the log, {self.read} read by followers",
        ]
        for name, count in self.names.most_common():
            lines.append(f"{name}: {count}")
            found = [anomaly.evidence for anomaly in self.anomalies if anomaly.name == name]
            lines += [f"  {evidence}" for evidence in found[:_EXAMPLES]]
            if count > _EXAMPLES:
                lines.append(f"  and {count - _EXAMPLES} more")
        return "\n".join(_shorten(line, _COLUMNS) for line in lines)


def check(history: History) -> Report:
    """Find every anomaly. `ValueError` if this is no history: a value that is sent twice, a receipt
    without an offset, a power cut in a log that never flushes."""
    if history.flush not in (("sync", "async") if history.cuts else ("sync", "async", "none")):
        cuts = f" and {len(history.cuts)} power cuts" if history.cuts else ""
        raise ValueError(f"a log with flush={history.flush!r}{cuts} cannot be checked")
    return _Check(history).report()


class _Check:
    """One pass over each part of a history, after the parts that it needs."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._start = history.start
        self._anomalies: list[Anomaly] = []
        self._told: set[tuple[Name, Value]] = set()
        self._appends: list[Send] = []  # the first attempt of each
        self._outcomes: list[str] = []  # of each, over all attempts
        self._append_of: dict[Value, int] = {}
        self._at: dict[int, Value] = {}  # the log
        self._where: dict[Value, int] = {}  # and the other way round
        self._offsets: list[int] = []  # of the log, rising
        self._deleted: dict[int, Value] = {}  # what was below the start, by receipts
        self._deleted_offsets: list[int] = []
        self._said: dict[int, tuple[Value, str]] = {}  # of offsets that the log lacks, by whom
        self._placed: dict[Value, int] = {}  # and the other way round

    def report(self) -> Report:
        history = self._history
        self._collect_sends()
        self._check_log()
        self._check_gaps()
        self._check_receipts()
        self._check_batches()
        self._check_order()
        followers: dict[tuple[str, int], list[Poll]] = {}
        for poll in history.polls:
            followers.setdefault((poll.follower, poll.incarnation), []).append(poll)
        for (name, incarnation), polls in followers.items():
            self._check_follower(f"{name}/{incarnation}", polls)
        outcomes = Counter(self._outcomes)
        happened = sum(
            outcome == "unknown" and any(v in self._where or v in self._placed for v in send.values)
            for send, outcome in zip(self._appends, self._outcomes, strict=True)
        )
        return Report(
            self._anomalies,
            sends=len(self._appends),
            acked=outcomes["acked"],
            written=outcomes["written"],
            failed=outcomes["failed"],
            happened=happened,
            absent=outcomes["unknown"] - happened,
            records=len(history.log),
            read=sum(len(poll.records) for poll in history.polls),
        )

    def _add(self, name: Name, evidence: str, once: Value | None = None) -> None:
        """`once` is for what many may see: the value that it is about."""
        if once is not None:
            if (name, once) in self._told:
                return
            self._told.add((name, once))
        self._anomalies.append(Anomaly(name, evidence))

    # --- sends and the log --------------------------------------------------------------------

    def _collect_sends(self) -> None:
        append_of, appends, outcomes = self._append_of, self._appends, self._outcomes
        idempotent: dict[tuple[str, int], int] = {}
        for send in self._history.sends:
            rank = _RANK.get(send.outcome)
            if rank is None or (rank >= 2) != (send.offset is not None) or not send.values:
                raise ValueError(f"a send that makes no sense: {send}")
            if send.producer:
                index = idempotent.setdefault((send.producer, send.sequence), len(appends))
                if index < len(appends):
                    if appends[index].values != send.values:
                        raise ValueError(f"other values for the same sequence: {send}")
                    if rank > _RANK[outcomes[index]]:
                        outcomes[index] = send.outcome
                    if send.invoked < appends[index].invoked:
                        appends[index] = send
                    continue
            for value in send.values:
                if value in append_of:
                    raise ValueError(f"{_show(value)} is sent twice: {send}")
                append_of[value] = len(appends)
            appends.append(send)
            outcomes.append(send.outcome)

    def _check_log(self) -> None:
        at, where, append_of, outcomes = self._at, self._where, self._append_of, self._outcomes
        previous = -1
        for offset, value in self._history.log:
            index = append_of.get(value)
            if index is None or outcomes[index] == "failed":
                self._check_source(offset, value, "in the log")
            if offset < previous:
                self._add("non-monotonic", f"in the log {offset} comes after {previous}")
            previous = offset
            other = at.setdefault(offset, value)
            if other != value:
                evidence = f"{offset} is both {_show(other)} and {_show(value)} in the log"
                self._add("inconsistent offset", evidence)
            elif value in where:
                evidence = f"{_show(value)} is in the log at {where[value]} and at {offset}"
                self._add("duplicate", evidence)
            else:
                where[value] = offset
        self._offsets = sorted(at)

    def _check_source(self, offset: int, value: Value, whose: str) -> None:
        """A value has to come from somewhere."""
        index = self._append_of.get(value)
        what = f"{offset} is {_show(value)} {whose}"
        if index is None:
            self._add("phantom", f"{what}, and nobody sent it", value)
        elif self._outcomes[index] == "failed":
            process = self._appends[index].process
            self._add("aborted", f"{what}, and {process} was told NotWritten", value)

    def _check_gaps(self) -> None:
        """Offsets are taken in order, so where the log has none, somebody has to know why."""
        gaps = sorted(self._history.gaps)
        for gap in gaps:
            inside = self._first_record(gap.first, gap.next)
            if inside is not None:
                what = f"{inside} is {_show(self._at[inside])} in the log"
                where = f"in a gap ({gap.kind}, {gap.first}..{gap.next - 1})"
                self._add("inconsistent offset", f"{what}, and {where}")
        position = self._start
        index = 0
        for offset in self._offsets:
            if offset > position:
                while index < len(gaps) and gaps[index].first <= position:
                    position = max(position, gaps[index].next)
                    index += 1
                if offset > position:
                    self._add("hole", f"{position}..{offset - 1} have no record and no gap")
            position = offset + 1

    def _first_record(self, first: int, after: int) -> int | None:
        """The first offset of the log in a range."""
        return _first_in(self._offsets, first, after)

    # --- receipts -----------------------------------------------------------------------------

    def _check_receipts(self) -> None:
        at, where, deleted, placed = self._at, self._where, self._deleted, self._placed
        certain_below = 0 if self._history.cuts else self._start
        for send in self._history.sends:
            offset = send.offset
            if offset is None:
                continue
            for value in send.values:
                if at.get(offset) != value and not (
                    offset < certain_below
                    and value not in where
                    and deleted.setdefault(offset, value) == value
                    and placed.setdefault(value, offset) == offset
                ):
                    self._check_receipt(send, offset, value)
                offset += 1
        self._deleted_offsets = sorted(deleted)

    def _check_receipt(self, send: Send, offset: int, value: Value) -> None:
        """The log has something else at the offset of a receipt, or nothing."""
        can_go = send.outcome == "written" or self._history.flush == "async"
        taken = can_go and any(
            send.invoked < cut.time and self._may_take(cut, offset) for cut in self._history.cuts
        )
        said = f"{send.outcome} for {send.process}"
        if value not in self._where and offset >= self._start and not taken:
            self._add("lost", f"{offset} {_show(value)}, {said}, is not in the log", value)
        if taken and self._history.flush == "sync":
            return  # nobody saw it, so its offset may be another's
        self._compare(offset, value, said, moved=taken)

    def _may_take(self, cut: PowerCut, offset: int) -> bool:
        """Can a power cut have taken what was at an offset? Not if it left something behind it."""
        return offset >= cut.flushed and self._first_record(offset + 1, cut.resumed) is None

    def _compare(self, offset: int, value: Value, said: str, *, moved: bool) -> None:
        """Somebody says that a value is at an offset, and the log does not. What a power cut took
        may have been sent again, and `moved`."""
        there, whose = self._at.get(offset), "in the log"
        if there is None:
            there, whose = self._deleted.get(offset), "by a receipt"
        if there is None:
            there, whose = self._said.setdefault(offset, (value, said))
        place = self._where.get(value)
        if place is None:
            place = offset if moved else self._placed.setdefault(value, offset)
        if there != value:
            evidence = f"{offset} is {_show(there)} {whose} and {_show(value)} {said}"
            self._add("inconsistent offset", evidence)
        elif place != offset and not moved:
            evidence = f"{_show(value)} is at {place}, and at {offset} {said}"
            self._add("inconsistent offset", evidence)

    def _check_batches(self) -> None:
        where = self._where
        for send in self._appends:
            if len(send.values) == 1:
                continue
            places = [where.get(value) for value in send.values]
            found = [place for place in places if place is not None]
            if not found:
                continue
            first = next(place - i for i, place in enumerate(places) if place is not None)
            if places == list(range(first, first + len(places))):
                continue
            missing = [first + i for i, place in enumerate(places) if place is None]
            missing = [offset for offset in missing if offset >= self._start]
            what = f"a batch of {len(places)} by {send.process} from {first} on"
            if missing:
                self._add("torn", f"{what} lacks {len(missing)}, at {missing[0]} and so on")
            elif found != sorted(found):
                self._add("reordered", f"{what} is at {', '.join(map(str, found))}")
            elif found[-1] - found[0] != len(found) - 1:
                self._add("torn", f"{what} is in pieces, at {', '.join(map(str, found))}")

    def _check_order(self) -> None:
        """For each process, in the order of time: what is sent next comes behind everything that
        was answered before. A receipt counts if the record is still where it says. One that a power
        cut took and that was sent again is elsewhere, or nobody can tell."""
        asked: dict[str, list[tuple[float, int, Value]]] = {}
        answered: dict[str, list[tuple[float, int, Value]]] = {}
        for send in self._appends:
            place = self._place(send)
            if place is not None:
                asked.setdefault(send.process, []).append((send.invoked, place, send.values[0]))
        for send in self._history.sends:
            place = send.offset
            if place is None or send.answered is None or place != self._place(send):
                continue
            if send.outcome == "acked" or not send.producer or not self._history.cuts:
                event = (send.answered, place, send.values[0])
                answered.setdefault(send.process, []).append(event)
        for process, events in asked.items():
            before = sorted(answered.get(process, ()), key=itemgetter(0))
            index = 0
            last, last_value = -1, events[0][2]
            for time, place, value in sorted(events, key=itemgetter(0)):
                while index < len(before) and before[index][0] < time:
                    if before[index][1] > last:
                        _, last, last_value = before[index]
                    index += 1
                if place < last:
                    what = f"{_show(value)} after {_show(last_value)} was answered"
                    self._add("reordered", f"{process} sent {what}: at {place} and {last}")

    def _place(self, send: Send) -> int | None:
        place = self._where.get(send.values[0])
        if place is None and send.offset is not None and not self._history.cuts:
            return send.offset if send.offset < self._start else None
        return place

    # --- followers ----------------------------------------------------------------------------

    def _check_follower(self, who: str, polls: list[Poll]) -> None:
        """One incarnation, from its first poll to its last."""
        at, deleted = self._at, self._deleted
        position: int | None = None  # the next offset that it may be given
        is_first = True  # what it is given next is the first since it sought that
        is_strange = False
        for poll in polls:
            if poll.sought is not None:
                position, is_first = poll.sought, True
            for offset, value in poll.records:
                if offset != position and position is not None:
                    self._check_step(who, position, offset, value, is_first)
                if at.get(offset) != value and deleted.get(offset) != value:
                    is_strange = True
                    self._check_read(who, offset, value)
                position = offset + 1
                is_first = False
        if is_strange:  # otherwise a value that it had twice is in the log twice
            self._check_repeats(who, polls)
        if polls[-1].at_end and position is not None:
            for offset in self._offsets[bisect_left(self._offsets, position) :]:
                value = at[offset]
                index = self._append_of.get(value)
                if index is not None and self._outcomes[index] == "acked":
                    self._add("unseen", f"{offset} {_show(value)} was acked; {who} never had it")

    def _check_step(
        self, who: str, position: int, offset: int, value: Value, is_first: bool
    ) -> None:
        """A follower was given another offset than the next."""
        if offset > position:
            passed = self._first_record(position, offset)
            if passed is None:
                passed = _first_in(self._deleted_offsets, position, offset)
            if passed is not None:
                self._add("skipped", f"{who} was to have {position}, had {offset}: not {passed}")
        elif is_first:
            self._add("non-monotonic", f"{who} was to read from {position} on, and had {offset}")
        elif offset == position - 1:
            self._add("duplicate", f"{who} had {offset} {_show(value)} twice")
        else:
            self._add("non-monotonic", f"{who} had {offset} {_show(value)} after {position - 1}")

    def _check_read(self, who: str, offset: int, value: Value) -> None:
        """A follower was given what is not in the log, at that place."""
        self._check_source(offset, value, f"to {who}")
        taken = self._history.flush == "async" and any(
            offset < cut.resumed and self._may_take(cut, offset) for cut in self._history.cuts
        )
        index = self._append_of.get(value)
        is_sent = index is not None and self._outcomes[index] != "failed"
        if is_sent and value not in self._where and offset >= self._start and not taken:
            evidence = f"{who} had {offset} {_show(value)}, which is not in the log"
            self._add("taken back", evidence, value)
        self._compare(offset, value, f"to {who}", moved=taken)

    def _check_repeats(self, who: str, polls: list[Poll]) -> None:
        had: dict[Value, int] = {}
        for poll in polls:
            for offset, value in poll.records:
                if had.setdefault(value, offset) != offset:
                    self._add("duplicate", f"{who} had {_show(value)} at {had[value]} and {offset}")


def _first_in(offsets: list[int], first: int, after: int) -> int | None:
    index = bisect_left(offsets, first)
    return offsets[index] if index < len(offsets) and offsets[index] < after else None


def _show(value: Value) -> str:
    return _shorten(repr(value[:40]), 40)


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
