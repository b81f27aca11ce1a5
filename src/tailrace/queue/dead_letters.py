"""Dead letters: what a group could not process, in a queue of its own.

A dead letter is written with an idempotent append that is named after what it was: the queue, its
incarnation, the group and the offset. So however often somebody dies on the way, it is there once.
Which ones have been dealt with is what the group `$dead` of that queue says.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from tailrace.errors import ConfigError, InvalidName
from tailrace.kernel import Record
from tailrace.log.producers import Once
from tailrace.queue.addresses import default_binding, parse_address
from tailrace.queue.message import Message, given_id, new_record
from tailrace.queue.names import RESERVED
from tailrace.queue.office import Account
from tailrace.queue.settings import QueueSettings

__all__ = [
    "AT_ONCE",
    "GROUP",
    "PREFIX",
    "Place",
    "all_places",
    "check_routes",
    "dead_letter",
    "origin",
    "place_of",
    "places_of",
    "queue_of",
    "redriving_of",
    "refused_by",
    "revived",
    "some_of",
    "step_of",
    "usual_place",
    "wrong_routes",
]

GROUP: Final = "$dead"
PREFIX: Final = "_dlq_"  # of the headers that tell what a dead letter was
AT_ONCE: Final = 512  # messages that are written, and waited for, together
_BYTES_AT_ONCE: Final = 4 << 20

T = TypeVar("T")

_QUEUE, _TOPIC, _GROUP = "_dlq_original_queue", "_dlq_original_topic", "_dlq_group"
_COUNT, _MOVED, _ID = "_dlq_delivery_count", "_dlq_moved_at", "_dlq_original_id"
_OFFSET, _REASON = "_dlq_original_offset", "_dlq_reason"
_PIPELINE, _INCARNATION = "_dlq_pipeline", "_dlq_original_incarnation"  # of a pipeline's letters


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


def all_places(settings: QueueSettings, others: Iterable[str]) -> list[Place]:
    """Likewise, and then the queues of these names, which pipelines may have for what they
    refuse."""
    found = {place.queue: place for place in places_of(settings)}
    for name in [others] if isinstance(others, str) else others:
        found.setdefault(name, usual_place(name))
    return list(found.values())


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
        settings, was = queues[name], before.get(name)
        if settings.type == "stream":
            if was is None:
                yield from _wrong_target(queues, before, name)
            continue
        if _is_fleeting(settings) and (was is None or not _is_fleeting(was)):
            yield from _wrong_target(queues, before, name)
        place = place_of(settings)
        target = queues.get(place.queue)
        if _come_to_stay(settings, was) and target is not None and _is_fleeting(target):
            said = (
                f"{place.queue} is ephemeral, and would not keep the dead letters of {name}, which "
                "is not; name a durable queue"
            )
            yield name, "dlq.topic", said
        if _goes_elsewhere(settings, was):
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


def _is_fleeting(settings: QueueSettings) -> bool:
    """Was it made to be ephemeral? One that nobody has asked for becomes durable with the first
    dead letter that comes to it."""
    return settings.type == "classic" and settings.ephemeral and not settings.implied


def _come_to_stay(settings: QueueSettings, was: QueueSettings | None) -> bool:
    """Are its dead letters to be kept where they were not kept before?"""
    if settings.ephemeral or not settings.dlq.enabled:
        return False
    return _goes_elsewhere(settings, was) or (was is not None and was.ephemeral)


def _wrong_target(
    queues: Mapping[str, QueueSettings], before: Mapping[str, QueueSettings], name: str
) -> Iterator[tuple[str, str, str]]:
    """A stream or an ephemeral queue, which it was not before. If a queue is new, too, that names
    it, that one is to blame."""
    is_stream = queues[name].type == "stream"
    for other in queues.values():
        topic = other.dlq.topic or f"$dlq/{other.name}"
        if name not in topic or other.type == "stream" or not other.dlq.enabled:
            continue  # of most of them nothing more has to be known
        if queue_of(other) != name:
            continue
        was = before.get(other.name)
        if is_stream and not _goes_elsewhere(other, was):
            said = (
                f"the dead letters of {other.name} go to {name}, and they need a classic queue; "
                f"give {other.name} another dlq.topic first, or the stream another name"
            )
            yield name, "type", said
        elif not is_stream and not other.ephemeral and not _come_to_stay(other, was):
            said = (
                f"the dead letters of {other.name}, which is durable, go to {name} and are to "
                f"stay; give {other.name} another dlq.topic first, or this queue another name"
            )
            yield name, "ephemeral", said


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


# --- how many together ----------------------------------------------------------------------


def some_of(left: Iterator[T], record_of: Callable[[T], Record], most: int = AT_ONCE) -> list[T]:
    """The next ones that go together, to the dead letters or back: so many that to wait for the
    disk does not count, and not so many, nor so large ones, that they are at it for long."""
    portion: list[T] = []
    size = 0
    for each in left:
        record = record_of(each)
        portion.append(each)
        size += len(record.key or b"") + len(record.value or b"")
        if len(portion) == most or size >= _BYTES_AT_ONCE:
            break
    return portion


# --- what they are --------------------------------------------------------------------------


def step_of(kind: str, incarnation: str, account: Account, offset: int) -> Once:
    """What is done once for the message that is at this offset of a queue."""
    name = f"{incarnation}\0{account.name}".encode("utf-8", "surrogateescape")
    producer = f"{kind}-{hashlib.blake2b(name, digest_size=16).hexdigest()}"
    return Once(producer, offset, account.settled)


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


def refused_by(message: Message) -> str | None:
    """The pipeline that a dead letter is of; `None` if it is none of a pipeline."""
    name = message.headers.get(_PIPELINE)
    return None if name is None else name.decode("utf-8", "surrogateescape")


def redriving_of(message: Message, letters: str, target: str, reader: Account) -> Once:
    """What `reader` brings back of a dead letter, which is in the queue of the incarnation
    `letters`, to the queue `target`. Several pipelines may refuse one message, and what comes back
    is for all of them: so it is named after the message, of which their letters tell the
    incarnation, and not after the letter. Offsets alone would not do: a queue that was deleted and
    made again has them, too. And what is settled among the letters says nothing of the messages
    then."""
    headers = message.headers
    incarnation, offset = headers.get(_INCARNATION, b""), headers.get(_OFFSET, b"")
    if refused_by(message) is None or not incarnation or not offset.isdigit():
        account = Account(f"{target}\0{reader.name}", reader.settled)
        return step_of("redrive", letters, account, message.offset)
    origin = incarnation.decode("utf-8", "surrogateescape")
    return step_of("redrive", origin, Account(target, 0), int(offset))


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
