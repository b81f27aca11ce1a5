"""What groups do when consumers come, wait and go."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailrace import LeaseLost, Store
from tests.queue.support import numbers, offsets, one


def test_a_rejected_message_of_a_stream_takes_nothing_from_others(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        stream = store.stream("s")
        stream.publish_many(numbers(20))
        first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
        first.receive(5)
        second.receive(5)[2].reject()
        assert second.committed == 0
        first.close()
        assert offsets(second.receive(5)) == [0, 1, 2, 3, 4]


def test_what_was_moved_past_is_committed_while_nothing_comes(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        stream = store.stream("s")
        stream.publish_many(numbers(3))
        consumer = stream.consumer("g", auto_commit_interval="50ms")
        assert len(consumer.receive(3)) == 3
        assert consumer.receive(1, wait=0.5) == []
        assert consumer.committed == 3


def test_a_group_that_nobody_uses_is_expired_after_a_restart_too(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        queue.publish(b"x")
        for group in ("old", "new"):
            one(queue.consumer(group)).ack()
    long_ago = time.time() - 30 * 86_400
    for path in (tmp_path / "queue" / "queues" / "q" / "consumers" / "old").iterdir():
        os.utime(path, (long_ago, long_ago))
    with Store(tmp_path, upkeep=False) as store, Store(tmp_path, upkeep=False) as other:
        queue = store.queue("q")
        with other.queue("q").consumer("old"):
            assert queue.expire_groups("7d") == []  # somebody came back
        other.close()
        os.utime(tmp_path / "queue/queues/q/consumers/old/state.json", (long_ago, long_ago))
        os.utime(tmp_path / "queue/queues/q/consumers/old/ops.log", (long_ago, long_ago))
        assert queue.expire_groups("7d") == ["old"]
        assert queue.group_ids() == ["new"]


def test_extending_keeps_it_as_long_as_the_consumer_asked_for(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="1s")
        queue.publish_many(numbers(2))
        message = one(queue.consumer("w", visibility_timeout="10m"))
        message.extend()
        assert queue.pending("w")[0].left > 500
        other = one(queue.consumer("w"))
        other.extend()
        assert queue.pending("w")[1].left <= 1.1


def test_a_batch_that_is_nacked_tells_of_all_that_were_lost(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", retry={"max_retries": 1, "initial_backoff": 0})
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        one(consumer).nack()
        time.sleep(0.05)  # times are rounded up a little
        spent = one(consumer)
        fresh = one(consumer)
        assert (spent.delivery_count, fresh.delivery_count) == (2, 1)
        queue.group("w").reset(0)
        with pytest.raises(LeaseLost) as caught:
            consumer.nack([spent, fresh])
        assert sorted(caught.value.lost) == ["q:0", "q:1"]
