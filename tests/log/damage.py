"""A log on a simulated disk, and ways to damage it, for the tests of the offline tools."""

from __future__ import annotations

import random
from typing import NamedTuple

from tailrace import Corrupt, Log
from tailrace.kernel import batches
from tailrace.log.fs import FileSystem
from tailrace.testing import SimulatedDisk
from tailrace.testing.faults import Operation

FOLDER = "log"

# The calls that change something, or begin to.
WRITES: tuple[Operation, ...] = (
    *("open", "pwrite", "truncate", "sync", "rename", "unlink", "make_dirs", "sync_dir"),
)


class Placed(NamedTuple):
    """A batch, and where it is."""

    path: str
    position: int
    size: int
    first: int
    next: int


def build(
    seed: int = 0, *, appends: int = 30, flush: str = "sync", segment_bytes: int = 500
) -> SimulatedDisk:
    """A closed log of several small segments; each value says its offset."""
    disk = SimulatedDisk(seed)
    rng = random.Random(seed)
    with Log(
        FOLDER, fs=disk, upkeep=False, flush=flush, segment_bytes=segment_bytes, index_interval=100
    ) as log:
        for _ in range(appends):
            end = log.end_offset
            log.append([b"%d" % (end + i) for i in range(rng.randint(1, 4))]).wait()
    return disk


def segments(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".seg")]


def layout(disk: SimulatedDisk) -> list[Placed]:
    """Every batch of an undamaged log."""
    found = []
    for path in segments(disk):
        data = disk.read(path)
        for info in batches(data, 0, len(data)):
            placed = Placed(path, info.position, info.size, info.base_offset, info.next_offset)
            found.append(placed)
    return found


def spoil(disk: SimulatedDisk, batch: Placed, at: int = 50) -> None:
    """Flip a byte of a batch."""
    position = batch.position + min(at, batch.size - 1)
    byte = disk.read(batch.path)[position]
    disk.corrupt(batch.path, position, bytes([byte ^ 0xFF]))


class Loss(NamedTuple):
    """Offsets of batches that are damaged; and of whole ones that nothing vouches for, because
    what is in front of them and behind them in the file is damaged, too: those may be given up."""

    sure: set[int]
    possible: set[int]


def damage(disk: SimulatedDisk, rng: random.Random, *, spare_last: bool = False) -> Loss:
    """Damage segments in a few places."""
    placed = layout(disk)
    before = {path: disk.read(path) for path in segments(disk)}
    spared = placed[-1].path if spare_last else ""
    for _ in range(rng.randint(1, 4)):
        choice = [path for path in segments(disk) if disk.read(path) and path != spared]
        if choice:
            how = rng.choice([_overwrite, _overwrite, _overwrite, _zero, _shorten, _unlink])
            how(disk, rng.choice(choice), rng)
    spoiled = [_is_spoiled(disk, batch, before[batch.path]) for batch in placed]
    loss = Loss(set(), set())
    for i, batch in enumerate(placed):
        is_last_of_file = i + 1 == len(placed) or placed[i + 1].path != batch.path
        if spoiled[i]:
            loss.sure.update(range(batch.first, batch.next))
        elif not is_last_of_file and spoiled[i + 1]:
            loss.possible.update(range(batch.first, batch.next))
    return loss


def _is_spoiled(disk: SimulatedDisk, batch: Placed, before: bytes) -> bool:
    there = disk.read(batch.path) if batch.path in disk.files() else b""
    where = slice(batch.position, batch.position + batch.size)
    return there[where] != before[where]


def _overwrite(disk: SimulatedDisk, path: str, rng: random.Random) -> None:
    data = disk.read(path)
    position = rng.randrange(len(data))
    size = min(rng.choice([1, 1, 8, 60, 200]), len(data) - position)
    disk.corrupt(path, position, rng.randbytes(size))


def _zero(disk: SimulatedDisk, path: str, rng: random.Random) -> None:
    data = disk.read(path)
    position = rng.randrange(len(data))
    disk.corrupt(path, position, bytes(min(rng.randrange(1, 300), len(data) - position)))


def _shorten(disk: SimulatedDisk, path: str, rng: random.Random) -> None:
    disk.put(path, disk.read(path)[: rng.randrange(len(disk.read(path)))])


def _unlink(disk: SimulatedDisk, path: str, rng: random.Random) -> None:
    disk.unlink(path)
    disk.sync_dir(FOLDER)


def read_past_damage(fs: FileSystem, start: int | str = "first") -> tuple[list[int], int]:
    """The offsets of all records that can be read, and how often reading had to be resumed; each
    value must be the one of its offset."""
    found: list[int] = []
    resumed = 0
    with Log(FOLDER, fs=fs, upkeep=False) as log:
        while True:
            try:
                for record in log.read(start):  # type: ignore[arg-type]
                    assert record.offset is not None
                    assert record.value == b"%d" % record.offset
                    found.append(record.offset)
                return found, resumed
            except Corrupt as error:
                start = error.next_offset or 0
                resumed += 1
