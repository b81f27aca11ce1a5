# The C types of filling.py, and what columns.py uses of it.
from libc.stdint cimport int64_t

from cpython.buffer cimport Py_buffer
from tailrace.kernel.compiled.records cimport Bytes, Fields, Span, Target

cdef enum:
    VIEWS = 28  # a decoding needs at most 27, 3 of them for each picked header; an encoding 16
    PICKED = 4  # shapes.MAX_PICKED
    HIDDEN = 16  # shapes.MAX_HIDDEN

cdef enum Problem:
    FINE
    BAD_HEADER
    BAD_RECORD
    IS_COMPRESSED
    NO_ROOM

cdef struct Area:
    # A buffer to write to; data is NULL if it is not wanted.
    Target data
    Py_ssize_t size

cdef class Buffers:
    cdef Py_buffer[VIEWS] views
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
    Py_ssize_t[PICKED] null_picked
    Py_ssize_t[PICKED] picked_bytes

cdef struct Sink:
    # A binary column to write, and how much of it is written.
    Area validity
    Area offsets
    Area data
    Py_ssize_t row
    Py_ssize_t used

cdef struct Columns:
    # What is wanted, and the columns to write.
    bint lists_wanted
    bint empty_key_is_null
    int picked_count
    int hidden_count
    Span[PICKED] picked_names
    Span[HIDDEN] hidden_names
    Area offset
    Area timestamp
    Sink key
    Sink value
    Area lists
    Sink names
    Sink values
    Sink[PICKED] picked

cdef int open_wanted(object wanted, tuple picked, tuple hidden, Columns* columns)
cdef int open_names(tuple names, Span* spans)
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
cdef Bytes read_short_span(Bytes data, Bytes end, Span* span) noexcept nogil
cdef int take_picked(Span* found, Columns* columns, Totals* totals) noexcept nogil
cdef int find_name(Span* names, int count, Span name) noexcept nogil
cdef bint drain(Sink* sink, Span span) noexcept nogil
cdef void store32(Target out, Py_ssize_t number) noexcept nogil
cdef bint store64(Area area, Py_ssize_t row, int64_t number) noexcept nogil
