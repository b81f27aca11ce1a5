"""What a process that Spark has started for Python is spared."""

from __future__ import annotations

import gc
import sys

__all__ = ["settle"]

_is_settled = False


def settle() -> None:
    """Have the garbage collector pass over what is there by now, in a worker of Spark's.

    It is kept for the next task, and between the two Spark collects garbage: without this, each
    time by a walk over everything that was ever imported, which is a hundred thousand objects and
    takes as long as it takes to read some megabytes. Once in a process, so what is garbage at that
    moment is all that is never freed.
    """
    global _is_settled
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not _is_settled and main is not None and main.name == "pyspark.daemon":
        gc.freeze()
        _is_settled = True
