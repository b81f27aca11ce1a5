# The C types of columns.py.
from libc.stdint cimport int64_t, uint64_t

from tailrace.kernel.compiled.filling cimport Buffers
from tailrace.kernel.compiled.records cimport Bytes, Span, Target

cdef enum Problem:
    FINE
    NO_ROOM
    BAD_VALUE
    BAD_KEY
    BAD_HEADERS
    NULL_HEADER

cdef struct Source:
    # A binary column to read; offsets is NULL if there is none.
    Py_ssize_t rows
    Py_ssize_t skip
    Bytes validity  # NULL: no nulls
    Bytes offsets
    Bytes data
    Py_ssize_t size

cdef struct Table:
    # Records to encode; timestamps, lists and the headers that are the same for all are NULL if
    # there are none.
    Py_ssize_t rows
    Source value
    Source key
    Py_ssize_t timestamps_skip
    Bytes timestamps_validity
    Bytes timestamps
    Py_ssize_t lists_skip
    Bytes lists_validity
    Bytes lists
    int64_t lists_base
    Source names
    Source values
    Span same

cdef struct Encoding:
    int64_t now
    int64_t newest
    Py_ssize_t row  # where a problem is
    Py_ssize_t size
    int flags

cdef struct Row:
    Span key
    Span value
    Py_ssize_t first_header
    Py_ssize_t header_count
    Py_ssize_t size  # of key, value and headers, as they will be stored

cdef int refuse_row(int problem, Py_ssize_t row)
cdef int open_table(Buffers buffers, object table, Table* rows)
cdef int open_source(Buffers buffers, object column, Py_ssize_t least, str name, Source* source)
cdef Bytes open_bitmap(Buffers buffers, object column, str name)
cdef bint is_null(Bytes validity, Py_ssize_t row) noexcept nogil
cdef int64_t number_at(Bytes data, Py_ssize_t row) noexcept nogil
cdef bint draw(Source* source, Py_ssize_t row, Span* span) noexcept nogil
cdef int64_t timestamp_of(Table* rows, Py_ssize_t row, int64_t now) noexcept nogil
cdef int row_of(Table* rows, Py_ssize_t index, Row* row) noexcept nogil
cdef Py_ssize_t varint_size(uint64_t number) noexcept nogil
cdef Py_ssize_t stored(Span span) noexcept nogil
cdef Py_ssize_t delta_size(int64_t delta) noexcept nogil
cdef int measure_rows(Table* rows, Encoding* work) noexcept nogil
cdef int extend(
    Table* rows, Py_ssize_t start, Py_ssize_t max_records, Py_ssize_t max_bytes, Py_ssize_t*
    stop, Py_ssize_t* size
) noexcept nogil
cdef int put_rows(Table* rows, Encoding* work, Target out, Target end) noexcept nogil
cdef Target put_string(Target out, Target end, Source* source, Py_ssize_t row) noexcept nogil
