"""The ledger of a group: what operations do to it, wherever they are applied."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.queue.journal import Op, encode_line, parse_line
from tailrace.queue.lease import CLAIMED, DYING, FREE, LEASED, PARKED, WAITING, Lease
from tailrace.queue.ledger import Ledger
from tailrace.queue.runs import runs_of

LEASE_MS = 160
MAX_RETRIES = 2

actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("claim", "claim", "prefetch", "hand", "ack", "ack", "nack", "release", "extend"),
                *("done", "done"),
                *("dying", "dead", "gone", "time", "boot", "join", "die", "reset"),
            ]
        ),
        st.integers(0, 2**16),
    ),
    max_size=60,
)


class Driver:
    """Does to a ledger what a group does, and keeps what it would write to its journal."""

    def __init__(self, *, by_key: bool = False) -> None:
        self.ledger = Ledger()
        self.ops: list[Op] = []
        self.by_key = by_key
        self.now_ms = 1_600
        self.boots = 0
        self.apply({"t": "boot", "b": "0", "u": self.now_ms, "w": 10**9})
        if by_key:
            self.apply({"t": "options", "o": {"key_order": True}})

    def apply(self, op: Op) -> None:
        op = through_a_journal(op)
        self.ledger.apply(op)
        self.ops.append(op)

    def run(self, chosen: Iterable[tuple[str, int]]) -> None:
        for action, number in chosen:
            getattr(self, action)(number)

    def some(self, number: int, *states: int) -> list[int]:
        """Some pending messages in these states."""
        found = [o for o, lease in self.ledger.pending.items() if lease.state in states]
        return [offset for index, offset in enumerate(found) if number >> (index % 16) & 1]

    def change(self, kind: str, offsets: list[int], **more: Any) -> None:
        if offsets:
            self.apply({"t": kind, "r": runs_of(offsets), **more})

    @property
    def until(self) -> int:
        return self.ledger.tick(self.now_ms + LEASE_MS)

    def claim(self, number: int, handed: int = 1) -> None:
        ledger = self.ledger
        again, spent, _alone = ledger.take_ready(self.now_ms, 3, MAX_RETRIES)
        op: Op = {"t": "claim", "c": f"c{number % 2}", "u": self.until, "h": handed}
        op |= {"f": ledger.cursor, "x": ledger.cursor + number % 4}
        # One of those that it passes is not for us.
        new = [o for o in range(op["f"], op["x"]) if o % 5]
        if self.by_key:
            self.line_up(op, new)
        elif new:
            op["r"] = runs_of(new)
        if again:
            op["again"] = runs_of(sorted(again))
        if again or op["x"] > op["f"]:
            self.apply(op)
        self.change("dying", sorted(spent), u=self.until, e="too often")

    def line_up(self, op: Op, new: list[int]) -> None:
        first, parked, keys = [], [], []
        for offset in new:
            key = offset % 3
            keys += [offset, key]
            if self.ledger.has_line(key) or key in keys[1:-2:2]:
                parked.append(offset)
            else:
                first.append(offset)
        for name, offsets in (("r", first), ("parked", parked)):
            if offsets:
                op[name] = runs_of(offsets)
        if keys:
            op["keys"] = keys

    def prefetch(self, number: int) -> None:
        self.claim(number, handed=0)

    def hand(self, number: int) -> None:
        self.change("hand", self.some(number, CLAIMED), u=self.until)

    def ack(self, number: int) -> None:
        self.change("ack", self.some(number, LEASED, CLAIMED))

    def done(self, number: int) -> None:
        """All that one claim gave, as it was."""
        claims = [op["r"] for op in self.ops if op["t"] == "claim" and len(op.get("r", ())) == 2]
        for runs in claims[-1 - number % 3 :][:1]:
            whole = range(runs[0], runs[0] + runs[1])
            leases = [self.ledger.pending.get(offset) for offset in whole]
            if all(lease is not None and lease.state in (LEASED, CLAIMED) for lease in leases):
                self.apply({"t": "ack", "r": runs})

    def nack(self, number: int) -> None:
        self.change("nack", self.some(number, LEASED), u=self.until, e="no")

    def release(self, number: int) -> None:
        self.change("release", self.some(number, LEASED, CLAIMED))

    def extend(self, number: int) -> None:
        self.change("extend", self.some(number, LEASED, CLAIMED), u=self.until)

    def dying(self, number: int) -> None:
        self.change("dying", self.some(number, LEASED), u=self.until, e="bad")

    def dead(self, number: int) -> None:
        self.change("dead", self.some(number, DYING))

    def gone(self, number: int) -> None:
        self.change("gone", self.some(number, FREE)[:1], lost=0)

    def time(self, number: int) -> None:
        self.now_ms += number % (3 * LEASE_MS)

    def boot(self, number: int) -> None:
        self.boots += 1
        self.now_ms = 1_600
        self.apply({"t": "boot", "b": str(self.boots), "u": self.now_ms, "w": 10**9 + number})

    def join(self, number: int) -> None:
        self.apply({"t": "join", "c": f"c{number % 2}", "m": {"pid": number}})

    def die(self, number: int) -> None:
        self.apply({"t": "leave", "c": f"c{number % 2}", "died": True})

    def reset(self, number: int) -> None:
        self.apply({"t": "reset", "x": number % (self.ledger.cursor + 1)})


def through_a_journal(op: Op) -> Op:
    found = parse_line(encode_line(op)[:-1])
    assert found is not None
    return found


def state_of(ledger: Ledger) -> Any:
    """All that counts, as JSON has it."""
    state, entries = ledger.dump()
    return json.loads(json.dumps([state, {str(o): entries[o] for o in entries}]))


def replayed(ops: Iterable[Op]) -> Ledger:
    ledger = Ledger()
    for op in ops:
        ledger.apply(op)
    return ledger


def loaded(ledger: Ledger) -> Ledger:
    state, entries = json.loads(json.dumps(ledger.dump()))
    return Ledger.load(state, {int(offset): entry for offset, entry in entries.items()})


def in_order(ledger: Ledger, now_ms: int) -> list[tuple[list[int], list[int], bool]]:
    """All that may be claimed again, as it is claimed."""
    found: list[tuple[list[int], list[int], bool]] = []
    while True:
        again, spent, is_suspect = ledger.take_ready(now_ms, 2, MAX_RETRIES)
        if not again and not spent:
            return found
        found.append((again, spent, is_suspect))
        until, cursor = now_ms + 10**9, ledger.cursor
        if again:
            op: Op = {"t": "claim", "c": "x", "u": until, "h": 0, "f": cursor, "x": cursor}
            ledger.apply({**op, "again": runs_of(again)})
        if spent:
            ledger.apply({"t": "dying", "r": runs_of(spent), "u": until, "e": ""})


@given(actions, st.booleans())
def test_whoever_reads_the_journal_comes_to_the_same(
    chosen: list[tuple[str, int]], by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    driver.run(chosen)
    again = replayed(driver.ops)
    assert state_of(again) == state_of(driver.ledger)
    later = driver.now_ms + 10**6
    assert in_order(again, later) == in_order(driver.ledger, later)


@given(actions, st.booleans())
def test_what_is_claimed_at_once_need_not_be_looked_at_one_by_one(
    chosen: list[tuple[str, int]], by_key: bool
) -> None:
    """Of two ledgers only one is asked for single messages; nobody can tell which."""
    driver = Driver(by_key=by_key)
    one, other, applied = driver.ledger, replayed(driver.ops), len(driver.ops)
    for action, number in chosen:
        driver.run([(action, number)])
        for op in driver.ops[applied:]:
            other.apply(op)
        applied = len(driver.ops)
        pending = one.pending
        assert (other.committed, other.weight) == (one.committed, len(pending))
        assert (other.acked, other.delivered) == (one.acked, one.delivered)
        assert [other.held_by(c) for c in ("c0", "c1")] == [one.held_by(c) for c in ("c0", "c1")]
        assert all(other.is_pending(offset) for offset in pending)
        assert not any(map(other.is_pending, set(range(one.cursor + 1)).difference(pending)))
    assert list(other.pending) == sorted(other.pending)
    assert state_of(other) == state_of(one)
    later = driver.now_ms + 10**6
    assert in_order(other, later) == in_order(one, later)


@given(actions, actions, st.booleans())
def test_a_snapshot_is_as_good_as_the_journal(
    before: list[tuple[str, int]], after: list[tuple[str, int]], by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    driver.run(before)
    copy, known = loaded(driver.ledger), len(driver.ops)
    assert state_of(copy) == state_of(driver.ledger)
    driver.run(after)
    for op in driver.ops[known:]:
        copy.apply(op)
    assert state_of(copy) == state_of(driver.ledger)
    later = driver.now_ms + 10**6
    assert in_order(copy, later) == in_order(driver.ledger, later)


@given(actions, st.booleans())
def test_committed_is_the_oldest_that_is_pending(
    chosen: list[tuple[str, int]], by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    ledger = driver.ledger
    for action, number in chosen:
        driver.run([(action, number)])
        assert list(ledger.pending) == sorted(ledger.pending)
        assert ledger.committed == min(ledger.pending, default=ledger.cursor)
        assert all(offset < ledger.cursor for offset in ledger.pending)


@given(actions, st.data(), st.booleans())
def test_a_line_that_is_lost_leads_to_another_delivery_and_never_to_a_loss(
    chosen: list[tuple[str, int]], data: st.DataObject, by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    driver.run((action, number) for action, number in chosen if action != "reset")
    lost = data.draw(st.integers(0, len(driver.ops) - 1))
    damaged = replayed(driver.ops[:lost] + driver.ops[lost + 1 :])
    # The claim that comes next, and says from where it went on.
    end: Op = {"t": "claim", "c": "", "u": 0, "h": 0, "f": driver.ledger.cursor}
    damaged.apply({**end, "x": driver.ledger.cursor})
    assert set(damaged.pending) >= set(driver.ledger.pending)
    assert damaged.committed == min(damaged.pending, default=damaged.cursor)
    assert damaged.committed <= driver.ledger.committed
    later = driver.now_ms + 10**6
    found = [offset for again, spent, _ in in_order(damaged, later) for offset in again + spent]
    parked = [o for o, lease in damaged.pending.items() if lease.state == PARKED]
    assert sorted(found + parked) == list(damaged.pending)  # none of them is forgotten


@given(actions, st.data(), st.booleans())
def test_after_a_doubt_everything_comes_whichever_line_is_lost(
    chosen: list[tuple[str, int]], data: st.DataObject, by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    driver.run(chosen)
    lost = data.draw(st.integers(0, len(driver.ops) - 1))
    twice = data.draw(st.sampled_from([[], [driver.ops[lost]]])) if "f" in driver.ops[lost] else []
    damaged = replayed(driver.ops[:lost] + twice + driver.ops[lost + 1 :] + twice)
    end: Op = {"t": "claim", "c": "", "u": 0, "h": 0, "f": driver.ledger.cursor}
    damaged.apply({**end, "x": driver.ledger.cursor})
    damaged.apply({"t": "doubt"})
    assert list(damaged.pending) == sorted(damaged.pending)
    assert set(damaged.pending) >= set(driver.ledger.pending)
    assert state_of(loaded(damaged)) == state_of(damaged)
    later = driver.now_ms + 10**6
    while rounds := in_order(damaged, later):
        for again, spent, _ in rounds:
            for offset in again + spent:
                damaged.apply({"t": "ack", "r": [offset, 1]})
    assert damaged.weight == damaged.parked == 0


@given(actions, st.booleans())
def test_what_is_ready_is_taken_once_and_in_order(
    chosen: list[tuple[str, int]], by_key: bool
) -> None:
    driver = Driver(by_key=by_key)
    driver.run(chosen)
    ledger, now_ms = driver.ledger, driver.now_ms
    before = dict(ledger.pending)
    due = [offset for offset, lease in before.items() if lease.is_due(now_ms)]
    assert ledger.has_ready(now_ms, with_suspect=True) or not due
    first = ledger.take_ready(now_ms, 2, MAX_RETRIES)
    ledger.put_back(first.again + first.spent)
    rounds = in_order(ledger, now_ms)
    assert rounds[:1] == ([first] if due else [])
    assert sorted(offset for again, spent, _ in rounds for offset in again + spent) == due
    for again, spent, is_suspect in rounds:
        leases = [before[offset] for offset in again]
        assert is_suspect == any(lease.strikes or lease.state == LEASED for lease in leases)
        assert not is_suspect or len(again) == 1
        for offset in spent:
            assert before[offset].state == DYING or before[offset].count > MAX_RETRIES
    delivered = [offset for again, _, _ in rounds for offset in again]
    assert delivered == sorted(delivered)


@given(actions, st.booleans(), st.integers(1, 4))
def test_the_oldest_that_are_free_stay_where_they_are(
    chosen: list[tuple[str, int]], by_key: bool, most: int
) -> None:
    driver = Driver(by_key=by_key)
    driver.run(chosen)
    ledger, now_ms = driver.ledger, driver.now_ms
    free = [
        offset
        for offset, lease in ledger.pending.items()
        if lease.state == PARKED or (lease.state != DYING and lease.is_due(now_ms))
    ]
    for below in (ledger.cursor, ledger.cursor // 2, ledger.cursor):
        expected = [offset for offset in free if offset < below][:most]
        assert ledger.oldest_free(now_ms, below, most) == expected
        ledger.take_ready(now_ms, 0, MAX_RETRIES, with_suspect=False)
    assert in_order(ledger, now_ms) == in_order(replayed(driver.ops), now_ms)


@given(actions)
def test_suspects_wait_for_one_that_is_on_its_way(chosen: list[tuple[str, int]]) -> None:
    """All others come meanwhile, and those who have waited come then, from the oldest on."""
    driver = Driver()
    driver.run(chosen)
    ledger, now_ms = driver.ledger, driver.now_ms
    due = {offset: lease for offset, lease in ledger.pending.items() if lease.is_due(now_ms)}
    meanwhile: list[int] = []
    while ledger.has_ready(now_ms, with_suspect=False):
        again, spent, is_suspect = ledger.take_ready(now_ms, 2, MAX_RETRIES, with_suspect=False)
        assert not is_suspect
        meanwhile += again + spent
    suspects = [o for o in due if o not in meanwhile]
    assert all(due[o].is_suspect and not due[o].is_spent(MAX_RETRIES) for o in suspects)
    assert not any(due[o].is_suspect for o in meanwhile if not due[o].is_spent(MAX_RETRIES))
    assert ledger.has_ready(now_ms, with_suspect=True) == bool(suspects)
    for offset in suspects:
        assert ledger.take_ready(now_ms, 2, MAX_RETRIES) == ([offset], [], True)
    assert ledger.take_ready(now_ms, 2, MAX_RETRIES) == ([], [], False)


@given(actions)
def test_of_each_key_only_the_first_may_be_claimed(chosen: list[tuple[str, int]]) -> None:
    driver = Driver(by_key=True)
    ledger = driver.ledger
    for action, number in chosen:
        driver.run([(action, number)])
        lines: dict[int, list[int]] = {}
        for offset in ledger.pending:
            lines.setdefault(offset % 3, []).append(offset)
        for key, (first, *others) in lines.items():
            assert ledger.has_line(key)
            assert ledger.pending[first].state != PARKED, "nobody would ever let it go"
            assert all(ledger.pending[offset].state == PARKED for offset in others)
        assert ledger.parked == sum(len(line) - 1 for line in lines.values())


# --- one by one -------------------------------------------------------------------------------


def claimed(count: int = 3, **more: Any) -> Driver:
    driver = Driver()
    op: Op = {"t": "claim", "c": "c", "u": driver.until, "h": 1, "f": 0, "x": count}
    driver.apply({**op, "r": [0, count], **more})
    return driver


def test_the_table_of_the_seed() -> None:
    ledger = claimed(2).ledger
    assert (ledger.cursor, ledger.committed) == (2, 0)
    ledger.apply({"t": "ack", "r": [0, 1]})
    assert ledger.committed == 1
    ledger.apply({"t": "ack", "r": [1, 1]})
    assert (ledger.committed, ledger.acked) == (2, 2)


def test_a_run_is_whole_until_something_happens_to_a_part_of_it() -> None:
    ledger = claimed(3).ledger
    assert ledger.holds_whole(0, 3)
    assert not ledger.holds_whole(0, 2)
    assert not ledger.holds_whole(1, 2)
    ledger.apply({"t": "extend", "r": [1, 1], "u": 10**6})
    assert not ledger.holds_whole(0, 3)
    assert ledger.pending[1].until == 10**6
    ledger.apply({"t": "ack", "r": [0, 3]})
    assert (ledger.committed, ledger.acked, ledger.weight) == (3, 3, 0)


def test_a_claim_of_what_is_below_the_cursor_holds_each_message_once() -> None:
    """As a journal may have it that has lost a line."""
    driver = claimed(3)
    op: Op = {"t": "claim", "c": "d", "u": driver.until, "h": 1, "f": 1, "x": 4, "r": [1, 3]}
    driver.apply(op)
    assert [lease.holder for lease in driver.ledger.pending.values()] == ["c", "d", "d", "d"]
    driver.apply({"t": "ack", "r": [1, 3]})
    assert list(driver.ledger.pending) == [0]


def test_timers_of_runs_are_made_anew_without_looking_into_them() -> None:
    driver = claimed(3)
    until = driver.until + 10**6
    for first in range(3, 3 + 2 * 3000, 2):  # so many that old timers are worth tidying up
        op: Op = {
            "t": "claim",
            "c": "d",
            "u": until - first % 7,
            "h": 1,
            "f": first,
            "x": first + 2,
        }
        driver.apply({**op, "r": [first, 2]})
        driver.apply({"t": "ack", "r": [first, 2]})
    assert driver.ledger.holds_whole(0, 3)
    again = driver.ledger.take_ready(driver.until, 9, None)
    assert again.again == [0]  # alone: somebody has kept it for too long
    assert driver.ledger.next_due_ms() is not None


def test_what_nobody_knows_is_harmless() -> None:
    driver = claimed()
    before = state_of(driver.ledger)
    for kind in ("hand", "extend", "ack", "nack", "release", "dying", "dead"):
        driver.apply({"t": kind, "r": [77, 2], "u": 0})
    assert state_of(driver.ledger) == before


@pytest.mark.parametrize("kind", ["ack", "nack", "release", "dying"])
def test_a_lease_is_lost_with_whatever_ends_it(kind: str) -> None:
    driver = claimed()
    ledger = driver.ledger
    assert ledger.lease_of(1, 1, 0) is not None
    assert ledger.lease_of(1, 2, 0) is None
    assert ledger.lease_of(1, 1, 1) is None
    assert ledger.lease_of(7, 1, 0) is None
    driver.apply({"t": kind, "r": [1, 1], "u": driver.until})
    assert ledger.lease_of(1, 1, 0) is None
    assert ledger.lease_of(0, 1, 0) is not None


def test_a_lease_whose_time_is_over_is_kept_until_another_claims() -> None:
    driver = claimed()
    ledger = driver.ledger
    driver.now_ms += 10 * LEASE_MS
    assert ledger.lease_of(0, 1, 0) is not None
    assert ledger.take_ready(driver.now_ms, 9, None) == ([0], [], True)
    driver.apply(
        {"t": "claim", "c": "d", "u": driver.until, "h": 1, "f": 3, "x": 3, "again": [0, 1]}
    )
    assert ledger.lease_of(0, 1, 0) is None
    lease = ledger.lease_of(0, 2, 0)
    assert lease is not None
    assert (lease.count, lease.strikes, lease.holder) == (2, 1, "d")


def test_a_nack_forgives_and_a_release_does_not_count() -> None:
    driver = claimed(1)
    ledger = driver.ledger
    driver.apply({"t": "release", "r": [0, 1]})
    assert (ledger.pending[0].state, ledger.pending[0].count) == (FREE, 0)
    driver.apply({"t": "claim", "c": "c", "u": 0, "h": 1, "f": 1, "x": 1, "again": [0, 1]})
    driver.apply({"t": "claim", "c": "c", "u": 0, "h": 1, "f": 1, "x": 1, "again": [0, 1]})
    assert (ledger.pending[0].count, ledger.pending[0].strikes) == (2, 1)
    driver.apply({"t": "nack", "r": [0, 1], "u": driver.until, "e": "no"})
    lease = ledger.pending[0]
    assert (lease.state, lease.strikes, lease.error) == (WAITING, 0, "no")


def test_the_first_boot_ends_nothing_and_the_next_every_lease() -> None:
    driver = claimed()
    ledger = driver.ledger
    driver.apply({"t": "nack", "r": [1, 1], "u": 3_200, "e": ""})
    driver.apply({"t": "boot", "b": "next", "u": 160, "w": 10**9 + 800})
    assert [lease.state for lease in ledger.pending.values()] == [FREE, WAITING, FREE]
    assert ledger.lease_of(0, 1, 0) is None
    assert ledger.pending[1].until == 160 + 800  # by the wall clock, half of it was over


def test_what_is_settled_takes_no_room() -> None:
    driver = Driver()
    ledger = driver.ledger
    for number in range(5_000):
        driver.now_ms += 16
        op: Op = {"t": "claim", "c": "c", "u": driver.until, "h": 1, "f": number, "x": number + 1}
        ledger.apply({**op, "r": [number, 1]})
        ledger.apply({"t": "ack", "r": [number, 1]})
    assert ledger.weight == 0
    assert ledger._timers.size < 5_000


def test_a_lease_in_words() -> None:
    lease = Lease(LEASED, 32_000, "c1", 2, 1, error="no")
    text = "Lease(leased, until=32000, holder='c1', attempt=2, count=1, error='no')"
    assert repr(lease) == text


def test_who_settles_out_of_order_frees_nobody() -> None:
    """The first of a key is still with its consumer: those behind it go on waiting."""
    driver = Driver(by_key=True)
    claim: Op = {"t": "claim", "c": "c0", "u": driver.until, "h": 1, "f": 0, "x": 3, "r": [0, 1]}
    driver.apply({**claim, "parked": [1, 2], "keys": [0, 7, 1, 7, 2, 7]})
    driver.apply({"t": "gone", "r": [1, 1], "lost": 0})
    assert driver.ledger.pending[0].state == LEASED
    assert driver.ledger.pending[2].state == PARKED
    driver.apply({"t": "ack", "r": [0, 1]})
    assert driver.ledger.pending[2].state == FREE


def test_a_group_that_was_further_than_its_queue() -> None:
    """What was pending behind the end is gone, and leases of before count no more."""
    driver = Driver()
    claim: Op = {"t": "claim", "c": "c0", "u": driver.until, "h": 1, "f": 0, "x": 5, "r": [0, 5]}
    driver.apply(claim)
    epoch = driver.ledger.epoch
    driver.apply({"t": "rewind", "x": 3})
    ledger = driver.ledger
    assert (ledger.cursor, sorted(ledger.pending), ledger.gone) == (3, [0, 1, 2], 2)
    assert ledger.epoch == epoch + 1
    driver.apply({"t": "rewind", "x": 3})
    assert ledger.gone == 2


def test_a_nack_that_says_nothing_keeps_what_was_said_before() -> None:
    driver = claimed(1)
    ledger = driver.ledger
    driver.apply({"t": "nack", "r": [0, 1], "u": driver.until, "e": "first"})
    driver.apply({"t": "claim", "c": "c", "u": 0, "h": 1, "f": 1, "x": 1, "again": [0, 1]})
    driver.apply({"t": "nack", "r": [0, 1], "u": driver.until, "e": ""})
    assert ledger.pending[0].error == "first"
    driver.apply({"t": "nack", "r": [0, 1], "u": driver.until, "e": "second"})
    assert ledger.pending[0].error == "second"


def test_with_an_order_of_keys_some_have_none_and_some_are_settled_before() -> None:
    driver = Driver(by_key=True)
    claim: Op = {"t": "claim", "c": "c0", "u": driver.until, "h": 1, "f": 0, "x": 3, "r": [0, 3]}
    driver.apply({**claim, "keys": [0, 7, 2, 8]})
    driver.apply({"t": "ack", "r": [1, 1]})  # without a key
    driver.apply({"t": "ack", "r": [0, 2]})
    assert sorted(driver.ledger.pending) == [2]
    assert driver.ledger.acked == 2


# --- what a damaged journal leads to ----------------------------------------------------------


def in_line(*, by_key: bool = True) -> Driver:
    """0 is claimed, and 1 and 2 wait behind it."""
    driver = Driver(by_key=by_key)
    claim: Op = {"t": "claim", "c": "c", "u": driver.until, "h": 1, "f": 0, "x": 3, "r": [0, 1]}
    driver.apply({**claim, "parked": [1, 2], "keys": [0, 7, 1, 7, 2, 7]})
    return driver


def found_states(ledger: Ledger) -> list[int]:
    return [lease.state for lease in ledger.pending.values()]


def test_whoever_waits_for_nobody_is_free() -> None:
    driver = Driver(by_key=True)
    claim: Op = {"t": "claim", "c": "c", "u": driver.until, "h": 1, "f": 1, "x": 3}
    driver.apply({**claim, "parked": [1, 2], "keys": [1, 7, 2, 7]})
    assert found_states(driver.ledger) == [FREE, FREE, PARKED]
    assert driver.ledger.take_ready(driver.now_ms, 9, None).again == [0, 1]
    state, entries = in_line().ledger.dump()
    del entries[0]["key"]
    assert found_states(Ledger.load(state, entries)) == [LEASED, FREE, PARKED]
    del entries[2]["key"]
    assert found_states(Ledger.load(state, entries)) == [LEASED, FREE, FREE]
    driver = in_line()
    driver.ledger._order.clear()
    driver.apply({"t": "doubt"})
    assert driver.ledger.take_ready(driver.now_ms, 9, None).again == [1, 2]


def test_where_the_first_pending_one_is_does_not_depend_on_what_was_settled_before() -> None:
    """Dictionaries keep a place for each entry that was removed."""
    ledger, count = Ledger(), 100_000
    claim: Op = {"t": "claim", "c": "c", "u": 9, "h": 1, "f": 0, "x": count, "r": [0, count]}
    ledger.apply(claim)
    assert len(ledger.pending) == count  # one by one from now on
    ledger.apply({"t": "ack", "r": [0, count - 10]})
    assert sys.getsizeof(ledger.pending) < 10_000
    for offset in range(count - 10, count - 1):
        ledger.apply({"t": "ack", "r": [offset, 1]})
    assert ledger.committed == count - 1


def test_who_has_left_with_something_in_hand_is_remembered() -> None:
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.apply({"t": "join", "c": name, "m": {}})
    claim: Op = {"t": "claim", "c": "a", "u": 9, "h": 1, "f": 0, "x": 2, "r": [0, 2]}
    ledger.apply(claim)
    for name in ("a", "b"):
        ledger.apply({"t": "leave", "c": name})
    assert ledger.look_over_departed() == Ledger.load(*ledger.dump()).departed == {"a"}
    ledger.apply({"t": "ack", "r": [0, 1]})
    assert ledger.departed == {"a"}
    ledger.apply({"t": "leave", "c": "a", "died": True})
    assert not ledger.departed
    assert ledger.take_ready(0, 9, None).again == [1]


def test_a_claim_of_messages_with_keys_tells_that_their_order_is_kept() -> None:
    driver = in_line(by_key=False)
    assert driver.ledger.by_key
    assert driver.ledger.options == {"key_order": True}


def test_who_comes_tells_with_what_the_group_was_made() -> None:
    driver = Driver()
    told = {"pid": 1, "host": "h", "since": 5, "handle": "x"}
    driver.apply({"t": "join", "c": "c", "m": told})
    assert not driver.ledger.by_key
    driver.apply({"t": "join", "c": "d", "m": told, "o": {"key_order": True}})
    assert driver.ledger.by_key


def test_what_was_dropped_says_from_where() -> None:
    """A claim before it is missing: what that was about nobody has dropped."""
    driver = Driver()
    driver.apply({"t": "drop", "r": [], "f": 2, "x": 5, "n": 3})
    assert (list(driver.ledger.pending), driver.ledger.cursor) == ([0, 1], 5)
    assert driver.ledger.take_ready(driver.now_ms, 9, None).again == [0, 1]
    driver.apply({"t": "drop", "r": [0, 2], "f": 5, "x": 6, "n": 3})
    assert (list(driver.ledger.pending), driver.ledger.cursor) == ([], 6)


def test_who_goes_on_below_the_cursor_was_sent_back() -> None:
    driver = claimed(5)
    driver.apply({"t": "ack", "r": [0, 2]})
    claim: Op = {"t": "claim", "c": "d", "u": driver.until, "h": 1, "f": 0, "x": 2, "r": [0, 2]}
    driver.apply(claim)
    assert (list(driver.ledger.pending), driver.ledger.cursor) == ([0, 1], 2)
    assert {lease.holder for lease in driver.ledger.pending.values()} == {"d"}
    driver.apply({"t": "ack", "r": [0, 2]})
    driver.apply(claim)  # nothing is pending above it
    assert (list(driver.ledger.pending), driver.ledger.cursor) == ([0, 1], 2)


def test_what_is_claimed_again_after_it_was_settled_is_where_it_belongs() -> None:
    driver = claimed(3)
    driver.apply({"t": "ack", "r": [0, 2]})
    claim: Op = {"t": "claim", "c": "d", "u": driver.until, "h": 1, "f": 3, "x": 3}
    driver.apply({**claim, "again": [0, 1]})
    assert list(driver.ledger.pending) == [0, 2]
    assert driver.ledger.committed == 0


def test_a_line_that_names_what_is_not_there_stops_nobody() -> None:
    driver = Driver(by_key=True)
    claim: Op = {"t": "claim", "c": "c", "u": driver.until, "h": 1, "f": 0, "x": 3, "r": [0, 1]}
    driver.apply({**claim, "keys": [0, 7, 1, 7]})
    assert list(driver.ledger.dump()[1]) == [0]
    driver.apply({"t": "ack", "r": [0, 1]})
    assert driver.ledger.weight == 0
    assert not driver.ledger.has_line(7)


def test_leases_of_which_nobody_knows_the_boot_are_over() -> None:
    """What told of it is missing: by the clock of another boot they might last for weeks."""
    ledger = Ledger()
    claim: Op = {"t": "claim", "c": "c", "u": 10**12, "h": 1, "f": 0, "x": 2, "r": [0, 2]}
    ledger.apply(claim)
    ledger.apply({"t": "boot", "b": "1", "u": 160, "w": 10**9})
    assert found_states(ledger) == [FREE, FREE]
    assert ledger.lease_of(0, 1, 0) is None


def test_of_many_consumers_who_left_those_with_something_in_hand_are_remembered() -> None:
    ledger = Ledger()
    lease = {"t": "claim", "u": LEASE_MS, "h": 1}
    for number in range(1_000):
        ledger.apply({"t": "join", "c": f"c{number}", "m": {}})
        ledger.apply({**lease, "c": f"c{number}", "f": number, "x": number + 1, "r": [number, 1]})
        ledger.apply({"t": "leave", "c": f"c{number}"})
        if number not in (2, 500):
            ledger.apply({"t": "ack", "r": [number, 1]})
        assert len(ledger.departed) <= 65
    assert ledger.look_over_departed() == {"c2", "c500"} == ledger.departed
