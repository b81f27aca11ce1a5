"""A close look at segment files, for the tools that check and repair them.

Opening a log trusts its seals and scans no more than it must. Here every batch is read: its header,
its checksum, each of its records; what is not whole is passed over, and reading goes on at the next
batch that is. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.kernel import (
    CODEC_NAMES,
    COMPRESSED,
    HEADER_SIZE,
    BatchInfo,
    Malformed,
    batches,
    crc32c,
    decode,
    read_header,
)
from tailrace.kernel.layout import CRC_START, HEADER, MAGIC_BYTES, MAX_SECTION, VERSION
from tailrace.log.extents import Extent
from tailrace.log.fs import File, FileSystem, read_exactly
from tailrace.log.offline.index_check import (
    IndexCheck,
    IndexFault,
    OffsetIndexCheck,
    TimeIndexCheck,
)
from tailrace.log.scan import Chunks, Facts, find_next_batch
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import Seal

__all__ = [
    "Fault",
    "Missing",
    "Run",
    "SegmentSurvey",
    "SegmentSurveyor",
    "Unreadable",
    "Whole",
    "fault_of",
    "walk",
]

_READ_SIZE = 1 << 20
_SPAN_MAX = 2**32  # offsets of a segment, relative to its base, fit in 32 bits


class Whole(NamedTuple):
    """A batch whose checksum holds. `data` is valid until the next one is asked for."""

    info: BatchInfo  # its position is the one in the file
    data: memoryview


class Unreadable(NamedTuple):
    """Bytes `position <= b < end` without a whole batch. Records from `first_offset` on are missing
    up to `next_offset`, or up to an unknown one when nothing readable follows."""

    position: int
    end: int
    first_offset: int
    next_offset: int | None
    why: str
    newer: bool = False  # whole, but of a format that a newer tailrace writes


class Fault(NamedTuple):
    """A whole batch whose contents are not right."""

    info: BatchInfo
    why: str
    unreadable: bool  # its records cannot be had at all
    newer: bool = False
    greatest: int | None = None  # timestamp, where the header has another


class Run(NamedTuple):
    """Batches that follow each other in the file, all of them readable."""

    position: int
    end: int
    first_offset: int
    next_offset: int


# --- batch by batch -------------------------------------------------------------------------


def walk(
    file: File, stop: int, *, base: int | None = None, expected: int = 0
) -> Iterator[Whole | Unreadable]:
    """Everything in a segment file up to `stop`. Offsets rise, from `expected` on."""
    chunks = Chunks(file, 0, stop, _READ_SIZE)
    while True:
        region = chunks.next()
        refused = chunks.position if region is None else None
        if region is not None:
            for info in batches(region.data, 0, len(region.data)):
                position = region.position + info.position
                if info.base_offset < expected or _too_far(info, base):
                    refused = position
                    break
                data = region.data[info.position : info.position + info.size]
                yield Whole(info._replace(position=position), data)
                expected = info.next_offset
        elif chunks.position >= stop:
            return
        if refused is not None:
            damage = _unreadable(file, refused, stop, expected)
            yield damage
            if damage.next_offset is None:
                return
            chunks = Chunks(file, damage.end, stop, _READ_SIZE)


def _too_far(info: BatchInfo, base: int | None) -> bool:
    return base is not None and info.next_offset - base > _SPAN_MAX


def _unreadable(file: File, position: int, stop: int, expected: int) -> Unreadable:
    why, newer = _explain(file, position, stop, expected)
    found = find_next_batch(file, position, stop, expected)
    if found is None:
        return Unreadable(position, stop, expected, None, why, newer)
    return Unreadable(position, found.position, expected, found.base_offset, why, newer)


def _explain(file: File, position: int, stop: int, expected: int) -> tuple[str, bool]:
    """Why no batch begins here, and whether that is only because it is of a newer format."""
    head = read_exactly(file, min(HEADER_SIZE, stop - position), position)
    if not head.strip(b"\0"):
        return "there are zeros where a batch should begin", False
    try:
        info = read_header(head, 0)
    except Malformed as error:
        if len(head) < HEADER_SIZE and MAGIC_BYTES.startswith(head[:4]):
            return "the file ends inside a batch's header", False
        return _reason(error), _is_newer(file, head, position, stop)
    if position + info.size > stop:
        return f"the file ends inside a batch of {info.size} bytes", False
    if _checksum(file, position, info.size) != info.crc:
        return "the checksum of the batch is wrong", False
    return f"a batch of offset {info.base_offset} stands where {expected} is due", False


def _reason(error: Malformed) -> str:
    return str(error).partition(": ")[2] or str(error)


def _is_newer(file: File, head: bytes, position: int, stop: int) -> bool:
    """Is this a batch of a later version? Only its checksum tells it from a damaged byte."""
    if len(head) < HEADER_SIZE or head[:4] != MAGIC_BYTES:
        return False
    _, crc, _, length, _, _, _, version, _, _, _ = HEADER.unpack(head)
    if version <= VERSION or length > min(MAX_SECTION, stop - position - HEADER_SIZE):
        return False
    return _checksum(file, position, HEADER_SIZE + int(length)) == int(crc)


def _checksum(file: File, position: int, size: int) -> int:
    return crc32c(read_exactly(file, size - CRC_START, position + CRC_START))


def fault_of(batch: Whole) -> Fault | None:
    """Decode every record; what is wrong with them, if anything."""
    info = batch.info
    if info.flags & COMPRESSED and info.codec not in CODEC_NAMES:
        why = f"it is compressed with codec {info.codec}, which this tailrace does not know"
        return Fault(info, why, unreadable=True, newer=True)
    try:
        records = decode(batch.data, 0, len(batch.data))
    except Malformed as error:
        return Fault(info, _reason(error), unreadable=True)
    timestamps = (record.timestamp for record in records)
    greatest = max(timestamp for timestamp in timestamps if timestamp is not None)
    if greatest != info.max_timestamp:
        why = f"its header says the greatest timestamp is {info.max_timestamp}; it is {greatest}"
        return Fault(info, why, unreadable=False, greatest=greatest)
    return None


# --- segment by segment ---------------------------------------------------------------------


class Missing(NamedTuple):
    """Offsets `first <= o < next` that no readable batch holds. `position` is where in the file the
    next batch begins; `damaged` tells whether there are other bytes in between."""

    first: int
    next: int
    position: int
    damaged: bool


@dataclass
class SegmentSurvey:
    """All there is to say about one segment, up to `size` bytes of its file."""

    base: int
    size: int
    next_offset: int  # behind the last readable record
    batches: int = 0
    records: int = 0
    runs: list[Run] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    overlap: int | None = None  # where batches begin that the next segment has as well
    ends: dict[int, int] = field(default_factory=dict)  # next offset by position, where asked for
    index_faults: dict[str, list[IndexFault]] = field(default_factory=dict)  # by extension
    sealed: bool = False
    seal_is_wrong: bool = False

    @property
    def whole(self) -> bool:
        """Does the file hold readable batches, one behind the other, and nothing else?"""
        if not self.size:
            return True
        return len(self.runs) == 1 and self.runs[0][:2] == (0, self.size)

    @property
    def readable_end(self) -> int:
        """Where in the file the last readable batch ends."""
        return self.runs[-1].end if self.runs else 0

    @property
    def newer(self) -> str | None:
        """What a newer tailrace wrote here, if it did."""
        found: list[Unreadable | Fault] = [*self.unreadable, *self.faults]
        return next((item.why for item in found if item.newer), None)

    def add(self, info: BatchInfo) -> None:
        """Count a readable batch."""
        end = info.position + info.size
        if info.base_offset > self.next_offset:
            damaged = self.readable_end != info.position
            missing = Missing(self.next_offset, info.base_offset, info.position, damaged)
            self.missing.append(missing)
        if self.runs and self.readable_end == info.position:
            self.runs[-1] = self.runs[-1]._replace(end=end, next_offset=info.next_offset)
        else:
            self.runs.append(Run(info.position, end, info.base_offset, info.next_offset))
        self.next_offset = info.next_offset
        self.records += info.count


class SegmentSurveyor:
    """Reads one segment with its indexes."""

    def __init__(
        self, fs: FileSystem, folder: str, extent: Extent, facts: Facts, seal: Seal | None
    ) -> None:
        """`facts` are new ones for the segment."""
        self.found = SegmentSurvey(extent.base, extent.size, extent.base, sealed=seal is not None)
        self._fs = fs
        self._path = segment_path(folder, extent.base)
        self._facts = facts  # as the engine gathers them: of every batch whose checksum holds
        self._seal = seal
        self._indexes: list[IndexCheck] = [
            kind.load(fs, segment_path(folder, extent.base, kind.EXTENSION), extent.base)
            for kind in (OffsetIndexCheck, TimeIndexCheck)
        ]
        if seal is not None:
            self._indexes[0].expect(seal.idx_size, seal.idx_crc)
            self._indexes[1].expect(seal.tix_size, seal.tix_crc)

    def run(self, limit: int | None = None, watch: frozenset[int] = frozenset()) -> SegmentSurvey:
        """`limit` is where the next segment begins: a batch that reaches beyond is there twice.
        `watch` are positions of which the offset is to be told."""
        found = self.found
        file = self._fs.open(self._path)
        try:
            for item in walk(file, found.size, base=found.base, expected=found.base):
                if isinstance(item, Unreadable):
                    found.unreadable.append(item)
                else:
                    self._take(item, limit)
                    end = item.info.position + item.info.size
                    if end in watch:
                        found.ends[end] = item.info.next_offset
        finally:
            file.close()
        damaged = bool(found.unreadable) or found.overlap is not None
        for index in self._indexes:
            found.index_faults[index.EXTENSION] = index.finish(damaged=damaged)
        found.seal_is_wrong = self._contradicts_seal()
        return found

    def _take(self, batch: Whole, limit: int | None) -> None:
        info, found, facts = batch.info, self.found, self._facts
        if limit is not None and info.next_offset > limit and found.overlap is None:
            found.overlap = info.position
        if found.overlap is not None:
            return
        facts.size = info.position  # past the damage before it, if there was any
        facts.observe(info.base_offset, info.count, info.size, info.max_timestamp)
        for index in self._indexes:
            index.observe(info)
        found.batches += 1
        fault = fault_of(batch)
        if fault is not None:
            found.faults.append(fault)
        if fault is None or not fault.unreadable:
            found.add(info)

    def _contradicts_seal(self) -> bool:
        seal, facts = self._seal, self._facts
        if seal is None or self.found.unreadable or self.found.overlap is not None:
            return False
        sealed = (seal.next_offset, seal.records, seal.first_timestamp, seal.max_timestamp)
        return sealed != (
            facts.next_offset,
            facts.records,
            facts.first_timestamp,
            facts.max_timestamp,
        )
