# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Batches to and from columns: the compiled twin of `tailrace.kernel.pure.columns`.

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
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cython.cimports.libc.stdint import INT32_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tailrace.kernel.compiled.codec import as_int64, finish
from cython.cimports.tailrace.kernel.compiled.records import (
    HEAD,
    LONGEST,
    OVERHEAD,
    Bytes,
    Fields,
    Header,
    Span,
    Target,
    put_record,
    put_uvarint,
    read_batch,
    read_record,
    read_span,
    read_uvarint,
    subtract,
)

from tailrace.kernel import layout
from tailrace.kernel.coerce import as_timestamp
from tailrace.kernel.layout import (
    HEADER_FAULTS,
    RECORD_FAULTS,
    STILL_COMPRESSED,
    malformed_batch,
    malformed_section,
    outside,
    too_large,
    too_many,
)
from tailrace.kernel.shapes import (
    Sizes,
    buffers_too_small,
    check_max_records,
    invalid_column,
    null_header,
)

# The format's flags and limits as C variables; `layout` is where they are defined.
_COMPRESSED = cython.declare(cython.int, layout.COMPRESSED)
_HAS_TIMESTAMP = cython.declare(cython.int, layout.HAS_TIMESTAMP)
_HAS_KEYS = cython.declare(cython.int, layout.HAS_KEYS)
_HAS_HEADERS = cython.declare(cython.int, layout.HAS_HEADERS)
_MAX_COUNT = cython.declare(cython.Py_ssize_t, layout.MAX_COUNT)
_MAX_SECTION = cython.declare(cython.Py_ssize_t, layout.MAX_SECTION)


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


# Decoding


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


# Encoding


def encode_columns(table, now_ms, codec=0):
    """One batch of all rows; a row without a timestamp gets `now_ms`."""
    work: Encoding
    work.now = as_int64(now_ms, as_timestamp)
    work.size = 0
    work.newest = INT64_MIN
    work.flags = _HAS_TIMESTAMP
    if not 0 < table.rows <= _MAX_COUNT:
        raise too_many(table.rows)
    rows: Table
    buffers: Buffers = Buffers()
    open_table(buffers, table, cython.address(rows))
    problem: cython.int
    with cython.nogil:
        problem = measure_rows(cython.address(rows), cython.address(work))
    refuse_row(problem, work.row)
    if work.size > _MAX_SECTION:
        raise too_large(work.size, _MAX_SECTION)
    # A little more than needed: so the writer may ask for a varint's greatest length each time.
    size: cython.Py_ssize_t = work.size + OVERHEAD
    data = PyByteArray_FromStringAndSize(cython.NULL, HEAD + size)
    out: Target = cython.cast(Target, PyByteArray_AS_STRING(data)) + HEAD
    with cython.nogil:
        problem = put_rows(cython.address(rows), cython.address(work), out, out + size)
    if problem:
        raise RuntimeError("the columns were changed while they were being encoded")
    return finish(
        data, work.size, rows.rows, work.flags, work.now, work.newest, codec, _MAX_SECTION
    )


def split_rows(table, max_records, max_bytes):
    """[start, stop) of the batches that hold at most so many records and bytes each.

    The size is an upper bound: a timestamp counts as the longest possible one when there are any.
    """
    most: cython.Py_ssize_t = check_max_records(max_records)
    limit: cython.Py_ssize_t = min(max_bytes, _MAX_SECTION)
    ranges: list = []
    if table.rows == 0:
        return ranges
    rows: Table
    buffers: Buffers = Buffers()
    open_table(buffers, table, cython.address(rows))
    problem: cython.int
    start: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    while start < rows.rows:
        stop = start
        with cython.nogil:
            problem = extend(
                cython.address(rows), start, most, limit, cython.address(stop), cython.address(size)
            )
        refuse_row(problem, stop)
        if stop == start:
            raise too_large(size, limit)
        ranges.append((start, stop))
        start = stop
    return ranges


