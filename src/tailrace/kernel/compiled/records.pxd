# The C types of records.py, and what codec.py and columns.py use of it: documented there.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

ctypedef const unsigned char* Bytes
ctypedef unsigned char* Target
ctypedef const char* Chars

cdef enum:
    HEAD = 44  # layout.HEADER_SIZE
    LONGEST = 10  # bytes of a varint
    OVERHEAD = 50  # a record's varints: offset, timestamp, two lengths, number of headers
    CUT_SHORT = 7  # the index of that fault in layout.HEADER_FAULTS

cdef struct Header:
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    uint32_t length
    uint32_t crc
    uint16_t count
    uint16_t flags
    uint8_t codec

cdef struct Span:
    # A key, a value, ...; a negative size is null.
    Bytes data
    Py_ssize_t size

cdef struct Fields:
    # One record, pointing into its section.
    int64_t timestamp
    Span key
    Span value
    Span headers  # as on disk, the number of them included
    uint64_t header_count

cdef class Record:
    cdef readonly object key
    cdef readonly object value
    cdef object _headers
    cdef int64_t _offset
    cdef int64_t _timestamp
    cdef bint _has_offset
    cdef bint _has_timestamp

cdef uint32_t load16(Bytes data) noexcept nogil
cdef uint32_t load32(Bytes data) noexcept nogil
cdef uint64_t load64(Bytes data) noexcept nogil
cdef void store(Target out, uint64_t number, int width) noexcept nogil
cdef int64_t subtract(int64_t a, int64_t b) noexcept nogil

cdef Bytes read_uvarint(Bytes data, Bytes end, uint64_t* number) noexcept nogil
cdef Bytes read_span(Bytes data, Bytes end, Span* span) noexcept nogil
cdef Bytes read_field(Bytes data, Bytes end, Span* span, int* fault) noexcept nogil
cdef Bytes read_record(
    Bytes data, Bytes end, uint64_t index, int64_t base_timestamp, Fields* fields, int* fault
) noexcept nogil
cdef int decode_section(Span section, Header* header, int64_t first, int64_t last, list records)

cdef int header_fault(Bytes head, Py_ssize_t have, int64_t next_offset) noexcept nogil
cdef int read_batch(Bytes data, Py_ssize_t position, Py_ssize_t stop, Header* header) noexcept nogil

cdef Target put_uvarint(Target out, uint64_t number) noexcept nogil
cdef Target put_svarint(Target out, int64_t number) noexcept nogil
cdef Target put_span(Target out, Span span) noexcept nogil
cdef Py_ssize_t record_size(int64_t delta, Span key, Span value) noexcept nogil
cdef Py_ssize_t span_size(Span span) noexcept nogil
cdef Py_ssize_t uvarint_size(uint64_t number) noexcept nogil
cdef Target put_record(
    Target out, uint64_t index, int64_t delta, Span key, Span value
) noexcept nogil

cdef object as_object(Span span)
cdef tuple fields_of(Record record)
cdef object parse_headers(bytes raw)

cdef class Writer:
    cdef object data
    cdef Target start
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Target reserve(self, Py_ssize_t size)
    cdef int grow(self, Py_ssize_t size)

cdef object point(object item, Span* span, str what, Py_ssize_t index)
cdef bint put_headers(Writer writer, object headers)
cdef int put_count(Writer writer, Py_ssize_t count)
cdef bint put_header(Writer writer, object name, object value)
cdef int put_string(Writer writer, Span span)
