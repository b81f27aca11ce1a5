"""tailrace: a durable log and queue for Python.

Everything public is a name of this package.
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

from tailrace._version import __version__
from tailrace.errors import (
    Closed,
    ConfigError,
    Corrupt,
    Full,
    InvalidName,
    LeaseLost,
    LocalProtocolError,
    Locked,
    NotWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
    ProtocolError,
    RemoteProtocolError,
    TailraceError,
)
from tailrace.kernel import Headers, Record
from tailrace.log.commit import Receipt
from tailrace.log.follow import Follower
from tailrace.log.log import Batch, Log
from tailrace.log.retention import VacuumReport

if _typing.TYPE_CHECKING:
    from tailrace import aio
    from tailrace.queue.classic import Pending
    from tailrace.queue.consumer import Consumer, StreamConsumer
    from tailrace.queue.group import Member
    from tailrace.queue.message import Message
    from tailrace.queue.queue import GroupInfo, Queue, Stream
    from tailrace.queue.store import Outgoing, Published, Store
    from tailrace.queue.store import open_store as open  # noqa: A004  its name is the point

__all__ = [
    "Batch",
    "Closed",
    "ConfigError",
    "Consumer",
    "Corrupt",
    "Follower",
    "Full",
    "GroupInfo",
    "Headers",
    "InvalidName",
    "LeaseLost",
    "LocalProtocolError",
    "Locked",
    "Log",
    "Member",
    "Message",
    "NotWritten",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Outgoing",
    "Pending",
    "ProtocolError",
    "Published",
    "Queue",
    "Receipt",
    "Record",
    "RemoteProtocolError",
    "Store",
    "Stream",
    "StreamConsumer",
    "TailraceError",
    "VacuumReport",
    "__version__",
    "aio",
    "open",
]


# Imported when they are needed: a program that has a bare log need not wait for the queues, nor
# one without tasks for asyncio.
_LATER = {
    "Consumer": "queue.consumer",
    "GroupInfo": "queue.queue",
    "Member": "queue.group",
    "Message": "queue.message",
    "Outgoing": "queue.store",
    "Pending": "queue.classic",
    "Published": "queue.store",
    "Queue": "queue.queue",
    "Store": "queue.store",
    "Stream": "queue.queue",
    "StreamConsumer": "queue.consumer",
    "open": "queue.store",
}


def __getattr__(name: str) -> _typing.Any:
    if name == "aio":
        return _importlib.import_module("tailrace.aio")
    if name in _LATER:
        module = _importlib.import_module(f"tailrace.{_LATER[name]}")
        found = getattr(module, "open_store" if name == "open" else name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
