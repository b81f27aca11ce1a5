"""Walking a segment file: whole batches one after the other, and what to do where one is not.

`Chunks` reads a file in pieces and hands out regions of batches whose checksums hold. `Facts` is
everything worth knowing about a segment, indexes included, gathered batch by batch in one pass;
the writer keeps it up to date as it appends, and `scan` makes it again from the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.kernel import (
    BAD,
    COMPLETE,
    HEADER_SIZE,
    PARTIAL,
    BatchInfo,
    Malformed,
    check,
    read_header,
    tally,
)
from tailrace.kernel.layout import MAGIC_BYTES
from tailrace.log.fs import File, read_exactly
from tailrace.log.index import OffsetIndex, TimeIndex

__all__ = [
    "LARGEST_READ",
    "Chunks",
    "Damage",
    "Facts",
    "Memory",
    "Region",
    "find_next_batch",
    "header_at",
    "hop",
    "scan",
]

_FIRST_READ = 16 << 10  # one index interval and a batch of usual size, for reads of one record
_HOPS = 1_000  # to find out whether a segment has large batches
LARGEST_READ = 2 << 20  # stays in the processor's cache while it is checked and decoded
LARGEST_KEPT = (16 << 20) + HEADER_SIZE  # a batch as large as the options make them


class Region(NamedTuple):
    """Whole, checked batches. `data` is valid until the next region is asked for."""

    data: memoryview
    position: int
    next_offset: int

    @property
    def base_offset(self) -> int:
        return int.from_bytes(self.data[8:16], "little")


class Memory:
    """What is read into, kept from one file to the next: to have new memory cleared, by Python and
    the system, takes longer than to read as much. For one walk at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def room(self, size: int) -> bytearray:
        """At least so many bytes, mostly those of the last time. Batches of one log are nearly of
        one size, so the next one shall fit, too."""
        if not size <= len(self._buffer) <= LARGEST_KEPT:
            self._buffer = bytearray(max(size, min(size + size // 8, LARGEST_KEPT)))
        return self._buffer


class Chunks:
    """Regions of a file from `position` to `stop`, the first of about `read_size`, then larger.

    `next()` gives `None` at the stop, or where no whole batch begins; `position` then says where,
    and `status` whether the bytes there are `PARTIAL` (the file ends too early) or `BAD`.
    """

    def __init__(
        self,
        file: File,
        position: int,
        stop: int,
        read_size: int = _FIRST_READ,
        largest: int = LARGEST_READ,
        memory: Memory | None = None,
    ) -> None:
        self._file = file
        self._stop = stop
        self._read_size = read_size
        self._largest = largest
        self._memory = memory or Memory()
        self._buffer: bytes | bytearray = b""
        self._wanted = 0  # bytes of it, of which so many are there, and so many were handed out
        self._filled = 0
        self._handed_out = 0
        self.position = position
        self.status = COMPLETE

    def next(self) -> Region | None:
        if self._handed_out:
            left = self._filled - self._handed_out
            self._make_room(max(self._read_size, left))
        while self.position < self._stop:
            at_end = self._fill()
            end, next_offset, self.status = check(self._buffer, 0, self._filled)
            if end:
                region = Region(memoryview(self._buffer)[:end], self.position, next_offset)
                self.position += end
                self._handed_out = end
                self._read_size = min(self._read_size * 4, self._largest)
                return region
            if self.status != PARTIAL or at_end:
                return None
            self._make_room(self._size_of_first())
        self.status = COMPLETE
        return None

    def _make_room(self, size: int) -> None:
        """For so many bytes, if there are as many; with those in front that are left."""
        rest = memoryview(self._buffer)[self._handed_out : self._filled]
        self._wanted = min(size, self._stop - self.position)
        self._buffer = self._memory.room(self._wanted)
        memoryview(self._buffer)[: len(rest)] = rest
        self._filled, self._handed_out = len(rest), 0

    def _fill(self) -> bool:
        """Read what is wanted; true when the file has no more before the stop."""
        if not self._buffer:  # the first read is often the only one: spare it clearing memory
            size = min(self._read_size, self._stop - self.position)
            self._buffer = read_exactly(self._file, size, self.position)
            self._wanted = self._filled = len(self._buffer)
            return self._filled < size or self.position + size >= self._stop
        view = memoryview(self._buffer)[: self._wanted]
        while self._filled < self._wanted:
            read = self._file.pread_into(view[self._filled :], self.position + self._filled)
            if not read:
                return True
            self._filled += read
        return self._filled >= self._stop - self.position

    def _size_of_first(self) -> int:
        """The batch at the front does not fit: its header tells its size, if that is there."""
        if self._filled >= HEADER_SIZE:
            return max(read_header(self._buffer, 0).size, HEADER_SIZE)
        return max(4 * self._wanted, HEADER_SIZE)


class Damage(NamedTuple):
    """Bytes `position <= b < end` hold no readable batch; records from `first_offset` up to
    `next_offset` are missing."""

    position: int
    end: int
    first_offset: int
    next_offset: int


class Facts:
    """What a segment holds up to `size`. The writer adds batches in order; a reader may use the
    indexes meanwhile."""

    def __init__(self, base: int, index_interval: int, time_index_interval_ms: int) -> None:
        self.base = base
        self.size = 0
        self.next_offset = base
        self.records = 0
        self.first_timestamp = 0  # the first batch's largest: the age of the segment counts from it
        self.max_timestamp = 0
        self.offsets = OffsetIndex(base, index_interval)
        self.times = TimeIndex(base, time_index_interval_ms)
        self.damages: list[Damage] = []

    def observe(self, base_offset: int, count: int, size: int, max_timestamp: int) -> bool:
        """Count the batch at `self.size`; true when an index got an entry."""
        if not self.records:
            self.first_timestamp = self.max_timestamp = max_timestamp
        elif max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        indexed = self.offsets.observe(base_offset, self.size, size)
        indexed = self.times.observe(base_offset, max_timestamp) or indexed
        self.records += count
        self.size += size
        self.next_offset = base_offset + count
        return indexed

    def observe_region(self, data: memoryview, contiguous_from: int | None = None) -> bool:
        """Count the checked batches at `self.size`, as if one at a time; false when there is one
        that cannot follow those before it, which is then at `self.size`."""
        offsets, times = self.offsets, self.times
        found = tally(
            data,
            0,
            len(data),
            position=self.size,
            base=self.base,
            next_offset=self.next_offset,
            contiguous_from=contiguous_from,
            last_indexed=offsets.last_indexed,
            unindexed_bytes=offsets.unindexed_bytes,
            index_interval=offsets.interval,
            next_timestamp=times.next_timestamp,
            time_index_interval_ms=times.interval_ms,
        )
        if found.records:
            if not self.records:
                self.first_timestamp = self.max_timestamp = found.first_timestamp
            self.max_timestamp = max(self.max_timestamp, found.max_timestamp)
            offsets.extend(*found.offset_entries, found.unindexed_bytes)
            times.extend(*found.time_entries)
            self.records += found.records
            # Last: what the size says is there, readers look up without waiting.
            self.size += found.end
            self.next_offset = found.next_offset
        return found.end == len(data)


def scan(
    file: File,
    facts: Facts,
    stop: int,
    *,
    durable_size: int | None = None,
    contiguous: bool = False,
) -> int:
    """Extend `facts` over the file up to `stop`; `facts.size` is how far it got.

    What is not whole below `durable_size` (everywhere, by default) is damage: the scan notes what
    is missing and goes on behind it, if anything readable follows. From there on, the first thing
    that is not whole ends it; and if the offsets have to be `contiguous`, so does a batch that
    does not start at the very next one: an old batch from elsewhere, whole by itself, is then not
    taken for one of this log's. Returns `COMPLETE`, or `PARTIAL` or `BAD` for what is at
    `facts.size`.
    """
    durable_size = stop if durable_size is None else durable_size
    contiguous_from = durable_size if contiguous else None
    while True:
        status = _scan_whole_batches(file, facts, stop, contiguous_from)
        if status == COMPLETE or facts.size >= durable_size:
            return status
        found = find_next_batch(file, facts.size, stop, facts.next_offset)
        if found is None or found.position > durable_size:
            return status
        size = facts.size
        if _scan_whole_batches(file, facts, stop, contiguous_from) == COMPLETE or facts.size > size:
            continue  # it was being written when we first looked
        facts.damages.append(
            Damage(facts.size, found.position, facts.next_offset, found.base_offset)
        )
        facts.size = found.position
        facts.next_offset = found.base_offset


def _scan_whole_batches(file: File, facts: Facts, stop: int, contiguous_from: int | None) -> int:
    chunks = Chunks(file, facts.size, stop, LARGEST_READ)
    while (region := chunks.next()) is not None:
        if not facts.observe_region(region.data, contiguous_from):
            return BAD
    return chunks.status


def find_next_batch(file: File, damaged: int, stop: int, min_offset: int) -> BatchInfo | None:
    """The next whole batch behind the one at `damaged`, with an offset of at least `min_offset`;
    its `position` is the one in the file.

    The damaged batch's own length is believed if a whole batch follows there. Otherwise the bytes
    are searched; a hit counts only if the end or a header with the right offset follows it, since
    a record's value may hold a batch of another log.
    """
    header = header_at(file, damaged, stop)
    if header is not None:
        after = damaged + header.size
        if after == stop:
            return None
        found = _batch_at(file, after, stop)
        if found is not None and found.base_offset == max(header.next_offset, min_offset):
            return found
    position = damaged + 1
    while position < stop:
        piece = file.pread(min(LARGEST_READ, stop - position), position)
        start = 0
        while (hit := piece.find(MAGIC_BYTES, start)) >= 0:
            found = _batch_at(file, position + hit, stop)
            if found is not None and found.base_offset >= min_offset:
                after = found.position + found.size
                header = header_at(file, after, stop)
                if after == stop or (header and header.base_offset == found.next_offset):
                    return found
            start = hit + 1
        if len(piece) < len(MAGIC_BYTES):
            return None
        position += len(piece) - len(MAGIC_BYTES) + 1  # the magic may lie across two pieces
    return None


def hop(file: File, facts: Facts, stop: int) -> None:
    """Extend `facts` over batches that are known to be whole, from header to header; as far as that
    is quicker than to read everything."""
    for _ in range(_HOPS):
        info = header_at(file, facts.size, stop)
        if info is None or info.base_offset != facts.next_offset:
            return
        facts.observe(info.base_offset, info.count, info.size, info.max_timestamp)


def header_at(file: File, position: int, stop: int) -> BatchInfo | None:
    """The header at a position, if it fits in front of `stop`; its batch may be damaged."""
    try:
        info = read_header(file.pread(HEADER_SIZE, position), 0)
    except Malformed:
        return None
    return BatchInfo(position, *info[1:]) if position + info.size <= stop else None


def _batch_at(file: File, position: int, stop: int) -> BatchInfo | None:
    info = header_at(file, position, stop)
    if info is None or Chunks(file, position, position + info.size).next() is None:
        return None
    return info
