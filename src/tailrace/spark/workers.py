"""The processes that Spark starts for Python, and what they are spared."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import sys
from typing import Final

__all__ = ["confirm_quickly", "freeze_imports", "is_worker"]

_TIMES: Final = 2
_frozen = 0


def is_worker() -> bool:
    """Is this a process of Spark's, not one of somebody who uses it? It is kept for some time, and
    nobody sees what we leave in it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def freeze_imports() -> None:
    """Have the garbage collector pass over what is there by now, in a worker.

    Between two tasks Spark collects garbage: without this, each time by a walk over everything that
    was ever imported, which is a hundred thousand objects and takes as long as it takes to read
    some megabytes. Twice in a process, because the first task imports half of it; so what is
    garbage at these moments is all that is never freed.
    """
    global _frozen
    if _frozen < _TIMES and is_worker():
        gc.freeze()
        _frozen += 1


def confirm_quickly() -> None:
    """Have the system confirm at once what Spark sends next; for the end of a task, in a worker.

    Spark begins a task by two messages. Its system holds the second one back until the first is
    confirmed; and ours, once it has seen answers follow soon on questions, confirms what comes only
    after 40 ms, with an answer if there is one by then. It goes on so until it is told otherwise,
    and after an answer that follows soon; so tasks of less than that gain nothing. Sockets that are
    files, as `local_session` has them, are not concerned.
    """
    quick_ack = getattr(socket, "TCP_QUICKACK", None)  # Linux
    if quick_ack is None or not is_worker():
        return
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket of TCP
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, quick_ack, 1)
