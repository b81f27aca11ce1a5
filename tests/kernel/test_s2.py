"""S2 and Snappy blocks, by hand-made elements of every kind."""

from __future__ import annotations

import random

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.layout import Malformed
from tests.kernel.twins import Twin, outcome, uvarint

LIMIT = 1 << 24


def literal(data: bytes) -> bytes:
    length = len(data) - 1
    if length < 60:
        return bytes((length << 2,)) + data
    width = (length.bit_length() + 7) // 8
    return bytes((59 + width << 2,)) + length.to_bytes(width, "little") + data


def copy1(offset: int, length: int) -> bytes:
    return bytes((length - 4 << 2 | offset >> 8 << 5 | 1, offset & 0xFF))


def copy2(offset: int, length: int) -> bytes:
    return bytes((length - 1 << 2 | 2,)) + offset.to_bytes(2, "little")


def copy4(offset: int, length: int) -> bytes:
    return bytes((length - 1 << 2 | 3,)) + offset.to_bytes(4, "little")


def repeat(length: int) -> bytes:
    for code, width, least in ((5, 1, 8), (6, 2, 260), (7, 3, 65540)):
        if least <= length < least + (1 << 8 * width):
            return bytes((code << 2 | 1, 0)) + (length - least).to_bytes(width, "little")
    assert 4 <= length < 8
    return bytes((length - 4 << 2 | 1, 0))


def block(size: int, *elements: bytes) -> bytes:
    return uvarint(size) + b"".join(elements)


def copied(data: bytes, offset: int, length: int) -> bytes:
    """What a copy appends, byte by byte."""
    out = bytearray(data)
    for _ in range(length):
        out.append(out[-offset])
    return bytes(out)


def test_empty(kernel: Twin) -> None:
    assert kernel.s2_decompress(b"\0", LIMIT) == b""


