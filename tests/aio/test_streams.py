"""Streams, through both APIs: read from anywhere, commit, seek, share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, LeaseLost
from tests.aio.queue_support import APIS, Api, offsets, values
from tests.aio.support import collect, run
from tests.log.helpers import T0

FAST: dict[str, Any] = {"flush": "async"}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


async def fill(stream: Any, count: int = 10) -> None:
    for number in range(count):
        is_last = number == count - 1
        await stream.publish(b"%d" % number, timestamp=T0 + number, wait=is_last)


STARTS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ({"start": "first"}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ({"start": 7}, [7, 8, 9]),
    ({"start": 99}, []),
    ({"start": "offset=8"}, [8, 9]),
    ({"start": f"timestamp={T0 + 6}"}, [6, 7, 8, 9]),
    ({"timestamp": T0 + 9}, [9]),
    ({"timestamp": T0 + 100}, []),
    ({"start": "last"}, []),
    ({"start": "next"}, []),
]


@pytest.mark.no_cover
@pytest.mark.parametrize(("start", "found"), STARTS, ids=repr)
def test_every_start(path: Path, api: Api, start: dict[str, Any], found: list[int]) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            assert offsets(await collect(stream.read(**start))) == found
            async with stream.consumer("g", **start) as consumer:
                assert offsets(await consumer.receive(99)) == found
                await stream.publish(b"next")
                assert values(await consumer.receive(99)) == [b"next"]

    run(work())


@pytest.mark.parametrize(
    "start", [{"start": "middle"}, {"start": True}, {"start": 3, "timestamp": T0}], ids=repr
)
def test_no_start_at_all(path: Path, api: Api, start: dict[str, Any]) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            with pytest.raises(ValueError, match="start"):
                await collect(stream.read(**start))
            with pytest.raises(ValueError, match="start"):
                await stream.consumer("g", **start)

    run(work())


def test_resolving(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            assert await stream.resolve("first") == 0
            assert await stream.resolve("next") == 10
            assert await stream.resolve("first", T0 + 3) == 3

    run(work())


def test_reading_without_a_group(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            assert offsets(await collect(stream.read(2, 5))) == [2, 3, 4]
            [message] = await collect(stream.read(9))
            assert (message.queue, message.value, message.delivery_count) == ("s", b"9", 0)
            for verb in ("ack", "nack", "reject", "release", "extend"):
                with pytest.raises(LeaseLost, match="s:9 was only looked at"):
                    await getattr(message, verb)()
            assert (await message.properties())["offset"] == 9
            found = await collect(stream.read(8, follow=True, timeout=0.05))
            assert offsets(found) == [8, 9]
            with pytest.raises(ValueError, match="timeout is for follow=True"):
                await collect(stream.read(timeout=1))
            assert await stream.group_ids() == []

    run(work())


def test_committing_what_is_of_others(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path) as store:
            stream, other = await store.stream("s"), await store.stream("t")
            await fill(stream)
            await fill(other)
            async with (
                stream.consumer("g", auto_commit=False) as consumer,
                other.consumer("g", auto_commit=False) as elsewhere,
            ):
                await consumer.receive(6)
                for message in await elsewhere.receive(2):
                    with pytest.raises(ValueError, match="is not of the group 'g'"):
                        await consumer.commit(message)
                with pytest.raises(ValueError, match="from 0 on"):
                    await consumer.commit(-1)
                assert await consumer.committed() == 0

    run(work())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_committing(path: Path, api: Api, flush: str) -> None:
    async def work() -> None:
        async with api.open(path, flush=flush) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g", auto_commit=False) as consumer:
                assert consumer.auto_commit is False
                await consumer.commit()
                messages = await consumer.receive(6)
                assert await consumer.committed() == 0
                await consumer.commit(messages[1])
                assert await consumer.committed() == 2
                await consumer.commit(4)
                assert await consumer.committed() == 4
                await messages[5].ack()  # which is left to `commit`
                assert await consumer.committed() == 4
            async with stream.consumer("g", auto_commit=False) as consumer:
                assert offsets(await consumer.receive(99)) == [4, 5]
                assert offsets(await consumer.receive(99)) == [6, 7, 8, 9]
                await consumer.commit()
                assert await consumer.committed() == 10

    run(work())


def test_what_the_caller_has_moved_past_is_committed(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g", auto_commit_interval=0.0) as consumer:
                assert offsets(await consumer.receive(3)) == [0, 1, 2]
                assert await consumer.committed() == 0
                assert offsets(await consumer.receive(3)) == [3, 4, 5]
                assert await consumer.committed() == 3
                await consumer.receive(3)
                assert await consumer.committed() == 6
            async with stream.consumer("g") as consumer:
                found = await consumer.receive(3)
                assert offsets(found) == [6, 7, 8]
                await found[1].ack()
                assert await consumer.committed() == 8

    run(work())


def test_closing_commits_what_the_caller_has_moved_past(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g") as consumer:
                await consumer.receive(3)
                await consumer.receive(3)
            async with stream.consumer("g") as consumer:
                assert offsets(await consumer.receive(99)) == [3, 4, 5]

    run(work())


Way = Callable[[Any, list[Any]], Any]
WAYS: dict[str, Way] = {
    "commit": lambda consumer, messages: consumer.commit(),
    "commit(message)": lambda consumer, messages: consumer.commit(messages[-1]),
    "commit(offset)": lambda consumer, messages: consumer.commit(messages[-1].offset + 1),
    "reject": lambda consumer, messages: messages[-1].reject(),
}
AUTO: dict[str, Way] = {**WAYS, "ack": lambda consumer, messages: messages[-1].ack()}


@pytest.mark.parametrize(
    ("auto_commit", "way"),
    [(is_auto, way) for is_auto in (False, True) for way in (AUTO if is_auto else WAYS)],
)
def test_what_a_closed_consumer_cannot_commit(
    path: Path, api: Api, auto_commit: bool, way: str
) -> None:
    """Others get it. But if they have processed it, or this one had, there is nothing to say."""
    commit = AUTO[way]

    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g", auto_commit=auto_commit) as consumer:
                messages = await consumer.receive(3)
            with pytest.raises(Closed, match="the consumer of group 'g' is closed"):
                await commit(consumer, messages)
            async with stream.consumer("g", auto_commit=False) as other:
                assert offsets(await other.receive(3)) == [0, 1, 2]  # nothing was committed
                with pytest.raises(Closed):
                    await commit(consumer, messages)
                await other.commit()
                await commit(consumer, messages)
                assert await other.committed() == 3

    run(work())


@pytest.mark.parametrize("way", AUTO)
def test_what_is_committed_may_be_committed_again_after_closing(
    path: Path, api: Api, way: str
) -> None:
    commit = AUTO[way]

    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g") as consumer:
                messages = await consumer.receive(3)
                await commit(consumer, messages)
            await commit(consumer, messages)
            async with stream.consumer("g") as consumer:
                messages = await consumer.receive(3)
                assert offsets(messages) == [3, 4, 5]
                later = await consumer.receive(1)  # so it is done with these: `close` commits them
            if way != "commit":
                await commit(consumer, messages)
            with pytest.raises(Closed):
                await commit(consumer, later)

    run(work())


def test_a_closed_consumer_speaks_only_for_itself(path: Path, api: Api) -> None:
    """What another one of the group is at is no reason to refuse what this one has committed."""

    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g", auto_commit=False) as other:
                await other.receive(3)
                async with stream.consumer("g", auto_commit=False) as consumer:
                    messages = await consumer.receive(3)
                    await consumer.commit(messages[1])
                await consumer.commit(messages[1])
                await consumer.commit(5)
                with pytest.raises(Closed):
                    await consumer.commit(messages[2])
                assert await other.committed() == 0
                await messages[2].ack()  # by hand: that is left to `commit`
                async with stream.consumer("g", auto_commit=False) as nothing:
                    pass
                await nothing.commit()

    run(work())


def test_seeking(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g") as one, stream.consumer("g") as other:
                old = await one.receive(8)
                await one.seek(2)
                assert offsets(await other.receive(2)) == [2, 3]
                await old[-1].ack()  # from before: it commits nothing
                assert await one.committed() == 2
                assert offsets(await one.receive(2)) == [4, 5]
                await other.seek("first", timestamp=T0 + 9)
                assert offsets(await one.receive(99)) == [9]
                await one.commit()
                assert await one.committed() == 10
                with pytest.raises(ValueError, match="start is"):
                    await one.seek("middle")

    run(work())


def test_two_consumers_share(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g", auto_commit=False) as one:
                async with stream.consumer("g", auto_commit=False) as other:
                    assert offsets(await one.receive(3)) == [0, 1, 2]
                    assert offsets(await other.receive(3)) == [3, 4, 5]
                    await other.commit()
                    assert await one.committed() == 0
                    assert offsets(await other.receive(2)) == [6, 7]
                    await one.commit()
                    assert await one.committed() == 6
                assert offsets(await one.receive(99, wait=5)) == [6, 7]
                assert offsets(await one.receive(99)) == [8, 9]

    run(work())


def test_rejecting_goes_on_behind(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            async with stream.consumer("g") as consumer:
                messages = await consumer.receive(5)
                await messages[0].nack()
                await messages[0].release()
                await messages[0].extend()
                async with messages[0].auto_extend():
                    pass
                with pytest.raises(ValueError, match="publish="):
                    await messages[0].ack(publish=[("x", b"y")])
                await messages[3].reject("no good")
                assert await consumer.committed() == 4
                async with messages[4]:
                    pass
                assert await consumer.committed() == 5

    run(work())


def test_filters(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            for key in ("eu/a", "us/a", "eu/b"):
                await stream.publish(key, routing_key=key)
            async with stream.consumer("g", filter="us/+", auto_commit=False) as consumer:
                assert values(await consumer.receive(9)) == [b"us/a"]
                assert await consumer.receive(9) == []
                await consumer.commit()
                assert await consumer.committed() == 3
                [info] = await stream.groups()
                assert (info.id, info.lag) == ("g@us/+", 0)
                async with stream.consumer("g", filter="eu/+", auto_commit=False) as other:
                    assert values(await other.receive(1)) == [b"eu/a"]
                    await other.commit()
                    # Each filter of a group has its own cursor, and so has no filter.
                    assert (await other.committed(), await consumer.committed()) == (1, 3)
                    async with stream.consumer("g") as unfiltered:
                        assert offsets(await unfiltered.receive(9)) == [0, 1, 2]
                    await consumer.seek("first")
                    assert values(await consumer.receive(9)) == [b"us/a"]
                    assert values(await other.receive(9)) == [b"eu/b"]
                    assert await other.committed() == 1
            assert sorted(await stream.group_ids()) == ["g", "g@eu/+", "g@us/+"]

    run(work())


def test_what_a_delivery_tells_of_the_work_of_others(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s", primary_group="workers")
            await fill(stream, 3)
            async with stream.consumer("workers", auto_commit=False) as workers:
                await workers.receive(2)
                await workers.commit()
                async with stream.consumer("g") as consumer:
                    found = [await message.properties() for message in await consumer.receive(3)]
            assert [each["x-work-acked"] for each in found] == [True, True, False]
            assert {each["x-work-committed-offset"] for each in found} == {2}
            assert {each["x-work-group"] for each in found} == {"workers"}
            assert {each["group-id"] for each in found} == {"g"}
            assert [each["x-stream-offset"] for each in found] == [0, 1, 2]
            assert [each["x-stream-timestamp"] for each in found] == [T0, T0 + 1, T0 + 2]

    run(work())


def test_the_work_of_others_is_that_of_the_same_filter(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s", primary_group="workers")
            for key in ("eu/a", "us/a", "eu/b"):
                await stream.publish(key, routing_key=key)

            async def told(**filters: str) -> list[dict[str, Any]]:
                async with stream.consumer("g", **filters) as consumer:
                    found = [await message.properties() for message in await consumer.receive(9)]
                return [
                    {name: value for name, value in each.items() if name.startswith("x-work-")}
                    for each in found
                ]

            assert await told() == [{}, {}, {}]  # nobody works
            async with stream.consumer("workers", filter="eu/+", auto_commit=False) as workers:
                await workers.receive(1)
                await workers.commit()
            assert await told(filter="eu/#") == [{}, {}]
            assert await told() == [{}, {}, {}]
            one = {"x-work-committed-offset": 1, "x-work-group": "workers@eu/+"}
            assert await told(filter="eu/+") == [
                {**one, "x-work-acked": True},
                {**one, "x-work-acked": False},
            ]

    run(work())


def test_iterating(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            stream = await store.stream("s")
            await fill(stream)
            found = []
            consumer = await stream.consume(group="g", start=4)
            async for message in consumer:
                found.append(message.offset)
                if message.offset == 9:
                    await consumer.close()
            assert found == [4, 5, 6, 7, 8, 9]
            async with stream.consumer("g") as consumer:
                assert offsets(await consumer.receive(99)) == [9]

    run(work())
