# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Batches: the compiled twin of `tailrace.kernel.pure.codec`, which documents the behaviour.

Memory safety rests on two rules. Reading: a pointer moves only after the length was compared with
what is left, and the number that was compared is the one that is used (it is not read again), so
that a buffer that changes meanwhile gives a wrong result but no access out of bounds. Writing:
`Writer.reserve` comes before every write and covers all of it.
"""

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
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
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from cython.cimports.libc.stdint import INT64_MAX, INT64_MIN, int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tailrace.kernel.compiled.crc import crc_join, crc_of, crc_shift

from tailrace.kernel import compression, layout
from tailrace.kernel.coerce import (
    as_bytes_or_none,
    as_codec,
    as_offset,
    as_timestamp,
    refuse_record,
    refuse_single,
)
from tailrace.kernel.compiled.s2 import s2_decompress
from tailrace.kernel.headers import EMPTY, Headers, as_pairs, encode_name
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
from tailrace.kernel.record_support import FIELDS, describe, restore

# The limits and flags of the format as C variables; `layout` is where they are defined.
_MAX_COUNT = cython.declare(cython.Py_ssize_t, layout.MAX_COUNT)
_MAX_SECTION = cython.declare(cython.Py_ssize_t, layout.MAX_SECTION)
_MIN_RECORD = cython.declare(uint32_t, layout.MIN_RECORD)
_COMPRESS_ABOVE = cython.declare(cython.Py_ssize_t, layout.COMPRESS_ABOVE)
_COMPRESSED = cython.declare(cython.int, layout.COMPRESSED)
_HAS_TIMESTAMP = cython.declare(cython.int, layout.HAS_TIMESTAMP)
_HAS_KEYS = cython.declare(cython.int, layout.HAS_KEYS)
_HAS_HEADERS = cython.declare(cython.int, layout.HAS_HEADERS)
_VERSION = cython.declare(cython.int, layout.VERSION)
_MAGIC = cython.declare(uint32_t, layout.MAGIC)
_NONE = cython.declare(object, layout.NONE)
_STATUSES = cython.declare(tuple, tuple(Status))
_FAULT_SHORT = cython.declare(cython.int, 7)

# Below this, letting another thread run costs more than the work.
_RELEASE_GIL_ABOVE = cython.declare(cython.Py_ssize_t, 8192)
# Below this it is faster to compute a batch's CRC when its offset is known than to combine two.
_DIRECT = cython.declare(cython.Py_ssize_t, 2048)


# Numbers


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load16(data: Bytes) -> cython.uint:
    return cython.cast(cython.uint, data[0]) | cython.cast(cython.uint, data[1]) << 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load32(data: Bytes) -> uint32_t:
    return cython.cast(uint32_t, load16(data)) | cython.cast(uint32_t, load16(data + 2)) << 16


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load64(data: Bytes) -> uint64_t:
    return cython.cast(uint64_t, load32(data)) | cython.cast(uint64_t, load32(data + 4)) << 32


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def store(out: Target, number: uint64_t, width: cython.int) -> cython.void:
    i: cython.int
    for i in range(width):
        out[i] = cython.cast(cython.uchar, number >> (8 * i) & 0xFF)


def read_uvarint(data, end, number):
    """Reads a uvarint of at most 64 bits; returns the position behind it, NULL if there is none."""
    byte: cython.uint
    shift: cython.uint = 7
    result: uint64_t
    if data == end:
        return cython.NULL
    byte = data[0]
    data += 1
    result = byte & 0x7F
    while byte > 0x7F:
        if data == end or shift > 63:
            return cython.NULL
        byte = data[0]
        data += 1
        if shift == 63 and byte > 1:
            return cython.NULL
        result |= cython.cast(uint64_t, byte & 0x7F) << shift
        shift += 7
    number[0] = result
    return data


def put_uvarint(out, number):
    """Writes up to LONGEST bytes; returns the position behind them."""
    while number > 0x7F:
        out[0] = cython.cast(cython.uchar, number & 0x7F | 0x80)
        out += 1
        number >>= 7
    out[0] = cython.cast(cython.uchar, number)
    return out + 1


def put_svarint(out, number):
    """As put_uvarint, zigzag."""
    bits: uint64_t = cython.cast(uint64_t, number) << 1
    return put_uvarint(out, ~bits if number < 0 else bits)


def put_span(out, span):
    """Writes a key or a value with its length."""
    if span.size < 0:
        out[0] = 1  # -1: null
        return out + 1
    out = put_uvarint(out, cython.cast(uint64_t, span.size) << 1)
    memcpy(out, span.data, span.size)
    return out + span.size


def subtract(a, b):
    """a - b as 64 bits hold it: overflow wraps, as it does when the delta is added again."""
    return cython.cast(int64_t, cython.cast(uint64_t, a) - cython.cast(uint64_t, b))


@cython.cfunc
def as_int64(value, check) -> cython.longlong:
    """`value` as a C integer; `check` is what validates it where that is not obvious."""
    overflow: cython.int = 0
    if type(value) is not int:
        value = check(value)
    number: cython.longlong = PyLong_AsLongLongAndOverflow(value, cython.address(overflow))
    if overflow:
        check(value)  # raises
    return number


# Records


@cython.no_gc  # it refers to bytes and Headers only, so it cannot be part of a cycle
@cython.freelist(256)
@cython.cclass
class Record:
    """One record: immutable; `key` and `value` are bytes or None, `headers` is never None.

    `offset` and `timestamp` (milliseconds) are None until the log gives them; on a record that was
    read both are ints. `str` is encoded as UTF-8, mutable buffers are copied.
    """

    __match_args__ = FIELDS

    key = cython.declare(object, visibility="readonly")
    value = cython.declare(object, visibility="readonly")
    # Headers, None for none, or bytes as on disk that the first access parses. Two threads that
    # race there make equal objects, and either may win.
    _headers: object
    _offset: int64_t
    _timestamp: int64_t
    _has_offset: cython.bint
    _has_timestamp: cython.bint

    def __init__(self, offset=None, timestamp=None, key=None, value=None, headers=None):
        self._has_offset = offset is not None
        if self._has_offset:
            self._offset = as_offset(offset)
        self._has_timestamp = timestamp is not None
        if self._has_timestamp:
            self._timestamp = as_timestamp(timestamp)
        self.key = key if type(key) is bytes else as_bytes_or_none(key, "key")
        self.value = value if type(value) is bytes else as_bytes_or_none(value, "value")
        self._headers = None if headers is None else Headers.of(headers)

    @property
    def offset(self):
        """Where the record is in its log."""
        return self._offset if self._has_offset else None

    @property
    def timestamp(self):
        """Milliseconds since the epoch."""
        return self._timestamp if self._has_timestamp else None

    @property
    def headers(self):
        """The headers; empty if there are none."""
        headers = self._headers
        if headers is None:
            return EMPTY
        if type(headers) is bytes:
            headers = self._headers = parse_headers(headers)
        return headers

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self):
        return hash(_fields(self))

    def __repr__(self):
        return describe(self)

    def __reduce__(self):
        return restore if type(self) is Record else type(self), _fields(self)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


@cython.cfunc
def _fields(record: Record) -> tuple:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@cython.cfunc
def parse_headers(raw: bytes):
    """The Headers in bytes that `read_record` has passed."""
    data: Bytes = cython.cast(Bytes, PyBytes_AS_STRING(raw))
    end: Bytes = data + PyBytes_GET_SIZE(raw)
    count: uint64_t = 0
    name: Span
    value: Span
    pairs: list = []
    data = read_uvarint(data, end, cython.address(count))
    while count:
        data = read_span(data, end, cython.address(name))
        data = read_span(data, end, cython.address(value))
        if data == cython.NULL:
            raise Malformed(RECORD_FAULTS[2])
        pairs.append(
            (
                PyUnicode_DecodeUTF8(cython.cast(Chars, name.data), name.size, "surrogateescape"),
                PyBytes_FromStringAndSize(cython.cast(Chars, value.data), value.size),
            )
        )
        count -= 1
    return Headers.from_pairs(tuple(pairs)) if pairs else EMPTY


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_span(data: Bytes, end: Bytes, span: cython.pointer(Span)) -> Bytes:
    """Reads a header's name or value; NULL if it runs over the end. NULL in, NULL out."""
    size: uint64_t = 0
    if data == cython.NULL:
        return cython.NULL
    data = read_uvarint(data, end, cython.address(size))
    if data == cython.NULL or size > cython.cast(uint64_t, end - data):
        return cython.NULL
    span.data = data
    span.size = size
    return data + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_field(
    data: Bytes, end: Bytes, span: cython.pointer(Span), fault: cython.pointer(cython.int)
) -> Bytes:
    """Reads a key or a value; NULL and the fault if there is none."""
    number: uint64_t = 0
    data = read_uvarint(data, end, cython.address(number))
    if data == cython.NULL:
        fault[0] = 1
        return cython.NULL
    span.data = data
    if number & 1:
        span.size = -1
        return data
    number >>= 1
    if number > cython.cast(uint64_t, end - data):
        fault[0] = 2
        return cython.NULL
    span.size = number
    return data + number


