"""The small files: what is written is read, and what is damaged is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import ConfigError, Log
from tailrace.log.fs import OsFileSystem
from tailrace.log.sidefiles import (
    CleanMarker,
    Gap,
    Gaps,
    Identity,
    Poison,
    Reserved,
    Seal,
    Seals,
    Slots,
    StartOffset,
    Watermark,
    WatermarkFile,
    load_checked_json,
    store_checked_json,
)
from tailrace.testing import Crash, FaultyFileSystem, SimulatedCrash, SimulatedDisk, at
from tests.log.conftest import OpenLog
from tests.log.helpers import fill, flip, offsets, side_file

FS = OsFileSystem()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / ".tailrace").mkdir()
    return str(tmp_path)


# --- checked JSON -------------------------------------------------------------------------------


def test_json_round_trip(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    assert load_checked_json(FS, path) is None
    for document in ({"a": 1, "ü": 'x,"crc32c":5}'}, {"b": [1, 2]}):
        store_checked_json(FS, path, document)
        assert load_checked_json(FS, path) == document
    assert not list(tmp_path.glob("*.tmp"))


def test_every_flipped_byte_of_json_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    store_checked_json(FS, str(file), {"flush": "sync", "format": 1})
    whole = file.read_bytes()
    for position in range(len(whole)):
        flip(file, position)
        assert load_checked_json(FS, str(file)) is None
        file.write_bytes(whole[:position])
        assert load_checked_json(FS, str(file)) is None
        file.write_bytes(whole)
    assert load_checked_json(FS, str(file)) is not None


def test_identity(folder: str) -> None:
    assert Identity.load(FS, folder) is None
    identity = Identity("async", 17)
    identity.store(FS, folder)
    assert Identity.load(FS, folder) == identity


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused(path: Path, read_only: bool) -> None:
    Log(path).close()
    document = {"format": 2, "what we cannot know": "yet"}
    store_checked_json(FS, str(side_file(path, "log.json")), document)
    before = side_file(path, "log.json").read_bytes()
    with pytest.raises(ConfigError, match=r"is a log of format 2; .* upgrade tailrace"):
        Log(path, read_only=read_only)
    assert side_file(path, "log.json").read_bytes() == before


def test_the_identity_was_lost(open_log: OpenLog, path: Path) -> None:
    with open_log() as log:
        fill(log, 5)
    flip(side_file(path, "log.json"), 3)
    with open_log() as log:
        assert offsets(log.read()) == [0, 1, 2, 3, 4]
        assert log.flush_mode == "sync"


# --- slots --------------------------------------------------------------------------------------


def test_the_newest_whole_slot_counts(tmp_path: Path) -> None:
    file = tmp_path / "slots"
    slots = Slots(FS, str(file), b"TEST")
    assert slots.load() is None
    for number in range(5):
        slots.store(b"payload %d" % number, sync=number % 2 == 0)
        assert Slots(FS, str(file), b"TEST").load() == b"payload %d" % number
    slots.close()
    slots.close()
    assert Slots(FS, str(file), b"ELSE").load() is None
    newest = (5 & 1) * Slots.STRIDE
    flip(file, newest + 20)
    assert Slots(FS, str(file), b"TEST").load() == b"payload 3"
    flip(file, (newest + Slots.STRIDE) % (2 * Slots.STRIDE))
    assert Slots(FS, str(file), b"TEST").load() is None


def test_every_flipped_byte_of_a_slot_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "slots"
    slots = Slots(FS, str(file), b"TEST")
    slots.store(b"old", sync=False)
    slots.store(b"new", sync=False)
    slots.close()
    whole = file.read_bytes()
    size = 16 + 1 + 3 + 4
    # Bytes 5 to 7 are padding, which nobody reads; the checksum covers them all the same.
    for position in range(size):
        flip(file, position)
        assert Slots(FS, str(file), b"TEST").load() == b"old"
        file.write_bytes(whole)
    for length in range(size):
        assert Slots.parse(b"TEST", whole[:length]) is None
    assert Slots.parse(b"TEST", whole[:size]) is not None


def test_slots_go_on_after_reopening(tmp_path: Path) -> None:
    for number in range(4):
        slots = Slots(FS, str(tmp_path / "slots"), b"TEST")
        slots.load()
        slots.store(b"%d" % number, sync=True)
        slots.close()
    assert Slots(FS, str(tmp_path / "slots"), b"TEST").load() == b"3"


def test_nobody_finds_a_file_without_a_slot(tmp_path: Path) -> None:
    """Wherever whoever makes it is killed, it is whole or not there."""
    path, counts = tmp_path / "slots", set()
    for number in range(20):
        path.unlink(missing_ok=True)
        fs = FaultyFileSystem(FS, at(number, Crash()))
        slots = Slots(fs, str(path), b"TEST")
        killed = False
        try:
            slots.store(b"payload", sync=True)
        except SimulatedCrash:
            killed = True
        counts.add((killed, path.exists()))
        assert Slots(FS, str(path), b"TEST").load() == (b"payload" if path.exists() else None)
    assert counts == {(True, False), (True, True), (False, True)}


def test_watermark(folder: str) -> None:
    file = WatermarkFile(FS, folder)
    assert file.load() is None
    mark = Watermark(7, 5, 1234, bytes(range(16)))
    file.store(mark)
    file.close()
    assert WatermarkFile(FS, folder).load() == mark
    assert Watermark.unpack(b"short") is None


def test_start_offset(folder: str, tmp_path: Path) -> None:
    file = StartOffset(FS, folder)
    assert file.load() == 0
    file.store(2**62)
    file.close()
    assert StartOffset(FS, folder).load() == 2**62


# --- marker, poison, seals ----------------------------------------------------------------------


def test_clean_marker(folder: str) -> None:
    assert CleanMarker.load(FS, folder) is None
    CleanMarker.remove(FS, folder)  # nothing to remove
    marker = CleanMarker(5, 1234, 99, "")
    marker.store(FS, folder)
    assert CleanMarker.load(FS, folder) == marker
    CleanMarker.remove(FS, folder)
    assert CleanMarker.load(FS, folder) is None


def test_poison(folder: str) -> None:
    mark = Watermark(7, 5, 1234, bytes(16))
    assert Poison.load(FS, folder, mark) is None
    poison = Poison(6, 4, 123, "[Errno 5] Input/output error")
    poison.store(FS, folder)
    assert Poison.load(FS, folder, mark) == poison
    Poison.remove(FS, folder)
    assert Poison.load(FS, folder, None) is None


def test_a_poison_that_cannot_be_read_still_is_one(folder: str, tmp_path: Path) -> None:
    Poison(6, 4, 123, "why").store(FS, folder)
    flip(tmp_path / ".tailrace" / "poisoned", 5)
    found = Poison.load(FS, folder, Watermark(7, 5, 1234, bytes(16)))
    assert found is not None
    assert found[:3] == (7, 5, 1234)
    assert Poison.load(FS, folder, None) is None  # nothing says how far to go back


def test_reserved(folder: str) -> None:
    disk = SimulatedDisk()
    disk.make_dirs("log/.tailrace")
    reserved = Reserved(disk, "log")
    assert reserved.load() == 0
    reserved.store(1_000)
    assert reserved.offset == 1_000
    reserved.close()
    assert Reserved(disk, "log").load() == 0  # in the same boot nothing can be lost
    disk.crash(1)
    assert Reserved(disk, "log").load() == 1_000
    disk.put("log/.tailrace/reserved", b"junk")
    assert Reserved(disk, "log").load() == 0


def seal(base: int, size: int = 100) -> Seal:
    return Seal(base, size, base + 3, 3, -5, 2**62, 40, 1, 48, 2)


def test_seals(folder: str) -> None:
    seals = Seals(FS, folder)
    for number in (0, 3, 6):
        seals.add(seal(number))
    seals.add(seal(3))  # nothing new
    seals.add(seal(3, size=200))  # a later one about the same segment
    again = Seals(FS, folder)
    again.load({0, 3})
    assert again.get(0, 100) == seal(0)
    assert again.get(3, 200) == seal(3, 200)
    assert again.get(3, 100) is None  # of another size
    assert again.get(6, 100) is None  # the segment is gone
    again.forget(0)
    assert again.get(0, 100) is None


def test_a_torn_seal_does_not_spoil_the_next(folder: str, tmp_path: Path) -> None:
    file = tmp_path / ".tailrace" / "seals"
    seals = Seals(FS, folder)
    seals.add(seal(0))
    file.write_bytes(file.read_bytes()[:-10])
    seals = Seals(FS, folder)
    seals.load({0, 3})
    assert seals.get(0, 100) is None
    seals.add(seal(3))
    again = Seals(FS, folder)
    again.load({0, 3})
    assert again.get(3, 100) == seal(3)


def test_read_only_seals_are_not_written(folder: str, tmp_path: Path) -> None:
    seals = Seals(FS, folder, read_only=True)
    seals.load({0})
    seals.add(seal(0))
    assert seals.get(0, 100) == seal(0)
    assert not (tmp_path / ".tailrace" / "seals").exists()


# --- gaps ---------------------------------------------------------------------------------------


def gap(first: int, stop: int, kind: str = "lost", *, acknowledged: bool = False) -> Gap:
    return Gap(first, stop, kind, acknowledged, "why", 1)


def test_gaps(folder: str) -> None:
    gaps = Gaps(FS, folder)
    gaps.load()
    assert gaps.all() == []
    gaps.add()
    gaps.add(gap(5, 7), gap(1, 3))
    gaps.add(gap(5, 7))  # known
    again = Gaps(FS, folder)
    again.load()
    assert again.all() == [gap(1, 3), gap(5, 7)]
    again.add(gap(5, 7, acknowledged=True))
    gaps.load()
    assert gaps.all() == [gap(1, 3), gap(5, 7, acknowledged=True)]


def test_gaps_together_cover_a_range(folder: str) -> None:
    gaps = Gaps(FS, folder)
    gaps.add(gap(1, 3), gap(3, 6, "skipped"), gap(6, 8, acknowledged=True), gap(10, 12))
    assert gaps.uncovered(1, 8) is None
    assert gaps.uncovered(2, 5) is None
    assert gaps.uncovered(4, 4) is None
    assert gaps.uncovered(0, 2) == (0, 1)
    assert gaps.uncovered(7, 9) == (8, 9)
    assert gaps.uncovered(2, 15) == (8, 10)
    assert gaps.uncovered(3, 8, acknowledged_only=True) is None
    assert gaps.uncovered(1, 8, acknowledged_only=True) == (1, 3)
    assert gaps.reason(11) == "why"
    assert gaps.reason(7) is None  # acknowledged
    assert gaps.reason(9) is None


def test_a_torn_line_of_gaps_spoils_only_itself(folder: str, tmp_path: Path) -> None:
    file = tmp_path / ".tailrace" / "gaps"
    gaps = Gaps(FS, folder)
    gaps.add(gap(1, 3))
    gaps.add(gap(5, 7))
    file.write_bytes(file.read_bytes()[:-10])
    gaps = Gaps(FS, folder)
    gaps.load()
    assert gaps.all() == [gap(1, 3)]
    gaps.add(gap(8, 9))
    again = Gaps(FS, folder)
    again.load()
    assert again.all() == [gap(1, 3), gap(8, 9)]
