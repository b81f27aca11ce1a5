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
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.libc.stdint import INT32_MAX, int32_t, int64_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memset
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
from tailrace.kernel.shapes import (
    EVERYTHING,
    MAX_HIDDEN,
    MAX_PICKED,
    Sizes,
    buffers_too_small,
    check_hidden,
    check_picked,
    check_picked_outputs,
    invalid_column,
)

_COMPRESSED = cython.declare(cython.int, layout.COMPRESSED)

# The arrays in filling.pxd have room for what `check_picked` and `check_hidden` let pass.
assert (MAX_PICKED, MAX_HIDDEN) == (PICKED, HIDDEN)


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
    wanted=EVERYTHING,
):
    """What the columns of an uncompressed region need, for `first <= offset < last`."""
    columns: Columns
    totals: Totals
    picked: tuple = check_picked(wanted)
    hidden: tuple = check_hidden(wanted)
    open_wanted(wanted, picked, hidden, cython.address(columns))
    columns.lists_wanted = wanted.headers
    scan_region(buf, start, stop, first, last, cython.address(columns), cython.address(totals))
    return Sizes(
        totals.rows,
        totals.null_keys,
        totals.key_bytes,
        totals.null_values,
        totals.value_bytes,
        totals.headers,
        totals.name_bytes,
        totals.header_bytes,
        tuple([totals.null_picked[i] for i in range(columns.picked_count)]),
        tuple([totals.picked_bytes[i] for i in range(columns.picked_count)]),
    )


def fill_columns(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: int64_t,
    last: int64_t,
    outputs,
    wanted=EVERYTHING,
):
    """Write the columns that `outputs` has buffers for; they must be as large as measured."""
    columns: Columns
    totals: Totals
    i: cython.int
    buffers: Buffers = Buffers()
    picked: tuple = check_picked(wanted)
    hidden: tuple = check_hidden(wanted)
    targets: tuple = check_picked_outputs(outputs, picked)
    open_wanted(wanted, picked, hidden, cython.address(columns))
    columns.lists_wanted = outputs.headers is not None
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
    for i in range(columns.picked_count):
        open_sink(buffers, targets[i], cython.address(columns.picked[i]))
    scan_region(buf, start, stop, first, last, cython.address(columns), cython.address(totals))


def open_wanted(wanted, picked, hidden, columns):
    """Clears `columns`, but for what is wanted; they point into the names, which the caller holds
    until it is done."""
    memset(columns, 0, cython.sizeof(Columns))
    columns.empty_key_is_null = wanted.empty_key_is_null
    columns.picked_count = open_names(picked, columns.picked_names)
    columns.hidden_count = open_names(hidden, columns.hidden_names)
    return 0


def open_names(names, spans):
    """Points `spans` at the names, which are bytes; returns how many there are."""
    index: cython.Py_ssize_t
    for index in range(len(names)):
        name: bytes = names[index]
        spans[index].data = cython.cast(Bytes, PyBytes_AS_STRING(name))
        spans[index].size = PyBytes_GET_SIZE(name)
    return len(names)


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
    if fields.key.size == 0 and columns.empty_key_is_null:
        fields.key.size = -1
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
    # `read_record` has walked the headers, to find their end; nobody else does without a reason.
    if columns.picked_count or (columns.lists_wanted and fields.header_count):
        if take_headers(fields, columns, totals):
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
    found: Span[PICKED]
    i: cython.int
    # Variables, because a write to a column may change `columns` for all that the compiler knows.
    picked: cython.int = columns.picked_count
    missing: cython.int = picked
    hidden: cython.int = columns.hidden_count
    listed: cython.bint = columns.lists_wanted
    written: cython.bint = columns.lists.data != cython.NULL
    count: uint64_t = 0
    end: Bytes = fields.headers.data + fields.headers.size
    data: Bytes = read_uvarint(fields.headers.data, end, cython.address(count))
    for i in range(picked):
        found[i].data = end
        found[i].size = -1
    while count and (listed or missing):
        data = read_short_span(data, end, cython.address(name))
        data = read_short_span(data, end, cython.address(value))
        if data == cython.NULL:
            return NO_ROOM  # only if the buffer has changed since
        count -= 1
        if missing:
            i = find_name(columns.picked_names, picked, name)
            if i >= 0 and found[i].size < 0:
                found[i] = value
                missing -= 1
        if not listed or (hidden and find_name(columns.hidden_names, hidden, name) >= 0):
            continue
        if written and not (
            drain(cython.address(columns.names), name)
            and drain(cython.address(columns.values), value)
        ):
            return NO_ROOM
        totals.headers += 1
        totals.name_bytes += name.size
        totals.header_bytes += value.size
    return take_picked(found, columns, totals) if picked else FINE


def read_short_span(data, end, span):
    """As `read_span`, without its two calls where the length is one byte: it nearly always is."""
    size: cython.Py_ssize_t
    if data != cython.NULL and data != end:
        size = data[0]
        if size <= 0x7F and size < end - data:
            span.data = data + 1
            span.size = size
            return data + 1 + size
    return read_span(data, end, span)


def take_picked(found, columns, totals):
    i: cython.int
    for i in range(columns.picked_count):
        if columns.picked[i].offsets.data != cython.NULL and not drain(
            cython.address(columns.picked[i]), found[i]
        ):
            return NO_ROOM
        if found[i].size < 0:
            totals.null_picked[i] += 1
        else:
            totals.picked_bytes[i] += found[i].size
    return FINE


def find_name(names, count, name):
    """Where a name is among these; -1 if it is not."""
    i: cython.int
    for i in range(count):
        if names[i].size == name.size and memcmp(names[i].data, name.data, name.size) == 0:
            return i
    return -1


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
