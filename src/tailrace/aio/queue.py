"""`tailrace.aio.Queue` and `Stream`: a log with bindings, limits and groups, for asyncio."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, overload

from tailrace.aio.consumer import Consumer, StreamConsumer
from tailrace.aio.desk import Desk
from tailrace.aio.message import Message
from tailrace.aio.reading import Reading
from tailrace.aio.receiving import Receiver
from tailrace.aio.room import when_there_is_room
from tailrace.aio.worker import LINGER_S, Crew, Worker, finish, finish_all
from tailrace.errors import Closed
from tailrace.kernel import Record
from tailrace.log.commit import Receipt
from tailrace.log.follow import Tailing
from tailrace.log.inputs import check_timeout
from tailrace.log.retention import VacuumReport
from tailrace.queue.classic import ClassicGroup, Pending
from tailrace.queue.delays import Delayed, Scheduled
from tailrace.queue.inputs import check_patience, check_values
from tailrace.queue.message import Message as BlockingMessage
from tailrace.queue.publishing import held_of
from tailrace.queue.queue import GroupInfo
from tailrace.queue.queue import Queue as BlockingQueue
from tailrace.queue.queue import Stream as BlockingStream
from tailrace.queue.settings import QueueSettings
from tailrace.queue.stats import QueueStats
from tailrace.queue.stream import StreamGroup

__all__ = ["LogQueue", "Queue", "Stream"]

Q = TypeVar("Q", bound=BlockingQueue | BlockingStream)
T = TypeVar("T")


class LogQueue(Generic[Q]):
    """What both kinds of queue share. Tasks of any number of loops may share it. Messages keep the
    order in which `publish` was called."""

    def __init__(self, queue: Q, keeper: Worker) -> None:
        """`keeper` is a worker that has a thread as long as the store is open."""
        self.name = queue.name
        self.incarnation = queue.incarnation
        self._queue = queue
        self._keeper = keeper
        self._worker = Worker(self.name, linger_s=LINGER_S)
        self.lookout = Worker(f"{self.name} lookout", linger_s=LINGER_S)
        self.crew = Crew(self.name)
        self._lock = threading.Lock()  # what follows is used by several loops and threads
        self._receivers: weakref.WeakSet[Receiver[Any]] = weakref.WeakSet()
        self._followers: weakref.WeakSet[Reading[Message]] = weakref.WeakSet()
        self._desks: weakref.WeakValueDictionary[str, Desk] = weakref.WeakValueDictionary()

    # --- settings ---------------------------------------------------------------------------

    async def settings(self) -> QueueSettings:
        """As of now: another process may have changed them."""
        return await self._ask(lambda queue: queue.settings)

    async def configure(self, **options: Any) -> None:
        """Change settings, for everybody. What is fixed when a queue is created is refused."""
        await self._worker.do(partial(self._queue.configure, **options), slow=True)

    # --- publish ----------------------------------------------------------------------------

    @overload
    async def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: None = None,
        deliver_at: None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: float | str,
        wait: bool = True,
        block: bool = True,
    ) -> Delayed: ...

    @overload
    async def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        deliver_at: int | datetime,
        wait: bool = True,
        block: bool = True,
    ) -> Delayed: ...

    async def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: float | str | None = None,
        deliver_at: int | datetime | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt:
        """Publish a message to this queue. Returns when it is as durable as the queue's flush mode
        promises; with `wait=False` when it is in the log, and `await receipt` waits. With
        `block=False` a full queue is an error, also one where publishers are to wait.

        With a `delay`, or a time to `deliver_at` (milliseconds since 1970, or a datetime with a
        time zone), the message enters the queue then; what is returned is a `Delayed`, whose
        `delay_id` cancels it. That time is its timestamp; one that is over counts as now. `ttl`
        counts from now on, and has to end later; the queue's `message_ttl` counts from that time
        on.

        With a `producer` id and a `sequence` that rises, repeating it is harmless: the receipt of
        the first time comes back, also if the queue is full now. What is given besides is not
        compared. A sequence that is too old to be remembered is `NotWritten`. A delayed message
        cannot have them.
        """
        check_patience(wait, block)
        publish = partial(
            self._queue.publish,
            value,
            key=key,
            routing_key=routing_key,
            headers=headers,
            message_id=message_id,
            ttl=ttl,
            timestamp=timestamp,
            wait=False,
            block=False,
        )
        if delay is not None:
            publish.keywords["delay"] = delay
        if deliver_at is not None:
            publish.keywords["deliver_at"] = deliver_at
        if producer is not None or sequence is not None:
            publish.keywords.update(producer=producer, sequence=sequence)
        receipt: Receipt = await when_there_is_room(lambda: self._worker.do(publish), block)
        return await receipt if wait else receipt

    async def cancel(self, delay_id: str | Delayed | Scheduled) -> bool:
        """Take a delayed message back, durably: by its delay id, what `publish` returned, or what
        `delayed` lists. True if it will never be delivered; false if it is too late, or there is no
        such message."""
        return await self._ask(lambda queue: queue.cancel(delay_id))

    async def delayed(self, limit: int | None = 100) -> list[Scheduled]:
        """The messages that are to be delivered later, the next one first."""
        return await self._ask(lambda queue: queue.delayed(limit))

    async def delayed_count(self) -> int:
        """How many messages are to be delivered later."""
        return await self._ask(lambda queue: queue.delayed_count())

    async def publish_many(
        self,
        values: Iterable[Any],
        *,
        routing_key: str = "",
        ttl: float | str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt:
        """Publish messages in one batch (more only beyond its limits): values, or pairs of a key
        and a value, or triples with headers. `wait` and `block` as in `publish`.

        If a list or a tuple has something in it that is refused, nothing is published. An iterator
        is published while it goes on, so what came before that may be there, if it was more than a
        batch: a note of the error tells how many. The same goes for an error of the disk.

        A `producer` and a `sequence` are those of the batch, as in `publish`; more than one batch
        holds is refused then."""
        check_values(values)
        check_patience(wait, block)
        queue, given = self._queue, values

        def publish() -> Receipt:
            nonlocal given
            settings = queue.settings
            if settings.limits.max_depth:  # it may have to be tried again
                is_plain = producer is None and sequence is None
                given = held_of(given, settings) if is_plain else list(given)
            return queue.publish_many(
                given,
                routing_key=routing_key,
                ttl=ttl,
                producer=producer,
                sequence=sequence,
                wait=False,
                block=False,
            )

        receipt = await when_there_is_room(lambda: self._worker.do(publish, slow=True), block)
        return await receipt if wait else receipt

    # --- read -------------------------------------------------------------------------------

    def read(
        self,
        start: Any = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Message]:
        """Replay, without a group: messages from `start` on ("first", an offset, "offset=…",
        "timestamp=…"; "last" and "next" are the end), or from the first at or after `timestamp`.
        With `follow` it goes on with what comes, until it or the store is closed, or nothing has
        come for `timeout` seconds."""
        check_timeout(timeout)
        if timeout is not None and not follow:
            raise ValueError("timeout is for follow=True; without it nothing is waited for")
        queue, name = self._queue, self.name

        def begin() -> Iterator[Any] | Tailing:
            first = queue.resolve(start, timestamp)
            return queue.log.tail(first, end) if follow else queue.log.read(first, end)

        def wrap(record: Record) -> Message:
            return Message(BlockingMessage(name, record, None, 0, 0, 0))

        reading: Reading[Message] = Reading(
            begin, _weigh, self.crew, timeout, self.lookout, self._keeper, wrap
        )
        if follow:
            with self._lock:
                self._followers.add(reading)
        return reading

    async def resolve(self, start: Any, timestamp: int | None = None) -> int:
        """The offset that a start means, inside of what the queue holds."""
        return await self._ask(lambda queue: queue.resolve(start, timestamp))

    async def length(self) -> int:
        """How many offsets the queue holds, settled or not: what `len` tells where it may wait."""
        return await self._ask(len)

    async def vacuum(self) -> VacuumReport:
        """Delete the segments that may go. A classic queue with groups lets go of what all of them
        have settled, and keeps of that what `retention` says; any other what `retention` lets
        go."""
        return await self._ask(lambda queue: queue.vacuum())

    async def stats(self, *, exact: bool = False) -> QueueStats:
        """Figures of the queue and its groups. Nobody is disturbed. What would take long to count
        is estimated, and says so, unless it is to be `exact`."""
        return await self._ask(lambda queue: queue.stats(exact=exact))

    # --- groups -----------------------------------------------------------------------------

    async def group_ids(self) -> list[str]:
        """The groups that the queue has."""
        return await self._ask(lambda queue: queue.group_ids())

    async def groups(self) -> list[GroupInfo]:
        """How far each group is, and who is in it."""
        return await self._ask(lambda queue: queue.groups())

    async def delete_group(self, group_id: str) -> None:
        """Forget a group. Its consumers, in whichever process, get `Closed`."""
        await self._worker.do(partial(self._queue.delete_group, group_id), slow=True)

    async def expire_groups(self, idle: float | str) -> list[str]:
        """Delete the groups that nobody is in, and that nobody has used for so long; their names.
        What only they held back may be deleted from the queue then."""
        return await self._worker.do(partial(self._queue.expire_groups, idle), slow=True)

    def attend(self, receiver: Receiver[Any]) -> None:
        """A consumer is there, to be stopped with the queue."""
        with self._lock:
            self._receivers.add(receiver)

    def group_of(self, group_id: str) -> ClassicGroup | StreamGroup:
        """In a thread."""
        return self._queue.group(group_id)

    def desk(self, group: ClassicGroup | StreamGroup, consumer: str) -> Desk:
        """Where the messages of a consumer are settled: a classic group has one place for all of
        its consumers."""
        settles = group if isinstance(group, ClassicGroup) else None
        name = group.id if settles is not None else f"{group.id} {consumer}"
        with self._lock:
            desk = self._desks.get(name)
            if desk is None or desk.group is not settles:
                desk = Desk(f"{self.name} {name}", settles)
                self._desks[name] = desk
            return desk

    def is_twin_of(self, queue: BlockingQueue | BlockingStream) -> bool:
        return self._queue is queue

    # --- the end ----------------------------------------------------------------------------

    async def purge(self) -> int:
        """Delete every message, for all groups; how many offsets that were. Leases on them are
        lost."""
        return await self._worker.do(self._queue.purge, slow=True)

    async def close(self) -> None:
        """Let go of the log and the groups. Who consumes or follows comes to an end. They are
        opened again when they are needed."""
        try:
            await self.stop()
        finally:
            await finish(self._worker.do(self._queue.close, slow=True))

    async def stop(self) -> None:
        """Bring those to an end who wait for something; return when what was asked for is done."""
        self.end_reading()
        with self._lock:
            receivers, desks = list(self._receivers), list(self._desks.values())
        try:
            await finish_all(_end(receiver) for receiver in receivers)
        finally:
            await asyncio.gather(self._worker.drain(), self.lookout.drain())
            await asyncio.gather(*(desk.drain() for desk in desks))

    def end_reading(self) -> None:
        """Bring those to an end who follow the queue, from anywhere."""
        with self._lock:
            followers = list(self._followers)
        for follower in followers:
            follower.close()

    def let_go(self) -> None:
        """The store is closed, and the threads may end."""
        self._let_go_of_threads()
        with self._lock:
            desks = list(self._desks.values())
        for desk in desks:
            desk.let_go()

    def __del__(self) -> None:
        if hasattr(self, "crew"):
            self._let_go_of_threads()

    def _let_go_of_threads(self) -> None:
        self._worker.let_go()
        self.lookout.let_go()
        self.crew.let_go()

    def __repr__(self) -> str:
        return f"aio.{self._queue!r}"

    async def _ask(self, question: Callable[[Q], T]) -> T:
        """Beside everything else."""
        return await self.crew.do(partial(question, self._queue))


class Queue(LogQueue[BlockingQueue]):
    """A work queue: each message goes to one consumer of each group, and comes back until one of
    them has settled it."""

    def consumer(
        self,
        group: str,
        *,
        filter: str = "",
        prefetch: int = 1,
        visibility_timeout: float | str | None = None,
        key_order: bool | None = None,
        id: str | None = None,
    ) -> Consumer:
        """A consumer of a group, which is made if it does not exist. It joins with `async with`, or
        when it is awaited, or used.

        A `filter` (of routing keys, by the rules of MQTT) makes a group of its own, `group@filter`,
        which may also be given as the name: what is after an `@` is the filter.
        `prefetch` messages are fetched at a time when one after the other is asked for.
        `key_order=True` gives a group whose messages of one key come one at a time, in order; it is
        fixed when the group is made.
        """
        make = partial(
            self._queue.consumer,
            group,
            filter=filter,
            prefetch=prefetch,
            visibility_timeout=visibility_timeout,
            key_order=key_order,
            id=id,
        )
        return Consumer(self, make, _group_id(group, filter))

    def consume(self, group: str, **options: Any) -> Consumer:
        """`async for message in queue.consume(group="workers"):` waits for messages, for ever, or
        until the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)

    async def peek(self, group: str, limit: int = 1, *, filter: str = "") -> list[Message]:
        """What a group would get next, without claiming it."""
        found = await self._ask(lambda queue: queue.peek(group, limit, filter=filter))
        return [Message(message) for message in found]

    async def pending(self, group: str, *, filter: str = "") -> list[Pending]:
        """What a group has claimed and not settled, oldest first."""
        return await self._ask(lambda queue: queue.pending(group, filter=filter))


