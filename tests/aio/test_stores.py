"""Stores, through both APIs: queues by name, topics, what is deleted, what does not last."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, ConfigError, InvalidName
from tests.aio.queue_support import APIS, Api, settle, values
from tests.aio.support import collect, run
from tests.log.conftest import leaked, open_files

FAST: dict[str, Any] = {"flush": "async"}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


def test_queues_by_name(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            assert store.path == str(path)
            with pytest.raises(InvalidName, match="there is no queue 'b'"):
                await store.get("b")
            queue = await store.queue("b", visibility_timeout="7s")
            stream = await store.stream("a")
            assert (queue.name, stream.name) == ("b", "a")
            assert queue.incarnation != stream.incarnation
            assert [each.name for each in await store.queues()] == ["a", "b"]
            same = await store.get("b")
            assert same.incarnation == queue.incarnation
            assert (await same.settings()).visibility_timeout_ms == 7_000
            await store.configure("b", visibility_timeout=8)
            assert (await queue.settings()).visibility_timeout_ms == 8_000
            with pytest.raises(ConfigError, match="cannot become"):
                await store.stream("b")
            with pytest.raises(ConfigError):
                await store.queue("c", colour="red")

    run(work())


def test_it_outlives_the_store(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path) as store:
            queue = await store.queue("q")
            await queue.publish_many([b"0", b"1", b"2"])
            async with queue.consumer("g") as consumer:
                await (await consumer.receive())[0].ack()
        async with api.open(path) as store:
            queue = await store.get("q")
            async with queue.consumer("g") as consumer:
                assert values(await consumer.receive(9)) == [b"1", b"2"]

    run(work())


def test_topics(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            all_of_them = await store.queue("all", topics=["events/#"])
            eu = await store.stream("eu", topics=["events/eu/+"])
            published = await store.publish("events/eu/a", b"0", key="k", headers={"a": "b"})
            assert sorted(published) == ["all", "eu"]
            assert all(receipt.done for receipt in published.values())
            published = await store.publish("events/us", "1", wait=False)
            assert sorted(published) == ["all"]
            await store.publish("$queue/eu/x", b"by its name", message_id="m", ttl=5)
            assert values(await collect(all_of_them.read())) == [b"0", b"1"]
            assert values(await collect(eu.read())) == [b"0", b"by its name"]
            with pytest.raises(InvalidName):
                await store.publish("events/#", b"no topic")

    run(work())


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_deleting(path: Path, api: Api, kind: str) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await getattr(store, kind)("q")
            await queue.publish(b"old")
            consumer = await queue.consumer("g")
            [message] = await consumer.receive()
            await store.delete("q")
            for verb in (queue.settings, queue.length, queue.purge, lambda: queue.publish(b"x")):
                with pytest.raises(Closed, match="was deleted"):
                    await verb()
            for use in (message.ack, consumer.receive, consumer.receive):
                with pytest.raises(Closed, match=r"^the queue 'q' was deleted; "):
                    await use()
            assert consumer.closed
            await consumer.close()
            with pytest.raises(InvalidName, match="there is no queue 'q'"):
                await store.delete("q")
            new = await getattr(store, kind)("q")
            assert new.incarnation != queue.incarnation
            assert await collect(new.read()) == []

    run(work())


def test_ephemeral_queues(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            consumer = await store.consumer("jobs", "g")
            await store.publish("$queue/jobs/now", b"0")
            [message] = await consumer.receive(9, wait=5)
            assert (message.value, message.routing_key) == (b"0", "now")
            await message.ack()
            await consumer.close()
            published = await store.publish("some/topic", b"1")
            assert list(published) == ["some/topic"]
            queue = await store.get("some/topic")
            assert (await queue.settings()).ephemeral
            stream = await store.stream("s")
            await stream.publish(b"2")
            reader = await store.consumer("s", "g", start="first")
            assert values(await reader.receive(9)) == [b"2"]
            await reader.close()
        async with api.open(path, **FAST) as store:
            assert [each.name for each in await store.queues()] == ["s"]

    run(work())


def test_closing(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            queue = await store.queue("q")
            await queue.publish(b"0")
            await queue.close()  # it is opened again
            assert values(await collect(queue.read())) == [b"0"]
        await store.close()
        assert repr(store).endswith(", closed)")
        verbs = (store.queue, store.get, store.delete, store.dead, store.redrive)
        for verb in verbs:
            with pytest.raises(Closed, match="is closed"):
                await verb("q")
        with pytest.raises(Closed):
            await queue.publish(b"1")

    run(work())


def test_wrong_options(path: Path, api: Api) -> None:
    async def work() -> None:
        for options in ({"flush": "sometimes"}, {"colour": "red"}, {"retry": {"max_retries": -1}}):
            with pytest.raises(ConfigError):
                async with api.open(path, **options):
                    pass

    run(work())
    assert not path.exists()


@pytest.mark.no_cover
def test_many_queues_at_once(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:

            async def use(name: str) -> list[bytes | None]:
                queue = await store.queue(name)
                await queue.publish_many([b"0", b"1"])
                async with queue.consumer("g") as consumer:
                    found = await consumer.receive(9, wait=5)
                    await consumer.ack(found)
                    return values(found)

            for found in await settle(*(use(f"q{number}") for number in range(20))):
                assert found == [b"0", b"1"]

    run(work())


def test_it_cannot_be_pickled(path: Path, api: Api) -> None:
    async def work() -> None:
        async with api.open(path, **FAST) as store:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(getattr(store, "_inner", store))

    run(work())


def test_a_store_is_closed_though_a_consumer_cannot_leave(
    path: Path, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(consumer: Any) -> None:
        raise OSError(5, "no way out")

    async def work() -> None:
        before = open_files()
        store = await api.open(path, **FAST)
        consumer = await (await store.queue("q")).consumer("w")
        with monkeypatch.context() as broken:
            broken.setattr("tailrace.queue.consumer.Consumer.close", fail)
            with pytest.raises(OSError, match="no way out"):
                await store.close()
        assert not [each for each in leaked(before) if each.endswith(".seg")]
        await consumer.close()
        await store.close()

    run(work())
