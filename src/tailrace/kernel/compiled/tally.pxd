# The C types of tally.py.
from libc.stdint cimport int64_t, uint32_t

from tailrace.kernel.compiled.records cimport Bytes

cdef enum:
    ROOM = 1024  # entries of an index that a walk can make before somebody takes them

cdef enum Stop:
    AT_THE_END
    CANNOT_FOLLOW
    NO_ROOM
    BAD_HEADER
    TOO_LONG

cdef struct Walk:
    # Where a walk is, what it has counted, and the entries that nobody has taken yet.
    Py_ssize_t end
    int64_t position  # of `end` in the segment
    int64_t base
    int64_t next_offset
    int64_t contiguous_from
    int64_t records
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t last_indexed
    int64_t unindexed_bytes
    int64_t index_interval
    int64_t newest  # a timestamp above it gets an entry
    int64_t apart  # how far above the last one the next `newest` is
    int fault
    Py_ssize_t offset_count
    Py_ssize_t time_count
    uint32_t[ROOM] offsets
    uint32_t[ROOM] positions
    int64_t[ROOM] timestamps
    uint32_t[ROOM] timestamp_offsets

cdef int advance(Bytes data, Py_ssize_t stop, Walk* walk) noexcept nogil
cdef int64_t saturated(object number)
