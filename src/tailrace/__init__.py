"""tailrace: a durable log and queue for Python.

Everything public is a name of this package.
"""

from __future__ import annotations

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
from tailrace.log.log import Batch, Log
from tailrace.log.retention import VacuumReport

__all__ = [
    "Batch",
    "Closed",
    "ConfigError",
    "Corrupt",
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
]
