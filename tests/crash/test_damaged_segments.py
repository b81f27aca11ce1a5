"""Rot in a segment: the damaged batch is reported by its offsets, and everything else is read."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tailrace import Corrupt, Log, Record
from tailrace.kernel import encode
from tailrace.testing import SimulatedDisk
from tests.crash.oracle import Oracle, scan
from tests.crash.world import (
    CLOCK,
    Placed,
    cut,
    flip,
    observe,
    open_log,
    placed_batches,
    reboot,
    record,
    remove,
    segments,
)


class Written(NamedTuple):
    disk: SimulatedDisk
    oracle: Oracle
    batches: list[Placed]


def written(*, end: str, flush: str = "sync", compression: str = "none") -> Written:
    """Three segments of a few batches, promised, and the process gone in one way or another."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = open_log(disk, flush=flush, segment_bytes=140, compression=compression)
    for i in range(7):
        pad = "x" * (0 if compression == "none" else 300)
        batch = [
            record(f"{i}.{k}{pad}", timestamp=CLOCK.tick(3), key="k") for k in range(2 - i % 2)
        ]
        told = oracle.tell(batch, log.end_offset)
        receipt = log.append(batch)
        log.flush()
        oracle.promise(told, receipt.offset)
    if end == "closed":
        log.close()
    disk.kill()
    if end == "rebooted":
        reboot(disk)
    batches = placed_batches(disk)
    assert len(segments(disk)) >= 3
    return Written(disk, oracle, batches)


def damage_is_local_and_loud(case: Written, disk: SimulatedDisk, batch: Placed) -> None:
    """Check everything that is promised of a log whose `batch` is damaged."""
    with observe(disk) as log:
        assert_lost(log, batch)
    with open_log(disk) as log:
        found = case.oracle.on(disk).check(log, damaged=[batch.offsets])
        assert found.lost == [batch.offsets], f"lost: {found.lost}, damaged: {batch.offsets}"
        end = log.end_offset
        assert end >= case.batches[-1].offsets.stop, "an offset would be used again"
        assert log.append([b"new"]).wait().offset == end
        assert [r.value for r in log.read(end)] == [b"new"]
    with open_log(disk) as log:
        assert_lost(log, batch)
        assert [r.value for r in log.read(end)] == [b"new"]


def assert_lost(log: Log, batch: Placed) -> None:
    found = scan(log)
    assert found.lost == [batch.offsets], f"lost: {found.lost}, damaged: {batch.offsets}"
    with pytest.raises(Corrupt) as caught:
        list(log.read(batch.offsets.stop - 1))
    error = caught.value
    assert (error.first_offset, error.next_offset) == (batch.offsets.start, batch.offsets.stop)


@pytest.mark.parametrize("end", ["closed", "killed", "rebooted"])
@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.long)])
def test_flip_every_byte(apart: int, end: str) -> None:
    case = written(end=end)
    mask, step = {"closed": (0xFF, 1), "killed": (0x01, 1), "rebooted": (0x80, 5)}[end]
    for batch in case.batches:
        for position in range(batch.start, batch.end, step * apart):
            disk = case.disk.clone()
            flip(disk, batch.path, position, mask)
            try:
                damage_is_local_and_loud(case, disk, batch)
            except Exception as error:
                error.add_note(f"flipped byte {position - batch.start} of {batch}")
                raise


@pytest.mark.parametrize("compression", ["s2", "zstd"])
def test_flip_bytes_of_compressed_batches(compression: str) -> None:
    case = written(end="closed", compression=compression)
    for batch in case.batches:
        for position in range(batch.start, batch.end, 7):
            disk = case.disk.clone()
            flip(disk, batch.path, position, 0x10)
            damage_is_local_and_loud(case, disk, batch)


@pytest.mark.parametrize("flush", ["async", "none"])
def test_flip_in_other_modes(flush: str) -> None:
    case = written(end="killed", flush=flush)
    for batch in case.batches:
        disk = case.disk.clone()
        flip(disk, batch.path, batch.start + 30)
        damage_is_local_and_loud(case, disk, batch)


