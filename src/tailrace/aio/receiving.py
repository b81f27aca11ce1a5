"""How tasks wait for messages: what consumers of both kinds share.

A thread looks for messages, one look at a time; between looks a task waits on the watch of the
consumer, which was set before the look, so nothing comes unnoticed. A look belongs to nobody: what
it has found is for whichever task takes it. So a task that is cancelled takes nothing along, and
what nobody wants is given back, or kept for the next who asks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tailrace.aio.desk import Desk
from tailrace.aio.message import Message
from tailrace.aio.worker import finish
from tailrace.errors import Closed
from tailrace.log.watch import Watch
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.consumer import Consumer as BlockingConsumer
from tailrace.queue.consumer import StreamConsumer as BlockingStreamConsumer
from tailrace.queue.consumer import shorter
from tailrace.queue.inputs import check_count, in_seconds
from tailrace.queue.message import Message as BlockingMessage
from tailrace.queue.stream import StreamGroup

if TYPE_CHECKING:
    from tailrace.aio.queue import LogQueue

__all__ = ["Receiver"]

B = TypeVar("B", bound=BlockingConsumer | BlockingStreamConsumer)


class _Look:
    """A look for messages. `seen` is what the watch had told when it began: who goes to sleep
    because of it wants to hear of everything since then. `sleep_s` is how long he may."""

    __slots__ = ("awaiting", "found", "future", "number", "seen", "sleep_s", "watch")

    future: asyncio.Future[None]

    def __init__(self, number: int, watch: Watch, seen: int) -> None:
        self.number = number
        self.watch = watch
        self.seen = seen
        self.awaiting = 0  # tasks
        self.found: list[BlockingMessage] = []  # which the thread fills
        self.sleep_s: float | None = None

    def do(self, consumer: BlockingConsumer | BlockingStreamConsumer, max: int) -> None:
        """In the thread."""
        found, self.sleep_s = consumer.look_now(max)
        self.found += found


class Receiver(Generic[B], AsyncIterator[Message]):
    """Tasks of one loop may share it; each message goes to one of them. It joins its group with
    `async with`, when it is awaited, or when it is first used."""

    def __init__(self, queue: LogQueue[Any], make: Callable[[], B], group: str) -> None:
        self.group = group
        self._queue = queue
        self._make = make
        self._blocking: B | None = None
        self._group: ClassicGroup | StreamGroup | None = None
        self._desk: Desk | None = None
        self._opening: asyncio.Future[None] | None = None
        self._look: _Look | None = None  # that is under way
        self._looks = 0  # that were begun
        self._finder = 0  # the number of the one that has found something
        self._found: deque[BlockingMessage] = deque()  # by the last look, and for nobody yet
        self._wanted = 0  # messages, by all who receive
        self._sleepers: dict[Any, None] = {}
        self._is_closing = self._is_closed = False
        queue.attend(self)

    # --- open and close ---------------------------------------------------------------------

    async def open(self) -> Self:
        """Join the group, unless that is done. If that fails, one may try again."""
        if self.closed:
            await self._tell_why()
        if self._blocking is None:
            if self._opening is None:
                self._opening = self._queue.lookout.do(self._open, slow=True)
                self._opening.add_done_callback(self._opened)
            await finish(self._opening)
        return self

    def _open(self) -> None:
        """In the thread."""
        self._check_open()
        if self._blocking is None:
            blocking = self._make()
            self._group = self._queue.group_of(blocking.group)
            self._desk = self._queue.desk(self._group, blocking.id)
            self._blocking = blocking

    def _opened(self, future: asyncio.Future[None]) -> None:
        self._opening = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the consumer of group {self.group!r} is closed")

    async def _tell_why(self) -> None:
        """Raise: it is closed, or its queue was deleted, which somebody has to look for."""
        if self._blocking is not None:
            await self._queue.crew.do(self._blocking.check_open)
        self._check_open()

    def _joined(self) -> B:
        if self._blocking is None:
            raise Closed(
                f"the consumer of group {self.group!r} is not open: use `async with`, or await it"
            )
        return self._blocking

    @property
    def id(self) -> str:
        """Its name in the group."""
        return self._joined().id

    @property
    def closed(self) -> bool:
        """Is it closed, or about to be? It is when its queue is deleted, too."""
        return self._is_closing or (self._blocking is not None and self._blocking.closed)

    def stop(self) -> None:
        """Begin to close it, from anywhere: whoever waits gets no more."""
        self._is_closing = True
        if self._blocking is not None:
            self._blocking.tail.close()

    async def close(self) -> None:
        """Stop: whoever waits gets no more. A second close only waits for the first. Cancelled, it
        is done all the same."""
        self.stop()
        if self._blocking is None and self._opening is None:
            self._is_closed = True
        if not self._is_closed:
            await finish(self._close())

    async def _close(self) -> None:
        look = self._look
        if look is not None and look.future.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([look.future])  # and give back what it brings, before we leave
        await self._queue.lookout.do(self._leave, slow=True)

    def _leave(self) -> None:
        """In the thread, where we may have joined after `stop` looked."""
        try:
            if self._blocking is not None:
                self._blocking.close()
        finally:
            self._is_closed = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._blocking else "not open"
        return f"aio.{type(self).__name__}({self._queue.name!r}, {self.group!r}, {state})"

    # --- receive ----------------------------------------------------------------------------

    async def receive(self, max: int = 1, wait: float | str | None = 0.0) -> list[Message]:
        """Up to `max` messages: as many as there are, as soon as there is one. An empty list if
        none comes for `wait` (seconds, or such as "5m"; `None`: for ever), or the consumer is
        closed meanwhile. If the queue or the group is deleted, that is `Closed`.

        To cancel it loses no message: those that were fetched, another task gets.
        """
        if type(max) is not int or max < 1:
            check_count(max)
        if self.closed:
            await self._tell_why()
        now = asyncio.get_running_loop().time
        try:
            deadline = None if wait is None else now() + wait  # type: ignore[operator]
        except (TypeError, OverflowError):
            deadline = now() + in_seconds(wait)
        arrived = self._looks
        self._wanted += max
        try:
            if self._blocking is None:
                await self.open()
            while True:
                if self._found:
                    return self._take(max)
                if self.closed:
                    if not self._is_closing:  # it was its queue
                        await self._tell_why()
                    return []
                look = await self._looked()
                # A look from before we came says nothing, nor does one that others have emptied.
                if self._found or look.found or look.number <= arrived:
                    continue
                left = None if deadline is None else deadline - now()
                if left is not None and not left > 0:
                    return []
                await self._sleep(look, shorter(left, look.sleep_s))
        finally:
            self._wanted -= max
            if self._found:
                self._pass_on()

    async def __anext__(self) -> Message:
        if not self.closed:
            for message in await self.receive(1, None):
                return message
        raise StopAsyncIteration

    def _take(self, count: int) -> list[Message]:
        found, desk = self._found, self._desk
        if count >= len(found):
            taken = [Message(message, desk) for message in found]
            found.clear()
        else:
            taken = [Message(found.popleft(), desk) for _ in range(count)]
        return taken

    def _pass_on(self) -> None:
        """There is something that nobody has taken: who sleeps may have it."""
        if not self._wanted:
            self._part_with_found()
        for sleeper in list(self._sleepers):
            sleeper.settle()

    def _part_with_found(self) -> None:
        """Nobody is there to take it."""
        raise NotImplementedError

    def _before_look(self, blocking: B) -> None:
        """Nobody has anything to take; all who have taken something are known."""

    async def _looked(self) -> _Look:
        """The look that is under way, or else one of our own, when it is done. It looks for all who
        want something: fifty tasks that want one message each need not look fifty times."""
        look = self._look
        if look is None:
            blocking = self._joined()
            self._before_look(blocking)
            watch = blocking.tail.watch
            seen = watch.task().seen
            self._looks += 1
            look = _Look(self._looks, watch, seen)
            look.future = self._queue.lookout.do(partial(look.do, blocking, self._wanted))
            look.future.add_done_callback(partial(self._note, look))
            self._look = look
        elif look.future.done():  # a moment ago
            self._note(look, look.future)
        look.awaiting += 1
        try:
            await asyncio.shield(look.future)
        finally:
            look.awaiting -= 1
        return look

    def _note(self, look: _Look, future: asyncio.Future[None]) -> None:
        """A look is done. This comes before anybody goes on who waits for it, and once."""
        if self._look is not look:
            return
        self._look = None
        if future.cancelled() or future.exception() is not None:
            return
        watch = self._joined().tail.watch
        if watch is not look.watch:  # it was exchanged before the look: it has told nobody anything
            look.watch, look.seen = watch, 0
        if look.found:
            self._finder = look.number
            self._found.extend(look.found)
            if not look.awaiting:
                self._pass_on()

    async def _sleep(self, look: _Look, timeout: float | None) -> None:
        """Until something has happened since the look, or the time has passed. Like the watch's
        `wait_async`; but that would tell one task only of what came while others looked."""
        watch = look.watch
        task = watch.task()
        task.seen = look.seen
        timer = None if timeout is None else task.loop.call_later(timeout, task.settle)
        self._sleepers[task] = None
        try:
            watch.begin(task)
            await task.future
        finally:
            self._sleepers.pop(task, None)
            if timer is not None:
                timer.cancel()
            watch.leave(task)
        watch.take(task)
