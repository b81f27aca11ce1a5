"""A queue is deleted while threads use it: each of them is told so, and by nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tailrace
from tailrace import Closed, Queue

ROUNDS = 10


def publish(queue: Queue) -> None:
    queue.publish(b"x")


def publish_many(queue: Queue) -> None:
    queue.publish_many([b"x", b"y"])


def receive(queue: Queue) -> None:
    with queue.consumer("g", prefetch=5) as consumer:
        for message in consumer.receive(3, wait=0.01):
            message.ack()


def look(queue: Queue) -> None:
    queue.stats()
    queue.peek("g")
    queue.pending("g")


def use_until_it_fails(queue: Queue, use: Callable[[Queue], None], ended: list[str]) -> None:
    try:
        while True:
            use(queue)
    except Closed:
        ended.append("closed")
    except Exception as error:  # noqa: BLE001  the test shows it
        ended.append(repr(error))


@pytest.mark.parametrize("use", [publish, publish_many, receive, look])
def test_whoever_uses_it_gets_closed(use: Callable[[Queue], None], tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="async") as store:
        for number in range(ROUNDS):
            queue = store.queue(f"q{number}")
            queue.publish_many([b"x"] * 10)
            ended: list[str] = []
            threads = [
                threading.Thread(target=use_until_it_fails, args=(queue, use, ended))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.005 * number)
            store.delete(queue.name)
            for thread in threads:
                thread.join(30)
            assert ended == ["closed"] * len(threads)
        assert store.queues() == []
