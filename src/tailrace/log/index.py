"""The two sparse indexes of a segment, `.idx` by offset and `.tix` by time.

Both are hints: they say where to start looking, and a reader checks what it finds there. They carry
no checksum because they can always be made again from the segment (`scan.py`), and are, whenever
they are missing, short, stale or wrong; the seal of a closed segment (`sidefiles.py`) tells.

An index lives in memory as arrays and is mirrored into its file a block at a time. One writer at a
time; readers may look up while the writer adds, since arrays only grow.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import ClassVar

from tailrace.log.fs import File, write_all

__all__ = ["IndexFile", "OffsetIndex", "TimeIndex"]

_VERSION = 1


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


class OffsetIndex:
    """relative offset -> position of the batch that starts there, one entry per `interval` bytes.

    The first batch of a segment always has an entry and is not counted; after it, each batch adds
    its size, and the one that fills the interval gets the entry.
    """

    MAGIC: ClassVar[int] = 0x464C5849
    HEADER: ClassVar[struct.Struct] = struct.Struct("<IBQII11x")
    ENTRY: ClassVar[struct.Struct] = struct.Struct("<II")

    def __init__(self, base: int, interval: int) -> None:
        self.base = base
        self.interval = interval
        self._relative = array("I")
        self._positions = array("I")
        self.unindexed_bytes = 0  # since the last entry

    def __len__(self) -> int:
        return len(self._relative)

    @property
    def last_indexed(self) -> int:
        """The relative offset of the last entry; -1 if there is none."""
        return self._relative[-1] if self._relative else -1

    @property
    def file_size(self) -> int:
        return self.HEADER.size + self.ENTRY.size * len(self)

    def observe(self, base_offset: int, position: int, size: int) -> bool:
        """Count a batch, in order; true when it got an entry."""
        if self._relative:
            self.unindexed_bytes += size
            if self.unindexed_bytes < self.interval:
                return False
            self.unindexed_bytes = 0
        self.add(base_offset, position)
        return True

    def add(self, base_offset: int, position: int) -> None:
        """Give the batch at `position` an entry, once: an append that was interrupted and taken
        back may have done it for the batch that is there now."""
        if self._relative and self._relative[-1] == base_offset - self.base:
            return
        # Readers bisect the offsets, so the position must be there first.
        self._positions.append(position)
        self._relative.append(base_offset - self.base)

    def extend(self, relative: bytes, positions: bytes, unindexed_bytes: int) -> None:
        """Add the entries of many batches that `kernel.tally` has counted."""
        self.settle()  # in case that the last time was interrupted
        if relative:
            # Readers bisect the offsets, so the positions must be there first.
            self._positions.frombytes(positions)
            self._relative.frombytes(relative)
        self.unindexed_bytes = unindexed_bytes

    def settle(self) -> None:
        """Drop half entries, which an interrupt may have left."""
        del self._positions[len(self._relative) :]

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last indexed batch at or below `offset`, or of the start."""
        i = bisect_right(self._relative, max(offset - self.base, 0)) - 1
        if i < 0:
            return self.base, 0
        return self.base + self._relative[i], self._positions[i]

    def header(self) -> bytes:
        return self.HEADER.pack(self.MAGIC, _VERSION, self.base, len(self), self.interval)

    def entries_from(self, first: int) -> bytes:
        """The entries from the given one on, as they are in the file."""
        pairs = array("I", bytes(8 * (len(self) - first)))
        pairs[::2] = self._relative[first:]
        pairs[1::2] = self._positions[first : len(self)]
        return _little_endian(pairs).tobytes()

    def to_bytes(self) -> bytes:
        return self.header() + self.entries_from(0)

    @classmethod
    def from_bytes(cls, data: bytes, base: int) -> OffsetIndex | None:
        """`None` when the bytes are not the index of this segment."""
        if len(data) < cls.HEADER.size or (len(data) - cls.HEADER.size) % cls.ENTRY.size:
            return None
        magic, version, found_base, _stale_count, interval = cls.HEADER.unpack_from(data)
        if magic != cls.MAGIC or version != _VERSION or found_base != base:
            return None
        index = cls(base, interval or 4096)
        pairs = array("I")
        pairs.frombytes(data[cls.HEADER.size :])
        pairs = _little_endian(pairs)
        index._relative, index._positions = pairs[::2], pairs[1::2]
        return index

    def entries(self) -> list[tuple[int, int]]:
        """(offset, position) of every entry."""
        return [(self.base + r, p) for r, p in zip(self._relative, self._positions, strict=True)]


