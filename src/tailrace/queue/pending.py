"""What a group of a classic queue has claimed and not settled, as it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tailrace.queue.group_files import plain_name
from tailrace.queue.lease import CLAIMED, LEASED, STATES
from tailrace.queue.ledger import Ledger

__all__ = ["Pending", "pending_of"]


class Pending(NamedTuple):
    """A message that is not settled. `left` are the seconds until it is ready again, by itself."""

    offset: int
    consumer: str
    state: str
    delivery_count: int
    left: float
    last_error: str


def pending_of(ledger: Ledger, now_ms: int) -> Iterator[Pending]:
    """What is not settled, oldest first."""
    for offset, lease in ledger.pending.items():
        state = STATES[lease.state]
        if lease.state in (CLAIMED, LEASED) and lease.until <= now_ms:
            state = "expired"
        left = max(lease.until - now_ms, 0) / 1000
        holder = plain_name(lease.holder)
        yield Pending(offset, holder, state, lease.count, left, lease.error)
