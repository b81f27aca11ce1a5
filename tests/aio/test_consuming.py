"""How tasks wait for messages: alone, together, and until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, ConfigError, InvalidName, LeaseLost, aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Call, Fail, FaultyFileSystem, ManualClock
from tests.aio.queue_support import offsets, values
from tests.aio.support import collect, run, steps, until
from tests.log.helpers import WAIT, eventually, run_python
from tests.threads import our_threads

KINDS = ["queue", "stream"]


async def make(store: aio.Store, kind: str, **options: Any) -> Any:
    return await getattr(store, kind)("q", **options)


class Gate:
    """Has looks for messages end only when it is opened."""

    def __init__(self, consumer: Any) -> None:
        self._look: Callable[[int], Any] = consumer._blocking.look_now
        self.reached = threading.Event()
        self.opened = threading.Event()
        consumer._blocking.look_now = self._wait

    def _wait(self, max: int) -> Any:
        found = self._look(max)
        self.reached.set()
        assert self.opened.wait(WAIT)
        return found

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, WAIT)


# --- waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, 2])
def test_what_expires_when_it_was_fetched_ahead_is_not_delivered(path: Path, wanted: int) -> None:
    clock = ManualClock()

    async def work() -> None:
        async with aio.open(path, clock=clock, upkeep=False) as store:
            queue = await store.queue("q", dlq={"expired": True})
            await queue.publish_many([b"1", b"2", b"3"], ttl=10)
            await queue.publish(b"stays")
            async with queue.consumer("g", prefetch=10) as consumer:
                [message] = await consumer.receive()
                await message.ack()
                clock.advance(11)
                assert values(await consumer.receive(wanted)) == [b"stays"]
                assert await consumer.receive() == []
            assert [letter.value for letter in await store.dead("q")] == [b"2", b"3"]

    run(work())


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_waits_is_woken(path: Path, kind: str, flush: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush=flush) as store:
            queue = await make(store, kind)
            async with queue.consumer("g") as consumer:
                for number in range(5):
                    task = asyncio.ensure_future(consumer.receive(10, None))
                    await asyncio.sleep(0.01)
                    assert not task.done()
                    await queue.publish(b"%d" % number)
                    assert values(await task) == [b"%d" % number]

    run(work())


def test_messages_of_another_process(path: Path) -> None:
    code = """
import json, sys, tailrace
with tailrace.open(sys.argv[1]) as store:
    for number in range(3):
        store.queue("q").publish(b"%d" % number)
print(json.dumps(True))
"""

    async def work() -> None:
        async with aio.open(path) as store:
            queue = await store.queue("q")
            found = []
            other = asyncio.ensure_future(asyncio.to_thread(run_python, code, path))
            async with asyncio.timeout(WAIT):
                async for message in queue.consume("g"):
                    async with message:
                        found.append(message.value)
                    if len(found) == 3:
                        break
            assert found == [b"0", b"1", b"2"]
            await other

    run(work())


def test_a_message_that_is_ready_again_by_itself(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q", visibility_timeout=0.1)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                [message] = await consumer.receive(9, None)  # its lease has ended
                assert message.delivery_count == 2
                await message.nack(delay=0.1)
                [message] = await consumer.receive(9, None)
                assert message.delivery_count == 3

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_timeouts(path: Path, kind: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            async with queue.consumer("g") as consumer:
                assert await consumer.receive(1, 0.02) == []
                for _ in range(5):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(consumer.receive(1, None), 0.02)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(collect(consumer), 0.02)
                await queue.publish(b"0")
                assert values(await consumer.receive(1, 0)) == [b"0"]

    run(work())


def test_what_came_a_moment_ago_is_found_without_waiting(path: Path) -> None:
    """Although somebody has looked before, and is not done yet."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            async with queue.consumer("g") as consumer:
                gate = Gate(consumer)
                task = asyncio.ensure_future(consumer.receive(1, None))
                await gate.until_reached()
                task.cancel()
                await asyncio.wait([task])
                await queue.publish(b"0")
                waiting = asyncio.ensure_future(consumer.receive(1, 0))
                await steps(3)
                gate.opened.set()
                assert values(await waiting) == [b"0"]

    run(work())


