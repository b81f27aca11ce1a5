"""A crowd on one queue: processes that publish, consume in every way there is, and bring back dead
letters, all of them killed at random and started again, each with a history of what it did.

    python -m tests.crash.queue_crowd PLAN

starts and kills them, as the plan (a line of JSON) says, and `run` does that from a test. It is the
crowd of `crowd.py`, with others in it; see there for seeds and books.

Whoever acts writes a line before and one after, so that what was on its way when it was killed is
in doubt, and nothing else. Times are of the boot clock, by which leases run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import tailrace
from tailrace import Consumer, LeaseLost, Message, Queue, Store, Stream, StreamConsumer, aio
from tailrace.queue import burying
from tests.crash.crowd import PATIENCE_S, Actor, Book, Crowd, Plan, Who, read_book
from tests.project import ROOT

__all__ = ["QUEUE", "QueuePlan", "boot_s", "errors_of", "open_store", "run"]

QUEUE = "q"
BURIAL_MS = 400  # so that somebody takes over while we look

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_KEYS = 7


@dataclass(frozen=True)
class QueuePlan(Plan):
    """What a crowd does. `groups` share the consumers. `writers` and `followers` are publishers,
    and consumers of a stream if it `is_stream`."""

    groups: tuple[str, ...] = ("w",)
    consumers: int = 4
    aio_consumers: int = 0
    keepers: int = 0  # who look at dead letters, and bring them back
    keyed: bool = False
    is_stream: bool = False
    lease_s: float = 0.3
    max_retries: int = 6

    @property
    def store(self) -> str:
        return f"{self.mount or self.folder}/store"


def boot_s() -> float:
    """Now, by the clock of leases."""
    return time.clock_gettime(_BOOT)


def open_store(plan: QueuePlan, **options: Any) -> Store:
    return tailrace.open(plan.store, **_settings(plan), **options)


def _settings(plan: QueuePlan) -> dict[str, Any]:
    return {
        "flush": plan.flush,
        "visibility_timeout": f"{round(plan.lease_s * 1000)}ms",
        "retry": {"max_retries": plan.max_retries, "initial_backoff": 0.02, "max_backoff": 0.1},
        "compact_after": 40,
        "segment_bytes": "16KiB",
        "flush_interval": "20ms",
    }


class QueueActor(Actor):
    plan: QueuePlan

    @property
    def consumer_name(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def open_store(self) -> Store:
        burying._BURIAL_MS = BURIAL_MS
        return open_store(self.plan, mode=self.rng.choice(self.plan.modes))

    def target(self, store: Store) -> Queue | Stream:
        return store.stream(QUEUE) if self.plan.is_stream else store.queue(QUEUE)


# --- who publishes ----------------------------------------------------------------------------


class Publisher(QueueActor):
    role = "publisher"

    def act(self) -> None:
        self._numbers = itertools.count()
        with self.open_store() as store:
            queue = self.target(store)
            while not self.is_stopped():
                self.rng.choice((self._one, self._one, self._many, self._some, self._by_topic))(
                    store, queue
                )
                self.pause(0, 0.005, 0.03)

    def _note(self, count: int) -> tuple[int, list[tuple[str, str]]]:
        """Write down what is about to be published: pairs of a key and a value."""
        number = next(self._numbers)
        pairs = []
        for k in range(count):
            value = f"{self.consumer_name}.{number}.{k}"
            crc = zlib.crc32(value.encode())
            pairs.append((f"k{crc % _KEYS}" if crc % 5 else "", value))
        self.book.note("send", number, pairs, boot_s())
        return number, pairs

    def _acked(self, number: int, offset: int) -> None:
        self.book.note("acked", number, offset, boot_s())

    def _one(self, _store: Store, queue: Queue | Stream) -> None:
        number, [(key, value)] = self._note(1)
        self._acked(number, queue.publish(value, key=key or None).offset)

    def _many(self, _store: Store, queue: Queue | Stream) -> None:
        number, pairs = self._note(self.rng.choice((2, 5, 20)))
        receipt = queue.publish_many([(key or None, value) for key, value in pairs])
        assert receipt.count == len(pairs)
        self._acked(number, receipt.offset)

    def _some(self, _store: Store, queue: Queue | Stream) -> None:
        """Without waiting for each."""
        sent = []
        for _ in range(self.rng.choice((2, 8))):
            number, [(key, value)] = self._note(1)
            receipt = queue.publish(value, key=key or None, headers={"n": "1"}, wait=False)
            self.book.note("written", number, receipt.offset, boot_s())
            sent.append((number, receipt))
        for number, receipt in sent:
            receipt.wait()
            self._acked(number, receipt.offset)

    def _by_topic(self, store: Store, _queue: Queue | Stream) -> None:
        number, [(key, value)] = self._note(1)
        published = store.publish(f"$queue/{QUEUE}/some/key", value, key=key or None)
        self._acked(number, published[QUEUE].offset)


# --- who consumes -----------------------------------------------------------------------------


class Worker(QueueActor):
    """Consumes, and does to each message one of the things that can be done to it."""

    role = "worker"
    KINDS: ClassVar = {
        "ack": 30, "nack": 4, "release": 3, "reject": 2, "late": 3, "extend": 2, "abandon": 1,
        "twice": 1, "die": 0.2,
    }  # fmt: skip

    def act(self) -> None:
        self._numbers = itertools.count()
        self._group = self.plan.groups[self.slot % len(self.plan.groups)]
        ways = [self._by_one, self._by_ten, self._ahead, self._in_blocks, self._in_threads]
        with self.open_store() as store:
            queue = store.queue(QUEUE)
            ways[(self.slot + self.incarnation) % len(ways)](queue)
            self.leave()

    def options(self, **others: Any) -> dict[str, Any]:
        key_order = {"key_order": True} if self.plan.keyed else {}
        return {**key_order, **others}

    def _by_one(self, queue: Queue) -> None:
        self._consume(queue, self.rng, 1)

    def _by_ten(self, queue: Queue) -> None:
        self._consume(queue, self.rng, 10, visibility_timeout=2 * self.plan.lease_s)

    def _ahead(self, queue: Queue) -> None:
        self._consume(queue, self.rng, self.rng.choice((1, 3)), prefetch=8)

    def _in_threads(self, queue: Queue) -> None:
        rngs = [random.Random(self.rng.random()) for _ in range(3)]
        threads = [
            threading.Thread(target=self._consume, args=(queue, rng, rng.choice((1, 5))))
            for rng in rngs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _in_blocks(self, queue: Queue) -> None:
        """`for message in …: with message: …`, until somebody closes the consumer."""
        consumer = queue.consumer(self._group, **self.options())
        closer = threading.Thread(target=self._close_when_stopped, args=(consumer,))
        closer.start()
        try:
            since = boot_s()
            for message in consumer:
                self.got(since, [message], self.plan.lease_s)
                self._in_block(message)
                since = boot_s()
        finally:
            self._stopped = True
            closer.join()

    def _close_when_stopped(self, consumer: Consumer) -> None:
        while not self.is_stopped():
            time.sleep(0.02)
        consumer.close()

    def _in_block(self, message: Message) -> None:
        is_bad = self.rng.random() < 0.1

        def do() -> None:
            with message:
                if is_bad:
                    raise RuntimeError("it is bad")

        with suppress(RuntimeError):
            self.settle("nack" if is_bad else "ack", [message], do)

    def _consume(self, queue: Queue, rng: random.Random, many: int, **options: Any) -> None:
        lease_s = options.get("visibility_timeout", self.plan.lease_s)
        with queue.consumer(self._group, **self.options(**options)) as consumer:
            while not self.is_stopped():
                since = boot_s()
                messages = consumer.receive(many, wait=0.05)
                if messages:
                    self.got(since, messages, lease_s)
                    self._work(consumer, messages, rng)

    def got(self, since: float, messages: Iterable[Message | aio.Message], lease_s: float) -> None:
        found = [(m.offset, (m.value or b"").decode(), m.attempt) for m in messages]
        self.book.note("got", since, boot_s(), lease_s, found)

    def choose(self, rng: random.Random) -> str:
        return rng.choices(list(self.KINDS), list(self.KINDS.values()))[0]

    def _work(self, consumer: Consumer, messages: list[Message], rng: random.Random) -> None:
        if len(messages) > 1 and rng.random() < 0.5:
            kind = rng.choice(("ack", "ack", "ack", "nack", "release", "reject"))
            self.settle(kind, messages, lambda: getattr(consumer, kind)(messages))
            return
        for message in messages:
            kind = self.choose(rng)
            if rng.random() < 0.1:
                time.sleep(self.plan.lease_s * rng.random() / 2)
            if kind == "die":
                self.die()
            elif kind == "late":
                time.sleep(self.plan.lease_s * 1.2)
                self.settle("ack", [message], message.ack)
            elif kind == "extend":
                self.settle("extend", [message], message.extend, self.plan.lease_s)
                time.sleep(self.plan.lease_s * rng.random())
                self.settle("ack", [message], message.ack)
            elif kind == "twice":
                self.settle("ack", [message], message.ack)
                self.settle("ack", [message], message.ack)
            elif kind == "nack":
                delay = rng.choice((None, 0, 0.1))
                self.settle("nack", [message], partial(message.nack, delay, "why"))
            elif kind != "abandon":
                self.settle(kind, [message], getattr(message, kind))

    def leave(self) -> None:
        """What it still has is free when it closes its store, as when it dies."""
        self.book.note("death", self.consumer_name, boot_s())

    def die(self) -> None:
        self.leave()
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE_S)

    def settle(
        self,
        kind: str,
        messages: list[Message],
        do: Callable[[], object],
        lease_s: float = 0.0,
    ) -> None:
        """Do it, with a line before and one after."""
        number = self.settling(kind, messages, lease_s)
        try:
            do()
        except LeaseLost as error:
            self.settled(number, error)
        except RuntimeError:  # out of a block, which has nacked it, or found that it was lost
            lost = [m for m in messages if m.settled is None]
            self.book.note("settled", number, boot_s(), [m.offset for m in lost])
            raise
        else:
            self.settled(number)

    def settling(
        self, kind: str, messages: Iterable[Message | aio.Message], lease_s: float = 0.0
    ) -> int:
        number = next(self._numbers)
        leases = [(m.offset, m.attempt) for m in messages]
        self.book.note("settle", number, kind, leases, boot_s(), lease_s)
        return number

    def settled(self, number: int, error: LeaseLost | None = None) -> None:
        lost = [] if error is None else [int(name.rpartition(":")[2]) for name in error.lost]
        self.book.note("settled", number, boot_s(), lost)


class AioWorker(Worker):
    """Some tasks that share a consumer."""

    role = "aioworker"
    TASKS = 3

    def act(self) -> None:
        self._numbers = itertools.count()
        self._group = self.plan.groups[self.slot % len(self.plan.groups)]
        asyncio.run(self._act())

    async def _act(self) -> None:
        burying._BURIAL_MS = BURIAL_MS
        mode = self.rng.choice(self.plan.modes)
        self._asking: dict[int, float] = {}
        async with aio.open(self.plan.store, mode=mode, **_settings(self.plan)) as store:
            queue = await store.queue(QUEUE)
            consumer = queue.consumer(self._group, **self.options())
            async with consumer, asyncio.TaskGroup() as tasks:
                for number in range(self.TASKS):
                    tasks.create_task(self._consume_aio(consumer, number))
            self.leave()

    async def _consume_aio(self, consumer: aio.Consumer, task: int) -> None:
        while not self.is_stopped():
            # A look that another task has begun may find what we get.
            self._asking[task] = boot_s()
            since = min(self._asking.values())
            messages = await consumer.receive(self.rng.choice((1, 5)), wait=0.05)
            if messages:
                self.got(since, messages, self.plan.lease_s)
            del self._asking[task]
            for message in messages:
                await self._work_aio(message)

    async def _work_aio(self, message: aio.Message) -> None:
        kind = self.choose(self.rng)
        if kind == "die":
            self.die()
        elif kind == "late":
            await asyncio.sleep(self.plan.lease_s * 1.2)
            kind = "ack"
        elif kind in ("extend", "abandon"):
            return
        for _ in range(2 if kind == "twice" else 1):
            verb = "ack" if kind == "twice" else kind
            number = self.settling(verb, [message])
            try:
                await getattr(message, verb)()
            except LeaseLost as error:
                self.settled(number, error)
            else:
                self.settled(number)


class Keeper(QueueActor):
    """Looks at everything, and brings dead letters back."""

    role = "keeper"

    def act(self) -> None:
        with self.open_store() as store:
            queue = store.queue(QUEUE)
            while not self.is_stopped():
                self.pause(0.05, 0.2)
                for group in self.plan.groups:
                    if group in queue.group_ids():
                        queue.pending(group)
                        queue.peek(group, 3)
                queue.groups()
                dead = store.dead(QUEUE, 20)
                if dead and self.rng.random() < 0.5:
                    limit = self.rng.choice((None, 3))
                    with suppress(LeaseLost):  # another one is at it
                        self.book.note("redriven", store.redrive(QUEUE, limit=limit))


class Reader(QueueActor):
    """A consumer of a stream."""

    role = "reader"

    def act(self) -> None:
        with self.open_store() as store:
            is_auto = self.rng.random() < 0.5
            with store.stream(QUEUE).consumer(
                self.plan.groups[0], auto_commit=is_auto, auto_commit_interval="30ms"
            ) as consumer:
                while not self.is_stopped():
                    messages = consumer.receive(self.rng.choice((1, 5, 20)), wait=0.05)
                    for message in messages:
                        value = (message.value or b"").decode()
                        self.book.note("processed", message.offset, value, boot_s())
                        if self.rng.random() < 0.1:
                            message.ack() if is_auto else consumer.commit(message)
                            self._ask(consumer)
                    if self.rng.random() < 0.3:
                        self._ask(consumer)
                    if messages and not is_auto and self.rng.random() < 0.7:
                        consumer.commit()
                    self.pause(0, 0.01)

    def _ask(self, consumer: StreamConsumer) -> None:
        since = boot_s()
        self.book.note("progress", since, consumer.committed, boot_s())


# --- starting and killing them ----------------------------------------------------------------


class QueueCrowd(Crowd):
    plan: QueuePlan

    def conduct(self) -> None:
        plan = self.plan
        rng = random.Random(plan.seed)
        self._book = Book(plan.books, "conductor-0-00000")
        everybody: list[Who] = [(Publisher, slot) for slot in range(plan.writers)]
        if plan.is_stream:
            everybody += [(Reader, slot) for slot in range(plan.consumers)]
        else:
            everybody += [(Worker, slot) for slot in range(plan.consumers)]
            everybody += [(AioWorker, slot) for slot in range(plan.aio_consumers)]
            everybody += [(Keeper, slot) for slot in range(plan.keepers)]
        for who in everybody:
            self.start(who)
        until = time.monotonic() + plan.seconds
        while time.monotonic() < until:
            time.sleep(rng.choice((0.02, 0.1, 0.25)) * rng.random() * 2)
            victims = rng.choice((everybody, *[[rng.choice(everybody)]] * 12))
            way = signal.SIGKILL if rng.random() < 0.8 else signal.SIGTERM
            for who in victims:
                self.end(who, way)
            time.sleep(rng.choice((0, 0, 0.03)))
            for who in victims:
                self.start(who)
        way = rng.choice((signal.SIGKILL, signal.SIGTERM))
        for who in everybody:
            self.end(who, way)

    def end(self, who: Who, way: signal.Signals) -> None:
        """It may have killed itself before: then its death is in two books, and the earlier one
        counts."""
        kind, slot = who
        if way is signal.SIGKILL:
            name = f"{kind.role}{slot}.{self.incarnations[who] - 1}"
            self._book.note("death", name, boot_s())
        pid = self.pids[who]
        os.kill(pid, way)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                is_killed = (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGKILL)
                way = signal.SIGKILL if is_killed else way
                break
            time.sleep(0.001)
        super().end(who, way)


# --- the test's side --------------------------------------------------------------------------


def run(plan: QueuePlan) -> None:
    """Have a crowd do it. None of them is left behind, however it ends."""
    plan.books.mkdir(parents=True)
    complaints = Path(plan.folder) / "complaints"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.queue_crowd", str(plan)],
            cwd=ROOT,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        code = process.wait(plan.seconds + 4 * PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not code, "\n".join([complaints.read_text(), *errors_of(plan)])


def errors_of(plan: QueuePlan) -> list[str]:
    """What should not have happened to anybody. A line that one who was killed did not finish is
    cut off, as it should be."""
    books = {path.name: read_book(path) for path in sorted(plan.books.iterdir())}
    return [
        f"{who}: {event[1]}"
        for who, events in books.items()
        for event in events
        if event[0] == "error" and "an unfinished line was cut off" not in event[1]
    ]


if __name__ == "__main__":
    QueueCrowd(QueuePlan.parse(sys.argv[1])).conduct()
