"""When somebody looks for delayed messages next, and how to wake them before.

In `.tailrace/delayed` of a store: `board` is a page of memory that all processes share,

    0   8  when the one who delivers looks next, in milliseconds since 1970, little-endian; 0 while
           it looks, and the largest number if nothing is scheduled
    8   8  whose that is: a number that who begins to deliver draws; whoever had written another one
           has to stop
    16  8  when it last did something, in milliseconds of the boot clock
    256 256  who publishes to a queue that may not be followed sets one of these to 1, which the
           queue shares with few others: at its next look whoever delivers sets it to 0, and then
           looks at those

and `bell` is written to when there is something sooner. Whoever delivers says when it will look
before it looks a last time for what has come, and whoever publishes writes before looking at the
board: so one of them notices. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import threading
import zlib
from typing import Final

from tailrace.log.fs import File, FileSystem

__all__ = ["NEVER", "Alarm", "call_of"]

NEVER: Final = 2**63 - 1

_NUMBER: Final = struct.Struct("<Q")
_NUMBER_AT: Final = 8
_STIRRED_AT: Final = 16
_SIZE: Final = 4096
_CALLS: Final = 256  # where they begin, and how many there are
_NO_CALLS: Final = bytes(_CALLS)
_ALL_CALLS: Final = b"\1" * _CALLS


class Alarm:
    """Nothing is made before `open`."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self.folder = folder
        self.bell = os.path.join(folder, "bell")
        self._fs = fs
        self._lock = threading.Lock()
        self._page: memoryview | None = None
        self._file: File | None = None

    def open(self) -> None:
        with self._lock:
            if self._file is None:
                self._fs.make_dirs(self.folder)
                self._page = self._fs.map(os.path.join(self.folder, "board"), _SIZE, write=True)
                self._file = self._fs.open(self.bell, write=True, create=True)

    @property
    def next_ms(self) -> int:
        """When somebody looks."""
        page = self._page
        return NEVER if page is None else _NUMBER.unpack_from(page)[0]

    @next_ms.setter
    def next_ms(self, next_ms: int) -> None:
        if self._page is not None:
            _NUMBER.pack_into(self._page, 0, next_ms)

    def take_over(self) -> int:
        """Begin to deliver: the number by which one sees whether another has begun since then."""
        number = secrets.randbits(64)
        if self._page is not None:
            _NUMBER.pack_into(self._page, _NUMBER_AT, number)
        return number

    def is_with(self, number: int) -> bool:
        page = self._page
        return page is None or bool(_NUMBER.unpack_from(page, _NUMBER_AT)[0] == number)

    @property
    def stirred_ms(self) -> int:
        """When whoever delivers last did something, by the boot clock."""
        page = self._page
        return NEVER if page is None else _NUMBER.unpack_from(page, _STIRRED_AT)[0]

    @stirred_ms.setter
    def stirred_ms(self, stirred_ms: int) -> None:
        if self._page is not None:
            _NUMBER.pack_into(self._page, _STIRRED_AT, stirred_ms)

    def call(self, incarnation: str) -> None:
        """Have whoever delivers ask this queue for news with its next look."""
        page = self._page
        if page is not None:
            page[_CALLS + call_of(incarnation)] = 1

    def call_all(self) -> None:
        """The same for all queues."""
        page = self._page
        if page is not None:
            page[_CALLS : 2 * _CALLS] = _ALL_CALLS

    @property
    def is_called(self) -> bool:
        page = self._page
        return page is not None and page[_CALLS : 2 * _CALLS] != _NO_CALLS

    def take_calls(self) -> frozenset[int]:
        """By whom; who takes them looks after that. Only for the one who delivers."""
        page = self._page
        if page is None:
            return frozenset()
        calls = [call for call, is_set in enumerate(page[_CALLS : 2 * _CALLS]) if is_set]
        for call in calls:
            page[_CALLS + call] = 0
        return frozenset(calls)

    def ring(self) -> None:
        """Have whoever delivers look. If it fails, they look by themselves within a second."""
        file = self._file
        if file is not None:
            with contextlib.suppress(OSError):
                file.pwrite(b".", 0)

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            self._page = None
        if file is not None:
            file.close()

    def disown(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()


def call_of(incarnation: str) -> int:
    """The number by which a queue calls."""
    return zlib.crc32(incarnation.encode()) % _CALLS
