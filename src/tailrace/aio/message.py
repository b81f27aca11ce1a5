"""`tailrace.aio.Message`: a message that a task has got."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from tailrace.aio.desk import Desk
from tailrace.errors import LeaseLost, TailraceError
from tailrace.kernel import Headers, Record
from tailrace.queue.extending import is_over, pause_s
from tailrace.queue.inputs import as_outgoing
from tailrace.queue.message import Message as BlockingMessage
from tailrace.queue.message import describe
from tailrace.queue.outgoing import Outgoing

__all__ = ["AutoExtend", "Message"]


class Message:
    """A message that a consumer has got. Settle it once, in any task: `ack`, `nack`, `reject` or
    `release`; or let `async with message:` do it.

    A lease that ends gives the message to another consumer; from then on everything but reading
    it raises `LeaseLost`. A task that is cancelled while it settles a message has settled it.
    """

    # There are hundreds in a batch, so this is no more than a cover.
    __slots__ = ("_desk", "_message")

    def __init__(self, message: BlockingMessage, desk: Desk | None = None) -> None:
        """Without a `desk` it was only looked at."""
        self._message = message
        self._desk = desk

    # --- what it is -------------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._message.queue

    @property
    def record(self) -> Record:
        """The record that carries it."""
        return self._message.record

    @property
    def offset(self) -> int:
        """Where it is in the queue's log."""
        return self._message.offset

    @property
    def timestamp(self) -> int:
        """When it was appended, in milliseconds."""
        return self._message.record.timestamp  # type: ignore[return-value]

    @property
    def key(self) -> bytes | None:
        """The key; `None` if it was published without one."""
        return self._message.key

    @property
    def value(self) -> bytes | None:
        """What was published."""
        return self._message.record.value

    @property
    def headers(self) -> Headers:
        """What the publisher gave, and where it is a dead letter, what became of it."""
        return self._message.headers

    @property
    def topic(self) -> str:
        """The topic to which it was published."""
        return self._message.topic

    @property
    def routing_key(self) -> str:
        """What follows the queue's name in the topic."""
        return self._message.routing_key

    @property
    def id(self) -> str:
        """The id that its publisher gave it, or else a number."""
        return self._message.id

    @property
    def message_id(self) -> str:
        """Its name for acknowledgements: `<queue>:<offset>`."""
        return self._message.message_id

    @property
    def expires_at(self) -> int | None:
        """When it expires, in milliseconds; `None` if never."""
        return self._message.expires_at

    @property
    def partition(self) -> int:
        """0 for now."""
        return self._message.partition

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included."""
        return self._message.delivery_count

    @property
    def last_error(self) -> str:
        """Why it failed the last time, as far as is known."""
        return self._message.last_error

    @property
    def attempt(self) -> int:
        """Tells the lease from earlier ones."""
        return self._message.attempt

    @property
    def epoch(self) -> int:
        """Grows when the group is sent elsewhere."""
        return self._message.epoch

    @property
    def settled(self) -> str | None:
        """How it was settled, if this object was what settled it."""
        return self._message.settled

    async def properties(self) -> dict[str, Any]:
        """What a delivery carries besides the publisher's headers."""
        if self._desk is None or not self._desk.is_stream:
            return self._message.properties
        return await self._desk.beside(partial(getattr, self._message, "properties"))

    def __repr__(self) -> str:
        return f"aio.{self._message!r}"

    # --- what becomes of it -----------------------------------------------------------------

    async def ack(self, publish: Iterable[Any] = ()) -> None:
        """It is done. Returns when that is as durable as the queue's flush mode promises.

        What is in `publish` is published first, once, however often the message is delivered: pairs
        of a topic (or a queue) and a value, or `Outgoing`.
        """
        outgoing = [_as_blocking(each) for each in as_outgoing(publish or ())]
        if self._desk is None or outgoing:
            await self._beside(partial(self._message.ack, outgoing))
        else:
            await self._desk.ack([self._message])

    async def nack(self, delay: float | str | None = None, error: str = "") -> None:
        """It failed: deliver it again, after `delay`, or as the queue's `retry` says; when it has
        failed too often it becomes a dead letter. `error` travels with it, as far as its first
        thousand characters."""
        await self._beside(partial(self._message.nack, delay, error))

    async def reject(self, reason: str = "") -> None:
        """It can never succeed: it becomes a dead letter, with the first thousand characters of the
        reason."""
        await self._beside(partial(self._message.reject, reason))

    async def release(self) -> None:
        """Give it back at once, as if it had not been delivered."""
        if self._desk is None:
            self._message.release()
        else:
            await self._desk.release([self._message])

    async def extend(self, seconds: float | str | None = None) -> None:
        """Keep it for so long from now on; by default for the visibility timeout."""
        job = partial(self._message.extend, seconds)
        if self._desk is None:
            job()  # raises: nobody has a lease on it
        else:
            await self._desk.extend(job)

    def auto_extend(self) -> AutoExtend:
        """`async with message.auto_extend():` keeps it as long as the block runs."""
        return AutoExtend(self)

    async def _keep(self) -> float | None:
        """Extend the lease, unless it lasts longer anyway; for how many seconds it lasts now.
        `None` if there is none."""
        if self._desk is None:
            self._message.extend()  # raises: nobody has a lease on it
            return None
        return await self._desk.keep(self._message)

    async def _beside(self, job: partial[None]) -> None:
        if self._desk is None:
            job()  # raises: nobody has a lease on it
        else:
            await self._desk.beside(job)

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ack it; after an error nack it; if the task is cancelled or the program is being stopped,
        release it. If it was settled in the block, that stands."""
        if self.settled is not None:
            return
        try:
            if error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self.nack(error=describe(error))
            else:
                await self.release()
        except LeaseLost:
            if error is None:
                raise


class AutoExtend:
    """Extends a lease from a task, well before it ends, until the block is left. `lost` is true if
    it was lost all the same: the machine slept, the loop was blocked, or the disk was full for too
    long. A message that was settled in the block is not lost.

    How long a lease lasts is asked each time, and after which errors it goes on, as in
    `tailrace.queue.extending`.
    """

    def __init__(self, message: Message) -> None:
        self._message = message
        self._task: asyncio.Task[None] | None = None
        self.lost = False

    async def _run(self, left_s: float | None) -> None:
        while left_s is not None:
            await asyncio.sleep(pause_s(left_s))
            try:
                left_s = await self._message._keep()
            except (TailraceError, OSError) as error:
                if is_over(error):
                    self.lost = self._message.settled is None
                    return

    async def __aenter__(self) -> AutoExtend:
        left_s = await self._message._keep()
        if left_s is not None:
            self._task = asyncio.ensure_future(self._run(left_s))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _as_blocking(given: Any) -> Any:
    """What is to be published, such as the blocking side knows it."""
    from tailrace.aio.queue import Queue, Stream

    if isinstance(given, Outgoing):
        queue: Any = given.queue
        return replace(given, queue=queue._queue) if isinstance(queue, Queue | Stream) else given
    match given:
        case (Queue() | Stream() as queue, value):
            return queue._queue, value
    return given
