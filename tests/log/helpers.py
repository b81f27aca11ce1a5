"""What the tests of the log share: records to append, a look at the files, another process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tailrace import Log, Receipt, Record
from tailrace.log.options import LogOptions
from tailrace.log.scan import Facts, scan
from tailrace.log.segments import Catalog, list_segments, segment_path
from tailrace.testing import FaultyFileSystem, RecordingFileSystem

SECOND = 1_000
HOUR = 3_600_000
DAY = 24 * HOUR
T0 = 1_700_000_000_000  # a time, in milliseconds

WAIT = 30.0  # for what must happen, and soon does


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def offsets(records: Iterable[Record]) -> list[int]:
    return [require(record.offset) for record in records]


def require(number: int | None) -> int:
    assert number is not None
    return number


def at(timestamp: int, value: bytes = b"v") -> Record:
    """A record of a given time."""
    return Record(timestamp=timestamp, value=value)


def fill(log: Log, count: int, *, size: int = 10, first: int = 0) -> None:
    """Append records one by one, each with its number as its value."""
    for number in range(first, first + count):
        log.append_one(b"%0*d" % (size, number))
    log.flush()


def pending(receipt: Receipt) -> bool:
    """Not done. (A type checker would take the `done` of a moment ago for that of now.)"""
    return not receipt.done


def bases(path: Path) -> list[int]:
    """The base offsets of the segments, from their names."""
    return sorted(int(file.stem) for file in path.glob("*.seg"))


def segment(path: Path, base: int, extension: str = "seg") -> Path:
    return path / f"{base:020d}.{extension}"


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, with its contents; but for the board, which is memory."""
    return {
        str(file.relative_to(path)): file.read_bytes() if file.name != "board" else b""
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def side_file(path: Path, name: str) -> Path:
    return path / ".tailrace" / name


def copy_as_killed(path: Path, target: Path) -> Path:
    """The files of an open log, as a process that was killed now would leave them."""
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"))
    side_file(target, "clean").unlink(missing_ok=True)
    return target


def forget_clean_close(path: Path) -> None:
    """Make a closed log look as if its process had been killed."""
    side_file(path, "clean").unlink()


def flip(path: Path, position: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def facts_of(path: Path, base: int) -> Facts:
    """What a scan of a segment finds."""
    from tailrace.log.fs import OsFileSystem

    catalog = Catalog(OsFileSystem(), str(path), LogOptions(), read_only=True)
    try:
        extent = {e.base: e for e in list_segments(OsFileSystem(), str(path))}[base]
        facts = catalog.new_facts(base)
        with catalog.files.use(segment_path(str(path), base)) as file:
            scan(file, facts, extent.size)
        return facts
    finally:
        catalog.close()


def run_python(code: str, *arguments: object) -> Any:
    """Run code in another process; what it prints last is its answer, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(i)` in so many threads, started together; the first error comes out."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(WAIT)
            work(number)
        except BaseException as error:  # noqa: BLE001 (it is raised in the test's own thread)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def segment_syncs(fs: RecordingFileSystem | FaultyFileSystem) -> int:
    """How many times a segment was synced."""
    if isinstance(fs, FaultyFileSystem):
        return sum(call.op == "sync" and call.path.endswith(".seg") for call in fs.calls)
    return sum(event.op == "sync" and event.path.endswith(".seg") for event in fs.trace)


class Gate:
    """A plan that lets a sync of a segment begin, and end only when it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.closed = False

    def __call__(self, call: Any) -> None:
        if self.closed and call.op == "sync" and call.path.endswith(".seg"):
            self.reached.set()
            assert self.opened.wait(WAIT)

    def shut(self) -> None:
        self.closed = True

    def open(self) -> None:
        self.closed = False
        self.opened.set()
