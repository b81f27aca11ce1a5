"""Timers tell of each offset when its time is over, once, and never before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.queue.runs import offsets_of
from tailrace.queue.timers import TICK_MS, Timers

times = st.integers(0, 50 * TICK_MS)


@given(times)
def test_a_tick_is_never_early_and_hardly_late(at_ms: int) -> None:
    tick = Timers().tick(at_ms)
    assert at_ms <= tick < at_ms + TICK_MS
    assert tick % TICK_MS == 0
    assert Timers().tick(tick) == tick


def test_ticks_that_are_asked_for_in_a_row_are_one_object() -> None:
    timers = Timers()
    first = timers.tick(10**12 + 1)
    assert timers.tick(10**12 + 2) is first


@given(st.lists(st.tuples(times, st.integers(0, 30), st.integers(1, 5))), st.lists(times))
def test_each_is_told_when_it_is_due(added: list[tuple[int, int, int]], looks: list[int]) -> None:
    timers = Timers()
    waiting: list[tuple[int, int]] = []
    for at_ms, first, count in added:
        tick = timers.tick(at_ms)
        timers.add(tick, first, count)
        waiting += [(tick, offset) for offset in range(first, first + count)]
    for now_ms in [*sorted(looks), 10**9]:
        assert timers.next_ms == min((tick for tick, _offset in waiting), default=None)
        due = [(tick, offset) for tick, runs in timers.due(now_ms) for offset in offsets_of(runs)]
        assert [tick for tick, _offset in due] == sorted(tick for tick, _offset in due)
        assert sorted(due) == sorted(each for each in waiting if each[0] <= now_ms)
        waiting = [each for each in waiting if each[0] > now_ms]
    assert (timers.next_ms, timers.size) == (None, 0)


def test_offsets_that_follow_one_another_take_no_more_room() -> None:
    timers = Timers()
    for offset in range(10_000):
        timers.add(TICK_MS, offset)
    assert timers.size == 2
    timers.add(TICK_MS, 20_000)
    assert timers.size == 4
    assert list(timers.due(TICK_MS)) == [(TICK_MS, [0, 10_000, 20_000, 1])]
    assert timers.size == 0
