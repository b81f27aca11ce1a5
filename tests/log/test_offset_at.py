"""Lookup by time: the first record that is not older, whatever the clocks did."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace import Corrupt, Log, Record
from tailrace.kernel import encode
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, FaultyFileSystem
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, bases, flip, forget_clean_close, offsets, segment

OPTIONS = {"segment_bytes": 500, "index_interval": 120, "time_index_interval": "3ms"}


def expected(stamps: list[int], timestamp: int, start: int = 0) -> int:
    found = (n for n, stamp in enumerate(stamps) if stamp >= timestamp and n >= start)
    return next(found, len(stamps))


def write(log: Log, stamps: list[int], batch: int = 3) -> None:
    for first in range(0, len(stamps), batch):
        log.append([at(stamp) for stamp in stamps[first : first + batch]])
    log.flush()


def shuffled(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [T0 + rng.randrange(40) for _ in range(45)]


STAMPS = {
    "rising": [T0 + 2 * n for n in range(45)],
    "equal": [T0] * 45,
    "steps": [T0 + n // 10 * 10 for n in range(45)],
    "falling": [T0 - n for n in range(45)],
    "back and forth": [T0 + (n % 7) * 5 - n for n in range(45)],
    "one in the future": [T0 + n if n != 10 else T0 + 10**9 for n in range(45)],
    "one in the past": [T0 + n if n != 10 else 5 for n in range(45)],
    "around zero": [n - 20 for n in range(45)],
    "shuffled 1": shuffled(1),
    "shuffled 2": shuffled(2),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("stamps", STAMPS.values(), ids=STAMPS)
@pytest.mark.parametrize("reopened", ["live", "clean", "killed", "read-only"])
def test_every_time(open_log: OpenLog, path: Path, stamps: list[int], reopened: str) -> None:
    log = open_log(**OPTIONS)
    write(log, stamps)
    assert len(bases(path)) > 2
    if reopened != "live":
        log.close()
        if reopened == "killed":
            forget_clean_close(path)
        log = open_log(**OPTIONS, read_only=reopened == "read-only")
    for timestamp in {stamp + d for stamp in stamps for d in (-1, 0, 1)} | {-(2**63), 2**63 - 1}:
        assert log.offset_at(timestamp) == expected(stamps, timestamp)


@pytest.mark.parametrize("start", [0, 1, 7, 20, 44, 45])
def test_never_below_the_start(open_log: OpenLog, start: int) -> None:
    log = open_log(**OPTIONS)
    stamps = STAMPS["back and forth"]
    write(log, stamps)
    log.truncate_before(start)
    for vacuumed in (False, True):
        if vacuumed:
            log.vacuum()
        for timestamp in {*stamps, 0, 2**60}:
            assert log.offset_at(timestamp) == expected(stamps, timestamp, start)


def test_only_what_is_visible(log: Log) -> None:
    log.append([at(T0)]).wait()
    log.append([at(T0 + 5_000)])
    log.append([at(T0 + 10_000)])
    assert log.offset_at(T0 + 5_000) == 1  # the end of what is visible
    log.flush()
    assert log.offset_at(T0 + 5_000) == 1
    assert log.offset_at(T0 + 5_001) == 2
    assert log.offset_at(T0 + 10_001) == 3


def test_before_and_after_everything(log: Log) -> None:
    assert log.offset_at(T0) == 0
    log.append([at(T0), at(T0 + 5)]).wait()
    assert (log.offset_at(T0 - 1), log.offset_at(T0 + 6)) == (0, 2)


def test_inside_a_compressed_batch(open_log: OpenLog) -> None:
    log = open_log(compression="zstd")
    log.append([at(T0 + n, bytes(100)) for n in range(50)]).wait()
    assert [log.offset_at(T0 + n) for n in range(50)] == list(range(50))


@pytest.mark.parametrize("timestamp", [1.5, "1", None, True])
def test_a_time_is_a_whole_number(log: Log, timestamp: Any) -> None:
    with pytest.raises(TypeError, match="timestamp"):
        log.offset_at(timestamp)
    if timestamp is not None:
        with pytest.raises(TypeError, match="timestamp"):
            log.read(timestamp=timestamp)


def test_reading_from_a_time_while_somebody_appends(path: Path) -> None:
    """Every look at the folder finds more than the one before."""
    with Log(path) as writer:
        writer.append([at(T0)]).wait()

        def grow(call: Call) -> None:
            if call.op == "list":
                writer.append([at(T0)]).wait()

        fs = FaultyFileSystem(OsFileSystem())
        with Log(path, read_only=True, fs=fs) as log:
            fs.plan = grow
            assert offsets(log.read(timestamp=T0 + 1)) == []
            assert len(offsets(log.read(timestamp=T0))) >= 2


def test_large_batches(open_log: OpenLog) -> None:
    """They are passed over by their headers, unless the record may be inside."""
    log = open_log(flush="async", upkeep=False)
    stamps = [T0 + 10 * n for n in range(30)]
    for stamp in stamps:
        log.append([at(stamp, bytes(300_000)), at(stamp - 25, b"older")])
    for n, stamp in enumerate(stamps):
        assert log.offset_at(stamp) == 2 * n
        assert log.offset_at(stamp - 9) == 2 * n
    assert log.offset_at(stamps[-1] + 1) == 60
    log.truncate_before(21)  # between the large one and the older one behind it
    assert log.offset_at(stamps[10]) == 22
    assert log.offset_at(stamps[10] - 25) == 21


def test_around_damage(open_log: OpenLog, path: Path) -> None:
    """The first that can be read, since a lookup by time promises no particular record."""
    with open_log() as log:
        write(log, [T0 + n for n in range(9)])
        sizes = [len(batch.data) for batch in log.read_batches()]
    flip(segment(path, 0), sizes[0] + 50)
    log = open_log()
    assert [log.offset_at(T0 + n) for n in (2, 3, 5, 6, 9)] == [2, 6, 6, 6, 9]
    flip(segment(path, 0), sum(sizes) - 1)
    assert log.offset_at(T0 + 6) == 9


def test_a_length_that_lies_hides_nothing(path: Path) -> None:
    """Large batches are skipped by their headers, and a damaged header may claim any length."""
    with Log(path) as log:
        for number in range(4):
            log.append([Record(timestamp=100 * (number + 1), value=bytes(20_000))] * 2)
    segment = path / f"{0:020d}.seg"
    data = bytearray(segment.read_bytes())
    data[16:20] = (int.from_bytes(data[16:20], "little") + 5_000).to_bytes(4, "little")
    segment.write_bytes(data)
    with Log(path, read_only=True) as log:
        assert [log.offset_at(time) for time in (150, 250, 350, 450)] == [2, 4, 6, 8]


@pytest.mark.parametrize("size", [10, 20_000, 600_000])
def test_reading_after_a_look(open_log: OpenLog, size: int) -> None:
    """What a look has found is not read again; whatever is read then is as it would be anyway."""
    log = open_log(index_interval=1)
    stamps = [T0 + n for n in range(12)]
    for n in range(0, 12, 3):
        log.append([at(stamp, b"%d" % stamp + bytes(size)) for stamp in stamps[n : n + 3]])
    log.flush()
    for n, stamp in enumerate(stamps):
        for start in (n, 0, n // 3 * 3, max(n - 4, 0), min(n + 3, 11)):
            assert log.offset_at(stamp) == n
            assert offsets(log.read(start)) == list(range(start, 12))
            assert offsets(log.read(start, start + 1)) == [start]
    log.truncate_before(7)
    assert log.offset_at(T0) == 7
    assert offsets(log.read()) == [7, 8, 9, 10, 11]
    log.append([at(T0 + 50)]).wait()
    assert offsets(log.read()) == [7, 8, 9, 10, 11, 12]


def test_damage_behind_what_was_found(open_log: OpenLog, path: Path) -> None:
    with open_log(index_interval=1) as log:
        write(log, [T0 + n for n in range(9)])
        sizes = [len(batch.data) for batch in log.read_batches()]
    flip(segment(path, 0), sum(sizes[:2]) + 50)
    log = open_log()
    assert log.offset_at(T0 + 4) == 4
    records = log.read(4)
    assert offsets(next(records) for _ in range(2)) == [4, 5]
    with pytest.raises(Corrupt) as caught:
        next(records)
    assert (caught.value.first_offset, caught.value.next_offset) == (6, 9)


def test_times_of_many_segments(open_log: OpenLog, path: Path) -> None:
    """Segments come and go while lookups go on."""
    log = open_log(segment_bytes=1, flush="async", upkeep=False)
    rng = random.Random(7)
    stamps: list[int] = []
    for _ in range(60):
        stamps.append(T0 + rng.randrange(500))
        log.append([at(stamps[-1])])
        if rng.random() < 0.1:
            log.truncate_before(rng.randrange(log.start_offset, log.end_offset))
            log.vacuum()
        for timestamp in rng.sample(range(T0 - 1, T0 + 502), 5):
            assert log.offset_at(timestamp) == expected(stamps, timestamp, log.start_offset)
    assert len(bases(path)) > 5


def test_a_batch_that_was_taken_back(path: Path) -> None:
    """An observer may see what an interrupted append has written, and another takes its place."""
    with Log(path, flush="async", upkeep=False) as log:
        log.append([at(T0)])
        end = segment(path, 0).stat().st_size
        phantom, other = (bytes(encode([text * 20_000], T0 + 5).place(1)) for text in (b"p", b"o"))
        with segment(path, 0).open("r+b") as file:
            file.seek(end)
            file.write(phantom)
        with Log(path, read_only=True) as observer:
            assert observer.offset_at(T0 + 5) == 1
            assert next(observer.read(1)).value == b"p" * 20_000
            with segment(path, 0).open("r+b") as file:
                file.seek(end)
                file.write(other)
            assert next(observer.read(1)).value == b"o" * 20_000


def test_a_lookup_reads_no_more_segments_than_it_needs(path: Path) -> None:
    with Log(path, segment_bytes=1, flush="none") as log:  # which has no seals
        for n in range(30):
            log.append([at(T0 + n)])
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, read_only=True, fs=fs) as log:
        assert log.offset_at(T0 + 2) == 2
        opened = {call.path for call in fs.calls if call.op == "open" and call.path.endswith("seg")}
        assert len(opened) <= 4  # with the last one, to see where the log ends


def test_a_segment_that_somebody_removed(path: Path) -> None:
    """Only what retention has deleted is looked past."""
    with Log(path, segment_bytes=200, upkeep=False) as log:
        for n in range(20):
            log.append([at(T0 + n, b"x" * 50)]).wait()
    with Log(path, read_only=True) as log:
        view = log._observer.view()
        reader = mock.Mock(offset_at=mock.Mock(side_effect=FileNotFoundError("gone")))
        with (
            mock.patch.object(log._observer, "reader", reader),
            mock.patch.object(log._observer, "view", return_value=view),
            pytest.raises(FileNotFoundError, match="gone"),
        ):
            log.offset_at(T0 + 5)
        assert log.offset_at(T0 + 5) == 5
