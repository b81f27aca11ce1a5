"""Files of a file system as pyarrow takes them, so that an archive goes through the same seam as a
log, and whatever tests a log can test an archive."""

from __future__ import annotations

import io
import os
from typing import Any, Final

from tailrace.kernel import crc32c
from tailrace.log.fs import File, FileSystem, read_exactly, write_all

__all__ = ["Sink", "Source"]

_AT_ONCE: Final = 4 << 20  # is sent to the disk while the next is made, so that a sync is short


class Sink(io.RawIOBase):
    """A new file, written from its beginning to its end; knows its size and its checksum. Not
    thread-safe."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self.size = 0
        self.crc32c = 0
        self._sent = 0
        self._file: File = fs.open(path, write=True, create=True)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        write_all(self._file, view, self.size)
        self.crc32c = crc32c(view, self.crc32c)
        self.size += len(view)
        unsent = self.size - self._sent
        if unsent >= _AT_ONCE:
            self._file.part_with(unsent, self._sent)
            self._sent = self.size
        return len(view)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


class Source(io.RawIOBase):
    """A file to read. Not thread-safe."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._file = fs.open(path)
        self._size = self._file.size()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._position, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        data = read_exactly(self._file, wanted, self._position)
        self._position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()
