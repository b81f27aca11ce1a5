"""tailrace for asyncio: the same names, as coroutines and async iterators.

Nothing here blocks the event loop: what touches the disk, or may wait for another process, happens
in a thread.
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

from tailrace.aio.log import Log
from tailrace.aio.reading import Reading

if _typing.TYPE_CHECKING:
    from tailrace.aio.consumer import Consumer, StreamConsumer
    from tailrace.aio.message import Message
    from tailrace.aio.queue import Queue, Stream
    from tailrace.aio.store import Store
    from tailrace.aio.store import open_store as open  # noqa: A004  its name is the point

__all__ = [
    "Consumer",
    "Log",
    "Message",
    "Queue",
    "Reading",
    "Store",
    "Stream",
    "StreamConsumer",
    "open",
]

# Imported when they are needed: a program that has a bare log need not wait for the queues.
_LATER = {
    "Consumer": "consumer",
    "Message": "message",
    "Queue": "queue",
    "Store": "store",
    "Stream": "queue",
    "StreamConsumer": "consumer",
    "open": "store",
}


def __getattr__(name: str) -> _typing.Any:
    if name in _LATER:
        module = _importlib.import_module(f"tailrace.aio.{_LATER[name]}")
        found = getattr(module, "open_store" if name == "open" else name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tailrace.aio' has no attribute {name!r}")
