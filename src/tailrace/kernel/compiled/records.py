# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Record, and the bytes of headers and records: the parts that the compiled modules share.

Types of C functions are in records.pxd. Memory safety rests on one rule: a pointer moves only after
the length was compared with what is left, and the number that was compared is the one that is used
(it is not read again), so that a buffer that changes meanwhile gives a wrong result but no access
out of bounds.
"""

import cython
from cython.cimports.cpython.bytearray import (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cython.cimports.cpython.bytes import (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cython.cimports.cpython.unicode import (
    PyUnicode_AsEncodedString,
    PyUnicode_AsUTF8AndSize,
    PyUnicode_DecodeUTF8,
)
from cython.cimports.libc.stdint import INT64_MAX, int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy

from tailrace.kernel import layout
from tailrace.kernel.coerce import as_bytes_or_none, as_offset, as_timestamp
from tailrace.kernel.headers import EMPTY, Headers, as_pairs, encode_name
from tailrace.kernel.layout import RECORD_FAULTS, Malformed
from tailrace.kernel.record_support import FIELDS, describe, restore

# The format's limits and flags as C variables; `layout` is where they are defined.
_COMPRESSED = cython.declare(uint32_t, layout.COMPRESSED)
_MAGIC = cython.declare(uint32_t, layout.MAGIC)
_MAX_SECTION = cython.declare(uint32_t, layout.MAX_SECTION)
_MIN_RECORD = cython.declare(uint32_t, layout.MIN_RECORD)
_VERSION = cython.declare(cython.int, layout.VERSION)


@cython.no_gc  # it refers to bytes and Headers only, so it cannot be part of a cycle
@cython.freelist(256)
@cython.cclass
class Record:
    """One record: immutable; `key` and `value` are bytes or None, `headers` is never None.

    `offset` and `timestamp` (milliseconds) are None until the log gives them; on a record that was
    read both are ints. `str` is encoded as UTF-8, mutable buffers are copied.
    """

    # _headers is Headers, None for none, or bytes as on disk that the first access parses. Two
    # threads that race there make equal objects, and either may win.

    __match_args__ = FIELDS

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
        return fields_of(self) == fields_of(other)

    def __hash__(self):
        return hash(fields_of(self))

    def __repr__(self):
        return describe(self)

    def __reduce__(self):
        return restore if type(self) is Record else type(self), fields_of(self)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def fields_of(record):
    return record.offset, record.timestamp, record.key, record.value, record.headers


def numbered(head: bytes, number: uint64_t):
    """Headers as on disk: `head` has all of them but for the last one's value, which is the number
    in digits."""
    digits: cython.uchar[20]
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(head)
    while number or not count:
        count += 1
        digits[20 - count] = 48 + number % 10
        number //= 10
    headers: bytes = PyBytes_FromStringAndSize(cython.NULL, size + 1 + count)
    out: Target = cython.cast(Target, PyBytes_AS_STRING(headers))
    memcpy(out, PyBytes_AS_STRING(head), size)
    out[size] = count
    memcpy(out + size + 1, digits + (20 - count), count)
    return headers


def stamped(key, value, headers: bytes):
    """A new record whose headers are as `encode_headers` made them: they are believed."""
    record: Record = Record.__new__(Record)
    record.key = key if type(key) is bytes else as_bytes_or_none(key, "key")
    record.value = value if type(value) is bytes else as_bytes_or_none(value, "value")
    record._headers = headers
    return record


def as_object(span):
    """The bytes of a span that is not null."""
    return PyBytes_FromStringAndSize(cython.cast(Chars, span.data), span.size)


# Numbers: little-endian wherever this runs, and unaligned


def load16(data):
    return cython.cast(uint32_t, data[0]) | cython.cast(uint32_t, data[1]) << 8


def load32(data):
    return load16(data) | load16(data + 2) << 16


def load64(data):
    return cython.cast(uint64_t, load32(data)) | cython.cast(uint64_t, load32(data + 4)) << 32


def store(out, number, width):
    i: cython.int
    for i in range(width):
        out[i] = cython.cast(cython.uchar, number >> (8 * i) & 0xFF)


def subtract(a, b):
    """a - b as 64 bits hold it: overflow wraps, as it does when the delta is added again."""
    return cython.cast(int64_t, cython.cast(uint64_t, a) - cython.cast(uint64_t, b))


# Reading. A function that returns a position returns NULL where the data is damaged.


def read_uvarint(data, end, number):
    """Reads a uvarint of at most 64 bits; returns the position behind it."""
    byte: uint32_t
    shift: uint32_t = 7
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


def read_span(data, end, span):
    """Reads a header's name or value. NULL in, NULL out."""
    size: uint64_t = 0
    if data == cython.NULL:
        return cython.NULL
    data = read_uvarint(data, end, cython.address(size))
    if data == cython.NULL or size > cython.cast(uint64_t, end - data):
        return cython.NULL
    span.data = data
    span.size = size
    return data + size


def read_field(data, end, span, fault):
    """Reads a key or a value, which may be null."""
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
    """Reads the record at `data`; `fault` is an index into RECORD_FAULTS."""
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


def decode_section(section, header, first, last, records):
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
            data, end, index, header.base_timestamp, cython.address(fields), cython.address(fault)
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
            if fields.headers.size > 1:  # more than the number 0
                record._headers = as_object(fields.headers)
            records.append(record)
        offset += 1
    return 0


