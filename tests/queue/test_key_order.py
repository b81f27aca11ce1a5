"""The lines of messages of one key: what they say, and what they take."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.queue import key_order
from tailrace.queue.key_order import KeyOrder
from tailrace.queue.ledger import Ledger


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 3))), st.data())
def test_lines_are_what_lists_would_be(
    steps: list[tuple[bool, int, int]], data: st.DataObject
) -> None:
    order, lines = KeyOrder(), dict[int, list[int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_FEW", data.draw(st.integers(0, 5)))
        for is_new, offset, key in steps:
            known = {each: name for name, line in lines.items() for each in line}
            if is_new and offset not in known:  # also below others, as after damage
                lines.setdefault(key, []).append(offset)
                assert order.add(offset, key) == (lines[key] == [offset])
            elif not is_new:
                line = lines.get(known.get(offset, -1), [])
                if line:
                    line.remove(offset)
                assert order.remove(offset) == (line[0] if line else None)
            lines = {name: line for name, line in lines.items() if line}
            known = {each: name for name, line in lines.items() for each in line}
            assert list(order) == sorted(known.items())
            assert order.lines.keys() == lines.keys()
            assert order.heads == {line[0] for line in lines.values()}
            assert order.waiting == sum(len(line) - 1 for line in lines.values())
            assert order.key_of(offset) == known.get(offset)


def test_a_long_line_goes_in_any_order() -> None:
    order, left = KeyOrder(), list(range(300))
    for offset in left:
        assert order.add(offset, 7) == (offset == 0)
    for offset in (5, 299, 0, 1, 2, 100, *range(150, 250)):
        left.remove(offset)
        assert order.remove(offset) == left[0]
    assert [offset for offset, _ in order] == left
    assert order.waiting == len(left) - 1
    for offset in list(left):
        left.remove(offset)
        assert order.remove(offset) == (left[0] if left else None)
    assert not order.lines


def test_what_is_settled_leaves_nothing_behind() -> None:
    order = KeyOrder()
    for offset in range(10_000):
        order.add(offset, offset % 7)
    for offset in range(9_990):
        assert order.remove(offset) == (offset + 7 if offset + 7 < 10_000 else None)
    assert list(order) == [(offset, offset % 7) for offset in range(9_990, 10_000)]
    assert len(order._offsets) < 5_000
    assert order.waiting == 3


@pytest.mark.no_cover
@pytest.mark.parametrize("count", [30_000, 50_000])
def test_a_pending_message_whose_key_is_its_own_takes_little(count: int) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ledger = Ledger()
        ledger.apply({"t": "options", "o": {"key_order": True}})
        for first in range(0, count, 100):
            keys = [
                n for o in range(first, first + 100) for n in (o, o * 0x9E3779B97F4A7C15 % 2**63)
            ]
            op = {"t": "claim", "c": "c", "u": 16, "h": 1, "f": first, "x": first + 100}
            ledger.apply({**op, "r": [first, 100], "keys": keys})
            del keys
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / count < 200
    finally:
        tracemalloc.stop()
    assert ledger.weight == count
