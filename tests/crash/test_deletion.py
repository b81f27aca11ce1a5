"""Retention and truncation: what is deleted is said to be deleted, and nothing else goes.

(Crashes in the middle of deletion are in `test_crash_points`.)
"""

from __future__ import annotations

from typing import Any

import pytest

from tailrace import Log, OffsetOutOfRange
from tailrace.testing import SimulatedDisk
from tests.crash.oracle import Oracle
from tests.crash.workloads import append, make_batch
from tests.crash.world import observe, open_log, reboot, segments


def some_log(disk: SimulatedDisk, **options: Any) -> Log:
    """Eight batches of two records; each segment has two of them."""
    log = open_log(disk, segment_bytes=150, **options)
    for _ in range(8):
        log.append(make_batch()).wait()
    return log


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "observer"])
def test_a_deleted_prefix_is_out_of_range(read_only: bool) -> None:
    disk = SimulatedDisk()
    log = some_log(disk)
    log.truncate_before(6)
    log.vacuum()
    reader = observe(disk) if read_only else log
    for offset in range(6):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(reader.read(offset))
        assert (caught.value.offset, caught.value.low, caught.value.high) == (offset, 6, 16)
    assert [r.offset for r in reader.read()] == list(range(6, 16))
    assert reader.start_offset == 6


@pytest.mark.parametrize("start", range(17))
def test_the_start_may_be_inside_a_segment_and_a_batch(start: int) -> None:
    disk = SimulatedDisk()
    log = some_log(disk)
    log.truncate_before(start)
    for look in (log, observe(disk)):
        assert [r.offset for r in look.read()] == list(range(start, 16))
    log.vacuum()
    for look in (log, observe(disk)):
        assert [r.offset for r in look.read()] == list(range(start, 16))
    disk.kill()
    reboot(disk)
    with open_log(disk) as log:
        assert [r.offset for r in log.read()] == list(range(start, 16))
        assert log.start_offset == start
        assert log.append([b"next"]).wait().offset == 16


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "observer"])
def test_a_reader_finishes_the_segment_it_is_in(read_only: bool) -> None:
    disk = SimulatedDisk()
    log = some_log(disk)
    reader = (observe(disk) if read_only else log).read()
    first = next(reader).offset
    log.truncate_before(12)
    log.vacuum()
    seen = [first]
    with pytest.raises(OffsetOutOfRange) as caught:
        seen.extend(record.offset for record in reader)
    assert seen == [0, 1, 2, 3], "the segment was open, and could be read to its end"
    assert caught.value.low == 12
    assert [r.offset for r in log.read(caught.value.low)] == [12, 13, 14, 15]


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "observer"])
def test_a_reader_in_what_stays_does_not_notice(read_only: bool) -> None:
    disk = SimulatedDisk()
    log = some_log(disk)
    reader = (observe(disk) if read_only else log).read(8)
    seen = [next(reader).offset]
    log.truncate_before(8)
    log.vacuum()
    seen.extend(record.offset for record in reader)
    assert seen == list(range(8, 16))


@pytest.mark.parametrize(
    "retention",
    [{"max_records": 5}, {"max_bytes": 200}, {"max_records": 1, "max_bytes": 1}],
    ids=str,
)
def test_what_is_kept_survives_a_power_cut(retention: dict[str, int]) -> None:
    """Retention keeps so many records; those that a power cut could take don't count."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = open_log(disk, segment_bytes=150, retention=retention)
    for _ in range(4):
        append(log, oracle)
    for _ in range(2):
        append(log, oracle, wait=False)
    assert log.vacuum().segments
    for seed in range(30):
        clone = disk.clone()
        clone.crash(seed)
        with open_log(clone) as again:
            found = oracle.on(clone)
            found.allow_start(log.start_offset)
            records = found.check(again).records
            assert len(records) >= retention.get("max_records", 1), f"power cut {seed}"


def test_vacuum_of_everything_keeps_the_next_offset() -> None:
    disk = SimulatedDisk()
    log = some_log(disk)
    log.truncate_before(16)
    log.vacuum()
    disk.kill()
    for _ in range(3):
        with open_log(disk) as log:
            assert (log.start_offset, log.end_offset) == (16, 16)
            assert not list(log.read())
    assert len(segments(disk)) <= 1
    with open_log(disk) as log:
        assert log.append([b"next"]).wait().offset == 16
