"""Messages that are settled together, as operations have them."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import LeaseLost
from tailrace.queue.journal import Op
from tailrace.queue.message import Message
from tailrace.queue.runs import runs_of

__all__ = ["ack_ops", "are_one_claim", "lease_lost", "others", "runs_in", "timed_ops"]


def ack_ops(held: list[Message]) -> list[Op]:
    return [{"t": "ack", "r": runs_in(held)}]


def timed_ops(kind: str, untils: Iterable[tuple[int, Message]], **more: object) -> list[Op]:
    """An operation for those that have a time in common: mostly that is all of them."""
    together: dict[int, list[Message]] = {}
    for until, message in untils:
        together.setdefault(until, []).append(message)
    return [{"t": kind, "r": runs_in(each), "u": until, **more} for until, each in together.items()]


def are_one_claim(messages: list[Message], epoch: int) -> bool:
    """Are they in a row, each as it came for the first time?"""
    for offset, message in enumerate(messages, messages[0].offset):
        if message.offset != offset or message.attempt != 1 or message.epoch != epoch:
            return False
    return True


def runs_in(messages: list[Message]) -> list[int]:
    if len(messages) == 1:
        return [messages[0].offset, 1]
    offsets = [message.offset for message in messages]
    first, count = offsets[0], len(offsets)
    if offsets == list(range(first, first + count)):
        return [first, count]
    return runs_of(sorted(set(offsets)))


def others(messages: list[Message], held: list[Message]) -> list[Message]:
    """Those that are not among `held`."""
    there = {id(message) for message in held}
    return [message for message in messages if id(message) not in there]


def lease_lost(lost: list[Message], said: str) -> LeaseLost:
    """What tells of messages that somebody else has; `said` is of the first."""
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    names = [message.message_id for message in lost]
    return LeaseLost(f"{names[0]}{more} {said}", lost=names)
