"""The file of a `sync` log is made longer ahead of time; nobody notices but the disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tailrace import Log
from tailrace.log import tail
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.repair import recover
from tailrace.log.offline.verify import verify
from tailrace.testing import Fail, FaultyFileSystem, on
from tests.log.helpers import bases, copy_as_killed, offsets, segment, side_file

AHEAD = 1_000


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_AHEAD", AHEAD)


def fill(log: Log, count: int) -> None:
    for number in range(count):
        log.append([b"%0100d" % number]).wait()


def test_longer_while_it_is_open(path: Path) -> None:
    with Log(path, segment_bytes=10_000) as log:
        fill(log, 1)
        used = sum(len(batch.data) for batch in log.read_batches())
        assert segment(path, 0).stat().st_size == used + AHEAD
        fill(log, 30)
        used = sum(len(batch.data) for batch in log.read_batches())
        assert used < segment(path, 0).stat().st_size <= used + AHEAD
        with Log(path, read_only=True) as reader:
            assert offsets(reader.read()) == list(range(31))
    assert segment(path, 0).stat().st_size == used


def test_a_roll_cuts_it_off(path: Path) -> None:
    with Log(path, segment_bytes=3_000) as log:
        fill(log, 60)
        *sealed, _active = bases(path)
        assert len(sealed) > 1
        for base in sealed:
            assert not segment(path, base).read_bytes().endswith(bytes(2))
    assert not verify(OsFileSystem(), str(path)).findings


@pytest.mark.parametrize("flush", ["async", "none"])
def test_not_where_nobody_waits_for_the_disk(path: Path, flush: str) -> None:
    with Log(path, flush=flush, upkeep=False, segment_bytes=10_000) as log:
        fill(log, 1)
        assert segment(path, 0).stat().st_size == len(next(log.read_batches()).data)


def test_not_beyond_the_size_of_a_segment(path: Path) -> None:
    with Log(path, segment_bytes=2_000) as log:
        for number in range(40):
            fill(log, 1)
            sizes = [segment(path, base).stat().st_size for base in bases(path)]
            assert max(sizes) <= 2_000, number


def test_after_a_kill(path: Path, tmp_path: Path) -> None:
    with Log(path, segment_bytes=10_000) as log:
        fill(log, 5)
        copy = copy_as_killed(path, tmp_path / "copy")
    fs = OsFileSystem()
    assert segment(copy, 0).stat().st_size > segment(path, 0).stat().st_size
    assert recover(fs, str(copy)).actions == []
    assert verify(fs, str(copy)).ok
    with Log(copy, segment_bytes=10_000) as log:
        assert offsets(log.read()) == list(range(5))
        assert log.append_one(b"next").wait().offset == 5
    assert not side_file(copy, "quarantine").exists()
    assert bases(copy) == [0]
    assert verify(fs, str(copy)).ok


def test_it_does_without(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    fs.plan = on("truncate", Fail(errno.EFBIG), path="*.seg")
    with Log(path, fs=fs, segment_bytes=10_000) as log:
        fill(log, 20)
        assert fs.hits
        assert segment(path, 0).stat().st_size == sum(len(b.data) for b in log.read_batches())
        assert offsets(log.read()) == list(range(20))
