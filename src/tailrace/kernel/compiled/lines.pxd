# The C types of lines.py.
from libc.stdint cimport int64_t

from tailrace.kernel.compiled.crc cimport Bytes

ctypedef unsigned char* Room

cdef struct Reading:
    Bytes at
    Bytes end

cdef struct Writing:
    Room at
    Room end  # NULL: what was to be written is not of a usual shape, or there is no room for it

cdef object read_object(Reading* reading)
cdef object read_value(Reading* reading)
cdef object read_text(Reading* reading)
cdef object read_whole(Reading* reading)
cdef object read_list(Reading* reading)
cdef int skip(Reading* reading, unsigned char expected)
cdef int write_value(Writing* writing, object value) except -1
cdef int write_text(Writing* writing, str text) except -1
cdef int write_whole(Writing* writing, object number) except -1
cdef int close(Writing* writing, unsigned char byte) except -1
cdef int put(Writing* writing, unsigned char byte) except -1
cdef int put_checksum(Room data, Bytes body, size_t size) except -1
