# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Batches: the compiled twin of `tailrace.kernel.pure.codec`, which documents the behaviour.

Memory safety rests on two rules. Reading: a pointer moves only after the length was compared with
what is left, and no byte is read twice (once to check, once to use). Writing: `Writer.reserve` comes
before every write and covers all of it.
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
from cython.cimports.cpython.object import PyObject
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.stdint import INT64_MAX, INT64_MIN, int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.tailrace.kernel.compiled.crc import crc_join, crc_of, crc_shift

from tailrace.kernel import compression, pickling
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
    HEADER_FAULTS,
    RECORD_FAULTS,
    BatchInfo,
    Malformed,
    Status,
    malformed_batch,
    malformed_section,
    outside,
    too_large,
    too_many,
)
