"""CRC-32C: the check value, any length and alignment, every backend, and joining."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.twins import Twin

# Around the sizes where the loops change: 8 bytes, three parts of 256, three parts of 4096.
SIZES = [*range(40), 255, 256, 767, 768, 769, 775, 1536, 8192, 8193, 12287, 12288, 12289, 25000]


def reference(data: bytes, value: int = 0) -> int:
    """Bit by bit, from the definition."""
    state = value ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_check_value(kernel: Twin) -> None:
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(b"") == 0
    assert kernel.crc32c(bytes(32)) == 0x8A9136AA
    assert kernel.crc32c(b"\xff" * 32) == 0x62A8AB43


def test_backend_is_named(kernel: Twin) -> None:
    names = {"pure": {"fastcrc"}, "compiled": {"sse4.2", "armv8", "table"}}
    assert kernel.CRC_BACKEND in names[kernel.name]


@pytest.mark.parametrize("size", SIZES)
def test_any_size(kernel: Twin, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert kernel.crc32c(data) == reference(data)


def test_any_alignment(kernel: Twin) -> None:
    data = random.Random(1).randbytes(900)
    for start in range(9):
        assert kernel.crc32c(memoryview(data)[start:]) == reference(data[start:])


@pytest.mark.parametrize("size", SIZES)
def test_tables_agree_with_the_cpu(twins: tuple[Twin, Twin], size: int) -> None:
    compiled, _ = twins
    data = random.Random(size).randbytes(size)
    for value in (0, 1, 0xFFFFFFFF, 0x12345678):
        assert compiled.crc32c_by_table(data, value) == compiled.crc32c(data, value)


@given(data=st.binary(max_size=60), cut=st.integers(0, 60))
def test_incremental(kernel: Twin, data: bytes, cut: int) -> None:
    assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)


@given(a=st.binary(max_size=40), b=st.binary(max_size=40))
def test_combine(kernel: Twin, a: bytes, b: bytes) -> None:
    assert kernel.crc32c_combine(kernel.crc32c(a), kernel.crc32c(b), len(b)) == reference(a + b)


@pytest.mark.parametrize("exponent", [8, 16, 20, 24])
def test_combine_long(kernel: Twin, exponent: int) -> None:
    b = random.Random(exponent).randbytes((1 << exponent) + 3)
    combined = kernel.crc32c_combine(0xDEADBEEF, kernel.crc32c(b), len(b))
    assert combined == kernel.crc32c(b, 0xDEADBEEF)


def test_combine_with_lengths_beyond_memory(kernel: Twin) -> None:
    """Two steps of n bytes are one of 2 n, also where the powers of x start to repeat."""
    for exponent in (28, 29, 30, 35, 62):
        once = kernel.crc32c_combine(0x12345678, 0, 1 << exponent)
        twice = kernel.crc32c_combine(once, 0, 1 << exponent)
        assert kernel.crc32c_combine(0x12345678, 0, 2 << exponent) == twice


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_buffer(kernel: Twin, make: type) -> None:
    assert kernel.crc32c(make(b"123456789")) == 0xE3069283


def test_wrong_arguments(kernel: Twin) -> None:
    with pytest.raises(TypeError):
        kernel.crc32c("text")
    with pytest.raises(OverflowError):
        kernel.crc32c(b"", -1)
    with pytest.raises(OverflowError):
        kernel.crc32c(b"", 1 << 32)
    with pytest.raises(ValueError, match="negative"):
        kernel.crc32c_combine(0, 0, -1)