def read_record(data, end, index, base_timestamp, fields, fault):
    """Reads the record at `data`; returns the position behind it, or NULL and the fault."""
    number: uint64_t = 0
    span: Span
    data = read_uvarint(data, end, cython.address(number))
    if data == cython.NULL:
        fault[0] = 1
        return cython.NULL
    if number != index:
        fault[0] = 3
        return cython.NULL
    data = read_uvarint(data, end, cython.address(number))
    if data == cython.NULL:
        fault[0] = 1
        return cython.NULL
    number = number >> 1 ^ (0 - (number & 1))
    fields.timestamp = cython.cast(int64_t, cython.cast(uint64_t, base_timestamp) + number)
    data = read_field(data, end, cython.address(fields.key), fault)
    if data == cython.NULL:
        return cython.NULL
    data = read_field(data, end, cython.address(fields.value), fault)
    if data == cython.NULL:
        return cython.NULL
    fields.headers.data = data
    data = read_uvarint(data, end, cython.address(number))
    if data == cython.NULL:
        fault[0] = 1
        return cython.NULL
    fields.header_count = number
    while number:
        data = read_span(read_span(data, end, cython.address(span)), end, cython.address(span))
        if data == cython.NULL:
            fault[0] = 2
            return cython.NULL
        number -= 1
    fields.headers.size = data - fields.headers.data
    return data


