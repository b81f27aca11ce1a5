# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# ruff: noqa: F821 (the linter sees neither the .pxd beside this nor declarations of C variables)
"""Lines of a journal: the compiled twin of `tailrace.kernel.pure.lines`.

Every claim and every ack is such a line, and whoever shares a group reads those of all others. So
objects of plain text, whole numbers and lists of these are read and written here; what is richer
goes the usual way.
"""

import cython
from cython.cimports.cpython.bytes import (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.tailrace.kernel.compiled.crc import Bytes, crc_of

from tailrace.kernel.objects import decode_object, encode_object

_PREFIX = cython.declare(cython.Py_ssize_t, 16)  # {"k":"00000000",
_DIGITS = cython.declare(cython.int, 18)  # that surely fit 64 bits
_ROOM = cython.declare(cython.Py_ssize_t, 512)  # bytes of a line: most have about a hundred


def read_line(line: bytes):
    """The object in a line (without its end), less the checksum; `None` if it is damaged."""
    reading: Reading
    checksum: cython.uchar[16]
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(line)
    reading.at = cython.cast(Bytes, PyBytes_AS_STRING(line))
    reading.end = reading.at + size
    if size <= _PREFIX:
        return None
    put_checksum(cython.address(checksum[0]), reading.at + _PREFIX, size - _PREFIX)
    if memcmp(cython.address(checksum[0]), reading.at, _PREFIX):
        return None
    reading.at += _PREFIX
    value = read_object(cython.address(reading))
    return decode_object(line[_PREFIX:]) if value is None else value


def write_line(value: dict):
    """An object as a line, with its end."""
    room: cython.uchar[512]
    writing: Writing
    body: bytes
    writing.at = cython.address(room[0]) + _PREFIX
    writing.end = cython.address(room[0]) + _ROOM
    for name, each in value.items():
        write_text(cython.address(writing), name)
        put(cython.address(writing), ord(":"))
        write_value(cython.address(writing), each)
        put(cython.address(writing), ord(","))
    close(cython.address(writing), ord("}"))
    put(cython.address(writing), ord("\n"))
    start: Room = cython.address(room[0])
    if writing.end != cython.NULL and value:
        put_checksum(start, start + _PREFIX, writing.at - start - _PREFIX - 1)
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), writing.at - start)
    body = encode_object(value)
    put_checksum(start, cython.cast(Bytes, PyBytes_AS_STRING(body)), PyBytes_GET_SIZE(body))
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), _PREFIX) + body + b"\n"


def put_checksum(data, body, size):
    """What a line begins with, by what follows."""
    digits: cython.p_const_char = b"0123456789abcdef"
    crc: uint32_t = crc_of(body, size, 0)
    index: cython.int
    memcpy(data, cython.cast(cython.p_const_char, b'{"k":"'), 6)
    for index in range(8):
        data[6 + index] = digits[(crc >> (28 - 4 * index)) & 15]
    data[14] = ord('"')
    data[15] = ord(",")
    return 0


# --- reading: `None` if there is anything that is not plain ---------------------------------------


def read_object(reading):
    value: dict = {}
    while True:
        name = read_text(reading)
        if name is None or not skip(reading, ord(":")):
            return None
        each = read_value(reading)
        if each is None:
            return None
        value[name] = each
        if skip(reading, ord("}")):
            return value if reading.at == reading.end else None
        if not skip(reading, ord(",")):
            return None


def read_value(reading):
    if reading.at == reading.end:
        return None
    if reading.at[0] == ord('"'):
        return read_text(reading)
    return read_list(reading) if reading.at[0] == ord("[") else read_whole(reading)


def read_list(reading):
    numbers: list = []
    if not skip(reading, ord("[")):
        return None
    while True:
        number = read_whole(reading)
        if number is None:
            return None
        numbers.append(number)
        if skip(reading, ord("]")):
            return numbers
        if not skip(reading, ord(",")):
            return None


def read_text(reading):
    if not skip(reading, ord('"')):
        return None
    start: Bytes = reading.at
    at: Bytes = start
    while at < reading.end and at[0] != ord('"'):
        if at[0] < 0x20 or at[0] >= 0x80 or at[0] == ord("\\"):
            return None
        at += 1
    reading.at = at
    if not skip(reading, ord('"')):
        return None
    return PyUnicode_DecodeASCII(cython.cast(cython.p_const_char, start), at - start, cython.NULL)


def read_whole(reading):
    number: int64_t = 0
    is_negative: cython.int = skip(reading, ord("-"))
    start: Bytes = reading.at
    while reading.at < reading.end and ord("0") <= reading.at[0] <= ord("9"):
        number = 10 * number + (reading.at[0] - ord("0"))
        reading.at += 1
        if reading.at - start > _DIGITS:
            return None
    if reading.at == start or (start[0] == ord("0") and reading.at - start > 1):
        return None
    return -number if is_negative else number


def skip(reading, expected):
    """Pass over a character, if it is there."""
    if reading.at == reading.end or reading.at[0] != expected:
        return 0
    reading.at += 1
    return 1


# --- writing --------------------------------------------------------------------------------------


def write_value(writing, value):
    if PyLong_CheckExact(value):
        write_whole(writing, value)
    elif type(value) is str:
        write_text(writing, value)
    elif type(value) is list and value:
        put(writing, ord("["))
        for each in cython.cast(list, value):
            if not PyLong_CheckExact(each):
                writing.end = cython.NULL
                return 0
            write_whole(writing, each)
            put(writing, ord(","))
        close(writing, ord("]"))
    else:
        writing.end = cython.NULL
    return 0


def write_text(writing, text):
    size: cython.Py_ssize_t = 0
    data: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
    index: cython.Py_ssize_t
    byte: cython.uchar
    put(writing, ord('"'))
    for index in range(size):
        byte = data[index]
        if byte < 0x20 or byte == ord('"') or byte == ord("\\"):
            writing.end = cython.NULL
            return 0
        put(writing, byte)
    put(writing, ord('"'))
    return 0


def write_whole(writing, number):
    digits: cython.uchar[20]
    overflow: cython.int = 0
    index: cython.int = 20
    value: int64_t = PyLong_AsLongLongAndOverflow(number, cython.address(overflow))
    if overflow or value < 0:
        writing.end = cython.NULL
        return 0
    while value or index == 20:
        index -= 1
        digits[index] = ord("0") + value % 10
        value //= 10
    while index < 20:
        put(writing, digits[index])
        index += 1
    return 0


def close(writing, byte):
    """Put this in the place of the last comma."""
    if writing.end != cython.NULL:
        writing.at -= 1
    return put(writing, byte)


def put(writing, byte):
    if writing.end == cython.NULL or writing.at == writing.end:
        writing.end = cython.NULL
        return 0
    writing.at[0] = byte
    writing.at += 1
    return 0
