"""The processes that Spark starts for Python, and what they are spared."""

from __future__ import annotations

import gc
import sys

__all__ = ["is_worker", "settle"]

_is_settled = False


def is_worker() -> bool:
    """Is this a process of Spark's, not one of somebody who uses it? It is kept for some time, and
    nobody sees what we leave in it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def settle() -> None:
    """Have the garbage collector pass over what is there by now, in a worker.

    Between two tasks Spark collects garbage: without this, each time by a walk over everything that
    was ever imported, which is a hundred thousand objects and takes as long as it takes to read
    some megabytes. Once in a process, so what is garbage at that moment is all that is never freed.
    """
    global _is_settled
    if not _is_settled and is_worker():
        gc.freeze()
        _is_settled = True
