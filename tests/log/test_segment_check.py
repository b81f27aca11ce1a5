"""A segment by itself: a glance at it, whole or in pieces, says what a close look says, or
nothing."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from tailrace import Log, Record
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.log_survey import LogPlan
from tailrace.log.offline.segment import (
    Piece,
    SegmentCheck,
    cut,
    glance,
    look_closely,
    settle,
    survey_segment,
)
from tailrace.log.options import LogOptions
from tailrace.testing import SimulatedDisk

FOLDER = "log"
T0 = 1_700_000_000_000
SEEDS = range(60)


def build(rng: random.Random, **options: Any) -> SimulatedDisk:
    """A log of segments that have some index entries each; clocks go back now and then."""
    disk = SimulatedDisk(rng.randrange(1 << 30))
    chosen: dict[str, Any] = {
        "segment_bytes": rng.choice([1_500, 6_000, 1 << 20]),
        "index_interval": rng.choice([50, 200, 1_000]),
        "compression": rng.choice(["none", "s2", "zstd"]),
        "time_index_interval": rng.choice(["1s", "1s", "10s"]),
        **options,
    }
    with Log(FOLDER, fs=disk, upkeep=False, flush="async", **chosen) as log:
        for number in range(60):
            moment = T0 + number * 700 + rng.randint(-3_000, 3_000)
            values = [rng.randbytes(rng.randint(0, 40)) for _ in range(rng.randint(1, 5))]
            log.append(
                [Record(timestamp=moment + i, key="k", value=v) for i, v in enumerate(values)]
            )
    return disk


def checks(disk: SimulatedDisk) -> list[SegmentCheck]:
    return LogPlan(disk, FOLDER, LogOptions()).checks


def in_pieces(disk: SimulatedDisk, check: SegmentCheck, size: int) -> list[Piece]:
    return pickle.loads(pickle.dumps(cut(disk, check, size)))  # type: ignore[no-any-return]


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_whole_is_settled_by_a_glance(seed: int) -> None:
    rng = random.Random(seed)
    disk = build(rng)
    for check in checks(disk):
        if not check.size:
            continue
        close = look_closely(disk, check)
        assert survey_segment(disk, check) == close
        size = rng.choice([1, 100, 700])
        pieces = in_pieces(disk, check, size)
        assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
        found = settle(check, [glance(disk, piece) for piece in pieces])
        if check.seal is not None:  # the last one's indexes are not finished
            assert found == close
        else:
            assert found in (None, close)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_damaged_is_not(seed: int) -> None:
    """Whatever was changed, in a segment or in its indexes."""
    rng = random.Random(seed)
    disk = build(rng)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([p for p in disk.files() if p.endswith((".seg", ".idx", ".tix"))])
        data = disk.read(path)
        if not data:
            continue
        match rng.choice(["flip", "flip", "cut", "swap"]):
            case "flip":
                position = rng.randrange(len(data))
                disk.corrupt(path, position, bytes([data[position] ^ (1 << rng.randrange(8))]))
            case "cut":
                file = disk.open(path, write=True)
                file.truncate(rng.randrange(len(data)))
                file.close()
            case "swap" if len(data) > 60:
                disk.corrupt(path, 40, data[-10:])
    for check in checks(disk):
        close = look_closely(disk, check)
        assert survey_segment(disk, check) == close, path
        pieces = in_pieces(disk, check, rng.choice([1, 100, 700]))
        assert settle(check, [glance(disk, piece) for piece in pieces]) in (None, close), path


def test_pieces_are_about_as_large_as_asked(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("log"))
    with Log(folder, compression="none", index_interval=1_000) as log:
        for _ in range(500):
            log.append([bytes(200)])
    fs = OsFileSystem()
    [check] = LogPlan(fs, folder, LogOptions()).checks
    pieces = cut(fs, check, 10_000)
    sizes = [piece.stop - piece.start for piece in pieces]
    assert sum(sizes) == check.size
    assert all(10_000 <= size < 21_000 for size in sizes)
    assert settle(check, [glance(fs, piece) for piece in reversed(pieces)]) == look_closely(
        fs, check
    )
    assert settle(check, [glance(fs, piece) for piece in pieces[1:]]) is None


def test_progress_is_told_of_every_byte(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("log"))
    with Log(folder) as log:
        for _ in range(10):
            log.append([bytes(100)])
    fs = OsFileSystem()
    [check] = LogPlan(fs, folder, LogOptions()).checks
    steps: list[int] = []
    survey_segment(fs, check, steps.append)
    assert sum(steps) == check.size
