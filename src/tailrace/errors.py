"""Every error that tailrace raises on purpose.

One short tree. A message says what happened, where, and what to do; attributes carry the same
facts for programs. Misuse of an argument (a wrong type, a negative count) is Python's own
`TypeError` or `ValueError`; what is here is about the state of a log, a queue or a peer.
"""

from __future__ import annotations

__all__ = [
    "Closed",
    "ConfigError",
    "Corrupt",
    "Full",
    "InvalidName",
    "LeaseLost",
    "LocalProtocolError",
    "Locked",
    "NotWritten",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "ProtocolError",
    "RemoteProtocolError",
    "TailraceError",
]


class TailraceError(Exception):
    """The root: `except TailraceError` catches everything below."""


class Closed(TailraceError):
    """The log, store or consumer was closed (by you, or by an error that it cannot survive)."""


class Locked(TailraceError):
    """Another writer holds the lock, or another thread uses the consumer of a stream. `holder`
    describes it where that is known: its pid, its host and, in UTC, since when; or the thread's
    name."""

    def __init__(self, message: str, holder: str | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class Corrupt(TailraceError):
    """Bytes on disk are damaged.

    `first_offset <= lost < next_offset` is the range that cannot be read; reading can go on at
    `next_offset`. Both are `None` when the damage is not inside a log's records.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        first_offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.position = position
        self.first_offset = first_offset
        self.next_offset = next_offset


class OffsetOutOfRange(TailraceError):
    """The offset is below the log's start or above its end: `low <= offset <= high` is valid."""

    # Defaults, so that it can be unpickled: the attributes come after the call.
    def __init__(self, message: str, *, offset: int = 0, low: int = 0, high: int = 0) -> None:
        super().__init__(message)
        self.offset = offset
        self.low = low
        self.high = high


class LeaseLost(TailraceError):
    """The lease of a message ended, and the message may be with another consumer; or it was settled
    before. `lost` names the messages; the others of the same call were settled."""

    def __init__(self, message: str, lost: list[str] | None = None) -> None:
        super().__init__(message)
        self.lost = lost or []


class Full(TailraceError):
    """A configured limit is reached, or the disk is full. `of_depth`: it is the depth of a queue,
    and nothing was published; fewer messages at once may fit. `may_wait`: it is that, of a queue
    whose publishers are to wait for room."""

    of_depth = False
    may_wait = False


class NotWritten(TailraceError):
    """The append certainly left nothing behind: it is safe to try it again.

    `appended` counts what did go in of the same call, all the same: the records that came before
    (`append_many`), or the queues that have the message (`Store.publish`). `last_sequence`: the
    sequence was below this one, the producer's last.
    """

    def __init__(
        self, message: str, *, appended: int = 0, last_sequence: int | None = None
    ) -> None:
        super().__init__(message)
        self.appended = appended
        self.last_sequence = last_sequence


class OutcomeUnknown(TailraceError):
    """The append may or may not survive a power cut.

    Reopen the log, and repeat the append with the same producer id and sequence.
    """


class InvalidName(TailraceError):
    """A name that tailrace does not accept."""


class ConfigError(TailraceError):
    """An option or a configuration file is wrong. The message names the key."""


class ProtocolError(TailraceError):
    """Somebody broke a network protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to send what the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow."""
