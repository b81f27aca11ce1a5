"""What a file holds, in the page cache and on the medium, and what a power cut makes of it.

A file is two images and the changes between them:

- `cached` is what every process reads;
- `durable` is what the last successful sync left on the medium;
- `changes` are the writes and truncations since, in order.

After a power cut a byte that no unsynced change touched is as it was synced. A 512-byte sector
that some touched holds any version it went through since the sync, chosen apart from every other
sector, and may be torn between two versions. The size is one that the file went through, or lies
on the way from one to the next. Bytes that the size covers and nothing wrote are zeros.

This is more than any one file system does, and nothing that POSIX rules out. The one thing it
takes from the hardware is what SQLite calls power-safe overwrite: a write that fails half-way
damages the bytes it was to change, and none beside them.

Not thread-safe: `SimulatedDisk` holds a lock around every call.
"""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["SECTOR", "Contents", "Damage"]

SECTOR = 512

# How much of a file's unsynced sectors survives, drawn once per file and cut: with one even chance
# per sector, "all but one" and "only one" would never come up in a file of some size.
_SURVIVAL = (0.0, 0.1, 0.5, 0.9, 1.0)


class Damage(NamedTuple):
    """How rough a power cut is. Each is a probability.

    `torn`: that an unsynced sector is torn (half of the files have none).
    `garbage`: that the part of a torn sector that did not make it is junk or zeros, not its old
    bytes.
    `in_order`: that a file's changes reached the disk in order, up to one that is cut short; the
    common case in the field, and a rare one among random subsets.
    """

    torn: float = 0.05
    garbage: float = 0.2
    in_order: float = 0.3


class Change(NamedTuple):
    """`[start, end)` became `data` (zeros if `None`: a truncation), and the file `size` long."""

    start: int
    end: int
    data: bytes | None
    size: int


