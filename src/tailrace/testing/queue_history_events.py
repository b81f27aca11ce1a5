"""What happened to a queue: who published what, who got it, what they did to it, what is left.

The input of `tailrace.testing.queue_history`, which has the names of these too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "Death",
    "Delivery",
    "Letter",
    "Processed",
    "Progress",
    "Publish",
    "QueueHistory",
    "Settlement",
]


class Publish(NamedTuple):
    """`outcome` is what the publisher learned: "acked" (the receipt is done), "written" (there is
    one, and nobody waited for it), "failed" (`NotWritten`) or "unknown". The first two have an
    `offset`."""

    process: str
    value: str
    invoked: float
    outcome: str
    offset: int | None = None
    answered: float | None = None
    key: str = ""


class Delivery(NamedTuple):
    """A consumer was given a message, by a call from `invoked` to `returned`, for `lease` seconds
    at least, counted from `invoked`. `attempt` names the lease, among those of the message."""

    group: str
    consumer: str
    offset: int
    value: str
    attempt: int
    invoked: float
    returned: float
    lease: float


class Settlement(NamedTuple):
    """What a consumer did to a message that it had: "ack", "nack", "release", "reject", or "extend"
    for `lease` seconds. `outcome` is "done", "lost" (`LeaseLost`) or "unknown"."""

    group: str
    consumer: str
    offset: int
    attempt: int
    kind: str
    invoked: float
    outcome: str
    answered: float | None = None
    lease: float = 0.0


class Death(NamedTuple):
    """A consumer was killed or closed its store, at `time` or soon after; what it had is free."""

    consumer: str
    time: float


class Letter(NamedTuple):
    """A message at the end: a dead letter, with the offset that it had in the queue; or one that is
    left, ready or not."""

    group: str
    offset: int
    value: str


class Processed(NamedTuple):
    """A consumer of a stream has processed a message, and has said so before it went on."""

    group: str
    consumer: str
    offset: int
    value: str
    time: float


class Progress(NamedTuple):
    """Somebody asked between these times what a group of a stream had committed."""

    group: str
    committed: int
    invoked: float
    answered: float


@dataclass
class QueueHistory:
    """All that is known of one queue. Everything may be in any order, and all times are of one
    clock. `groups` are those that had every message, `keyed` those of them that keep the order of
    keys; `streams` are groups of a stream that have read to the end. `dead` and `left` are what is
    there in the end, when nobody is at it any more. `redriven`: dead letters came back meanwhile.
    """

    publishes: list[Publish] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    dead: list[Letter] = field(default_factory=list)
    left: list[Letter] = field(default_factory=list)
    processed: list[Processed] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    groups: tuple[str, ...] = ()
    keyed: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    redriven: bool = False
    flush: str = "sync"
    cuts: list[float] = field(default_factory=list)
