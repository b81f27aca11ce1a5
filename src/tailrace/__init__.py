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

__all__ = [
    "Batch",
    "Closed",
    "ConfigError",
    "Corrupt",
    "Follower",
    "Full",
    "Headers",
    "InvalidName",
    "LeaseLost",
    "LocalProtocolError",
    "Locked",
    "Log",
    "NotWritten",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "ProtocolError",
    "Receipt",
    "Record",
    "RemoteProtocolError",
    "TailraceError",
    "VacuumReport",
    "__version__",
    "aio",
]


def __getattr__(name: str) -> _typing.Any:
    if name == "aio":  # when it is needed: importing asyncio takes long
        return _importlib.import_module("tailrace.aio")
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
