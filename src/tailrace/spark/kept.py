"""Logs that stay open between two calls of Spark's, in the processes that it keeps.

Where no writer says so, how far a log goes is only known to who has read its last segment, which
takes as long as a small batch may take in all; and a query asks for each batch where the log ends,
what to read, and then reads it. A log that is open knows, and looks at what has come since.

One that is in use is not here, so whoever wants it too opens another. They are told apart by the
queue's incarnation, since a queue that was made anew has other files of the same names; and by the
folder itself, since in a store that was restored the queue is the same and the files are not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from tailrace.log.fs import OsFileSystem
from tailrace.log.log import Log
from tailrace.spark.workers import is_worker

__all__ = ["kept_log"]

_MOST = 8

_lock = threading.Lock()
_kept: dict[str, _Kept] = {}  # by folder, the oldest first


@contextlib.contextmanager
def kept_log(folder: str, incarnation: str) -> Iterator[Log]:
    """A log to read, which is kept if all goes well; where nobody minds, and if the queue can be
    told from another one."""
    if not (incarnation and is_worker()):
        with Log(folder, read_only=True) as log:
            yield log
        return
    with _lock:
        found = _kept.pop(folder, None)
    if found is not None and not found.is_of(folder, incarnation):
        found.close()
        found = None
    found = _Kept(folder, incarnation) if found is None else found
    try:
        yield found
    except BaseException:
        found.close()
        raise
    found.rest()
    with _lock:
        surplus = [_kept.pop(folder, None)]
        _kept[folder] = found
        if len(_kept) > _MOST:
            surplus.append(_kept.pop(next(iter(_kept))))
    for each in surplus:
        if each is not None:
            each.close()


class _Kept(Log):
    """A log, and which one it is."""

    def __init__(self, folder: str, incarnation: str) -> None:
        self._incarnation = incarnation
        # Opened before the log, so that the log cannot be of an older folder than this. Its inode
        # cannot be reused while it is open.
        self._place = OsFileSystem().open(folder)
        try:
            super().__init__(folder, read_only=True)
        except BaseException:
            self._place.close()
            raise

    def is_of(self, folder: str, incarnation: str) -> bool:
        """Is it still the one that is there?"""
        if incarnation != self._incarnation:
            return False
        try:
            return os.path.samestat(os.fstat(self._place.fd), os.stat(folder))
        except OSError:
            return False

    def rest(self) -> None:
        """Let go of the segments, not of what is known of them: nobody knows when this log is used
        again, and until then what retention deletes would keep its place on the disk."""
        self._observer.catalog.files.forget_all()

    def close(self) -> None:
        super().close()
        self._place.close()
