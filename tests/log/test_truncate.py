"""truncate_before: the log start offset, durable at once, wherever it points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Log, OffsetOutOfRange
from tailrace.testing import SimulatedDisk
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    bases,
    copy_as_killed,
    fill,
    flip,
    forget_clean_close,
    offsets,
    side_file,
    tree,
)


@pytest.fixture
def filled(open_log: OpenLog) -> Log:
    """30 records in batches of three, in several segments."""
    log = open_log(segment_bytes=300)
    for _ in range(10):
        log.append([b"x" * 20] * 3)
    log.flush()
    return log


@pytest.mark.parametrize("start", [0, 1, 2, 3, 14, 15, 29, 30])
def test_anywhere(filled: Log, open_log: OpenLog, path: Path, start: int) -> None:
    before = bases(path)
    filled.truncate_before(start)
    assert (filled.start_offset, filled.end_offset) == (start, 30)
    assert offsets(filled.read()) == list(range(start, 30))
    assert bases(path) == before  # files go with the next vacuum
    assert open_log(read_only=True).start_offset == start
    if start:
        with pytest.raises(OffsetOutOfRange) as caught:
            filled.read(start - 1)
        assert (caught.value.low, caught.value.high) == (start, 30)


def test_a_lower_offset_changes_nothing(filled: Log, path: Path) -> None:
    filled.truncate_before(14)
    files = tree(path)
    for lower in (14, 13, 0):
        filled.truncate_before(lower)
    assert filled.start_offset == 14
    assert tree(path) == files


@pytest.mark.parametrize("offset", [31, 2**40, -1])
def test_outside_of_the_log(filled: Log, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"{offset}.* ends at 30") as caught:
        filled.truncate_before(offset)
    assert (caught.value.offset, caught.value.low, caught.value.high) == (offset, 0, 30)
    assert filled.start_offset == 0


@pytest.mark.parametrize("offset", [True, 1.5, "5", None])
def test_what_is_no_offset(filled: Log, offset: Any) -> None:
    with pytest.raises(TypeError, match="offset"):
        filled.truncate_before(offset)
    assert filled.start_offset == 0


@pytest.mark.parametrize("how", ["clean", "killed", "read-only"])
@pytest.mark.parametrize("start", [1, 14, 30])
def test_it_survives_reopening(
    filled: Log, open_log: OpenLog, path: Path, how: str, start: int
) -> None:
    filled.truncate_before(start)
    filled.close()
    if how == "killed":
        forget_clean_close(path)
    with open_log(read_only=how == "read-only") as log:
        assert (log.start_offset, log.end_offset) == (start, 30)
        assert offsets(log.read()) == list(range(start, 30))


def test_it_survives_a_kill_right_after(filled: Log, path: Path, tmp_path: Path) -> None:
    filled.truncate_before(14)
    with Log(copy_as_killed(path, tmp_path / "copy")) as log:
        assert offsets(log.read()) == list(range(14, 30))


def test_it_survives_a_power_cut_right_after() -> None:
    for seed in range(10):
        disk = SimulatedDisk(seed)
        log = Log("/log", fs=disk, segment_bytes=300)
        fill(log, 20)
        log.truncate_before(7)
        disk.crash(seed)
        with Log("/log", fs=disk) as log:
            assert offsets(log.read()) == list(range(7, 20))


def test_the_start_is_never_ahead_of_what_is_durable(log: Log) -> None:
    log.append([b"x"] * 5)
    assert log.durable_offset == 0
    log.truncate_before(3)
    assert log.durable_offset == 5
    assert offsets(log.read()) == [3, 4]


@pytest.mark.parametrize("flush", ["async", "none"])
def test_in_the_other_modes(open_log: OpenLog, flush: str) -> None:
    log = open_log(flush=flush, upkeep=False)
    log.append([b"x"] * 5)
    log.truncate_before(3)
    assert offsets(log.read()) == [3, 4]
    log.close()
    assert offsets(open_log(flush=flush).read()) == [3, 4]


def test_one_damaged_slot_of_the_start_changes_nothing(
    filled: Log, open_log: OpenLog, path: Path
) -> None:
    filled.truncate_before(5)
    filled.truncate_before(14)
    filled.close()
    stored = side_file(path, "start").read_bytes()
    for position in (0, 20, 512, 530):
        side_file(path, "start").write_bytes(stored)
        flip(side_file(path, "start"), position)
        with open_log() as log:
            assert log.start_offset == 14


def test_appends_go_on(filled: Log) -> None:
    filled.truncate_before(30)
    assert list(filled.read()) == []
    assert filled.append([b"next"]).wait().offset == 30
    assert offsets(filled.read()) == [30]


def test_readers_that_are_under_way_go_on(filled: Log) -> None:
    reader = filled.read()
    next(reader)
    filled.truncate_before(20)
    assert offsets(reader) == list(range(1, 30))


def test_on_a_closed_log(filled: Log) -> None:
    filled.close()
    with pytest.raises(Closed):
        filled.truncate_before(3)
