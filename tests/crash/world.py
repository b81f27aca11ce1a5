"""The stage of the crash tests: a clock that stands still, a folder, and short ways to a log on it.

Nothing here depends on the time of day, so a run is the same whenever it is repeated: the length
of a varint, and with it every position in a segment, follows from the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tailrace import Log, Record
from tailrace.kernel import BatchInfo, batches
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import FOLDER as SIDE
from tailrace.testing import Call, FaultyFileSystem, SimulatedCrash, SimulatedDisk

FOLDER = "log"
SIDE_FOLDER = f"{FOLDER}/{SIDE}"
NOW_MS = 1_700_000_000_000

# A few batches fill a segment, and every second batch or so is in an index.
SMALL: dict[str, Any] = {
    "segment_bytes": 400,
    "index_interval": 100,
    "time_index_interval": "2ms",
}


class Clock:
    """The time, for the engine and for what the tests expect of it."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000

    def tick(self, milliseconds: int = 1) -> int:
        self.now_ms += milliseconds
        return self.now_ms


CLOCK = Clock()


def open_log(fs: FileSystem, *, flush: str | None = None, **options: Any) -> Log:
    """A log with small segments and no threads of its own."""
    return Log(FOLDER, fs=fs, flush=flush, upkeep=False, **{**SMALL, **options})


def observe(fs: FileSystem) -> Log:
    """The same log, read-only."""
    return open_log(fs, read_only=True)


def side(name: str) -> str:
    return f"{SIDE_FOLDER}/{name}"


def segment(base: int, extension: str = "seg") -> str:
    return f"{FOLDER}/{base:020d}.{extension}"


def segments(disk: SimulatedDisk) -> list[str]:
    """The paths of the segments, in order."""
    return [path for path in disk.files() if path.endswith(".seg")]


def is_side_file(path: str) -> bool:
    return os.path.dirname(path) == SIDE_FOLDER


class Placed(NamedTuple):
    """A batch and the file it is in."""

    path: str
    info: BatchInfo

    @property
    def start(self) -> int:
        return self.info.position

    @property
    def end(self) -> int:
        return self.info.position + self.info.size

    @property
    def offsets(self) -> range:
        return range(self.info.base_offset, self.info.next_offset)


def placed_batches(disk: SimulatedDisk) -> list[Placed]:
    """Every batch of an undamaged log, in order."""
    found = []
    for path in segments(disk):
        data = disk.read(path)
        found += [Placed(path, info) for info in batches(data, 0, len(data))]
    return found


def record(text: str, *, timestamp: int | None = None, key: str | None = None) -> Record:
    return Record(timestamp=timestamp, key=key, value=text.encode())


def offsets(records: Iterable[Record]) -> list[int]:
    """The offsets of records that were read, which all have one."""
    found = []
    for read in records:
        assert read.offset is not None
        found.append(read.offset)
    return found


# --- disks ----------------------------------------------------------------------------------


def settle(disk: SimulatedDisk) -> None:
    """Let everything reach the medium, as it does when nothing happens for a while."""
    for path in disk.files():
        file = disk.open(path, write=True)
        file.sync()
        file.close()
        disk.sync_dir(os.path.dirname(path))


def reboot(disk: SimulatedDisk) -> None:
    """Start the machine anew, without a loss."""
    settle(disk)
    disk.crash(0)


def overwrite(disk: SimulatedDisk, path: str, data: bytes) -> None:
    """Give a file other contents, on the medium too."""
    disk.put(path, data)


def cut(disk: SimulatedDisk, path: str, size: int) -> None:
    overwrite(disk, path, disk.read(path)[:size])


def flip(disk: SimulatedDisk, path: str, position: int, mask: int = 0xFF) -> None:
    disk.corrupt(path, position, bytes((disk.read(path)[position] ^ mask,)))


def remove(disk: SimulatedDisk, path: str) -> None:
    disk.unlink(path)
    disk.sync_dir(os.path.dirname(path))


def image(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files()}


Fate = Callable[[SimulatedDisk], None]


def fates(seeds: Iterable[int]) -> Iterator[tuple[str, Fate]]:
    """What may befall a machine: the end of a process, and power cuts."""
    yield "kill", SimulatedDisk.kill
    for seed in seeds:
        yield f"crash({seed})", _power_cut(seed)


def _power_cut(seed: int) -> Fate:
    return lambda disk: disk.crash(seed)


def run_until_crash(action: Callable[[], object]) -> bool:
    """Whether a simulated crash ended the action."""
    try:
        action()
    except SimulatedCrash:
        return True
    return False


def calls_of(disk: SimulatedDisk, action: Callable[[FileSystem], object]) -> list[Call]:
    """The file-system calls that the action makes on a copy of the disk."""
    counting = FaultyFileSystem(disk.clone())
    action(counting)
    return counting.calls
