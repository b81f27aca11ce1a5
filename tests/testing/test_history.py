"""The history checker finds each anomaly in the smallest history that has it, and none beside it;
histories of a correct log have none, and what is done to such a history is called by its name."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.log.sidefiles import Gap
from tailrace.testing.history import (
    NAMES,
    History,
    Poll,
    PowerCut,
    Send,
    Value,
    check,
    dump,
    load,
)

T = TypeVar("T")
Record = tuple[int, Value]


def gap(first: int, after: int, kind: str = "lost") -> Gap:
    return Gap(first, after, kind, acknowledged=False, reason="a test", time_ms=0)


class Story:
    """A history, told in the order in which it happened."""

    def __init__(self, *log: str, first: int = 0, start: int = 0, flush: str = "sync") -> None:
        self.history = History(log=list(enumerate(log, first)), start=start, flush=flush)
        self.time = 0

    def send(
        self,
        *values: str,
        acked: int | None = None,
        written: int | None = None,
        told: str = "unknown",
        by: str = "w",
        once: int | None = None,
    ) -> Story:
        """`once` makes it idempotent, and is its sequence."""
        self.time += 2
        outcome = "acked" if acked is not None else "written" if written is not None else told
        self.history.sends.append(
            Send(
                by,
                values,
                self.time,
                outcome,
                acked if acked is not None else written,
                self.time + 1,
                "" if once is None else "p",
                once or 0,
            )
        )
        return self

    def poll(
        self, *records: Record, sought: int | None = None, life: int = 1, at_end: bool = False
    ) -> Story:
        self.history.polls.append(Poll("r", life, records, sought, at_end))
        return self

    def cut(self, resumed: int, flushed: int = 0) -> Story:
        self.time += 1
        self.history.cuts.append(PowerCut(self.time, resumed, flushed))
        return self

    def gap(self, first: int, after: int, kind: str = "lost") -> Story:
        self.history.gaps.append(gap(first, after, kind))
        return self

    def found(self) -> list[str]:
        return sorted(str(anomaly) for anomaly in check(self.history).anomalies)

    def names(self) -> set[str]:
        return set(check(self.history).names)


def abc(*values: str, **facts: int) -> Story:
    """Sends that are all acked in a log that has them all."""
    story = Story(*values, **facts)  # type: ignore[arg-type]
    for offset, value in enumerate(values, facts.get("first", 0)):
        story.send(value, acked=offset)
    return story


def test_nothing_happened() -> None:
    assert check(History()).ok


# --- lost -----------------------------------------------------------------------------------


def test_lost() -> None:
    story = Story("a").send("a", acked=0).send("b", acked=1)
    assert story.found() == ["lost: 1 'b', acked for w, is not in the log"]


def test_a_receipt_that_nobody_waited_for_is_lost_too() -> None:
    """The bytes are in the page cache, which no kill takes away."""
    assert Story("a").send("a", acked=0).send("b", written=1).names() == {"lost"}


@pytest.mark.parametrize("told", ["unknown", "failed"])
def test_not_lost_if_it_was_not_promised(told: str) -> None:
    assert Story("a").send("a", acked=0).send("b", told=told).found() == []


def test_not_lost_if_it_was_deleted() -> None:
    story = Story("b", first=1, start=1).send("a", acked=0).send("b", acked=1)
    assert story.found() == []
    story.history.start = 0
    assert story.names() == {"lost", "hole"}


def test_not_lost_if_it_was_deleted_before_a_power_cut() -> None:
    story = Story("b", first=1, start=1).send("a", acked=0).send("b", acked=1)
    assert story.cut(2).found() == []


def test_a_gap_does_not_make_up_for_a_loss() -> None:
    story = Story("b", first=1).send("a", acked=0).send("b", acked=1).gap(0, 1)
    assert story.names() == {"lost"}


# --- lost to a power cut --------------------------------------------------------------------


def test_a_power_cut_takes_nothing_that_was_acked_in_a_sync_log() -> None:
    assert Story("a").send("a", acked=0).send("b", written=1).cut(1).found() == []
    assert Story("a").send("a", acked=0).send("b", acked=1).cut(2).names() == {"lost"}


def test_what_was_sent_after_the_last_power_cut_is_not_lost_to_it() -> None:
    story = Story("a").send("a", acked=0).cut(1)
    assert story.found() == []
    assert story.send("b", written=1).names() == {"lost"}


def test_the_offset_of_what_nobody_saw_may_be_used_again() -> None:
    story = Story("a", "c").send("a", acked=0).send("b", written=1).cut(1).send("c", acked=1)
    assert story.found() == []
    story.history.cuts.clear()
    assert story.names() == {"lost", "inconsistent offset"}


def test_an_async_log_keeps_what_was_flushed() -> None:
    def story(flushed: int) -> Story:
        story = Story("a", flush="async").send("a", acked=0).send("b", acked=1).send("c", acked=2)
        return story.cut(3, flushed)

    assert story(flushed=0).found() == []
    assert story(flushed=1).found() == []
    assert story(flushed=2).found() == ["lost: 1 'b', acked for w, is not in the log"]


def test_an_async_log_keeps_a_beginning() -> None:
    def story(*log: Record) -> Story:
        story = Story(flush="async").gap(0, 9)
        story.history.gaps = [gap(o, o + 1) for o in range(9) if o not in dict(log)]
        story.history.log = list(log)
        for offset, value in enumerate("abc"):
            story.send(value, acked=offset)
        return story.cut(5).send("d", acked=5)

    assert story((0, "a"), (1, "b"), (5, "d")).found() == []
    assert story((0, "a"), (2, "c"), (5, "d")).found() == [
        "lost: 1 'b', acked for w, is not in the log"
    ]
    assert story((2, "c"), (5, "d")).names() == {"lost"}
    assert story((5, "d")).found() == []


def test_the_same_for_what_nobody_waited_for_in_a_sync_log() -> None:
    story = Story().send("a", written=0).send("b", acked=1).cut(2).gap(0, 1)
    story.history.log = [(1, "b")]
    assert story.names() == {"lost"}


def test_an_offset_that_was_acked_never_comes_again_in_an_async_log() -> None:
    story = Story("b", flush="async").send("a", acked=0).cut(0).send("b", acked=0)
    assert story.names() == {"inconsistent offset"}


def test_what_a_power_cut_took_may_be_sent_again() -> None:
    story = Story("b", "a", first=1, flush="async").gap(0, 1).poll((0, "a"), sought=0)
    story.send("a", acked=0, once=7).cut(1).send("b", acked=1).send("a", acked=2, once=7)
    assert story.found() == []
    story.history.cuts.clear()
    assert story.names() == {"inconsistent offset"}


# --- duplicate ------------------------------------------------------------------------------


def test_duplicate_in_the_log() -> None:
    story = Story("a", "b", "a").send("a", acked=0).send("b", acked=1)
    assert story.found() == ["duplicate: 'a' is in the log at 0 and at 2"]
    assert abc("a", "b", "c").found() == []


def test_a_repeated_append_is_one_append() -> None:
    story = Story("a").send("a", once=1).send("a", acked=0, once=1).send("a", acked=0, once=1)
    assert story.found() == []
    assert check(story.history).sends == 1
    story.send("a", acked=1, once=1).history.log.append((1, "a"))
    assert story.names() == {"duplicate"}


def test_duplicate_to_a_follower() -> None:
    story = abc("a", "b").poll((0, "a"), (1, "b"), (1, "b"), sought=0)
    assert story.found() == ["duplicate: r/1 had 1 'b' twice"]
    assert abc("a", "b").poll((0, "a"), (1, "b")).poll((1, "b")).names() == {"duplicate"}


def test_not_duplicate_after_a_seek_or_to_another_incarnation() -> None:
    story = abc("a", "b").poll((0, "a"), (1, "b"), sought=0)
    assert story.poll((1, "b"), sought=1).poll((1, "b"), sought=1, life=2).found() == []


def test_duplicate_to_a_follower_at_another_offset() -> None:
    story = Story(first=3, start=3).send("a", acked=0).send("b", acked=1)
    assert story.poll((0, "a"), (1, "b"), (2, "a")).names() == {"duplicate", "inconsistent offset"}


# --- reordered ------------------------------------------------------------------------------


def test_reordered() -> None:
    story = Story("b", "a").send("a", acked=1).send("b", acked=0)
    assert story.found() == ["reordered: w sent 'b' after 'a' was answered: at 0 and 1"]


@pytest.mark.parametrize("told", ["acked", "written", "unknown"])
def test_reordered_whatever_the_second_was_told(told: str) -> None:
    story = Story("b", "a").send("a", written=1)
    story.send("b", **({told: 0} if told != "unknown" else {}))  # type: ignore[arg-type]
    assert story.names() == {"reordered"}


def test_not_reordered_by_another_process() -> None:
    assert Story("b", "a").send("a", acked=1, by="v").send("b", acked=0, by="w").found() == []


def test_not_reordered_if_both_were_under_way() -> None:
    story = Story("b", "a").send("a", acked=1).send("b", acked=0)
    first, second = story.history.sends
    for answered, is_found in ((second.invoked, False), (None, False), (second.invoked - 1, True)):
        story.history.sends[0] = first._replace(answered=answered)
        assert story.names() == ({"reordered"} if is_found else set())


def test_not_reordered_if_the_first_is_unknown() -> None:
    assert Story("b", "a").send("a").send("b", acked=0).found() == []


def test_not_reordered_if_it_was_sent_again() -> None:
    story = Story("b", "a").send("a", once=1).send("b", acked=0).send("a", acked=1, once=1)
    assert story.found() == []
    story = Story("a", "b").send("a", once=1).send("b", acked=1).send("a", acked=0, once=1)
    assert story.found() == []
    story.history.sends.reverse()  # who writes it down first says nothing
    assert story.found() == []


def test_not_reordered_if_it_was_taken_and_sent_again_to_the_same_place() -> None:
    story = Story("b", "a").send("a", written=1, once=1).cut(0).send("b", acked=0)
    assert story.send("a", acked=1, once=1).found() == []
    story.history.sends[0] = story.history.sends[0]._replace(outcome="acked")
    assert story.names() == {"reordered"}


def test_not_reordered_with_what_a_power_cut_took() -> None:
    story = Story("a", "d").send("a", acked=0).send("b", written=1).send("c", written=2)
    assert story.cut(1).send("d", acked=1).found() == []
    story.history.start = 9
    story.history.log.clear()
    assert story.found() == []


@pytest.mark.parametrize(("once", "cut"), [(None, True), (1, False)])
def test_reordered_though_nobody_waited(once: int | None, cut: bool) -> None:
    """What cannot have been sent again is where it was."""
    story = Story("b", "a").send("a", written=1, once=once).send("b", acked=0)
    assert (story.cut(2) if cut else story).names() == {"reordered"}


def test_reordered_far_apart_and_below_the_start() -> None:
    story = Story("a", "b", "c", "e", "d").send("a", acked=0).send("d", acked=4)
    story.send("b", acked=1).send("c", acked=2).send("e", acked=3)
    assert check(story.history).names == {"reordered": 3}
    story.history.log.clear()
    story.history.start = 5
    assert check(story.history).names == {"reordered": 3}


def test_reordered_inside_a_batch() -> None:
    assert Story("b", "a").send("a", "b").found() == [
        "reordered: a batch of 2 by w from 1 on is at 1, 0"
    ]


# --- inconsistent offset --------------------------------------------------------------------


def test_inconsistent_offset_of_a_receipt() -> None:
    assert Story("a", "b").send("a", acked=0).send("b").found() == []
    assert Story("a", "b").send("a", acked=1).send("b").found() == [
        "inconsistent offset: 1 is 'b' in the log and 'a' acked for w"
    ]


def test_inconsistent_offset_of_a_poll() -> None:
    story = abc("a", "b").poll((0, "a"), (1, "a"))
    assert story.found() == [
        "duplicate: r/1 had 'a' at 0 and 1",
        "inconsistent offset: 1 is 'b' in the log and 'a' to r/1",
    ]


def test_inconsistent_offset_where_the_log_has_nothing() -> None:
    story = Story("a").send("a", acked=0)
    assert story.poll((0, "a"), sought=0).found() == []
    assert story.poll((4, "a"), sought=4, life=2).found() == [
        "inconsistent offset: 'a' is at 0, and at 4 to r/2"
    ]


def test_inconsistent_offset_below_the_start() -> None:
    story = Story(start=2).send("a", acked=0).send("b")
    assert story.poll((0, "a"), sought=0).found() == []
    assert story.poll((0, "b"), sought=0, life=2).found() == [
        "inconsistent offset: 0 is 'a' by a receipt and 'b' to r/2"
    ]


def test_inconsistent_offset_of_receipts_below_the_start() -> None:
    assert Story(start=3).send("a", acked=0).send("b", acked=1).found() == []
    assert Story(start=3).send("a", acked=0).send("b", acked=0).found() == [
        "inconsistent offset: 0 is 'a' by a receipt and 'b' acked for w"
    ]
    assert Story(start=3).send("a", acked=0, once=1).send("a", acked=1, once=1).found() == [
        "inconsistent offset: 'a' is at 0, and at 1 acked for w"
    ]
    assert Story("a", first=3, start=3).send("a", acked=0).found() == [
        "inconsistent offset: 'a' is at 3, and at 0 acked for w"
    ]


def test_inconsistent_offset_between_polls() -> None:
    story = Story(start=2).send("a").send("b").poll((0, "a"), sought=0)
    assert story.found() == []
    assert story.poll((0, "b"), sought=0, life=2).found() == [
        "inconsistent offset: 0 is 'a' to r/1 and 'b' to r/2"
    ]


def test_inconsistent_offset_in_the_log_itself() -> None:
    story = abc("a")
    story.send("b").history.log.append((0, "b"))
    assert story.names() == {"inconsistent offset"}


def test_inconsistent_offset_of_a_record_in_a_gap() -> None:
    assert abc("a", "b").gap(2, 9).found() == []
    assert abc("a", "b").gap(1, 9).found() == [
        "inconsistent offset: 1 is 'b' in the log, and in a gap (lost, 1..8)"
    ]


# --- phantom and aborted --------------------------------------------------------------------


def test_phantom_in_the_log() -> None:
    story = abc("a")
    story.history.log.append((1, "x"))
    assert story.found() == ["phantom: 1 is 'x' in the log, and nobody sent it"]
    assert story.send("x").found() == []


def test_phantom_to_a_follower() -> None:
    story = abc("a").poll((0, "a"), (1, "x"), sought=0).poll((1, "x"), sought=1, life=2)
    assert story.found() == ["phantom: 1 is 'x' to r/1, and nobody sent it"]


def test_aborted_in_the_log() -> None:
    story = Story("a", "b").send("a", acked=0).send("b", told="failed")
    assert story.found() == ["aborted: 1 is 'b' in the log, and w was told NotWritten"]


def test_aborted_to_a_follower() -> None:
    story = Story("a").send("a", acked=0).send("b", told="failed")
    assert story.poll((0, "a"), sought=0).found() == []
    assert story.poll((1, "b")).found() == ["aborted: 1 is 'b' to r/1, and w was told NotWritten"]


def test_not_aborted_if_another_attempt_may_have_made_it() -> None:
    story = Story("a").send("a", told="failed", once=1)
    assert story.names() == {"aborted"}
    assert story.send("a", told="unknown", once=1).found() == []
    assert story.send("a", acked=0, once=1).send("a", told="failed", once=1).found() == []


# --- skipped and non-monotonic --------------------------------------------------------------


def test_skipped() -> None:
    story = abc("a", "b", "c").poll((0, "a"), (2, "c"), sought=0)
    assert story.found() == ["skipped: r/1 was to have 1, had 2: not 1"]


def test_skipped_between_polls_and_after_a_seek() -> None:
    assert abc("a", "b", "c").poll((0, "a")).poll((2, "c")).names() == {"skipped"}
    assert abc("a", "b", "c").poll(sought=1).poll((2, "c")).names() == {"skipped"}


def test_not_skipped_by_a_seek_or_by_an_unknown_start() -> None:
    assert abc("a", "b", "c").poll((0, "a")).poll((2, "c"), sought=2).found() == []
    assert abc("a", "b", "c").poll((0, "a")).poll((2, "c"), life=2).found() == []


def test_not_skipped_where_there_is_no_record() -> None:
    story = Story(flush="async").gap(1, 2, "skipped").send("a", acked=0).send("c", acked=2)
    story.history.log = [(0, "a"), (2, "c")]
    assert story.poll((0, "a"), (2, "c"), sought=0).found() == []


def test_skipped_below_the_start() -> None:
    """What was deleted has to be an error, and never silence."""
    story = Story("c", first=2, start=2).send("b", acked=1).send("c", acked=2)
    assert story.poll((2, "c"), sought=0).names() == {"skipped"}
    assert story.poll((2, "c"), sought=2, life=2).found() == [
        "skipped: r/1 was to have 0, had 2: not 1"
    ]


def test_non_monotonic() -> None:
    story = abc("a", "b", "c").poll((0, "a"), (1, "b"), (2, "c"), sought=0).poll((1, "b"), (2, "c"))
    assert story.found() == ["non-monotonic: r/1 had 1 'b' after 2"]


def test_not_non_monotonic_by_a_seek() -> None:
    story = abc("a", "b", "c").poll((0, "a"), (1, "b"), (2, "c"))
    assert story.poll((0, "a"), sought=0).poll((0, "a"), sought=0, life=2).found() == []


def test_non_monotonic_before_the_place_that_was_sought() -> None:
    assert abc("a", "b").poll((1, "b"), sought=1).found() == []
    assert abc("a", "b").poll((0, "a"), sought=1).names() == {"non-monotonic"}
    assert abc("a", "b").poll(sought=1).poll((0, "a")).names() == {"non-monotonic"}


def test_non_monotonic_in_the_log_itself() -> None:
    story = abc("a", "b")
    story.history.log.reverse()
    assert story.names() == {"non-monotonic"}


# --- torn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{"acked": 0}, {}])
def test_torn(told: dict[str, int]) -> None:
    assert Story("a", "b", "c").send("a", "b", "c", **told).found() == []  # type: ignore[arg-type]
    story = Story("a", "b").send("a", "b", "c", **told)  # type: ignore[arg-type]
    assert "torn" in story.names()
    assert Story("b", "c", first=1).send("a", "b", "c").names() == {"torn", "hole"}


def test_not_torn_if_none_of_it_is_there() -> None:
    assert Story().send("a", "b").found() == []


def test_not_torn_by_the_start() -> None:
    story = Story("b", "c", first=1, start=1).send("a", "b", "c", acked=0)
    assert story.found() == []
    story.history.start = 0
    assert story.names() == {"torn", "lost", "hole"}


def test_torn_by_something_in_between() -> None:
    story = Story("a", "x", "b").send("a", "b").send("x", acked=1)
    assert story.found() == ["torn: a batch of 2 by w from 0 on is in pieces, at 0, 2"]


def test_torn_by_a_power_cut() -> None:
    assert Story("a").send("a", written=0).send("b", "c", written=1).cut(1).found() == []
    story = Story("a", "b").send("a", written=0).send("b", "c", written=1).cut(2)
    assert story.names() == {"torn"}


# --- unseen and taken back ------------------------------------------------------------------


def test_unseen() -> None:
    story = abc("a", "b").poll((0, "a"), sought=0, at_end=True)
    assert story.found() == ["unseen: 1 'b' was acked; r/1 never had it"]


def test_not_unseen_before_the_end_or_at_the_end() -> None:
    assert abc("a", "b").poll((0, "a"), sought=0).found() == []
    assert abc("a", "b").poll((0, "a"), (1, "b"), sought=0, at_end=True).found() == []
    assert abc("a", "b").poll(sought=2, at_end=True).found() == []
    assert abc("a", "b").poll(at_end=True).found() == []


def test_not_unseen_if_it_was_not_acked() -> None:
    story = Story("a", "b").send("a", acked=0).send("b", written=1)
    assert story.poll((0, "a"), sought=0, at_end=True).found() == []


def test_not_unseen_if_nobody_sent_it() -> None:
    story = Story("a", "x").send("a", acked=0).poll((0, "a"), sought=0, at_end=True)
    assert story.names() == {"phantom"}


def test_taken_back() -> None:
    story = Story("a").send("a", acked=0).send("b").poll((0, "a"), (1, "b"), sought=0)
    assert story.found() == ["taken back: r/1 had 1 'b', which is not in the log"]
    story.history.log.append((1, "b"))
    assert story.found() == []


def test_not_taken_back_by_retention() -> None:
    assert Story(start=1).send("a").poll((0, "a")).found() == []


def test_taken_back_by_a_power_cut() -> None:
    """In a sync log readers see only what no power cut takes."""

    def story(flush: str, flushed: int = 0) -> Story:
        return Story(flush=flush).send("a").poll((0, "a"), sought=0).cut(1, flushed)

    assert story("sync").names() == {"taken back"}
    assert story("async").found() == []
    assert story("async", flushed=1).names() == {"taken back"}


def test_taken_back_after_the_last_power_cut() -> None:
    story = Story("a", flush="async").send("a", acked=0).cut(1).send("b")
    assert story.poll((0, "a"), sought=0).found() == []
    assert story.poll((1, "b")).names() == {"taken back"}


def test_taken_back_from_the_middle_by_a_power_cut() -> None:
    story = Story(flush="async").send("a").send("b").poll((0, "a"), (1, "b"), sought=0).cut(2)
    assert story.found() == []
    story.gap(0, 1).history.log = [(1, "b")]
    assert story.names() == {"taken back"}


# --- hole -----------------------------------------------------------------------------------


def test_hole() -> None:
    story = Story().send("a", acked=3).send("b", acked=5)
    story.history.log = [(3, "a"), (5, "b")]
    story.history.start = 2
    assert story.found() == [
        "hole: 2..2 have no record and no gap",
        "hole: 4..4 have no record and no gap",
    ]
    assert story.gap(1, 3).names() == {"hole"}
    assert story.gap(4, 5, "skipped").found() == []


def test_a_hole_that_gaps_cover_in_pieces() -> None:
    story = Story("a", first=9).send("a", acked=9)
    assert story.gap(0, 4).gap(2, 6).gap(7, 9).found() == ["hole: 6..8 have no record and no gap"]
    assert story.gap(6, 7).found() == []


# --- what is no history ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "send",
    [
        Send("w", (b"a",), 1, "acked"),
        Send("w", (b"a",), 1, "written"),
        Send("w", (b"a",), 1, "failed", 0),
        Send("w", (b"a",), 1, "unknown", 0),
        Send("w", (b"a",), 1, "other"),
        Send("w", (), 1, "acked", 0),
    ],
)
def test_a_send_that_makes_no_sense(send: Send) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        check(History([send]))


def test_values_are_unique() -> None:
    with pytest.raises(ValueError, match="'a' is sent twice"):
        check(Story().send("a").send("a").history)
    with pytest.raises(ValueError, match="'a' is sent twice"):
        check(Story().send("a", "a").history)
    with pytest.raises(ValueError, match="other values for the same sequence"):
        check(Story().send("a", once=1).send("b", once=1).history)


def test_a_log_that_never_flushes_is_checked_without_power_cuts() -> None:
    assert Story("a", flush="none").send("a", acked=0).found() == []
    assert Story(flush="none").send("a", acked=0).names() == {"lost"}
    with pytest.raises(ValueError, match="flush='none' and 1 power cuts"):
        check(Story(flush="none").cut(1).history)
    with pytest.raises(ValueError, match="flush='often' cannot"):
        check(Story(flush="often").history)


# --- reports --------------------------------------------------------------------------------


def test_a_report_counts() -> None:
    story = Story("a", "b", "e", "f").send("a", acked=0).send("b").send("f").send("c")
    story.send("d", told="failed").send("e", written=2, by="v")
    report = check(story.poll((0, "a"), (1, "b")).poll((2, "e")).history)
    assert report.ok
    assert dataclasses.asdict(report) == {
        "anomalies": [], "sends": 6, "acked": 1, "written": 1, "failed": 1, "happened": 2,
        "absent": 1, "records": 4, "read": 3,
    }  # fmt: skip
    assert str(report).splitlines() == [
        "no anomalies in 6 sends",
        "  1 acked, 1 written, 1 failed, 3 unknown",
        "  of the unknown 2 happened, 1 did not",
        "  4 records in the log, 3 read by followers",
    ]


def test_an_unknown_send_that_only_a_follower_saw_happened() -> None:
    report = check(Story(start=5).send("a").poll((0, "a")).history)
    assert (report.happened, report.absent) == (1, 0)


def test_a_report_fits_a_terminal() -> None:
    story = Story()
    for offset in range(100):
        story.send("a long value " * 9 + str(offset), acked=offset, by="a long name " * 9)
    report = check(story.poll((200, "x" * 99)).history)
    assert report.names == {"lost": 100, "phantom": 1}
    lines = str(report).splitlines()
    assert lines[0] == "101 anomalies in 100 sends"
    assert max(map(len, lines)) == 80
    assert lines[4] == "lost: 100"
    assert [line[:6] for line in lines[5:10]] == [f"  {offset} 'a" for offset in range(5)]
    assert lines[10:12] == ["  and 95 more", "phantom: 1"]
    assert len(lines) == 13


# --- lines of JSON --------------------------------------------------------------------------


def test_lines_of_json() -> None:
    values: list[Value] = [b"a", b"\xff\x00", "bé".encode()]
    history = History(
        [Send("w", tuple(values), 1.5, "acked", 3, 2.5, "p", 4)],
        [Poll("r", 2, ((3, b"a"), (4, b"\xff\x00")), sought=3, at_end=True)],
        list(enumerate(values, 3)),
        start=3,
        gaps=[gap(9, 10)],
        flush="async",
        cuts=[PowerCut(1.0, 3)],
    )
    lines = list(dump(history))
    assert load(lines) == history
    random.Random(1).shuffle(lines)
    assert load(lines).sends == history.sends
    text = dataclasses.replace(history, log=[(3, "a"), (4, "bé")])
    assert load(dump(text)).log == [(3, b"a"), (4, "bé".encode())]


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"send": {}}', '{"x": 1}', '{"record": [1]}'])
def test_a_line_that_is_not_of_a_history(line: str) -> None:
    good = json.dumps({"record": [0, "a"]})
    with pytest.raises(ValueError, match="line 2 is not of a history"):
        load([good, line])


# --- a correct log --------------------------------------------------------------------------


class Batch(NamedTuple):
    offset: int
    values: tuple[str, ...]


@dataclasses.dataclass
class Pending:
    process: str
    values: tuple[str, ...]
    invoked: int
    producer: str
    sequence: int


@dataclasses.dataclass
class Follower:
    name: str
    life: int = 1
    position: int = 0
    sought: int | None = 0


class Model:
    """A log that is correct because it is simple, and processes that use it and are killed."""

    def __init__(self, rng: random.Random, flush: str, *, power_cuts: bool) -> None:
        self.rng = rng
        self.history = History(flush=flush)
        self.batches: list[Batch] = []
        self.next = 0
        self.durable = 0
        self.sequences: dict[tuple[str, int], int] = {}
        self.pending: list[Pending] = []
        self.unanswered: list[Pending] = []  # may be sent again
        self.followers = [Follower(f"r{n}") for n in range(2)]
        self.clock = itertools.count(1)
        self.numbers = itertools.count()
        self.steps: list[Callable[[], None]] = [
            *[self.invoke] * 6, *[self.finish] * 8, *[self.follow] * 6, self.flush, self.kill,
            self.restart_follower, self.truncate, *[self.cut_power] * power_cuts,
        ]  # fmt: skip

    def run(self, steps: int) -> History:
        for _ in range(steps):
            self.rng.choice(self.steps)()
        while self.pending:
            self.finish()
        self.flush()
        self.history.log = self.visible(self.history.start)
        for follower in self.followers:
            while self.follow_once(follower, 5):
                continue
            self.history.polls[-1] = self.history.polls[-1]._replace(at_end=True)
        return self.history

    def visible(self, start: int) -> list[Record]:
        limit = self.durable if self.history.flush == "sync" else self.next
        records = (
            record for batch in self.batches for record in enumerate(batch.values, batch.offset)
        )
        return [(offset, value) for offset, value in records if start <= offset < limit]

    def invoke(self) -> None:
        if self.unanswered and self.rng.random() < 0.3:
            again = self.unanswered.pop(self.rng.randrange(len(self.unanswered)))
            self.pending.append(dataclasses.replace(again, invoked=next(self.clock)))
            return
        number = next(self.numbers)
        size = self.rng.choice((1, 1, 1, 2, 4))
        values = tuple(f"v{number}.{n}" if size > 1 else f"v{number}" for n in range(size))
        process = f"w{self.rng.randrange(3)}"
        producer = self.rng.choice(("", f"p{process}"))
        self.pending.append(Pending(process, values, next(self.clock), producer, number))

    def finish(self) -> None:
        if not self.pending:
            return
        send = self.pending.pop(self.rng.randrange(len(self.pending)))
        told = self.rng.choice(("acked",) * 5 + ("written", "written", "failed", "unknown"))
        if told == "failed" and (send.producer, send.sequence) in self.sequences:
            told = "acked"
        if told in ("failed", "unknown"):
            if told == "unknown" and self.rng.random() < 0.5:
                self.append(send)
            self.note(send, told, None)
            return
        offset = self.append(send)
        if told == "acked" and self.history.flush == "sync":
            self.flush()
        self.note(send, told, offset)

    def append(self, send: Pending) -> int:
        key = (send.producer, send.sequence)
        if key not in self.sequences or not send.producer:
            self.sequences[key] = self.next
            self.batches.append(Batch(self.next, send.values))
            self.next += len(send.values)
        return self.sequences[key]

    def note(self, send: Pending, told: str, offset: int | None) -> None:
        answered = None if told == "unknown" else next(self.clock)
        what = (send.process, send.values, send.invoked, told, offset, answered)
        self.history.sends.append(Send(*what, send.producer, send.sequence))
        if send.producer:
            self.unanswered.append(send)

    def flush(self) -> None:
        self.durable = self.next

    def kill(self) -> None:
        """One process; what it was doing may have happened."""
        process = f"w{self.rng.randrange(3)}"
        for send in [send for send in self.pending if send.process == process]:
            self.pending.remove(send)
            if self.rng.random() < 0.5:
                self.append(send)
            self.note(send, "unknown", None)

    def follow(self) -> None:
        follower = self.rng.choice(self.followers)
        if self.rng.random() < 0.1:
            follower.sought = follower.position = self.rng.randint(0, self.next)
        self.follow_once(follower, self.rng.randint(1, 5))

    def follow_once(self, follower: Follower, limit: int) -> int:
        if follower.position < self.history.start:
            follower.sought = follower.position = self.history.start
        records = tuple(self.visible(follower.position)[:limit])
        poll = Poll(follower.name, follower.life, records, follower.sought)
        self.history.polls.append(poll)
        follower.sought = None
        if records:
            follower.position = records[-1][0] + 1
        return len(records)

    def restart_follower(self) -> None:
        follower = self.rng.choice(self.followers)
        follower.life += 1
        choices = [follower.position, self.history.start, self.rng.randint(0, self.next)]
        follower.sought = follower.position = self.rng.choice(choices)

    def truncate(self) -> None:
        limit = self.durable if self.history.flush == "sync" else self.next
        start = self.rng.randint(self.history.start, max(limit, self.history.start))
        start = min(start, self.history.start + 10)
        self.history.start = start
        self.batches = [b for b in self.batches if b.offset + len(b.values) > start]

    def cut_power(self) -> None:
        """All processes end; an end of what was not flushed is gone."""
        for send in self.pending:
            self.note(send, "unknown", None)
        self.pending.clear()
        loose = [batch for batch in self.batches if batch.offset >= self.durable]
        gone = loose[self.rng.randint(0, len(loose)) :]
        self.batches = [batch for batch in self.batches if batch not in gone]
        end = gone[0].offset if gone else self.next
        for key, offset in list(self.sequences.items()):
            if offset >= end:
                del self.sequences[key]
        skip = self.rng.choice((0, 0, 3))
        resumed = (end if self.history.flush == "sync" else self.next) + skip
        self.history.cuts.append(PowerCut(next(self.clock), resumed, self.durable))
        if resumed > end:
            self.history.gaps.append(gap(end, resumed, self.rng.choice(("lost", "skipped"))))
        self.next = self.durable = resumed
        for follower in self.followers:
            follower.life += 1
            follower.position = min(follower.position, resumed)
            follower.sought = follower.position


SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, log=st.sampled_from(["sync", "async", "none", "sync cut", "async cut"]))
def test_a_correct_log_has_no_anomalies(seed: int, log: str) -> None:
    rng = random.Random(seed)
    flush, *cut = log.split()
    history = Model(rng, flush, power_cuts=bool(cut)).run(rng.randint(0, 300))
    report = check(history)
    assert report.ok, "\n".join([str(report), *dump(history)])
    known = report.acked + report.written + report.failed
    assert known + report.happened + report.absent == report.sends
    assert report.records == len(history.log)


# --- what is done to it ---------------------------------------------------------------------


class Damage:
    """Ways to spoil a history that has no power cuts, each named after what it has to be called."""

    def __init__(self, history: History, rng: random.Random) -> None:
        self.history = history
        self.rng = rng
        self.send_of = {value: send for send in history.sends for value in send.values}
        self.acked = {v for s in history.sends for v in s.values if s.outcome == "acked"}
        self.receipts = {v for s in history.sends for v in s.values if s.offset is not None}
        self.seen = {value for poll in history.polls for _, value in poll.records}
        retried = Counter((s.producer, s.sequence) for s in history.sends if s.producer)
        self.failed = [
            value
            for send in history.sends
            for value in send.values
            if send.outcome == "failed" and retried[send.producer, send.sequence] < 2
        ]

    def pick(self, things: Iterable[T]) -> T:
        """One of these; without any, the example is given up."""
        found = list(things)
        assume(found)
        return self.rng.choice(found)

    def record(self, wanted: Container[Value] | None = None) -> int:
        """Where in the log there is one of these."""
        log = self.history.log
        return self.pick(i for i in range(len(log)) if wanted is None or log[i][1] in wanted)

    def place(self, back: int = 0, ahead: int = 0) -> tuple[int, int]:
        """A poll, and a record in it that has others around it."""
        polls = self.history.polls
        return self.pick(
            (i, j) for i, poll in enumerate(polls) for j in range(back, len(poll.records) - ahead)
        )

    def change(self, poll: int, records: list[Record]) -> None:
        self.history.polls[poll] = self.history.polls[poll]._replace(records=tuple(records))

    # In the log.

    def lost_a_record(self) -> None:
        del self.history.log[self.record(self.receipts)]

    def taken_back_a_record(self) -> None:
        del self.history.log[self.record(self.seen)]

    def hole_instead_of_a_record(self) -> None:
        assume(len(self.history.log) > 1)
        del self.history.log[self.rng.randrange(len(self.history.log) - 1)]

    def torn_a_batch(self) -> None:
        there = {value for _, value in self.history.log}
        batches = {v for v, send in self.send_of.items() if len(there & {*send.values}) > 1}
        del self.history.log[self.record(batches)]

    def phantom_in_place_of_a_record(self) -> None:
        index = self.record()
        self.history.log[index] = (self.history.log[index][0], "phantom")

    def duplicate_of_a_record(self) -> None:
        value = self.history.log[self.record()][1]
        self.history.log.append((self.history.log[-1][0] + 1, value))

    def aborted_a_record(self) -> None:
        value = self.pick(self.failed)
        end = self.history.log[-1][0] + 1 if self.history.log else self.history.start
        self.history.log.append((end, value))

    def inconsistent_offset_of_two_records(self) -> None:
        log = self.history.log
        i, j = self.record(self.receipts), self.record()
        assume(i != j)
        log[i], log[j] = (log[i][0], log[j][1]), (log[j][0], log[i][1])

    def inconsistent_offset_of_a_receipt(self) -> None:
        there = {value for _, value in self.history.log}
        sends = self.history.sends
        index = self.pick(
            i for i, s in enumerate(sends) if s.offset is not None and s.values[0] in there
        )
        offset = sends[index].offset
        assert offset is not None
        sends[index] = sends[index]._replace(offset=offset + self.rng.choice((-3, -1, 1, 1000)))

    def inconsistent_offset_of_a_gap(self) -> None:
        offset = self.history.log[self.record()][0]
        self.history.gaps.append(gap(offset, offset + 1, "skipped"))

    def non_monotonic_records(self) -> None:
        log = self.history.log
        assume(len(log) > 1)
        i = self.rng.randrange(len(log) - 1)
        log[i], log[i + 1] = log[i + 1], log[i]

    def reordered_sends(self) -> None:
        """Each gets the other's place, and everybody agrees."""
        where = {value: offset for offset, value in self.history.log}
        sends = self.history.sends
        alone = [
            i for i, s in enumerate(sends) if not s.producer and len(s.values) == 1
            and s.values[0] in where
        ]  # fmt: skip
        i, j = self.pick(
            (i, j)
            for i, j in itertools.permutations(alone, 2)
            if sends[i].process == sends[j].process
            and (sends[i].answered or 1e9) < sends[j].invoked
        )
        for one, other in ((sends[i], sends[j]), (sends[j], sends[i])):
            offset = where[other.values[0]] if one.offset is not None else None
            sends[sends.index(one)] = one._replace(values=other.values, offset=offset)

    def hole_without_its_gap(self) -> None:
        end = self.history.log[-1][0] if self.history.log else 0
        gaps = self.history.gaps
        gaps.remove(self.pick(g for g in gaps if self.history.start <= g.first < end))

    # To followers.

    def skipped_a_record(self) -> None:
        there = {offset for offset, _ in self.history.log}
        polls = self.history.polls
        i, j = self.pick(
            (i, j)
            for i, poll in enumerate(polls)
            for j, (offset, _) in enumerate(poll.records[:-1])
            if offset in there and (j or poll.sought is not None)
        )
        self.change(i, [*polls[i].records[:j], *polls[i].records[j + 1 :]])

    def duplicate_to_a_follower(self) -> None:
        i, j = self.place()
        records = self.history.polls[i].records
        self.change(i, [*records[: j + 1], *records[j:]])

    def duplicate_of_an_earlier_one_to_a_follower(self) -> None:
        i, j = self.place(back=1)
        records = list(self.history.polls[i].records)
        records[j] = (records[j][0], records[self.rng.randrange(j)][1])
        self.change(i, records)

    def non_monotonic_poll(self) -> None:
        i, j = self.place(back=1)
        records = self.history.polls[i].records
        back = self.rng.randrange(j)
        self.change(i, [*records[: j + 1], *records[back:]])

    def non_monotonic_pair(self) -> None:
        i, j = self.place(ahead=1)
        records = list(self.history.polls[i].records)
        records[j], records[j + 1] = records[j + 1], records[j]
        self.change(i, records)

    def phantom_to_a_follower(self) -> None:
        i, j = self.place()
        records = list(self.history.polls[i].records)
        records[j] = (records[j][0], "phantom")
        self.change(i, records)

    def aborted_to_a_follower(self) -> None:
        value = self.pick(self.failed)
        i, j = self.place()
        records = list(self.history.polls[i].records)
        records[j] = (records[j][0], value)
        self.change(i, records)

    def inconsistent_offset_to_a_follower(self) -> None:
        there = dict(self.history.log)
        polls = self.history.polls
        i, j = self.pick(
            (i, j)
            for i, poll in enumerate(polls)
            for j, (offset, _) in enumerate(poll.records)
            if offset in there
        )
        records = list(polls[i].records)
        other = self.pick(value for value in there.values() if value != records[j][1])
        records[j] = (records[j][0], other)
        self.change(i, records)

    def unseen_by_a_follower(self) -> None:
        """It stops for good before the last record."""
        polls = self.history.polls
        last = self.pick(self.history.log[-1:])
        assume(last[1] in self.acked)
        who = self.pick(poll[:2] for poll in polls if poll.at_end)
        for i, poll in enumerate(polls):
            if poll[:2] == who:
                assume((poll.sought or 0) <= last[0])
                self.change(i, [record for record in poll.records if record != last])


def name_of(damage: str) -> str | None:
    words = damage.replace("_", " ").replace("non monotonic", "non-monotonic")
    return next((name for name in NAMES if words.startswith(name)), None)


DAMAGE = [damage for damage in vars(Damage) if name_of(damage)]


def test_every_anomaly_has_its_damage() -> None:
    assert {name_of(damage) for damage in DAMAGE} == set(NAMES)


@pytest.mark.parametrize("damage", DAMAGE)
@given(seed=SEEDS, flush=st.sampled_from(["sync", "async"]))
def test_damage_is_called_by_its_name(damage: str, seed: int, flush: str) -> None:
    rng = random.Random(seed)
    has_cuts = damage == "hole_without_its_gap"
    history = Model(rng, flush, power_cuts=has_cuts).run(rng.randint(40, 200))
    getattr(Damage(history, rng), damage)()
    report = check(history)
    assert name_of(damage) in report.names, "\n".join([str(report), *dump(history)])
