"""Dead letters: what a group could not process, in a queue of its own.

A dead letter is written with an idempotent append that is named after what it was: the queue, its
incarnation, the group and the offset. So however often somebody dies on the way, it is there once.
Which ones have been dealt with is what the group `$dead` of that queue says.
"""

from __future__ import annotations

import hashlib
import time
from typing import Final

from tailrace.kernel import Record
from tailrace.queue.message import Message, given_id, new_record
from tailrace.queue.settings import QueueSettings

__all__ = ["GROUP", "PREFIX", "dead_letter", "origin", "queue_of", "revived", "step_id"]

GROUP: Final = "$dead"
PREFIX: Final = "_dlq_"  # of the headers that tell what a dead letter was

_QUEUE, _TOPIC, _GROUP = "_dlq_original_queue", "_dlq_original_topic", "_dlq_group"
_COUNT, _MOVED, _ID = "_dlq_delivery_count", "_dlq_moved_at", "_dlq_original_id"
_OFFSET, _REASON = "_dlq_original_offset", "_dlq_reason"


def queue_of(settings: QueueSettings) -> str:
    """The queue, and the topic, of a queue's dead letters."""
    return settings.dlq.topic or f"$dlq/{settings.name}"


def step_id(kind: str, incarnation: str, group_id: str, offset: int) -> str:
    """The producer of what is done once for a message of a group."""
    name = f"{incarnation}\0{group_id}\0{offset}".encode("utf-8", "surrogateescape")
    return f"{kind}-{hashlib.blake2b(name, digest_size=16).hexdigest()}"


def dead_letter(message: Message, topic: str, group_id: str, reason: str, wall_ms: int) -> Record:
    moved_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ms // 1000))
    kept = [pair for pair in message.headers.pairs if not pair[0].startswith(PREFIX)]
    told: list[tuple[str, str]] = [
        (_QUEUE, message.queue),
        (_TOPIC, message.topic),
        (_GROUP, group_id),
        (_COUNT, str(message.delivery_count)),
        (_MOVED, moved_at),
        (_ID, message.id),
        (_OFFSET, str(message.offset)),
        (_REASON, reason),
    ]
    return new_record(
        message.value,
        topic,
        key=message.key,
        headers=[*kept, *told],
        message_id=given_id(message.record),
        state="dlq",
    )


def origin(message: Message) -> tuple[str, str]:
    """The queue and the group that a dead letter comes from."""
    headers = message.headers
    return tuple(  # type: ignore[return-value]
        headers.get(name, b"").decode("utf-8", "surrogateescape") for name in (_QUEUE, _GROUP)
    )


def revived(message: Message, expires_at: int | None) -> Record:
    """What it was, for the group that had it; nobody has tried it yet."""
    headers = message.headers
    kept = [pair for pair in headers.pairs if not pair[0].startswith(PREFIX)]
    return new_record(
        message.value,
        headers.get(_TOPIC, b"").decode("utf-8", "surrogateescape"),
        key=message.key,
        headers=kept,
        message_id=given_id(message.record),
        expires_at=expires_at,
        for_group=origin(message)[1] or None,
    )
