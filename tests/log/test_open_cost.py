"""Opening after a clean close looks at the tail only, however long the log is; and what is done
while it is open makes the same calls for any number of segments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailrace import Log
from tailrace.kernel import encode_placed
from tailrace.log.extents import Extent
from tailrace.log.fs import OsFileSystem
from tailrace.log.segments import Catalog
from tailrace.testing import RecordingFileSystem
from tests.log.helpers import T0, bases, forget_clean_close

READS = ("pread", "pread_into")


def open_and_close(path: Path, *, read_only: bool = False) -> RecordingFileSystem:
    fs = RecordingFileSystem(OsFileSystem())
    with Log(path, fs=fs, segment_bytes=500, read_only=read_only) as log:
        assert log.end_offset
    return fs


def make(path: Path, segments: int) -> Path:
    with Log(path, segment_bytes=500, flush="async", upkeep=False) as log:
        while len(bases(path)) < segments:
            log.append([bytes(100)])
        log.append([bytes(100)])  # so that the last segments are alike
        log.append([bytes(100)])
    return path


def calls(fs: RecordingFileSystem) -> Counter[str]:
    return Counter(event.op for event in fs.trace)


def bytes_read(fs: RecordingFileSystem) -> Counter[str]:
    """By kind of file."""
    found: Counter[str] = Counter()
    for event in fs.trace:
        if event.op in READS:
            path = Path(event.path)
            found[path.suffix or path.name] += event.end - event.start
    return found


@pytest.mark.parametrize("read_only", [False, True])
def test_the_same_for_3_and_for_60_segments(tmp_path: Path, read_only: bool) -> None:
    few, many = make(tmp_path / "few", 3), make(tmp_path / "many", 60)
    a = open_and_close(few, read_only=read_only)
    b = open_and_close(many, read_only=read_only)
    assert calls(a) == calls(b)
    read_a, read_b = bytes_read(a), bytes_read(b)
    # The seals of all segments are in one file, of 76 bytes each.
    assert read_b.pop("seals") - read_a.pop("seals") == 57 * 76
    assert abs(read_b.pop("clean", 0) - read_a.pop("clean", 0)) < 10  # numbers with more digits
    assert read_a == read_b
    assert not read_b[".seg"]


def test_after_a_kill_only_the_last_segment_is_read(tmp_path: Path) -> None:
    for name, segments in (("few", 3), ("many", 60)):
        path = make(tmp_path / name, segments)
        forget_clean_close(path)
        fs = open_and_close(path)
        read = {event.path for event in fs.trace if event.op in READS and ".seg" in event.path}
        assert {Path(name).name for name in read} == {f"{bases(path)[-1]:020d}.seg"}


def test_a_read_in_the_middle_looks_at_one_segment(tmp_path: Path) -> None:
    path = make(tmp_path / "log", 60)
    fs = RecordingFileSystem(OsFileSystem())
    with Log(path, fs=fs, segment_bytes=500) as log:
        assert list(log.read("next")) == []  # looks around
        fs.trace.clear()
        assert next(log.read(61)).offset == 61
        opened = [event.path for event in fs.trace if event.op == "open"]
        assert len(opened) == 3  # the segment and its two indexes
        fs.trace.clear()
        assert next(log.read(61)).offset == 61
        assert [event.op for event in fs.trace].count("open") == 0


# --- what is done again and again while a log is open ----------------------------------------

FEW, MANY = 10, 10_000


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two logs that differ in their number of segments, of a record each. To make so many by
    appending would take a while."""
    folder = tmp_path_factory.mktemp("segments")
    for count in (FEW, MANY):
        (folder / str(count)).mkdir()
        for offset in range(count):
            data = encode_placed(b"value", None, None, T0, offset, T0)
            (folder / str(count) / f"{offset:020d}.seg").write_bytes(data)
        with Log(folder / str(count), flush="none", upkeep=False) as log:  # adopts it
            assert log.end_offset == count
    return folder / str(FEW), folder / str(MANY)


def work(path: Path) -> dict[str, Counter[str]]:
    """The calls that each of these makes, the second time it is done."""
    fs, found = RecordingFileSystem(OsFileSystem()), {}
    retention = {"max_bytes": 1 << 30, "max_records": 1 << 30, "max_age": "36500d"}
    with Log(path, fs=fs, segment_bytes=1 << 20, retention=retention, upkeep=False) as log:

        def append() -> None:
            log.append_one(b"")

        def read() -> None:
            assert next(log.read("last")).offset == log.end_offset - 1

        def roll() -> None:
            with log._writing().my_turn():
                log._writing().tail.roll()
            append()

        def roll_and_read() -> None:
            roll()
            read()

        for name, do in {
            "append": append,
            "read the end": read,
            "vacuum": log.vacuum,
            "roll": roll,
            "read the end of a new segment": roll_and_read,
        }.items():
            do()
            fs.trace.clear()
            do()
            found[name] = calls(fs)
    return found


def test_the_same_calls_for_10_and_for_10_000_segments(few_and_many: tuple[Path, Path]) -> None:
    few, many = few_and_many
    assert len(bases(many)) >= MANY
    found = work(many)
    assert found == work(few)
    assert found["append"] == {"pwrite": 1}
    assert found["vacuum"] == {"size": 1}  # of the last segment


def test_nobody_lists_the_folder_again(tmp_path: Path) -> None:
    """Not the one who rolls or deletes, nor another who reads on, writes on or deletes then."""
    path = make(tmp_path / "log", 60)
    fs = RecordingFileSystem(OsFileSystem())
    with (
        Log(path, fs=fs, segment_bytes=500, upkeep=False) as one,
        Log(path, fs=fs, segment_bytes=500, upkeep=False) as other,
        Log(path, fs=fs, read_only=True) as reader,
    ):
        end = one.end_offset
        for log in (one, other, reader):
            assert next(log.read("last")).offset == end - 1
        fs.trace.clear()
        for number in range(40):
            writer = one if number // 5 % 2 else other
            assert writer.append([bytes(100)]).offset == end + number
            for log in (one, other, reader):
                assert next(log.read("last")).offset == end + number
        one.truncate_before(200)
        assert one.vacuum().segments
        for log in (other, reader):
            assert next(iter(log.read())).offset == 200
        assert not other.vacuum().segments
        assert len(bases(path)) < 60
        assert "list" not in calls(fs)


def test_a_vacuum_looks_at_what_goes_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "log", 60)
    looked_at: list[int] = []
    max_timestamp = Catalog.max_timestamp

    def counted(catalog: Catalog, extent: Extent) -> int:
        looked_at.append(extent.base)
        return max_timestamp(catalog, extent)

    monkeypatch.setattr(Catalog, "max_timestamp", counted)
    total = sum(file.stat().st_size for file in path.glob("*.seg"))
    limits = {"max_age": "1000d", "max_bytes": total - 2_000, "max_records": 1 << 30}
    with Log(path, segment_bytes=500, retention=limits, upkeep=False) as log:
        gone = log.vacuum().segments
        assert 0 < gone < 10
        assert len(looked_at) == 1
        assert not log.vacuum().segments
        assert len(looked_at) == 2
