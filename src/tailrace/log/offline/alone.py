"""A log for nobody but us, for as long as something is done to its files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tailrace.log.board import Board
from tailrace.log.fs import FileSystem
from tailrace.log.members import Members

__all__ = ["alone"]


@contextlib.contextmanager
def alone(fs: FileSystem, folder: str) -> Iterator[None]:
    """Nobody else writes to it meanwhile; `Locked` if somebody does. Who reads it looks at it anew
    afterwards."""
    members = Members(fs, folder, "exclusive")
    try:
        members.join()
        try:
            yield
        finally:
            Board(fs, folder).outdate()
            members.leave()
    finally:
        members.close()