# Encoding


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.cclass
class Draft:
    """An encoded batch that has no offset yet.

    `place` may be called again with another offset. Not thread-safe: a draft has one owner.
    """

    data = cython.declare(object, visibility="readonly")  # a bytearray
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    max_timestamp = cython.declare(int64_t, visibility="readonly")
    _shift: uint32_t  # 0: small, the CRC is computed when the offset is known
    _tail_crc: uint32_t

    def __init__(self):
        raise TypeError("drafts are made by encode() and encode_one()")

    def place(self, base_offset):
        """Write the offset and the CRC into `data`, and return it."""
        offset: int64_t = as_int64(base_offset, as_offset)
        crc: uint32_t
        if offset < 0 or offset > INT64_MAX - self.count:
            as_offset(base_offset)
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


@cython.final
@cython.no_gc
@cython.cclass
class Writer:
    """A bytearray that grows, the header's room in front; [0, used) is written."""

    data: object
    start: Target
    used: cython.Py_ssize_t
    capacity: cython.Py_ssize_t

    def __cinit__(self, capacity: cython.Py_ssize_t):
        self.data = PyByteArray_FromStringAndSize(cython.NULL, capacity)
        self.start = cython.cast(Target, PyByteArray_AS_STRING(self.data))
        self.used = HEAD
        self.capacity = capacity

    @cython.cfunc
    @cython.inline
    def reserve(self, size: cython.Py_ssize_t) -> Target:
        """Where the next `size` bytes may be written."""
        if size > self.capacity - self.used:
            self.grow(size)
        return self.start + self.used

    @cython.cfunc
    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        self.capacity += max(self.capacity, size)
        PyByteArray_Resize(self.data, self.capacity)
        self.start = cython.cast(Target, PyByteArray_AS_STRING(self.data))
        return 0


