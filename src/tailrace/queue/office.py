"""What a group asks of its queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tailrace.queue.message import Message
from tailrace.queue.settings import QueueSettings

__all__ = ["Office"]


class Office(Protocol):
    """What a group asks of its queue."""

    @property
    def settings(self) -> QueueSettings: ...

    def prepare_burial(self) -> None:
        """Have a queue for dead letters: to make one, nobody may have a turn, because who deletes
        a queue waits for those who have one."""

    def bury(self, message: Message, group_id: str, account: str, reason: str) -> None:
        """Write a dead letter durably, once for each account."""

    def publish_once(self, message: Message, account: str, publish: Iterable[Any]) -> None:
        """Publish what comes of a message durably, once for each account."""
