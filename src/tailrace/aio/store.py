"""`tailrace.aio.Store`: a directory of queues, for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from tailrace.aio.consumer import Consumer, StreamConsumer
from tailrace.aio.message import Message
from tailrace.aio.queue import Queue, Stream
from tailrace.aio.room import when_there_is_room
from tailrace.aio.worker import Crew, Worker, finish, finish_all
from tailrace.config.opening import open_store as open_configured
from tailrace.errors import Closed
from tailrace.log.fs import FileSystem
from tailrace.log.retention import VacuumReport
from tailrace.queue.clock import Clock
from tailrace.queue.consumer import Consumer as BlockingConsumer
from tailrace.queue.inputs import check_patience
from tailrace.queue.queue import Queue as BlockingQueue
from tailrace.queue.queue import Stream as BlockingStream
from tailrace.queue.stats import StoreStats
from tailrace.queue.store import Published
from tailrace.queue.store import Store as BlockingStore

if TYPE_CHECKING:
    from tailrace.config.model import Config
    from tailrace.queue.backup import BackupReport

__all__ = ["Store", "open_store"]

T = TypeVar("T")

_FEW = 16


def open_store(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Config | None = None,
    **options: Any,
) -> Store:
    """Open the store in a directory, which is made if it does not exist: `tailrace.aio.open`.

        async with tailrace.aio.open("data") as store: ...
        store = await tailrace.aio.open("data")

    `flush` and other options of queues are defaults for those that are created here. Takes what
    `Store` takes. `config` is a configuration, or its file, as for `tailrace.open`: it is read, and
    its queues are made, when the store is opened.
    """
    store = Store(path, **options)
    if config is not None:
        store._make = partial(open_configured, store.path, config=config, **options)
    return store


class Store:
    """The queues in a directory, for asyncio. Takes what `tailrace.Store` takes.

        async with tailrace.aio.Store("data") as store:
            orders = await store.queue("orders")
            await orders.publish(b"…")                      # it is durable
            async for message in orders.consume("workers"):
                async with message: ...                     # acked, or nacked after an error

    Opening it takes time, so it is open after `async with`, or after `store = await Store(…)`.
    Tasks of any number of loops may share it, and its queues; a consumer is for tasks of one loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: str | None = None,
        mode: Literal["owner", "shared"] = "owner",
        upkeep: bool = True,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        disk: Any = None,
        **defaults: Any,
    ) -> None:
        self.path = os.fspath(path)
        self._make: Callable[[], BlockingStore] = partial(
            BlockingStore,
            self.path,
            flush=flush,
            mode=mode,
            upkeep=upkeep,
            fs=fs,
            clock=clock,
            disk=disk,
            **defaults,
        )
        self._store: BlockingStore | None = None
        self._worker = Worker(self.path)
        self._crew = Crew(self.path)
        self._lock = threading.Lock()  # what follows is used by several loops and threads
        self._openers = 0  # those who have opened it, or are about to
        self._queues: dict[str, Queue | Stream] = {}
        self._is_closing = self._is_closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Store cannot be pickled: pass its path, and open it in the other process"
        )

    # --- open and close ---------------------------------------------------------------------

    async def open(self) -> Store:
        """Open it, unless it is open. If that fails or is cancelled it is not, and one may try
        again."""
        with self._lock:
            if self._is_closing:
                raise Closed(f"the store in {self.path} is closed")
            self._openers += 1
            if self._store is not None:
                return self
        try:
            await self._worker.do(self._open, slow=True)
        except BaseException:
            with self._lock:
                self._openers -= 1
            self._worker.post(self._close_if_unwanted)
            raise
        return self

    def _open(self) -> None:
        if self._is_closing:
            raise Closed(f"the store in {self.path} is closed")
        if self._store is None:
            self._store = self._make()
            self._worker.keep()

    def _close_if_unwanted(self) -> None:
        with self._lock:
            if self._openers or self._store is None:
                return
            store, self._store = self._store, None
        self._worker.let_go()
        store.close()

    def __await__(self) -> Generator[Any, None, Store]:
        return self.open().__await__()

    async def __aenter__(self) -> Store:
        return await self.open()

    async def close(self) -> None:
        """Flush and close all queues; a second close only waits for the first. What was asked for
        before is done first, and who consumes or follows comes to an end. Cancelled, it is done all
        the same."""
        with self._lock:
            self._is_closing = True
        if not self._is_closed:
            await finish(self._finish())

    async def _finish(self) -> None:
        await self._worker.drain()  # it may be about to make another queue
        with self._lock:
            queues = list(self._queues.values())
        try:
            await finish_all(queue.stop() for queue in queues)
        finally:
            await self._worker.do(self._close, slow=True)

    def _close(self) -> None:
        try:
            if self._store is not None:
                self._store.close()
        finally:
            self._is_closed = True
            self._worker.let_go()
            self._crew.let_go()
            with self._lock:
                queues = list(self._queues.values())
            for queue in queues:
                queue.let_go()

    def __del__(self) -> None:
        # Dropped without a close: the thread ends, and the logs go as if they had crashed.
        if hasattr(self, "_crew"):
            self._worker.let_go()
            self._crew.let_go()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _opened(self) -> BlockingStore:
        if self._is_closing:
            raise Closed(f"the store in {self.path} is closed")
        if self._store is None:
            raise Closed(f"the store in {self.path} is not open: use `async with`, or await it")
        return self._store

    # --- queues -----------------------------------------------------------------------------

    async def queue(self, name: str, **options: Any) -> Queue:
        """The work queue of this name, which is made if it does not exist. If it does, options that
        are given change it, for everybody; what is fixed when it is made is refused."""
        found = await self._do(lambda store: self._twin(store.queue(name, **options)))
        assert isinstance(found, Queue)
        return found

    async def stream(self, name: str, **options: Any) -> Stream:
        """The stream of this name; otherwise like `queue`."""
        found = await self._do(lambda store: self._twin(store.stream(name, **options)))
        assert isinstance(found, Stream)
        return found

    async def get(self, name: str) -> Queue | Stream:
        """The queue or stream of this name; `InvalidName` if there is none."""
        return await self._do(lambda store: self._twin(store.get(name)))

    async def queues(self) -> list[Queue | Stream]:
        """All of them, by name."""
        return await self._do(lambda store: [self._twin(each) for each in store.queues()])

    async def configure(self, name: str, **options: Any) -> None:
        """Change settings of a queue, for everybody."""
        await self._do(lambda store: store.configure(name, **options))

    async def stats(self, *, exact: bool = False) -> StoreStats:
        """Figures of each queue, by name. Nobody is disturbed, and no log is left open that was
        not. What would take long to count is estimated, and says so, unless it is to be `exact`."""
        return await self._crew.do(partial(self._opened().stats, exact=exact))

    async def backup(
        self,
        path: str | os.PathLike[str],
        *,
        since: str | os.PathLike[str] | None = None,
        link: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> BackupReport:
        """Copy the whole store, while it is used by whomever, to a new folder, for
        `tailrace.restore_backup`. It is there as a whole, or not at all. Cancelled, it returns when
        it is broken off, in a moment. `progress` is called in a thread."""
        store, is_cancelled = self._opened(), threading.Event()

        def tell(done: int, total: int) -> None:
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            if progress is not None:
                progress(done, total)

        work = self._crew.do(partial(store.backup, path, since=since, link=link, progress=tell))
        try:
            return await finish(work)
        except asyncio.CancelledError:
            is_cancelled.set()
            await asyncio.wait([work])  # a program that ends now would leave half of it behind
            raise

    async def delete(self, name: str) -> None:
        """Delete a queue with all that is in it, for everybody: whoever uses it gets `Closed`, and
        who waits comes to an end."""
        await self._do(lambda store: self._delete(store, name))

    def _delete(self, store: BlockingStore, name: str) -> None:
        with self._lock:
            queue = self._queues.get(name)
        if queue is not None:
            queue.end_reading()  # first: to have it deleted under them is an error to them
        store.delete(name)
        if queue is not None:
            with self._lock:
                self._queues = {n: each for n, each in self._queues.items() if each is not queue}
            queue.let_go()

    def _twin(self, queue: BlockingQueue | BlockingStream) -> Queue | Stream:
        """The same object for the same queue, as long as there is that queue. In a thread."""
        with self._lock:
            found = self._queues.get(queue.name)
            if found is None or not found.is_twin_of(queue):
                self._forget_deleted()
                kind: Any = Queue if isinstance(queue, BlockingQueue) else Stream
                found = self._queues[queue.name] = kind(queue, self._worker)
            return found

    def _forget_deleted(self) -> None:
        """Now and then: ephemeral queues come and go."""
        assert self._store is not None
        current = self._store.registry.current()
        if len(self._queues) > 2 * len(current) + _FEW:
            self._queues = {
                name: queue
                for name, queue in self._queues.items()
                if name in current and current[name].incarnation == queue.incarnation
            }

    async def vacuum(self) -> dict[str, VacuumReport]:
        """Delete what may go, now; what that was, by queue."""
        return await self._worker.do(self._opened().vacuum, slow=True)

    # --- publish ----------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        delay: float | str | None = None,
        deliver_at: int | datetime | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Published:
        """Publish to every queue that is bound to the topic. Each append is atomic, all together
        are not. If there is no such queue an ephemeral one is made. With a `delay`, or a time to
        `deliver_at`, it waits for each queue, and has a delay id in each. With a `producer` and a
        `sequence` each queue gets it once: to repeat it after an error gives it to those that have
        not got it. The other parameters are as in `Queue.publish`."""
        check_patience(wait, block)
        publish = partial(
            self._opened().publish,
            topic,
            value,
            key=key,
            headers=headers,
            message_id=message_id,
            ttl=ttl,
            delay=delay,
            deliver_at=deliver_at,
            producer=producer,
            sequence=sequence,
            wait=False,
            block=False,
        )
        published = await when_there_is_room(lambda: self._worker.do(publish), block)
        if wait:
            outcomes = await asyncio.gather(*published.values(), return_exceptions=True)
            published.checked(outcomes)
        return published

    async def deliver_due(self) -> int:
        """Deliver the delayed messages that are due; how many that were. With `upkeep` this happens
        by itself, when the time comes."""
        return await self._worker.do(self._opened().deliver_due, slow=True)

    # --- consume ----------------------------------------------------------------------------

    async def consumer(self, name: str, group: str, **options: Any) -> Consumer | StreamConsumer:
        """A consumer of a queue by its name. If there is none yet, an ephemeral one is made, bound
        to `$queue/<name>/#`, which gets what is published from then on."""

        def make(store: BlockingStore) -> Consumer | StreamConsumer:
            consumer = store.consumer(name, group, **options)
            queue: Any = self._twin(store.get(name))
            kind: Any = Consumer if isinstance(consumer, BlockingConsumer) else StreamConsumer
            adopted: Consumer | StreamConsumer = kind(queue, lambda: consumer, consumer.group)
            return adopted

        found = await self._do(make)
        return await found.open()

    # --- dead letters -----------------------------------------------------------------------

    async def dead(
        self, name: str, limit: int | None = None, *, places: Iterable[str] = ()
    ) -> list[Message]:
        """The dead letters of a queue that nobody has dealt with, oldest first. `places` are queues
        that have some beside: the `dead_letters` of pipelines."""
        found = await self._crew.do(partial(self._opened().dead, name, limit, places=places))
        return [Message(message) for message in found]

    async def redrive(
        self,
        name: str,
        *,
        group: str | None = None,
        offsets: Iterable[int] | None = None,
        limit: int | None = None,
        places: Iterable[str] = (),
    ) -> int:
        """Bring dead letters back to the queue, each for the group that had it, as if nobody had
        tried it: all of them, those of one group, or those at `offsets` among the dead letters. How
        many that were. Each comes back once, whatever happens meanwhile; those of a group that is
        gone stay until it is back, and one that has none either is `InvalidName`. `places` are as
        for `dead`."""
        options: dict[str, Any] = {"group": group, "offsets": offsets, "limit": limit}
        redrive = partial(self._opened().redrive, name, **options, places=places)
        return await self._crew.do(redrive)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closing else ", not open" if self._store is None else ""
        return f"aio.Store({self.path!r}{state})"

    async def _do(self, job: Callable[[BlockingStore], T]) -> T:
        """In order with what is published."""
        return await self._worker.do(partial(job, self._opened()), slow=True)
