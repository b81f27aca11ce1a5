"""Logs that stay open between two calls of Spark's, in the processes that it keeps.

Where no writer says so, how far a log goes is only known to who has read its last segment, which
takes as long as a small batch may take in all; and a query asks for each batch where the log ends,
what to read, and then reads it. A log that is open knows, and looks at what has come since.

One that is in use is not here, so whoever wants it too opens another. They are told apart by the
queue's incarnation: a queue that was made anew has other files of the same names.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tailrace.log.log import Log
from tailrace.spark.workers import is_worker

__all__ = ["kept_log"]

_MOST = 8

_lock = threading.Lock()
_kept: dict[str, tuple[str, Log]] = {}  # by folder, the oldest first


@contextlib.contextmanager
def kept_log(folder: str, incarnation: str) -> Iterator[Log]:
    """A log to read, which is kept if all goes well; where nobody minds, and if the queue can be
    told from another one."""
    if not (incarnation and is_worker()):
        with Log(folder, read_only=True) as log:
            yield log
        return
    with _lock:
        known, found = _kept.pop(folder, ("", None))
    if found is not None and known != incarnation:
        found.close()
        found = None
    log = Log(folder, read_only=True) if found is None else found
    try:
        yield log
    except BaseException:
        log.close()
        raise
    with _lock:
        surplus = [_kept.pop(folder, None)]
        _kept[folder] = incarnation, log
        if len(_kept) > _MOST:
            surplus.append(_kept.pop(next(iter(_kept))))
    for entry in surplus:
        if entry is not None:
            entry[1].close()
