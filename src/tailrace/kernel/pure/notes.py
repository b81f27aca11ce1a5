"""Notes in memory that processes share: what one says, the next one compares and changes.

A page has two notes of five numbers each with a check, and a phase: bit 0 tells which of the notes
counts, bit 1 that somebody writes. A new note is put in the place of the one that does not count,
and then the phase changes, in one store: whoever dies on the way leaves the old one.
"""

from __future__ import annotations

import struct
from time import perf_counter_ns

from tailrace.kernel.layout import NOTE_PHASE, NOTE_PLACES, NOTE_WRITING, note_check

__all__ = ["Notes"]

_NOTE = struct.Struct("=QQQQQQ")
_pack, _unpack = _NOTE.pack_into, _NOTE.unpack_from


class Notes:
    """One process's access to a page of shared memory, at least 256 bytes that can be written.

    Who changes notes holds a lock; who looks needs none. What is being changed does not pass the
    check.
    """

    def __init__(self, memory: memoryview) -> None:
        if memory.readonly or memory.nbytes < NOTE_PLACES[1] + _NOTE.size:
            raise ValueError("notes need memory that can be written, and enough of it")
        self._memory = memory.cast("B")
        self._mine: tuple[int, ...] = ()

    def enter(self) -> bool:
        """Begin to write, if the note that counts is the one that we put up."""
        memory = self._memory
        phase = memory[NOTE_PHASE]
        if phase > 1 or _unpack(memory, NOTE_PLACES[phase]) != self._mine:
            return False
        memory[NOTE_PHASE] = phase | NOTE_WRITING
        return True

    def adopt(self) -> tuple[int, int, int, int, int] | None:
        """Begin to write where somebody else has left off: the numbers of the note that counts. If
        somebody writes, or died meanwhile, nothing happens, and it is `None`."""
        memory = self._memory
        phase = memory[NOTE_PHASE]
        if phase > 1:
            return None
        first, second, third, fourth, fifth, _check = _unpack(memory, NOTE_PLACES[phase])
        memory[NOTE_PHASE] = phase | NOTE_WRITING
        return first, second, third, fourth, fifth

    def put(
        self, first: int, second: int, third: int, fourth: int, fifth: int, writing: bool
    ) -> None:
        """Put up a note; `writing` says that we go on."""
        memory = self._memory
        other = ~memory[NOTE_PHASE] & 1
        numbers = (first, second, third, fourth, fifth)
        note = (*numbers, note_check(numbers))
        _pack(memory, NOTE_PLACES[other], *note)
        self._mine = note
        memory[NOTE_PHASE] = other | NOTE_WRITING if writing else other

    def linger(self, microseconds: int) -> bool:
        """Wait for whoever writes, but not long: without giving the processor away. Returns whether
        nobody does."""
        memory, end = self._memory, perf_counter_ns() + 1_000 * microseconds
        while memory[NOTE_PHASE] & NOTE_WRITING:
            if perf_counter_ns() >= end:
                return False
        return True

    def close(self) -> None:
        """Let go of the memory; nothing else may be called after it."""
        self._memory.release()
