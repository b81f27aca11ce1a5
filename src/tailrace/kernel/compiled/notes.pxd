# The C types of notes.py.
from libc.stdint cimport uint64_t

from cpython.buffer cimport Py_buffer

cdef extern from "notes.h" nogil:
    unsigned char tailrace_load_phase(const unsigned char*)
    void tailrace_store_phase(unsigned char*, unsigned char)
    int tailrace_await_phase(const unsigned char*, unsigned char, int)

cdef class Notes:
    cdef Py_buffer view
    cdef unsigned char* page
    cdef uint64_t[6] mine
