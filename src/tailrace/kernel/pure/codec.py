"""Batches: checking and decoding regions of consecutive ones.

`layout` describes the bytes. A region is checked once, by `check`; the other readers still verify
every length before they use it, and raise `Malformed` rather than read past it. Encoding is in
`encoding`; the compiled twin has both in one module, and so this one exports both.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from tailrace.kernel import compression
from tailrace.kernel.layout import (
    BAD,
    COMPLETE,
    COMPRESSED,
    CRC_START,
    HAS_HEADERS,
    HEADER,
    HEADER_FAULTS,
    HEADER_SIZE,
    MAGIC,
    MAGIC_BYTES,
    MAX_OFFSET,
    MAX_SECTION,
    MIN_RECORD,
    PARTIAL,
    RECORD_FAULTS,
    VERSION,
    BatchInfo,
    Malformed,
    Status,
    malformed_batch,
    malformed_section,
    outside,
    too_large,
)
from tailrace.kernel.pure.crc import crc32c
from tailrace.kernel.pure.encoding import Draft, encode, encode_one, encode_placed, finish
from tailrace.kernel.pure.s2 import s2_decompress
from tailrace.kernel.pure.sections import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from tailrace.kernel.headers import Headers
    from tailrace.kernel.pure.records import Record

__all__ = [
    "Draft",
    "batches",
    "check",
    "decode",
    "encode",
    "encode_one",
    "encode_placed",
    "find_record_at_time",
    "finish",
    "first_headers",
    "inflate",
    "read_header",
    "region_of",
    "section_of",
    "walk",
]

_CHECKED: Final = Struct("<IQIH")  # crc, base_offset, batch_len, count


def check(buf: Buffer, start: int, stop: int) -> tuple[int, int, Status]:
    """Walk the batches from `start` and verify each.

    Returns the position behind the last good batch, the offset behind it (-1 when there is none)
    and what follows: COMPLETE when that is `stop`, PARTIAL for the beginning of a batch, else BAD.
    """
    with region_of(buf, start, stop) as view:
        position = start
        next_offset = -1
        while position < stop:
            head = bytes(view[position : min(stop, position + HEADER_SIZE)])
            if _header_fault(head, next_offset):
                return position, next_offset, BAD
            if len(head) < HEADER_SIZE:
                return position, next_offset, PARTIAL
            crc, base_offset, length, count = _CHECKED.unpack_from(head, 4)
            end = position + HEADER_SIZE + length
            if end > stop:
                return position, next_offset, PARTIAL
            with view[position + CRC_START : end] as covered:
                if crc32c(covered) != crc:
                    return position, next_offset, BAD
            position = end
            next_offset = base_offset + count
        return position, next_offset, COMPLETE


def batches(buf: Buffer, start: int, stop: int) -> list[BatchInfo]:
    """The headers of a checked region."""
    with region_of(buf, start, stop) as view:
        return list(walk(view, start, stop))


def read_header(buf: Buffer, position: int) -> BatchInfo:
    """The header at `position`. Neither the CRC nor that the whole batch is there is checked."""
    with region_of(buf, position, position) as view:
        return _info(view, position, len(view))


def decode(
    buf: Buffer, start: int, stop: int, first: int = 0, last: int = MAX_OFFSET
) -> list[Record]:
    """The records of a checked region with `first <= offset < last`."""
    records: list[Record] = []
    with region_of(buf, start, stop) as view:
        for info in walk(view, start, stop):
            if info.next_offset > first and info.base_offset < last:
                base_offset = info.base_offset
                section = section_of(view, info)
                count = min(info.count, last - base_offset)
                try:
                    found = read_records(section, count, base_offset, info.base_timestamp)
                except (IndexError, Malformed) as error:
                    raise _damaged(info, error) from None
                records += found[first - base_offset :] if first > base_offset else found
    return records


def inflate(buf: Buffer, start: int, stop: int) -> Buffer:
    """The same region with every batch uncompressed: a view of `buf` if they all are already.

    All of it together may not need more than MAX_SECTION bytes beyond the input: TooLarge, so that
    the caller can pass fewer batches.
    """
    with region_of(buf, start, stop) as view:
        infos = list(walk(view, start, stop))
        if not any(info.flags & COMPRESSED for info in infos):
            return memoryview(buf).cast("B")[start:stop]
        out = bytearray()
        inflated = 0
        for info in infos:
            if not info.flags & COMPRESSED:
                out += view[info.position : info.position + info.size]
                continue
            section = section_of(view, info)
            inflated += len(section)
            if inflated > MAX_SECTION:
                raise too_large(inflated, MAX_SECTION)
            data = bytearray(HEADER_SIZE)
            HEADER.pack_into(
                data, 0, MAGIC, 0, info.base_offset, len(section), info.count,
                info.flags & ~COMPRESSED, info.codec, VERSION, 0, info.base_timestamp,
                info.max_timestamp,
            )  # fmt: skip
            crc = crc32c(section, crc32c(data[CRC_START:]))
            data[4:CRC_START] = crc.to_bytes(4, "little")
            out += data
            out += section
        return out


def find_record_at_time(
    buf: Buffer, start: int, stop: int, timestamp: int, first: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at `first` or later that is not older; what is
    behind it in its batch is not looked at."""
    with region_of(buf, start, stop) as view:
        for info in walk(view, start, stop):
            if info.max_timestamp < timestamp or info.next_offset <= first:
                continue
            for record in _up_to_damage(view, info, first):
                assert record.offset is not None
                assert record.timestamp is not None
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
    return None


