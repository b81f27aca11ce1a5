"""The ledger of a stream's group: who is at what, and what was processed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Corrupt
from tailrace.queue.journal import Op, encode_line, parse_line
from tailrace.queue.stream_ledger import StreamLedger

NAMES = ("a", "b", "c")

actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "take", "take", "done", "give_back", "leave", "join", "boot", "skip", "reset"]
        ),
        st.sampled_from(NAMES),
        st.integers(0, 30),
    ),
    max_size=40,
)


class Model:
    """Each offset by itself: with whom it is, or back, or done."""

    def __init__(self) -> None:
        self.cursor = 0
        self.taken: dict[int, str] = {}
        self.back: set[int] = set()

    @property
    def committed(self) -> int:
        return min([*self.taken, *self.back, self.cursor])


class Driver:
    def __init__(self) -> None:
        self.ledger = StreamLedger()
        self.model = Model()
        self.ops: list[Op] = []

    def apply(self, op: Op) -> None:
        found = parse_line(encode_line(op)[:-1])
        assert found is not None
        self.ledger.apply(found)
        self.ops.append(found)

    def run(self, chosen: list[tuple[str, str, int]]) -> None:
        for action, name, number in chosen:
            getattr(self, action)(name, number)
            self.check()

    def take(self, name: str, number: int) -> None:
        ledger, model = self.ledger, self.model
        if name not in ledger.members:
            self.join(name, number)
        count = 1 + number % 5
        if ledger.back:
            first, end = ledger.back[0]
            behind = min(first + count, end)
            self.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1, "b": 1})
            model.back -= set(range(first, behind))
        else:
            first, behind = ledger.cursor, ledger.cursor + count
            self.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1})
            model.cursor = behind
        model.taken |= dict.fromkeys(range(first, behind), name)

    def done(self, name: str, number: int) -> None:
        self.apply({"t": "done", "c": name, "x": number})
        self.model.taken = {
            offset: who
            for offset, who in self.model.taken.items()
            if who != name or offset >= number
        }

    def give_back(self, name: str, number: int) -> None:
        first, behind = number, number + 4
        self.apply({"t": "return", "c": name, "r": [first, behind, behind + 2, behind + 3]})
        given = {*range(first, behind), behind + 2}
        mine = {o for o, who in self.model.taken.items() if who == name and o in given}
        self.model.back |= mine
        self.model.taken = {o: who for o, who in self.model.taken.items() if o not in mine}

    def leave(self, name: str, number: int) -> None:
        self.apply({"t": "leave", "c": name})
        mine = {offset for offset, who in self.model.taken.items() if who == name}
        self.model.back |= mine
        self.model.taken = {o: who for o, who in self.model.taken.items() if o not in mine}

    def join(self, name: str, number: int) -> None:
        self.apply({"t": "join", "c": name, "m": {"pid": number}})

    def boot(self, name: str, number: int) -> None:
        self.apply({"t": "boot", "b": str(number), "u": 0, "w": 0})
        self.model.back |= set(self.model.taken)
        self.model.taken.clear()

    def skip(self, name: str, number: int) -> None:
        self.apply({"t": "skip", "x": number})
        model = self.model
        model.cursor = max(model.cursor, number)
        model.back = {offset for offset in model.back if offset >= number}
        model.taken = {o: who for o, who in model.taken.items() if o >= number}

    def reset(self, name: str, number: int) -> None:
        self.apply({"t": "reset", "x": number})
        self.model.cursor = number
        self.model.taken.clear()
        self.model.back.clear()

    def check(self) -> None:
        ledger, model = self.ledger, self.model
        assert (ledger.cursor, ledger.committed) == (model.cursor, model.committed)
        taken = {o: who for who, ranges in ledger.taken.items() for o in spread(ranges)}
        assert taken == model.taken
        assert spread(ledger.back) == sorted(model.back)
        for ranges in (*ledger.taken.values(), ledger.back):
            assert ranges == sorted(ranges)
            assert all(first < behind for first, behind in ranges)
        for name in NAMES:
            others = any(who != name for who in model.taken.values())
            assert ledger.has_others(name) == others


def spread(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for first, behind in ranges for offset in range(first, behind)]


def state_of(ledger: StreamLedger) -> Any:
    return json.loads(json.dumps(ledger.dump()))


@given(actions)
def test_each_offset_is_with_one_or_back_or_done(chosen: list[tuple[str, str, int]]) -> None:
    Driver().run(chosen)


@given(actions, actions)
def test_journals_and_snapshots_lead_to_the_same(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]]
) -> None:
    driver = Driver()
    driver.run(before)
    state, _entries = state_of(driver.ledger)
    copy, known = StreamLedger.load(state), len(driver.ops)
    assert state_of(copy) == state_of(driver.ledger)
    driver.run(after)
    for op in driver.ops[known:]:
        copy.apply(op)
    assert state_of(copy) == state_of(driver.ledger)
    again = StreamLedger()
    for op in driver.ops:
        again.apply(op)
    assert state_of(again) == state_of(driver.ledger)


def with_names_of_their_own(chosen: list[tuple[str, str, int]]) -> Iterator[tuple[str, str, int]]:
    """Nobody who has left comes back by the same name, as it is with consumers."""
    times = dict.fromkeys(NAMES, 0)
    for action, name, number in chosen:
        yield action, f"{name}{times[name]}", number
        for gone in NAMES if action == "boot" else [name] if action == "leave" else []:
            times[gone] += 1


@given(actions, st.data())
def test_a_line_that_is_lost_commits_nothing_that_was_not_processed(
    chosen: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    driver = Driver()
    kept = [each for each in chosen if each[0] not in ("reset", "skip")]
    driver.run(list(with_names_of_their_own(kept)))
    if not driver.ops:
        return
    lost = data.draw(st.integers(0, len(driver.ops) - 1))
    damaged = StreamLedger()
    for op in driver.ops[:lost] + driver.ops[lost + 1 :]:
        damaged.apply(op)
    assert damaged.committed <= driver.model.committed


def test_committed_waits_for_the_slowest() -> None:
    ledger = StreamLedger()
    for name, first, behind in (("a", 0, 5), ("b", 5, 10), ("a", 10, 12)):
        ledger.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1})
    ledger.apply({"t": "done", "c": "b", "x": 10})
    assert ledger.committed == 0
    ledger.apply({"t": "done", "c": "a", "x": 3})
    assert ledger.committed == 3
    ledger.apply({"t": "leave", "c": "a"})
    assert (ledger.committed, ledger.back) == (3, [(3, 5), (10, 12)])
    assert ledger.weight == 2


def test_what_is_of_a_newer_version() -> None:
    with pytest.raises(Corrupt, match="the operation 'fly' is of a newer version"):
        StreamLedger().apply({"t": "fly"})


def test_after_a_doubt_nothing_of_before_counts() -> None:
    driver = Driver()
    epoch = driver.ledger.epoch
    driver.apply({"t": "doubt"})
    assert driver.ledger.epoch == epoch + 1


def test_after_a_doubt_nobody_has_anything() -> None:
    ledger = StreamLedger()
    for name, first, behind in (("a", 0, 5), ("b", 5, 10)):
        ledger.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1})
    ledger.apply({"t": "done", "c": "a", "x": 2})
    ledger.apply({"t": "doubt"})
    assert (ledger.taken, ledger.back, ledger.committed) == ({}, [(2, 10)], 2)


def test_what_somebody_has_who_is_no_member_is_given_back_when_it_is_loaded() -> None:
    ledger = StreamLedger()
    ledger.apply({"t": "join", "c": "b", "m": {}})
    for name, first, behind in (("a", 0, 5), ("b", 5, 10)):
        ledger.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1})
    assert ledger.ghosts == ["a"]
    again = StreamLedger.load(ledger.dump()[0])
    assert (again.taken, again.back, again.ghosts) == ({"b": [(5, 10)]}, [(0, 5)], [])


def test_who_goes_on_below_the_cursor_was_sent_back() -> None:
    ledger = StreamLedger()
    for name, first, behind in (("a", 0, 4), ("b", 4, 8), ("c", 8, 9)):
        ledger.apply({"t": "take", "c": name, "f": first, "x": behind, "n": 1})
    ledger.apply({"t": "leave", "c": "c"})
    ledger.apply({"t": "take", "c": "d", "f": 2, "x": 3, "n": 1})
    assert (ledger.cursor, ledger.taken) == (3, {"a": [(0, 2)], "d": [(2, 3)]})
    assert (ledger.back, ledger.committed) == ([], 0)