def test_a_look_that_was_done_a_moment_ago(path: Path) -> None:
    """Nobody has been told of it yet: who comes then neither takes it for his own, nor spins."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            async with queue.consumer("g") as consumer:
                gate = Gate(consumer)
                task = asyncio.ensure_future(consumer.receive(1, None))
                await gate.until_reached()
                look = consumer._look
                assert look is not None
                look.future.set_result(None)
                gate.opened.set()
                assert await consumer.receive(1, 0) == []
                await queue.publish(b"0")
                assert values(await task) == [b"0"]

    run(work())


def test_keeping_a_message_that_is_lost_all_the_same(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q", visibility_timeout=0.1)
            await queue.publish_many([b"0", b"1"])
            async with queue.consumer("g") as consumer:
                first, second = await consumer.receive(2)
                async with first.auto_extend() as keeping:
                    await first.ack()
                    await asyncio.sleep(0.1)
                assert not keeping.lost  # it was settled
                async with second.auto_extend() as keeping:
                    await queue.purge()
                    await until(lambda: keeping.lost)
                [letter] = await queue.peek("g", 1) or [second]
                with pytest.raises(LeaseLost):
                    await letter.ack()

    run(work())


@pytest.mark.parametrize("word", ["ack", "nack", "reject", "release"])
def test_what_is_settled_while_it_is_kept_is_not_lost(path: Path, word: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q", visibility_timeout=0.06)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                async with message.auto_extend() as keeping:
                    await getattr(message, word)()
                    assert keeping._task is not None
                    await asyncio.wait_for(asyncio.wait([keeping._task]), WAIT)
                assert not keeping.lost

    run(work())


def test_keeping_a_message_while_the_time_becomes_shorter(path: Path) -> None:
    """When to extend next is for the last extension to say."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q", visibility_timeout=3)
            await queue.publish(b"0")
            async with queue.consumer("g") as one, queue.consumer("g") as other:
                [message] = await one.receive()
                async with message.auto_extend() as keeping:
                    await queue.configure(visibility_timeout=0.5)
                    assert await other.receive(1, 4.5) == []
                    assert not keeping.lost
                await message.ack()

    run(work())


@pytest.mark.parametrize("when", ["before", "within"])
def test_keeping_a_message_never_shortens_its_lease(path: Path, when: str) -> None:
    clock = ManualClock()

    async def work() -> None:
        async with aio.open(path, clock=clock, upkeep=False) as store:
            queue = await store.queue("q", visibility_timeout=0.05)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                if when == "before":
                    await message.extend(60)
                async with message.auto_extend():
                    if when == "within":
                        await message.extend(60)
                    await asyncio.sleep(0.2)  # several times, if it was to be
                clock.advance(59)
                assert await consumer.receive() == []
                clock.advance(2)
                assert offsets(await consumer.receive()) == [0]

    run(work())


