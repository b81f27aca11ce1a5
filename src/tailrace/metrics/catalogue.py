"""What is counted and measured, by name."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["COUNTERS", "HISTOGRAMS", "Measured"]


class Measured(NamedTuple):
    """Something that is measured: what it is, and the bounds by which a histogram sorts it."""

    help: str
    bounds: tuple[float, ...]


_LATENCY_S: Final = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
_WAITING_S: Final = (
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    14400.0,
    86400.0,
)
_MESSAGES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 10000.0)

COUNTERS: Final[dict[str, str]] = {
    "published": "Messages that entered a queue: published to it, delayed ones when they were "
    "due, dead letters, redriven ones.",
    "published_bytes": "Bytes of their keys and values.",
    "scheduled": "Messages that were published with a delay.",
    "delivered": "Messages that consumers got, each time that one did.",
    "delivered_bytes": "Bytes of their keys and values.",
    "redelivered": "Those of them that had been delivered before.",
    "acked": "Messages that were acknowledged; of a stream, offsets that were committed.",
    "nacked": "Messages that failed.",
    "rejected": "Messages that were rejected.",
    "released": "Messages that were given back.",
    "dead": "Messages that a group gave up: they became dead letters, or were dropped where a "
    "queue has none.",
    "expired": "Messages that a group passed by because their time was over.",
    "dropped": "Messages that a full queue dropped to make room.",
}

HISTOGRAMS: Final[dict[str, Measured]] = {
    "publish_seconds": Measured(
        "From the call until the messages were as durable as the queue promises.", _LATENCY_S
    ),
    "publish_batch_size": Measured("Messages that were published together.", _MESSAGES),
    "delivery_batch_size": Measured("Messages that a consumer got together.", _MESSAGES),
    "ack_seconds": Measured(
        "From the call until the acknowledgement was as durable as the queue promises.", _LATENCY_S
    ),
    "time_in_queue_seconds": Measured(
        "From when a message entered the queue until it was first delivered to a group.",
        _WAITING_S,
    ),
    "fsync_seconds": Measured(
        "How long the disk took to make the log of a queue, or the journal of a group, durable.",
        _LATENCY_S,
    ),
}
