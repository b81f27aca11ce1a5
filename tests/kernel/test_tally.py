"""tally(): what a scan makes of a region, compared with taking one batch at a time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.kernel.layout import MAX_OFFSET, MAX_SPAN, MAX_TIMESTAMP, Malformed
from tests.kernel.twins import NOW, Twin, batch

COMPRESSED_FLAGS = 0x0F  # a section of any length then goes with any count

STATE: dict[str, Any] = {
    "position": 0,
    "base": 0,
    "next_offset": 0,
    "contiguous_from": None,
    "last_indexed": -1,
    "unindexed_bytes": 0,
    "index_interval": 100,
    "next_timestamp": 1,
    "time_index_interval_ms": 10,
}


class Result(NamedTuple):
    """A Tally whose entries are pairs."""

    end: int
    next_offset: int
    records: int
    first_timestamp: int
    max_timestamp: int
    unindexed_bytes: int
    offset_entries: list[tuple[int, int]]
    time_entries: list[tuple[int, int]]


class Model:
    """The plain loop: each batch is compared with where the last one ended, counted, and shown to
    one index after the other."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.size = state["position"]
        self.base = state["base"]
        self.next_offset = state["next_offset"]
        self.contiguous_from = state["contiguous_from"]
        self.records = self.first_timestamp = self.max_timestamp = 0
        self.interval = state["index_interval"]
        self.unindexed_bytes = state["unindexed_bytes"]
        self.interval_ms = state["time_index_interval_ms"]
        self.next_timestamp = state["next_timestamp"]
        self.known = state["last_indexed"] >= 0
        self.relative = array("I", [state["last_indexed"]] if self.known else [])
        self.positions = array("I", [0] if self.known else [])
        self.timestamps = array("q")
        self.timestamp_relative = array("I")

    def take(self, infos: Iterable[Any]) -> None:
        for info in infos:
            gap = info.base_offset - self.next_offset
            strict = self.contiguous_from is not None and self.size >= self.contiguous_from
            if gap < 0 or (gap and strict) or info.next_offset - self.base > 2**32:
                return
            self.observe(info.base_offset, info.count, info.size, info.max_timestamp)

    def observe(self, base_offset: int, count: int, size: int, max_timestamp: int) -> None:
        if not self.records:
            self.first_timestamp = self.max_timestamp = max_timestamp
        elif max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        self.observe_offset(base_offset, size)
        self.observe_time(base_offset, max_timestamp)
        self.records += count
        self.size += size
        self.next_offset = base_offset + count

    def observe_offset(self, base_offset: int, size: int) -> None:
        if self.relative:
            self.unindexed_bytes += size
            if self.unindexed_bytes < self.interval:
                return
            self.unindexed_bytes = 0
        if self.relative and self.relative[-1] == base_offset - self.base:
            return
        self.positions.append(self.size)
        self.relative.append(base_offset - self.base)

    def observe_time(self, base_offset: int, max_timestamp: int) -> None:
        if max_timestamp < self.next_timestamp:
            return
        self.next_timestamp = max_timestamp + max(self.interval_ms, 1)
        self.timestamp_relative.append(base_offset - self.base)
        self.timestamps.append(max_timestamp)

    def result(self, end: int) -> Result:
        return Result(
            end,
            self.next_offset,
            self.records,
            self.first_timestamp,
            self.max_timestamp,
            self.unindexed_bytes,
            list(zip(self.relative, self.positions, strict=True))[self.known :],
            list(zip(self.timestamps, self.timestamp_relative, strict=True)),
        )


def pairs(*columns: tuple[str, bytes]) -> list[tuple[int, ...]]:
    return list(zip(*(array(code, data) for code, data in columns), strict=True))


def run(kernel: Twin, data: bytes, start: int = 0, stop: int | None = None, **state: Any) -> Result:
    found = kernel.tally(data, start, len(data) if stop is None else stop, **{**STATE, **state})
    offsets, positions = found.offset_entries
    timestamps, relative = found.time_entries
    return Result(
        **{
            **found._asdict(),
            "offset_entries": pairs(("I", offsets), ("I", positions)),
            "time_entries": pairs(("q", timestamps), ("I", relative)),
        }
    )


def part(offset: int, *, size: int = 60, count: int = 1, timestamp: int = NOW) -> bytes:
    """A batch of exactly `size` bytes."""
    section = bytes(size - 44)
    return batch(
        section, count, base_offset=offset, flags=COMPRESSED_FLAGS, max_timestamp=timestamp
    )


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """One of the rare ones now and then: a region that stops at once shows little."""
    return st.integers(0, 7).flatmap(lambda n: usual if n else st.one_of(*rare))


