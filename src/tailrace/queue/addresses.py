"""Addresses of queues among topics: `$queue/<name>/<routing key>`.

The routing key may have any number of levels, or none. In the last level `$ack`, `$nack`,
`$reject` and `$commit` are not keys but verbs, by which clients of a broker settle what they have
got; elsewhere in an address they are a mistake.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.errors import InvalidName
from tailrace.queue.topics import check_topic, matches

__all__ = [
    "ROOT",
    "Address",
    "address_of",
    "default_binding",
    "is_selected",
    "parse_address",
    "topic_in",
]

ROOT: Final = "$queue"
VERBS: Final = frozenset({"$ack", "$nack", "$reject", "$commit"})


class Address(NamedTuple):
    """A queue, the routing key, and the verb without its `$`, if there is one."""

    queue: str
    routing_key: str
    verb: str | None = None


def parse_address(topic: str) -> Address | None:
    """The address that a topic is; `None` if it is an ordinary one. `InvalidName` if it looks like
    an address and is none."""
    root, *levels = topic.split("/")
    if root != ROOT or not levels:
        return None
    *levels, last = levels
    if VERBS.intersection(levels):
        raise InvalidName(f"the topic {topic!r}: a verb has to be its last level")
    if last not in VERBS:
        levels.append(last)
    queue = levels[0] if levels else ""
    if not queue:
        raise InvalidName(f"the topic {topic!r} names no queue; it has to be {ROOT}/<queue>/…")
    return Address(queue, "/".join(levels[1:]), last[1:] if last in VERBS else None)


def address_of(queue: str, routing_key: str = "") -> str:
    """The topic of what is published to a queue by its name."""
    return f"{ROOT}/{queue}/{routing_key}" if routing_key else f"{ROOT}/{queue}"


def default_binding(queue: str) -> str:
    """The filter of a queue that was given none: everything that is addressed to it."""
    return f"{ROOT}/{queue}/#"


def topic_in(queue: str, routing_key: str) -> str:
    """`address_of`, for what is published; `InvalidName` if that cannot be."""
    topic = address_of(queue, routing_key)
    if routing_key:
        check_topic(topic)
    if VERBS.intersection(routing_key.split("/")):
        raise InvalidName(f"the routing key {routing_key!r} has a level that is a verb")
    return topic


def is_selected(pattern: str, queue: str, topic: str) -> bool:
    """Does the filter of a group take what a queue got by a topic? It is compared with the levels
    behind the queue's address, where `$` is a letter; an ordinary topic has none there. So only `#`
    takes what has no level, which is not the same as an empty one."""
    root = address_of(queue)
    behind = topic[len(root) :] if topic.startswith(f"{root}/") else ""
    return matches(f"/{pattern}", behind)
