# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Columns from batches: the half of `tailrace.kernel.pure.columns` that reads, compiled.

Between acquiring and releasing buffers nothing needs the GIL or makes a Python object. Nothing is
assumed to stay the same between two passes over a buffer: the second pass checks the room that the
first one asked for.
"""

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.libc.stdint import INT32_MAX, int32_t, int64_t, uint64_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tailrace.kernel.compiled.records import (
    HEAD,
    Bytes,
    Fields,
    Header,
    Span,
    Target,
    read_batch,
    read_record,
    read_span,
    read_uvarint,
)

from tailrace.kernel import layout
from tailrace.kernel.layout import (
    HEADER_FAULTS,
    RECORD_FAULTS,
    STILL_COMPRESSED,
    malformed_batch,
    malformed_section,
    outside,
)
from tailrace.kernel.shapes import Sizes, buffers_too_small, invalid_column

_COMPRESSED = cython.declare(cython.int, layout.COMPRESSED)


@cython.final
@cython.cclass
class Buffers:
    """The buffers that a call has acquired: they are released when it returns or raises."""

    def __dealloc__(self):
        i: cython.int
        for i in range(self.count):
            PyBuffer_Release(cython.address(self.views[i]))

    def acquire(self, buf, flags):
        view: cython.pointer(Py_buffer) = cython.address(self.views[self.count])
        PyObject_GetBuffer(buf, view, flags)
        self.count += 1
        return view

    def read(self, buf, least, name):
        """A buffer to read, of at least so many bytes."""
        view: cython.pointer(Py_buffer) = self.acquire(buf, PyBUF_SIMPLE)
        if view.len < least:
            raise invalid_column(name)
        return cython.cast(Bytes, view.buf)

    def write(self, buf, area):
        view: cython.pointer(Py_buffer) = self.acquire(buf, PyBUF_WRITABLE)
        area.data = cython.cast(Target, view.buf)
        area.size = view.len
        return 0


def measure_columns(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: int64_t = 0,
    last: int64_t = layout.MAX_OFFSET,
):
    """What the columns of an uncompressed region need, for `first <= offset < last`."""
    columns: Columns
    totals: Totals
    memset(cython.address(columns), 0, cython.sizeof(Columns))
    scan_region(buf, start, stop, first, last, cython.address(columns), cython.address(totals))
    return Sizes(**totals)


def fill_columns(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: int64_t,
    last: int64_t,
    outputs,
):
    """Write the columns that `outputs` has buffers for; they must be as large as measured."""
    columns: Columns
    totals: Totals
    buffers: Buffers = Buffers()
    memset(cython.address(columns), 0, cython.sizeof(Columns))
    if outputs.offset is not None:
        buffers.write(outputs.offset, cython.address(columns.offset))
    if outputs.timestamp is not None:
        buffers.write(outputs.timestamp, cython.address(columns.timestamp))
    if outputs.key is not None:
        open_sink(buffers, outputs.key, cython.address(columns.key))
    if outputs.value is not None:
        open_sink(buffers, outputs.value, cython.address(columns.value))
    if outputs.headers is not None:
        open_offsets(buffers, outputs.headers.offsets, cython.address(columns.lists))
        open_sink(buffers, outputs.headers.names, cython.address(columns.names))
        open_sink(buffers, outputs.headers.values, cython.address(columns.values))
    scan_region(buf, start, stop, first, last, cython.address(columns), cython.address(totals))


def open_sink(buffers, output, sink):
    if output.validity is not None:
        buffers.write(output.validity, cython.address(sink.validity))
    open_offsets(buffers, output.offsets, cython.address(sink.offsets))
    buffers.write(output.data, cython.address(sink.data))
    return 0


def open_offsets(buffers, buf, area):
    buffers.write(buf, area)
    if area.size < 4:
        raise buffers_too_small()
    store32(area.data, 0)
    return 0


def scan_region(buf, start, stop, first, last, columns, totals):
    """Runs `scan`, and raises what it found."""
    buffers: Buffers = Buffers()
    view: cython.pointer(Py_buffer) = buffers.acquire(buf, PyBUF_SIMPLE)
    if not 0 <= start <= stop <= view.len:
        raise outside(start, stop, view.len)
    memset(totals, 0, cython.sizeof(Totals))
    problem: cython.int
    fault: cython.int = 0
    position: cython.Py_ssize_t = start
    data: Bytes = cython.cast(Bytes, view.buf)
    at: cython.pointer(cython.Py_ssize_t) = cython.address(position)
    with cython.nogil:
        problem = scan(data, at, stop, first, last, columns, totals, cython.address(fault))
    if problem == BAD_HEADER:
        raise malformed_batch(position, HEADER_FAULTS[fault])
    if problem == BAD_RECORD:
        raise malformed_section(position, RECORD_FAULTS[fault])
    if problem == IS_COMPRESSED:
        raise malformed_batch(position, STILL_COMPRESSED)
    if problem == NO_ROOM:
        raise buffers_too_small()
    return 0


def scan(data, position, stop, first, last, columns, totals, fault):
    """Counts the records with `first <= offset < last`, and writes the columns that are wanted.

    Returns a Problem, with `position` at its batch.
    """
    header: Header
    fields: Fields
    record: Bytes
    end: Bytes
    offset: int64_t
    index: cython.int
    problem: cython.int
    while position[0] < stop:
        fault[0] = read_batch(data, position[0], stop, cython.address(header))
        if fault[0]:
            return BAD_HEADER
        if header.flags & _COMPRESSED:
            return IS_COMPRESSED
        offset = header.base_offset
        record = data + position[0] + HEAD
        end = record + header.length
        for index in range(header.count if offset + header.count > first else 0):
            if offset >= last:
                break
            record = read_record(
                record, end, index, header.base_timestamp, cython.address(fields), fault
            )
            if record == cython.NULL:
                return BAD_RECORD
            if offset >= first:
                problem = take_record(offset, cython.address(fields), columns, totals)
                if problem:
                    return problem
            offset += 1
        position[0] = end - data
    return FINE


def take_record(offset, fields, columns, totals):
    row: cython.Py_ssize_t = totals.rows
    if columns.offset.data != cython.NULL and not store64(columns.offset, row, offset):
        return NO_ROOM
    if columns.timestamp.data != cython.NULL and not store64(
        columns.timestamp, row, fields.timestamp
    ):
        return NO_ROOM
    if columns.key.offsets.data != cython.NULL and not drain(
        cython.address(columns.key), fields.key
    ):
        return NO_ROOM
    if columns.value.offsets.data != cython.NULL and not drain(
        cython.address(columns.value), fields.value
    ):
        return NO_ROOM
    if fields.key.size < 0:
        totals.null_keys += 1
    else:
        totals.key_bytes += fields.key.size
    if fields.value.size < 0:
        totals.null_values += 1
    else:
        totals.value_bytes += fields.value.size
    if fields.header_count and take_headers(fields, columns, totals):
        return NO_ROOM
    totals.rows += 1
    if columns.lists.data != cython.NULL:
        if 4 * (totals.rows + 1) > columns.lists.size or totals.headers > INT32_MAX:
            return NO_ROOM
        store32(columns.lists.data + 4 * totals.rows, totals.headers)
    return FINE


def take_headers(fields, columns, totals):
    """Counts and writes the headers, whose lengths `read_record` has checked."""
    name: Span
    value: Span
    count: uint64_t = 0
    end: Bytes = fields.headers.data + fields.headers.size
    data: Bytes = read_uvarint(fields.headers.data, end, cython.address(count))
    while count:
        data = read_span(data, end, cython.address(name))
        data = read_span(data, end, cython.address(value))
        if data == cython.NULL:
            return NO_ROOM  # only if the buffer has changed since
        if columns.lists.data != cython.NULL and not (
            drain(cython.address(columns.names), name)
            and drain(cython.address(columns.values), value)
        ):
            return NO_ROOM
        totals.headers += 1
        totals.name_bytes += name.size
        totals.header_bytes += value.size
        count -= 1
    return FINE


def drain(sink, span):
    """Appends a row; returns whether there was room."""
    row: cython.Py_ssize_t = sink.row
    size: cython.Py_ssize_t = max(span.size, 0)
    if size > sink.data.size - sink.used or 4 * (row + 2) > sink.offsets.size:
        return False
    if sink.used + size > INT32_MAX:
        return False
    if sink.validity.data != cython.NULL:
        if row >> 3 >= sink.validity.size:
            return False
        if row & 7 == 0:
            sink.validity.data[row >> 3] = 0
        if span.size >= 0:
            sink.validity.data[row >> 3] |= 1 << (row & 7)
    memcpy(sink.data.data + sink.used, span.data, size)
    sink.used += size
    store32(sink.offsets.data + 4 * (row + 1), sink.used)
    sink.row = row + 1
    return True


def store32(out, number):
    narrow: int32_t = cython.cast(int32_t, number)
    memcpy(out, cython.address(narrow), 4)


def store64(area, row, number):
    if 8 * (row + 1) > area.size:
        return False
    memcpy(area.data + 8 * row, cython.address(number), 8)
    return True
