# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""What can be said of a region: the compiled twin of `tailrace.kernel.pure.outline`."""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.string import memcmp
from cython.cimports.tailrace.kernel.compiled.codec import Region
from cython.cimports.tailrace.kernel.compiled.records import (
    Bytes,
    Fields,
    Span,
    read_record,
    read_span,
    read_uvarint,
)

from tailrace.kernel import layout
from tailrace.kernel.layout import RECORD_FAULTS, malformed_section

_HAS_HEADERS = cython.declare(cython.int, layout.HAS_HEADERS)


def is_plain(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, names: tuple):
    """Is there a record at every offset of a checked region, and none with a header of these names?

    Then whoever wants records of it can tell which offsets they have before they are decoded.
    """
    region: Region = Region(buf, start, stop)
    section: Span
    data: Bytes
    fields: Fields
    fault: cython.int = 0
    index: cython.int
    next_offset: int64_t = -1
    while region.next():
        if next_offset != -1 and region.header.base_offset != next_offset:
            return False
        next_offset = region.header.base_offset + region.header.count
        section = region.section()
        data = section.data
        for index in range(region.header.count):
            data = read_record(
                data,
                section.data + section.size,
                index,
                region.header.base_timestamp,
                cython.address(fields),
                cython.address(fault),
            )
            if data == cython.NULL:
                raise malformed_section(region.position, RECORD_FAULTS[fault])
            if region.header.flags & _HAS_HEADERS and has_any(fields.headers, names):
                return False
    return True


def has_any(headers, names):
    """Has one of the headers, which `read_record` has passed, one of the names?"""
    data: Bytes = headers.data
    end: Bytes = data + headers.size
    left: uint64_t = 0
    known: Span
    value: Span
    name: bytes
    data = read_uvarint(data, end, cython.address(left))
    while left:
        data = read_span(data, end, cython.address(known))
        data = read_span(data, end, cython.address(value))
        for name in names:
            if PyBytes_GET_SIZE(name) == known.size and not memcmp(
                PyBytes_AS_STRING(name), known.data, known.size
            ):
                return True
        left -= 1
    return False
