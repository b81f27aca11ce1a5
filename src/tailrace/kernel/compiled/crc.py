# cython: language_level=3, boundscheck=False, wraparound=False
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""CRC-32C (Castagnoli); the loops are in crc32c.h, because they need CPU instructions."""

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.tailrace.kernel.compiled.crc32c import (
    tailrace_crc_by_table,
    tailrace_crc_init,
    tailrace_crc_multiply,
    tailrace_crc_shift,
    tailrace_crc_update,
)

# Below this, letting another thread run costs more than the CRC.
RELEASE_GIL_ABOVE = cython.declare(cython.Py_ssize_t, 8192)

CRC_BACKEND = tailrace_crc_init().decode("ascii")


def crc_of(data, size, value):
    """The CRC of `size` bytes appended to something whose CRC is `value`."""
    return ~tailrace_crc_update(~value, data, size)


def crc_shift(length):
    """The factor for `crc_join` when the second part has `length` bytes."""
    return tailrace_crc_shift(length)


def crc_join(shift, crc_a, crc_b):
    """The CRC of a + b."""
    return tailrace_crc_multiply(shift, crc_a) ^ crc_b


def crc32c(data, value: uint32_t = 0):
    """The CRC of `data` appended to something whose CRC is `value`."""
    view: Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    if view.len > RELEASE_GIL_ABOVE:
        with cython.nogil:
            value = crc_of(cython.cast(Bytes, view.buf), view.len, value)
    else:
        value = crc_of(cython.cast(Bytes, view.buf), view.len, value)
    PyBuffer_Release(cython.address(view))
    return value


def crc32c_combine(crc_a: uint32_t, crc_b: uint32_t, length_b):
    """The CRC of a + b, from the CRCs of each and the length of b."""
    if length_b < 0:
        raise ValueError(f"a length cannot be negative: {length_b}")
    length: uint64_t = length_b
    return crc_join(crc_shift(length), crc_a, crc_b)


def crc32c_by_table(data, value: uint32_t = 0):
    """As `crc32c`, without the CPU's instructions: what runs where there are none."""
    view: Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    value = ~tailrace_crc_by_table(~value, cython.cast(Bytes, view.buf), view.len)
    PyBuffer_Release(cython.address(view))
    return value
