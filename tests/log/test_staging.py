"""What is staged keeps to the roll rule, as what is appended does."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, Record
from tailrace.kernel import Draft, encode
from tailrace.log import rolling
from tailrace.log.adopting import adopt, pack_staged
from tailrace.log.adoption import Piece
from tailrace.log.fs import OsFileSystem
from tailrace.log.options import LogOptions
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER
from tailrace.log.staging import Stage

NOW = time.time_ns() // 1_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
MARKS = [(PRODUCER_HEADER, b"t"), (SEQUENCE_HEADER, b"0")]


def draft(timestamp: int, count: int = 1, *, first: bool = False) -> Draft:
    records = [Record(value=b"%d" % timestamp, timestamp=timestamp)] * count
    return encode(records, NOW, 0, MARKS if first else ())


def stage(folder: Path, given: dict[str, Any], drafts: list[Draft]) -> list[Piece]:
    writing = Stage(OsFileSystem(), str(folder), "t", LogOptions.parse(**given))
    for each in drafts:
        writing.add(each)
    return writing.finish()


def hourly(count: int, *, per_piece: int = 0, folder: Path, given: dict[str, Any]) -> list[Piece]:
    """A record for each hour up to now, in one piece, or several."""
    drafts = [draft(NOW - n * HOUR, first=n == count - 1) for n in range(count - 1, -1, -1)]
    step = per_piece or count
    return [
        piece
        for first in range(0, count, step)
        for piece in stage(folder, given, drafts[first : first + step])
    ]


def sizes(folder: Path, extension: str) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.glob(f"*.{extension}"))]


@pytest.mark.parametrize("per_piece", [0, 1, 5, 100])
@pytest.mark.parametrize("segment_bytes", [20_000, 1 << 20])
def test_a_segment_is_not_older_than_it_may_be(
    tmp_path: Path, per_piece: int, segment_bytes: int
) -> None:
    """So retention lets go in time, of whatever was written with times of its own."""
    folder = tmp_path / "log"
    given: dict[str, Any] = {
        "segment_bytes": segment_bytes,
        "segment_age": "1d",
        "retention": {"max_age": "7d"},
        "flush": "async",
    }
    with Log(str(folder), upkeep=False, **given) as log:
        log.append([Record(value=b"before", timestamp=NOW - 600 * HOUR)])
        pieces = hourly(500, per_piece=per_piece, folder=folder, given=given)
        for piece in pieces:
            assert piece.max_timestamp - piece.first_timestamp <= DAY
        assert len(pieces) >= 500 // 25
        packed = pack_staged(log, pieces)
        for piece in packed:
            assert piece.max_timestamp - piece.first_timestamp <= DAY
        assert len(packed) <= 500 // 25 + 1 + (500 // per_piece if per_piece > 25 else 0)
        adopt(log, packed, producer="t", sequence=0)
        times = [record.timestamp or 0 for record in log.read()]
        assert times[1:] == [NOW - n * HOUR for n in range(499, -1, -1)]
        log.vacuum()
        assert (next(iter(log.read())).timestamp or 0) >= NOW - 8 * DAY - HOUR


@pytest.mark.parametrize("per_piece", [0, 3])
def test_indexes_are_not_larger_than_they_may_be(tmp_path: Path, per_piece: int) -> None:
    folder = tmp_path / "log"
    given: dict[str, Any] = {"index_max_bytes": 500, "index_interval": 64, "segment_age": "9999h"}
    with Log(str(folder), upkeep=False, flush="async", **given) as log:
        for count in range(30):
            log.append([Record(value=b"", timestamp=NOW - (600 - count) * HOUR)])
        pieces = hourly(300, per_piece=per_piece, folder=folder, given=given)
        packed = pack_staged(log, pieces)
        assert 300 // 38 < len(packed) < 300 // 30
        adopt(log, packed, producer="t", sequence=0)
        log.append([b"behind"])
        assert len(list(log.read())) == 331
    for extension in ("idx", "tix"):
        found = sizes(folder, extension)
        assert max(found) <= 500
        assert len(found) >= 300 // 38


def test_little_that_the_index_has_no_room_for_gets_a_segment(tmp_path: Path) -> None:
    """It is copied behind what is there, as a rule."""
    folder = tmp_path / "log"
    given: dict[str, Any] = {"index_max_bytes": 500, "index_interval": 64, "segment_age": "9999h"}
    for before in (5, 25):
        folder = tmp_path / str(before)
        with Log(str(folder), upkeep=False, flush="async", **given) as log:
            for count in range(before):
                log.append([Record(value=b"", timestamp=NOW - (600 - count) * HOUR)])
            adopt(log, hourly(20, folder=folder, given=given), producer="t", sequence=0)
            assert len(sizes(folder, "seg")) == (1 if before == 5 else 2)
        assert max(sizes(folder, "tix")) <= 500


def test_offsets_that_are_too_far_from_their_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "RELATIVE_OFFSET_MAX", 99)
    folder = tmp_path / "log"
    with Log(str(folder), upkeep=False, flush="async") as log:
        drafts = [draft(NOW, 30, first=not n) for n in range(20)]
        pieces = stage(folder, {}, drafts)
        assert [piece.records for piece in pieces] == [90] * 6 + [60]
        adopt(log, pack_staged(log, pieces), producer="t", sequence=0)
        log.append([b"behind"])
        bases = [int(path.stem) for path in sorted(folder.glob("*.seg"))]
        assert all(other - one <= 100 for one, other in pairwise([*bases, log.end_offset]))
        assert len(list(log.read())) == 601


def adopt_triggers(log: Log, count: int, ages: tuple[int, ...]) -> None:
    """So many transactions, each with a small record of so many days from each task."""
    for number in range(count):
        marks = [(PRODUCER_HEADER, b"t"), (SEQUENCE_HEADER, b"%d" % number)]
        pieces = []
        for place, days in enumerate(ages):
            record = Record(value=b"x" * 100, timestamp=NOW + number - days * DAY)
            writing = Stage(OsFileSystem(), str(log.path), f"t{number}", log.options)
            writing.add(encode([record], NOW, 0, () if place else marks))
            pieces += writing.finish()
        adopt(log, pack_staged(log, pieces), producer="t", sequence=number).wait()


@pytest.mark.parametrize("ages", [(30, 0), (0, 30), (30, 0, 30, 0), (0, 0)])
def test_small_pieces_of_different_ages_leave_no_litter(
    tmp_path: Path, ages: tuple[int, ...]
) -> None:
    """As late events, in one task of each trigger: what counts is the segment that they go to."""
    folder = tmp_path / "log"
    with Log(folder) as log:
        log.append([Record(value=b"before", timestamp=NOW)]).wait()
        adopt_triggers(log, 20, ages)
        assert len(list(log.read())) == 1 + 20 * len(ages)
    assert len(sizes(folder, "seg")) == 1


def test_small_pieces_of_different_ages_after_an_old_one(tmp_path: Path) -> None:
    """The first of them is newer than the segment may be; then they are in one of their own."""
    folder = tmp_path / "log"
    with Log(folder) as log:
        log.append([Record(value=b"old", timestamp=NOW - 60 * DAY)]).wait()
        adopt_triggers(log, 10, (30, 0))
    assert len(sizes(folder, "seg")) <= 3