@cython.cfunc
def point(item, span: cython.pointer(Span), what: str, index: cython.Py_ssize_t):
    """Points `span` at the bytes of a key or value; they live as long as what is returned."""
    if type(item) is bytes:
        span.data = cython.cast(Bytes, PyBytes_AS_STRING(item))
        span.size = PyBytes_GET_SIZE(item)
    elif item is None:
        span.data = cython.NULL
        span.size = -1
    elif isinstance(item, str):
        span.data = cython.cast(Bytes, PyUnicode_AsUTF8AndSize(item, cython.address(span.size)))
    else:
        item = as_bytes_or_none(item, what if index < 0 else f"record {index}: {what}")
        span.data = cython.cast(Bytes, PyBytes_AS_STRING(item))
        span.size = PyBytes_GET_SIZE(item)
    return item


def encode(records, now_ms, codec=0, extra_headers=(), max_bytes=layout.MAX_SECTION):
    """One batch of `records`; a record without a timestamp gets `now_ms`.

    An element is a value (bytes, str, a buffer, or None), (key, value), (key, value, headers) or a
    Record. `extra_headers` go in front of the first record's own.
    """
    index: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    flags: cython.int = _HAS_TIMESTAMP
    now: int64_t = as_int64(now_ms, as_timestamp)
    timestamp: int64_t
    newest: int64_t = INT64_MIN
    out: Target
    key: Span
    value: Span
    record: Record
    refuse_single(records)
    items: list = records if type(records) is list else list(records)
    count = len(items)
    if not 0 < count <= _MAX_COUNT:
        raise too_many(count)
    # A guess that fits records of one size; the writer grows if they are not.
    guess: cython.Py_ssize_t = PyBytes_GET_SIZE(items[0]) if type(items[0]) is bytes else 64
    writer: Writer = Writer(HEAD + OVERHEAD + count * (guess + 9))
    key_owner = None
    value_owner = None
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
            elif len(item) != 2:
                refuse_record(item, index)
            key_owner = point(item[0], cython.address(key), "key", index)
            value_owner = point(item[1], cython.address(value), "value", index)
        else:
            if item is not None and not isinstance(item, str | bytes | bytearray | memoryview):
                refuse_record(item, index)
            value_owner = point(item, cython.address(value), "value", index)
        if index == 0 and extra_headers:
            own = parse_headers(headers) if type(headers) is bytes else headers
            headers = as_pairs(extra_headers) + as_pairs(own)

        if key.size >= 0:
            flags |= _HAS_KEYS
        if timestamp > newest:
            newest = timestamp
        out = writer.reserve(OVERHEAD + max(key.size, 0) + max(value.size, 0))
        out = put_uvarint(out, index)
        out = put_svarint(out, subtract(timestamp, now))
        out = put_span(out, key)
        out = put_span(out, value)
        if headers is None:
            out[0] = 0
            writer.used = out + 1 - writer.start
        else:
            writer.used = out - writer.start
            if put_headers(writer, headers):
                flags |= _HAS_HEADERS
        index += 1
    limit: cython.Py_ssize_t = min(max_bytes, _MAX_SECTION)
    return finish(writer.data, writer.used - HEAD, count, flags, now, newest, codec, limit)


@cython.cfunc
def put_headers(writer: Writer, headers) -> cython.bint:
    """Writes the headers of a record; returns whether there are any."""
    mark: cython.Py_ssize_t = writer.used
    if type(headers) is bytes:  # as on disk
        size: cython.Py_ssize_t = PyBytes_GET_SIZE(headers)
        memcpy(writer.reserve(size), PyBytes_AS_STRING(headers), size)
        writer.used += size
        return True
    if type(headers) is dict:
        # The common form, without intermediate pairs; whatever is not plain takes the long way.
        put_count(writer, len(headers))
        for name, value in cython.cast(dict, headers).items():
            if not put_header(writer, name, value):
                break
        else:
            return len(headers) > 0
        writer.used = mark
    pairs: tuple = headers if type(headers) is tuple else None
    if pairs is None:
        pairs = as_pairs(headers)
    put_count(writer, len(pairs))
    for name, value in pairs:
        put_header(writer, name, value)
    return len(pairs) > 0


@cython.cfunc
def put_count(writer: Writer, count: cython.Py_ssize_t) -> cython.int:
    writer.used = put_uvarint(writer.reserve(LONGEST), count) - writer.start
    return 0


