"""What is published by topic, and where it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.log.commit import Receipt
from tailrace.queue.addresses import ROOT
from tailrace.queue.delays import Delayed
from tailrace.queue.queue import Queue, Stream

__all__ = ["Outgoing", "Published"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be published: to a topic, or to a queue by its address `$queue/<name>`."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Any = None
    message_id: str | None = None
    ttl: float | str | None = None
    queue: str | None = None  # only this one, whatever the topic is bound to

    @classmethod
    def of(cls, given: Any) -> Outgoing:
        """Of a pair of a topic (or a queue) and a value, or of one that is given."""
        if isinstance(given, Outgoing):
            return given
        match given:
            case (Queue() | Stream() as queue, value):
                return cls(f"{ROOT}/{queue.name}", value, queue=queue.name)
            case (str() as topic, value):
                return cls(topic, value)
        raise TypeError(
            "what is published is a pair of a topic (or a queue) and a value, or an Outgoing, "
            f"not {given!r:.60}"
        )


class Published(dict[str, Receipt]):
    """Where a message went: the receipt of each queue, by its name."""

    def wait(self, timeout: float | None = None) -> Published:
        """Until it is as durable in each queue as that promises."""
        for receipt in self.values():
            receipt.wait(timeout)
        return self

    @property
    def delay_ids(self) -> dict[str, str]:
        """If it is to be delivered later: the delay id for each queue, by its name."""
        return {
            name: receipt.delay_id for name, receipt in self.items() if isinstance(receipt, Delayed)
        }
