# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Batches to and from columns: the compiled twin of `tailrace.kernel.pure.columns`.

This is the half that encodes; `filling` decodes, by the same rules.
"""

import cython
from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cython.cimports.libc.stdint import INT64_MIN, int64_t, uint64_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tailrace.kernel.compiled.codec import as_int64, finish
from cython.cimports.tailrace.kernel.compiled.filling import Buffers
from cython.cimports.tailrace.kernel.compiled.records import (
    HEAD,
    LONGEST,
    OVERHEAD,
    Bytes,
    Span,
    Target,
    put_record,
    put_uvarint,
    subtract,
)

from tailrace.kernel import layout
from tailrace.kernel.coerce import as_timestamp
from tailrace.kernel.compiled.filling import fill_columns, measure_columns
from tailrace.kernel.compiled.naming import write_names
from tailrace.kernel.layout import too_large, too_many
from tailrace.kernel.shapes import check_max_records, invalid_column, null_header

__all__ = ["encode_columns", "fill_columns", "measure_columns", "split_rows", "write_names"]

# The format's flags and limits as C variables; `layout` is where they are defined.
_HAS_TIMESTAMP = cython.declare(cython.int, layout.HAS_TIMESTAMP)
_HAS_KEYS = cython.declare(cython.int, layout.HAS_KEYS)
_HAS_HEADERS = cython.declare(cython.int, layout.HAS_HEADERS)
_MAX_COUNT = cython.declare(cython.Py_ssize_t, layout.MAX_COUNT)
_MAX_SECTION = cython.declare(cython.Py_ssize_t, layout.MAX_SECTION)


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
            raise too_large(size, limit, 1)
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
    if table.same_headers is not None:
        rows.same.data = buffers.read(table.same_headers, 1, "headers")
        rows.same.size = len(table.same_headers)
    elif column is not None:
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
    if rows.same.data != cython.NULL:
        row.size += rows.same.size
        return FINE
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
    needed: cython.Py_ssize_t
    start: Target = out
    if rows.same.size > 1:  # more than the number 0
        work.flags |= _HAS_HEADERS
    for index in range(rows.rows):
        problem = row_of(rows, index, cython.address(row))
        if problem:
            return problem
        needed = OVERHEAD + max(row.key.size, 0) + max(row.value.size, 0) + rows.same.size
        if needed > end - out:
            return NO_ROOM
        timestamp = timestamp_of(rows, index, work.now)
        work.newest = max(work.newest, timestamp)
        out = put_record(out, index, subtract(timestamp, work.now), row.key, row.value)
        if row.key.size >= 0:
            work.flags |= _HAS_KEYS
        if rows.same.data != cython.NULL:
            memcpy(out, rows.same.data, rows.same.size)
            out += rows.same.size
            continue
        out = put_uvarint(out, row.header_count)
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
