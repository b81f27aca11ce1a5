"""The board: one page of memory that every process with the log open for writing shares.

It is a file of fixed size, mapped; nobody truncates it. It spares each writer a look at the folder
before each append: here it says how far the log goes, who has been at it, and whether somebody
waits. Nothing on it has to survive: the first process to open a log writes it anew.

    0   4  magic
    4   1  format
    5   1  poisoned: a flush failed, and nothing may be appended before the log is opened anew
    8   8  incarnation: rises whenever the log was recovered
    16  8  layout: rises whenever the set of segments has changed
    24 16  boot id: what is written in another boot means nothing
    40  1  attention: whoever writes has to look, for somebody waits or a flush failed
    41  1  phase: bit 0 tells which note counts, bit 1 that somebody writes, or died meanwhile
    48  8  the process that keeps the turn, for people
    56  8  flusher: a number of whoever flushed last
    64 48  a note, and at 128 the other: segment, size, next offset, start offset, layout, check
    192 8  cursor: of a group's board, which has no notes: about how far the group has come
    200 8  fronts: rises whenever segments are put in front of the others

The turn to write (`turn.py`) guards it. Those who read without the turn may see a note that is
being changed; the check tells.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Final, NamedTuple

from tailrace.kernel import Notes
from tailrace.kernel.layout import NOTE_PHASE, NOTE_PLACES, NOTE_WRITING, note_check
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import FORMAT, side_path

__all__ = ["ATTENTION", "POISONED", "Board", "Note"]

NAME = "board"
SIZE = 4096
MAGIC = b"TRBD"
_SET_UP = MAGIC + bytes([FORMAT])
_IN_ORDER = _SET_UP + b"\0"  # not poisoned

ATTENTION: Final = 40
POISONED: Final = 5

_NUMBER = struct.Struct("=Q")
_INCARNATION, _LAYOUT, _BOOT_ID, _KEEPER, _FLUSHER, _CURSOR = 8, 16, 24, 48, 56, 192
_FRONTS = 200
_EDITION = 40  # bytes: what tells of the set of segments
_NOTE = struct.Struct("=QQQQQQ")


class Note(NamedTuple):
    """How far the log is written: the active segment and its size, the next offset; and where the
    log starts."""

    segment: int
    size: int
    next_offset: int
    start_offset: int


class Board:
    """One handle's view of it."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        """Map the board, as a writer."""
        memory = fs.map(side_path(folder, NAME), SIZE, write=True)
        assert memory is not None
        self.memory = memory
        self.notes = Notes(memory)  # to `enter`, and to `put` up a new one
        self._boot_id = fs.boot_id()
        self._edition = b""

    @classmethod
    def find(cls, fs: FileSystem, folder: str) -> Board | None:
        """Map it to look at, if there is one."""
        memory = fs.map(side_path(folder, NAME), SIZE, write=False)
        return None if memory is None else cls.over(memory, fs.boot_id())

    @classmethod
    def over(cls, memory: memoryview, boot_id: bytes) -> Board:
        """One to look at: what is mapped, or a copy of it."""
        board = cls.__new__(cls)
        board.memory, board._boot_id, board._edition = memory, boot_id, b""
        return board

    def set_up(self, note: Note) -> None:
        """Begin a new incarnation, whatever was there.

        Those of the last one may be here still, and whoever does this may die at any store. So the
        first says that somebody writes, the second that they do not belong here any more, and the
        last that the log is in order.
        """
        memory = self.memory
        layout = self.layout + 1
        memory[NOTE_PHASE] = memory[NOTE_PHASE] & 1 | NOTE_WRITING
        self._store(_INCARNATION, self.incarnation + 1)
        self._store(_LAYOUT, layout)
        self._store(_KEEPER, 0)
        self._store(_FLUSHER, 0)
        memory[_BOOT_ID : _BOOT_ID + 16] = self._boot_id
        self.notes.put(*note, layout, True)
        memory[0:5] = _SET_UP
        memory[POISONED] = 0

    def outdate(self) -> None:
        """The files have changed, though nobody writes to the log."""
        self._store(_INCARNATION, self.incarnation + 1)

    def take_down(self) -> None:
        """Nobody writes any more; who reads has to look at the folder itself."""
        self.memory[0:4] = bytes(4)

    @property
    def is_set_up(self) -> bool:
        """Can those who are here go by it?"""
        return self.memory[0:5] == _SET_UP

    def stamp(self) -> bytes:
        """The same as the edition, whether or not anybody keeps it up to date: those who come, take
        in something or go change it."""
        return self.memory[:_EDITION].tobytes()

    def edition(self) -> bytes | None:
        """As long as this is the same, so are the segments. `None` if nobody keeps it up to date in
        this boot, or the log is poisoned. Needs no turn: if it is just being changed, it is another
        one."""
        edition = self.stamp()
        if edition != self._edition:  # the last that was good
            if edition[:6] != _IN_ORDER or edition[_BOOT_ID:] != self._boot_id:
                return None
            self._edition = edition
        return edition

    @property
    def incarnation(self) -> int:
        return self._load(_INCARNATION)

    @property
    def boot_id(self) -> bytes:
        """Of the boot in which it was set up."""
        return self.memory[_BOOT_ID : _BOOT_ID + 16].tobytes()

    @property
    def layout(self) -> int:
        return self._load(_LAYOUT)

    def bump_layout(self) -> None:
        self._store(_LAYOUT, self.layout + 1)

    @property
    def fronts(self) -> int:
        """Files of segments that were deleted may be there again, and be others, if it differs."""
        return self._load(_FRONTS)

    def bump_fronts(self) -> None:
        self._store(_FRONTS, self.fronts + 1)

    @property
    def keeper(self) -> int:
        return self._load(_KEEPER)

    @keeper.setter
    def keeper(self, pid: int) -> None:
        self._store(_KEEPER, pid)

    @property
    def flusher(self) -> int:
        return self._load(_FLUSHER)

    @flusher.setter
    def flusher(self, number: int) -> None:
        self._store(_FLUSHER, number)

    @property
    def cursor(self) -> int:
        """A hint, which may be of any time: needs no turn."""
        return self._load(_CURSOR)

    @cursor.setter
    def cursor(self, offset: int) -> None:
        self._store(_CURSOR, offset)

    @property
    def poisoned(self) -> bool:
        return bool(self.memory[POISONED])

    def poison(self) -> None:
        self.memory[POISONED] = 1
        self.memory[ATTENTION] = 1

    def want(self) -> None:
        self.memory[ATTENTION] = 1

    def unwant(self) -> None:
        if not self.memory[POISONED]:
            self.memory[ATTENTION] = 0
        if self.memory[POISONED]:
            self.memory[ATTENTION] = 1

    # --- the notes --------------------------------------------------------------------------

    @property
    def is_being_written(self) -> bool:
        """Does somebody write, or did somebody die while it did?"""
        return bool(self.memory[NOTE_PHASE] & NOTE_WRITING)

    def begin(self) -> None:
        """Begin to write, after catching up with the others."""
        self.memory[NOTE_PHASE] |= NOTE_WRITING

    def end(self) -> None:
        """Nobody writes, and no note tells of what was written: where there are none."""
        self.memory[NOTE_PHASE] &= ~NOTE_WRITING & 0xFF

    def note(self) -> Note:
        """The note that counts; with the turn only."""
        return Note(*_NOTE.unpack_from(self.memory, NOTE_PLACES[self.memory[NOTE_PHASE] & 1])[:4])

    def peek(self) -> Note | None:
        """The note that counts, without the turn; `None` if it changes all the time."""
        for _attempt in range(4):
            *numbers, check = _NOTE.unpack_from(
                self.memory, NOTE_PLACES[self.memory[NOTE_PHASE] & 1]
            )
            if check == note_check(numbers):
                return Note(*numbers[:4])
        return None

    def close(self) -> None:
        if hasattr(self, "notes"):
            self.notes.close()
        with contextlib.suppress(BufferError):  # a thread of the parent used it, at a fork
            self.memory.release()

    def _load(self, position: int) -> int:
        return int(_NUMBER.unpack_from(self.memory, position)[0])

    def _store(self, position: int, number: int) -> None:
        _NUMBER.pack_into(self.memory, position, number)
