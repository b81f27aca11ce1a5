# The C types of outline.py.
from tailrace.kernel.compiled.records cimport Span

cdef bint has_any(Span headers, tuple names)
