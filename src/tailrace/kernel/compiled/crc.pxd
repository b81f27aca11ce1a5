# What the other compiled modules use of crc.py.
from libc.stdint cimport uint32_t, uint64_t

ctypedef const unsigned char* Bytes

cdef uint32_t crc_of(Bytes data, size_t size, uint32_t value) noexcept nogil
cdef uint32_t crc_shift(uint64_t length) noexcept nogil
cdef uint32_t crc_join(uint32_t shift, uint32_t crc_a, uint32_t crc_b) noexcept nogil