@cython.cfunc
def put_header(writer: Writer, name, value) -> cython.bint:
    """Writes one header, if its name is a str and its value is bytes or a str."""
    if type(name) is not str or not (type(value) is bytes or type(value) is str):
        return False
    span: Span
    try:
        span.data = cython.cast(Bytes, PyUnicode_AsUTF8AndSize(name, cython.address(span.size)))
    except UnicodeEncodeError:
        name = encode_name(name)
        point(name, cython.address(span), "name", -1)
    put_plain(writer, span)
    point(value, cython.address(span), "value", -1)
    put_plain(writer, span)
    return True


@cython.cfunc
def put_plain(writer: Writer, span: Span) -> cython.int:
    """Writes a header's name or value: its length is not zigzag, as it cannot be null."""
    out: Target = put_uvarint(writer.reserve(LONGEST + span.size), span.size)
    memcpy(out, span.data, span.size)
    writer.used = out + span.size - writer.start
    return 0


def encode_one(value, key=None, headers=None, timestamp=None, now_ms=0, codec=0):
    """A batch of one record: what `encode` gives for one, with less ado."""
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
    if headers is not None:
        writer: Writer = Writer(HEAD + capacity)
        writer.used = put_one(writer.start, stamp, now, key_span, value_span)
        if put_headers(writer, headers):
            flags |= _HAS_HEADERS
        data = writer.data
        size: cython.Py_ssize_t = writer.used
    else:
        data = PyByteArray_FromStringAndSize(cython.NULL, HEAD + capacity)
        start: Target = cython.cast(Target, PyByteArray_AS_STRING(data))
        size = put_one(start, stamp, now, key_span, value_span)
        start[size] = 0
        size += 1
    return finish(data, size - HEAD, 1, flags, now, stamp, codec, _MAX_SECTION)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_one(
    start: Target, timestamp: int64_t, now: int64_t, key: Span, value: Span
) -> cython.Py_ssize_t:
    """Writes the first record of a batch, up to its headers; returns how much is written."""
    out: Target = start + HEAD
    out[0] = 0
    out = put_svarint(out + 1, subtract(timestamp, now))
    return put_span(put_span(out, key), value) - start


def finish(data, section_size, count, flags, base_timestamp, max_timestamp, codec, max_bytes):
    """A draft of a section that is in `data` behind the header's room; `data` may be longer."""
    if section_size > max_bytes:
        raise too_large(section_size, max_bytes)
    PyByteArray_Resize(data, HEAD + section_size)
    if codec is not _NONE:
        codec = as_codec(codec)
        if codec != 0 and section_size > _COMPRESS_ABOVE:
            smaller: bytes = compression.compress(codec, memoryview(data)[HEAD:])
            if len(smaller) < section_size:
                flags |= _COMPRESSED
                section_size = len(smaller)
                data = PyByteArray_FromStringAndSize(cython.NULL, HEAD + section_size)
                memcpy(
                    PyByteArray_AS_STRING(data) + HEAD, PyBytes_AS_STRING(smaller), section_size
                )
    head: Target = cython.cast(Target, PyByteArray_AS_STRING(data))
    put_header_fields(head, section_size, count, flags, codec, base_timestamp, max_timestamp)
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_header_fields(
    head: Target,
    length: uint32_t,
    count: cython.uint,
    flags: cython.uint,
    codec: cython.uint,
    base_timestamp: int64_t,
    max_timestamp: int64_t,
) -> cython.void:
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


@cython.cfunc
def open_region(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    view: cython.pointer(Py_buffer),
) -> cython.int:
    """Acquires `buf`, if [start, stop) is inside it."""
    PyObject_GetBuffer(buf, view, PyBUF_SIMPLE)
    if not 0 <= start <= stop <= view.len:
        length: cython.Py_ssize_t = view.len
        PyBuffer_Release(view)
        raise outside(start, stop, length)
    return 0


