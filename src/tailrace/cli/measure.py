"""Measuring: time, percentiles, what the machine is, and how fast it could possibly go.

Shared by `tailrace bench` and by the benchmark of the repository, so that both mean the same thing
by a rate, a latency and a limit. A limit is the same bytes moved by bare system calls: nothing that
stores them can be faster, so the ratio to it is comparable between machines where the rate is not.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat, zip_longest
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any, TypeVar

from tailrace import __version__
from tailrace.kernel import CRC_BACKEND, IMPLEMENTATION

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = [
    "RawFile",
    "Sample",
    "conditions",
    "cycle_of",
    "human_bytes",
    "human_rate",
    "human_time",
    "median",
    "memory_copy",
    "percentile",
    "pinned",
    "read_files",
    "spread",
    "time_all",
    "time_each",
    "unpinned",
]

T = TypeVar("T")

READ_SIZE = 1 << 20  # large enough that the calls cost nothing, small enough for the cache


@dataclass
class Sample:
    """One run: so many records in so many seconds. `latencies` are of single operations, in
    nanoseconds, where they were taken; `extra` holds what else was seen, such as the processor's
    time (`cpu_seconds`), which other programs disturb less than the clock's. If several processes
    did it together, `parts` has the records of each."""

    count: int
    seconds: float
    latencies: array[int] = field(default_factory=lambda: array("q"))
    extra: dict[str, float] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0

    def add(self, part: Sample) -> None:
        """Take in another run, as if it had followed without a pause."""
        self.count += part.count
        self.seconds += part.seconds
        self.latencies += part.latencies
        for name, value in part.extra.items():
            self.extra[name] = self.extra.get(name, 0.0) + value
        self.parts = [a + b for a, b in zip_longest(self.parts, part.parts, fillvalue=0)]


# --- time -----------------------------------------------------------------------------------


def time_all(operation: Callable[[T], object], items: Iterable[T]) -> float:
    """Seconds for all items, without a look at the clock in between."""
    began = perf_counter_ns()
    for item in items:
        operation(item)
    return (perf_counter_ns() - began) / 1e9


def time_each(
    operation: Callable[[T], object],
    items: Iterable[T],
    *,
    records: int = 1,
    seconds: float = float("inf"),
) -> Sample:
    """Every operation timed, with one look at the clock each. An item counts as so many `records`;
    after `seconds` it ends early."""
    latencies = array("q")
    note, clock = latencies.append, perf_counter_ns
    used = process_time()
    began = before = clock()
    until = began + seconds * 1e9
    for item in items:
        operation(item)
        now = clock()
        note(now - before)
        before = now
        if now > until:
            break
    extra = {"cpu_seconds": process_time() - used}
    return Sample(len(latencies) * records, (before - began) / 1e9, latencies, extra)


def cycle_of(pool: Sequence[T], count: int) -> Iterable[T]:
    """`count` items out of a pool that is gone through again and again, at the speed of C."""
    whole, rest = divmod(count, len(pool))
    return chain(chain.from_iterable(repeat(pool, whole)), pool[:rest])


def median(values: Iterable[float]) -> float:
    return percentile(sorted(values), 50)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value that so many percent are at or below, between neighbours where it falls there."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> float:
    """How far the runs lie apart: (largest - smallest) / median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


# --- processors -----------------------------------------------------------------------------

_all_processors: set[int] | None = None


@contextlib.contextmanager
def pinned() -> Iterator[int | None]:
    """Keep this process on one core, so that "one core" is true also of the threads that work in
    the background; yields its number, `None` where the system cannot do that."""
    global _all_processors
    if not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before = os.sched_getaffinity(0)
    _all_processors = _all_processors or before
    os.sched_setaffinity(0, {max(before)})
    try:
        yield max(before)
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def unpinned() -> Iterator[None]:
    """For starting a server inside of `pinned`: it gets all cores, as it would have outside."""
    if _all_processors is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _all_processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# --- limits ---------------------------------------------------------------------------------


class RawFile:
    """A new file and the system calls that any log has to make."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._path = path
        self._fd = os.open(path, flags, 0o644)

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink()

    def time_writes(self, items: Iterable[Buffer]) -> float:
        """Seconds for writing all items, with no call of a Python function in between."""
        fd, write = self._fd, os.write
        began = perf_counter_ns()
        for data in items:
            write(fd, data)
        return (perf_counter_ns() - began) / 1e9

    def writer(self) -> Callable[[Buffer], object]:
        fd, write = self._fd, os.write

        def put(data: Buffer) -> None:
            write(fd, data)

        return put

    def syncing_writer(self) -> Callable[[Buffer], object]:
        fd, write, sync = self._fd, os.write, getattr(os, "fdatasync", os.fsync)

        def put(data: Buffer) -> None:
            write(fd, data)
            sync(fd)

        return put


def read_files(paths: Sequence[Path], piece: int = READ_SIZE) -> int:
    """Read files from beginning to end with `read()`, in pieces; the number of bytes."""
    total = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            while data := os.read(fd, piece):
                total += len(data)
        finally:
            os.close(fd)
    return total


def memory_copy(size: int, piece: int = READ_SIZE) -> int:
    """Copy so many bytes in memory, in pieces between two buffers of fixed place."""
    source, target = bytes(piece), bytearray(piece)
    for _ in range(size // piece):
        target[:] = source
    return size // piece * piece


# --- the machine ----------------------------------------------------------------------------


def conditions(folder: Path) -> dict[str, Any]:
    """What a figure depends on, and what somebody else needs to know to compare with it."""
    system, device = file_system(folder)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tailrace": __version__,
        "kernel": IMPLEMENTATION,
        "crc32c": CRC_BACKEND,
        "file_system": system,
        "device": device,
        "processor": _processor(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def file_system(folder: Path) -> tuple[str, str]:
    """(type, device) of the file system that holds a folder; "unknown" where nobody tells."""
    number = os.stat(folder).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    found = ("unknown", "unknown")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == name:
                found = (source.split()[0], source.split()[1] + _cache_of(name))
    return found


def _cache_of(device: str) -> str:
    """Whether the drive has a volatile cache: it decides what a flush costs."""
    for place in ("queue", "../queue"):
        with contextlib.suppress(OSError):
            text = Path(f"/sys/dev/block/{device}/{place}/write_cache").read_text()
            return f" ({text.strip()} cache)"
    return ""


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# --- for people -----------------------------------------------------------------------------


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    """Three figures that count, in the largest unit that leaves something before the point."""
    scale, unit = next((s for s in steps if value >= s[0]), steps[-1])
    number = value / scale
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {unit}"


def human_rate(per_second: float) -> str:
    return _scaled(per_second, ((1e6, "M/s"), (1e3, "k/s"), (1, "/s")))


def human_time(nanoseconds: float) -> str:
    return _scaled(nanoseconds, ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")))


def human_bytes(size: float) -> str:
    return _scaled(size, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))