class Stream(LogQueue[BlockingStream]):
    """A log that groups read and replay: nothing is taken out of it."""

    def consumer(
        self,
        group: str,
        *,
        filter: str = "",
        start: Any = None,
        timestamp: int | None = None,
        auto_commit: bool = True,
        auto_commit_interval: float | str | None = None,
        id: str | None = None,
    ) -> StreamConsumer:
        """A consumer of a group, which is made if it does not exist. It joins with `async with`, or
        when it is awaited, or used.

        Without a `start` the group goes on after what it has committed, or begins with the first
        message. With one ("first"; "last" or "next" for what comes from now on; an offset;
        "offset=…", "timestamp=…"; or `timestamp=`) the whole group goes on from there.
        """
        make = partial(
            self._queue.consumer,
            group,
            filter=filter,
            start=start,
            timestamp=timestamp,
            auto_commit=auto_commit,
            auto_commit_interval=auto_commit_interval,
            id=id,
        )
        return StreamConsumer(self, make, _group_id(group, filter))

    def consume(self, group: str, **options: Any) -> StreamConsumer:
        """`async for message in stream.consume(group="readers"):` waits for messages, for ever, or
        until the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)


async def _end(receiver: Receiver[Any]) -> None:
    """If somebody else has deleted the queue, there is no group to leave."""
    with suppress(Closed):
        await receiver.close()


def _group_id(group: str, filter: str) -> str:
    return f"{group}@{filter}" if filter else group


def _weigh(record: Any) -> int:
    return len(record.key or b"") + len(record.value or b"")
