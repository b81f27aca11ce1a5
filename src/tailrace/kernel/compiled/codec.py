# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Batches: the compiled twin of `tailrace.kernel.pure.codec`, which documents the behaviour.

Types of C functions are in codec.pxd. Memory safety: reading follows the rule of `records`; writing
goes through `Writer.reserve`, which comes before every write and covers all of it.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytearray import (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cython.cimports.cpython.bytes import (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow
from cython.cimports.libc.stdint import INT64_MAX, INT64_MIN, int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tailrace.kernel.compiled.crc import crc_join, crc_of, crc_shift
from cython.cimports.tailrace.kernel.compiled.records import (
    CUT_SHORT,
    HEAD,
    OVERHEAD,
    Bytes,
    Fields,
    Record,
    Span,
    Target,
    Writer,
    as_object,
    decode_section,
    header_fault,
    load16,
    load32,
    load64,
    parse_headers,
    point,
    put_headers,
    put_record,
    read_batch,
    read_record,
    record_size,
    store,
    subtract,
)

from tailrace.kernel import compression, layout
from tailrace.kernel.coerce import (
    CONTENTS,
    as_codec,
    as_offset,
    as_timestamp,
    refuse_record,
    refuse_single,
)
from tailrace.kernel.compiled.s2 import s2_decompress
from tailrace.kernel.headers import as_pairs
from tailrace.kernel.layout import (
    DRAFT_RESIZED,
    HEADER_FAULTS,
    RECORD_FAULTS,
    BatchInfo,
    Malformed,
    Status,
    malformed_batch,
    malformed_section,
    no_room,
    outside,
    too_large,
    too_many,
)

# The format's limits and flags as C variables; `layout` is where they are defined.
_COMPRESSED = cython.declare(cython.int, layout.COMPRESSED)
_COMPRESS_ABOVE = cython.declare(cython.Py_ssize_t, layout.COMPRESS_ABOVE)
_HAS_HEADERS = cython.declare(cython.int, layout.HAS_HEADERS)
_HAS_KEYS = cython.declare(cython.int, layout.HAS_KEYS)
_HAS_TIMESTAMP = cython.declare(cython.int, layout.HAS_TIMESTAMP)
_MAGIC = cython.declare(uint32_t, layout.MAGIC)
_MAX_COUNT = cython.declare(cython.Py_ssize_t, layout.MAX_COUNT)
_MAX_SECTION = cython.declare(cython.Py_ssize_t, layout.MAX_SECTION)
_NONE = cython.declare(object, layout.NONE)
_VERSION = cython.declare(cython.int, layout.VERSION)

_STATUSES = cython.declare(tuple, tuple(Status))
_new_tuple = cython.declare(object, tuple.__new__)

# Below this, letting another thread run costs more than the work.
_RELEASE_GIL_ABOVE = cython.declare(cython.Py_ssize_t, 8192)
# Below this it is faster to compute a batch's CRC when its offset is known than to combine two.
_DIRECT = cython.declare(cython.Py_ssize_t, 2048)


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.cclass
class Draft:
    """An encoded batch that has no offset yet.

    `place` may be called again with another offset. Not thread-safe: a draft has one owner.
    """

    def __init__(self):
        raise TypeError("drafts are made by encode() and encode_one()")

    def place(self, base_offset):
        """Write the offset and the CRC into `data`, and return it."""
        offset: int64_t = as_int64(base_offset, as_offset)
        crc: uint32_t
        if offset < 0:
            as_offset(base_offset)  # raises
        if offset > INT64_MAX - self.count:
            raise no_room(base_offset, self.count)
        if PyByteArray_GET_SIZE(self.data) != self.size:
            raise ValueError(DRAFT_RESIZED)
        data: Target = cython.cast(Target, PyByteArray_AS_STRING(self.data))
        store(data + 8, offset, 8)
        if self._shift:
            crc = crc_join(self._shift, crc_of(data + 8, 8, 0), self._tail_crc)
        else:
            crc = crc_of(data + 8, self.size - 8, 0)
        store(data + 4, crc, 4)
        return self.data


# Encoding


def encode(records, now_ms, codec=0, extra_headers=(), max_bytes=layout.MAX_SECTION):
    """One batch of `records`; a record without a timestamp gets `now_ms`.

    An element is a value (bytes, str, a buffer, or None), (key, value), (key, value, headers) or a
    Record. `extra_headers` go in front of the first record's own.
    """
    index: cython.Py_ssize_t = 0
    flags: cython.int = _HAS_TIMESTAMP
    timestamp: int64_t
    newest: int64_t = INT64_MIN
    out: Target
    key: Span
    value: Span
    record: Record
    refuse_single(records)
    items: list = list(records)  # our own: callers' code may run below, and change theirs
    count: cython.Py_ssize_t = len(items)
    if not 0 < count <= _MAX_COUNT:
        raise too_many(count)
    now: int64_t = as_int64(now_ms, as_timestamp)
    # A guess that fits records of one size; the writer grows if they are not.
    guess: cython.Py_ssize_t = PyBytes_GET_SIZE(items[0]) if type(items[0]) is bytes else 64
    writer: Writer = Writer(HEAD + OVERHEAD + count * (guess + 9))
    for item in items:
        timestamp = now
        headers = None
        key.data = cython.NULL
        key.size = -1
        if type(item) is bytes:
            value.data = cython.cast(Bytes, PyBytes_AS_STRING(item))
            value.size = PyBytes_GET_SIZE(item)
        elif isinstance(item, Record):
            record = item
            if record._has_timestamp:
                timestamp = record._timestamp
            headers = record._headers
            point(record.key, cython.address(key), "key", index)
            point(record.value, cython.address(value), "value", index)
        elif isinstance(item, tuple):
            if len(item) == 3:
                headers = item[2]
                if type(headers) is bytes:  # believed only where they are ours
                    headers = as_pairs(headers)
            elif len(item) != 2:
                refuse_record(item, index)
            key_owner = point(item[0], cython.address(key), "key", index)  # noqa: F841 (keeps it)
            value_owner = point(item[1], cython.address(value), "value", index)
        else:
            if item is not None and not isinstance(item, CONTENTS):
                refuse_record(item, index)
            value_owner = point(item, cython.address(value), "value", index)  # noqa: F841
        if index == 0 and extra_headers:
            own = parse_headers(headers) if type(headers) is bytes else headers
            headers = as_pairs(extra_headers) + as_pairs(own)

        if key.size >= 0:
            flags |= _HAS_KEYS
        newest = max(newest, timestamp)
        out = writer.reserve(OVERHEAD + max(key.size, 0) + max(value.size, 0))
        out = put_record(out, index, subtract(timestamp, now), key, value)
        if headers is None:
            out[0] = 0
            out += 1
        writer.used = out - writer.start
        if headers is not None and put_headers(writer, headers):
            flags |= _HAS_HEADERS
        index += 1
    limit: cython.Py_ssize_t = min(max_bytes, _MAX_SECTION)
    return finish(writer.data, writer.used - HEAD, count, flags, now, newest, codec, limit)


def encode_one(value, key=None, headers=None, timestamp=None, now_ms=0, codec=0):
    """A batch of one record: what `encode` gives for one, with less ado. `headers` may be bytes, as
    `encode_headers` made them: they are believed."""
    now: int64_t = as_int64(now_ms, as_timestamp)
    stamp: int64_t = now if timestamp is None else as_int64(timestamp, as_timestamp)
    flags: cython.int = _HAS_TIMESTAMP
    key_span: Span
    value_span: Span
    key = point(key, cython.address(key_span), "key", -1)
    value = point(value, cython.address(value_span), "value", -1)
    if key_span.size >= 0:
        flags |= _HAS_KEYS
    capacity: cython.Py_ssize_t = OVERHEAD + max(key_span.size, 0) + max(value_span.size, 0)
    data = PyByteArray_FromStringAndSize(cython.NULL, HEAD + capacity)
    start: Target = cython.cast(Target, PyByteArray_AS_STRING(data))
    out: Target = put_record(start + HEAD, 0, subtract(stamp, now), key_span, value_span)
    out[0] = 0
    size: cython.Py_ssize_t = out + 1 - start
    if headers is not None:
        writer: Writer = Writer(HEAD)
        if put_headers(writer, headers):
            flags |= _HAS_HEADERS
            # In place of the 0.
            PyByteArray_Resize(data, size - 1 + writer.used - HEAD)
            out = cython.cast(Target, PyByteArray_AS_STRING(data)) + size - 1
            memcpy(out, writer.start + HEAD, writer.used - HEAD)
            size += writer.used - HEAD - 1
    return finish(data, size - HEAD, 1, flags, now, stamp, codec, _MAX_SECTION)


def encode_placed(value, key, headers, timestamp, base_offset, now_ms):
    """The bytes of a batch of one record at its offset, not compressed."""
    offset: int64_t = as_int64(base_offset, as_offset)
    if headers is not None or offset < 0 or offset == INT64_MAX:
        return encode_one(value, key, headers, timestamp, now_ms).place(base_offset)
    now: int64_t = as_int64(now_ms, as_timestamp)
    stamp: int64_t = now if timestamp is None else as_int64(timestamp, as_timestamp)
    key_span: Span
    value_span: Span
    key = point(key, cython.address(key_span), "key", -1)
    value = point(value, cython.address(value_span), "value", -1)
    size: cython.Py_ssize_t = record_size(subtract(stamp, now), key_span, value_span)
    if size > _RELEASE_GIL_ABOVE:
        return encode_one(value, key, None, timestamp, now_ms).place(base_offset)
    data: bytes = PyBytes_FromStringAndSize(cython.NULL, HEAD + size)
    head: Target = cython.cast(Target, PyBytes_AS_STRING(data))
    flags: cython.int = _HAS_TIMESTAMP if key_span.size < 0 else _HAS_TIMESTAMP | _HAS_KEYS
    put_head(head, size, 1, flags, 0, now, stamp)
    put_record(head + HEAD, 0, subtract(stamp, now), key_span, value_span)[0] = 0
    store(head + 8, offset, 8)
    store(head + 4, crc_of(head + 8, HEAD + size - 8, 0), 4)
    return data


def as_int64(value, check):
    """`value` as a C integer; `check` is what validates it where that is not obvious."""
    overflow: cython.int = 0
    if type(value) is not int:
        value = check(value)
    number: cython.longlong = PyLong_AsLongLongAndOverflow(value, cython.address(overflow))
    if overflow:
        check(value)  # raises
    return number


def finish(data, section_size, count, flags, base_timestamp, max_timestamp, codec, max_bytes):
    """A draft of a section that is in `data` behind the header's room; `data` may be longer."""
    if codec is not _NONE:
        codec = as_codec(codec)
    if section_size > max_bytes:
        raise too_large(section_size, max_bytes, count)
    PyByteArray_Resize(data, HEAD + section_size)
    if codec is not _NONE and section_size > _COMPRESS_ABOVE:
        smaller: bytes = compression.compress(codec, memoryview(data)[HEAD:])
        if len(smaller) < section_size:
            flags |= _COMPRESSED
            section_size = len(smaller)
            data = PyByteArray_FromStringAndSize(cython.NULL, HEAD + section_size)
            memcpy(PyByteArray_AS_STRING(data) + HEAD, PyBytes_AS_STRING(smaller), section_size)
    head: Target = cython.cast(Target, PyByteArray_AS_STRING(data))
    put_head(head, section_size, count, flags, codec, base_timestamp, max_timestamp)
    store(head + 4, 0, 4)
    store(head + 8, 0, 8)
    draft: Draft = Draft.__new__(Draft)
    draft.data = data
    draft.size = HEAD + section_size
    draft.count = count
    draft.max_timestamp = max_timestamp
    draft._shift = 0
    if draft.size > _DIRECT:
        with cython.nogil:
            draft._tail_crc = crc_of(head + 16, draft.size - 16, 0)
            draft._shift = crc_shift(draft.size - 16)
    return draft


def put_head(head, length, count, flags, codec, base_timestamp, max_timestamp):
    """Writes a batch's header except its CRC and base offset."""
    store(head, _MAGIC, 4)
    store(head + 16, length, 4)
    store(head + 20, count, 2)
    store(head + 22, flags, 2)
    store(head + 24, codec, 1)
    store(head + 25, _VERSION, 1)
    store(head + 26, 0, 2)
    store(head + 28, cython.cast(uint64_t, base_timestamp), 8)
    store(head + 36, cython.cast(uint64_t, max_timestamp), 8)


# Reading


@cython.final
@cython.no_gc
@cython.cclass
class Region:
    """[start, stop) of a buffer, and the batch in it that `next` has moved to."""

    def __cinit__(self, buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
        PyObject_GetBuffer(buf, cython.address(self.view), PyBUF_SIMPLE)
        self.buf = buf
        self.data = cython.cast(Bytes, self.view.buf)
        self.position = start
        self.size = 0  # of the batch at `position`; none yet
        self.stop = stop
        if not 0 <= start <= stop <= self.view.len:
            raise outside(start, stop, self.view.len)

    def __dealloc__(self):
        if self.buf is not None:
            PyBuffer_Release(cython.address(self.view))

    def next(self):
        """Moves to the next batch; False at the end."""
        self.position += self.size
        if self.position >= self.stop:
            return False
        fault: cython.int = read_batch(
            self.data, self.position, self.stop, cython.address(self.header)
        )
        if fault:
            raise malformed_batch(self.position, HEADER_FAULTS[fault])
        self.size = HEAD + cython.cast(cython.Py_ssize_t, self.header.length)
        return True

    def section(self):
        """The batch's records, decompressed; valid until the next call."""
        found: Span
        start: cython.Py_ssize_t = self.position + HEAD
        found.data = self.data + start
        found.size = self.header.length
        if not self.header.flags & _COMPRESSED:
            return found
        stored = memoryview(self.buf).cast("B")[start : start + self.header.length]
        codec = self.header.codec
        try:
            content = compression.decompress(codec, stored, _MAX_SECTION, s2_decompress)
        except Malformed as error:
            raise malformed_section(self.position, str(error)) from None
        self.content = content
        found.data = cython.cast(Bytes, PyBytes_AS_STRING(content))
        found.size = PyBytes_GET_SIZE(content)
        return found

    def info(self):
        # Without BatchInfo's own constructor, which is Python code and four times slower.
        return _new_tuple(
            BatchInfo,
            (
                self.position,
                HEAD + cython.cast(cython.Py_ssize_t, self.header.length),
                self.header.base_offset,
                self.header.count,
                self.header.flags,
                self.header.codec,
                self.header.base_timestamp,
                self.header.max_timestamp,
                self.header.crc,
            ),
        )


def check(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """Walk the batches from `start` and verify each.

    Returns the position behind the last good batch, the offset behind it (-1 when there is none)
    and what follows: COMPLETE when that is `stop`, PARTIAL for the beginning of a batch, else BAD.
    """
    region: Region = Region(buf, start, stop)
    data: Bytes = region.data
    end: cython.Py_ssize_t = start
    next_offset: int64_t = -1
    status: cython.int
    if stop - start > _RELEASE_GIL_ABOVE:
        with cython.nogil:
            status = walk(data, stop, cython.address(end), cython.address(next_offset))
    else:
        status = walk(data, stop, cython.address(end), cython.address(next_offset))
    return end, next_offset, _STATUSES[status]


def walk(data, stop, end, next_offset):
    """Moves `end` and `next_offset` behind the last good batch; returns the number of a Status."""
    have: cython.Py_ssize_t
    length: cython.Py_ssize_t
    head: Bytes
    while end[0] < stop:
        head = data + end[0]
        have = stop - end[0]
        if header_fault(head, have, next_offset[0]):
            return 2
        if have < HEAD:
            return 1
        length = load32(head + 16)
        if length > have - HEAD:
            return 1
        if crc_of(head + 8, HEAD - 8 + length, 0) != load32(head + 4):
            return 2
        end[0] += HEAD + length
        next_offset[0] = cython.cast(int64_t, load64(head + 8)) + load16(head + 20)
    return 0


def batches(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """The headers of a checked region."""
    region: Region = Region(buf, start, stop)
    infos: list = []
    while region.next():
        infos.append(region.info())
    return infos


def read_header(buf, position: cython.Py_ssize_t):
    """The header at `position`. Neither the CRC nor that the whole batch is there is checked."""
    region: Region = Region(buf, position, position)
    length: cython.Py_ssize_t = region.view.len
    fault: cython.int = read_batch(region.data, position, length, cython.address(region.header))
    if fault == CUT_SHORT and length - position >= HEAD:
        fault = 0
    if fault:
        raise malformed_batch(position, HEADER_FAULTS[fault])
    return region.info()


def decode(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: int64_t = 0,
    last: int64_t = layout.MAX_OFFSET,
):
    """The records of a checked region with `first <= offset < last`."""
    region: Region = Region(buf, start, stop)
    fault: cython.int
    records: list = []
    while region.next():
        if region.header.base_offset + region.header.count > first and (
            region.header.base_offset < last
        ):
            fault = decode_section(
                region.section(), cython.address(region.header), first, last, records
            )
            if fault:
                raise malformed_section(region.position, RECORD_FAULTS[fault])
    return records


def inflate(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """The same region with every batch uncompressed: a view of `buf` if they all are already.

    All of it together may not need more than MAX_SECTION bytes beyond the input: TooLarge, so that
    the caller can pass fewer batches.
    """
    region: Region = Region(buf, start, stop)
    inflated: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    section: Span
    contents: list = []
    while region.next():
        if region.header.flags & _COMPRESSED:
            section = region.section()
            inflated += section.size
            if inflated > _MAX_SECTION:
                raise too_large(inflated, _MAX_SECTION)
            contents.append(region.content)
            size += HEAD + section.size
        else:
            size += region.size
    if not contents:
        return memoryview(buf).cast("B")[start:stop]
    # As large as needed and no larger: to clear memory takes longer than to decompress into it.
    data = PyByteArray_FromStringAndSize(cython.NULL, size)
    out: Target = cython.cast(Target, PyByteArray_AS_STRING(data))
    region = Region(buf, start, stop)
    contents.reverse()
    while region.next():
        if not region.header.flags & _COMPRESSED:
            memcpy(out, region.data + region.position, region.size)
            out += region.size
            continue
        content = contents.pop()
        section.data = cython.cast(Bytes, PyBytes_AS_STRING(content))
        section.size = PyBytes_GET_SIZE(content)
        with cython.nogil:
            put_inflated(out, cython.address(region.header), section)
        out += HEAD + section.size
    return data


def put_inflated(out, header, section):
    """Writes a batch as if it had never been compressed, its CRC included."""
    put_head(
        out,
        section.size,
        header.count,
        header.flags & ~_COMPRESSED,
        header.codec,
        header.base_timestamp,
        header.max_timestamp,
    )
    store(out + 8, header.base_offset, 8)
    memcpy(out + HEAD, section.data, section.size)
    store(out + 4, crc_of(out + 8, HEAD - 8 + section.size, 0), 4)


def find_record_at_time(
    buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, timestamp: int64_t, first: int64_t
):
    """(offset, timestamp) of the first record at `first` or later that is not older; what is
    behind it in its batch is not looked at."""
    region: Region = Region(buf, start, stop)
    section: Span
    fields: Fields
    fault: cython.int = 0
    index: cython.int
    offset: int64_t
    data: Bytes
    while region.next():
        offset = region.header.base_offset
        if region.header.max_timestamp < timestamp or offset + region.header.count <= first:
            continue
        section = region.section()
        data = section.data
        for index in range(region.header.count):
            data = read_record(
                data,
                section.data + section.size,
                index,
                region.header.base_timestamp,
                cython.address(fields),
                cython.address(fault),
            )
            if data == cython.NULL:
                raise malformed_section(region.position, RECORD_FAULTS[fault])
            if fields.timestamp >= timestamp and offset >= first:
                return offset, fields.timestamp
            offset += 1
    return None


def first_headers(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """(base_offset, count, base_timestamp, headers of its first record) of each batch.

    The headers are None, at no cost, for a batch whose flags say that no record has any.
    """
    region: Region = Region(buf, start, stop)
    section: Span
    fields: Fields
    fault: cython.int = 0
    data: Bytes
    found: list = []
    while region.next():
        headers = None
        timestamp: int64_t = region.header.base_timestamp
        if region.header.flags & _HAS_HEADERS:
            section = region.section()
            data = section.data
            read_record(
                data,
                data + section.size,
                0,
                timestamp,
                cython.address(fields),
                cython.address(fault),
            )
            if fault:
                raise malformed_section(region.position, RECORD_FAULTS[fault])
            headers = parse_headers(as_object(fields.headers))
        found.append((region.header.base_offset, region.header.count, timestamp, headers))
    return found