def parse_headers(raw):
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
        text = PyUnicode_DecodeUTF8(cython.cast(Chars, name.data), name.size, "surrogateescape")
        pairs.append((text, as_object(value)))
        count -= 1
    return Headers.from_pairs(tuple(pairs)) if pairs else EMPTY


def find_header(record: Record, name: bytes):
    """The value of a record's first header of that name, which is as on disk; None if it has none.

    Headers that nobody has parsed yet stay so: what comes by the million is looked into cheaply.
    """
    headers = record._headers
    if headers is None:
        return None
    if type(headers) is not bytes:
        for text, content in headers.pairs:
            if PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape") == name:
                return content
        return None
    data: Bytes = cython.cast(Bytes, PyBytes_AS_STRING(headers))
    end: Bytes = data + PyBytes_GET_SIZE(headers)
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(name)
    count: uint64_t = 0
    known: Span
    value: Span
    data = read_uvarint(data, end, cython.address(count))
    while count:
        data = read_span(data, end, cython.address(known))
        data = read_span(data, end, cython.address(value))
        if data == cython.NULL:
            raise Malformed(RECORD_FAULTS[2])
        if known.size == size and memcmp(known.data, PyBytes_AS_STRING(name), size) == 0:
            return as_object(value)
        count -= 1
    return None


def header_fault(head, have, next_offset):
    """An index into HEADER_FAULTS: 0 if every field that `head` holds in full is plausible.

    `head` is a header, or the first `have` bytes of one; `next_offset` is where the batch before
    ended.
    """
    i: cython.int
    for i in range(4):
        if i < have and head[i] != (_MAGIC >> (8 * i) & 0xFF):
            return 1
    if have < 16:
        return 0
    # Compared as a signed number: an offset of 2^63 or more is negative.
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
        return CUT_SHORT
    header.crc = load32(head + 4)
    header.base_offset = cython.cast(int64_t, load64(head + 8))
    header.length = load32(head + 16)
    header.count = load16(head + 20)
    header.flags = load16(head + 22)
    header.codec = head[24]
    header.base_timestamp = cython.cast(int64_t, load64(head + 28))
    header.max_timestamp = cython.cast(int64_t, load64(head + 36))
    return 0 if header.length <= have - HEAD else CUT_SHORT


# Writing. Each returns the position behind what it wrote; the caller has made room.


def put_uvarint(out, number):
    """Writes at most LONGEST bytes."""
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


def put_record(out, index, delta, key, value):
    """Writes a record up to its headers: OVERHEAD, less their number, and the two fields."""
    out = put_svarint(put_uvarint(out, index), delta)
    return put_span(put_span(out, key), value)


def record_size(delta, key, value):
    """How long the first record of a batch is, without headers."""
    bits: uint64_t = cython.cast(uint64_t, delta) << 1
    size: cython.Py_ssize_t = 2 + uvarint_size(~bits if delta < 0 else bits)
    return size + span_size(key) + span_size(value)


def span_size(span):
    """How much `put_span` writes."""
    if span.size < 0:
        return 1
    return uvarint_size(cython.cast(uint64_t, span.size) << 1) + span.size


def uvarint_size(number):
    size: cython.Py_ssize_t = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


@cython.final
@cython.no_gc
@cython.cclass
class Writer:
    """A bytearray that grows; [0, used) is taken, at first by the room for a header."""

    def __cinit__(self, capacity: cython.Py_ssize_t):
        self.data = PyByteArray_FromStringAndSize(cython.NULL, capacity)
        self.start = cython.cast(Target, PyByteArray_AS_STRING(self.data))
        self.used = HEAD
        self.capacity = capacity

    def reserve(self, size):
        """Where the next `size` bytes may be written."""
        if size > self.capacity - self.used:
            self.grow(size)
        return self.start + self.used

    def grow(self, size):
        self.capacity += max(self.capacity, size)
        PyByteArray_Resize(self.data, self.capacity)
        self.start = cython.cast(Target, PyByteArray_AS_STRING(self.data))
        return 0


def point(item, span, what, index):
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


def put_headers(writer, headers):
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
    pairs: tuple = as_pairs(headers)
    put_count(writer, len(pairs))
    for name, value in pairs:
        put_header(writer, name, value)
    return len(pairs) > 0


def put_count(writer, count):
    writer.used = put_uvarint(writer.reserve(LONGEST), count) - writer.start
    return 0


def put_header(writer, name, value):
    """Writes one header, if its name is a str and its value is bytes or a str."""
    if type(name) is not str or not (type(value) is bytes or type(value) is str):
        return False
    span: Span
    try:
        span.data = cython.cast(Bytes, PyUnicode_AsUTF8AndSize(name, cython.address(span.size)))
    except UnicodeEncodeError:
        name = encode_name(name)
        point(name, cython.address(span), "name", -1)
    put_string(writer, span)
    point(value, cython.address(span), "value", -1)
    put_string(writer, span)
    return True


def put_string(writer, span):
    """Writes a header's name or value: its length is not zigzag, as it cannot be null."""
    out: Target = put_uvarint(writer.reserve(LONGEST + span.size), span.size)
    memcpy(out, span.data, span.size)
    writer.used = out + span.size - writer.start
    return 0


def encode_headers(pairs):
    """The number of headers and each of them, as they are on disk."""
    writer: Writer = Writer(HEAD + 256)
    put_headers(writer, tuple(pairs))
    return PyBytes_FromStringAndSize(cython.cast(Chars, writer.start + HEAD), writer.used - HEAD)
