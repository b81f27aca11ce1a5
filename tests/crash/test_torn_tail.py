"""A write that did not finish: what is behind the last whole batch is cut off, and only that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tailrace.testing import SimulatedDisk
from tests.crash.oracle import Oracle
from tests.crash.world import (
    FOLDER,
    Placed,
    observe,
    open_log,
    overwrite,
    placed_batches,
    reboot,
    record,
)


class Unfinished(NamedTuple):
    """A log of which the last batch is written, and nobody was told so."""

    disk: SimulatedDisk
    oracle: Oracle
    last: Placed
    foreign: bytes  # a batch of the segment before
    ahead: bytes  # a batch with a higher offset than the one that belongs there


def unfinished(flush: str) -> Unfinished:
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    with open_log(disk, flush=flush, segment_bytes=300) as log:
        for i in range(6):
            batch = [record(f"old {i}.{k}", timestamp=i) for k in range(3)]
            oracle.promise(oracle.tell(batch, log.end_offset), log.append(batch).offset)
    log = open_log(disk, flush=flush, segment_bytes=10_000)
    last = [record(f"last {k}", timestamp=9) for k in range(3)]
    oracle.tell(last, log.append(last).offset)
    disk.kill()
    batches = placed_batches(disk)
    foreign = next(b for b in batches if b.path != batches[-1].path)
    other = SimulatedDisk()
    with open_log(other) as log:
        log.append([b"elsewhere"] * 40)
        log.append([b"ahead"])
    return Unfinished(
        disk,
        oracle,
        batches[-1],
        bytes_of(disk, foreign),
        bytes_of(other, placed_batches(other)[-1]),
    )


def bytes_of(disk: SimulatedDisk, batch: Placed) -> bytes:
    return disk.read(batch.path)[batch.start : batch.end]


def nothing(case: Unfinished, kept: int) -> bytes:
    return b""


def zeros(case: Unfinished, kept: int) -> bytes:
    return bytes(case.last.info.size - kept)


def ones(case: Unfinished, kept: int) -> bytes:
    return b"\xff" * (case.last.info.size - kept)


def old_data(case: Unfinished, kept: int) -> bytes:
    """What the blocks of the disk held before: here, an earlier part of the file."""
    return case.disk.read(case.last.path)[kept : case.last.info.size]


def foreign_batch(case: Unfinished, kept: int) -> bytes:
    return case.foreign


def batch_ahead(case: Unfinished, kept: int) -> bytes:
    return case.ahead


def then_zeros_and_batch_ahead(case: Unfinished, kept: int) -> bytes:
    return zeros(case, kept) + case.ahead


FILLINGS = [nothing, zeros, ones, old_data, foreign_batch, batch_ahead, then_zeros_and_batch_ahead]


@pytest.mark.sample(3)
@pytest.mark.parametrize("rebooted", [False, True], ids=["killed", "rebooted"])
@pytest.mark.parametrize("filling", FILLINGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_cut_at_every_byte(
    flush: str, filling: Callable[[Unfinished, int], bytes], rebooted: bool
) -> None:
    case = unfinished(flush)
    whole = case.disk.read(case.last.path)
    for kept in range(case.last.info.size):
        disk = case.disk.clone()
        position = case.last.start + kept
        torn = whole[:position] + filling(case, kept)
        if torn[: case.last.end] == whole:
            continue  # the filling happens to complete the batch
        overwrite(disk, case.last.path, torn)
        if rebooted:
            reboot(disk)
        try:
            check_reopened(disk, case, flush, rebooted)
        except Exception as error:
            error.add_note(f"the last batch kept {kept} of its {case.last.info.size} bytes")
            raise


def check_reopened(disk: SimulatedDisk, case: Unfinished, flush: str, rebooted: bool) -> None:
    complete = case.last.offsets.start
    with observe(disk) as log:
        assert log.end_offset == complete, "an observer sees what is not whole"
        assert [r.offset for r in log.read()] == list(range(complete))
    with open_log(disk) as log:
        found = [r.offset for r in log.read()]
        assert found == list(range(complete)), "not the last complete batch"
        assert not list(log.read(complete))
        if flush == "sync" or not rebooted:
            assert log.end_offset == complete
        else:  # records may have been seen that the power cut took
            assert log.end_offset >= case.last.offsets.stop
        offset = log.append([b"new"]).wait().offset
        assert offset >= complete
        assert [r.value for r in log.read(offset)] == [b"new"]
    with open_log(disk) as log:
        assert [r.offset for r in log.read()] == [*range(complete), offset]


@pytest.mark.parametrize("rebooted", [False, True], ids=["killed", "rebooted"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_whole_last_batch_is_kept(flush: str, rebooted: bool) -> None:
    case = unfinished(flush)
    if rebooted:
        reboot(case.disk)
    with open_log(case.disk) as log:
        case.oracle.check(log)
        assert [r.value for r in log.read(case.last.offsets.stop - 1)] == [b"last 2"]


@pytest.mark.parametrize("junk", [b"\0" * 700, b"\xff" * 700, b"XULF" * 100])
def test_junk_behind_the_last_batch_is_cut(junk: bytes) -> None:
    case = unfinished("sync")
    overwrite(case.disk, case.last.path, case.disk.read(case.last.path) + junk)
    with open_log(case.disk) as log:
        case.oracle.check(log)
        assert log.end_offset == case.last.offsets.stop
        assert log.append([b"new"]).wait().offset == case.last.offsets.stop
    with open_log(case.disk) as log:
        assert [r.value for r in log.read(case.last.offsets.stop)] == [b"new"]


def test_what_was_cut_is_kept_aside() -> None:
    case = unfinished("sync")
    torn = case.disk.read(case.last.path)[:-1]
    overwrite(case.disk, case.last.path, torn)
    open_log(case.disk).close()
    aside = [
        path for path in case.disk.files() if path.startswith(f"{FOLDER}/.tailrace/quarantine")
    ]
    assert [case.disk.read(path) for path in aside] == [torn[case.last.start :]]


def test_the_old_bytes_of_a_cut_batch_never_come_back() -> None:
    """What is appended after a cut is shorter than what was there: the rest must not show."""
    case = unfinished("sync")
    overwrite(case.disk, case.last.path, case.disk.read(case.last.path)[:-1])
    log = open_log(case.disk)
    log.append_one(b"n").wait()
    case.disk.kill()
    with open_log(case.disk) as log:
        assert [r.value for r in log.read(case.last.offsets.start)] == [b"n"]
