"""The kernel as extension modules, built from the `.py` files here by Cython in pure-Python mode.

Without a build the sources cannot run (they use C pointers), and `tailrace.kernel.pure` serves.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

MODULES = (
    "crc",
    "s2",
    "records",
    "codec",
    "tally",
    "outline",
    "filling",
    "columns",
    "flock",
    "notes",
    "lines",
)


def is_built() -> bool:
    """Whether every module here was built for this interpreter."""
    for name in MODULES:
        spec = find_spec(f"{__name__}.{name}")
        if spec is None or spec.origin is None:
            return False
        if not spec.origin.endswith(tuple(EXTENSION_SUFFIXES)):
            return False
    return True
