"""The least that a codec in plain Python can do: (key, value) records with varint lengths.

No offsets, timestamps, headers, nulls, checksums or checks of bounds. It is what the plain twin of
the kernel is measured by: tuned by hand, and of no other use.
"""

from __future__ import annotations

__all__ = ["decode", "encode"]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_VARINTS = [_varint(number) for number in range(1 << 14)]


def encode(records: list[tuple[bytes, bytes]]) -> bytes:
    """Lengths come from a table, and all pieces are joined at once."""
    varints = _VARINTS
    parts: list[bytes] = []
    for key, value in records:
        parts += (varints[len(key)], key, varints[len(value)], value)
    return b"".join(parts)


def decode(data: bytes) -> list[tuple[bytes, bytes]]:
    """Lengths of one and two bytes, which is all there are here, are read in line."""
    records: list[tuple[bytes, bytes]] = []
    add = records.append
    position, end = 0, len(data)
    while position < end:
        size = data[position]
        position += 1
        if size > 0x7F:
            size += (data[position] << 7) - 0x80
            position += 1
        stop = position + size
        key = data[position:stop]
        size = data[stop]
        position = stop + 1
        if size > 0x7F:
            size += (data[position] << 7) - 0x80
            position += 1
        stop = position + size
        add((key, data[position:stop]))
        position = stop
    return records
