"""check(): nothing that was damaged passes, and a torn batch is told from a broken one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.layout import (
    BAD,
    COMPLETE,
    HEADER_SIZE,
    MAX_OFFSET,
    MAX_SECTION,
    PARTIAL,
    Malformed,
)
from tests.kernel.twins import GOLDEN, NOW, Twin, batch, resealed

RECORD = bytes(5)


@pytest.fixture(scope="module")
def chunk(kernel: Twin) -> bytes:
    """Three batches: offsets 10-12, 13, and after a gap 20-21."""
    parts = [
        kernel.encode([b"a", (b"k", b"v"), None], NOW).place(10),
        kernel.encode([(b"k", b"v", {"a": b"b"})], NOW).place(13),
        kernel.encode([bytes(300), bytes(200)], NOW, 1).place(20),
    ]
    return b"".join(parts)


def test_golden(kernel: Twin) -> None:
    assert len(GOLDEN) == 95
    assert kernel.check(GOLDEN, 0, 95) == (95, 1, COMPLETE)


def test_nothing(kernel: Twin) -> None:
    assert kernel.check(b"", 0, 0) == (0, -1, COMPLETE)
    assert kernel.check(GOLDEN, 50, 50) == (50, -1, COMPLETE)


def test_complete(kernel: Twin, chunk: bytes) -> None:
    assert kernel.check(chunk, 0, len(chunk)) == (len(chunk), 22, COMPLETE)
    padded = b"??" + chunk + b"??"
    assert kernel.check(padded, 2, 2 + len(chunk)) == (2 + len(chunk), 22, COMPLETE)


def test_every_cut_is_partial(kernel: Twin, chunk: bytes) -> None:
    ends = {0: -1}
    for info in kernel.batches(chunk, 0, len(chunk)):
        ends[info.position + info.size] = info.next_offset
    for stop in range(1, len(chunk)):
        end = max(position for position in ends if position <= stop)
        status = COMPLETE if end == stop else PARTIAL
        assert kernel.check(chunk, 0, stop) == (end, ends[end], status)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flip_is_found(kernel: Twin, flip: int) -> None:
    for position in range(len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[position] ^= flip
        end, next_offset, status = kernel.check(data, 0, len(data))
        assert (end, next_offset) == (0, -1)
        grown = 16 <= position < 20 and status is PARTIAL  # it says that it is longer
        assert grown or status is BAD


def test_every_flip_and_every_cut(kernel: Twin) -> None:
    for position in range(len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[position] ^= 0x55
        for stop in range(len(data)):
            end, next_offset, status = kernel.check(data, 0, stop)
            assert (end, next_offset) == (0, -1)
            assert status in ((COMPLETE,) if stop == 0 else (PARTIAL, BAD))


def test_a_damaged_batch_ends_the_walk(kernel: Twin, chunk: bytes) -> None:
    infos = kernel.batches(chunk, 0, len(chunk))
    data = bytearray(chunk)
    data[infos[1].position + 50] ^= 1
    assert kernel.check(data, 0, len(data)) == (infos[1].position, 13, BAD)
    assert kernel.check(data, infos[2].position, len(data)) == (len(data), 22, COMPLETE)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 43, 44, 45, 4096])
@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_filler_is_bad(kernel: Twin, size: int, byte: int) -> None:
    filler = bytes((byte,)) * size
    assert kernel.check(filler, 0, size) == (0, -1, BAD)
    assert kernel.check(GOLDEN + filler, 0, 95 + size) == (95, 1, BAD)


# What a header may say although its CRC is right, and from which byte on it is seen.
IMPLAUSIBLE: list[tuple[dict[str, Any], int]] = [
    ({"magic": 0x464C5559}, 1),
    ({"magic": 0x474C5558}, 4),
    ({"base_offset": MAX_OFFSET}, 16),
    ({"base_offset": 1 << 63}, 16),
    ({"base_offset": (1 << 64) - 1}, 16),
    ({"length": MAX_SECTION + 1}, 20),
    ({"length": 0xFFFFFFFF}, 20),
    ({"count": 0}, 22),
    ({"count": 5, "base_offset": MAX_OFFSET - 4}, 22),
    ({"count": 2}, 24),  # two records in five bytes
    ({"length": 4}, 24),
    ({"length": 0, "flags": 0x0F}, 24),
    ({"version": 0}, 26),
    ({"version": 2}, 26),
]


@pytest.mark.parametrize(("changes", "seen"), IMPLAUSIBLE)
def test_implausible_headers(kernel: Twin, changes: dict[str, Any], seen: int) -> None:
    data = batch(RECORD, **changes)
    assert kernel.check(data, 0, len(data)) == (0, -1, BAD)
    for stop in range(1, HEADER_SIZE + 1):
        assert kernel.check(data, 0, stop) == (0, -1, PARTIAL if stop < seen else BAD), stop
    with pytest.raises(Malformed, match="batch at position 0: it") as caught:
        kernel.read_header(data, 0)
    assert caught.value.position == 0
    with pytest.raises(Malformed):
        kernel.batches(data, 0, len(data))
    with pytest.raises(Malformed):
        kernel.decode(data, 0, len(data))


def test_plausible_but_longer_than_what_is_there(kernel: Twin) -> None:
    data = batch(RECORD, length=MAX_SECTION)
    assert kernel.check(data, 0, len(data)) == (0, -1, PARTIAL)
    assert kernel.read_header(data, 0).size == HEADER_SIZE + MAX_SECTION


@pytest.mark.parametrize(
    ("offsets", "good"), [((5, 6), 2), ((5, 7), 2), ((5, 5), 1), ((5, 0), 1), ((0, 0), 1)]
)
def test_offsets_only_grow(kernel: Twin, offsets: tuple[int, int], good: int) -> None:
    parts = [batch(RECORD, base_offset=offset) for offset in offsets]
    data = b"".join(parts)
    end, next_offset, status = kernel.check(data, 0, len(data))
    assert end == good * len(parts[0])
    assert next_offset == offsets[good - 1] + 1
    assert status is (COMPLETE if good == 2 else BAD)
    if good == 1:  # seen as soon as the offset is there
        assert kernel.check(data, 0, end + 16)[2] is BAD
        assert kernel.check(data, 0, end + 15)[2] is PARTIAL


def test_reserved_bytes_and_unknown_flags_do_not_matter(kernel: Twin) -> None:
    data = bytearray(batch(RECORD, flags=0xFFFE))
    data[26:28] = b"\xff\xff"
    whole = resealed(bytes(data))
    assert kernel.check(whole, 0, len(whole)) == (len(whole), 1, COMPLETE)
    assert len(kernel.decode(whole, 0, len(whole))) == 1


def test_large_regions(kernel: Twin) -> None:
    """Where the GIL is released."""
    data = b"".join(bytes(kernel.encode_one(bytes(100), now_ms=NOW).place(n)) for n in range(1000))
    assert kernel.check(data, 0, len(data)) == (len(data), 1000, COMPLETE)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert kernel.check(damaged, 0, len(data))[1:] == (999, BAD)


def test_infos(kernel: Twin, chunk: bytes) -> None:
    infos = kernel.batches(chunk, 0, len(chunk))
    assert [(i.base_offset, i.count, i.next_offset) for i in infos] == [
        (10, 3, 13),
        (13, 1, 14),
        (20, 2, 22),
    ]
    position = 0
    for info in infos:
        assert info.position == position
        assert kernel.read_header(chunk, position) == info
        assert info.crc == int.from_bytes(chunk[position + 4 : position + 8], "little")
        assert (info.base_timestamp, info.max_timestamp) == (NOW, NOW)
        position += info.size
    assert [(info.flags, info.codec) for info in infos] == [(6, 0), (14, 0), (3, 1)]
    assert kernel.batches(chunk, 0, 0) == []


def test_infos_of_an_unchecked_region(kernel: Twin) -> None:
    for stop in (43, 94):
        with pytest.raises(Malformed, match="cut short") as caught:
            kernel.batches(GOLDEN + GOLDEN, 95, 95 + stop)
        assert caught.value.position == 95
    with pytest.raises(Malformed, match="cut short"):
        kernel.read_header(GOLDEN[:43], 0)
    assert kernel.read_header(GOLDEN[:44], 0).size == 95


READERS = ["check", "batches", "decode", "inflate", "first_headers", "measure_columns"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 96), (96, 96), (-5, -1)])
def test_regions_outside_the_buffer(kernel: Twin, reader: str, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not a region of a buffer of 95 bytes"):
        getattr(kernel, reader)(GOLDEN, start, stop)


def test_positions_outside_the_buffer(kernel: Twin) -> None:
    for position in (-1, 96):
        with pytest.raises(ValueError, match="is not a region"):
            kernel.read_header(GOLDEN, position)


@pytest.mark.parametrize("reader", READERS)
def test_buffers(kernel: Twin, reader: str) -> None:
    import array

    call = getattr(kernel, reader)
    expected = call(GOLDEN, 0, 95)
    longs = array.array("I", GOLDEN + b"\0")
    for buf in (bytearray(GOLDEN), memoryview(GOLDEN), memoryview(GOLDEN + b"x")[:95], longs):
        assert call(buf, 0, 95) == expected
    with pytest.raises(BufferError):
        call(memoryview(bytes(190))[::2], 0, 95)
    with pytest.raises(TypeError):
        call("text", 0, 0)


@given(data=st.binary(max_size=200))
def test_noise(kernel: Twin, data: bytes) -> None:
    end, next_offset, status = kernel.check(data, 0, len(data))
    assert (end, next_offset) == (0, -1)
    assert status is (COMPLETE if not data else PARTIAL if GOLDEN[:4].startswith(data) else BAD)
