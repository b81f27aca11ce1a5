"""Taking in batches that others have written to files of their own: all of them at once, or none.

Whoever has much to append at once (a Spark job, with many tasks) writes it where nobody looks, in
`.tailrace/staging/`, as segments whose offsets begin at 0. Then one writer, in its turn, gives them
their place. Large files become segments by a rename; small ones are copied behind the last batch,
so that frequent small ones leave no litter of segments.

`.tailrace/adoption` tells, as long as that is under way, where the log ended before. It is stored
first and removed last, durably; its removal is the moment from which on the records count. Until
then readers see nothing behind it, and nobody appends: one who dies, fails or is interrupted on the
way leaves its turn as a dead one does, and whoever has the turn next puts the log back to where it
was. So there is nothing to complete: the batches are in the log, or their writer has not been told
so and comes again. Only when all is in its place the board tells of it; then what is left to do is
to remove the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.errors import Corrupt
from tailrace.kernel import (
    HEADER_SIZE,
    BatchInfo,
    Malformed,
    crc32c,
    crc32c_combine,
    read_header,
)
from tailrace.kernel.layout import CRC_START, TAIL_START
from tailrace.log.fs import File, FileSystem, write_all
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.options import LogOptions
from tailrace.log.rolling import index_room, must_roll
from tailrace.log.scan import Facts
from tailrace.log.segments import list_segments, remove_segment, segment_path
from tailrace.log.sidefiles import (
    WatermarkFile,
    load_checked_json,
    side_path,
    store_checked_json,
)

__all__ = ["NAME", "Adoption", "Piece", "Plan", "as_little", "place", "place_in_file", "tidy_up"]

NAME = "adoption"

_CRC_AT = 4
_SMALL = 4  # pieces that are smaller than this part of a segment are copied together


class Piece(NamedTuple):
    """A file of batches, whose offsets begin at 0, in a log's staging folder. `path` is below that
    folder, the rest is as in `Facts`, and how many entries its indexes would have at most."""

    path: str
    size: int
    records: int
    first_timestamp: int
    max_timestamp: int
    offset_entries: int
    time_entries: int

    @classmethod
    def of(cls, path: str, facts: Facts) -> Piece:
        """Of what a file has in it."""
        return cls(
            path,
            facts.size,
            facts.records,
            facts.first_timestamp,
            facts.max_timestamp,
            len(facts.offsets),
            len(facts.times),
        )

    def and_then(self, other: Piece) -> Piece:
        """With another behind it, in one file."""
        return self._replace(
            size=self.size + other.size,
            records=self.records + other.records,
            max_timestamp=max(self.max_timestamp, other.max_timestamp),
            offset_entries=self.offset_entries + other.offset_entries,
            time_entries=self.time_entries + other.time_entries,
        )

    def has_room(self, other: Piece, options: LogOptions) -> bool:
        """May both be in one segment?"""
        both = self.and_then(other)
        return not must_roll(
            options,
            both.size,
            other.max_timestamp - self.first_timestamp,
            both.records,
            lambda: index_room(
                options,
                OffsetIndex.HEADER.size + both.offset_entries * OffsetIndex.ENTRY.size,
                TimeIndex.HEADER.size + both.time_entries * TimeIndex.ENTRY.size,
            ),
        )

    @property
    def entries_size(self) -> int:
        """In the fuller index."""
        return max(
            self.offset_entries * OffsetIndex.ENTRY.size, self.time_entries * TimeIndex.ENTRY.size
        )


class Adoption(NamedTuple):
    """Where a log ended, in its last segment and by offset, before batches were taken in."""

    segment: int
    position: int
    durable: int  # the next offset then; named as in the other bounds of what readers may see

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> Adoption | None:
        """`None` if nothing is being taken in."""
        document = load_checked_json(fs, side_path(folder, NAME))
        return None if document is None else cls(*(document[key] for key in cls._fields))

    def store(self, fs: FileSystem, folder: str) -> None:
        store_checked_json(fs, side_path(folder, NAME), self._asdict())

    @staticmethod
    def remove(fs: FileSystem, folder: str) -> None:
        """From here on, and after a power cut too, what was taken in counts; or nothing has come of
        it. One who has removed it already may not have come to the sync."""
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(side_path(folder, NAME))
        fs.sync_dir(os.path.dirname(side_path(folder, NAME)))

    def put_back(self, fs: FileSystem, folder: str) -> None:
        """Put the log back. Nobody has been told of what goes, and nobody has seen it."""
        for extent in reversed(list_segments(fs, folder)):
            if extent.base > self.segment:
                remove_segment(fs, folder, extent.base)
        file = fs.open(segment_path(folder, self.segment), write=True)
        try:
            if file.size() > self.position:
                file.truncate(self.position)
                file.sync()
        finally:
            file.close()
        fs.sync_dir(folder)


class Plan(NamedTuple):
    """Which pieces are copied, and which become segments behind them."""

    copied: list[Piece]
    moved: list[Piece]

    @classmethod
    def of(cls, pieces: Sequence[Piece], *, is_little: bool, is_empty: bool) -> Plan:
        """`is_empty`: the last segment has nothing in it, so that what comes first has its name.
        Others have that one open, so it is never replaced."""
        if is_little:
            return cls(list(pieces), [])
        moved = list(pieces)
        copied = [moved.pop(0)] if is_empty else []
        return cls(copied, moved)

    @property
    def copied_size(self) -> int:
        return sum(piece.size for piece in self.copied)


def as_little(
    pieces: Sequence[Piece], options: LogOptions, since_ms: int | None = None
) -> Piece | None:
    """All of them as one, if that is little, and one segment may have it: one that began then, or
    that begins with them."""
    one = pieces[0]
    if since_ms is not None:
        one = one._replace(first_timestamp=since_ms)
    for piece in pieces[1:]:
        if not one.has_room(piece, options):
            return None
        one = one.and_then(piece)
    return one if one.size <= options.segment_bytes // _SMALL else None


def tidy_up(fs: FileSystem, folder: str, told: int = 0) -> None:
    """Somebody has perhaps not finished what it took in. If everybody was `told` of a next offset
    behind it, or somebody has flushed so far, all of it is there, and counts."""
    adoption = Adoption.load(fs, folder)
    if adoption is not None and told <= adoption.durable:
        mark = WatermarkFile(fs, folder).load()
        if mark is None or mark.durable <= adoption.durable:
            adoption.put_back(fs, folder)
    Adoption.remove(fs, folder)


# --- offsets --------------------------------------------------------------------------------


def place(data: bytearray, base: int) -> int:
    """Give batches that follow one another their offsets, from `base` on; the offset behind them.
    Their checksums are made from the old ones: the records need not be read."""
    position = 0
    while position < len(data):
        header = bytes(data[position : position + HEADER_SIZE])
        info = _whole(header, len(data) - position)
        data[position + _CRC_AT : position + TAIL_START] = _placed(header, info, base)
        position += info.size
        base += info.count
    return base


def place_in_file(file: File, size: int, base: int, position: int = 0) -> int:
    """The same for a file, from a position on."""
    while position < size:
        header = file.pread(HEADER_SIZE, position)
        info = _whole(header, size - position)
        write_all(file, _placed(header, info, base), position + _CRC_AT)
        position += info.size
        base += info.count
    return base


def _whole(header: bytes, size: int) -> BatchInfo:
    try:
        info = read_header(header, 0)
    except Malformed as error:
        raise Corrupt(f"what is to be taken in is damaged: {error}") from error
    if info.size > size:
        raise Corrupt("what is to be taken in is cut short")
    return info


def _placed(header: bytes, info: BatchInfo, base: int) -> bytes:
    """Checksum and base offset of a batch that is put elsewhere."""
    old, new = header[CRC_START:TAIL_START], base.to_bytes(8, "little")
    change = crc32c_combine(crc32c(old) ^ crc32c(new), 0, info.size - TAIL_START)
    return (info.crc ^ change).to_bytes(4, "little") + new
