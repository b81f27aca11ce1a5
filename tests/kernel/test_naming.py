"""Names that end in a number: the twins write the same, whatever the numbers are."""

from __future__ import annotations

from array import array
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.kernel.twins import Twin

ENDS = (-(2**63), 2**63 - 1)
numbers = st.integers(*ENDS)


def written(twin: Twin, prefix: bytes, values: list[int]) -> list[bytes]:
    offsets = bytearray(4 * (len(values) + 1))
    data = bytearray(len(values) * (len(prefix) + 20))
    used = twin.write_names(prefix, array("q", values), offsets, data)
    stops = memoryview(offsets).cast("i").tolist()
    assert stops[0] == 0
    assert stops[-1] == used
    return [bytes(data[a:b]) for a, b in pairwise(stops)]


@given(st.binary(max_size=8), st.lists(numbers, max_size=20))
@example(b"orders:", [*range(8, 12), *range(97, 103), 5, 6, 6, 5])
@example(b"", [0, 1, -1, 0, 1, -10, -9, -8])
@example(b"", [ENDS[1] - 1, ENDS[1], ENDS[0], ENDS[0] + 1])
@example(b"x9", [*range(999_995, 1_000_005)])
def test_both_write_what_decimals_are(
    twins: tuple[Twin, Twin], prefix: bytes, values: list[int]
) -> None:
    for twin in twins:
        assert written(twin, prefix, values) == [prefix + b"%d" % value for value in values]


@given(st.lists(st.integers(0, 2**62), max_size=4))
def test_numbers_that_follow_one_another(twins: tuple[Twin, Twin], firsts: list[int]) -> None:
    values = [first + step for first in firsts for step in range(25)]
    for twin in twins:
        assert written(twin, b"q:", values) == [b"q:%d" % value for value in values]


@pytest.mark.parametrize(("offsets", "data"), [(11, 50), (12, 49)])
def test_too_little_room(kernel: Twin, offsets: int, data: int) -> None:
    with pytest.raises(ValueError, match="too small"):
        kernel.write_names(b"12345", array("q", [1, 2]), bytearray(offsets), bytearray(data))


def test_what_cannot_be_written(kernel: Twin) -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        kernel.write_names(b"", array("q", [1]), bytes(8), bytes(20))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=5), st.lists(numbers, max_size=9), st.integers(0, 3))
def test_as_arrow(arrow: ModuleType, prefix: str, values: list[int], skip: int) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    made = arrow.names(prefix, pa.array(values, pa.int64()).slice(skip))
    made.validate(full=True)
    assert made.type == pa.string()
    assert made.to_pylist() == [f"{prefix}{value}" for value in values[skip:]]


def test_what_is_no_number(arrow: ModuleType) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    for wrong in (pa.array([1, None], pa.int64()), pa.array([1], pa.int32()), pa.array(["1"])):
        with pytest.raises(TypeError, match="int64 without nulls"):
            arrow.names("", wrong)


def test_more_than_strings_can_hold(arrow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow, "_MAX_BYTES", 99)
    with pytest.raises(ValueError, match="5 names"):
        arrow.names("", pa.array(range(5)))
