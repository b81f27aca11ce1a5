"""Delayed messages as a model has them, and sizes so small that everything happens.

The model is a dictionary: what is scheduled, when it is due, and what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from tailrace import Queue, Store, Stream
from tailrace.queue.looking import records

__all__ = ["Model", "few_in_memory", "values_of"]


@contextmanager
def few_in_memory() -> Iterator[None]:
    """A handful of messages fills the memory, a few runs are many, and batches are small."""
    sizes = {
        "schedule._RECORDS_MOST": 7,
        "schedule._SPENT_MUCH": 4,
        "schedule._QUIET_RECORDS": 5,
        "sorted_runs._BATCH": 2,
        "sorted_runs._AHEAD": 3,
        "sorted_runs._STEP": 4,
        "delivery._AT_ONCE": 3,
        "delivery._PORTION": 2,
        "delivery._MERGE_AT": 3,
        "delivery._UNFLUSHED_MOST": 2,
    }
    with ExitStack() as stack:
        for name, size in sizes.items():
            stack.enter_context(mock.patch(f"tailrace.queue.{name}", size))
        yield


def values_of(queue: Queue | Stream) -> list[bytes]:
    """What has entered the queue, in order, as far as it can be read."""
    found = []
    for record in records(queue.log, 0):
        assert record.value is not None
        found.append(record.value)
    return found


@dataclass
class Model:
    """What was told to whoever published and cancelled."""

    due: dict[bytes, int] = field(default_factory=dict)  # of all that was ever scheduled
    ids: dict[bytes, str] = field(default_factory=dict)
    cancelled: set[bytes] = field(default_factory=set)
    doubtful: set[bytes] = field(default_factory=set)  # an error told of it: it may be there or not
    numbers: int = 0

    def new(self) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers

    def schedule(self, queue: Queue | Stream, due_ms: int) -> bytes:
        value = self.new()
        self.doubtful.add(value)
        self.due[value] = due_ms
        delayed = queue.publish(value, deliver_at=due_ms)
        self.ids[value] = delayed.delay_id
        self.doubtful.discard(value)
        return value

    def cancel(self, queue: Queue | Stream, value: bytes) -> bool:
        is_sure = value not in self.doubtful
        self.doubtful.add(value)
        is_cancelled = queue.cancel(self.ids[value])
        if is_sure:
            self.doubtful.discard(value)
        if is_cancelled:
            self.cancelled.add(value)
        return is_cancelled

    def expected(self, now_ms: int) -> set[bytes]:
        """What has to be in the queue, if everything that is due was delivered."""
        due = {value for value, due_ms in self.due.items() if due_ms <= now_ms}
        return due - self.cancelled - self.doubtful

    def check(self, found: list[bytes], now_ms: int, *, may_lose: bool = False) -> None:
        """Each that is due once, no other, and none that was cancelled."""
        assert len(found) == len(set(found)), f"twice: {found}"
        cancelled = self.cancelled & set(found)
        assert not cancelled, f"cancelled, and delivered: {cancelled}"
        early = {value for value in found if self.due[value] > now_ms}
        assert not early, f"too early: {early}"
        lost = self.expected(now_ms) - set(found)
        assert may_lose or not lost, f"lost: {lost}"

    def check_end(self, store: Store, name: str = "q", *, may_lose: bool = False) -> None:
        """Nothing is left, and nothing was too much."""
        queue = store.get(name)
        self.check(values_of(queue), 2**60, may_lose=may_lose)
        assert queue.delayed() == []
        assert queue.delayed_count() == 0