def _up_to_damage(view: memoryview, info: BatchInfo, first: int) -> Iterator[Record]:
    """The records of a batch from `first` on; one that is damaged raises when its turn comes."""
    end = info.position + info.size
    try:
        yield from decode(view, info.position, end, first)
    except Malformed:
        records: list[Record] = []
        good, bad = info.base_offset, info.next_offset  # can be decoded up to there, cannot
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                records = decode(view, info.position, end, first, middle)
                good = middle
            except Malformed:
                bad = middle
        yield from records
        raise


def first_headers(buf: Buffer, start: int, stop: int) -> list[tuple[int, int, int, Headers | None]]:
    """(base_offset, count, base_timestamp, headers of its first record) of each batch.

    The headers are None, at no cost, for a batch whose flags say that no record has any.
    """
    found: list[tuple[int, int, int, Headers | None]] = []
    with region_of(buf, start, stop) as view:
        for info in walk(view, start, stop):
            headers = None
            if info.flags & HAS_HEADERS:
                end = info.position + info.size
                headers = decode(view, info.position, end, last=info.base_offset + 1)[0].headers
            found.append((info.base_offset, info.count, info.base_timestamp, headers))
    return found


def section_of(view: memoryview, info: BatchInfo) -> bytes:
    """A batch's records, decompressed if they are compressed."""
    with view[info.position + HEADER_SIZE : info.position + info.size] as stored:
        if not info.flags & COMPRESSED:
            return bytes(stored)
        try:
            return compression.decompress(info.codec, stored, MAX_SECTION, s2_decompress)
        except Malformed as error:
            raise _damaged(info, error) from None


def _damaged(info: BatchInfo, error: Exception) -> Malformed:
    # IndexError: a byte was read past the end.
    why = RECORD_FAULTS[2] if isinstance(error, IndexError) else str(error)
    return malformed_section(info.position, why)


def region_of(buf: Buffer, start: int, stop: int) -> memoryview:
    """All of `buf` as bytes, if the region is inside it."""
    view = memoryview(buf)
    if not view.c_contiguous:
        raise BufferError("the buffer must be contiguous")
    view = view.cast("B")
    if not 0 <= start <= stop <= len(view):
        raise outside(start, stop, len(view))
    return view


def walk(view: memoryview, start: int, stop: int) -> Iterator[BatchInfo]:
    """The headers of a region, one at a time; one that cannot be raises when its turn comes."""
    position = start
    while position < stop:
        info = _info(view, position, stop)
        if info.size > stop - position:
            raise malformed_batch(position, HEADER_FAULTS[7])
        yield info
        position += info.size


def _info(view: memoryview, position: int, stop: int) -> BatchInfo:
    head = bytes(view[position : min(stop, position + HEADER_SIZE)])
    fault = _header_fault(head, -1)
    if fault or len(head) < HEADER_SIZE:
        raise malformed_batch(position, HEADER_FAULTS[fault or 7])
    fields = HEADER.unpack(head)
    _, crc, base_offset, length, count, flags, codec, _, _, base_timestamp, max_timestamp = fields
    return BatchInfo(
        position,
        HEADER_SIZE + length,
        base_offset,
        count,
        flags,
        codec,
        base_timestamp,
        max_timestamp,
        crc,
    )


def _header_fault(head: bytes, next_offset: int) -> int:
    """An index into HEADER_FAULTS: 0 if every field that `head` holds in full is plausible.

    `head` is a header or the beginning of one; `next_offset` is where the batch before ended.
    """
    have = len(head)
    if head[:4] != MAGIC_BYTES[:have]:
        return 1
    fields = HEADER.unpack(head.ljust(HEADER_SIZE, b"\x00"))
    _, _, base_offset, length, count, flags, _, version, _, _, _ = fields
    if have >= 16 and not next_offset <= base_offset < MAX_OFFSET:
        return 2
    if have >= 20 and length > MAX_SECTION:
        return 4
    if have >= 22:
        if count == 0:
            return 5
        if base_offset > MAX_OFFSET - count:
            return 2
    if have >= 24 and length < (1 if flags & COMPRESSED else MIN_RECORD * count):
        return 3
    if have >= 26 and version != VERSION:
        return 6
    return 0
