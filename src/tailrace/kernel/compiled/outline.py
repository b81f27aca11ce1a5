# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""What can be said of a region: the compiled twin of `tailrace.kernel.pure.outline`."""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.libc.stdint import INT64_MIN, int64_t, uint64_t
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
_RELEASE_GIL_ABOVE = cython.declare(cython.Py_ssize_t, 16384)


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


def count_right(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """How many batches a checked region has; 0 if the newest record of one is not of the time that
    its header says.

    Every record is walked through, and `Malformed` if one cannot be read. One batch at a time is
    decompressed, so that memory is used again while the processor still has it.
    """
    region: Region = Region(buf, start, stop)
    section: Span
    newest: int64_t = 0
    fault: cython.int
    count: cython.Py_ssize_t = 0
    while region.next():
        section = region.section()
        if section.size > _RELEASE_GIL_ABOVE:
            with cython.nogil:
                fault = find_newest(section, cython.address(region.header), cython.address(newest))
        else:
            fault = find_newest(section, cython.address(region.header), cython.address(newest))
        if fault:
            raise malformed_section(region.position, RECORD_FAULTS[fault])
        if newest != region.header.max_timestamp:
            return 0
        count += 1
    return count


def find_newest(section, header, newest):
    """The greatest timestamp of a section's records; returns an index into RECORD_FAULTS."""
    data: Bytes = section.data
    end: Bytes = data + section.size
    fields: Fields
    fault: cython.int = 0
    index: cython.int
    newest[0] = INT64_MIN
    for index in range(header.count):
        data = read_record(
            data, end, index, header.base_timestamp, cython.address(fields), cython.address(fault)
        )
        if data == cython.NULL:
            return fault
        if fields.timestamp > newest[0]:
            newest[0] = fields.timestamp
    return 0
