"""Are the index files of a segment right? Compared entry by entry with its batches.

The entries of a right index are in the order of the batches, so one pass over both is enough. How
dense an index has to be is nobody's business but the writer's: where a seal says what was written,
less than that is short; without one, what looks thin is only mentioned.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from tailrace.kernel import BatchInfo, crc32c
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.offline.words import counted

__all__ = ["IndexCheck", "IndexFault", "OffsetIndexCheck", "TimeIndexCheck"]

_VERSION = 1


class IndexFault(NamedTuple):
    """`harmless`: whoever uses the file gets no wrong answer from it."""

    message: str
    position: int | None = None
    harmless: bool = False


class IndexCheck(ABC):
    """One index file. Feed it the segment's batches in order, then `finish`."""

    EXTENSION: ClassVar[str]
    MAGIC: ClassVar[int]
    HEADER: ClassVar[struct.Struct]
    ENTRY: ClassVar[struct.Struct]

    def __init__(self, data: bytes | None, base: int) -> None:
        self.base = base
        self._data = data or b""
        self._faults: list[IndexFault] = []
        self._at = 0  # the entry that the next batches are compared with
        self._wrong: list[tuple[int, str]] = []
        self._thin = False
        self._lacks_first = False
        self._usable = False
        self._batches = 0
        self._sealed = False
        if data is None:
            self._fault("is missing")
        elif self._check_header():
            self._usable = True
            self._load_entries()

    @classmethod
    def load(cls, fs: FileSystem, path: str, base: int) -> IndexCheck:
        try:
            size = fs.stat(path).size
        except FileNotFoundError:
            return cls(None, base)
        return cls(read_file(fs, path, size), base)

    def expect(self, size: int, crc: int) -> None:
        """What the seal says that the file was when the segment was closed."""
        self._sealed = True
        if not self._usable or (len(self._data) == size and crc32c(self._data) == crc):
            return
        if len(self._data) < size:
            missing = (size - len(self._data)) // self.ENTRY.size
            verb = "is" if missing == 1 else "are"
            message = f"is short: {counted(missing, 'entry', 'entries')} {verb} missing"
            self._fault(message, len(self._data))
        else:
            self._fault("is not the file that was sealed", harmless=True)

    def observe(self, info: BatchInfo) -> None:
        self._batches += 1
        if self._usable:
            self._compare(info)

    def finish(self, *, damaged: bool = False) -> list[IndexFault]:
        """Everything that is wrong with the file. Of a `damaged` segment the entries cannot be
        judged: they may be right about batches that are not there any more."""
        if not self._usable or damaged:
            return self._faults
        if self._lacks_first:
            self._fault("has no entry for the first batch")
        self._wrong += [(i, self._beyond(i)) for i in range(self._at, self._count())]
        if self._wrong:
            i, message = self._wrong[0]
            self._fault(f"entry {i} {message}", self.HEADER.size + i * self.ENTRY.size)
        elif self._thin and not self._sealed and not self._faults:
            self._fault("has fewer entries than usual", harmless=True)
        return self._faults

    def _fault(self, message: str, position: int | None = None, *, harmless: bool = False) -> None:
        self._faults.append(IndexFault(message, position, harmless))

    def _check_header(self) -> bool:
        data = self._data
        if len(data) < self.HEADER.size:
            message = f"is cut short: it has {counted(len(data), 'byte')}, its header"
            self._fault(f"{message} {self.HEADER.size}")
            return False
        magic, version, base, count, *_ = self.HEADER.unpack_from(data)
        if magic != self.MAGIC:
            self._fault("does not begin with its magic number", 0)
        elif version != _VERSION:
            self._fault(f"is of version {version}; this tailrace knows version {_VERSION}", 4)
        elif base != self.base:
            self._fault(f"belongs to the segment {base}", 5)
        elif (len(data) - self.HEADER.size) % self.ENTRY.size:
            self._fault("ends inside an entry", len(data))
        else:
            entries = (len(data) - self.HEADER.size) // self.ENTRY.size
            if count != entries:
                message = (
                    f"says that it has {counted(count, 'entry', 'entries')}, and has {entries}"
                )
                self._fault(message, 13, harmless=True)
            return True
        return False

    @abstractmethod
    def _load_entries(self) -> None:
        """Unpack the entries, and judge the rest of the header."""

    @abstractmethod
    def _count(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def _compare(self, info: BatchInfo) -> None:
        """Move on over the entries up to this batch."""

    @abstractmethod
    def _beyond(self, i: int) -> str:
        """What is wrong with an entry behind the last batch."""


class OffsetIndexCheck(IndexCheck):
    """`.idx`: every entry names the position and the offset of a batch; the first has one."""

    EXTENSION = "idx"
    MAGIC = OffsetIndex.MAGIC
    HEADER = OffsetIndex.HEADER
    ENTRY = OffsetIndex.ENTRY

    def _load_entries(self) -> None:
        index = OffsetIndex.from_bytes(self._data, self.base)
        assert index is not None
        self._entries = index.entries()
        self._interval = index.interval
        self._unindexed_bytes = 0
        if self._data[self.HEADER.size - 11 : self.HEADER.size].strip(b"\0"):
            self._fault("has something in the unused bytes of its header", 21, harmless=True)

    def _count(self) -> int:
        return len(self._entries)

    def _compare(self, info: BatchInfo) -> None:
        entries = self._entries
        while self._at < len(entries) and entries[self._at][1] < info.position:
            self._wrong.append((self._at, f"points to byte {entries[self._at][1]}, inside a batch"))
            self._at += 1
        if self._at < len(entries) and entries[self._at][1] == info.position:
            offset = entries[self._at][0]
            if offset != info.base_offset:
                message = f"says that offset {offset} is at byte {info.position}"
                self._wrong.append((self._at, f"{message}; it is {info.base_offset}"))
            self._at += 1
            self._unindexed_bytes = 0
        else:
            if self._batches == 1:
                self._lacks_first = True
            if self._unindexed_bytes >= self._interval:
                self._thin = True
            self._unindexed_bytes += info.size

    def _beyond(self, i: int) -> str:
        return f"points to byte {self._entries[i][1]}, where no batch begins"


class TimeIndexCheck(IndexCheck):
    """`.tix`: an entry has a batch's greatest timestamp, which no batch before it reached."""

    EXTENSION = "tix"
    MAGIC = TimeIndex.MAGIC
    HEADER = TimeIndex.HEADER
    ENTRY = TimeIndex.ENTRY

    def _load_entries(self) -> None:
        index = TimeIndex.from_bytes(self._data, self.base, 1_000)
        assert index is not None
        self._entries = index.entries()
        self._greatest: int | None = None
        self._last_entry = 0
        *_, low, high = self.HEADER.unpack_from(self._data)
        bounds = (self._entries[0][0], self._entries[-1][0]) if self._entries else (0, 0)
        if (low, high) != bounds:
            message = f"says that its times are {low} to {high}; they are {bounds[0]} to"
            self._fault(f"{message} {bounds[1]}", 17, harmless=True)
        if self._data[self.HEADER.size - 3 : self.HEADER.size].strip(b"\0"):
            self._fault("has something in the unused bytes of its header", 33, harmless=True)

    def _count(self) -> int:
        return len(self._entries)

    def _compare(self, info: BatchInfo) -> None:
        entries = self._entries
        while self._at < len(entries) and entries[self._at][1] < info.base_offset:
            message = f"names offset {entries[self._at][1]}, where no batch begins"
            self._wrong.append((self._at, message))
            self._at += 1
        if self._at < len(entries) and entries[self._at][1] == info.base_offset:
            timestamp = entries[self._at][0]
            if timestamp != info.max_timestamp:
                message = f"says that offset {info.base_offset} has the time {timestamp}"
                self._wrong.append((self._at, f"{message}; it is {info.max_timestamp}"))
            elif self._greatest is not None and timestamp <= self._greatest:
                message = f"has the time {timestamp}, which an earlier batch had reached"
                self._wrong.append((self._at, message))
            self._last_entry = timestamp
            self._at += 1
        elif info.max_timestamp >= self._last_entry + 1_000:
            self._thin = True
        if self._greatest is None or info.max_timestamp > self._greatest:
            self._greatest = info.max_timestamp

    def _beyond(self, i: int) -> str:
        return f"names offset {self._entries[i][1]}, where no batch begins"
