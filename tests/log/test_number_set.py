"""Sets of numbers as runs, against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.log.number_set import NumberSet

NUMBERS = st.integers(0, 30)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "discard", "discard_below"]), NUMBERS))


def runs_of(numbers: set[int]) -> list[int]:
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number + 1 for number in numbers if number + 1 not in numbers)
    return [n for first, end in zip(firsts, ends, strict=True) for n in (first, end - first)]


@given(CHANGES)
def test_any_changes(changes: list[tuple[str, int]]) -> None:
    found, model = NumberSet(), set[int]()
    for change, number in changes:
        getattr(found, change)(number)
        match change:
            case "add":
                model.add(number)
            case "discard":
                model.discard(number)
            case _:
                model = {each for each in model if each >= number}
        assert found.runs == runs_of(model)
        assert (bool(found), len(found)) == (bool(model), len(model))
        assert {n for n in range(-1, 32) if n in found} == model
    again = NumberSet(found.runs)
    assert (again.runs, len(again)) == (found.runs, len(found))


def test_a_copy_is_another() -> None:
    numbers = NumberSet([3, 2])
    copy = numbers.copy()
    copy.discard(3)
    assert (numbers.runs, copy.runs) == ([3, 2], [4, 1])


def test_all_that_a_log_can_hold() -> None:
    numbers = NumberSet()
    numbers.add(0)
    numbers.add((1 << 63) - 2)
    assert numbers.runs == [0, 1, (1 << 63) - 2, 1]
    assert (1 << 63) - 2 in numbers
