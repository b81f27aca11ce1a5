"""`tailrace.aio.Consumer` and `StreamConsumer`: what hands messages to tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.aio.desk import Desk
from tailrace.aio.message import Message
from tailrace.aio.receiving import Receiver
from tailrace.aio.worker import finish
from tailrace.errors import Closed, LeaseLost
from tailrace.queue.consumer import Consumer as BlockingConsumer
from tailrace.queue.consumer import StreamConsumer as BlockingStreamConsumer
from tailrace.queue.inputs import refuse_messages
from tailrace.queue.message import Message as BlockingMessage

if TYPE_CHECKING:
    from tailrace.aio.queue import LogQueue

__all__ = ["Consumer", "StreamConsumer"]


class Consumer(Receiver[BlockingConsumer]):
    """A consumer of a classic queue: an async iterator of messages, each of which is to be settled.

    Messages that were received stay leased when the consumer is closed, and may be settled then;
    those that it only fetched ahead are given back. So are those that a cancelled task would have
    received, unless another task of this consumer takes them.
    """

    # --- many at once -----------------------------------------------------------------------

    async def ack(self, messages: Iterable[Message]) -> None:
        """Ack messages of this group, in one step. `LeaseLost` names those that were lost; the
        others are acked all the same."""
        await self._settling().ack(self._ours(messages))

    async def nack(
        self, messages: Iterable[Message], delay: float | str | None = None, error: str = ""
    ) -> None:
        """Nack them; see `Message`."""
        await self._settling().beside(
            partial(self._joined().nack, self._ours(messages), delay, error)
        )

    async def reject(self, messages: Iterable[Message], reason: str = "") -> None:
        """Reject them; see `Message`."""
        await self._settling().beside(partial(self._joined().reject, self._ours(messages), reason))

    async def release(self, messages: Iterable[Message]) -> None:
        """Release them; see `Message`."""
        await self._settling().release(self._ours(messages))

    async def extend(self, messages: Iterable[Message], seconds: float | str | None = None) -> None:
        """Extend their leases; see `Message`."""
        await self._settling().extend(partial(self._joined().extend, self._ours(messages), seconds))

    def _ours(self, messages: Iterable[Message]) -> list[BlockingMessage]:
        try:
            ours = [message._message for message in messages]
        except (AttributeError, TypeError) as error:
            refuse_messages(messages, error)
        for message in ours:
            if message.settler is not self._group:
                raise ValueError(f"{message!r} is not of the group {self.group!r}")
        return ours

    def _settling(self) -> Desk:
        self._joined()
        assert self._desk is not None
        return self._desk

    def _part_with_found(self) -> None:
        """Give it back at once: its leases run, and others may be waiting."""
        messages = list(self._found)
        self._found.clear()
        self._queue.lookout.post(partial(_give_back, self._joined(), messages))


def _give_back(consumer: BlockingConsumer, messages: list[BlockingMessage]) -> None:
    with contextlib.suppress(LeaseLost, Closed):
        consumer.release(messages)


_Span = tuple[BlockingMessage, BlockingMessage]


class StreamConsumer(Receiver[BlockingStreamConsumer]):
    """A consumer of a stream: an async iterator of messages, with `commit` and `seek`.

    With `auto_commit` (the default) what a task has moved past is committed now and then: it has
    moved past a message when it asks for the next one, or has returned. What another task is still
    at is not committed, nor what one had that failed or was cancelled; that goes to the others of
    the group when this consumer leaves. `commit`, and `ack` and `reject` of a message, speak for
    all tasks that share it: tasks that commit by themselves need a consumer each.

    What the group's other consumers have got it does not get, unless they leave without committing
    it. What a cancelled task would have received comes with the next `receive`.
    """

    def __init__(
        self, queue: LogQueue[Any], make: Callable[[], BlockingStreamConsumer], group: str
    ) -> None:
        super().__init__(queue, make, group)
        # The first and the last message of what tasks have got and not moved past; and of what
        # those had who will not.
        self._held: dict[asyncio.Task[Any] | None, _Span] = {}
        self._failed: list[_Span] = []

    @property
    def auto_commit(self) -> bool:
        """Is what the caller has moved past committed without being asked?"""
        return self._joined().auto_commit

    async def receive(self, max: int = 1, wait: float | str | None = 0.0) -> list[Message]:
        """Up to `max` messages, as `Consumer.receive`. To ask for them says that this task is done
        with those that it has: with `auto_commit` they are committed when the time comes."""
        task = asyncio.current_task()
        self._held.pop(task, None)
        messages = await super().receive(max, wait)
        if messages:
            self._held[task] = messages[0]._message, messages[-1]._message
        return messages

    def _before_look(self, blocking: BlockingStreamConsumer) -> None:
        for task in [task for task in self._held if task is not None and task.done()]:
            span = self._held.pop(task)
            # Not by its exception: to ask for that says that it was noticed.
            if task.cancelled() or task.get_stack(limit=1):
                self._failed.append(span)
        blocking._held = [*self._held.values(), *self._failed]

    def _part_with_found(self) -> None:
        """Keep it: it is ours until we leave, and then it goes to the others."""

    async def commit(self, upto: Message | int | None = None) -> None:
        """What was received is processed: all of it, by whichever task, or up to a message (itself
        included), or below an offset. Returns when that is as durable as the queue's flush mode
        promises. Nothing counts that was received before somebody had the group go on from
        elsewhere."""
        blocking = self._joined()
        job: Callable[[], None]
        if upto is None:
            # A task may yet be cancelled that is about to get what was found: it does not count.
            kept = list(self._found) if self._look is None else self._look.found
            job = partial(blocking.commit_but, kept)
        else:
            job = partial(blocking.commit, upto._message if isinstance(upto, Message) else upto)
        await finish(self._queue.lookout.do(job, slow=True))

    async def seek(self, start: Any, *, timestamp: int | None = None) -> None:
        """Have the whole group go on from somewhere else: an offset, "first", "last", "next",
        "offset=…", "timestamp=…", or the first message at or after `timestamp`."""
        if self._blocking is None:
            await self.open()
        seek = partial(self._joined().seek, start, timestamp=timestamp)
        future = self._queue.lookout.do(seek, slow=True)
        future.add_done_callback(partial(self._forget, self._looks))
        await finish(future)

    def _forget(self, looks: int, future: asyncio.Future[None]) -> None:
        """We are elsewhere: what so many looks had found, which were begun before, is nothing."""
        if not future.cancelled() and future.exception() is None:
            self._failed.clear()
            if self._finder <= looks:
                self._found.clear()

    async def committed(self) -> int:
        """Everything below was processed, by whichever consumer of the group."""
        return await self._queue.crew.do(partial(getattr, self._joined(), "committed"))
