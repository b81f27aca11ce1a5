"""What a queue and its groups tell whoever listens (`tailrace.hooks`).

Everything here is called only if somebody does, so it need not be fast.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from tailrace import hooks
from tailrace.kernel import Record
from tailrace.log.commit import Receipt
from tailrace.queue.message import Message

__all__ = ["Weighed", "delivered", "published", "settled", "weigh"]


class _Timed(Receipt):
    """A receipt that tells how long it took until the messages were durable, once; not if they were
    by the time that somebody asked: then nobody knows when that was."""

    __slots__ = ("_begun", "_queue")

    def __init__(self, receipt: Receipt, queue: str, begun: float) -> None:
        super().__init__(receipt.offset, receipt.end_offset, receipt.count, receipt._committer)
        self._queue = queue
        self._begun: float | None = begun
        if receipt._committer is None:  # there is nothing to wait for
            self._tell()

    def _tell(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            hooks.observe("publish_seconds", [perf_counter() - begun], self._queue)

    def wait(self, timeout: float | None = None) -> Receipt:
        was_done = self.done
        super().wait(timeout)
        if not was_done:
            self._tell()
        return self

    def __await__(self) -> Generator[Any, None, Receipt]:
        was_done = self.done
        yield from super().__await__()
        if not was_done:
            self._tell()
        return self


def published(queue: str, receipt: Receipt, size: int, begun: float | None = None) -> Receipt:
    """Messages are in the queue's log; the receipt to return, which tells when they are durable how
    long that took since it was `begun`."""
    hooks.count("published", receipt.count, queue)
    hooks.count("published_bytes", size, queue)
    hooks.observe("publish_batch_size", [receipt.count], queue)
    return receipt if begun is None else _Timed(receipt, queue, begun)


def weigh(*parts: bytes | str | None) -> int:
    """How many bytes they are."""
    return sum(len(each.encode() if isinstance(each, str) else each) for each in parts if each)


class Weighed:
    """Passes lists of records on, and adds up how much they carry."""

    def __init__(self, portions: Iterable[list[Record]]) -> None:
        self._portions = portions
        self.size = 0

    def __iter__(self) -> Iterator[list[Record]]:
        for records in self._portions:
            self.size += sum(weigh(record.key, record.value) for record in records)
            yield records


def delivered(queue: str, group: str, messages: Sequence[Message], wall_ms: int) -> None:
    """A caller has got messages. For how long one was in the queue counts when it is delivered for
    the first time: later it is the retry that decides."""
    if not messages:
        return
    again = sum(message.delivery_count > 1 for message in messages)
    hooks.count("delivered", len(messages), queue, group)
    hooks.count("redelivered", again, queue, group)
    size = sum(weigh(message.record.key, message.record.value) for message in messages)
    hooks.count("delivered_bytes", size, queue, group)
    hooks.observe("delivery_batch_size", [len(messages)], queue, group)
    ages_s = [
        max(wall_ms - message.timestamp, 0) / 1000
        for message in messages
        if message.delivery_count <= 1
    ]
    hooks.observe("time_in_queue_seconds", ages_s, queue, group)


def settled(queue: str, group: str, word: str, number: int, begun: float) -> None:
    """Messages were acked, nacked, rejected or released, durably."""
    hooks.count(word, number, queue, group)
    if word == "acked" and number:
        hooks.observe("ack_seconds", [perf_counter() - begun], queue, group)
