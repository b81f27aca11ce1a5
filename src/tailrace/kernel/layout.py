"""The constants of the batch format, and the errors that say "these bytes are not it".

A segment is a run of batches with nothing between them. A batch is a 44-byte header (all fields
little-endian) and a section of records:

    off size field
      0    4 magic           bytes 58 55 4C 46
      4    4 crc             CRC-32C of everything behind it, the records as they are stored
      8    8 base_offset     offset of the first record
     16    4 batch_len       stored length of the section
     20    2 count           number of records
     22    2 flags           below; only COMPRESSED changes how the section is read
     24    1 compression     the configured codec, even when the section is stored raw
     25    1 version         1
     26    2 reserved        0
     28    8 base_timestamp  milliseconds; the records hold deltas to it
     36    8 max_timestamp   the greatest timestamp of a record

A record is: uvarint offset delta (its index), svarint timestamp delta, svarint key length and key,
svarint value length and value (a negative length is null), uvarint number of headers, and for each
header uvarint name length, name, uvarint value length, value.

Timestamp arithmetic wraps at 64 bits, so every pair of base and record timestamp is representable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

HEADER: Final = Struct("<IIQIHHBBHqq")
HEADER_SIZE: Final = 44
CRC_START: Final = 8  # the CRC covers everything from here on
TAIL_START: Final = 16  # what is known before the batch has an offset starts here

MAGIC: Final = 0x464C5558
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
VERSION: Final = 1

NONE: Final = 0
S2: Final = 1
ZSTD: Final = 2
CODEC_NAMES: Final = {NONE: "none", S2: "s2", ZSTD: "zstd"}

COMPRESSED: Final = 1 << 0
HAS_TIMESTAMP: Final = 1 << 1
HAS_KEYS: Final = 1 << 2
HAS_HEADERS: Final = 1 << 3
TRANSACTIONAL: Final = 1 << 4

MAX_COUNT: Final = 0xFFFF
MAX_SECTION: Final = 256 << 20  # of a section, stored or inflated; nothing larger is believed
MAX_OFFSET: Final = (1 << 63) - 1  # also the greatest next offset, so every offset fits in an i64
MIN_TIMESTAMP: Final = -(1 << 63)
MAX_TIMESTAMP: Final = (1 << 63) - 1
MIN_RECORD: Final = 5  # one byte each: delta, timestamp, key length, value length, header count
MAX_SPAN: Final = 1 << 32  # of a segment's offsets: its indexes store them from its base on, as u32
NOTE_PHASE: Final = 41  # of a page of notes: where its phase is
NOTE_PLACES: Final = (64, 128)  # and its two notes
NOTE_WRITING: Final = 2
NOTE_FACTORS: Final = (  # odd, with bits all over: the parts of two notes give no third one's check
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
)
COMPRESS_ABOVE: Final = 256  # smaller sections are not worth a codec's overhead


def note_check(numbers: Iterable[int]) -> int:
    """What goes with the numbers of a note, so that a part of it is not taken for the whole."""
    products = (n * factor for n, factor in zip(numbers, NOTE_FACTORS, strict=True))
    return sum(products) & (2**64 - 1)


class Status(enum.IntEnum):
    """What `check` found behind the last good batch."""

    COMPLETE = 0  # nothing
    PARTIAL = 1  # the beginning of a plausible batch
    BAD = 2  # something that no further bytes can turn into a batch


COMPLETE: Final = Status.COMPLETE
PARTIAL: Final = Status.PARTIAL
BAD: Final = Status.BAD

DRAFT_RESIZED: Final = "the draft's data was resized; it cannot be placed any more"
STILL_COMPRESSED: Final = "it is compressed; inflate the region first"

# Why a header is refused. The index is the code that both twins' header check returns.
HEADER_FAULTS: Final = (
    "",
    "it does not start with the magic bytes 58 55 4C 46",
    "its offsets run backwards or exceed 2^63-1",
    "its length is impossible for its number of records",
    f"its length exceeds the limit of {MAX_SECTION} bytes",
    "it claims to hold no records",
    f"its format version is not {VERSION}; a newer tailrace may have written it",
    "it is cut short",
)

# Why a section is refused, likewise.
RECORD_FAULTS: Final = (
    "",
    "a varint is cut short or longer than 64 bits",
    "a length runs over the end",
    "the offset deltas are not 0, 1, 2, ...",
)


class Malformed(ValueError):
    """Bytes that are not a valid batch, record or compressed block.

    `position` is where in the given buffer the batch (or block) starts, if that is known.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position

    def __reduce__(self) -> tuple[type[Malformed], tuple[str, int | None]]:
        return type(self), (str(self), self.position)


class TooLarge(ValueError):
    """Records that need more than the limit; `size` and `limit` are in bytes."""

    def __init__(self, message: str, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[type[TooLarge], tuple[str, int, int]]:
        return type(self), (str(self), self.size, self.limit)


class BatchInfo(NamedTuple):
    """A batch's header and where it was found. `size` includes the header."""

    position: int
    size: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    flags: int
    codec: int
    base_timestamp: int
    max_timestamp: int
    crc: int

    @property
    def next_offset(self) -> int:
        """The offset behind the batch's last record."""
        return self.base_offset + self.count


class Tally(NamedTuple):
    """What `tally` counted in a region, and the new entries of the segment's two indexes.

    The entries are columns of integers in the machine's byte order: u32, but for timestamps i64.
    """

    end: int  # in the buffer, behind the last batch that counts
    next_offset: int
    records: int
    first_timestamp: int  # the first batch's greatest; 0 if there is none
    max_timestamp: int
    unindexed_bytes: int  # since the last entry by offset
    offset_entries: tuple[bytes, bytes]  # relative offsets, positions in the segment
    time_entries: tuple[bytes, bytes]  # timestamps, relative offsets


def too_many(count: int) -> ValueError:
    """The error for a number of records that no batch can hold."""
    if count == 0:
        return ValueError("a batch holds at least one record; none were given")
    return ValueError(f"a batch holds at most {MAX_COUNT} records, not {count}; split them")


def too_large(size: int, limit: int, count: int = 0) -> TooLarge:
    """The error for records that are too long for one batch; one alone cannot be split."""
    if count == 1:
        return TooLarge(
            f"a record of {size} bytes, with its key and headers, is more than a batch may hold: "
            f"max_batch_bytes is {limit}",
            size,
            limit,
        )
    return TooLarge(
        f"the records need {size} bytes and a batch may hold {limit}; split them", size, limit
    )


def malformed_batch(position: int, why: str) -> Malformed:
    """The error for a batch at `position` that cannot be what it claims."""
    return Malformed(f"batch at position {position}: {why}", position)


def malformed_section(position: int, why: str) -> Malformed:
    """The error for a batch at `position` whose records are damaged."""
    return malformed_batch(position, f"its records cannot be read: {why}")


def no_room(base_offset: int, count: int) -> ValueError:
    """The error for a batch that would need offsets beyond the last one."""
    return ValueError(f"offset {base_offset} leaves no room for {count} records")


def outside(start: int, stop: int, length: int) -> ValueError:
    """The error for a region that is not inside its buffer."""
    return ValueError(f"[{start}, {stop}) is not a region of a buffer of {length} bytes")


def too_long(position: int) -> OverflowError:
    """The error for a segment whose positions do not fit in an index."""
    return OverflowError(f"a batch at position {position} of a segment cannot be indexed")
