"""tailrace: a durable log and queue for Python.

Everything public is a name of this package.
"""

from __future__ import annotations

import importlib as _importlib

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

TYPE_CHECKING = False  # that of typing would take longer to import than all that is here
if TYPE_CHECKING:
    from typing import Any as _Any

    from tailrace import aio, spark
    from tailrace.config.model import Config
    from tailrace.config.opening import open_store as open  # noqa: A004  its name is the point
    from tailrace.kernel import Headers, Record
    from tailrace.log.commit import Receipt
    from tailrace.log.follow import Follower
    from tailrace.log.log import Batch, Log
    from tailrace.log.retention import VacuumReport
    from tailrace.queue.backup import BackupReport
    from tailrace.queue.backup_restore import RestoreReport, restore_backup, verify_backup
    from tailrace.queue.classic import Pending
    from tailrace.queue.consumer import Consumer, StreamConsumer
    from tailrace.queue.delays import Delayed, Scheduled
    from tailrace.queue.group import Member
    from tailrace.queue.message import Message
    from tailrace.queue.queue import GroupInfo, Queue, Stream
    from tailrace.queue.stats import GroupStats, QueueStats
    from tailrace.queue.store import Outgoing, Published, Store
del TYPE_CHECKING

__all__ = [
    "BackupReport",
    "Batch",
    "Closed",
    "Config",
    "ConfigError",
    "Consumer",
    "Corrupt",
    "Delayed",
    "Follower",
    "Full",
    "GroupInfo",
    "GroupStats",
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
    "QueueStats",
    "Receipt",
    "Record",
    "RemoteProtocolError",
    "RestoreReport",
    "Scheduled",
    "Store",
    "Stream",
    "StreamConsumer",
    "TailraceError",
    "VacuumReport",
    "__version__",
    "aio",
    "open",
    "restore_backup",
    "spark",
    "verify_backup",
]


# Imported when they are needed: `tailrace --help` need not wait for the log, a program that has a
# bare log not for the queues, nor one without tasks for asyncio, or without tables for Spark.
_LATER = {
    "BackupReport": "queue.backup",
    "Batch": "log.log",
    "Config": "config.model",
    "Consumer": "queue.consumer",
    "Delayed": "queue.delays",
    "Follower": "log.follow",
    "GroupInfo": "queue.queue",
    "GroupStats": "queue.stats",
    "Headers": "kernel",
    "Log": "log.log",
    "Member": "queue.group",
    "Message": "queue.message",
    "Outgoing": "queue.store",
    "Pending": "queue.classic",
    "Published": "queue.store",
    "Queue": "queue.queue",
    "QueueStats": "queue.stats",
    "Receipt": "log.commit",
    "Record": "kernel",
    "RestoreReport": "queue.backup_restore",
    "Scheduled": "queue.delays",
    "Store": "queue.store",
    "Stream": "queue.queue",
    "StreamConsumer": "queue.consumer",
    "VacuumReport": "log.retention",
    "open": "config.opening",
    "restore_backup": "queue.backup_restore",
    "verify_backup": "queue.backup_restore",
}


def __getattr__(name: str) -> _Any:
    if name in ("aio", "spark"):
        return _importlib.import_module(f"tailrace.{name}")
    if name in _LATER:
        module = _importlib.import_module(f"tailrace.{_LATER[name]}")
        found = getattr(module, "open_store" if name == "open" else name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