# (gap, count, size, step of the timestamp)
specs = st.lists(
    st.tuples(
        mostly(
            st.sampled_from([0, 0, 0, 0, 1, 3]),
            st.integers(-3, -1),
            st.sampled_from([MAX_SPAN, -MAX_SPAN, MAX_SPAN - 8]),
        ),
        mostly(st.integers(1, 3), st.sampled_from([1000, 0xFFFF])),
        st.sampled_from([45, 50, 50, 50, 100, 100, 3000]),  # often just as much as is needed
        mostly(
            st.sampled_from([-20, -1, 0, 0, 1, 9, 10, 30]),
            st.sampled_from([MAX_TIMESTAMP, -MAX_TIMESTAMP]),
        ),
    ),
    max_size=12,
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    base = draw(
        mostly(
            st.sampled_from([0, 7, 1 << 40]),
            st.sampled_from([MAX_OFFSET - 5000, MAX_OFFSET - 2, MAX_OFFSET]),
        )
    )
    taken = draw(mostly(st.integers(0, 5), st.integers(MAX_SPAN - 2000, MAX_SPAN)))
    next_offset = min(base + taken, MAX_OFFSET)
    position = draw(st.sampled_from([0, 100, 1 << 31, (1 << 32) - 100_000]))
    near = st.sampled_from([-1, 0, 50, 100, 150, 151, 300]).map(lambda n: position + n)
    at_most = min(next_offset - base, MAX_SPAN - 1)
    return {
        "position": position,
        "base": base,
        "next_offset": next_offset,
        "contiguous_from": draw(st.one_of(st.none(), near, st.sampled_from([0, MAX_OFFSET]))),
        "last_indexed": draw(st.one_of(st.just(-1), st.just(at_most), st.integers(-1, at_most))),
        "unindexed_bytes": draw(st.sampled_from([0, 0, 1, 50, 350, 400])),
        "index_interval": draw(st.sampled_from([0, 50, 90, 100, 150, 200, 400, 1 << 32])),
        "next_timestamp": draw(
            mostly(
                st.integers(NOW - 50, NOW + 50) | st.just(1),
                st.sampled_from([-MAX_TIMESTAMP, MAX_TIMESTAMP, MAX_TIMESTAMP + 1, 1 << 70]),
            )
        ),
        "time_index_interval_ms": draw(
            mostly(st.sampled_from([0, 0, 1, 2, 10, 40]), st.sampled_from([1 << 50, MAX_TIMESTAMP]))
        ),
    }


def laid_out(specs: list[tuple[int, int, int, int]], offset: int) -> list[bytes]:
    parts = []
    timestamp = NOW
    for gap, count, size, step in specs:
        offset = min(max(offset + gap, 0), MAX_OFFSET - count)
        timestamp = step if abs(step) == MAX_TIMESTAMP else timestamp + step
        timestamp = min(max(timestamp, -MAX_TIMESTAMP - 1), MAX_TIMESTAMP)
        parts.append(part(offset, size=size, count=count, timestamp=timestamp))
        offset += count
    return parts


@given(specs=specs, state=states(), before=st.integers(0, 3), behind=st.integers(0, 3))
@example(specs=[(0, 1, 45, 0)] * 3, state={**STATE, "last_indexed": 0}, before=0, behind=0)
def test_like_one_batch_at_a_time(
    kernel: Twin,
    specs: list[tuple[int, int, int, int]],
    state: dict[str, Any],
    before: int,
    behind: int,
) -> None:
    region = b"".join(laid_out(specs, state["next_offset"]))
    data = b"?" * before + region + b"?" * behind
    model = Model(state)
    model.take(kernel.batches(data, before, before + len(region)))
    expected = model.result(before + model.size - state["position"])
    assert run(kernel, data, before, before + len(region), **state) == expected


@given(specs=specs, state=states(), cut=st.integers(0, 12))
def test_in_two_pieces_as_in_one(
    kernel: Twin, specs: list[tuple[int, int, int, int]], state: dict[str, Any], cut: int
) -> None:
    """What one call returns is where the next one goes on."""
    parts = laid_out(specs, state["next_offset"])
    whole = run(kernel, b"".join(parts), **state)
    left, right = b"".join(parts[:cut]), b"".join(parts[cut:])
    first = run(kernel, left, **state)
    if first.end < len(left):
        assert whole == first
        return
    state = {
        **state,
        "position": state["position"] + first.end,
        "next_offset": first.next_offset,
        "unindexed_bytes": first.unindexed_bytes,
    }
    if first.offset_entries:
        state["last_indexed"] = first.offset_entries[-1][0]
    if first.time_entries:
        newest = first.time_entries[-1][0]
        state["next_timestamp"] = newest + max(state["time_index_interval_ms"], 1)
    second = run(kernel, right, **state)
    assert whole.end == first.end + second.end
    assert whole.next_offset == second.next_offset
    assert whole.records == first.records + second.records
    assert whole.unindexed_bytes == second.unindexed_bytes
    assert whole.offset_entries == first.offset_entries + second.offset_entries
    assert whole.time_entries == first.time_entries + second.time_entries


def test_nothing(kernel: Twin) -> None:
    assert run(kernel, b"", next_offset=5, unindexed_bytes=7) == (0, 5, 0, 0, 0, 7, [], [])
    assert run(kernel, b"??", 1, 1) == (1, 0, 0, 0, 0, 0, [], [])


def test_a_region(kernel: Twin) -> None:
    data = part(5, timestamp=30) + part(6, count=4, timestamp=35) + part(10, timestamp=45)
    data += part(20, timestamp=20)
    assert run(kernel, data, base=5, next_offset=5, position=1000) == Result(
        end=240,
        next_offset=21,
        records=7,
        first_timestamp=30,
        max_timestamp=45,
        unindexed_bytes=60,
        offset_entries=[(0, 1000), (5, 1120)],
        time_entries=[(30, 0), (45, 5)],
    )


def test_where_it_stops(kernel: Twin) -> None:
    def end(*offsets: int, **state: Any) -> int:
        return run(kernel, b"".join(map(part, offsets)), **state).end // 60

    assert end(0, 1, 2) == 3
    assert end(0, 1, 1) == 2  # back
    assert end(3, next_offset=4) == 0
    assert end(0, 5, 6) == 3  # a gap, which may be
    assert end(0, 5, 6, contiguous_from=0) == 1
    assert end(0, 5, 6, contiguous_from=60) == 1
    assert end(0, 5, 6, contiguous_from=61) == 3
    assert end(0, 5, 7, contiguous_from=61) == 2
    assert end(0, 5, 6, contiguous_from=1060, position=1000) == 1
    assert end(0, MAX_SPAN - 1) == 2
    assert end(0, MAX_SPAN) == 1
    assert end(7, base=8) == 0


def test_a_segment_whose_name_is_beyond_all_offsets(kernel: Twin) -> None:
    """Any twenty digits are a segment's name; no batch belongs to such a one."""
    base = 10**20 - 1
    found = run(kernel, part(MAX_OFFSET - 1), base=base, next_offset=base)
    assert (found.end, found.next_offset) == (0, base)


def test_times_that_nothing_can_follow(kernel: Twin) -> None:
    data = part(0, timestamp=MAX_TIMESTAMP - 5) + part(1, timestamp=MAX_TIMESTAMP)
    for interval in (0, 1, 5):
        found = run(kernel, data, time_index_interval_ms=interval)
        assert found.time_entries == [(MAX_TIMESTAMP - 5, 0), (MAX_TIMESTAMP, 1)]
    for interval in (6, MAX_TIMESTAMP, 1 << 80):
        found = run(kernel, data, time_index_interval_ms=interval)
        assert found.time_entries == [(MAX_TIMESTAMP - 5, 0)]
    assert not run(kernel, data, next_timestamp=MAX_TIMESTAMP + 1).time_entries


def test_an_interval_of_nothing_is_one_of_a_millisecond(kernel: Twin) -> None:
    data = b"".join(part(n, timestamp=NOW + n // 2) for n in range(4))
    found = run(kernel, data, time_index_interval_ms=0)
    assert found.time_entries == [(NOW, 0), (NOW + 1, 2)]


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_many_entries(kernel: Twin, count: int) -> None:
    data = b"".join(part(n, size=45, timestamp=NOW + n) for n in range(count))
    found = run(kernel, data, index_interval=45, time_index_interval_ms=0)
    assert found.offset_entries == [(n, 45 * n) for n in range(count)]
    assert found.time_entries == [(NOW + n, n) for n in range(count)]
    found = run(kernel, data, index_interval=45, time_index_interval_ms=count)
    assert len(found.offset_entries) == count
    assert found.time_entries == [(NOW, 0)]


def test_counted_a_second_time_no_batch_gets_a_second_entry(kernel: Twin) -> None:
    """The entries of a scan that was interrupted before it noted how far it came."""
    data = b"".join(part(n) for n in range(20))
    whole = run(kernel, data)
    for made in range(1, len(whole.offset_entries) + 1):
        again = run(kernel, data, last_indexed=whole.offset_entries[made - 1][0])
        assert again.records == 20
        assert all(offset > whole.offset_entries[made - 1][0] for offset, _ in again.offset_entries)


def test_a_position_that_an_index_cannot_hold(kernel: Twin) -> None:
    last = (1 << 32) - 1
    assert run(kernel, part(0), position=last).offset_entries == [(0, last)]
    with pytest.raises(OverflowError, match=f"position {last + 60} of a segment"):
        run(kernel, part(0) + part(1), position=last, index_interval=1)
    found = run(kernel, part(1), position=1 << 40, last_indexed=0, unindexed_bytes=30)
    assert (found.records, found.unindexed_bytes) == (1, 90)


def test_what_is_no_batch(kernel: Twin) -> None:
    good = part(0)
    with pytest.raises(Malformed, match="batch at position 60: it is cut short"):
        run(kernel, good + part(1)[:-1])
    with pytest.raises(Malformed, match="batch at position 60: it does not start with the magic"):
        run(kernel, good + b"x" * 60)
    assert run(kernel, good + good + b"x" * 60).end == 60  # it is not looked at


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 61)])
def test_outside(kernel: Twin, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not a region of a buffer of 60 bytes"):
        run(kernel, part(0), start, stop)


def test_any_buffer(kernel: Twin) -> None:
    data = part(0) + part(1)
    for kind in (bytearray, memoryview):
        assert run(kernel, kind(data)) == run(kernel, data)  # type: ignore[arg-type]
