# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Counting batches: the compiled twin of `tailrace.kernel.pure.tally`.

The walk needs no GIL, and so cannot make Python objects: it puts entries into a small room of its
own, and stops when that is full, to have them taken out.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow
from cython.cimports.libc.stdint import INT64_MAX, INT64_MIN, UINT32_MAX, int64_t, uint32_t
from cython.cimports.tailrace.kernel.compiled.codec import Region
from cython.cimports.tailrace.kernel.compiled.records import (
    HEAD,
    Bytes,
    Chars,
    Header,
    read_batch,
    subtract,
)

from tailrace.kernel import layout
from tailrace.kernel.layout import HEADER_FAULTS, Tally, malformed_batch, too_long

_MAX_SPAN = cython.declare(int64_t, layout.MAX_SPAN)
_new_tuple = cython.declare(object, tuple.__new__)

# Below this, letting another thread run costs more than the work.
_RELEASE_GIL_ABOVE = cython.declare(cython.Py_ssize_t, 8192)


def tally(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    *,
    position: int64_t,
    base,
    next_offset,
    contiguous_from,
    last_indexed: int64_t,
    unindexed_bytes: int64_t,
    index_interval: int64_t,
    next_timestamp,
    time_index_interval_ms,
):
    """Count the batches of a checked region, up to the first that cannot follow the one before it.

    That is one whose offset goes back, or leaves a gap at or behind `contiguous_from` in the
    segment, or is too far from the segment's `base` for an index. `position` and `next_offset` say
    where in the segment the region starts. The rest is the state of the two indexes: the relative
    offset of the last entry by offset (-1: there is none), the bytes since then, and the smallest
    timestamp that gets an entry by time.
    """
    region: Region = Region(buf, start, stop)
    data: Bytes = region.data
    walk: Walk
    why: cython.int = NO_ROOM
    walk.end = start
    walk.position = position
    walk.base = saturated(base)
    walk.next_offset = saturated(next_offset)
    walk.contiguous_from = INT64_MAX if contiguous_from is None else saturated(contiguous_from)
    walk.records = walk.first_timestamp = walk.max_timestamp = 0
    walk.last_indexed = last_indexed
    walk.unindexed_bytes = unindexed_bytes
    walk.index_interval = index_interval
    walk.newest = saturated(next_timestamp - 1)
    walk.apart = max(saturated(time_index_interval_ms), 1) - 1
    walk.fault = 0
    offsets: bytes = b""
    positions: bytes = b""
    timestamps: bytes = b""
    timestamp_offsets: bytes = b""
    while why == NO_ROOM:
        walk.offset_count = walk.time_count = 0
        if stop - walk.end > _RELEASE_GIL_ABOVE:
            with cython.nogil:
                why = advance(data, stop, cython.address(walk))
        else:
            why = advance(data, stop, cython.address(walk))
        if walk.offset_count:
            offsets += PyBytes_FromStringAndSize(
                cython.cast(Chars, walk.offsets), 4 * walk.offset_count
            )
            positions += PyBytes_FromStringAndSize(
                cython.cast(Chars, walk.positions), 4 * walk.offset_count
            )
        if walk.time_count:
            timestamps += PyBytes_FromStringAndSize(
                cython.cast(Chars, walk.timestamps), 8 * walk.time_count
            )
            relative = PyBytes_FromStringAndSize(
                cython.cast(Chars, walk.timestamp_offsets), 4 * walk.time_count
            )
            timestamp_offsets += relative
    if why == BAD_HEADER:
        raise malformed_batch(walk.end, HEADER_FAULTS[walk.fault])
    if why == TOO_LONG:
        raise too_long(walk.position)
    # Without Tally's own constructor, which is Python code.
    return _new_tuple(
        Tally,
        (
            walk.end,
            walk.next_offset if walk.records else next_offset,  # which may be beyond C's integers
            walk.records,
            walk.first_timestamp,
            walk.max_timestamp,
            walk.unindexed_bytes,
            (offsets, positions),
            (timestamps, timestamp_offsets),
        ),
    )


def advance(data, stop, walk):
    """Moves `walk` on as far as it can; returns a Stop."""
    header: Header
    relative: int64_t
    due: cython.bint
    size: cython.Py_ssize_t
    while walk.end < stop:
        if walk.offset_count == ROOM or walk.time_count == ROOM:
            return NO_ROOM
        walk.fault = read_batch(data, walk.end, stop, cython.address(header))
        if walk.fault:
            return BAD_HEADER
        if header.base_offset < walk.next_offset or (
            header.base_offset > walk.next_offset and walk.position >= walk.contiguous_from
        ):
            return CANNOT_FOLLOW
        relative = subtract(header.base_offset, walk.base)
        if relative < 0 or relative > _MAX_SPAN - header.count:
            return CANNOT_FOLLOW
        if not walk.records:
            walk.first_timestamp = walk.max_timestamp = header.max_timestamp
        elif header.max_timestamp > walk.max_timestamp:
            walk.max_timestamp = header.max_timestamp

        size = HEAD + cython.cast(cython.Py_ssize_t, header.length)
        due = walk.last_indexed < 0
        if not due:
            walk.unindexed_bytes += size
            if walk.unindexed_bytes >= walk.index_interval:
                walk.unindexed_bytes = 0
                due = True
        # An append or a scan that was interrupted may have made the entry already.
        if due and relative > walk.last_indexed:
            if not 0 <= walk.position <= UINT32_MAX:
                return TOO_LONG
            walk.offsets[walk.offset_count] = cython.cast(uint32_t, relative)
            walk.positions[walk.offset_count] = cython.cast(uint32_t, walk.position)
            walk.offset_count += 1
            walk.last_indexed = relative
        if header.max_timestamp > walk.newest:
            walk.newest = INT64_MAX - walk.apart
            walk.newest = min(header.max_timestamp, walk.newest) + walk.apart
            walk.timestamps[walk.time_count] = header.max_timestamp
            walk.timestamp_offsets[walk.time_count] = cython.cast(uint32_t, relative)
            walk.time_count += 1
        walk.records += header.count
        walk.next_offset = header.base_offset + header.count
        walk.position += size
        walk.end += size
    return AT_THE_END


def saturated(number):
    """`number` as a C integer, or the one that is nearest to it."""
    overflow: cython.int = 0
    found: cython.longlong = PyLong_AsLongLongAndOverflow(number, cython.address(overflow))
    if overflow:
        return INT64_MAX if overflow > 0 else INT64_MIN
    return found
