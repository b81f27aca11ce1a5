# cython: language_level=3, boundscheck=False, wraparound=False
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Decoder of S2 and Snappy blocks; the pure twin describes the format."""

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy, memset

from tailrace.kernel.layout import Malformed

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Target = cython.typedef(cython.pointer(cython.uchar))

# What `expand` returns, as an index. The first is success.
_FAULTS = (
    "",
    "it is cut short",
    "a literal is too long",
    "a copy from before the start",
    "it holds more or less than it declares",
)


def s2_decompress(data, limit: cython.Py_ssize_t):
    """The content of a block, which may not be longer than `limit`."""
    view: Py_buffer
    size: cython.ulonglong = 0
    position: cython.Py_ssize_t
    fault: cython.int
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        block: Bytes = cython.cast(Bytes, view.buf)
        position = declared_size(block, view.len, cython.address(size))
        if position == 0:
            raise Malformed("s2 block: it does not start with the length of its content")
        if limit < 0 or size > cython.cast(cython.ulonglong, limit):
            raise Malformed(f"s2 block: it declares {size} bytes and the limit is {limit}")
        content = PyBytes_FromStringAndSize(cython.NULL, size)
        out: Target = cython.cast(Target, PyBytes_AS_STRING(content))
        with cython.nogil:
            fault = expand(block + position, block + view.len, out, out + size)
        if fault:
            raise Malformed(f"s2 block: {_FAULTS[fault]}")
        return content
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def declared_size(
    block: Bytes, length: cython.Py_ssize_t, size: cython.pointer(cython.ulonglong)
) -> cython.Py_ssize_t:
    """Reads the uvarint at the start, of at most 32 bits; returns its length, 0 if it is none."""
    number: cython.ulonglong = 0
    position: cython.Py_ssize_t
    for position in range(min(length, 5)):
        number |= cython.cast(cython.ulonglong, block[position] & 0x7F) << (7 * position)
        if block[position] < 0x80:
            if number >> 32:
                return 0
            size[0] = number
            return position + 1
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def little(source: Bytes, width: cython.Py_ssize_t) -> cython.size_t:
    number: cython.size_t = 0
    i: cython.Py_ssize_t
    for i in range(width):
        number |= cython.cast(cython.size_t, source[i]) << (8 * i)
    return number


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def expand(source: Bytes, source_end: Bytes, start: Target, end: Target) -> cython.int:
    """Fills [start, end) from the elements; returns an index into _FAULTS.

    Invariant: source <= source_end and start <= out <= end. Each byte of the source is read once,
    so that a buffer that changes meanwhile gives a wrong result but no access out of bounds. Where
    there is room, whole chunks are copied: what is too much is overwritten by what follows.
    """
    out: Target = start
    offset: cython.size_t = 0
    length: cython.size_t
    extra: cython.Py_ssize_t
    copied: cython.size_t
    tag: cython.uint
    while source < source_end:
        tag = source[0]
        source += 1
        length = tag >> 2
        if tag & 3 == 0:
            if length >= 60:
                extra = length - 59
                if source_end - source < extra:
                    return 1
                length = little(source, extra)
                source += extra
            length += 1
            if length <= CHUNK and source_end - source >= CHUNK and end - out >= CHUNK:
                memcpy(out, source, CHUNK)
            elif length > cython.cast(cython.size_t, source_end - source):
                return 2
            elif length > cython.cast(cython.size_t, end - out):
                return 2
            else:
                memcpy(out, source, length)
            out += length
            source += length
            continue
        if tag & 3 == 1:
            length &= 7
            if source == source_end:
                return 1
            extra = (tag & 0xE0) << 3 | source[0]
            source += 1
            if extra:
                offset = extra
                length += 4
            elif length < 5:
                length += 4
            else:
                extra = length - 4
                if source_end - source < extra:
                    return 1
                length = little(source, extra) + (8 if extra == 1 else 260 if extra == 2 else 65540)
                source += extra
        elif tag & 3 == 2:
            if source_end - source < 2:
                return 1
            offset = little(source, 2)
            source += 2
            length += 1
        else:
            if source_end - source < 4:
                return 1
            offset = little(source, 4)
            source += 4
            length += 1
        if offset == 0 or offset > cython.cast(cython.size_t, out - start):
            return 3
        if length > cython.cast(cython.size_t, end - out):
            return 4
        if offset >= CHUNK and length <= 4 * CHUNK and end - out >= 4 * CHUNK:
            copied = 0
            while copied < length:
                memcpy(out + copied, out + copied - offset, CHUNK)
                copied += CHUNK
        else:
            copy_back(out, offset, length)
        out += length
    return 0 if out == end else 4


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_back(out: Target, offset: cython.size_t, length: cython.size_t) -> cython.void:
    """Copies `length` bytes from `offset` back; the source may run into the copy."""
    if offset == 1:
        memset(out, (out - 1)[0], length)
        return
    # What is there repeats with a period of `offset`, and so does twice as much of it.
    source: Target = out - offset
    while length > offset:
        memcpy(out, source, offset)
        out += offset
        length -= offset
        offset += offset
    memcpy(out, source, length)
