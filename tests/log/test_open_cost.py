"""Opening after a clean close looks at the tail only, however long the log is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailrace import Log
from tailrace.log.fs import OsFileSystem
from tailrace.testing import RecordingFileSystem
from tests.log.helpers import bases, forget_clean_close

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
