"""The processes that Spark starts for Python, and what they are spared."""

from __future__ import annotations

import gc
import sys
from typing import Final

__all__ = ["is_worker", "settle"]

_TIMES: Final = 2
_settled = 0


def is_worker() -> bool:
    """Is this a process of Spark's, not one of somebody who uses it? It is kept for some time, and
    nobody sees what we leave in it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def settle() -> None:
    """Have the garbage collector pass over what is there by now, in a worker.

    Between two tasks Spark collects garbage: without this, each time by a walk over everything that
    was ever imported, which is a hundred thousand objects and takes as long as it takes to read
    some megabytes. Twice in a process, because the first task imports half of it; so what is
    garbage at these moments is all that is never freed.
    """
    global _settled
    if _settled < _TIMES and is_worker():
        gc.freeze()
        _settled += 1
