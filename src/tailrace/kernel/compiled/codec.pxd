# The C types of codec.py, and what columns.py uses of it: documented there.
from libc.stdint cimport int64_t, uint32_t

from cpython.buffer cimport Py_buffer
from tailrace.kernel.compiled.records cimport Bytes, Header, Span, Target

cdef class Draft:
    cdef readonly object data  # a bytearray
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly int64_t max_timestamp
    cdef uint32_t _shift  # 0: small, the CRC is computed when the offset is known
    cdef uint32_t _tail_crc
    cpdef place(self, base_offset)

cdef class Region:
    cdef object buf
    cdef Py_buffer view
    cdef Bytes data
    cdef Py_ssize_t position
    cdef Py_ssize_t size
    cdef Py_ssize_t stop
    cdef Header header
    cdef object content
    cdef bint next(self)
    cdef Span section(self)
    cdef object info(self)

cpdef Draft encode_one(value, key=*, headers=*, timestamp=*, now_ms=*, codec=*)
cdef long long as_int64(object value, object check)
cdef void put_head(
    Target head,
    uint32_t length,
    uint32_t count,
    uint32_t flags,
    uint32_t codec,
    int64_t base_timestamp,
    int64_t max_timestamp,
) noexcept nogil
cdef Draft finish(
    object data,
    Py_ssize_t section_size,
    Py_ssize_t count,
    int flags,
    int64_t base_timestamp,
    int64_t max_timestamp,
    object codec,
    Py_ssize_t max_bytes,
)
cdef int walk(Bytes data, Py_ssize_t stop, Py_ssize_t* end, int64_t* next_offset) noexcept nogil
cdef void put_inflated(Target out, Header* header, Span section) noexcept nogil