def test_keeping_a_message_for_as_long_as_its_consumer_asked_for(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q", visibility_timeout="1h")
            await queue.publish(b"0")
            own: dict[str, Any] = {"visibility_timeout": 0.4}
            async with queue.consumer("g", **own) as one, queue.consumer("g", **own) as other:
                [message] = await one.receive()
                async with message.auto_extend() as keeping:
                    assert await other.receive(1, 0.9) == []
                assert not keeping.lost
                await message.ack()

    run(work())


def test_keeping_a_message_while_the_disk_is_full_for_a_moment(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    failures = 0

    def plan(call: Call) -> Fail | None:
        nonlocal failures
        if call.op == "pwrite" and call.path.endswith("ops.log") and failures < 3:
            failures += 1
            return Fail(errno.ENOSPC)
        return None

    async def work() -> None:
        async with aio.open(path, fs=fs, flush="async") as store:
            queue = await store.queue("q", visibility_timeout=0.6)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                async with message.auto_extend() as keeping:
                    fs.plan = plan
                    await until(lambda: failures == 3)
                    assert not keeping.lost
                fs.plan = None
                await message.ack()

    run(work())


# --- the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consumer", "queue", "store", "delete"])
@pytest.mark.parametrize("kind", KINDS)
def test_closing_ends_whoever_waits(path: Path, kind: str, how: str) -> None:
    async def work() -> None:
        store = await aio.open(path, flush="async")
        queue = await make(store, kind)
        consumer = await queue.consumer("g")
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(consumer.receive(1, None)) for _ in range(3)
        ]
        tasks += [asyncio.ensure_future(collect(each)) for each in (consumer, queue.consume("h"))]
        tasks += [asyncio.ensure_future(collect(queue.read(follow=True))) for _ in range(2)]
        await asyncio.sleep(0.05)
        if how == "consumer":
            await consumer.close()
            await asyncio.gather(*tasks[:4])
        elif how == "queue":
            await queue.close()
        elif how == "delete":
            await store.delete("q")
        if how in ("store", "consumer"):
            await store.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        # Who iterates may just be about to ask again.
        assert all(each == [] or (how == "delete" and isinstance(each, Closed)) for each in found)
        said = "the queue 'q' was deleted" if how == "delete" else "is closed"
        assert how != "delete" or all(str(each).startswith(said) for each in found[:3])
        with pytest.raises(Closed, match=said):
            await consumer.receive()
        await store.close()

    run(work())


def test_closing_while_a_look_is_under_way(path: Path) -> None:
    """What it brings goes to who asked for it, or back."""

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1"])
            for is_cancelled in (False, True):
                consumer = await queue.consumer("g")
                gate = Gate(consumer)
                task = asyncio.ensure_future(consumer.receive(1, None))
                await gate.until_reached()
                if is_cancelled:
                    task.cancel()
                closing = asyncio.ensure_future(consumer.close())
                await steps(5)
                assert not closing.done()
                gate.opened.set()
                await closing
                await asyncio.wait([task])
                assert is_cancelled or values(task.result()) == [b"0"]
            assert [each.offset for each in await queue.pending("g")] == [0, 1]
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive(9)
                assert (message.value, message.delivery_count) == (b"1", 1)

    run(work())


def test_a_close_that_is_cancelled(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            for number in range(15):
                consumer = await queue.consumer("g")
                task = asyncio.ensure_future(consumer.close())
                await steps(number)
                task.cancel()
                await asyncio.wait([task])
                if number:
                    assert consumer.closed
                await consumer.close()
                [info] = await queue.groups()
                assert info.members == []

    run(work())


# --- together -----------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_many_tasks_share_a_consumer(path: Path, kind: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            async with queue.consumer("g") as consumer:
                found: list[int] = []

                async def consume(number: int) -> None:
                    with contextlib.suppress(Closed):  # it was acking meanwhile
                        while messages := await consumer.receive(1 + number % 3, None):
                            assert len(messages) <= 1 + number % 3
                            for message in messages:
                                await message.ack()
                            found.extend(offsets(messages))
                            await asyncio.sleep(0)

                tasks = [asyncio.ensure_future(consume(number)) for number in range(20)]
                for _ in range(30):
                    await queue.publish_many([b"x"] * 10)
                    await asyncio.sleep(0.001)
                await until(lambda: len(found) == 300)
                await consumer.close()
                await asyncio.gather(*tasks)
                assert sorted(found) == list(range(300))
            [info] = await queue.groups()
            assert info.committed == 300

    run(work())


def test_arguments_that_are_wrong(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            consumer: Any = await queue.consumer("g@")
            with pytest.raises(TypeError, match="max is a number"):
                await consumer.receive("a")
            with pytest.raises(ConfigError, match="wait: 'soon'"):
                await consumer.receive(1, "soon")
            [message] = await consumer.receive(1, 10**400)  # more than a float can be
            with pytest.raises(TypeError, match="a list of messages"):
                await consumer.ack(message)
            with pytest.raises(TypeError, match="a list of messages"):
                await consumer.ack([1])
            await consumer.ack([message])
            assert await consumer.receive(1, "10ms") == []
            stream = await store.stream("s")
            await stream.publish(b"0")
            reader: Any = await stream.consumer("g")
            assert len(await reader.receive(1, "1s")) == 1
            with pytest.raises(TypeError, match="an offset"):
                await reader.commit("5")

    run(work())


def test_what_another_task_is_still_at_is_not_committed(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s", auto_commit_interval=0)
            await stream.publish_many([b"x"] * 20)
            async with stream.consumer("g") as consumer:
                go_on = asyncio.Event()

                async def slow() -> None:
                    assert offsets(await consumer.receive(2)) == [0, 1]
                    await go_on.wait()
                    assert offsets(await consumer.receive(2)) == [7, 8]

                async def quick(wanted: list[int]) -> None:
                    for offset in wanted:
                        assert offsets(await consumer.receive()) == [offset]

                task = asyncio.ensure_future(slow())
                await steps(1)
                await until(lambda: bool(consumer._held))
                await quick([2, 3, 4, 5, 6])
                assert await consumer.committed() == 0
                go_on.set()
                await task
                await quick([9])
                assert await consumer.committed() == 9  # it has ended: it is not at 7 and 8
            async with stream.consumer("g") as consumer:
                assert offsets(await consumer.receive()) == [9]

    run(work())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_a_task_had_that_failed_is_not_committed(path: Path, is_cancelled: bool) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s", auto_commit_interval=0)
            await stream.publish_many([b"x"] * 9)
            async with stream.consumer("g") as consumer:

                async def fail() -> None:
                    await consumer.receive(2)
                    if is_cancelled:
                        await asyncio.sleep(WAIT)
                    raise ValueError("this one")

                task = asyncio.ensure_future(fail())
                await until(lambda: bool(consumer._held))
                if is_cancelled:
                    task.cancel()
                await asyncio.wait([task])
                for offset in (2, 3, 4):
                    assert offsets(await consumer.receive()) == [offset]
                assert await consumer.committed() == 0
                with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
                    await task
            async with stream.consumer("g") as consumer:  # and so somebody else gets it
                assert offsets(await consumer.receive(9)) == [0, 1]
                await consumer.seek(5)
                assert offsets(await consumer.receive(2)) == [5, 6]
                await consumer.receive()
                assert await consumer.committed() == 7

    run(work())


def test_a_seek_forgets_what_tasks_were_at(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s", auto_commit_interval=0)
            await stream.publish_many([b"x"] * 9)
            async with stream.consumer("g") as consumer, stream.consumer("g") as other:
                task = asyncio.ensure_future(_receive_and_stay(consumer))
                await until(lambda: bool(consumer._held))
                await other.seek(0)
                for offset in range(4):
                    assert offsets(await consumer.receive()) == [offset]
                assert await consumer.committed() == 3
                task.cancel()
                await asyncio.wait([task])

    run(work())


async def _receive_and_stay(consumer: aio.StreamConsumer) -> None:
    await consumer.receive(2)
    await asyncio.sleep(WAIT)


def test_each_receive_may_be_a_task_of_its_own(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s", auto_commit_interval=0)
            await stream.publish_many([b"x"] * 9)
            async with stream.consumer("g") as consumer:
                for offset in range(5):
                    found = await asyncio.wait_for(consumer.receive(), WAIT)
                    assert offsets(found) == [offset]
                assert await consumer.committed() == 4

    run(work())


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_one_event_is_enough_for_all_who_wait(path: Path, kind: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            async with queue.consumer("g") as consumer:
                for _ in range(20):
                    tasks = [asyncio.ensure_future(consumer.receive(1, None)) for _ in range(10)]
                    await asyncio.sleep(0.005)
                    await queue.publish_many([b"x"] * 10)
                    for messages in await asyncio.gather(*tasks):
                        assert len(messages) == 1

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cancelled_task_would_have_got_goes_to_one_who_waits(path: Path, kind: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            async with queue.consumer("g") as consumer:
                waiting = asyncio.ensure_future(consumer.receive(1, None))
                await asyncio.sleep(0.05)
                gate = Gate(consumer)
                await queue.publish(b"0")
                await gate.until_reached()  # it has found the message
                other = asyncio.ensure_future(consumer.receive(1, None))
                await steps(3)
                waiting.cancel()
                await asyncio.wait([waiting])
                gate.opened.set()
                assert values(await other) == [b"0"]

    run(work())


def test_those_who_want_many_and_those_who_want_one(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish_many([b"x"] * 30)
            async with queue.consumer("g") as consumer:
                wanted = [1, 10, 2, 7, 10]
                found = await asyncio.gather(*(consumer.receive(each, None) for each in wanted))
                assert [len(messages) for messages in found] == wanted

    run(work())


def test_an_error_is_told_to_all_who_wait(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            async with queue.consumer("g") as consumer:
                tasks = [asyncio.ensure_future(consumer.receive(1, None)) for _ in range(5)]
                await asyncio.sleep(0.05)
                await queue.delete_group("g")
                await queue.publish(b"0")
                for task in tasks:
                    with pytest.raises(Closed, match="the group 'g'"):
                        await task

    run(work())


# --- joining ------------------------------------------------------------------------------


def test_it_joins_when_it_is_used(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            consumer = queue.consumer("g", filter="#")
            assert repr(consumer) == "aio.Consumer('q', 'g@#', not open)"
            assert await queue.group_ids() == []
            for verb in (consumer.ack, consumer.nack, consumer.release):
                with pytest.raises(Closed, match="is not open: use `async with`, or await it"):
                    await verb([])
            with pytest.raises(Closed, match="is not open"):
                _ = consumer.id
            tasks = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
            assert sorted(map(len, await asyncio.gather(*tasks))) == [0, 0, 1]
            assert repr(consumer) == "aio.Consumer('q', 'g@#', open)"
            [info] = await queue.groups()
            assert [member.id for member in info.members] == [consumer.id]
            await consumer.close()
            assert repr(consumer) == "aio.Consumer('q', 'g@#', closed)"
            with pytest.raises(Closed, match="is closed"):
                await consumer.open()

    run(work())


def test_it_cannot_join(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            consumer = queue.consumer("no/../group", prefetch=0)
            for _ in range(2):
                with pytest.raises((ConfigError, InvalidName)):
                    await consumer.receive()
            tasks = [asyncio.ensure_future(consumer.open()) for _ in range(3)]
            await asyncio.wait(tasks)
            assert all(isinstance(task.exception(), ConfigError | InvalidName) for task in tasks)
            await consumer.close()

    run(work())


def test_joining_that_is_cancelled(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            for number in range(20):
                consumer = queue.consumer("g")
                task = asyncio.ensure_future(consumer.open())
                await steps(number)
                task.cancel()
                await asyncio.wait([task])
                if number % 2:
                    [message] = await consumer.receive(1, None)
                    await message.release()
                    await consumer.close()
                del consumer, task
            await until_nobody_is_there(queue)

    run(work())


def test_a_consumer_that_is_closed_before_it_has_joined(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            await queue.consumer("g").close()
            assert await queue.group_ids() == []
            for number in range(10):
                consumer = queue.consumer("g")
                opening = asyncio.ensure_future(consumer.open())
                await steps(number)
                await consumer.close()
                await asyncio.wait([opening])
                error = opening.exception()
                assert error is None or isinstance(error, Closed)
            await until_nobody_is_there(queue)

    run(work())


async def until_nobody_is_there(queue: Any) -> None:
    """But us, who tidy up after those who were dropped."""
    gc.collect()
    async with queue.consumer("g") as consumer:
        while True:
            [info] = await queue.groups()
            if [member.id for member in info.members] == [consumer.id]:
                return
            await consumer.receive()


def test_seeking_before_anything_was_received(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s")
            await stream.publish_many([b"0", b"1", b"2"])
            consumer = stream.consumer("g")
            await consumer.seek(2)
            assert values(await consumer.receive(9)) == [b"2"]
            await consumer.close()

    run(work())


def test_seeking_forgets_what_was_found_before(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            stream = await store.stream("s")
            await stream.publish_many([b"0", b"1", b"2"])
            async with stream.consumer("g") as consumer:
                gate = Gate(consumer)
                task = asyncio.ensure_future(consumer.receive(2, None))
                await gate.until_reached()
                task.cancel()
                seeking = asyncio.ensure_future(consumer.seek(1))
                await steps(3)
                gate.opened.set()
                await seeking
                assert values(await consumer.receive(9)) == [b"1", b"2"]

    run(work())


# --- dropping -----------------------------------------------------------------------------


def nothing_is_left() -> bool:
    gc.collect()  # a group goes after its consumers
    return not our_threads()


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_that_is_dropped_leaves(path: Path, kind: str) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await make(store, kind)
            await queue.publish_many([b"0", b"1"])
            consumer = await queue.consumer("g")
            [message] = await consumer.receive()
            gone = weakref.ref(consumer)
            del consumer
            assert gone() is None
            await message.ack()
            message = await anext(queue.consume("g"))
            assert message.value == b"1"
            async with queue.consumer("g") as consumer:
                await consumer.receive()
                [info] = await queue.groups()
                assert [member.id for member in info.members] == [consumer.id]

    run(work())


def test_a_store_that_is_dropped(path: Path) -> None:
    async def work() -> None:
        store = await aio.open(path, flush="async")
        queue = await store.queue("q")
        stream = await store.stream("s")
        await queue.publish(b"0")
        await stream.publish(b"0")
        consumer = await queue.consumer("g")
        [message] = await consumer.receive()
        await message.ack()
        async for _message in stream.consume("g"):
            break
        async for _message in queue.read(follow=True):
            break
        assert our_threads()

    run(work())
    eventually(nothing_is_left)
    asyncio.run(reopened(path))


async def reopened(path: Path) -> None:
    async with aio.open(path) as store:
        queue = await store.queue("q")
        async with queue.consumer("g") as consumer:
            assert await consumer.receive() == []


def test_a_loop_that_ends_while_tasks_wait(path: Path) -> None:
    async def work() -> None:
        store = await aio.open(path, flush="async")
        queue = await store.queue("q")
        for _ in range(3):
            asyncio.ensure_future(collect(queue.consume("g")))  # noqa: RUF006
        asyncio.ensure_future(collect(queue.read(follow=True)))  # noqa: RUF006
        await asyncio.sleep(0.05)

    run(work())
    eventually(nothing_is_left)


# --- several loops ------------------------------------------------------------------------


def test_two_loops_share_a_store(path: Path) -> None:
    async def consume(store: aio.Store, name: str) -> int:
        queue = await store.queue("q")
        count = 0
        async with queue.consumer(name) as consumer:
            while count < 50:
                for message in await consumer.receive(10, None):
                    count += 1
                    await message.ack()
        return count

    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue = await store.queue("q")
            other = asyncio.ensure_future(
                asyncio.to_thread(asyncio.run, consume(store, "other loop"))
            )
            ours = asyncio.ensure_future(consume(store, "this loop"))
            for number in range(50):
                await queue.publish(b"%d" % number)
            assert [await ours, await other] == [50, 50]

    run(work())


def test_closing_a_store_ends_those_who_wait_in_another_loop(path: Path) -> None:
    async def work() -> None:
        store = await aio.open(path, flush="async")
        queue = await store.queue("q")
        begun = threading.Event()

        async def consume() -> list[aio.Message]:
            async with queue.consumer("g") as consumer:
                begun.set()
                return await consumer.receive(1, None)

        other = asyncio.ensure_future(asyncio.to_thread(asyncio.run, consume()))
        await asyncio.to_thread(begun.wait, WAIT)
        await asyncio.sleep(0.05)
        await store.close()
        assert await other == []

    run(work())
