"""Dead letters: what a group could not process, in a queue of its own.

A dead letter is written with an idempotent append that is named after what it was: the queue, its
incarnation, the group and the offset. So however often somebody dies on the way, it is there once.
Which ones have been dealt with is what the group `$dead` of that queue says.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.errors import ConfigError, InvalidName
from tailrace.kernel import Record
from tailrace.queue.addresses import default_binding, parse_address
from tailrace.queue.message import Message, given_id, new_record
from tailrace.queue.names import RESERVED
from tailrace.queue.settings import QueueSettings

__all__ = [
    "GROUP",
    "PREFIX",
    "Place",
    "check_routes",
    "dead_letter",
    "origin",
    "place_of",
    "places_of",
    "queue_of",
    "revived",
    "step_id",
    "usual_place",
    "wrong_routes",
]

GROUP: Final = "$dead"
PREFIX: Final = "_dlq_"  # of the headers that tell what a dead letter was

_QUEUE, _TOPIC, _GROUP = "_dlq_original_queue", "_dlq_original_topic", "_dlq_group"
_COUNT, _MOVED, _ID = "_dlq_delivery_count", "_dlq_moved_at", "_dlq_original_id"
_OFFSET, _REASON = "_dlq_original_offset", "_dlq_reason"


class Place(NamedTuple):
    """A queue for dead letters, the topic that they have there, and what it is bound to if it has
    to be made."""

    queue: str
    topic: str
    binding: str


def usual_place(topic: str) -> Place:
    """A queue that has the name of its topic."""
    return Place(topic, topic, f"{topic}/#")


def place_of(settings: QueueSettings) -> Place:
    """Where the dead letters of a queue go: its `dlq.topic` is an address, or a queue's name."""
    topic = settings.dlq.topic or f"$dlq/{settings.name}"
    try:
        address = parse_address(topic)
    except InvalidName:  # FluxMQ takes it for a name, and so no letter is lost
        address = None
    if address is None:
        return usual_place(topic)
    return Place(address.queue, topic, default_binding(address.queue))


def places_of(settings: QueueSettings) -> list[Place]:
    """Where there may be dead letters of a queue: the place that it has if it is given none, since
    it may have been given one later; and the one that it has."""
    usual, place = usual_place(f"$dlq/{settings.name}"), place_of(settings)
    return [place] if place.queue == usual.queue else [usual, place]


def queue_of(settings: QueueSettings) -> str:
    """The queue that a queue's dead letters go to."""
    return place_of(settings).queue


# --- where they may go ----------------------------------------------------------------------


def check_routes(
    queues: Mapping[str, QueueSettings], before: Mapping[str, QueueSettings], names: Collection[str]
) -> None:
    """`ConfigError` for the first of `wrong_routes`."""
    for _, key, said in wrong_routes(queues, before, names):
        raise ConfigError(f"{key}: {said}")


def wrong_routes(
    queues: Mapping[str, QueueSettings], before: Mapping[str, QueueSettings], names: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Why dead letters could not go where they are to go, once the queues of these names are as
    they are in `queues`: the queue that is to blame, its option, and the reason. What was as wrong
    `before` keeps nobody from changing something else."""
    told: set[frozenset[str]] = set()
    for name in names:
        settings = queues[name]
        if settings.type == "stream":
            if name not in before:
                yield from _wrong_stream(queues, before, name)
        elif _goes_elsewhere(settings, before.get(name)):
            place = place_of(settings)
            target = queues.get(place.queue)
            if target is not None and target.type == "stream":
                said = f"{place.queue} is a stream; dead letters need a classic queue"
                yield name, "dlq.topic", said
            elif target is None and place.queue in RESERVED:
                said = f"{place.queue} is reserved for the broker; name another queue"
                yield name, "dlq.topic", said
            circle = _circle(queues, name)
            if len(circle) > 1 and frozenset(circle) not in told:
                told.add(frozenset(circle))
                way = " to ".join([*circle, name])
                said = (
                    f"dead letters would go round in a circle, from {way}, and never come to an "
                    "end; give one of these queues another dlq.topic, or set its dlq.enabled to "
                    "false"
                )
                yield name, "dlq.topic", said


def _goes_elsewhere(settings: QueueSettings, was: QueueSettings | None) -> bool:
    """Do its dead letters go where they did not go before?"""
    if not settings.dlq.enabled:
        return False
    return was is None or not was.dlq.enabled or queue_of(was) != queue_of(settings)


def _wrong_stream(
    queues: Mapping[str, QueueSettings], before: Mapping[str, QueueSettings], name: str
) -> Iterator[tuple[str, str, str]]:
    """It is new. If a queue is new that names it, that one is to blame."""
    for other in queues.values():
        topic = other.dlq.topic or f"$dlq/{other.name}"
        if name not in topic or other.type == "stream" or not other.dlq.enabled:
            continue  # of most of them nothing more has to be known
        if queue_of(other) == name and not _goes_elsewhere(other, before.get(other.name)):
            said = (
                f"the dead letters of {other.name} go to {name}, and they need a classic queue; "
                f"give {other.name} another dlq.topic first, or the stream another name"
            )
            yield name, "type", said


def _circle(queues: Mapping[str, QueueSettings], name: str) -> list[str]:
    """The queues that a dead letter comes through until it is where it was; none if it ends."""
    way, at = [name], queues[name]
    while at.dlq.enabled and at.type == "classic":
        following = queues.get(queue_of(at))
        if following is None or following.name in way[1:]:  # which is a circle without this one
            return []
        if following.name == name:
            return way
        way.append(following.name)
        at = following
    return []


# --- what they are --------------------------------------------------------------------------


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
