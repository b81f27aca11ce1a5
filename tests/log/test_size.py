"""A log as large as one likes: opening it, looking for an offset or a time, and the memory that
takes, depend on what one asks for and not on how much there is.

What a large log has more of is segments, and bytes in each. The short test has as many segments as
100 GB take, of a few kilobytes; the long one has 100 GB (`BIG_LOG_BYTES`), of which most is zeros
that take no place on the disk.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.support.sparse import SparseFileSystem
from tailrace import Log, Record
from tailrace.log.fs import OsFileSystem
from tailrace.testing import RecordingFileSystem
from tests.log.helpers import bases, forget_clean_close

T0 = 1_700_000_000_000
STEP_MS = 100
READS = ("pread", "pread_into")

# Of one look: the indexes of a segment are searched, not read; a batch is read with what is ahead.
LOOK_MOST_BYTES = 2 << 20
LOOKS = 40


class Shape(NamedTuple):
    segments: int
    segment_bytes: int
    value_bytes: int
    batch: int

    @property
    def options(self) -> dict[str, Any]:
        return {"segment_bytes": self.segment_bytes, "compression": "none", "upkeep": False}


MANY = Shape(400, 2_048, 80, 4)  # 100 GB in segments of 256 MiB
FEW = Shape(16, 2_048, 80, 4)
LARGE = Shape(0, 256 << 20, 1 << 20, 1)  # of zeros between the edges of what is written


def make(path: Path, shape: Shape, total_bytes: int = 0) -> int:
    """A log whose records are `STEP_MS` apart; how many there are."""
    value, count = bytes(shape.value_bytes), 0
    with Log(path, fs=SparseFileSystem(), flush="async", **shape.options) as log:
        while True:
            entries = []
            for _ in range(shape.batch):
                entries.append(Record(timestamp=T0 + count * STEP_MS, value=value))
                count += 1
            log.append(entries)
            if total_bytes and count * shape.value_bytes >= total_bytes:
                break
            if shape.segments and count % 100 == 0 and len(bases(path)) >= shape.segments:
                break
    return count


def looks(log: Log, count: int, fs: RecordingFileSystem) -> list[int]:
    """Find records anywhere, by offset and by time; the bytes that were read for each."""
    rng, found = random.Random(1), []
    for _ in range(LOOKS):
        number = rng.randrange(count)
        fs.trace.clear()
        record = next(iter(log.read(number)))
        assert (record.offset, record.timestamp) == (number, T0 + number * STEP_MS)
        found.append(bytes_read(fs))
        fs.trace.clear()
        assert log.offset_at(T0 + number * STEP_MS - STEP_MS // 2) == number
        found.append(bytes_read(fs))
    return found


def bytes_read(fs: RecordingFileSystem) -> int:
    return sum(event.end - event.start for event in fs.trace if event.op in READS)


# Opens it, finds its middle, and tells what that took.
_CHILD = """
import json, sys, time
from tailrace import Log

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

Log(sys.argv[2], read_only=True).close()  # what is imported when it is needed, is
before, start = memory(), time.perf_counter()
with Log(sys.argv[1], read_only=sys.argv[3] == "reader", upkeep=False) as log:
    opened = time.perf_counter() - start
    middle = (log.start_offset + log.end_offset) // 2
    record = next(iter(log.read(middle)))
    assert log.offset_at(record.timestamp) == middle
    found = time.perf_counter() - start - opened
    print(json.dumps({"open_s": opened, "find_s": found, "bytes": memory() - before}))
"""


def measure(path: Path, other: Path, kind: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), str(other), kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def check(path: Path, count: int, small: Path, most_bytes: int) -> None:
    fs = RecordingFileSystem(OsFileSystem())
    with Log(path, fs=fs, read_only=True) as log:
        assert (log.start_offset, log.end_offset) == (0, count)
        read = looks(log, count, fs)
    assert max(read) <= LOOK_MOST_BYTES, f"{max(read):,} bytes to find a record"
    for kind, is_clean in (("reader", 1), ("writer", 1), ("reader", 0), ("writer", 0)):
        if not is_clean and kind == "reader":
            forget_clean_close(path)
        found = measure(path, small, kind)
        print(f"{count:,} records, {kind}, {'clean' if is_clean else 'killed'}: {found}")
        assert found["bytes"] <= most_bytes, f"{kind}: {found}"
        assert found["open_s"] < 5
        assert found["find_s"] < 5


@pytest.mark.no_cover
def test_as_many_segments_as_a_hundred_gigabytes_have(tmp_path: Path) -> None:
    count = make(tmp_path / "many", MANY)
    make(tmp_path / "few", FEW)
    assert len(bases(tmp_path / "many")) >= 400
    # The names and seals of the segments are known: a few hundred bytes of each.
    check(tmp_path / "many", count, tmp_path / "few", 4 << 20)


@pytest.mark.long
def test_a_large_log(tmp_path: Path) -> None:
    size = int(os.environ.get("BIG_LOG_BYTES", "100_000_000_000"))
    count = make(tmp_path / "large", LARGE, size)
    make(tmp_path / "few", FEW)
    assert sum(each.stat().st_size for each in (tmp_path / "large").glob("*.seg")) >= size
    # A batch is a megabyte, and some are read ahead.
    check(tmp_path / "large", count, tmp_path / "few", 96 << 20)
