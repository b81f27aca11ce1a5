"""CRC-32C (Castagnoli), by fastcrc, and the algebra to join two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastcrc.crc32 import iscsi

if TYPE_CHECKING:
    from typing_extensions import Buffer

CRC_BACKEND: Final = "fastcrc"

_POLYNOMIAL: Final = 0x82F63B78  # reflected: the highest bit is x^0
_ONE: Final = 1 << 31


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC of `data` appended to something whose CRC is `value`."""
    return iscsi(data, value)


def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """The CRC of a + b, from the CRCs of each and the length of b."""
    return multiply(shift_operator(length_b), crc_a) ^ crc_b


def shift_operator(length: int) -> int:
    """What a CRC is multiplied by when `length` bytes follow: x^(8 * length)."""
    if length < 0:
        raise ValueError(f"a length cannot be negative: {length}")
    operator = _ONE
    # x has order 2^31 - 1 in this field, so the powers repeat with the 31st squaring.
    power = 3  # 8 = 2^3
    while length:
        if length & 1:
            operator = multiply(operator, _SQUARES[power % 31])
        length >>= 1
        power += 1
    return operator


def multiply(a: int, b: int) -> int:
    """The product of two polynomials over GF(2), modulo the CRC's polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _squares() -> tuple[int, ...]:
    """x^(2^n) for n in 0..30."""
    squares = [_ONE >> 1]
    while len(squares) < 31:
        squares.append(multiply(squares[-1], squares[-1]))
    return tuple(squares)


_SQUARES: Final = _squares()
