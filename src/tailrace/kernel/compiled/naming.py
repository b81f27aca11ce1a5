# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Names that end in a number, as a column: the compiled twin of `tailrace.kernel.pure.naming`."""

import cython
from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.libc.stdint import INT32_MAX, int32_t, int64_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tailrace.kernel.compiled.filling import Buffers
from cython.cimports.tailrace.kernel.compiled.records import Bytes, Target

from tailrace.kernel.shapes import LONGEST_NUMBER, buffers_too_small

_LONGEST = cython.declare(cython.int, LONGEST_NUMBER)


def write_names(prefix: bytes, numbers, offsets, data):
    """Writes the prefix and the number for each of the int64 `numbers`; how many bytes of `data` it
    took."""
    buffers: Buffers = Buffers()
    given: cython.pointer(Py_buffer) = buffers.acquire(numbers, PyBUF_SIMPLE)
    ends: cython.pointer(Py_buffer) = buffers.acquire(offsets, PyBUF_WRITABLE)
    out: cython.pointer(Py_buffer) = buffers.acquire(data, PyBUF_WRITABLE)
    rows: cython.Py_ssize_t = given.len // 8
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(prefix)
    room: cython.Py_ssize_t = rows * (size + _LONGEST)
    if ends.len < 4 * (rows + 1) or out.len < room or room > INT32_MAX:
        raise buffers_too_small()
    text: Bytes = cython.cast(Bytes, PyBytes_AS_STRING(prefix))
    source: Bytes = cython.cast(Bytes, given.buf)
    stops: Target = cython.cast(Target, ends.buf)
    start: Target = cython.cast(Target, out.buf)
    used: cython.Py_ssize_t
    with cython.nogil:
        used = put_names(text, size, source, rows, stops, start)
    return used


def put_names(text, size, source, rows, stops, start):
    """Mostly a number is the one before and one more: then so is its name, but for a digit."""
    at: Target = start
    stop: int32_t = 0
    last: int64_t = 0
    number: int64_t
    length: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    memcpy(stops, cython.address(stop), 4)
    for row in range(rows):
        memcpy(cython.address(number), source + 8 * row, 8)
        if length and number > 0 and number - 1 == last and at[-1] != ord("9"):
            memcpy(at, at - length, length)
            at[length - 1] += 1
        else:
            memcpy(at, text, size)
            length = size + put_number(at + size, number)
        at += length
        last = number
        stop = cython.cast(int32_t, at - start)
        memcpy(stops + 4 * (row + 1), cython.address(stop), 4)
    return at - start


def put_number(out, number):
    """In decimal; how many bytes that is."""
    digits: cython.uchar[20]
    index: cython.int = 20
    sign: cython.int = number < 0
    left: uint64_t = cython.cast(uint64_t, number)
    if sign:
        left = 0 - left
    while left or index == 20:
        index -= 1
        digits[index] = ord("0") + left % 10
        left //= 10
    if sign:
        out[0] = ord("-")
    memcpy(out + sign, cython.address(digits[index]), 20 - index)
    return sign + 20 - index
