"""Waiting for room in a queue, without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace.errors import Full
from tailrace.queue.depth import waits

__all__ = ["when_there_is_room"]

T = TypeVar("T")


async def when_there_is_room(publish: Callable[[], Awaitable[T]], block: bool) -> T:
    """What `publish` gives, which raises rather than to wait; tried until there is room, if the
    queue is one where publishers wait."""
    for pause_s in waits():
        try:
            return await publish()
        except Full as error:
            if not block or not error.may_wait:
                raise
        await asyncio.sleep(pause_s)
    raise AssertionError  # never: there is always another pause
