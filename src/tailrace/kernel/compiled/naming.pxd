# The C types of naming.py.
from libc.stdint cimport int64_t

from tailrace.kernel.compiled.records cimport Bytes, Target

cdef Py_ssize_t put_names(
    Bytes text, Py_ssize_t size, Bytes source, Py_ssize_t rows, Target stops, Target start
) noexcept nogil
cdef int put_number(Target out, int64_t number) noexcept nogil