def refuse_row(problem, row):
    if problem == NULL_HEADER:
        raise null_header(row)
    if problem:
        raise invalid_column(("value", "key", "headers")[problem - BAD_VALUE])
    return 0


def open_table(buffers, table, rows):
    """Acquires the columns' buffers, if they are as large as the numbers of rows demand."""
    memset(rows, 0, cython.sizeof(Table))
    rows.rows = table.rows
    open_source(buffers, table.value, table.rows, "value", cython.address(rows.value))
    if table.key is not None:
        open_source(buffers, table.key, table.rows, "key", cython.address(rows.key))
    column = table.timestamp
    if column is not None:
        if column.rows < table.rows or column.skip < 0:
            raise invalid_column("timestamp")
        rows.timestamps_skip = column.skip
        rows.timestamps_validity = open_bitmap(buffers, column, "timestamp")
        rows.timestamps = buffers.read(column.data, 8 * (column.skip + column.rows), "timestamp")
    column = table.headers
    if column is not None:
        if column.rows < table.rows or column.skip < 0 or column.base < 0:
            raise invalid_column("headers")
        rows.lists_skip = column.skip
        rows.lists_base = column.base
        rows.lists_validity = open_bitmap(buffers, column, "headers")
        rows.lists = buffers.read(column.offsets, 8 * (column.rows + 1), "headers")
        open_source(buffers, column.names, 0, "headers", cython.address(rows.names))
        open_source(buffers, column.values, 0, "headers", cython.address(rows.values))
    return 0


def open_source(buffers, column, least, name, source):
    if column.rows < least or column.skip < 0:
        raise invalid_column(name)
    source.rows = column.rows
    source.skip = column.skip
    source.validity = open_bitmap(buffers, column, name)
    if source.rows:
        source.offsets = buffers.read(column.offsets, 8 * (source.skip + source.rows + 1), name)
    view: cython.pointer(Py_buffer) = buffers.acquire(column.data, PyBUF_SIMPLE)
    source.data = cython.cast(Bytes, view.buf)
    source.size = view.len
    return 0


def open_bitmap(buffers, column, name):
    if column.validity is None:
        return cython.NULL
    return buffers.read(column.validity, (column.skip + column.rows + 7) >> 3, name)


def is_null(validity, row):
    return validity != cython.NULL and not validity[row >> 3] >> (row & 7) & 1


def number_at(data, row):
    number: int64_t
    memcpy(cython.address(number), data + 8 * row, 8)
    return number


def draw(source, row, span):
    """Points `span` at a row's bytes; returns whether they are inside the column's data."""
    row += source.skip
    span.data = source.data
    span.size = -1
    if source.offsets == cython.NULL or is_null(source.validity, row):
        return True
    start: int64_t = number_at(source.offsets, row)
    stop: int64_t = number_at(source.offsets, row + 1)
    if not 0 <= start <= stop <= source.size:
        return False
    span.data += start
    span.size = stop - start
    return True


def timestamp_of(rows, row, now):
    if rows.timestamps == cython.NULL:
        return now
    row += rows.timestamps_skip
    return now if is_null(rows.timestamps_validity, row) else number_at(rows.timestamps, row)