class Contents:
    """The bytes of one file."""

    __slots__ = ("cached", "changes", "durable")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.changes: list[Change] = []

    def copy(self) -> Contents:
        twin = Contents()
        twin.cached[:] = self.cached
        twin.durable[:] = self.durable
        twin.changes[:] = self.changes
        return twin

    def write(self, data: bytes, position: int) -> None:
        if not data:
            return
        if position > len(self.cached):
            self.cached.extend(bytes(position - len(self.cached)))
        end = position + len(data)
        self.cached[position:end] = data
        self.changes.append(Change(position, end, data, len(self.cached)))

    def truncate(self, size: int) -> None:
        """Cut or extend. What was cut off reads as zeros if the file grows again."""
        old = len(self.cached)
        if size < old:
            del self.cached[size:]
        elif size > old:
            self.cached.extend(bytes(size - old))
        else:
            return
        self.changes.append(Change(size, max(size, old), None, size))

    def sync(self) -> None:
        """Make the changes durable."""
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def lose_dirty(self) -> None:
        """What Linux does when a sync fails: the dirty pages are marked clean, unwritten.

        They still read as written until they leave the cache, and no later sync writes them. The
        size is metadata, goes another way, and stays unsynced.
        """
        self.changes = [
            change if change.data is None else Change(change.size, change.size, None, change.size)
            for change in self.changes
        ]

    def evict(self) -> None:
        """Drop clean pages, so that what `lose_dirty` lost reads as it is on the medium."""
        image = bytearray(self.durable)
        for change in self.changes:
            _apply(image, change)
        self.cached = image

    def cut_power(self, rng: random.Random, damage: Damage) -> None:
        """Replace both images by one that a power cut may leave."""
        if self.changes:
            if rng.random() < damage.in_order:
                self._keep_prefix(rng)
            else:
                self._keep_sectors(rng, damage)
            self.changes.clear()
        self.cached = bytearray(self.durable)

    def _keep_prefix(self, rng: random.Random) -> None:
        """The changes arrive in order, and the power goes in the middle of one."""
        whole = rng.randint(0, len(self.changes))
        for change in self.changes[:whole]:
            _apply(self.durable, change)
        if whole < len(self.changes):
            start, end, data, _ = self.changes[whole]
            if data is not None:
                part = data[: rng.randrange(end - start)]
                end = start + len(part)
                size = max(end, len(self.durable)) if part else len(self.durable)
                _apply(self.durable, Change(start, end, part, size))

    def _keep_sectors(self, rng: random.Random, damage: Damage) -> None:
        """Each sector survives on its own, and so does the size.

        The size is metadata, which is kept up to some step; truncations after that were lost, and
        left the sectors alone.
        """
        step, size = self._choose_size(rng)
        survival = rng.choice(_SURVIVAL)
        torn = rng.choice((0.0, damage.torn))
        image = bytearray(self.durable)
        _resize(image, max(size, len(image)))
        for sector, touching in self._changes_by_sector(step).items():
            at = sector * SECTOR
            if at >= size:
                continue
            count = len(touching)
            version = count if rng.random() < survival else rng.randrange(count)
            if version == 0:
                continue
            kept = _versioned(image, at, touching[:version])
            if torn and rng.random() < torn:
                before = _versioned(image, at, touching[: rng.randrange(version)])
                if rng.random() < damage.garbage:
                    _scribble(rng, before, at, touching[:version])
                kept = _tear(rng, before, kept)
            image[at : at + SECTOR] = kept[: len(image) - at]
        _resize(image, size)
        self.durable = image

    def _choose_size(self, rng: random.Random) -> tuple[int, int]:
        """How many changes of the size were kept, and the size."""
        sizes = [len(self.durable), *(change.size for change in self.changes)]
        step = len(self.changes) if rng.random() < 0.5 else rng.randrange(len(sizes))
        size = sizes[step]
        if step and size > sizes[step - 1] and rng.random() < 0.2:
            size = rng.randint(sizes[step - 1], size)
        return step, size

    def _changes_by_sector(self, step: int) -> dict[int, list[Change]]:
        touched: dict[int, list[Change]] = {}
        for index, change in enumerate(self.changes):
            lost = change.data is None and index >= step
            if change.start < change.end and not lost:
                for sector in range(change.start // SECTOR, (change.end - 1) // SECTOR + 1):
                    touched.setdefault(sector, []).append(change)
        return touched


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


def _apply(image: bytearray, change: Change) -> None:
    if change.data is not None:
        _resize(image, max(len(image), change.end))
        image[change.start : change.end] = change.data
    else:
        end = min(change.end, len(image))
        if change.start < end:
            image[change.start : end] = bytes(end - change.start)
    _resize(image, change.size)


def _versioned(image: bytearray, at: int, changes: list[Change]) -> bytearray:
    """The sector at `at` with these changes applied, in order."""
    sector = image[at : at + SECTOR]
    sector.extend(bytes(SECTOR - len(sector)))
    for start, end, data, _ in changes:
        low = max(start, at)
        high = min(end, at + SECTOR)
        new = bytes(high - low) if data is None else data[low - start : high - start]
        sector[low - at : high - at] = new
    return sector


def _tear(rng: random.Random, before: bytearray, after: bytearray) -> bytearray:
    """One side of a random byte is new and the other is not; drives write in either direction."""
    cut = rng.randrange(1, SECTOR)
    if rng.random() < 0.5:
        return after[:cut] + before[cut:]
    return before[:cut] + after[cut:]


def _scribble(rng: random.Random, sector: bytearray, at: int, changes: list[Change]) -> None:
    """Put junk or zeros where these changes were to write, and nowhere else."""
    zeros = rng.random() < 0.5
    for start, end, data, _ in changes:
        if data is not None:
            low = max(start, at) - at
            high = min(end, at + SECTOR) - at
            sector[low:high] = bytes(high - low) if zeros else rng.randbytes(high - low)