def header_fault(head, have, next_offset):
    """An index into HEADER_FAULTS: 0 if every field that `head` holds in full is plausible.

    `head` is a header, or the `have` first bytes of one; `next_offset` is where the batch before
    ended.
    """
    i: cython.Py_ssize_t
    for i in range(min(have, 4)):
        if head[i] != (_MAGIC >> (8 * i) & 0xFF):
            return 1
    if have < 16:
        return 0
    # Compared as signed numbers: an offset of 2^63 or more is negative.
    base_offset: int64_t = cython.cast(int64_t, load64(head + 8))
    if base_offset < 0 or base_offset == INT64_MAX or base_offset < next_offset:
        return 2
    if have < 20:
        return 0
    length: uint32_t = load32(head + 16)
    if length > _MAX_SECTION:
        return 4
    if have < 22:
        return 0
    count: uint32_t = load16(head + 20)
    if count == 0:
        return 5
    if base_offset > INT64_MAX - count:
        return 2
    if have < 24:
        return 0
    if length < (1 if load16(head + 22) & _COMPRESSED else _MIN_RECORD * count):
        return 3
    if have < 26:
        return 0
    return 0 if head[25] == _VERSION else 6


def read_batch(data, position, stop, header):
    """Reads the header at `position`; returns an index into HEADER_FAULTS.

    0 means that the whole batch is plausible and inside [position, stop).
    """
    have: cython.Py_ssize_t = stop - position
    head: Bytes = data + position
    fault: cython.int = header_fault(head, have, -1)
    if fault:
        return fault
    if have < HEAD:
        return _FAULT_SHORT
    header.crc = load32(head + 4)
    header.base_offset = cython.cast(int64_t, load64(head + 8))
    header.length = load32(head + 16)
    header.count = load16(head + 20)
    header.flags = load16(head + 22)
    header.codec = head[24]
    header.base_timestamp = cython.cast(int64_t, load64(head + 28))
    header.max_timestamp = cython.cast(int64_t, load64(head + 36))
    return 0 if header.length <= have - HEAD else _FAULT_SHORT


@cython.cfunc
def batch_info(position: cython.Py_ssize_t, header: cython.pointer(Header)):
    # Without BatchInfo's own constructor, which is Python code and four times slower.
    return _new_tuple(
        BatchInfo,
        (
            position,
            HEAD + cython.cast(cython.Py_ssize_t, header.length),
            header.base_offset,
            header.count,
            header.flags,
            header.codec,
            header.base_timestamp,
            header.max_timestamp,
            header.crc,
        ),
    )


_new_tuple = cython.declare(object, tuple.__new__)


