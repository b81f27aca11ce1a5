"""Offsets that hold nothing: jumps that another program left, and losses that are on record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import ConfigError, Corrupt, Log
from tailrace.kernel import encode
from tailrace.log.fs import OsFile, OsFileSystem
from tailrace.log.sidefiles import Gap, Gaps
from tests.log import fluxmq
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, fill, flip, offsets, segment, values


def batch(offset: int, *stamps: int) -> bytes:
    return bytes(encode([at(stamp) for stamp in stamps], T0).place(offset))


@pytest.fixture
def with_jumps(path: Path) -> Path:
    """Batches at 3, 10, 20 (a segment of its own at 20) and an empty stretch before each."""
    path.mkdir()
    segment(path, 3).write_bytes(batch(3, T0, T0 + 1) + batch(10, T0 + 2, T0 + 3))
    segment(path, 20).write_bytes(batch(20, T0 + 4) + batch(25, T0 + 5))
    return path


PRESENT = [3, 4, 10, 11, 20, 25]


@pytest.mark.no_cover
@pytest.mark.parametrize("read_only", [True, False])
def test_a_read_in_a_gap_goes_on_behind_it(
    open_log: OpenLog, with_jumps: Path, read_only: bool
) -> None:
    log = open_log(read_only=read_only, index_interval=1)
    assert (log.start_offset, log.end_offset) == (3, 26)
    assert offsets(log.read()) == PRESENT
    for start in range(3, 27):
        assert offsets(log.read(start)) == [n for n in PRESENT if n >= start]
        for end in range(start, 27):
            expected = [n for n in PRESENT if start <= n < end]
            assert offsets(log.read(start, end)) == expected
            rows = [n for b in log.read_arrow(start, end) for n in b.column("offset").to_pylist()]
            assert rows == expected
            covering = list(log.read_batches(start, end))
            assert all(b.base_offset < end and b.base_offset + b.count > start for b in covering)


def test_arrow_batches_are_never_empty(open_log: OpenLog, with_jumps: Path) -> None:
    log = open_log(read_only=True, index_interval=1)
    for start in range(3, 27):
        for end in range(start, 27):
            assert all(batch.num_rows for batch in log.read_arrow(start, end))


@pytest.mark.parametrize("read_only", [True, False])
def test_times_across_gaps(open_log: OpenLog, with_jumps: Path, read_only: bool) -> None:
    log = open_log(read_only=read_only)
    assert [log.offset_at(T0 + n) for n in range(7)] == [*PRESENT, 26]


def test_appends_follow_the_last(open_log: OpenLog, with_jumps: Path) -> None:
    with open_log() as log:
        assert log.append([b"next"]).wait().offset == 26
    with open_log() as log:
        assert offsets(log.read()) == [*PRESENT, 26]


def test_a_log_that_does_not_start_at_zero(open_log: OpenLog, path: Path) -> None:
    path.mkdir()
    segment(path, 1_000).touch()
    with open_log() as log:
        assert (log.start_offset, log.end_offset) == (1_000, 1_000)
        assert log.append([b"x"]).wait().offset == 1_000
    with open_log() as log:
        assert offsets(log.read()) == [1_000]


# --- losses -------------------------------------------------------------------------------------


def damaged(open_log: OpenLog, path: Path) -> Log:
    """Ten records, of which the one at offset 4 has a flipped byte."""
    with open_log(index_interval=1) as log:
        fill(log, 10)
        sizes = [len(batch.data) for batch in log.read_batches()]
    flip(segment(path, 0), sum(sizes[:4]) + 50)
    return open_log(index_interval=1)


def test_damage_is_never_passed_in_silence(open_log: OpenLog, path: Path) -> None:
    log = damaged(open_log, path)
    reader = log.read()
    assert [next(reader).offset for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(
        Corrupt, match=r"offsets 4 to 4 cannot be read. Go on reading at 5"
    ) as caught:
        next(reader)
    error = caught.value
    assert (error.first_offset, error.next_offset) == (4, 5)
    assert error.path == str(segment(path, 0))
    assert error.position is not None
    assert error.position > 0
    assert error.next_offset is not None
    assert offsets(log.read(error.next_offset)) == [5, 6, 7, 8, 9]
    assert offsets(log.read(0, 4)) == [0, 1, 2, 3]  # the damage was not asked for
    for read in (log.read_batches, log.read_arrow):
        with pytest.raises(Corrupt):
            list(read(4))
        assert list(read(5))
    assert log.offset_at(0) == 0


def test_damage_at_the_end_of_what_is_there(open_log: OpenLog, path: Path) -> None:
    with open_log() as log:
        fill(log, 3)
    flip(segment(path, 0), segment(path, 0).stat().st_size - 1)
    log = open_log()
    assert offsets(log.read(0, 2)) == [0, 1]
    with pytest.raises(Corrupt, match="offsets 2 to 2") as caught:
        list(log.read(1))
    assert caught.value.next_offset == 3
    assert log.append([b"next"]).wait().offset == 3
    assert values(log.read(3)) == [b"next"]


def test_an_acknowledged_loss_is_a_gap(open_log: OpenLog, path: Path) -> None:
    damaged(open_log, path).close()
    gaps = Gaps(OsFileSystem(), str(path))
    gaps.load()
    gaps.add(Gap(4, 5, "lost", True, "accepted", 1))
    for read_only in (False, True):
        with open_log(read_only=read_only) as log:
            assert offsets(log.read()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
            assert offsets(log.read(4)) == [5, 6, 7, 8, 9]


def test_a_recorded_loss_is_refused_until_it_is_acknowledged(open_log: OpenLog, path: Path) -> None:
    with open_log() as log:
        fill(log, 3)
    gaps = Gaps(OsFileSystem(), str(path))
    segment(path, 10).write_bytes(batch(10, T0))
    gaps.add(Gap(3, 10, "lost", False, "a segment is missing", 1))
    with open_log() as log:
        assert offsets(log.read(0, 3)) == [0, 1, 2]
        assert offsets(log.read(10)) == [10]
        reader = log.read(1)
        assert [next(reader).offset, next(reader).offset] == [1, 2]
        with pytest.raises(Corrupt, match=r"offsets 3 to 9 are lost \(a segment") as caught:
            next(reader)
        assert (caught.value.first_offset, caught.value.next_offset) == (3, 10)
    gaps.add(Gap(3, 10, "lost", True, "a segment is missing", 1))
    with open_log() as log:
        assert offsets(log.read(1)) == [1, 2, 10]


def test_producers_are_found_behind_damage(open_log: OpenLog, path: Path) -> None:
    with open_log(index_interval=1) as log:
        for n in range(10):
            log.append([b"x"], producer="p", sequence=n)
        log.flush()
        sizes = [len(b.data) for b in log.read_batches()]
    flip(segment(path, 0), sum(sizes[:4]) + 50)
    (path / ".tailrace" / "producers").unlink()
    log = open_log()
    assert log.append([b"x"], producer="p", sequence=9).offset == 9
    assert log.append([b"x"], producer="p", sequence=10).offset == 10


def test_batches_of_a_newer_format_are_refused(open_log: OpenLog, path: Path) -> None:
    """In a folder that we did not write: cutting them off would be the wrong answer."""
    path.mkdir()
    data = bytearray(batch(0, T0))
    data[25] = 2
    data[4:8] = fluxmq.crc32c(data[8:]).to_bytes(4, "little")  # whole, but for its version
    segment(path, 0).write_bytes(data)
    with pytest.raises(ConfigError, match=r"has batches of format 2; .* upgrade tailrace"):
        open_log()
    assert segment(path, 0).read_bytes() == data


def test_gaps_are_there_while_they_are_loaded_again(path: Path) -> None:
    """A reader in another thread must not find a hole that nobody has recorded."""
    (path / ".tailrace").mkdir(parents=True)
    seen: list[list[Gap]] = []

    class Looking(OsFileSystem):
        def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
            seen.append(gaps.all())
            return super().open(path, write=write, create=create)

    gaps = Gaps(Looking(), str(path))
    gap = Gap(1, 5, "skipped", False, "a test", 0)
    gaps.add(gap)
    seen.clear()
    gaps.load()
    assert seen == [[gap]]
    assert gaps.all() == [gap]
