"""Retention: whole segments, oldest first, up to the first that has to stay."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, OffsetOutOfRange, VacuumReport
from tailrace.log import writer
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, Fail, FaultyFileSystem, on
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    DAY,
    HOUR,
    T0,
    at,
    bases,
    eventually,
    fill,
    forget_clean_close,
    offsets,
    segment,
    tree,
    values,
)
from tests.threads import our_threads

NOTHING = 0, 0


def now() -> int:
    return time.time_ns() // 1_000_000


def one_per_segment(open_log: OpenLog, retention: dict[str, Any], stamps: list[int]) -> Log:
    log = open_log(segment_bytes=1, retention=retention, upkeep=False)
    for stamp in stamps:
        log.append([at(stamp)])
    log.flush()
    return log


def test_nothing_to_do(log: Log, path: Path) -> None:
    assert log.vacuum() == VacuumReport(0, 0, 0)
    fill(log, 10)
    files = tree(path)
    assert log.vacuum() == VacuumReport(0, 0, 0)
    assert tree(path) == files


@pytest.mark.parametrize("retention", [{"max_records": 5}, {"max_bytes": 5}, {"max_age": "1s"}])
def test_an_empty_log(open_log: OpenLog, retention: dict[str, Any]) -> None:
    assert open_log(retention=retention).vacuum() == VacuumReport(0, 0, 0)


# --- by start offset ----------------------------------------------------------------------------


def test_by_start_offset(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=300)
    for _ in range(10):
        log.append([b"x" * 20] * 3)
    log.flush()
    before = bases(path)
    second, third = before[1], before[2]
    log.truncate_before(second - 1)
    assert log.vacuum().segments == 0
    log.truncate_before(third - 1)  # inside the second: only the first goes
    size = segment(path, 0).stat().st_size
    assert log.vacuum() == VacuumReport(1, size, third - 1)
    assert bases(path) == before[1:]
    assert not list(path.glob(f"{0:020d}.*"))
    assert (log.start_offset, offsets(log.read())) == (third - 1, list(range(third - 1, 30)))


def test_three_segments_of_one_record(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1)
    fill(log, 3)
    log.truncate_before(2)
    assert log.vacuum().segments == 2
    assert bases(path) == [2]
    assert (log.start_offset, log.end_offset) == (2, 3)
    with pytest.raises(OffsetOutOfRange):
        log.read(1)


def test_at_the_end_one_empty_segment_stays(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=200)
    fill(log, 10)
    log.truncate_before(10)
    log.vacuum()
    assert bases(path) == [10]
    assert segment(path, 10).stat().st_size == 0
    assert log.append([b"next"]).wait().offset == 10


# --- by age -------------------------------------------------------------------------------------


def test_by_age(open_log: OpenLog, path: Path) -> None:
    stamps = [now() - 3 * HOUR, now() - 2 * HOUR, now() - HOUR // 2, now()]
    log = one_per_segment(open_log, {"max_age": "1h"}, stamps)
    assert log.vacuum().segments == 2
    assert bases(path) == [2, 3]
    assert log.start_offset == 2


def test_the_newest_record_of_a_segment_counts(open_log: OpenLog, path: Path) -> None:
    log = open_log(retention={"max_age": "1h"}, segment_bytes=200)
    log.append([at(now() - DAY), at(now())])
    log.append([at(now() - DAY)] * 20)
    log.append([at(now() - DAY)] * 20)
    log.flush()
    assert len(bases(path)) == 3
    assert log.vacuum().segments == 0


def test_a_time_in_the_future_holds_what_is_behind_it(open_log: OpenLog, path: Path) -> None:
    stamps = [now() - DAY, now() + DAY, now() - DAY, now() - DAY]
    log = one_per_segment(open_log, {"max_age": "1h"}, stamps)
    assert log.vacuum().segments == 1
    assert bases(path) == [1, 2, 3]


def test_when_everything_has_expired(open_log: OpenLog, path: Path) -> None:
    log = one_per_segment(open_log, {"max_age": "1h"}, [now() - DAY] * 5)
    size = sum(file.stat().st_size for file in path.glob("*.seg"))
    assert log.vacuum() == VacuumReport(5, size, 5)
    assert (log.start_offset, log.end_offset, list(log.read())) == (5, 5, [])
    assert bases(path) == [5]
    files = tree(path)
    assert log.vacuum() == VacuumReport(0, 0, 5)  # a second run has nothing to do
    assert tree(path) == files
    assert log.append([b"next"]).wait().offset == 5  # offsets go on
    assert offsets(log.read()) == [5]


@pytest.mark.parametrize("clean", [True, False])
def test_reopened_after_everything_expired(open_log: OpenLog, path: Path, clean: bool) -> None:
    log = one_per_segment(open_log, {"max_age": "1h"}, [now() - DAY] * 3)
    log.vacuum()
    log.close()
    if not clean:
        forget_clean_close(path)
    with open_log() as log:
        assert (log.start_offset, log.end_offset) == (3, 3)
        assert log.append([b"next"]).wait().offset == 3


# --- by size and count --------------------------------------------------------------------------


def test_by_bytes_never_below_the_limit(open_log: OpenLog, path: Path) -> None:
    log = one_per_segment(open_log, {}, [T0] * 6)  # all of one size
    log.close()
    size = segment(path, 0).stat().st_size
    for limit, left in ((6 * size, 6), (5 * size + 1, 6), (5 * size, 5), (2 * size - 1, 2), (1, 1)):
        with open_log(segment_bytes=1, retention={"max_bytes": limit}) as log:
            log.vacuum()
            assert len(bases(path)) == left
            assert log.vacuum().segments == 0


def test_by_records(open_log: OpenLog, path: Path) -> None:
    with open_log(segment_bytes=200) as log:
        for _ in range(10):
            log.append([b"x" * 40] * 3)
    assert bases(path) == list(range(0, 30, 3))
    for limit, start in ((30, 0), (28, 0), (27, 3), (10, 18), (1, 27)):
        with open_log(retention={"max_records": limit}) as log:
            log.vacuum()
            assert (log.start_offset, log.end_offset) == (start, 30)
            assert len(list(log.read())) >= limit


def test_records_of_a_truncated_prefix_do_not_count(open_log: OpenLog, path: Path) -> None:
    with open_log(segment_bytes=200, retention={"max_records": 4}) as log:
        for _ in range(3):
            log.append([b"x" * 40] * 3)
        log.flush()
        log.truncate_before(2)
        log.vacuum()
        assert len(list(log.read())) >= 4
        assert log.start_offset == 3


def test_the_rules_add_up(open_log: OpenLog, path: Path) -> None:
    stamps = [now() - DAY, now(), now(), now()]
    log = one_per_segment(
        open_log, {"max_age": "1h", "max_records": 2, "max_bytes": "1GiB"}, stamps
    )
    log.vacuum()
    assert log.start_offset == 2


# --- around it ----------------------------------------------------------------------------------


def test_what_is_deleted_cannot_be_read(open_log: OpenLog) -> None:
    log = one_per_segment(open_log, {"max_records": 2}, [now()] * 6)
    reader = open_log(read_only=True)
    log.vacuum()
    for handle in (log, reader):
        for offset in range(4):
            with pytest.raises(OffsetOutOfRange) as caught:
                handle.read(offset)
            assert (caught.value.low, caught.value.high) == (4, 6)
        assert offsets(handle.read()) == [4, 5]


@pytest.mark.parametrize("start", [0, 3, 4, 5])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_reader_that_deletion_overtakes(open_log: OpenLog, start: int, read_only: bool) -> None:
    log = open_log(segment_bytes=150)
    for _ in range(6):
        log.append([b"x" * 20] * 3)
    log.flush()
    handle = open_log(read_only=True) if read_only else log
    reader = handle.read(start)
    log.truncate_before(12)
    log.vacuum()
    with pytest.raises(OffsetOutOfRange, match="was deleted; the log starts at 12") as caught:
        next(reader)
    assert caught.value.low == 12


def test_a_reader_in_the_middle_of_a_segment_that_goes(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=150)
    for _ in range(6):
        log.append([b"x" * 20] * 3)
    log.flush()
    reader = log.read()
    assert next(reader).offset == 0
    log.truncate_before(12)
    log.vacuum()
    assert next(reader).offset == 1  # the file is open, and stays readable
    with pytest.raises(OffsetOutOfRange):
        list(reader)


def test_a_time_lookup_that_deletion_overtakes(open_log: OpenLog) -> None:
    log = one_per_segment(open_log, {"max_records": 2}, [now() - n for n in range(6)])
    with open_log(read_only=True) as reader:
        assert reader.offset_at(0) == 0
        log.vacuum()
        assert reader.offset_at(0) == 4
        assert log.offset_at(0) == 4


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_deletion_in_the_middle_of_a_look(path: Path, flush: str) -> None:
    """Between the listing of the folder and the opening of a file, the file goes."""
    with Log(path, flush=flush, segment_bytes=1, upkeep=False) as log:
        for n in range(6):
            log.append([at(1_000 + n)])
        log.flush()
        fs = FaultyFileSystem(OsFileSystem())
        with Log(path, read_only=True, fs=fs) as reader:

            def delete(call: Call) -> None:
                if call.op == "open" and call.path.endswith(".seg"):
                    fs.plan = None
                    log.truncate_before(log.end_offset)
                    log.vacuum()

            fs.plan = delete
            assert reader.offset_at(1_000) == 6
            assert (reader.start_offset, list(reader.read())) == (6, [])


def test_files_that_an_interrupted_vacuum_left_are_removed(
    open_log: OpenLog, path: Path, tmp_path: Path
) -> None:
    log = one_per_segment(open_log, {}, [now()] * 5)
    log.truncate_before(3)  # what vacuum stores before it deletes
    log.close()
    with open_log() as log:
        assert bases(path) == [3, 4]
        assert offsets(log.read()) == [3, 4]


def test_the_upkeep_thread(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1, retention={"max_records": 2}, retention_check_interval="10ms")
    assert our_threads() == ["tailrace-upkeep"]
    for count in (5, 10):
        fill(log, 5, first=count - 5)
        eventually(lambda count=count: log.start_offset == count - 2)  # type: ignore[misc]
    eventually(lambda: bases(path) == [8, 9])
    assert values(log.read()) == [b"%010d" % 8, b"%010d" % 9]
    log.close()
    assert not our_threads()


def test_no_thread_without_upkeep_or_limits(open_log: OpenLog, path: Path) -> None:
    with open_log(retention={"max_records": 1}, upkeep=False):
        assert not our_threads()
    with open_log(retention={}):
        assert not our_threads()


def test_what_a_vacuum_left_that_was_killed(
    path: Path, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start has moved, and no file is gone. Whoever vacuums next removes them, though the
    segments are none of its own any more."""
    log = one_per_segment(open_log, {}, [T0 + number for number in range(10)])
    with Log(path, upkeep=False) as other:
        log.truncate_before(7)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "delete_before", lambda *_: VacuumReport(0, 0, 7))
            log.vacuum()
        assert bases(path) == [*range(10)]
        assert other.vacuum()[::2] == (7, 7)
        assert bases(path) == [7, 8, 9]
        assert offsets(other.read()) == offsets(log.read()) == [7, 8, 9]
        assert log.vacuum() == VacuumReport(0, 0, 7)


def test_one_file_that_cannot_be_deleted(path: Path, open_log: OpenLog) -> None:
    """The others go all the same, and it goes the next time."""
    fs = FaultyFileSystem(OsFileSystem())
    log = open_log(segment_bytes=1, upkeep=False, fs=fs)
    fill(log, 6)
    log.flush()
    log.truncate_before(4)
    fs.plan = on("unlink", Fail(errno.EPERM), path="*1.seg")
    with pytest.raises(PermissionError):
        log.vacuum()
    assert bases(path) == [1, 4, 5]
    assert offsets(log.read()) == [4, 5]
    assert log.vacuum().segments == 1
    assert bases(path) == [4, 5]
