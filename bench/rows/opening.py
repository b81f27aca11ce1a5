"""Row 9: opening a log after a clean close, which should cost the same at any size.

The large log is sparse: it is written by the engine through its file-system seam, whose files leave
holes where whole blocks are zero, and most records are large values of zeros. It is a valid log of
that many bytes with every checksum, index and seal, at hardly any cost of disk. Its last segment,
the only one that opening looks into, is full of small records one by one, so that its index is as
large as indexes get.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.sparse import SparseFileSystem
from tailrace import Log
from tailrace.cli.measure import Sample, cycle_of, human_bytes, pinned

__all__ = ["open_after_close"]

_ZEROS = bytes(15 << 20)
_SAME_MS = 10.0  # differences below are those of the machine
_SAME_MB = 2.0


def build(setting: Setting, folder: Path, size: int) -> int:
    """A log of about `size` bytes, closed cleanly; its end offset."""
    small = setting.sizes.last_segment_records
    with Log(folder, fs=SparseFileSystem()) as log:
        left = max(size - small * 305, 0)
        for _ in range(left // len(_ZEROS)):
            log.append_one(_ZEROS)
        log.append_one(_ZEROS[: left % len(_ZEROS)])
        for value in cycle_of(setting.payload.values, small):
            log.append_one(value)
        end = log.end_offset
    with Log(folder, read_only=True) as log:  # is it really all there?
        assert log.end_offset == end
        middle = end - small - 2
        if middle >= 0:
            assert next(log.read(middle, middle + 1)).value == _ZEROS
        assert next(log.read("last")).offset == end - 1
    return end


def open_after_close(setting: Setting) -> Row:
    sizes = setting.sizes
    with (
        setting.scratch("open-large") as large,
        setting.scratch("open-small") as small,
    ):
        build(setting, large, sizes.large_log)
        build(setting, small, sizes.small_log)
        large_bytes, small_bytes = _apparent(large), _apparent(small)
        names = human_bytes(large_bytes), human_bytes(small_bytes)
        contestants = [
            Contestant(f"tailrace, {names[0]}", Role.OURS, partial(_probe, large)),
            Contestant(f"tailrace, {names[1]}", Role.BASE, partial(_probe, small)),
            Contestant("list and stat the files", Role.LIMIT, partial(_list, large)),
            Contestant(f"{names[0]}, read-only", Role.VARIANT, partial(_probe, large, "read-only")),
            Contestant(f"{names[0]}, cache dropped", Role.VARIANT, _cold(large)),
        ]
        with pinned() as core:
            results = race(contestants, sizes.rounds)
    times = Line(f"open after clean close, {names[0]} log (sparse)", Unit.MILLISECONDS, results)
    base = times.results[1]
    slower = times.value(times.ours) - times.value(base)
    times.target = f"under 100 ms, and within {_SAME_MS:.0f} ms of {names[1]}"
    times.checks = [
        Check("ms", times.value(times.ours), 100.0, at_least=False),
        Check("ms more than the small one", slower, _SAME_MS, at_least=False),
    ]
    residents = [result for result in results if result.role is not Role.LIMIT]
    memory = Line("resident memory of the process that opens it", Unit.MEGABYTES, residents)
    more = memory.value(memory.ours) - memory.value(base)
    memory.target = f"under 60 MB, and within {_SAME_MB:.0f} MB of {names[1]}"
    memory.checks = [
        Check("MB", memory.value(memory.ours), 60.0, at_least=False),
        Check("MB more than the small one", more, _SAME_MB, at_least=False),
    ]
    files = {"large_bytes": large_bytes, "small_bytes": small_bytes, "core": core}
    return Row(9, "open", times.title, [times, memory], files)


def _apparent(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.seg"))


def _probe(folder: Path, *arguments: str) -> Sample:
    """Open it in a new process, which tells how long it took and how large it got."""
    command = [sys.executable, "-m", "bench.support.open_probe", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    return Sample(1, seen.pop("seconds"), extra=seen)


def _cold(folder: Path) -> Callable[[], Sample]:
    def run() -> Sample:
        _drop_from_cache(folder)
        return _probe(folder)

    return run


def _drop_from_cache(folder: Path) -> None:
    """Only this log's pages; other programs keep theirs."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):
                    os.fsync(fd)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _list(folder: Path) -> Sample:
    began = time.perf_counter()
    for entry in os.scandir(folder):
        entry.stat()
    return Sample(1, time.perf_counter() - began)