def check(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """Walk the batches from `start` and verify each.

    Returns the position behind the last good batch, the offset behind it (-1 when there is none)
    and what follows: COMPLETE when that is `stop`, PARTIAL for the beginning of a batch, else BAD.
    """
    view: Py_buffer
    end: cython.Py_ssize_t = start
    next_offset: int64_t = -1
    status: cython.int
    open_region(buf, start, stop, cython.address(view))
    if stop - start > _RELEASE_GIL_ABOVE:
        with cython.nogil:
            status = walk(
                cython.cast(Bytes, view.buf), stop, cython.address(end), cython.address(next_offset)
            )
    else:
        status = walk(
            cython.cast(Bytes, view.buf), stop, cython.address(end), cython.address(next_offset)
        )
    PyBuffer_Release(cython.address(view))
    return end, next_offset, _STATUSES[status]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk(
    data: Bytes,
    stop: cython.Py_ssize_t,
    end: cython.pointer(cython.Py_ssize_t),
    next_offset: cython.pointer(int64_t),
) -> cython.int:
    """Moves `end` and `next_offset` behind the last good batch; returns the number of a Status."""
    have: cython.Py_ssize_t
    length: cython.Py_ssize_t
    head: Bytes
    while end[0] < stop:
        head = data + end[0]
        have = stop - end[0]
        if header_fault(head, min(have, HEAD), next_offset[0]):
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
    view: Py_buffer
    header: Header
    infos: list = []
    open_region(buf, start, stop, cython.address(view))
    try:
        while start < stop:
            need_batch(cython.cast(Bytes, view.buf), start, stop, cython.address(header))
            infos.append(batch_info(start, cython.address(header)))
            start += HEAD + cython.cast(cython.Py_ssize_t, header.length)
    finally:
        PyBuffer_Release(cython.address(view))
    return infos


def read_header(buf, position: cython.Py_ssize_t):
    """The header at `position`. Neither the CRC nor that the whole batch is there is checked."""
    view: Py_buffer
    header: Header
    open_region(buf, position, position, cython.address(view))
    fault: cython.int = read_batch(
        cython.cast(Bytes, view.buf), position, view.len, cython.address(header)
    )
    whole: cython.bint = view.len - position >= HEAD
    PyBuffer_Release(cython.address(view))
    if fault and not (fault == _FAULT_SHORT and whole):
        raise malformed_batch(position, HEADER_FAULTS[fault])
    return batch_info(position, cython.address(header))


@cython.cfunc
def need_batch(
    data: Bytes,
    position: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    header: cython.pointer(Header),
) -> cython.int:
    """As read_batch, but raises."""
    fault: cython.int = read_batch(data, position, stop, header)
    if fault:
        raise malformed_batch(position, HEADER_FAULTS[fault])
    return 0


@cython.cfunc
def open_section(
    buf,
    data: Bytes,
    position: cython.Py_ssize_t,
    header: cython.pointer(Header),
    section: cython.pointer(Span),
):
    """Points `section` at a batch's records, decompressed; keep what is returned meanwhile."""
    start: cython.Py_ssize_t = position + HEAD
    if not header.flags & _COMPRESSED:
        section.data = data + start
        section.size = header.length
        return None
    stored = memoryview(buf).cast("B")[start : start + header.length]
    try:
        content: bytes = compression.decompress(header.codec, stored, _MAX_SECTION, s2_decompress)
    except Malformed as error:
        raise malformed_section(position, str(error)) from None
    section.data = cython.cast(Bytes, PyBytes_AS_STRING(content))
    section.size = PyBytes_GET_SIZE(content)
    return content


def decode(
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: int64_t = 0,
    last: int64_t = layout.MAX_OFFSET,
):
    """The records of a checked region with `first <= offset < last`."""
    view: Py_buffer
    header: Header
    section: Span
    fault: cython.int
    records: list = []
    open_region(buf, start, stop, cython.address(view))
    try:
        data: Bytes = cython.cast(Bytes, view.buf)
        while start < stop:
            need_batch(data, start, stop, cython.address(header))
            if header.base_offset + header.count > first and header.base_offset < last:
                owner = open_section(
                    buf, data, start, cython.address(header), cython.address(section)
                )
                fault = decode_section(section, cython.address(header), first, last, records)
                if fault:
                    raise malformed_section(start, RECORD_FAULTS[fault])
            start += HEAD + cython.cast(cython.Py_ssize_t, header.length)
    finally:
        PyBuffer_Release(cython.address(view))
    return records


@cython.cfunc
@cython.exceptval(-1)
def decode_section(
    section: Span,
    header: cython.pointer(Header),
    first: int64_t,
    last: int64_t,
    records: list,
) -> cython.int:
    """Appends the records with `first <= offset < last`; returns an index into RECORD_FAULTS."""
    data: Bytes = section.data
    end: Bytes = data + section.size
    fields: Fields
    fault: cython.int = 0
    offset: int64_t = header.base_offset
    index: cython.int
    record: Record
    for index in range(header.count):
        if offset >= last:
            break
        data = read_record(
            data,
            end,
            index,
            header.base_timestamp,
            cython.address(fields),
            cython.address(fault),
        )
        if data == cython.NULL:
            return fault
        if offset >= first:
            record = Record.__new__(Record)
            record._offset = offset
            record._has_offset = True
            record._timestamp = fields.timestamp
            record._has_timestamp = True
            if fields.key.size >= 0:
                record.key = as_object(fields.key)
            if fields.value.size >= 0:
                record.value = as_object(fields.value)
            if fields.headers.size > 1:  # not just the number 0
                record._headers = as_object(fields.headers)
            records.append(record)
        offset += 1
    return 0


@cython.cfunc
@cython.inline
def as_object(span: Span):
    return PyBytes_FromStringAndSize(cython.cast(Chars, span.data), span.size)


def inflate(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """The same region with every batch uncompressed: a view of `buf` if they all are already.

    All of it together may not need more than MAX_SECTION bytes beyond the input: TooLarge, so that
    the caller can pass fewer batches.
    """
    view: Py_buffer
    header: Header
    section: Span
    position: cython.Py_ssize_t = start
    size: cython.Py_ssize_t
    inflated: cython.Py_ssize_t = 0
    compressed: cython.bint = False
    writer: Writer
    out: Target
    open_region(buf, start, stop, cython.address(view))
    try:
        data: Bytes = cython.cast(Bytes, view.buf)
        while position < stop:
            need_batch(data, position, stop, cython.address(header))
            compressed = compressed or header.flags & _COMPRESSED
            position += HEAD + cython.cast(cython.Py_ssize_t, header.length)
        if not compressed:
            return memoryview(buf).cast("B")[start:stop]
        writer = Writer(HEAD + 3 * (stop - start))
        writer.used = 0
        position = start
        while position < stop:
            need_batch(data, position, stop, cython.address(header))
            size = HEAD + cython.cast(cython.Py_ssize_t, header.length)
            if not header.flags & _COMPRESSED:
                memcpy(writer.reserve(size), data + position, size)
                writer.used += size
            else:
                owner = open_section(
                    buf, data, position, cython.address(header), cython.address(section)
                )
                inflated += section.size
                if inflated > _MAX_SECTION:
                    raise too_large(inflated, _MAX_SECTION)
                out = writer.reserve(HEAD + section.size)
                with cython.nogil:
                    put_inflated(out, cython.address(header), section)
                writer.used += HEAD + section.size
            position += size
        PyByteArray_Resize(writer.data, writer.used)
        return writer.data
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_inflated(out: Target, header: cython.pointer(Header), section: Span) -> cython.void:
    """Writes a batch as if it had never been compressed, its CRC included."""
    put_header_fields(
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
    buf,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    timestamp: int64_t,
    first: int64_t,
):
    """(offset, timestamp) of the first record at `first` or later that is not older."""
    view: Py_buffer
    header: Header
    section: Span
    fields: Fields
    fault: cython.int = 0
    index: cython.int
    record: Bytes
    open_region(buf, start, stop, cython.address(view))
    try:
        data: Bytes = cython.cast(Bytes, view.buf)
        while start < stop:
            need_batch(data, start, stop, cython.address(header))
            if header.max_timestamp >= timestamp and header.base_offset + header.count > first:
                owner = open_section(
                    buf, data, start, cython.address(header), cython.address(section)
                )
                record = section.data
                for index in range(header.count):
                    record = read_record(
                        record,
                        section.data + section.size,
                        index,
                        header.base_timestamp,
                        cython.address(fields),
                        cython.address(fault),
                    )
                    if record == cython.NULL:
                        raise malformed_section(start, RECORD_FAULTS[fault])
                    if fields.timestamp >= timestamp and header.base_offset + index >= first:
                        return header.base_offset + index, fields.timestamp
            start += HEAD + cython.cast(cython.Py_ssize_t, header.length)
    finally:
        PyBuffer_Release(cython.address(view))
    return None


def first_headers(buf, start: cython.Py_ssize_t, stop: cython.Py_ssize_t):
    """(base_offset, count, base_timestamp, headers of its first record) of each batch.

    The headers are None, at no cost, for a batch whose flags say that no record has any.
    """
    view: Py_buffer
    header: Header
    section: Span
    fields: Fields
    fault: cython.int = 0
    found: list = []
    open_region(buf, start, stop, cython.address(view))
    try:
        data: Bytes = cython.cast(Bytes, view.buf)
        while start < stop:
            need_batch(data, start, stop, cython.address(header))
            headers = None
            if header.flags & _HAS_HEADERS:
                owner = open_section(
                    buf, data, start, cython.address(header), cython.address(section)
                )
                if (
                    read_record(
                        section.data,
                        section.data + section.size,
                        0,
                        header.base_timestamp,
                        cython.address(fields),
                        cython.address(fault),
                    )
                    == cython.NULL
                ):
                    raise malformed_section(start, RECORD_FAULTS[fault])
                headers = parse_headers(as_object(fields.headers))
            found.append((header.base_offset, header.count, header.base_timestamp, headers))
            start += HEAD + cython.cast(cython.Py_ssize_t, header.length)
    finally:
        PyBuffer_Release(cython.address(view))
    return found
