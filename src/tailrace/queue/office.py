"""What a group asks of its queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from tailrace.queue.message import Message
from tailrace.queue.settings import QueueSettings

__all__ = ["Account", "Letter", "Office"]


class Account(NamedTuple):
    """Who does something once for each message of a queue: a group, until it is reset. Below
    `settled` it does nothing more, not even after a power cut."""

    name: str
    settled: int


class Letter(NamedTuple):
    """A message that is to become a dead letter, and why."""

    message: Message
    reason: str


class Office(Protocol):
    """What a group asks of its queue, without a turn: any of it may wait for others."""

    @property
    def settings(self) -> QueueSettings: ...

    def bury(
        self, settings: QueueSettings, letters: Sequence[Letter], group_id: str, account: Account
    ) -> dict[int, Exception]:
        """Write dead letters durably, each once for each account; by offset, why some could not be
        written. The queue for them is made if there is none."""

    def publish_once(self, message: Message, account: Account, publish: Iterable[Any]) -> None:
        """Publish what comes of a message durably, once for each account."""
