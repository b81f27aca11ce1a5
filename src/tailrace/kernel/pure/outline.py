"""What can be said of a region without handing out its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernel.layout import HAS_HEADERS
from tailrace.kernel.pure.codec import decode, region_of, walk
from tailrace.kernel.pure.records import find_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["count_right", "is_plain"]


def is_plain(buf: Buffer, start: int, stop: int, names: tuple[bytes, ...]) -> bool:
    """Is there a record at every offset of a checked region, and none with a header of these names?

    Then whoever wants records of it can tell which offsets they have before they are decoded.
    """
    next_offset = -1
    with region_of(buf, start, stop) as view:
        for info in walk(view, start, stop):
            if next_offset not in (-1, info.base_offset):
                return False
            next_offset = info.next_offset
            records = decode(view, info.position, info.position + info.size)
            if not info.flags & HAS_HEADERS:
                continue
            for record in records:
                if any(find_header(record, name) is not None for name in names):
                    return False
    return True


def count_right(buf: Buffer, start: int, stop: int) -> int:
    """How many batches a checked region has; 0 if the newest record of one is not of the time that
    its header says.

    Every record is walked through, and `Malformed` if one cannot be read. One batch at a time is
    decompressed, so that memory is used again while the processor still has it.
    """
    count = 0
    with region_of(buf, start, stop) as view:
        for info in walk(view, start, stop):
            records = decode(view, info.position, info.position + info.size)
            times = [record.timestamp for record in records if record.timestamp is not None]
            if max(times, default=None) != info.max_timestamp:
                return 0
            count += 1
    return count
