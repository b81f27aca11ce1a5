"""What callers may give to queues and consumers, and the errors when they give something else.

What has to be fast looks for itself whether it is what it usually is, and asks here if not.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NoReturn

from tailrace.errors import ConfigError
from tailrace.log.inputs import check_whole
from tailrace.units import parse_duration

__all__ = [
    "as_reason",
    "as_text",
    "check_count",
    "check_flag",
    "check_limit",
    "in_seconds",
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


def check_flag(key: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{key}: expected True or False, got {value!r}")


def refuse_messages(given: object, error: Exception) -> NoReturn:
    """Raise for what was to be settled and is no list of messages."""
    raise TypeError(
        f"what is settled is a list of messages, as receive() returns it, not {given!r:.60}; one "
        "message alone has methods of its own"
    ) from error
