# The C types of columns.py.
from libc.stdint cimport int64_t, uint64_t

from cpython.buffer cimport Py_buffer
from tailrace.kernel.compiled.records cimport Bytes, Fields, Span, Target

cdef enum Problem:
    FINE
    BAD_HEADER
    BAD_RECORD
    IS_COMPRESSED
    NO_ROOM
    BAD_VALUE
    BAD_KEY
    BAD_HEADERS
    NULL_HEADER

cdef struct Area:
    # A buffer to write to; data is NULL if it is not wanted.
    Target data
    Py_ssize_t size

cdef class Buffers:
    cdef Py_buffer[20] views  # an encoding needs at most 15, a decoding 14
    cdef int count
    cdef Py_buffer* acquire(self, object buf, int flags)
    cdef Bytes read(self, object buf, Py_ssize_t least, str name)
    cdef int write(self, object buf, Area* area)

cdef struct Totals:
    Py_ssize_t rows
    Py_ssize_t null_keys
    Py_ssize_t key_bytes
    Py_ssize_t null_values
    Py_ssize_t value_bytes
    Py_ssize_t headers
    Py_ssize_t name_bytes
    Py_ssize_t header_bytes

cdef struct Sink:
    # A binary column to write, and how much of it is written.
    Area validity
    Area offsets
    Area data
    Py_ssize_t row
    Py_ssize_t used

cdef struct Columns:
    # The columns to write.
    Area offset
    Area timestamp
    Sink key
    Sink value
    Area lists
    Sink names
    Sink values

cdef struct Source:
    # A binary column to read; offsets is NULL if there is none.
    Py_ssize_t rows
    Py_ssize_t skip
    Bytes validity  # NULL: no nulls
    Bytes offsets
    Bytes data
    Py_ssize_t size

cdef struct Table:
    # Records to encode; timestamps and lists are NULL if there are none.
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

cdef int open_sink(Buffers buffers, object output, Sink* sink)
cdef int open_offsets(Buffers buffers, object buf, Area* area)
cdef int scan_region(
    object buf, Py_ssize_t start, Py_ssize_t stop, int64_t first, int64_t last, Columns*
    columns, Totals* totals
)
cdef int scan(
    Bytes data, Py_ssize_t* position, Py_ssize_t stop, int64_t first, int64_t last, Columns*
    columns, Totals* totals, int* fault
) noexcept nogil
cdef int take_record(
    int64_t offset, Fields* fields, Columns* columns, Totals* totals
) noexcept nogil
cdef int take_headers(Fields* fields, Columns* columns, Totals* totals) noexcept nogil
cdef bint drain(Sink* sink, Span span) noexcept nogil
cdef void store32(Target out, Py_ssize_t number) noexcept nogil
cdef bint store64(Area area, Py_ssize_t row, int64_t number) noexcept nogil
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
