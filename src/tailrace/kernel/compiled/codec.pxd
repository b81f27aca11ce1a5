# The C types of codec.py, and what columns.py uses of it. All of it is documented there.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

ctypedef const unsigned char* Bytes
ctypedef unsigned char* Target
ctypedef const char* Chars

cdef enum:
    HEAD = 44  # layout.HEADER_SIZE
    LONGEST = 10  # bytes of a varint
    OVERHEAD = 50  # a record's varints: offset, timestamp, two lengths, number of headers

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
    # A key or a value; a negative size is null.
    Bytes data
    Py_ssize_t size

cdef struct Fields:
    # One record, pointing into its section.
    int64_t timestamp
    Span key
    Span value
    Span headers  # as on disk, the number of them included
    uint64_t header_count

cdef int header_fault(Bytes head, Py_ssize_t have, int64_t next_offset) noexcept nogil
cdef int read_batch(Bytes data, Py_ssize_t position, Py_ssize_t stop, Header* header) noexcept nogil
cdef Bytes read_uvarint(Bytes data, Bytes end, uint64_t* number) noexcept nogil
cdef Bytes read_record(Bytes data, Bytes end, uint64_t index, int64_t base_timestamp, Fields* fields, int* fault) noexcept nogil
cdef Target put_uvarint(Target out, uint64_t number) noexcept nogil
cdef Target put_svarint(Target out, int64_t number) noexcept nogil
cdef Target put_span(Target out, Span span) noexcept nogil
cdef int64_t subtract(int64_t a, int64_t b) noexcept nogil
cdef object finish(object data, Py_ssize_t section_size, Py_ssize_t count, int flags, int64_t base_timestamp, int64_t max_timestamp, object codec, Py_ssize_t max_bytes)
