"""What callers may give to queues and consumers, and the errors when they give something else.

What has to be fast looks for itself whether it is what it usually is, and asks here if not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tailrace.errors import ConfigError, Full
from tailrace.kernel import TooLarge
from tailrace.kernel.coerce import CONTENTS
from tailrace.log.inputs import check_whole
from tailrace.units import parse_duration

__all__ = [
    "as_outgoing",
    "as_reason",
    "as_text",
    "check_count",
    "check_flag",
    "check_limit",
    "check_patience",
    "check_values",
    "in_seconds",
    "no_batch_holds",
    "refuse_messages",
]

_LONGEST_REASON = 1000  # characters


def as_text(name: str, value: object) -> str:
    """Text that a file can carry: halves of characters, which names of files may hold and errors
    tell of, are spelled out."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r:.60}")
    return value.encode("utf-8", "backslashreplace").decode()


def as_reason(name: str, value: object) -> str:
    """Why a message failed, as it travels with it: not more of it than somebody reads."""
    return as_text(name, value)[:_LONGEST_REASON]


def check_count(number: object) -> None:
    """Of messages that one wants to have."""
    check_whole("max", number, "a number of messages")
    if number < 1:  # type: ignore[operator]
        raise ValueError(f"max is a number of messages, at least 1, not {number!r}")


def check_limit(number: int) -> int:
    """Of messages that one wants to see: not more than anything can count."""
    check_whole("limit", number, "a number of messages")
    if number < 0:
        raise ValueError(f"limit is a number of messages, from 0 on, not {number!r}")
    return min(number, sys.maxsize)


def in_seconds(wait: Any) -> float:
    """A time to wait that was not given in seconds, or in more of them than a number can be."""
    if isinstance(wait, int):
        return math.inf if wait > 0 else 0.0
    return parse_duration(wait, "wait") / 1000


def check_values(values: object) -> None:
    """What is published at once. Of a mapping one would publish the keys, of text the letters."""
    if isinstance(values, Mapping):
        raise TypeError(
            f"values is a list of messages, not a {type(values).__name__}, of which only the keys "
            "would be published; pairs of a key and a value are its items()"
        )
    if isinstance(values, CONTENTS) or not isinstance(values, Iterable):
        raise TypeError(f"values is a list of messages, not {values!r:.60}; put one in a list")


def as_outgoing(publish: Any) -> list[Any]:
    """What is to be published with an ack."""
    try:
        return list(publish)
    except TypeError:
        if isinstance(publish, Iterable):
            raise  # something went wrong inside of it
        raise TypeError(
            f"publish is a list of pairs of a topic (or a queue) and a value, not {publish!r:.60}"
        ) from None


def check_flag(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}: expected True or False, got {value!r:.60}")


def check_patience(wait: object, block: object) -> None:
    """Of who publishes. Other waits are times, and whoever gives one here would wait for ever."""
    if not isinstance(wait, bool):
        raise ConfigError(
            f"wait: expected True or False, got {wait!r:.60}; how long to wait is said to the "
            "receipt that wait=False returns"
        )
    check_flag("block", block)


def refuse_messages(given: object, error: Exception) -> NoReturn:
    """Raise for what was to be settled and is no list of messages."""
    raise TypeError(
        f"what is settled is a list of messages, as receive() returns it, not {given!r:.60}; one "
        "message alone has methods of its own"
    ) from error


def no_batch_holds(queue: str, error: TooLarge) -> Full:
    """What to raise of one message that is larger than a batch: for a log that is a wrong argument,
    for who publishes it is a limit of the queue, like `limits.max_message_size`."""
    full = Full(
        f"a message of {error.size:,} bytes, with its key and headers, is more than the queue "
        f"{queue!r} takes: max_batch_bytes is {error.limit:,}"
    )
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full
