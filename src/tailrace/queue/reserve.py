"""Space that is kept for when there is none.

On a full disk consumers have to go on, or it stays full: acknowledgements are a few bytes each, and
so is what it takes to delete something. So each store keeps a file that takes space. It is made
when the store is opened, given up when somebody needs the space, and made again when there is
enough.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Final, TypeVar

from tailrace.errors import Full, TailraceError
from tailrace.log.fs import NO_SPACE, FileSystem, write_all

__all__ = ["NAME", "Reserve"]

logger = logging.getLogger("tailrace")

NAME: Final = "reserve"
SIZE: Final = 1 << 20
_LEFT: Final = SIZE // 4  # has to stay free, or it would be taken from those it was given up for

T = TypeVar("T")


class Reserve:
    """The reserve of the store whose side files are in `folder`. Any process may use it up."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = os.path.join(folder, NAME)

    @property
    def is_there(self) -> bool:
        """Is it whole? Whoever may not look does not know."""
        try:
            return self._fs.stat(self._path).size >= SIZE
        except OSError:
            return False

    def have(self) -> None:
        """Have it if that can be; whoever opens the store can do without."""
        try:
            self.fill()
        except OSError as error:
            extra = {"path": self._path}
            logger.warning("%s cannot be made: %s", self._path, error, extra=extra)

    def fill(self) -> None:
        """Have it, if there is room for it."""
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = self._fs.stat(self._path).size
        if size >= SIZE or self._fs.space(self._folder).free < SIZE - size + _LEFT:
            return
        file = self._fs.open(self._path, write=True, create=True)
        try:
            write_all(file, os.urandom(SIZE), 0)  # no file system can make less of it
            file.sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(0)
            if not is_full(error):
                raise
        finally:
            file.close()

    def spend(self) -> bool:
        """Give it up; false if there was none."""
        try:
            if not self._fs.stat(self._path).size:
                return False
            self._fs.unlink(self._path)
        except OSError:
            return False
        text = "the disk is full: %s was given up so that consumers can go on"
        logger.warning(text, self._path, extra={"path": self._path})
        return True

    def helps(self, error: Exception) -> bool:
        """Was a full disk the reason, and is there more space now?"""
        return is_full(error) and self.spend()

    def in_need(self, do: Callable[[], T]) -> T:
        """Do something that has to succeed, with the reserve if there is no space; `Full` if that
        is not enough. It may be done twice."""
        try:
            return do()
        except (TailraceError, OSError) as error:
            if not self.helps(error):
                self._explain(error)
                raise
        try:
            return do()
        except (TailraceError, OSError) as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Of a full disk there is more to say than the system does."""
        if isinstance(error, OSError | Full) and is_full(error):
            raise Full(
                f"the disk of {self._folder} is full, and there is no reserve left: free some "
                f"space on it ({error})"
            ) from error


def is_full(error: BaseException) -> bool:
    """Is a full disk what an error comes from?"""
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    return isinstance(error.__cause__, OSError) and is_full(error.__cause__)
