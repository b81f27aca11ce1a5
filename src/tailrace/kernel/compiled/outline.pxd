# The C types of outline.py.
from libc.stdint cimport int64_t

from tailrace.kernel.compiled.records cimport Header, Span

cdef bint has_any(Span headers, tuple names)
cdef int find_newest(Span section, Header* header, int64_t* newest) noexcept nogil