@pytest.mark.parametrize("size", [1, 16, 17, 59, 60, 61, 256, 257, 65536, 65537, 1 << 24])
def test_literals(kernel: Twin, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert kernel.s2_decompress(block(size, literal(data)), LIMIT) == data


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_literal_lengths_may_be_wider_than_needed(kernel: Twin, width: int) -> None:
    element = bytes((59 + width << 2,)) + (2).to_bytes(width, "little") + b"abc"
    assert kernel.s2_decompress(block(3, element), LIMIT) == b"abc"


@pytest.mark.parametrize("offset", [1, 2, 3, 7, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("length", [4, 5, 11, 12, 16, 17, 33, 63, 64])
@pytest.mark.parametrize("behind", [0, 1, 100])
def test_copies(kernel: Twin, offset: int, length: int, behind: int) -> None:
    """Overlapping or not, with and without room for more behind."""
    start = bytes(range(40))
    rest = b"." * behind
    expected = copied(start, offset, length) + rest
    tail = [literal(rest)] if rest else []
    elements = [copy2(offset, length), copy4(offset, length)]
    if length < 12:
        elements.append(copy1(offset, length))
    for element in elements:
        data = block(len(expected), literal(start), element, *tail)
        assert kernel.s2_decompress(data, LIMIT) == expected


@pytest.mark.parametrize(
    "length", [4, 7, 8, 9, 100, 259, 260, 261, 515, 65539, 65540, 65541, 131075, 5_000_000]
)
def test_repeated_offsets(kernel: Twin, length: int) -> None:
    expected = copied(copied(b"abcdefg", 3, 4), 3, length)
    data = block(len(expected), literal(b"abcdefg"), copy1(3, 4), repeat(length))
    assert kernel.s2_decompress(data, LIMIT) == expected


@pytest.mark.parametrize("element", [copy1(5, 4), copy2(5, 4), copy4(5, 4)])
def test_any_copy_sets_the_offset_to_repeat(kernel: Twin, element: bytes) -> None:
    expected = copied(b"abcdefg", 5, 12)
    data = block(len(expected), literal(b"abcdefg"), element, repeat(4), repeat(4))
    assert kernel.s2_decompress(data, LIMIT) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x80\x80\x80\x80",
        b"\xff\xff\xff\xff\x7f",  # more than 32 bits
        block(3),
        block(3, literal(b"ab")),
        block(3, literal(b"abcd")),
        block(3, literal(b"abc"), literal(b"d")),
        block(9, b"\x20abc"),  # a literal of 9 with 3 bytes
        block(9, b"\xf0"),  # cut in the length of a literal
        block(9, b"\xfc\x00\x00\x00"),
        block(9, b"\xfc\xff\xff\xff\xffabc"),
        block(7, literal(b"abc"), copy1(4, 4)),  # before the start
        block(7, literal(b"abc"), copy2(4, 4)),
        block(7, literal(b"abc"), copy4(0xFFFFFFFF, 4)),
        block(7, literal(b"abc"), copy2(0, 4)),
        block(7, literal(b"abc"), copy4(0, 4)),
        block(7, literal(b"abc"), repeat(4)),  # nothing to repeat
        block(7, copy1(1, 4)),
        block(6, literal(b"abc"), copy1(1, 4)),  # too long
        block(8, literal(b"abc"), copy1(1, 4)),  # too short
        block(9, literal(b"abc"), b"\x01"),  # cut
        block(9, literal(b"abc"), b"\x02\x01"),
        block(9, literal(b"abc"), b"\x03\x01\x00\x00"),
        block(99, literal(b"abc"), copy1(1, 4), b"\x15\x00"),
        block(99, literal(b"abc"), copy1(1, 4), b"\x19\x00\x00"),
        block(99, literal(b"abc"), copy1(1, 4), b"\x1d\x00\x00\x00"),
        block(99, literal(b"abc"), copy1(1, 4), b"\x1d\x00\xff\xff\xff"),
    ],
)
def test_damage(kernel: Twin, data: bytes) -> None:
    with pytest.raises(Malformed, match="s2 block"):
        kernel.s2_decompress(data, LIMIT)


@pytest.mark.parametrize("size", [11, 1 << 20, 0xFFFFFFFF])
def test_bombs_are_refused_before_anything_is_allocated(kernel: Twin, size: int) -> None:
    with pytest.raises(Malformed, match=f"declares {size} bytes and the limit is 10"):
        kernel.s2_decompress(block(size, literal(b"a"), copy1(1, 4), repeat(5_000_000)), 10)


def test_the_limit_itself_is_allowed(kernel: Twin) -> None:
    assert kernel.s2_decompress(block(3, literal(b"abc")), 3) == b"abc"
    with pytest.raises(Malformed):
        kernel.s2_decompress(block(0), -1)


@given(data=st.binary(max_size=2000), times=st.integers(1, 5))
def test_snappy_blocks(kernel: Twin, data: bytes, times: int) -> None:
    data *= times
    packed = bytes(cramjam.snappy.compress_raw(data))
    assert kernel.s2_decompress(packed, LIMIT) == data
    assert kernel.s2_decompress(memoryview(packed), LIMIT) == data


elements = st.one_of(
    st.binary(min_size=1, max_size=70).map(literal),
    st.builds(copy1, st.integers(0, 2047), st.integers(4, 11)),
    st.builds(copy2, st.integers(0, 300), st.integers(1, 64)),
    st.builds(copy4, st.integers(0, 300), st.integers(1, 64)),
    st.integers(4, 70000).map(repeat),
    st.binary(max_size=4),
)


@given(parts=st.lists(elements, max_size=8), size=st.integers(0, 400))
def test_twins_agree(twins: tuple[Twin, Twin], parts: list[bytes], size: int) -> None:
    compiled, pure = twins
    data = block(size, *parts)
    assert outcome(compiled.s2_decompress, data, LIMIT) == outcome(pure.s2_decompress, data, LIMIT)
