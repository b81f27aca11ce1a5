"""Pieces of a log: each offset of a range is in one of them, whatever the log is made of."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace import Log, OffsetOutOfRange
from tailrace.log.cuts import Cut, cuts


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A log of 100 offsets from 20 on, in batches of 1 to 4 and several segments."""
    rng = random.Random(3)
    folder = str(tmp_path / "log")
    with Log(folder, flush="none", segment_bytes=2_000, index_interval=200, upkeep=False) as log:
        while log.end_offset < 120:
            log.append([bytes(50)] * min(rng.randint(1, 4), 120 - log.end_offset)).wait()
        log.truncate_before(20)
    return folder


def joined(found: list[Cut]) -> tuple[int, int]:
    """From where to where they reach, one behind the other."""
    assert all(piece.last == after.first for piece, after in pairwise(found))
    return found[0].first, found[-1].last


@pytest.mark.parametrize("size", [1, 300, 1_000, 2_000, 1 << 20])
def test_pieces_are_the_range(folder: str, size: int) -> None:
    with Log(folder, read_only=True, index_interval=200) as log:
        batches = {batch.base_offset for batch in log.read_batches()}
        for first, last in [(20, 120), (20, 21), (57, 93), (119, 120), (21, 119), (20, 10**9)]:
            found = list(cuts(log, first, last, size))
            assert joined(found) == (first, min(last, 120))
            assert all(piece.first < piece.last for piece in found)
            assert all(piece.first in batches for piece in found[1:])
            assert all(0 < piece.size <= size + 600 for piece in found)  # a batch is the least


def test_pieces_of_nothing(folder: str, tmp_path: Path) -> None:
    with Log(folder, read_only=True) as log:
        assert list(cuts(log, 50, 50, 100)) == []
        assert list(cuts(log, 120, 120, 100)) == []
        for outside in (19, 121):
            with pytest.raises(OffsetOutOfRange):
                list(cuts(log, outside, 150, 100))
    with Log(str(tmp_path / "empty"), flush="none") as log:
        assert list(cuts(log, 0, 10, 100)) == []


def test_what_is_missing_is_in_a_piece(folder: str) -> None:
    """Who reads it finds out."""
    files = sorted(Path(folder).glob("*.seg"))
    assert len(files) > 3
    files[1].unlink()
    with Log(folder, read_only=True) as log:
        assert joined(list(cuts(log, 20, 120, 500))) == (20, 120)
    for file in files[2:]:
        file.unlink()
    files[0].unlink()
    with Log(folder, read_only=True) as log:
        first, last = log.start_offset, log.end_offset
        found = list(cuts(log, first, last, 500))
        assert found == ([Cut(first, last, 1)] if first < last else [])
