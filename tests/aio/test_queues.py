"""Work queues, through both APIs: claim, settle, come back, be buried."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace import (
    Closed,
    ConfigError,
    Full,
    InvalidName,
    LeaseLost,
    Locked,
    NotWritten,
    OutcomeUnknown,
    Outgoing,
)
from tailrace import Message as BlockingMessage
from tailrace.queue.classic import ClassicGroup
from tests.aio.queue_support import APIS, Api, offsets, values
from tests.aio.support import collect, run
from tests.log.helpers import WAIT
from tests.queue.clocks import ManualClock

FAST: dict[str, Any] = {"flush": "async"}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def progress(queue: Any, group: str = "g") -> tuple[int, int]:
    [info] = [each for each in await queue.groups() if each.id == group]
    return info.cursor, info.committed


# --- claim and ack ------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_claiming_moves_the_cursor_and_acking_what_is_committed(
    path: Path, api: Api, flush: str
) -> None:
    async def work() -> None:
        async with api.open(path, flush=flush) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            consumer = await queue.consumer("g")
            first, second = await consumer.receive(2)
            assert values([first, second]) == [b"0", b"1"]
            assert await progress(queue) == (2, 0)
            await first.ack()
            assert await progress(queue) == (2, 1)
            await second.ack()
            assert await progress(queue) == (2, 2)
            assert first.settled == second.settled == "acked"
            assert values(await consumer.receive(9)) == [b"2"]
            assert await consumer.receive(9) == []
            await consumer.close()

    run(work())


def test_acks_in_any_order(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % n for n in range(6)])
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(6)
                for number, committed in ((5, 0), (1, 0), (0, 2), (3, 2), (2, 4), (4, 6)):
                    await messages[number].ack()
                    assert await progress(queue) == (6, committed)

    run(work())


def test_what_a_message_tells(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            receipt = await queue.publish(
                "text",
                key="k",
                routing_key="eu/images",
                headers={"a": "b"},
                message_id="mine",
                ttl=60,
                timestamp=1,
            )
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                assert (message.queue, message.offset) == ("q", receipt.offset)
                assert (message.value, message.key, message.timestamp) == (b"text", b"k", 1)
                assert message.headers["a"] == b"b"
                assert (message.topic, message.routing_key) == ("$queue/q/eu/images", "eu/images")
                assert (message.id, message.message_id) == ("mine", "q:0")
                assert message.expires_at == clock.wall_ms() + 60_000
                assert (message.partition, message.delivery_count) == (0, 1)
                assert (message.attempt, message.epoch, message.last_error) == (1, 0, "")
                assert message.record.value == b"text"
                assert message.settled is None
                assert "delivery_count=1" in repr(message)
                properties = await message.properties()
                assert properties["message-id"] == "q:0"
                assert properties["group-id"] == "g"
                await message.ack()

    run(work())


def test_a_batch_is_settled_in_one_step(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % n for n in range(10)])
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(10)
                await consumer.ack(messages[:2])
                await consumer.nack(messages[2:4], 1, "broken")
                await consumer.reject(messages[4:6], "no good")
                await consumer.release(messages[6:8])
                await consumer.extend(messages[8:], 500)
                assert [message.settled for message in messages] == [
                    *["acked"] * 2,
                    *["nacked"] * 2,
                    *["rejected"] * 2,
                    *["released"] * 2,
                    *[None] * 2,
                ]
                assert offsets(await consumer.receive(10)) == [6, 7]
                pending = await queue.pending("g")
                assert [each.offset for each in pending] == [2, 3, 6, 7, 8, 9]
                assert pending[0].last_error == "broken"
                assert pending[-1].left > 400
                assert offsets(await store.dead("q")) == [0, 1]
                clock.advance(1.1)
                assert offsets(await consumer.receive(10)) == [2, 3]

    run(work())


def test_messages_of_another_group_are_refused(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as ours, queue.consumer("other") as theirs:
                messages = await theirs.receive()
                for verb in (ours.ack, ours.nack, ours.reject, ours.release, ours.extend):
                    with pytest.raises(ValueError, match="is not of the group 'g'"):
                        await verb(messages)
                await theirs.ack(messages)

    run(work())


# --- coming back --------------------------------------------------------------------------


def test_a_nack_comes_back_after_its_delay(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                await message.nack(delay="2s", error="why")
                assert await consumer.receive() == []
                clock.advance(2.1)
                [again] = await consumer.receive()
                assert (again.delivery_count, again.last_error) == (2, "why")
                await again.ack()

    run(work())


def test_without_a_delay_a_nack_backs_off(path: Path, api: Api, clock: ManualClock) -> None:
    retry = {"initial_backoff": 1, "multiplier": 3, "max_backoff": 5, "max_retries": "unlimited"}

    async def work() -> None:
        async with api.open(path, clock=clock, retry=retry, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                for number, backoff in enumerate((1, 3, 5, 5), 1):
                    [message] = await consumer.receive()
                    assert message.delivery_count == number
                    await message.nack()
                    clock.advance(backoff - 0.1)
                    assert await consumer.receive() == []
                    clock.advance(0.2)

    run(work())


def test_a_release_does_not_count(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                for _ in range(3):
                    [message] = await consumer.receive()
                    assert message.delivery_count == 1
                    await message.release()
                    assert message.settled == "released"

    run(work())


def test_a_lease_ends_and_its_message_goes_to_another(
    path: Path, api: Api, clock: ManualClock
) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q", visibility_timeout="10s")
            await queue.publish(b"0")
            async with queue.consumer("g") as one, queue.consumer("g") as other:
                [message] = await one.receive()
                assert await other.receive() == []
                clock.advance(10.1)
                [again] = await other.receive()
                assert again.delivery_count == 2
                for verb in ("ack", "nack", "reject", "release", "extend"):
                    with pytest.raises(LeaseLost, match="was delivered again") as caught:
                        await getattr(message, verb)()
                    assert caught.value.lost == ["q:0"]
                await again.ack()

    run(work())


def test_an_ack_after_the_lease_counts_if_nobody_has_it(
    path: Path, api: Api, clock: ManualClock
) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g", visibility_timeout=1) as consumer:
                [message] = await consumer.receive()
                clock.advance(100)
                await message.ack()
                assert await progress(queue) == (1, 1)

    run(work())


def test_extending(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q", visibility_timeout=10)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                clock.advance(9)
                await message.extend("60s")
                clock.advance(59)
                assert await consumer.receive() == []
                await message.extend()
                clock.advance(9)
                assert await consumer.receive() == []
                clock.advance(2)
                assert len(await consumer.receive()) == 1

    run(work())


def test_keeping_a_message_while_a_block_runs(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q", visibility_timeout=1)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer, queue.consumer("g") as other:
                [message] = await consumer.receive()
                async with message.auto_extend():  # each third of a second
                    assert await other.receive(1, wait=1.5) == []
                await message.ack()
                assert await other.receive(1, wait=0.3) == []

    run(work())


@pytest.mark.parametrize(
    "error", [Full, Locked, NotWritten, OutcomeUnknown, partial(OSError, errno.EIO)]
)
def test_keeping_a_message_goes_on_after_an_error(
    path: Path, api: Api, monkeypatch: pytest.MonkeyPatch, error: Callable[[str], Exception]
) -> None:
    calls, keep = 0, ClassicGroup.keep

    def fail_once(group: ClassicGroup, message: BlockingMessage) -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error("not now")
        return keep(group, message)

    monkeypatch.setattr(ClassicGroup, "keep", fail_once)

    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q", visibility_timeout=0.6)
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer, queue.consumer("g") as other:
                [message] = await consumer.receive()
                async with message.auto_extend() as keeping:
                    assert await other.receive(1, wait=1.5) == []
                    assert calls > 4
                    assert not keeping.lost
                await message.ack()

    run(work())


def test_settled_twice(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                await message.ack()
                with pytest.raises(LeaseLost, match="q:0 cannot be acked: it was acked before"):
                    await message.ack()
                with pytest.raises(LeaseLost, match="q:0 cannot be nacked: it was acked before"):
                    await message.nack()
                with pytest.raises(LeaseLost, match="cannot be released: it was acked before"):
                    await consumer.release([message])

    run(work())


def test_a_batch_of_which_some_are_lost(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            async with queue.consumer("g") as consumer:
                messages = await consumer.receive(3)
                await messages[1].ack()
                with pytest.raises(LeaseLost) as caught:
                    await consumer.ack(messages)
                assert caught.value.lost == ["q:1"]
                assert await progress(queue) == (3, 3)

    run(work())


# --- blocks -------------------------------------------------------------------------------


def test_a_block_acks_or_nacks(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            async with queue.consumer("g") as consumer:
                first, second, third = await consumer.receive(3)
                async with first:
                    pass
                with pytest.raises(KeyError):
                    async with second:
                        raise KeyError("lost")
                async with third:
                    await third.release()
                assert (first.settled, second.settled) == ("acked", "nacked")
                assert third.settled == "released"
                [third] = await consumer.receive(3)
                clock.advance(5.1)
                [second] = await consumer.receive(3)
                assert second.last_error == "KeyError: 'lost'"

    run(work())


def test_a_block_whose_error_cannot_be_made_text(path: Path, api: Api, clock: ManualClock) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                with pytest.raises(Mute):
                    async with message:
                        raise Mute
                assert message.settled == "nacked"
                clock.advance(5.1)
                [again] = await consumer.receive()
                assert again.last_error == "Mute"

    run(work())


def test_a_block_whose_lease_was_lost(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("g", visibility_timeout=1) as consumer:
                [message] = await consumer.receive()
                clock.advance(2)
                [again] = await consumer.receive()
                with pytest.raises(LeaseLost):
                    async with message:
                        pass
                with pytest.raises(KeyError):  # which matters more
                    async with message:
                        raise KeyError
                await again.ack()

    run(work())


# --- dead letters -------------------------------------------------------------------------


def test_rejected_messages_come_back_by_redriving(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0", key="k", headers={"a": "b"})
            async with queue.consumer("g") as consumer:
                assert await store.dead("q") == []
                assert await store.redrive("q") == 0
                [message] = await consumer.receive()
                await message.reject("no good")
                assert message.settled == "rejected"
                assert await consumer.receive() == []
                [letter] = await store.dead("q")
                assert (letter.value, letter.key, letter.headers["a"]) == (b"0", b"k", b"b")
                assert b"no good" in [value for _name, value in letter.headers.pairs]
                with pytest.raises(LeaseLost, match="was only looked at"):
                    await letter.ack()
                with pytest.raises(InvalidName, match="no group 'other'"):
                    await store.redrive("q", group="other")
                assert await store.redrive("q") == 1
                assert await store.dead("q", 5) == []
                [again] = await consumer.receive()
                assert (again.value, again.delivery_count) == (b"0", 1)
                await again.ack()

    run(work())


def test_too_many_failures(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q", retry={"max_retries": 2})
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                for _ in range(3):
                    [message] = await consumer.receive()
                    await message.nack(0, "again")
                assert await consumer.receive() == []
                [letter] = await store.dead("q", limit=1)
                assert letter.value == b"0"

    run(work())


def test_errors_and_reasons_are_text(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q", retry={"initial_backoff": 0})
            await queue.publish(b"0")
            async with queue.consumer("g", id="\udcff") as consumer:
                [message] = await consumer.receive()
                with pytest.raises(TypeError, match="error is text, not 5"):
                    await message.nack(error=5)
                with pytest.raises(TypeError, match="error is text, not 5"):
                    await consumer.nack([message], error=5)
                with pytest.raises(TypeError, match="reason is text, not b'why'"):
                    await message.reject(b"why")
                with pytest.raises(TypeError, match="reason is text, not b'why'"):
                    await consumer.reject([message], b"why")
                with pytest.raises(OSError, match="bad"):
                    async with message:
                        raise OSError("bad \udcff file")
                [message] = await consumer.receive(1, WAIT)
                assert message.last_error == "OSError: bad \\udcff file"
                await message.ack()

    run(work())


# --- ack and publish ----------------------------------------------------------------------


def test_acking_and_publishing_in_one_step(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue, done = await store.queue("q"), await store.queue("done")
            log = await store.stream("log", topics=["events/#"])
            await queue.publish(b"0")
            async with queue.consumer("g", visibility_timeout=1) as consumer:
                [message] = await consumer.receive()
                outgoing = [
                    (done, b"1"),
                    ("$queue/done/late", b"2"),
                    ("events/x", "3"),
                    Outgoing("events/y", b"4", headers={"a": "b"}),
                ]
                with pytest.raises(TypeError, match="a pair of a topic"):
                    await message.ack(publish=[b"no topic"])
                await message.ack(publish=outgoing)
                assert values(await collect(done.read())) == [b"1", b"2"]
                assert values(await collect(log.read())) == [b"3", b"4"]
                assert await progress(queue) == (1, 1)
                with pytest.raises(LeaseLost):
                    await message.ack(publish=outgoing)
                assert await done.length() == 2

    run(work())


def test_what_is_published_goes_to_the_queue_that_was_meant(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store, api.open(path / "other") as another:
            queue, inner = await store.queue("q"), await store.queue("a/b")
            outer, other = await store.queue("a"), await another.queue("a/b")
            await queue.publish(b"0")
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                with pytest.raises(ValueError, match="is of another store"):
                    await message.ack(publish=[(other, b"1")])
                await store.delete("a")
                await store.queue("a")
                with pytest.raises(Closed, match="'a' was deleted"):
                    await message.ack(publish=[(outer, b"1")])
                outgoing: Any = {"queue": getattr(inner, "_inner", inner)}
                await message.ack(publish=[(inner, b"1"), Outgoing("x", b"2", **outgoing)])
            assert values(await collect(inner.read())) == [b"1", b"2"]
            assert await (await store.queue("a")).length() == 0

    run(work())


# --- filters, keys, looking ---------------------------------------------------------------


def test_a_filter_makes_a_group_of_its_own(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            for key in ("eu/a", "us/a", "eu/b", ""):
                await queue.publish(key, routing_key=key)
            async with (
                queue.consumer("g", filter="eu/#") as eu,
                queue.consumer("g", filter="+/a") as a,
                queue.consumer("g") as all_of_them,
            ):
                assert eu.group == "g@eu/#"
                assert values(await eu.receive(9)) == [b"eu/a", b"eu/b"]
                assert values(await a.receive(9)) == [b"eu/a", b"us/a"]
                assert len(await all_of_them.receive(9)) == 4
                assert await queue.group_ids() == ["g", "g@+/a", "g@eu/#"]
                assert values(await queue.peek("h", 9, filter="us/#")) == [b"us/a"]

    run(work())


def test_messages_of_a_key_one_at_a_time(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([("a", b"a0"), ("a", b"a1"), ("b", b"b0"), (None, b"n")])
            async with queue.consumer("g", key_order=True) as one, queue.consumer("g") as other:
                first, second, third = await one.receive(9)
                assert values([first, second, third]) == [b"a0", b"b0", b"n"]
                assert await other.receive(9) == []
                await first.ack()
                assert values(await other.receive(9, wait=5)) == [b"a1"]
                with pytest.raises(ConfigError, match="key_order"):
                    await queue.consumer("g", key_order=False)

    run(work())


def test_looking_without_claiming(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            async with queue.consumer("g", id="me") as consumer:
                assert consumer.id == "me"
                [message] = await consumer.receive()
                assert values(await queue.peek("g")) == [b"1"]
                assert values(await queue.peek("g", 9)) == [b"1", b"2"]
                [pending] = await queue.pending("g")
                assert (pending.offset, pending.consumer, pending.delivery_count) == (0, "me", 1)
                [info] = await queue.groups()
                assert (info.id, info.pending, info.lag) == ("g", 1, 3)
                assert [member.id for member in info.members] == ["me"]
                await message.ack()
                assert await queue.pending("g") == []

    run(work())


def test_prefetching(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % n for n in range(10)])
            async with queue.consumer("g") as other:
                async with queue.consumer("g", prefetch=8) as consumer:
                    assert values(await consumer.receive()) == [b"0"]
                    assert values(await other.receive(9)) == [b"8", b"9"]
                    assert values(await consumer.receive(2)) == [b"1", b"2"]
                found = await other.receive(9, wait=5)  # what it had only fetched
                assert values(found) == [b"3", b"4", b"5", b"6", b"7"]
                assert {message.delivery_count for message in found} == {1}
            with pytest.raises(ConfigError, match="prefetch"):
                await queue.consumer("g", prefetch=0)

    run(work())


def test_two_consumers_of_a_group(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % n for n in range(10)])
            async with queue.consumer("g") as one, queue.consumer("g") as other:
                found = [*await one.receive(3), *await other.receive(3), *await one.receive(9)]
                assert offsets(found) == list(range(10))
                await one.ack(found)
                assert await progress(queue) == (10, 10)

    run(work())


@pytest.mark.parametrize("limits", [{}, {"max_depth": 9}], ids=str)
def test_what_is_no_list_is_refused_by_its_name(
    path: Path, api: Api, limits: dict[str, Any]
) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q", limits=limits)
            wrong: tuple[Any, ...] = ({"a": b"1"}, b"x", bytearray(b"x"), None, 5)
            for values in wrong:
                with pytest.raises(TypeError, match="values is a list of messages, not "):
                    await queue.publish_many(values)
            assert await queue.length() == 0
            await queue.publish(b"x")
            [message] = await (await queue.consumer("g")).receive()
            with pytest.raises(TypeError, match="publish is a list of pairs"):
                await message.ack(publish=5)
            assert message.settled is None
            await message.ack()

    run(work())


# --- iterating ----------------------------------------------------------------------------


def test_iterating_until_the_consumer_is_closed(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            found = []
            consumer = await queue.consume(group="g", prefetch=2)
            async for message in consumer:
                async with message:
                    found.append(message.value)
                if len(found) == 3:
                    await consumer.close()
            assert found == [b"0", b"1", b"2"]
            assert consumer.closed
            with pytest.raises(Closed, match="the consumer of group 'g' is closed"):
                await consumer.receive()
            await consumer.close()
            assert await progress(queue) == (3, 3)

    run(work())


def test_settling_after_the_consumer_was_closed(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1"])
            async with queue.consumer("g") as consumer:
                first, second = await consumer.receive(2)
            await first.ack()
            await consumer.ack([second])
            assert await progress(queue) == (2, 2)
        with pytest.raises((Closed, LeaseLost)):
            await first.ack()

    run(work())


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_nothing_comes(path: Path, api: Api, wait: float) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            async with queue.consumer("g") as consumer:
                assert await consumer.receive(5, wait) == []
                for wrong in (0, -1):
                    with pytest.raises(ValueError, match="max is a number of messages"):
                        await consumer.receive(wrong)

    run(work())


# --- the queue ----------------------------------------------------------------------------


def test_purging(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"%d" % n for n in range(5)])
            async with queue.consumer("g") as consumer:
                [message] = await consumer.receive()
                assert await queue.purge() == 5
                assert await queue.length() == 0
                with pytest.raises(LeaseLost, match="it was deleted from the queue"):
                    await message.ack()
                assert await consumer.receive(9) == []
                await queue.publish(b"5")
                assert offsets(await consumer.receive(9)) == [5]

    run(work())


def test_limits(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q", limits={"max_message_size": 5})
            with pytest.raises(Full, match="max_message_size"):
                await queue.publish(b"123456")
            with pytest.raises(Full, match="max_message_size"):
                await queue.publish_many([b"1", b"123456"])
            with pytest.raises(ValueError, match="reserved"):
                await queue.publish(b"1", headers={"_id": b"x"})
            await queue.configure(limits={"max_message_size": 6})
            assert (await queue.settings()).limits.max_message_size == 6
            await queue.publish(b"123456")

    run(work())


def test_expired_messages(path: Path, api: Api, clock: ManualClock) -> None:
    async def work() -> None:
        async with api.open(path, clock=clock, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0", ttl="1s")
            await queue.publish_many([b"1"], ttl=10)
            clock.advance(2)
            async with queue.consumer("g") as consumer:
                assert values(await consumer.receive(9)) == [b"1"]
            assert values(await collect(queue.read())) == [b"0", b"1"]

    run(work())


def test_groups_that_nobody_wants(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            async with queue.consumer("a") as consumer, queue.consumer("b"):
                [message] = await consumer.receive()
                await queue.delete_group("a")
                with pytest.raises(Closed):
                    await message.ack()
                with pytest.raises(Closed):
                    await consumer.receive()
            assert await queue.group_ids() == ["b"]
            assert await queue.expire_groups("1h") == []
            assert await queue.expire_groups(0) == ["b"]
            assert await queue.group_ids() == []
            with pytest.raises(InvalidName, match="has no group 'a'"):
                await queue.delete_group("a")

    run(work())