class TimeIndex:
    """timestamp -> relative offset of the batch that reached it.

    An entry is added when a batch's largest timestamp is at least `interval_ms` above the last
    entry's, so entries rise even when clocks go back, and every batch before entry i is older than
    entry i.
    """

    MAGIC: ClassVar[int] = 0x464C5854
    HEADER: ClassVar[struct.Struct] = struct.Struct("<IBQIqq3x")
    ENTRY: ClassVar[struct.Struct] = struct.Struct("<qI")

    def __init__(self, base: int, interval_ms: int) -> None:
        self.base = base
        self.interval_ms = interval_ms
        self._timestamps = array("q")
        self._relative = array("I")
        self.next_timestamp = 1  # the smallest one that gets an entry

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def file_size(self) -> int:
        return self.HEADER.size + self.ENTRY.size * len(self)

    def observe(self, base_offset: int, max_timestamp: int) -> bool:
        """Count a batch, in order; true when it got an entry."""
        if max_timestamp < self.next_timestamp:
            return False
        self.next_timestamp = max_timestamp + max(self.interval_ms, 1)
        self._relative.append(base_offset - self.base)
        self._timestamps.append(max_timestamp)
        return True

    def extend(self, timestamps: bytes, relative: bytes) -> None:
        """Add the entries of many batches that `kernel.tally` has counted."""
        self.settle()  # in case that the last time was interrupted
        if timestamps:
            (newest,) = struct.unpack("=q", timestamps[-8:])
            # First, so that a batch that is counted again gets no second entry.
            self.next_timestamp = newest + max(self.interval_ms, 1)
            # Readers bisect the timestamps, so the offsets must be there first.
            self._relative.frombytes(relative)
            self._timestamps.frombytes(timestamps)

    def settle(self) -> None:
        """Drop half entries, which an interrupt may have left."""
        del self._relative[len(self._timestamps) :]

    def lookup(self, timestamp: int) -> int:
        """An offset such that every batch before it is older than `timestamp`."""
        i = bisect_left(self._timestamps, timestamp) - 1
        return self.base if i < 0 else self.base + self._relative[i]

    def header(self) -> bytes:
        low, high = (self._timestamps[0], self._timestamps[-1]) if self._timestamps else (0, 0)
        return self.HEADER.pack(self.MAGIC, _VERSION, self.base, len(self), low, high)

    def entries_from(self, first: int) -> bytes:
        """The entries from the given one on, as they are in the file."""
        pairs = zip(self._timestamps[first:], self._relative[first:], strict=False)
        return b"".join(self.ENTRY.pack(*pair) for pair in pairs)

    def to_bytes(self) -> bytes:
        return self.header() + self.entries_from(0)

    @classmethod
    def from_bytes(cls, data: bytes, base: int, interval_ms: int) -> TimeIndex | None:
        """`None` when the bytes are not the index of this segment."""
        if len(data) < cls.HEADER.size or (len(data) - cls.HEADER.size) % cls.ENTRY.size:
            return None
        magic, version, found_base, *_stale = cls.HEADER.unpack_from(data)
        if magic != cls.MAGIC or version != _VERSION or found_base != base:
            return None
        index = cls(base, interval_ms)
        for timestamp, relative in cls.ENTRY.iter_unpack(data[cls.HEADER.size :]):
            index._timestamps.append(timestamp)
            index._relative.append(relative)
        if index._timestamps:
            index.next_timestamp = index._timestamps[-1] + max(interval_ms, 1)
        return index

    def entries(self) -> list[tuple[int, int]]:
        """(timestamp, offset) of every entry."""
        return [(t, self.base + r) for t, r in zip(self._timestamps, self._relative, strict=True)]


class IndexFile:
    """An index and the file that mirrors it, a block of entries at a time. Losing the file's tail
    is harmless, so an error while writing only stops the mirroring: the next open sees a short file
    and makes it anew."""

    BLOCK = 256

    def __init__(self, file: File, index: OffsetIndex | TimeIndex) -> None:
        self._file = file
        self._index = index
        self._written = len(index)
        self._broken = False

    def catch_up(self) -> None:
        """Write the entries that the file lacks."""
        index, count = self._index, len(self._index)
        if self._broken or self._written == count:
            return
        position = index.HEADER.size + index.ENTRY.size * self._written
        try:
            write_all(self._file, index.entries_from(self._written), position)
        except OSError:
            self._broken = True
        else:
            self._written = count

    def rewrite(self) -> None:
        """Make the file equal to the index."""
        data = self._index.to_bytes()
        try:
            write_all(self._file, data, 0)
            self._file.truncate(len(data))
        except OSError:
            self._broken = True
        else:
            self._broken = False
            self._written = len(self._index)

    def finish(self) -> None:
        """The header's count and bounds are written when the segment is done with."""
        self.catch_up()
        if not self._broken:
            try:
                write_all(self._file, self._index.header(), 0)
            except OSError:
                self._broken = True

    def close(self) -> None:
        self._file.close()
