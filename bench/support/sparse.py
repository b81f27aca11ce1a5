"""A file system that leaves holes: for logs of many gigabytes that take none."""

from __future__ import annotations

import errno
import os
import sys
from functools import partial

from tailrace.log.fs import OsFile, OsFileSystem

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["SparseFileSystem"]

_EDGE = 4096  # what is written in any case, at both ends


class _SparseFile(OsFile):
    __slots__ = ()

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.pwrite = partial(_pwrite, fd)


def _pwrite(fd: int, data: Buffer, position: int) -> int:
    view = memoryview(data).cast("B")
    middle = bytes(view[_EDGE:-_EDGE]) if len(view) > 4 * _EDGE else b""
    if not middle or middle.count(0) != len(middle):
        return os.pwrite(fd, data, position)
    end = position + len(view)
    if _has_data(fd, position):
        raise ValueError("a hole can only be left at the end of a file")
    os.pwrite(fd, view[:_EDGE], position)
    os.pwrite(fd, view[-_EDGE:], end - _EDGE)
    return len(view)


def _has_data(fd: int, position: int) -> bool:
    """In the blocks behind a position; a file that was only made longer has none."""
    try:
        os.lseek(fd, -(-position // _EDGE) * _EDGE, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


class SparseFileSystem(OsFileSystem):
    """The real one, but for appended blocks of zeros."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        file = super().open(path, write=write, create=create)
        if not write:
            return file
        fd, file.fd = file.fd, -1
        return _SparseFile(fd)
