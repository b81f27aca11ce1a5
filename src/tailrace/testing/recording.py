"""Write down what happens to a disk, and check that nothing was promised before it was durable.

    fs = RecordingFileSystem(SimulatedDisk())
    log = Log(..., fs=fs)
    log.append([b"x"]).wait()
    fs.mark("ack")
    assert_durable(fs.trace, "ack", [Range(path, start, end)])

A power cut at a random moment finds a missing sync if it is lucky; this finds it always. The rule
for a range of bytes that was promised at a mark:

1. every byte of it was written, and not truncated since;
2. a sync of the file *began* after the last of these writes ended, and ended before the mark (a
   write during a sync may or may not be covered by it, so it is not);
3. if the file's name is new (created, or renamed to it), a `sync_dir` of its directory did so too.

Files are told apart by number and not by name, so a file that is written under a temporary name
and renamed is still the same file.

Put the recorder outside: `RecordingFileSystem(FaultyFileSystem(disk))`. Then a plan that waits in
a sync lets other threads write "during" it. The recorder adds calls of its own below (a `stat`
before a file is created) and these would be counted, so don't count across the two.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tailrace.log.fs import Entry, File, FileLock, FileSystem, Space

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["Event", "Range", "RecordingFileSystem", "assert_durable", "problems"]

T = TypeVar("T")


class Range(NamedTuple):
    """The bytes `[start, end)` of a file."""

    path: str
    start: int
    end: int


@dataclass
class Event:
    """An operation, from the moment it began to the moment it ended (both are counted up by one).

    `file` is the number of the file, `start` and `end` the bytes that were read or written (for a
    truncation: from its size on). `ended` is `None` while it is under way. `error` is set when it
    failed. `op` is a call's name, `create` for an `open` that made the file, or `mark`.
    """

    op: str
    path: str
    began: int
    ended: int | None = None
    file: int | None = None
    start: int = 0
    end: int = 0
    source: str = ""
    error: BaseException | None = None


class RecordingFileSystem:
    """A `FileSystem` that keeps a `trace`. As thread-safe as the one below it."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self.trace: list[Event] = []
        self._now = 0
        self._numbers: dict[str, int] = {}
        self._files = 0
        self._guard = threading.Lock()

    def mark(self, label: str) -> None:
        """Put a moment in the trace: an acknowledgement, most of all."""
        event = self._begin("mark", label)
        self._end(event)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> RecordingFile:
        event = self._begin("open", path)
        if create and self._is_missing(path):
            event.op = "create"
        file = self._do(event, lambda: self.inner.open(path, write=write, create=create))
        return RecordingFile(self, file, path, self._number(event))

    def names(self, path: str) -> list[str]:
        return self._do(self._begin("list", path), lambda: self.inner.names(path))

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        return self._do(self._begin("list", path), lambda: self.inner.list(path, ending=ending))

    def stat(self, path: str) -> Entry:
        return self._do(self._begin("stat", path), lambda: self.inner.stat(path))

    def rename(self, source: str, target: str) -> None:
        event = self._begin("rename", target)
        event.source = source
        self._do(event, lambda: self.inner.rename(source, target))
        with self._guard:
            old, new = _name(source), _name(target)
            for name in [name for name in self._numbers if name.startswith(f"{old}/")]:
                self._numbers[new + name.removeprefix(old)] = self._numbers.pop(name)
            number = self._numbers.pop(old, None)
            if number is None:
                number = self._next_number()
            self._numbers[new] = event.file = number

    def unlink(self, path: str) -> None:
        event = self._begin("unlink", path)
        self._do(event, lambda: self.inner.unlink(path))
        with self._guard:
            event.file = self._numbers.pop(_name(path), None)

    def remove_dir(self, path: str) -> None:
        self._do(self._begin("remove_dir", path), lambda: self.inner.remove_dir(path))

    def make_dirs(self, path: str) -> None:
        self._do(self._begin("make_dirs", path), lambda: self.inner.make_dirs(path))

    def sync_dir(self, path: str) -> None:
        self._do(self._begin("sync_dir", path), lambda: self.inner.sync_dir(path))

    def lock(self, path: str) -> FileLock:
        return self._do(self._begin("lock", path), lambda: self.inner.lock(path))

    def map(self, path: str, size: int, *, write: bool) -> memoryview | None:
        event = self._begin("map", path)
        return self._do(event, lambda: self.inner.map(path, size, write=write))

    def space(self, path: str) -> Space:
        return self.inner.space(path)

    def boot_id(self) -> bytes:
        return self.inner.boot_id()

    def _begin(self, op: str, path: str, file: int | None = None) -> Event:
        with self._guard:
            self._now += 1
            event = Event(op, path, began=self._now, file=file)
            self.trace.append(event)
            return event

    def _end(self, event: Event) -> None:
        with self._guard:
            self._now += 1
            event.ended = self._now

    def _do(self, event: Event, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException as error:
            event.error = error
            raise
        finally:
            self._end(event)

    def _is_missing(self, path: str) -> bool:
        if _name(path) in self._numbers:
            return False
        try:
            self.inner.stat(path)
        except FileNotFoundError:
            return True
        return False

    def _number(self, event: Event) -> int:
        with self._guard:
            name = _name(event.path)
            number = self._numbers.get(name)
            if number is None:
                number = self._numbers[name] = self._next_number()
            event.file = number
            return number

    def _next_number(self) -> int:
        self._files += 1
        return self._files


class RecordingFile:
    """An open file of a `RecordingFileSystem`."""

    def __init__(self, fs: RecordingFileSystem, inner: File, path: str, number: int) -> None:
        self._fs = fs
        self._inner = inner
        self._path = path
        self._number = number

    def pread(self, size: int, position: int) -> bytes:
        event = self._begin("pread", position, position + size)
        data = self._fs._do(event, lambda: self._inner.pread(size, position))
        event.end = position + len(data)
        return data

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        event = self._begin("pread_into", position, position + memoryview(buffer).nbytes)
        size = self._fs._do(event, lambda: self._inner.pread_into(buffer, position))
        event.end = position + size
        return size

    def pwrite(self, data: Buffer, position: int) -> int:
        event = self._begin("pwrite", position, position + memoryview(data).nbytes)
        written = self._fs._do(event, lambda: self._inner.pwrite(data, position))
        event.end = position + written
        return written

    def truncate(self, size: int) -> None:
        event = self._begin("truncate", size, size)
        self._fs._do(event, lambda: self._inner.truncate(size))

    def part_with(self, size: int, position: int) -> None:
        self._inner.part_with(size, position)

    def sync(self) -> None:
        self._fs._do(self._begin("sync"), self._inner.sync)

    def size(self) -> int:
        return self._fs._do(self._begin("size"), self._inner.size)

    def close(self) -> None:
        self._fs._do(self._begin("close"), self._inner.close)

    def _begin(self, op: str, start: int = 0, end: int = 0) -> Event:
        event = self._fs._begin(op, self._path, self._number)
        event.start = start
        event.end = end
        return event


def assert_durable(trace: Sequence[Event], label: str, ranges: Iterable[Range]) -> None:
    """Fail unless all of `ranges` were durable when `label` was (first) marked."""
    found = problems(trace, label, ranges)
    if found:
        raise AssertionError("\n".join(found))


def problems(trace: Sequence[Event], label: str, ranges: Iterable[Range]) -> list[str]:
    """What is missing for `ranges` to be durable at a mark, in words; empty if nothing is.

    Bytes that were written before the recording are not known to be durable, and are a problem.
    """
    mark = next((e for e in trace if e.op == "mark" and e.path == label), None)
    if mark is None:
        return [f"{label}: no such mark in the trace"]
    done = [
        event
        for event in trace
        if event.ended is not None and event.ended < mark.began and event.error is None
    ]
    return [
        f"{label}: {path} [{start}, {end}): {problem}"
        for path, start, end in ranges
        for problem in _problems(done, path, start, end)
    ]


def _problems(done: list[Event], path: str, start: int, end: int) -> list[str]:
    naming = _last_naming(done, path)
    if naming is None or naming.op == "unlink":
        return ["there is no such file"]
    found = []
    mine = [event for event in done if event.file == naming.file]
    gap, last_write = _coverage(mine, start, end)
    if gap is not None:
        found.append(f"byte {gap} was not written, or was truncated since")
    if last_write and not _followed(last_write, (e for e in mine if e.op == "sync")):
        found.append("no sync began after it was written")
    if naming.op in ("create", "rename"):
        directory = _name(os.path.dirname(path))
        syncs = (e for e in done if e.op == "sync_dir" and _name(e.path) == directory)
        if not _followed(naming.ended or 0, syncs):
            found.append(f"its name is new ({naming.op}), and no sync_dir began after that")
    return found


def _last_naming(done: list[Event], path: str) -> Event | None:
    """The event that gave a path to the file it now means; an `open` only where there is no other,
    because the file was there before."""
    name = _name(path)
    last: Event | None = None
    for event in done:
        if event.op == "rename" and _name(event.source) == name:
            last = None
        elif _name(event.path) == name and (
            event.op in ("create", "rename", "unlink") or (event.op == "open" and last is None)
        ):
            last = event
    return last


def _coverage(mine: list[Event], start: int, end: int) -> tuple[int | None, int]:
    """The first byte of `[start, end)` that is not there by a recorded write, if one is missing,
    and when the last write into the range ended."""
    written = bytearray(end - start)
    last_write = 0
    for event in mine:
        low = max(event.start, start)
        if event.op == "truncate" and low < end:
            written[low - start :] = bytes(end - low)
        elif event.op == "pwrite" and low < min(event.end, end):
            high = min(event.end, end)
            written[low - start : high - start] = b"\1" * (high - low)
            last_write = max(last_write, event.ended or 0)
    gap = written.find(0)
    return (start + gap if gap >= 0 else None), last_write


def _followed(moment: int, syncs: Iterable[Event]) -> bool:
    return any(sync.began > moment for sync in syncs)


def _name(path: str) -> str:
    return os.path.normpath(path).strip("/")
