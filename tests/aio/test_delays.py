"""Delayed messages, for tasks."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace import aio
from tailrace.queue.delays import Delayed
from tests.log.helpers import WAIT


def test_a_delayed_message_comes_when_it_is_due(tmp_path: Path) -> None:
    async def scene() -> None:
        async with aio.open(tmp_path) as store:
            queue = await store.queue("q")
            began_ms = time.time_ns() // 1_000_000
            later = await queue.publish(b"later", delay=1.0)
            assert isinstance(later, Delayed)
            await queue.publish(b"now")
            due = datetime.now(UTC) + timedelta(hours=1)
            never = await queue.publish(b"never", deliver_at=due)
            assert await queue.delayed_count() == 2
            assert [each.delay_id for each in await queue.delayed()] == [
                later.delay_id,
                never.delay_id,
            ]
            assert await queue.cancel(never.delay_id)
            assert not await queue.cancel(later.delay_id + "x")
            async with queue.consumer("w") as consumer:
                [first] = await consumer.receive(1, wait=WAIT)
                [second] = await consumer.receive(1, wait=WAIT)
            assert [first.value, second.value] == [b"now", b"later"]
            assert time.time_ns() // 1_000_000 >= later.deliver_at >= began_ms + 1000
            assert await queue.delayed_count() == 0

    asyncio.run(asyncio.wait_for(scene(), WAIT))


def test_to_all_queues_of_a_topic(tmp_path: Path) -> None:
    async def scene() -> None:
        async with aio.open(tmp_path, upkeep=False) as store:
            one = await store.queue("one", topics=["news/#"])
            other = await store.queue("other", topics=["news/#"])
            published = await store.publish("news/today", b"x", delay="200ms")
            assert sorted(published) == ["one", "other"]
            delivered = 0
            while delivered < 2:
                await asyncio.sleep(0.05)
                delivered += await store.deliver_due()
            for queue in (one, other):
                assert [m.value for m in await queue.peek("w")] == [b"x"]

    asyncio.run(asyncio.wait_for(scene(), WAIT))


def test_wrong_times(tmp_path: Path) -> None:
    async def scene() -> None:
        async with aio.open(tmp_path) as store:
            queue = await store.queue("q")
            for wrong in (
                {"delay": 1, "deliver_at": 5},
                {"deliver_at": datetime(2030, 1, 1)},  # noqa: DTZ001
            ):
                with pytest.raises(ValueError, match=r"delay|zone"):
                    await queue.publish(b"x", **wrong)
            assert await queue.delayed_count() == 0

    asyncio.run(asyncio.wait_for(scene(), WAIT))
