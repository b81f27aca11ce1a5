# cython: language_level=3, boundscheck=False, wraparound=False
"""Notes in shared memory: the compiled twin of `tailrace.kernel.pure.notes`."""

import cython
from cython.cimports.cpython.buffer import (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.tailrace.kernel.compiled.notes import (
    tailrace_await_phase,
    tailrace_load_phase,
    tailrace_store_phase,
)

from tailrace.kernel import layout

_PHASE = cython.declare(cython.Py_ssize_t, layout.NOTE_PHASE)
_FIRST = cython.declare(cython.Py_ssize_t, layout.NOTE_PLACES[0])
_APART = cython.declare(cython.Py_ssize_t, layout.NOTE_PLACES[1] - layout.NOTE_PLACES[0])
_WRITING = cython.declare(cython.uchar, layout.NOTE_WRITING)
_SIZE = cython.declare(cython.Py_ssize_t, 48)
_A = cython.declare(uint64_t, layout.NOTE_FACTORS[0])
_B = cython.declare(uint64_t, layout.NOTE_FACTORS[1])
_C = cython.declare(uint64_t, layout.NOTE_FACTORS[2])
_D = cython.declare(uint64_t, layout.NOTE_FACTORS[3])
_E = cython.declare(uint64_t, layout.NOTE_FACTORS[4])


@cython.final
@cython.cclass
class Notes:
    """One process's access to a page of shared memory, at least 256 bytes that can be written.

    Who changes notes holds a lock; who looks needs none. What is being changed does not pass the
    check.
    """

    def __init__(self, memory):
        if memory.readonly or memory.nbytes < _FIRST + _APART + _SIZE:
            raise ValueError("notes need memory that can be written, and enough of it")
        self.close()
        PyObject_GetBuffer(memory, cython.address(self.view), PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.page = cython.cast(cython.p_uchar, self.view.buf)
        self.mine[5] = 1  # no note that anybody put up

    def __dealloc__(self):
        if self.page != cython.NULL:
            PyBuffer_Release(cython.address(self.view))

    def enter(self):
        """Begin to write, if the note that counts is the one that we put up."""
        page: cython.p_uchar = self.page
        if page == cython.NULL:
            raise ValueError("the notes are closed")
        phase: cython.uchar = tailrace_load_phase(page + _PHASE)
        if phase > 1 or memcmp(page + _FIRST + phase * _APART, self.mine, _SIZE):
            return False
        tailrace_store_phase(page + _PHASE, phase | _WRITING)
        return True

    def adopt(self):
        """Begin to write where somebody else has left off: the numbers of the note that counts. If
        somebody writes, or died meanwhile, nothing happens, and it is `None`."""
        page: cython.p_uchar = self.page
        if page == cython.NULL:
            raise ValueError("the notes are closed")
        phase: cython.uchar = tailrace_load_phase(page + _PHASE)
        if phase > 1:
            return None
        note: cython.pointer[uint64_t] = cython.cast(
            cython.pointer[uint64_t], page + _FIRST + phase * _APART
        )
        tailrace_store_phase(page + _PHASE, phase | _WRITING)
        return note[0], note[1], note[2], note[3], note[4]

    def put(
        self,
        first: uint64_t,
        second: uint64_t,
        third: uint64_t,
        fourth: uint64_t,
        fifth: uint64_t,
        writing: cython.bint,
    ):
        """Put up a note; `writing` says that we go on."""
        page: cython.p_uchar = self.page
        if page == cython.NULL:
            raise ValueError("the notes are closed")
        other: cython.uchar = ~tailrace_load_phase(page + _PHASE) & 1
        self.mine[0] = first
        self.mine[1] = second
        self.mine[2] = third
        self.mine[3] = fourth
        self.mine[4] = fifth
        self.mine[5] = first * _A + second * _B + third * _C + fourth * _D + fifth * _E
        memcpy(page + _FIRST + other * _APART, self.mine, _SIZE)
        tailrace_store_phase(page + _PHASE, other | _WRITING if writing else other)

    def linger(self, microseconds: cython.int):
        """Wait for whoever writes, but not long: without giving the processor away. Returns whether
        nobody does."""
        page: cython.p_uchar = self.page
        if page == cython.NULL:
            raise ValueError("the notes are closed")
        return tailrace_await_phase(page + _PHASE, _WRITING, microseconds) != 0

    def close(self):
        """Let go of the memory; nothing else may be called after it."""
        if self.page != cython.NULL:
            self.page = cython.NULL
            PyBuffer_Release(cython.address(self.view))
