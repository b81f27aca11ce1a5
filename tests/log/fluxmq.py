"""A decoder of FluxMQ's files, written from the reference and from nothing else.

It shares no code with the package, so that both would have to be wrong in the same way.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple


class Rec(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes]]


class Bat(NamedTuple):
    position: int
    size: int
    base_offset: int
    records: int
    flags: int
    codec: int
    base_ts: int
    max_ts: int
    section: bytes


class Index(NamedTuple):
    base: int
    header_count: int
    interval: int  # .idx
    low: int  # .tix
    high: int  # .tix
    entries: list[tuple[int, int]]


def crc32c(data: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(value) for value in range(256)]


def scan(path: Path) -> list[Bat]:
    """Every batch of a segment; anything that is not one is an error."""
    data = path.read_bytes()
    found: list[Bat] = []
    position = 0
    while position < len(data):
        head = data[position : position + 44]
        assert len(head) == 44, "a short header"
        assert head[:4] == b"XULF"
        crc, base, length, records, flags = struct.unpack_from("<IQIHH", head, 4)
        codec, version, reserved, base_ts, max_ts = struct.unpack_from("<BBHqq", head, 24)
        assert (version, reserved) == (1, 0)
        end = position + 44 + length
        assert end <= len(data), "a batch that is longer than the file"
        assert crc == crc32c(data[position + 8 : end])
        if found:
            assert base >= found[-1].base_offset + found[-1].records
        section = data[position + 44 : end]
        found.append(
            Bat(position, end - position, base, records, flags, codec, base_ts, max_ts, section)
        )
        position = end
    return found


def decode(batch: Bat) -> list[Rec]:
    """The records of a batch that is not compressed."""
    assert not batch.flags & 1
    data, at = batch.section, 0

    def uvarint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def svarint() -> int:
        value = uvarint()
        return (value >> 1) ^ -(value & 1)

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        assert at <= len(data)
        return data[at - size : at]

    def nullable() -> bytes | None:
        size = svarint()
        return None if size < 0 else take(size)

    records = []
    for number in range(batch.records):
        delta = uvarint()
        assert delta == number
        timestamp = batch.base_ts + svarint()
        key, value = nullable(), nullable()
        headers = [(take(uvarint()), take(uvarint())) for _ in range(uvarint())]
        records.append(Rec(batch.base_offset + delta, timestamp, key, value, headers))
    assert at == len(data)
    return records


def read_idx(path: Path) -> Index:
    data = path.read_bytes()
    assert data[:5] == b"IXLF\x01"
    base, count, interval = struct.unpack_from("<QII", data, 5)
    assert data[21:32] == bytes(11)
    assert (len(data) - 32) % 8 == 0
    entries = list(struct.iter_unpack("<II", data[32:]))
    return Index(base, count, interval, 0, 0, entries)


def read_tix(path: Path) -> Index:
    data = path.read_bytes()
    assert data[:5] == b"TXLF\x01"
    base, count, low, high = struct.unpack_from("<QIqq", data, 5)
    assert data[33:36] == bytes(3)
    assert (len(data) - 36) % 12 == 0
    return Index(base, count, 0, low, high, list(struct.iter_unpack("<qI", data[36:])))


def check_folder(path: Path) -> list[Bat]:
    """Every segment of a folder with both its indexes, as FluxMQ would load them."""
    batches: list[Bat] = []
    for segment in sorted(path.glob("*.seg")):
        assert len(segment.stem) == 20
        base = int(segment.stem)
        found = scan(segment)
        assert not found or found[0].base_offset >= base
        starts = {(b.base_offset - base, b.position) for b in found}
        idx = read_idx(segment.with_suffix(".idx"))
        assert idx.base == base
        assert set(idx.entries) <= starts
        assert idx.entries == sorted(idx.entries)
        assert not found or idx.entries[0] == (found[0].base_offset - base, 0)
        tix = read_tix(segment.with_suffix(".tix"))
        assert tix.base == base
        times = {(b.max_ts, b.base_offset - base) for b in found}
        assert set(tix.entries) <= times
        assert tix.entries == sorted(tix.entries)
        batches += found
    return batches
