"""Did a queue keep its word? A history of what processes published, got and settled.

    history = QueueHistory(publishes=[...], deliveries=[...], settlements=[...], groups=("w",))
    report = check(history)
    assert report.ok, report

Many processes publish to one queue, many consume it, and all of them are killed and started again
at random. Each value is published once, so it tells which message it was, also as a dead letter and
when it came back from there. In the end each message is in one place for each group: acked, dead,
or left. What is wrong has one of these names:

    lost                 published, and in the end neither acked, nor dead, nor left; of a stream:
                         never processed
    phantom              given to somebody, dead or left, and nobody published it
    aborted              the same, and its publisher was told `NotWritten`
    inconsistent offset  two values at one offset, or a receipt says another
    acked twice          two acknowledgements of one message succeeded
    undone               delivered again, though it was acked or rejected
    overlap              delivered while somebody else had it
    stale                settled by one who had lost it before
    refused              `LeaseLost` for one who still had it
    two places           more than one of acked, dead and left
    dead twice           two dead letters of one message
    not buried           rejected, and there is no dead letter
    reordered            delivered before an earlier one of its key was settled
    ahead                of a stream: committed, though nobody had processed it
    went back            of a stream: committed was more before

A process that is killed between an action and writing it down leaves an outcome "unknown": it may
have happened or not, and is held against nobody. A delivery that nobody wrote down is one that was
never made, but its attempt is spent.

Leases are judged by time, of the boot clock: nobody gets a message before the one who had it has
settled it, has died, or its time is over, which begins no sooner than the call that fetched it.

The death of a process takes nothing, in any flush mode. A power cut ends all leases; in a `sync`
queue it takes nothing that was answered, in an `async` one it may. Groups that are reset, messages
that expire or are purged have no place here.

Everything here is pure, and takes a few seconds for a million events.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from tailrace.testing.queue_history_events import (
    Death,
    Delivery,
    Letter,
    Processed,
    Progress,
    Publish,
    QueueHistory,
    Settlement,
)

__all__ = [
    "NAMES", "Anomaly", "Death", "Delivery", "Letter", "Name", "Processed", "Progress", "Publish",
    "QueueHistory", "Report", "Settlement", "check",
]  # fmt: skip

Name: TypeAlias = Literal[
    "lost", "phantom", "aborted", "inconsistent offset", "acked twice", "undone", "overlap",
    "stale", "refused", "two places", "dead twice", "not buried", "reordered", "ahead", "went back",
]  # fmt: skip
NAMES: tuple[Name, ...] = get_args(Name)

_PUBLISHED = ("acked", "written", "unknown", "failed")
_KINDS = ("ack", "nack", "release", "reject", "extend")
_OUTCOMES = ("done", "lost", "unknown")
_SLACK_S = 0.002  # clocks are read in whole milliseconds

_COLUMNS = 100
_EXAMPLES = 5  # of a name, in the text of a report


class Anomaly(NamedTuple):
    name: Name
    evidence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}"


@dataclass
class Report:
    """The anomalies, and how many there were of what."""

    anomalies: list[Anomaly]
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        return not self.anomalies

    @property
    def names(self) -> Counter[Name]:
        """How many there are of each name."""
        return Counter(anomaly.name for anomaly in self.anomalies)

    def __str__(self) -> str:
        counts = (f"{count} {what}" for what, count in self.counts.items() if count)
        lines = [f"{len(self.anomalies) or 'no'} anomalies", f"  {', '.join(counts)}"]
        for name, count in self.names.most_common():
            lines.append(f"{name}: {count}")
            found = [anomaly.evidence for anomaly in self.anomalies if anomaly.name == name]
            lines += [f"  {evidence}"[:_COLUMNS] for evidence in found[:_EXAMPLES]]
            if count > _EXAMPLES:
                lines.append(f"  and {count - _EXAMPLES} more")
        return "\n".join(lines)


def check(history: QueueHistory) -> Report:
    """Find every anomaly. `ValueError` if this is no history."""
    return _Check(history).report()


_Place: TypeAlias = tuple[str, int]  # group and offset


class _Check:
    """One pass over each part of a history, after the parts that it needs."""

    def __init__(self, history: QueueHistory) -> None:
        self._history = history
        self._anomalies: list[Anomaly] = []
        self._told: set[tuple[str, ...]] = set()
        self._publishes: dict[str, Publish] = {}
        self._at: dict[int, str] = {}
        self._deliveries: dict[_Place, list[Delivery]] = defaultdict(list)
        self._settlements: dict[_Place, list[Settlement]] = defaultdict(list)
        self._deaths = {death.consumer: death.time for death in history.deaths}
        self._can_lose = history.flush != "sync" and bool(history.cuts)

    def report(self) -> Report:
        history = self._history
        self._collect()
        for place, deliveries in self._deliveries.items():
            deliveries.sort(key=lambda delivery: (delivery.attempt, delivery.invoked))
            self._check_leases(deliveries, self._settlements[place])
        for place, settlements in self._settlements.items():
            self._check_ends(place, settlements)
        for group in history.groups:
            self._check_places(group)
        if not self._can_lose:
            for group in history.keyed:
                self._check_keys(group)
        for group in history.streams:
            self._check_stream(group)
        return Report(self._anomalies, self._counts())

    def _counts(self) -> dict[str, int]:
        history = self._history
        outcomes = Counter((each.kind, each.outcome) for each in history.settlements)
        again = sum(len(each) - 1 for each in self._deliveries.values())
        return {
            "published": len(history.publishes),
            "unknown": sum(each.outcome == "unknown" for each in history.publishes),
            "delivered": len(history.deliveries),
            "of them again": again,
            **{f"{kind}s": outcomes[kind, "done"] for kind in _KINDS},
            "settled in doubt": sum(outcomes[kind, "unknown"] for kind in _KINDS),
            "refused": sum(outcomes[kind, "lost"] for kind in _KINDS),
            "dead": len(history.dead),
            "left": len(history.left),
            "processed": len(history.processed),
        }

    def _add(self, name: Name, evidence: str, *once: str) -> None:
        """`once` is for what many may see: what it is about."""
        if once and (name, *once) in self._told:
            return
        self._told.add((name, *once))
        self._anomalies.append(Anomaly(name, evidence))

    def _was_cut(self, since: float, until: float) -> bool:
        return any(since < cut < until for cut in self._history.cuts)

    # --- what there is ------------------------------------------------------------------------

    def _collect(self) -> None:
        history = self._history
        for publish in history.publishes:
            has_receipt = publish.outcome in ("acked", "written")
            if publish.outcome not in _PUBLISHED or has_receipt != (publish.offset is not None):
                raise ValueError(f"a publish that makes no sense: {publish}")
            if self._publishes.setdefault(publish.value, publish) is not publish:
                raise ValueError(f"{publish.value!r} is published twice")
            if publish.offset is not None and (publish.outcome == "acked" or not history.cuts):
                self._place(publish.offset, publish.value, f"by the receipt of {publish.process}")
        for delivery in history.deliveries:
            self._deliveries[delivery.group, delivery.offset].append(delivery)
            self._check_source(delivery.value, f"delivered to {delivery.consumer}")
            self._place(delivery.offset, delivery.value, f"to {delivery.consumer}")
        for settlement in history.settlements:
            if settlement.kind not in _KINDS or settlement.outcome not in _OUTCOMES:
                raise ValueError(f"a settlement that makes no sense: {settlement}")
            self._settlements[settlement.group, settlement.offset].append(settlement)
        for word, letters in (("dead", history.dead), ("left", history.left)):
            for letter in letters:
                self._check_source(letter.value, f"{word} in {letter.group}")
                self._place(letter.offset, letter.value, f"{word} in {letter.group}")
        for processed in history.processed:
            self._check_source(processed.value, f"delivered to {processed.consumer}")
            self._place(processed.offset, processed.value, f"to {processed.consumer}")

    def _check_source(self, value: str, whose: str) -> None:
        publish = self._publishes.get(value)
        if publish is None:
            self._add("phantom", f"{value!r} was {whose}, and nobody published it", value)
        elif publish.outcome == "failed":
            evidence = f"{value!r} was {whose}, and {publish.process} was told NotWritten"
            self._add("aborted", evidence, value)

    def _place(self, offset: int, value: str, whose: str) -> None:
        other = self._at.setdefault(offset, value)
        if other != value:
            evidence = f"{offset} is {other!r}, and {value!r} {whose}"
            self._add("inconsistent offset", evidence, value)

    # --- one message in one group -------------------------------------------------------------

    def _check_leases(self, deliveries: list[Delivery], settlements: list[Settlement]) -> None:
        """The deliveries are in the order of their attempts."""
        by_lease: dict[tuple[str, int], list[Settlement]] = defaultdict(list)
        for settlement in settlements:
            by_lease[settlement.consumer, settlement.attempt].append(settlement)
        last: Delivery | None = None
        last_until = -math.inf
        for delivery in deliveries:
            if last is not None and last.attempt == delivery.attempt:
                evidence = f"{_show(last)} and {_show(delivery)} have the same lease"
                self._add("overlap", evidence)
            elif last is not None and delivery.returned < last_until - _SLACK_S:
                early = last_until - delivery.returned
                evidence = f"{_show(delivery)}, {early:.3f} s before {_show(last)} was over"
                self._add("overlap", evidence)
            last = delivery
            last_until = self._until(delivery, by_lease[delivery.consumer, delivery.attempt])
            for each in by_lease[delivery.consumer, delivery.attempt]:
                self._check_refusal(delivery, each, last_until)
        for settlement in settlements:
            for delivery in deliveries:
                if (
                    settlement.outcome == "done"
                    and delivery.attempt > settlement.attempt
                    and delivery.returned < settlement.invoked - _SLACK_S
                    and not self._was_cut(delivery.invoked, settlement.invoked)
                ):
                    self._add("stale", f"{_show(settlement)} after {_show(delivery)}")
                    break

    def _until(self, delivery: Delivery, settlements: list[Settlement]) -> float:
        """Until when nobody else may get it: as early as can be."""
        until = delivery.invoked + delivery.lease
        for each in sorted(settlements, key=lambda settlement: settlement.invoked):
            if each.outcome == "lost":
                continue
            if each.kind != "extend":
                until = min(until, each.invoked)
            elif each.outcome == "done":
                until = each.invoked + each.lease
            else:
                until = min(until, each.invoked + each.lease)
        until = min(until, self._deaths.get(delivery.consumer, math.inf))
        return min([until, *(cut for cut in self._history.cuts if cut > delivery.invoked)])

    def _check_refusal(self, delivery: Delivery, settlement: Settlement, until: float) -> None:
        answered = settlement.answered
        if settlement.outcome == "lost" and answered is not None and answered < until - _SLACK_S:
            left = until - answered
            evidence = f"{_show(settlement)} was refused, {left:.3f} s before its lease was over"
            self._add("refused", evidence)

    def _check_ends(self, place: _Place, settlements: list[Settlement]) -> None:
        """What was acked or rejected stays so."""
        ends = [each for each in settlements if each.outcome == "done"]
        ends = [each for each in ends if each.kind in ("ack", "reject")]
        if not ends:
            return
        first = min(ends, key=lambda end: end.answered or end.invoked)
        acks = [end for end in ends if end.kind == "ack"]
        if len(acks) > 1 and not self._may_undo(acks[0], acks[-1].invoked):
            evidence = f"{_show(acks[0])}, and {_show(acks[1])}"
            self._add("acked twice", evidence)
        answered = first.invoked if first.answered is None else first.answered
        for delivery in self._deliveries.get(place, ()):
            is_later = delivery.attempt > first.attempt or delivery.invoked > answered
            if is_later and not self._may_undo(first, delivery.returned):
                self._add("undone", f"{_show(delivery)} after {_show(first)}")
                break

    def _may_undo(self, settlement: Settlement, until: float) -> bool:
        return self._can_lose and self._was_cut(settlement.invoked, until)

    # --- all messages of a group --------------------------------------------------------------

    def _check_places(self, group: str) -> None:
        """Each message is in one place."""
        history = self._history
        acked: dict[str, set[int]] = defaultdict(set)
        doubtful: set[str] = set()
        rejected: dict[str, int] = {}
        for (whose, offset), settlements in self._settlements.items():
            value = self._at.get(offset)
            if whose != group or value is None:
                continue
            for each in settlements:
                if each.kind == "ack" and each.outcome == "done":
                    acked[value].add(offset)
                elif each.kind == "ack" and each.outcome == "unknown":
                    doubtful.add(value)
                elif each.kind == "reject" and each.outcome == "done":
                    rejected[value] = offset
        dead = Counter(letter.value for letter in history.dead if letter.group == group)
        left = [letter for letter in history.left if letter.group == group]
        left_values = Counter(letter.value for letter in left)
        for value, publish in self._publishes.items():
            places = [f"acked at {offset}" for offset in sorted(acked.get(value, ()))]
            places += ["dead"] * bool(dead[value]) + ["left"] * left_values[value]
            is_certain = publish.outcome == "acked" or (
                publish.outcome == "written" and not history.cuts
            )
            if not places and value not in doubtful and is_certain and not self._may_go(publish):
                self._add("lost", f"{publish.offset} {value!r} is nowhere in {group}")
            if len(places) > 1 and not self._can_lose:
                self._add("two places", f"{value!r} is {' and '.join(places)} in {group}")
            if dead[value] > 1:
                self._add("dead twice", f"{value!r} has {dead[value]} dead letters in {group}")
        if not self._can_lose:
            still = {letter.offset for letter in left}
            for value, offset in rejected.items():
                if offset in still or not (dead[value] or history.redriven):
                    self._add("not buried", f"{offset} {value!r} was rejected in {group}")

    def _may_go(self, publish: Publish) -> bool:
        answered = publish.invoked if publish.answered is None else publish.answered
        return self._can_lose and self._was_cut(answered, math.inf)

    def _check_keys(self, group: str) -> None:
        """Of each key, in the order of offsets: what comes before is settled first, and does not
        come again."""
        dead = {letter.value for letter in self._history.dead}
        by_key: dict[str, list[int]] = defaultdict(list)
        for offset, value in self._at.items():
            publish = self._publishes.get(value)
            if publish is not None and publish.key:
                by_key[publish.key].append(offset)
        for key, offsets in by_key.items():
            open_until, open_offset = -math.inf, -1  # by when all of those before were settled
            seen_at, seen_offset = -math.inf, -1  # when the last of them was asked for
            for offset in sorted(offsets):
                deliveries = self._deliveries.get((group, offset), [])
                first = min((each.returned for each in deliveries), default=math.inf)
                if first < open_until:
                    evidence = f"{offset} of {key!r} came before {open_offset} was settled"
                    self._add("reordered", f"{evidence} in {group}")
                elif first < seen_at:
                    evidence = f"{seen_offset} of {key!r} came after {offset}"
                    self._add("reordered", f"{evidence} in {group}")
                is_dead = self._history.redriven or self._at[offset] in dead
                settled = self._settled_at((group, offset), is_dead)
                if settled > open_until:
                    open_until, open_offset = settled, offset
                last = max((each.invoked for each in deliveries), default=-math.inf)
                if last > seen_at:
                    seen_at, seen_offset = last, offset

    def _settled_at(self, place: _Place, is_dead: bool) -> float:
        """When a message may have been settled, at the earliest."""
        ends = [
            each.invoked
            for each in self._settlements.get(place, ())
            if each.kind in ("ack", "reject") and each.outcome != "lost"
        ]
        if ends:
            return min(ends)
        if is_dead:  # it was delivered as often as it may be
            deliveries = self._deliveries.get(place, ())
            return max((each.returned for each in deliveries), default=-math.inf)
        return math.inf

    # --- streams ------------------------------------------------------------------------------

    def _check_stream(self, group: str) -> None:
        first: dict[int, float] = {}
        for each in self._history.processed:
            if each.group == group:
                first[each.offset] = min(each.time, first.get(each.offset, math.inf))
        offsets = {*first, *self._receipts()}
        progress = [each for each in self._history.progress if each.group == group]
        self._check_commits(group, first, sorted(offsets), progress)
        for offset, publish in self._receipts().items():
            if offset not in first and not self._may_go(publish):
                self._add("lost", f"{offset} {publish.value!r} was never given to {group}")

    def _receipts(self) -> dict[int, Publish]:
        return {
            publish.offset: publish
            for publish in self._publishes.values()
            if publish.offset is not None and (publish.outcome == "acked" or not self._history.cuts)
        }

    def _check_commits(
        self,
        group: str,
        first: dict[int, float],
        offsets: list[int],
        progress: Iterable[Progress],
    ) -> None:
        index, needed, what = 0, -math.inf, -1
        highest: Progress | None = None
        for each in sorted(progress, key=lambda one: one.committed):
            while index < len(offsets) and offsets[index] < each.committed:
                if first.get(offsets[index], math.inf) > needed:
                    needed, what = first.get(offsets[index], math.inf), offsets[index]
                index += 1
            if needed > each.answered:
                evidence = f"{group} had committed {each.committed}, and {what} was not processed"
                self._add("ahead", evidence, group, str(what))
        for each in sorted(progress, key=lambda one: one.answered):
            before = highest
            if before is not None and each.committed < before.committed:
                if before.answered < each.invoked and not (
                    self._can_lose and self._was_cut(before.invoked, each.answered)
                ):
                    evidence = f"{group} was at {before.committed}, and then at {each.committed}"
                    self._add("went back", evidence)
            else:
                highest = each


def _show(event: Delivery | Settlement) -> str:
    what = "delivery" if isinstance(event, Delivery) else event.kind
    return f"{what} of {event.offset} (attempt {event.attempt}) by {event.consumer}"
