"""Decoder of S2 and Snappy blocks.

A block is the uvarint length of its content and then elements, literals or copies of what was
already produced. The two low bits of an element's first byte are its kind:

    00  literal; the upper bits n: n < 60: n + 1 bytes, 60..63: 1..4 bytes follow, length - 1
    01  copy of 4..11 bytes, 11-bit offset; offset 0 means the previous copy's offset again, and
        lengths codes 5, 6, 7 then add 1, 2 or 3 bytes of length
    10  copy of 1..64 bytes, 2-byte offset
    11  copy of 1..64 bytes, 4-byte offset
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernel.layout import Malformed

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Length codes of a repeated offset: how many bytes of length follow, and what they add to.
_REPEATS = {5: (1, 8), 6: (2, 260), 7: (3, 65540)}


def s2_decompress(data: Buffer, limit: int) -> bytes:
    """The content of a block, which may not be longer than `limit`."""
    block = bytes(data)
    size, position = _declared_size(block)
    if size > limit:
        raise Malformed(f"s2 block: it declares {size} bytes and the limit is {limit}")
    out = bytearray()
    offset = 0
    try:
        while position < len(block):
            tag = block[position]
            kind = tag & 3
            length = tag >> 2
            position += 1
            if kind == 0:
                if length >= 60:
                    extra = length - 59
                    length = _little(block, position, extra)
                    position += extra
                length += 1
                if length > len(block) - position or length > size - len(out):
                    raise Malformed(f"s2 block: the literal at {position} is too long")
                out += block[position : position + length]
                position += length
                continue
            if kind == 1:
                length &= 7
                new_offset = (tag & 0xE0) << 3 | block[position]
                position += 1
                if new_offset:
                    offset = new_offset
                    length += 4
                elif length in _REPEATS:
                    extra, least = _REPEATS[length]
                    length = _little(block, position, extra) + least
                    position += extra
                else:
                    length += 4
            else:
                extra = 2 if kind == 2 else 4
                offset = _little(block, position, extra)
                position += extra
                length += 1
            _copy(out, offset, length, size)
    except IndexError:
        raise Malformed("s2 block: it is cut short") from None
    if len(out) != size:
        raise Malformed(f"s2 block: it declares {size} bytes and holds {len(out)}")
    return bytes(out)


def _copy(out: bytearray, offset: int, length: int, size: int) -> None:
    """Append `length` bytes from `offset` bytes back; the source may run into the copy."""
    have = len(out)
    if not 0 < offset <= have:
        raise Malformed(f"s2 block: a copy from {offset} bytes back when there are {have}")
    if length > size - have:
        raise Malformed(f"s2 block: it holds more than the {size} bytes that it declares")
    source = out[have - offset : have - offset + length]
    if len(source) < length:
        source *= length // offset + 1
        del source[length:]
    out += source


def _declared_size(block: bytes) -> tuple[int, int]:
    """The uvarint at the start, of at most 32 bits, and the position behind it."""
    size = 0
    for position, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            if size > 0xFFFFFFFF:
                break
            return size, position + 1
    raise Malformed("s2 block: it does not start with the length of its content")


def _little(block: bytes, position: int, width: int) -> int:
    if position + width > len(block):
        raise IndexError
    return int.from_bytes(block[position : position + width], "little")
