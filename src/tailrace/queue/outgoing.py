"""What is published by topic, and where it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.log.commit import Receipt
from tailrace.queue.addresses import ROOT
from tailrace.queue.delays import Delayed
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.settings import QueueSettings

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
    queue: Queue | Stream | None = None  # only this one, whatever the topic is bound to

    @classmethod
    def of(cls, given: Any) -> Outgoing:
        """Of a pair of a topic (or a queue) and a value, or of one that is given."""
        if isinstance(given, Outgoing):
            return given
        match given:
            case (Queue() | Stream() as queue, value):
                return cls(f"{ROOT}/{queue.name}", value, queue=queue)
            case (str() as topic, value):
                return cls(topic, value)
        raise TypeError(
            "what is published is a pair of a topic (or a queue) and a value, or an Outgoing, "
            f"not {given!r:.60}"
        )

    def settings_in(self, root: str) -> QueueSettings:
        """Those of its queue, as of now, which has to be of the store in `root`. `Closed` if it was
        deleted: one that was made under its name is another."""
        queue = self.queue
        if not isinstance(queue, Queue | Stream):
            raise TypeError(f"the queue of an Outgoing is a Queue or a Stream, not {queue!r:.60}")
        if queue._store.layout.root != root:
            raise ValueError(f"{queue!r} is of another store, {queue._store.path}")
        return queue.settings


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
