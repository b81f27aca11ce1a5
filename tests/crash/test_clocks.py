"""Lookups by time are those of somebody who looks at every record, whatever the clocks did."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace import Log, Record
from tailrace.testing import SimulatedDisk
from tests.crash.oracle import scan
from tests.crash.world import CLOCK, NOW_MS, observe, open_log

EARLIEST, LATEST = -(2**63), 2**63 - 1

stamps = st.one_of(
    st.integers(NOW_MS - 20, NOW_MS + 20),  # a usual day, with a clock that is set back at times
    st.integers(-5, 5),
    st.sampled_from([EARLIEST, EARLIEST + 1, -1, 0, 1, 2**53, LATEST - 1, LATEST]),
    st.integers(EARLIEST, LATEST),
)
batches = st.lists(st.lists(stamps, min_size=1, max_size=4), min_size=1, max_size=12)


def check_lookups(log: Log, wanted: set[int]) -> None:
    found = scan(log)
    for timestamp in sorted(wanted):
        answer = log.offset_at(timestamp)
        assert answer == found.offset_at(timestamp), f"offset_at({timestamp})"
        first = next(log.read(timestamp=timestamp), None)
        assert first == next((r.record for r in found.records if r.offset >= answer), None)


@settings(max_examples=80)
@given(batches, st.sampled_from([1, 100, 4096]), st.sampled_from(["0s", "2ms", "1s"]))
@example([[LATEST], [EARLIEST], [0]], 1, "0s")
@example([[NOW_MS + 9], [NOW_MS], [NOW_MS + 9, NOW_MS + 10]], 1, "2ms")
@example([[-3], [-1], [-2]], 1, "0s")
def test_offset_at_equals_a_scan(
    written: list[list[int]], index_interval: int, time_index_interval: str
) -> None:
    CLOCK.now_ms = NOW_MS
    options: dict[str, Any] = {
        "index_interval": index_interval,
        "time_index_interval": time_index_interval,
    }
    wanted = {s for batch in written for s in batch}
    wanted |= {min(s + 1, LATEST) for s in wanted} | {max(s - 1, EARLIEST) for s in wanted}
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=200, segment_age="36500d", **options)
    for batch in written:
        log.append([Record(timestamp=stamp, value=b"v") for stamp in batch])
    log.flush()
    check_lookups(log, wanted)
    disk.kill()
    with open_log(disk, **options) as log:  # recovered, its indexes made again
        check_lookups(log, wanted)
    with open_log(disk, **options) as log:  # from its indexes
        check_lookups(log, wanted)
    with observe(disk) as log:
        check_lookups(log, wanted)


@pytest.mark.parametrize("step_ms", [-1000, -1, 0])
def test_a_clock_that_goes_back_or_stands_still(step_ms: int) -> None:
    """Timestamps that the log gives itself: they are not corrected, and lookups stay right."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for _ in range(20):
        CLOCK.tick(step_ms)
        log.append([b"v"]).wait()
    assert [r.timestamp for r in log.read()] == [NOW_MS + step_ms * (i + 1) for i in range(20)]
    check_lookups(log, {NOW_MS + step_ms * i for i in range(22)})


def test_start_offset_bounds_the_lookup() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for _ in range(10):
        log.append([Record(timestamp=7, value=b"same")] * 2).wait()
    for start in range(21):
        log.truncate_before(start)
        assert log.offset_at(7) == log.offset_at(EARLIEST) == start
        assert log.offset_at(8) == 20
        log.vacuum()
