"""One segment, to be checked by itself: here, in another thread, or in another process.

Most segments are whole, so they are first looked at in the kernel alone, some megabytes at a time
(`glance`), and in pieces if there are many processors. That says no more than "all is right": what
is not, whatever it is, is then read batch by batch (`survey.py`), which finds the words for it. So
a glance may be wrong about nothing but in being too strict. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from tailrace.kernel import Malformed, count_right, crc32c
from tailrace.log.extents import Extent
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.offline.survey import Run, SegmentSurvey, SegmentSurveyor
from tailrace.log.scan import Chunks, Facts
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import Seal

__all__ = [
    "Glance",
    "Piece",
    "SegmentCheck",
    "Steps",
    "cut",
    "glance",
    "look_closely",
    "sealed_intervals",
    "settle",
    "survey_segment",
]

_TIME_INTERVAL_MS: Final = 1_000  # what nobody has set; no index says what it was
_NEVER: Final = 1 << 62
_READ: Final = 1 << 20  # is read, checked and walked through in the processor's nearest cache

Steps = Callable[[int], object]  # is told of so many more bytes


@dataclass(frozen=True)
class SegmentCheck:
    """A segment, and what is known of it from elsewhere. It can be pickled."""

    folder: str
    base: int
    size: int  # as much of its file as counts
    limit: int | None = None  # where the next one begins: what reaches beyond is there twice
    watch: frozenset[int] = frozenset()  # positions of which the offset is to be told
    seal: Seal | None = None  # if it is about this size

    @property
    def path(self) -> str:
        return segment_path(self.folder, self.base)


class Piece(NamedTuple):
    """Bytes `start <= b < stop` of a segment, of which an index says that the batch of
    `first_offset` begins there."""

    check: SegmentCheck
    start: int
    stop: int
    first_offset: int


class Glance(NamedTuple):
    """What is in a piece of which all is right."""

    start: int
    stop: int
    first_offset: int
    next_offset: int
    batches: int
    records: int
    first_timestamp: int
    max_timestamp: int
    ends: dict[int, int]  # the offset at positions that are watched


def survey_segment(
    fs: FileSystem, check: SegmentCheck, progress: Steps | None = None
) -> SegmentSurvey:
    """Check a segment."""
    found = settle(check, [glance(fs, _whole(check), progress)])
    return look_closely(fs, check) if found is None else found


def look_closely(fs: FileSystem, check: SegmentCheck) -> SegmentSurvey:
    """Read it batch by batch."""
    extent = Extent(check.base, check.size)
    facts = Facts(check.base, 1, _TIME_INTERVAL_MS)
    return SegmentSurveyor(fs, check.folder, extent, facts, check.seal).run(
        check.limit, check.watch
    )


# --- in pieces ------------------------------------------------------------------------------


def _whole(check: SegmentCheck) -> Piece:
    return Piece(check, 0, check.size, check.base)


def cut(fs: FileSystem, check: SegmentCheck, size: int) -> list[Piece]:
    """Pieces of about this size, as the index has them: if that is wrong, so is their glance."""
    if check.size < 2 * size:
        return [_whole(check)]
    index = _offset_index(fs, check)
    pieces, start, first = [], 0, check.base
    for offset, position in () if index is None else index.entries():
        if position >= start + size and start < position <= check.size - size and offset > first:
            pieces.append(Piece(check, start, position, first))
            start, first = position, offset
    return [*pieces, Piece(check, start, check.size, first)]


def settle(check: SegmentCheck, glances: Sequence[Glance | None]) -> SegmentSurvey | None:
    """What glances at all pieces of a segment come to; `None` if it has to be looked at closely."""
    found = sorted(each for each in glances if each is not None and each.records)
    if not found or len(found) < len(glances):
        return None
    for one, other in pairwise(found):
        if (one.stop, one.next_offset) != (other.start, other.first_offset):
            return None
    first, last = found[0], found[-1]
    if (first.start, first.first_offset, last.stop) != (0, check.base, check.size):
        return None
    records = sum(each.records for each in found)
    newest = max(each.max_timestamp for each in found)
    seal = check.seal
    if seal is not None:
        sealed = (seal.next_offset, seal.records, seal.first_timestamp, seal.max_timestamp)
        if sealed != (last.next_offset, records, first.first_timestamp, newest):
            return None
    if check.limit is not None and last.next_offset > check.limit:
        return None
    return SegmentSurvey(
        check.base,
        check.size,
        last.next_offset,
        batches=sum(each.batches for each in found),
        records=records,
        runs=[Run(0, check.size, check.base, last.next_offset)],
        ends={position: offset for each in found for position, offset in each.ends.items()},
        index_faults={"idx": [], "tix": []},
        sealed=seal is not None,
    )


# --- at a glance ----------------------------------------------------------------------------


def glance(fs: FileSystem, piece: Piece, progress: Steps | None = None) -> Glance | None:
    """Look at a piece; `None` if anything about it, or about the indexes, is not as it should
    be."""
    check, start, stop, first = piece
    offsets, times = _offset_index(fs, check), _time_index(fs, check)
    if offsets is None or times is None:
        return None
    facts = Facts(check.base, offsets.interval, times.interval_ms)
    facts.size, facts.next_offset = start, first
    before = [timestamp for timestamp, offset in times.entries() if offset < first]
    if before:
        facts.times.next_timestamp = before[-1] + max(times.interval_ms, 1)
    watched = sorted(position for position in check.watch if start < position <= stop)
    ends: dict[int, int] = {}
    count = 0
    file = fs.open(check.path)
    try:
        for bound in dict.fromkeys([*watched, stop]):
            chunks = Chunks(file, facts.size, bound, _READ, _READ)
            while (region := chunks.next()) is not None:
                found = _count_right(region.data)
                if not found or not facts.observe_region(region.data, 0):
                    return None
                count += found
                if progress is not None:
                    progress(len(region.data))
            if facts.size != bound:
                return None
            if bound in check.watch:
                ends[bound] = facts.next_offset
    finally:
        file.close()
    entries = [entry for entry in offsets.entries() if start <= entry[1] < stop]
    is_last = stop == check.size
    behind = _NEVER if is_last else facts.next_offset
    moments = [entry for entry in times.entries() if first <= entry[1] < behind]
    if is_last and entries != [entry for entry in offsets.entries() if entry[1] >= start]:
        return None
    if facts.offsets.entries() != entries or facts.times.entries() != moments:
        return None
    return Glance(
        start,
        stop,
        first,
        facts.next_offset,
        count,
        facts.records,
        facts.first_timestamp,
        facts.max_timestamp,
        ends,
    )


def _offset_index(fs: FileSystem, check: SegmentCheck) -> OffsetIndex | None:
    """If the file is just as it would be written anew."""
    data = _index_file(fs, check, "idx")
    index = None if data is None else OffsetIndex.from_bytes(data, check.base)
    return index if index is not None and index.to_bytes() == data else None


def _time_index(fs: FileSystem, check: SegmentCheck) -> TimeIndex | None:
    """Likewise. Where a seal vouches for it, its interval is what would have led to it; without
    one, the usual interval has to."""
    data = _index_file(fs, check, "tix")
    index = None if data is None else TimeIndex.from_bytes(data, check.base, _TIME_INTERVAL_MS)
    if index is None or index.to_bytes() != data:
        return None
    if check.seal is not None:
        moments = [timestamp for timestamp, _ in index.entries()]
        index.interval_ms = min((b - a for a, b in pairwise(moments)), default=_NEVER)
    return index


def sealed_intervals(fs: FileSystem, check: SegmentCheck) -> tuple[int, int] | None:
    """How far apart the entries of its indexes are, in bytes and in milliseconds, if a seal says
    that the files are as they were written."""
    if check.seal is None:
        return None
    offsets, times = _offset_index(fs, check), _time_index(fs, check)
    return None if offsets is None or times is None else (offsets.interval, times.interval_ms)


def _index_file(fs: FileSystem, check: SegmentCheck, extension: str) -> bytes | None:
    path = segment_path(check.folder, check.base, extension)
    try:
        data = read_file(fs, path, fs.stat(path).size)
    except FileNotFoundError:
        return None
    seal = check.seal
    if data is None or seal is None:
        return data
    size, crc = (
        (seal.idx_size, seal.idx_crc) if extension == "idx" else (seal.tix_size, seal.tix_crc)
    )
    return data if len(data) == size and crc32c(data) == crc else None


def _count_right(data: memoryview) -> int:
    """How many batches there are in a region whose checksums hold; 0 if the contents of one are not
    right."""
    try:
        return count_right(data, 0, len(data))
    except (Malformed, ValueError):
        return 0
