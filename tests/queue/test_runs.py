"""Runs are sets of offsets, whatever the offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.queue.runs import offsets_of, runs_of

sets = st.sets(st.integers(0, 60) | st.integers(0, 2**62), min_size=1)


@given(sets)
def test_there_and_back(chosen: set[int]) -> None:
    runs = runs_of(sorted(chosen))
    assert list(offsets_of(runs)) == sorted(chosen)
    assert sum(runs[1::2]) == len(chosen)


@given(sets)
def test_they_are_as_few_as_can_be(chosen: set[int]) -> None:
    runs = runs_of(sorted(chosen))
    beginnings = [offset for offset in chosen if offset - 1 not in chosen]
    assert len(runs) == 2 * len(beginnings)
    assert runs[::2] == sorted(beginnings)


def test_none() -> None:
    assert list(offsets_of([])) == []


def test_many_that_follow_one_another_take_two_numbers() -> None:
    assert runs_of(range(7, 1_000_007)) == [7, 1_000_000]
