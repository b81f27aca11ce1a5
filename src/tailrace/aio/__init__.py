"""tailrace for asyncio: the same names, as coroutines and async iterators.

Nothing here blocks the event loop: what touches the disk, or may wait for another process, happens
in a thread.
"""

from __future__ import annotations

from tailrace.aio.log import Log
from tailrace.aio.reading import Reading

__all__ = ["Log", "Reading"]
