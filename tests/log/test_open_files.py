"""Open files are bounded, and none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import Closed, Log
from tailrace.log.fs import OsFileSystem
from tailrace.log.segments import OpenFiles
from tests.log.conftest import OpenLog, open_files
from tests.log.helpers import bases, fill, offsets, segment


def open_segments(path: Path) -> list[str]:
    return [
        name for name in open_files().values() if name.startswith(f"{path}/") and ".seg" in name
    ]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_of_many_segments(open_log: OpenLog, path: Path, read_only: bool) -> None:
    log = open_log(segment_bytes=1, open_files=2, flush="none")
    fill(log, 20)
    assert len(bases(path)) == 20
    if read_only:
        log.close()
        log = open_log(read_only=True, open_files=2)
    own = 0 if read_only else 1  # the one that is written
    for _ in range(2):
        assert offsets(log.read()) == list(range(20))
        assert len(open_segments(path)) <= 2 + own
    for offset in range(20):
        next(log.read(offset))
        assert len(open_segments(path)) <= 2 + own + 1
    log.close()
    assert not open_segments(path)


def test_readers_under_way_keep_their_files(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1, open_files=2, flush="none")
    for _ in range(10):
        log.append([b"1", b"2"])
    readers = [log.read(2 * n) for n in range(10)]
    for n, reader in enumerate(readers):
        assert next(reader).offset == 2 * n
    for n, reader in enumerate(readers):
        assert offsets(reader) == list(range(2 * n + 1, 20))
    assert len(open_segments(path)) <= 2 + 1


def test_rolled_segments_are_closed(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1)
    for _ in range(10):
        log.append([b"x"]).wait()
    assert len(open_segments(path)) == 1


def test_deleted_segments_are_closed(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1, retention={"max_records": 1})
    fill(log, 10)
    assert offsets(log.read()) == list(range(10))
    log.vacuum()
    assert not [name for name in open_segments(path) if name.endswith(" (deleted)")]


def test_nothing_is_left_open_after_a_refused_open(path: Path) -> None:
    Log(path).close()
    before = open_files()
    with pytest.raises(Exception, match="looser"):
        Log(path, flush="none")
    assert open_files() == before


def test_the_cache_itself(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=1, flush="none")
    fill(log, 5)
    files = OpenFiles(OsFileSystem(), 2)
    paths = [str(segment(path, base)) for base in range(5)]
    with files.use(paths[0]) as first, files.use(paths[0]) as same:
        assert first is same
        for other in paths[1:]:
            with files.use(other):
                pass
        assert first.size() > 0  # in use: it was not closed
        files.forget(paths[0])
        assert first.size() > 0
        with files.use(paths[0]) as fresh:
            assert fresh is not first
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.size()
    files.forget("not here")
    with files.use(paths[1]) as used:
        files.close()
        assert used.size() > 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        used.size()
    with pytest.raises(Closed), files.use(paths[1]):
        pass
