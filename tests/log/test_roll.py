"""When a segment is full: each rule by itself, and what a roll leaves behind."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tailrace import Log, NotWritten, Record
from tailrace.kernel import encode
from tailrace.log import rolling, tail
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Event, RecordingFileSystem
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    DAY,
    HOUR,
    T0,
    at,
    bases,
    facts_of,
    fill,
    forget_clean_close,
    offsets,
    pending,
    segment,
    values,
)


def batch_size(log: Log, path: Path, records: list[Record]) -> int:
    """What a batch takes in the file. Closes the log."""
    log.append(records).wait()
    log.close()
    return segment(path, 0).stat().st_size


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spare", "expected"), [(0, [0, 3, 6]), (1, [0, 3, 6]), (-1, [0, 2, 4, 6])]
)
def test_size_counts_the_incoming_batch(tmp_path: Path, spare: int, expected: list[int]) -> None:
    with Log(tmp_path / "measure") as log:
        size = batch_size(log, tmp_path / "measure", [at(T0)])
    with Log(tmp_path / "log", segment_bytes=3 * size + spare) as log:
        for _ in range(7):
            log.append([at(T0)])
        log.flush()
        assert offsets(log.read()) == list(range(7))
    assert bases(tmp_path / "log") == expected
    assert all(f.stat().st_size <= 3 * size + spare for f in (tmp_path / "log").glob("*.seg"))


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=200)
    log.append([bytes(1_000)])  # an empty segment takes anything
    assert bases(path) == [0]
    log.append([b"small"])
    log.append([bytes(1_000)])
    log.append([bytes(1_000)])
    log.flush()
    assert bases(path) == [0, 1, 2, 3]
    assert [len(value or b"") for value in values(log.read())] == [1_000, 5, 1_000, 1_000]


def test_segments_of_one_byte(open_log: OpenLog, path: Path) -> None:
    with open_log(segment_bytes=1) as log:
        fill(log, 5)
    with open_log(segment_bytes=1) as log:
        fill(log, 5)
        assert offsets(log.read()) == list(range(10))
    assert bases(path) == list(range(10))


def test_the_size_rule_after_reopening(open_log: OpenLog, path: Path) -> None:
    for _ in range(4):
        with open_log(segment_bytes=130) as log:
            fill(log, 1)
    assert bases(path) == [0, 2]


# --- age ----------------------------------------------------------------------------------------


def test_age_is_between_record_timestamps(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_age="1h")
    log.append([at(T0)])  # years ago: the wall clock has no say
    log.append([at(T0 + HOUR)])
    assert bases(path) == [0]
    log.append([at(T0 + HOUR + 1)])
    assert bases(path) == [0, 2]
    log.append([at(T0 + 2 * HOUR + 1)])
    assert bases(path) == [0, 2]


def test_age_counts_from_the_newest_record_of_the_first_batch(
    open_log: OpenLog, path: Path
) -> None:
    log = open_log(segment_age="1h")
    log.append([at(T0), at(T0 + 50), at(T0 - DAY)])
    log.append([at(T0 + HOUR + 50)])
    assert bases(path) == [0]
    log.append([at(T0), at(T0 + HOUR + 51)])  # the newest of the batch counts
    assert bases(path) == [0, 4]


def test_clocks_that_go_back_do_not_roll(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_age="1h")
    log.append([at(T0)])
    log.append([at(T0 - 10 * DAY)])
    log.append([at(0)])
    log.append([at(-5)])
    assert bases(path) == [0]


def test_the_first_record_of_a_segment_never_rolls(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_age=0)
    log.append([at(2**62)])
    assert bases(path) == [0]
    log.append([at(2**62)])
    assert bases(path) == [0]
    log.append([at(2**62 + 1)])
    assert bases(path) == [0, 2]


@pytest.mark.parametrize("clean", [True, False])
def test_age_survives_reopening(open_log: OpenLog, path: Path, clean: bool) -> None:
    with open_log(segment_age="1h") as log:
        log.append([at(T0)])
        log.append([at(T0 + HOUR)])
    if not clean:
        forget_clean_close(path)
    with open_log(segment_age="1h") as log:
        log.append([at(T0 + HOUR)])
        assert bases(path) == [0]
        log.append([at(T0 + HOUR + 1)])
        assert bases(path) == [0, 3]


# --- indexes ------------------------------------------------------------------------------------


def test_the_offset_index_is_full(open_log: OpenLog, path: Path) -> None:
    log = open_log(index_interval=1, index_max_bytes=32 + 10 * 8)
    for _ in range(25):
        log.append([at(T0)])
    log.close()
    assert bases(path) == [0, 10, 20]
    assert segment(path, 0, "idx").stat().st_size == 32 + 10 * 8


def test_the_time_index_keeps_one_slot_free(open_log: OpenLog, path: Path) -> None:
    log = open_log(time_index_interval="1ms", index_max_bytes=36 + 7 * 12)
    for n in range(13):
        log.append([at(T0 + n)])
    log.close()
    assert bases(path) == [0, 6, 12]
    assert segment(path, 0, "tix").stat().st_size == 36 + 6 * 12


def test_a_full_index_after_reopening(open_log: OpenLog, path: Path) -> None:
    options = {"index_interval": 1, "index_max_bytes": 32 + 10 * 8}
    for _ in range(25):
        with open_log(**options) as log:
            log.append([at(T0)])
    assert bases(path) == [0, 10, 20]


# --- relative offset ----------------------------------------------------------------------------


def test_a_relative_offset_that_does_not_fit(
    open_log: OpenLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tail, rolling):
        monkeypatch.setattr(module, "RELATIVE_OFFSET_MAX", 9)
    log = open_log()
    log.append([b"x"] * 8)
    log.append([b"x"] * 2)  # offsets 8 and 9
    assert bases(path) == [0]
    log.append([b"x"] * 8)
    assert bases(path) == [0, 10]
    log.append([b"x"] * 3)  # the last of them would be 10 above the base
    assert bases(path) == [0, 10, 18]
    log.append([b"x"] * 30)  # more than fits anywhere: an empty segment takes it
    log.flush()
    assert offsets(log.read()) == list(range(51))


def test_offsets_far_above_their_base(open_log: OpenLog, path: Path) -> None:
    """As another program may leave them: a jump inside a segment, right up to the limit."""
    path.mkdir()
    far = 2**31 - 2
    batches = [bytes(encode([b"v"], T0).place(offset)) for offset in (0, far)]
    segment(path, 0).write_bytes(b"".join(batches))
    log = open_log(index_interval=1)
    assert log.end_offset == far + 1
    log.append([at(T0, b"last one that fits")])
    assert bases(path) == [0]
    log.append([at(T0, b"too far")])
    log.flush()
    assert bases(path) == [0, 2**31]
    assert offsets(log.read()) == [0, far, 2**31 - 1, 2**31]
    assert offsets(log.read(1)) == [far, 2**31 - 1, 2**31]


# --- what a roll does ---------------------------------------------------------------------------


def test_the_old_segment_is_synced_before_the_new_one_takes_a_record(path: Path) -> None:
    fs = RecordingFileSystem(OsFileSystem())
    with Log(path, fs=fs, segment_bytes=200) as log:
        for number in range(10):
            log.append([b"%0100d" % number])
    new = bases(path)[1:]
    assert new
    for old_base, base in zip(bases(path), new, strict=False):
        first_write = find(fs.trace, "pwrite", segment(path, base))
        last_write = [e for e in fs.trace if is_at(e, "pwrite", segment(path, old_base))][-1]
        sync = find(fs.trace, "sync", segment(path, old_base), after=last_write)
        names = find(
            fs.trace, "sync_dir", path, after=find(fs.trace, "create", segment(path, base))
        )
        assert sync.ended is not None
        assert sync.ended < first_write.began
        assert names.ended is not None
        assert names.ended < first_write.began


def is_at(event: Event, op: str, path: Path) -> bool:
    return event.op == op and event.path == str(path)


def find(trace: list[Event], op: str, path: Path, after: Event | None = None) -> Event:
    began = after.ended if after is not None and after.ended is not None else -1
    return next(e for e in trace if is_at(e, op, path) and e.began > began)


def test_an_append_that_rolls_makes_what_was_before_durable(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=150)
    first = log.append([bytes(80)])
    assert pending(first)
    second = log.append([bytes(80)])
    assert first.done
    assert pending(second)
    assert offsets(log.read()) == [0]


def test_both_indexes_of_a_sealed_segment_are_finished(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=400, index_interval=100, time_index_interval="1ms")
    for n in range(20):
        log.append([at(T0 + n)])
    sealed = bases(path)[:-1]
    assert len(sealed) > 1
    for base in sealed:
        facts = facts_of(path, base)
        idx, tix = (segment(path, base, kind).read_bytes() for kind in ("idx", "tix"))
        assert struct.unpack_from("<I", idx, 13) == ((len(idx) - 32) // 8,)
        count, low, high = struct.unpack_from("<Iqq", tix, 13)
        assert count == (len(tix) - 36) // 12
        assert (low, high) == (T0 + base, facts.max_timestamp)


def test_a_segment_that_is_in_the_way(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=150)
    log.append([bytes(80)]).wait()
    segment(path, 1).write_bytes(b"somebody else's")
    with pytest.raises(NotWritten, match=r"00000000000000000001.seg exists and is not empty"):
        log.append([bytes(80)])
    assert log.end_offset == 1
    assert segment(path, 1).read_bytes() == b"somebody else's"
    segment(path, 1).unlink()
    assert log.append([bytes(80)]).wait().offset == 1
    assert offsets(log.read()) == [0, 1]


def test_an_empty_segment_in_the_middle(open_log: OpenLog, path: Path) -> None:
    """A roll that failed may leave one; whoever reads passes over it."""
    log = open_log(segment_bytes=400)
    for number in range(9):
        log.append([b"%080d" % number]).wait()
    for empty in (1, 5, 8):
        assert empty not in bases(path)
        segment(path, empty).touch()
    with Log(path, read_only=True) as reader:
        for start in range(9):
            assert offsets(reader.read(start)) == list(range(start, 9))
    log.close()
    with open_log() as log:
        assert offsets(log.read()) == list(range(9))


def test_an_empty_segment_that_is_in_the_way(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=150)
    log.append([bytes(80)]).wait()
    segment(path, 1).touch()
    log.append([bytes(80)]).wait()
    assert offsets(log.read()) == [0, 1]


def test_files_that_only_end_like_segments_are_none_of_our_business(tmp_path: Path) -> None:
    with Log(tmp_path / "log", flush="none") as log:
        log.append([b"1"])
    (tmp_path / "log" / "notes.seg").write_bytes(b"to do")
    with Log(tmp_path / "log", flush="none") as log:
        log.append([b"2"])
        assert [record.value for record in log.read()] == [b"1", b"2"]
