# The C part of crc.py, which alone includes it: the tables exist once.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*tailrace_crc_function)(
        uint32_t, const unsigned char*, size_t
    ) noexcept nogil
    tailrace_crc_function tailrace_crc_update
    const char* tailrace_crc_init()
    uint32_t tailrace_crc_by_table(uint32_t, const unsigned char*, size_t)
    uint32_t tailrace_crc_multiply(uint32_t, uint32_t)
    uint32_t tailrace_crc_shift(uint64_t)
