"""Reading by offset: where it starts and ends, what it sees, and what is out of range."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tailrace import Batch, Log, OffsetOutOfRange, Record
from tailrace.log.tail import Tail
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, bases, fill, in_threads, offsets, values


@pytest.fixture
def segmented(open_log: OpenLog, path: Path) -> Log:
    """Offsets 0 to 59 in batches of three, several to a segment."""
    log = open_log(segment_bytes=400, index_interval=100)
    for first in range(0, 60, 3):
        log.append([at(T0 + n, b"%d" % n) for n in range(first, first + 3)])
    log.flush()
    assert len(bases(path)) > 3
    return log


def test_everything(segmented: Log) -> None:
    assert offsets(segmented.read()) == list(range(60))
    assert values(segmented.read()) == [b"%d" % n for n in range(60)]


@pytest.mark.parametrize("start", range(61))
def test_from_every_offset(segmented: Log, start: int) -> None:
    assert offsets(segmented.read(start)) == list(range(start, 60))


def test_every_range(segmented: Log) -> None:
    for start in range(0, 61, 4):
        for end in range(62):
            assert offsets(segmented.read(start, end)) == list(range(start, min(end, 60)))


def test_named_starts(segmented: Log) -> None:
    assert offsets(segmented.read("first"))[:2] == [0, 1]
    assert offsets(segmented.read("last")) == [59]
    assert offsets(segmented.read("next")) == []
    segmented.truncate_before(60)
    assert offsets(segmented.read("first")) == []
    assert offsets(segmented.read("last")) == []


def test_from_a_time(segmented: Log) -> None:
    assert offsets(segmented.read(timestamp=T0 + 17)) == list(range(17, 60))
    assert offsets(segmented.read(timestamp=T0 + 17, end=20)) == [17, 18, 19]
    assert offsets(segmented.read(timestamp=0)) == list(range(60))
    assert offsets(segmented.read(timestamp=T0 + 1_000)) == []


@pytest.mark.parametrize("start", [-1, 61, 2**63])
def test_out_of_range(segmented: Log, start: int) -> None:
    for read in (segmented.read, segmented.read_batches, segmented.read_arrow):
        with pytest.raises(OffsetOutOfRange, match=f"offset {start} is not in") as caught:
            read(start)
        error = caught.value
        assert (error.offset, error.low, error.high) == (start, 0, 60)


def test_below_the_start(segmented: Log) -> None:
    segmented.truncate_before(20)
    with pytest.raises(OffsetOutOfRange) as caught:
        segmented.read(19)
    assert (caught.value.offset, caught.value.low, caught.value.high) == (19, 20, 60)
    assert offsets(segmented.read(20)) == list(range(20, 60))


def test_an_end_at_or_below_the_start_is_nothing(segmented: Log) -> None:
    assert offsets(segmented.read(30, 30)) == []
    assert offsets(segmented.read(30, 5)) == []
    assert list(segmented.read_batches(30, 5)) == []


@pytest.mark.parametrize("start", [True, 1.0, "5", "begin", None, b"first"])
def test_a_start_that_makes_no_sense(segmented: Log, start: Any) -> None:
    with pytest.raises(ValueError, match="start is an offset, 'first', 'last' or 'next'"):
        segmented.read(start)


@pytest.mark.parametrize("end", [True, 1.5, "5"])
def test_an_end_that_makes_no_sense(segmented: Log, end: Any) -> None:
    with pytest.raises(TypeError, match="end is an offset"):
        segmented.read(0, end)


def test_a_start_and_a_timestamp_exclude_each_other(segmented: Log) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        segmented.read(5, timestamp=T0)


def test_an_empty_log(log: Log) -> None:
    assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 0, 0)
    for start in ("first", "last", "next", 0):
        assert list(log.read(start)) == []
        assert list(log.read_batches(start)) == []
        assert list(log.read_arrow(start)) == []
    assert log.offset_at(0) == 0
    with pytest.raises(OffsetOutOfRange, match="the log is empty") as caught:
        log.read(1)
    assert "to -1" not in str(caught.value)
    assert (caught.value.low, caught.value.high) == (0, 0)


def test_what_is_not_durable_is_named_so(log: Log) -> None:
    log.append([b"x"])
    with pytest.raises(OffsetOutOfRange, match="durable"):
        log.read(1)


# --- batches ----------------------------------------------------------------------------------


def test_batches_are_whole(segmented: Log) -> None:
    first, second = segmented.read_batches(4, 7)
    assert isinstance(first, Batch)
    assert (first.base_offset, first.count, first.max_timestamp) == (3, 3, T0 + 5)
    assert (second.base_offset, second.count) == (6, 3)
    assert offsets(first.records()) == [3, 4, 5]
    assert values(second.records()) == [b"6", b"7", b"8"]


def test_batches_are_the_bytes_of_the_segments(segmented: Log, path: Path) -> None:
    stored = b"".join(batch.data for batch in segmented.read_batches())
    assert stored == b"".join(file.read_bytes() for file in sorted(path.glob("*.seg")))


def test_compressed_batches_are_left_compressed(open_log: OpenLog) -> None:
    log = open_log(compression="zstd")
    log.append([b"x" * 1_000, b"y"]).wait()
    (batch,) = log.read_batches()
    assert len(batch.data) < 500
    assert values(batch.records()) == [b"x" * 1_000, b"y"]


# --- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 16_340, 16_384, 70_000, 1_100_000, 3_000_000])
def test_records_of_any_size_come_back(open_log: OpenLog, size: int) -> None:
    log = open_log(flush="async")
    given = [bytes([n]) * size for n in range(3)]
    for value in given:
        log.append([b"small", value])
    assert values(log.read())[1::2] == given
    for n in range(6):
        (record,) = log.read(n, n + 1)
        assert record.offset == n
    assert values(log.read("last")) == [given[2]]


# --- a view is a moment -----------------------------------------------------------------------


def test_a_reader_sees_what_was_there_when_it_started(segmented: Log) -> None:
    reader = segmented.read(58)
    assert next(reader).offset == 58
    fill(segmented, 30)
    assert offsets(reader) == [59]
    assert offsets(segmented.read(58)) == list(range(58, 90))


def test_a_reader_that_has_not_begun_sees_the_moment_it_was_made(log: Log) -> None:
    fill(log, 2)
    reader = log.read()
    fill(log, 2)
    assert offsets(reader) == [0, 1]


def test_many_readers_at_different_places(segmented: Log) -> None:
    readers = {start: segmented.read(start) for start in range(0, 60, 7)}
    seen: dict[int, list[Record]] = {start: [] for start in readers}
    for _ in range(60):
        for start, reader in readers.items():
            record = next(reader, None)
            if record is not None:
                seen[start].append(record)
    for start, records in seen.items():
        assert offsets(records) == list(range(start, 60))


def test_threads_read_while_one_appends_and_rolls(open_log: OpenLog, path: Path) -> None:
    log = open_log(flush="async", segment_bytes=2_000, index_interval=100, open_files=2)
    total, stop = 2_000, threading.Event()

    def work(number: int) -> None:
        if number == 0:
            try:
                for first in range(0, total, 5):
                    log.append([b"%d" % n for n in range(first, first + 5)])
            finally:
                stop.set()
            return
        while not stop.is_set():
            end = log.end_offset
            start = max(end - 40 * number, 0)
            records = list(log.read(start))
            assert offsets(records) == list(range(start, start + len(records)))
            assert values(records) == [b"%d" % n for n in range(start, start + len(records))]
            assert start + len(records) >= end

    in_threads(4, work)
    assert values(log.read()) == [b"%d" % n for n in range(total)]
    assert len(bases(path)) > 5


def test_threads_share_one_handle_for_reading(segmented: Log) -> None:
    def work(number: int) -> None:
        for start in range(number, 60, 3):
            assert offsets(segmented.read(start)) == list(range(start, 60))

    in_threads(4, work)


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_view_is_of_one_moment(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """An append between the two looks that a view takes is in it, or is not."""
    log = open_log(flush=flush, upkeep=False)
    fill(log, 3)
    look = Tail.extents

    def append_after(tail: Tail) -> Any:
        found = look(tail)
        log.append([b"meanwhile"])
        return found

    monkeypatch.setattr(Tail, "extents", append_after)
    for _ in range(3):
        found = offsets(log.read())
        assert len(found) >= 3
        assert found == list(range(len(found)))


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_view_while_two_rolls_happen(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    log = open_log(flush=flush, upkeep=False, segment_bytes=1)
    fill(log, 3)
    armed = False

    def get(tail: Tail) -> Any:
        nonlocal armed
        if armed:
            armed = False
            for _ in range(2):
                log.append([b"meanwhile"]).wait()
        return vars(tail)["sealed"]

    def put(tail: Tail, sealed: Any) -> None:
        vars(tail)["sealed"] = sealed

    monkeypatch.setattr(Tail, "sealed", property(get, put), raising=False)
    for _ in range(3):
        armed = True
        found = offsets(log.read())
        assert len(found) >= 3
        assert found == list(range(len(found)))
