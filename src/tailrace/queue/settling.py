"""Messages that are settled together, as operations have them."""

from __future__ import annotations

from tailrace.queue.journal import Op
from tailrace.queue.message import Message
from tailrace.queue.runs import runs_of

__all__ = ["ack_ops", "are_one_claim", "dead_ops", "runs_in"]


def ack_ops(held: list[Message]) -> list[Op]:
    return [{"t": "ack", "r": runs_in(held)}]


def dead_ops(held: list[Message], dying: list[Message]) -> list[Op]:
    dying.extend(held)
    return [{"t": "dead", "r": runs_in(held)}]


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