def row_of(rows, index, row):
    """Finds a row's fields and what they need; returns a Problem."""
    name: Span
    value: Span
    i: cython.Py_ssize_t
    if not draw(cython.address(rows.key), index, cython.address(row.key)):
        return BAD_KEY
    if not draw(cython.address(rows.value), index, cython.address(row.value)):
        return BAD_VALUE
    row.size = stored(row.key) + stored(row.value)
    row.header_count = 0
    row.first_header = 0
    if rows.lists != cython.NULL and not is_null(rows.lists_validity, index + rows.lists_skip):
        start: int64_t = number_at(rows.lists, index)
        stop: int64_t = number_at(rows.lists, index + 1)
        # Compared before they are subtracted, so that nothing overflows.
        if not rows.lists_base <= start <= stop:
            return BAD_HEADERS
        row.header_count = stop - start
        row.first_header = start - rows.lists_base
        if (
            row.header_count > rows.names.rows - row.first_header
            or row.header_count > rows.values.rows - row.first_header
        ):
            return BAD_HEADERS
    row.size += varint_size(row.header_count)
    for i in range(row.first_header, row.first_header + row.header_count):
        if not draw(cython.address(rows.names), i, cython.address(name)):
            return BAD_HEADERS
        if not draw(cython.address(rows.values), i, cython.address(value)):
            return BAD_HEADERS
        if name.size < 0 or value.size < 0:
            return NULL_HEADER
        row.size += varint_size(name.size) + name.size + varint_size(value.size) + value.size
    return FINE


def varint_size(number):
    size: cython.Py_ssize_t = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


def stored(span):
    """What a key or a value needs with its length."""
    if span.size < 0:
        return 1
    return varint_size(cython.cast(uint64_t, span.size) << 1) + span.size


def delta_size(delta):
    bits: uint64_t = cython.cast(uint64_t, delta) << 1
    return varint_size(~bits if delta < 0 else bits)


def measure_rows(rows, work):
    """Adds up what the rows need, as one batch; returns a Problem, with `work.row` at its row."""
    row: Row
    index: cython.Py_ssize_t
    problem: cython.int
    for index in range(rows.rows):
        work.row = index
        problem = row_of(rows, index, cython.address(row))
        if problem:
            return problem
        work.size += varint_size(index) + row.size
        work.size += delta_size(subtract(timestamp_of(rows, index, work.now), work.now))
    return FINE


def extend(rows, start, max_records, max_bytes, stop, size):
    """Moves `stop` as far as the limits allow; `size` is what the row at `stop` needs."""
    row: Row
    problem: cython.int
    used: cython.Py_ssize_t = 0
    timestamp: cython.Py_ssize_t = 1 if rows.timestamps == cython.NULL else LONGEST
    while stop[0] < rows.rows and stop[0] - start < max_records:
        problem = row_of(rows, stop[0], cython.address(row))
        if problem:
            return problem
        size[0] = varint_size(stop[0] - start) + timestamp + row.size
        if size[0] > max_bytes - used:
            break
        used += size[0]
        stop[0] += 1
    return FINE


def put_rows(rows, work, out, end):
    """Writes the rows to [out, end), and completes `work`; returns a Problem."""
    row: Row
    index: cython.Py_ssize_t
    i: cython.Py_ssize_t
    timestamp: int64_t
    problem: cython.int
    start: Target = out
    for index in range(rows.rows):
        problem = row_of(rows, index, cython.address(row))
        if problem:
            return problem
        if OVERHEAD + max(row.key.size, 0) + max(row.value.size, 0) > end - out:
            return NO_ROOM
        timestamp = timestamp_of(rows, index, work.now)
        work.newest = max(work.newest, timestamp)
        out = put_record(out, index, subtract(timestamp, work.now), row.key, row.value)
        out = put_uvarint(out, row.header_count)
        if row.key.size >= 0:
            work.flags |= _HAS_KEYS
        if row.header_count:
            work.flags |= _HAS_HEADERS
        for i in range(row.first_header, row.first_header + row.header_count):
            out = put_string(out, end, cython.address(rows.names), i)
            if out != cython.NULL:
                out = put_string(out, end, cython.address(rows.values), i)
            if out == cython.NULL:
                return NO_ROOM
    work.size = out - start
    return FINE


def put_string(out, end, source, row):
    """Writes a header's name or value; NULL if there is no room."""
    span: Span
    if not draw(source, row, cython.address(span)) or span.size < 0:
        return cython.NULL
    if LONGEST + span.size > end - out:
        return cython.NULL
    out = put_uvarint(out, span.size)
    memcpy(out, span.data, span.size)
    return out + span.size