def test_two_damaged_batches() -> None:
    case = written(end="killed")
    for i, first in enumerate(case.batches):
        for second in case.batches[i + 2 :]:
            disk = case.disk.clone()
            for batch in (first, second):
                flip(disk, batch.path, batch.start + 3)
            with open_log(disk) as log:
                assert scan(log).lost == [first.offsets, second.offsets]


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("which", ["sealed", "last"])
def test_a_segment_that_is_cut_short(which: str, end: str) -> None:
    """At every length: what is missing is said to be lost, and nothing else is."""
    case = written(end=end)
    path = segments(case.disk)[0 if which == "sealed" else -1]
    mine = [batch for batch in case.batches if batch.path == path]
    for size in range(mine[-1].end):
        disk = case.disk.clone()
        cut(disk, path, size)
        gone = [batch.offsets for batch in mine if batch.end > size]
        try:
            check_lost(case, disk, range(gone[0].start, gone[-1].stop))
        except Exception as error:
            error.add_note(f"{path} was cut to {size} bytes")
            raise


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_that_is_gone(which: int, end: str) -> None:
    case = written(end=end)
    path = segments(case.disk)[which]
    mine = [batch for batch in case.batches if batch.path == path]
    remove(case.disk, path)
    check_lost(case, case.disk, range(mine[0].offsets.start, mine[-1].offsets.stop))


def check_lost(case: Written, disk: SimulatedDisk, lost: range) -> None:
    expected = [o for batch in case.batches for o in batch.offsets if o not in lost]
    for read_only in (True, False, True):
        with open_log(disk, read_only=read_only) as log:
            found = scan(log)
            assert [r.offset for r in found.records] == expected
            assert all(map(found.is_lost, lost)), f"{lost} is gone; {log} says: {found.lost}"
            if not read_only:
                expected.append(log.append([b"new"]).wait().offset)
                assert expected[-1] >= case.batches[-1].offsets.stop


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_batch_inside_a_value_is_not_taken_for_one_of_the_log(end: str) -> None:
    """A value may hold what looks like a batch with a fitting offset; when the batch around it is
    damaged, it must not come to light."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = open_log(disk, segment_bytes=5000)
    for i in range(4):
        inner = bytes(encode([Record(timestamp=1, value=b"inner")], 0).place(log.end_offset + 1))
        outer = [Record(timestamp=2, value=b"%d " % i + inner), record(f"beside {i}", timestamp=3)]
        told = oracle.tell(outer, log.end_offset)
        oracle.promise(told, log.append(outer).wait().offset)
    if end == "closed":
        log.close()
    disk.kill()
    for batch in placed_batches(disk):
        damaged = disk.clone()
        flip(damaged, batch.path, batch.end - 1)
        with open_log(damaged) as log:
            found = oracle.check(log, damaged=[batch.offsets])
            assert found.lost == [batch.offsets]


def test_rot_below_the_watermark_and_a_torn_write_above_it() -> None:
    """The two are treated apart: the torn part is cut, so that it cannot meet new records."""
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=5000)
    for i in range(3):
        log.append([b"durable %d" % i] * 2).wait()
    for i in range(3):
        log.append([b"in flight %d" % i] * 2)
    disk.kill()
    durable, torn = placed_batches(disk)[2:4]
    flip(disk, durable.path, durable.start)
    flip(disk, torn.path, torn.start)
    for _ in range(3):
        log = open_log(disk)
        end = log.end_offset
        assert log.append([b"new %d" % end]).wait().offset == end
        found = scan(log)
        assert found.lost == [durable.offsets]
        assert [r.offset for r in found.records if r.value.startswith(b"durable")] == [0, 1, 2, 3]
        assert not [r for r in found.records if r.value.startswith(b"in flight")]
        disk.kill()
