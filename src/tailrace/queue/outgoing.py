"""What is published by topic, and where it went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tailrace.errors import NotWritten, OutcomeUnknown, TailraceError
from tailrace.log.commit import Receipt
from tailrace.queue.addresses import ROOT
from tailrace.queue.delays import Delayed
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.settings import QueueSettings

__all__ = ["Outgoing", "Published", "spread"]


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
        outcomes: list[object] = []
        for receipt in self.values():
            try:
                outcomes.append(receipt.wait(timeout))
            except OutcomeUnknown as error:
                outcomes.append(error)
        return self.checked(outcomes)

    def checked(self, outcomes: Iterable[object]) -> Published:
        """Raise if waiting for some of the receipts has ended in an error."""
        failed = {
            name: outcome
            for name, outcome in zip(self, outcomes, strict=True)
            if isinstance(outcome, TailraceError)
        }
        if failed:
            raise _partly(self.keys() - failed.keys(), failed)
        return self

    @property
    def delay_ids(self) -> dict[str, str]:
        """If it is to be delivered later: the delay id for each queue, by its name."""
        return {
            name: receipt.delay_id for name, receipt in self.items() if isinstance(receipt, Delayed)
        }


def spread(queues: Iterable[Queue | Stream], put: Callable[[Queue | Stream], Receipt]) -> Published:
    """Have each queue get a message, also those behind one that cannot; the error tells then which
    have it."""
    published, failed = Published(), dict[str, TailraceError]()
    for queue in queues:
        try:
            published[queue.name] = put(queue)
        except TailraceError as error:
            failed[queue.name] = error
    if failed:
        raise _partly(published.keys(), failed)
    return published


def _partly(had: Iterable[str], failed: dict[str, TailraceError]) -> TailraceError:
    first, names = next(iter(failed.values())), sorted(had)
    if not names and len(failed) == 1:
        return first
    unknown = [error for error in failed.values() if isinstance(error, OutcomeUnknown)]
    why = unknown[0] if unknown else first
    text = (
        f"the message is in {', '.join(names) or 'no queue'}, and not, or not for sure, in "
        f"{', '.join(sorted(failed))} ({why}). Publish it to these by name; or if it has a "
        "producer and a sequence, repeat it with both"
    )
    error = OutcomeUnknown(text) if unknown else NotWritten(text, appended=len(names))
    error.__cause__ = first
    return error
