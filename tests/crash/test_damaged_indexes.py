"""Indexes are hints: whatever is done to them, every answer is that of a scan."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tailrace.kernel import crc32c
from tailrace.log.index import OffsetIndex
from tailrace.log.sidefiles import Seals
from tailrace.testing import SimulatedDisk
from tests.crash.oracle import Oracle, scan
from tests.crash.world import (
    CLOCK,
    FOLDER,
    cut,
    flip,
    observe,
    open_log,
    overwrite,
    placed_batches,
    record,
    remove,
    segment,
)


class Indexed(NamedTuple):
    disk: SimulatedDisk
    oracle: Oracle
    indexes: list[str]


def indexed(end: str) -> Indexed:
    """A few segments whose indexes have a few entries each."""
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = open_log(disk)
    for i in range(12):
        stamp = CLOCK.tick(2) - (5 if i % 4 == 3 else 0)
        batch = [record(f"{i}.{k}", timestamp=stamp + k) for k in range(2)]
        told = oracle.tell(batch, log.end_offset)
        oracle.promise(told, log.append(batch).wait().offset)
    if end == "closed":
        log.close()
    disk.kill()
    indexes = [path for path in disk.files() if path.endswith(("idx", "tix"))]
    assert len(indexes) >= 4
    return Indexed(disk, oracle, indexes)


def same_answers(case: Indexed, disk: SimulatedDisk) -> None:
    """By offset and by time, read-only, for the writer, and for whoever comes after it."""
    oracle = case.oracle.on(disk)
    with observe(disk) as log:
        oracle.check(log)
        every_offset(disk, log.start_offset, log.end_offset)
    with open_log(disk) as log:
        oracle.check(log)
        offset = log.append([b"new"]).wait().offset
        assert offset == max(b.offsets.stop for b in placed_batches(case.disk))
    with observe(disk) as log:
        assert [r.value for r in log.read(offset)] == [b"new"]


def every_offset(disk: SimulatedDisk, start: int, end: int) -> None:
    """A reader that comes for one offset alone finds it, without what others have looked up."""
    for offset in range(start, end, 5):
        with observe(disk) as log:
            assert [r.offset for r in log.read(offset, offset + 1)] == [offset]


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_flip_every_byte(step: int, end: str) -> None:
    case = indexed(end)
    for path in case.indexes:
        for position in range(0, len(case.disk.read(path)), step):
            disk = case.disk.clone()
            flip(disk, path, position, 0xFF if end == "closed" else 0x01)
            try:
                same_answers(case, disk)
            except Exception as error:
                error.add_note(f"flipped byte {position} of {path}")
                raise


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_truncate_at_every_length(step: int, end: str) -> None:
    case = indexed(end)
    for path in case.indexes:
        for size in range(0, len(case.disk.read(path)), step):
            disk = case.disk.clone()
            cut(disk, path, size)
            try:
                same_answers(case, disk)
            except Exception as error:
                error.add_note(f"{path} was cut to {size} bytes")
                raise


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("what", ["gone", "zeros", "junk behind", "of another segment"])
def test_index_files_that_are_wrong_as_a_whole(what: str, end: str) -> None:
    case = indexed(end)
    for path in case.indexes:
        disk = case.disk.clone()
        data = disk.read(path)
        if what == "gone":
            remove(disk, path)
        elif what == "zeros":
            overwrite(disk, path, bytes(len(data)))
        elif what == "junk behind":
            overwrite(disk, path, data + b"\xff" * 24)
        else:
            kind = path[-3:]
            other = next(p for p in case.indexes if p != path and p.endswith(kind))
            overwrite(disk, path, disk.read(other))
        same_answers(case, disk)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_all_indexes_gone(end: str) -> None:
    case = indexed(end)
    disk = case.disk.clone()
    for path in case.indexes:
        remove(disk, path)
    same_answers(case, disk)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_index_ahead_of_the_data(end: str) -> None:
    """Entries for batches that the segment does not have: a crash wrote the index first."""
    case = indexed(end)
    for path in case.indexes:
        disk = case.disk.clone()
        entry = (2000).to_bytes(4, "little") + (9000).to_bytes(4, "little")
        if path.endswith("tix"):
            entry = (CLOCK.now_ms + 50).to_bytes(8, "little") + (2000).to_bytes(4, "little")
        overwrite(disk, path, disk.read(path) + entry)
        same_answers(case, disk)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_data_ahead_of_the_index(end: str) -> None:
    """The last entries are missing: a crash wrote the segment first."""
    case = indexed(end)
    for path in case.indexes:
        disk = case.disk.clone()
        cut(disk, path, len(disk.read(path)) - (8 if path.endswith("idx") else 12))
        same_answers(case, disk)


def test_entries_that_point_into_the_middle_of_a_batch() -> None:
    """Even an index that its seal vouches for is not believed: nothing is read from where no batch
    starts."""
    case = indexed("closed")
    data = case.disk.read(segment(0, "idx"))
    assert len(data) > OffsetIndex.HEADER.size + 8, "one entry that can be wrong, at least"
    for shift in (1, 4, 44, 60):
        forged = bytearray(data)
        for at in range(OffsetIndex.HEADER.size + 4, len(data), 8):
            position = int.from_bytes(data[at : at + 4], "little")
            if position:
                forged[at : at + 4] = (position + shift).to_bytes(4, "little")
        disk = case.disk.clone()
        overwrite(disk, segment(0, "idx"), bytes(forged))
        vouch(disk, bytes(forged))
        same_answers(case, disk)


def vouch(disk: SimulatedDisk, idx: bytes) -> None:
    """Make the seal of the first segment fit a forged index."""
    seals = Seals(disk, FOLDER)
    seals.load({0})
    seal = seals.get(0, len(disk.read(segment(0))))
    assert seal is not None
    seals.add(seal._replace(idx_size=len(idx), idx_crc=crc32c(idx)))


def test_an_index_that_is_rebuilt_is_rebuilt_once() -> None:
    """The writer writes back what it had to scan for."""
    case = indexed("closed")
    path = segment(0, "idx")
    before = case.disk.read(path)
    remove(case.disk, path)
    with open_log(case.disk) as log:
        scan(log)
        list(log.read(3, 4))
    assert case.disk.read(path) == before
