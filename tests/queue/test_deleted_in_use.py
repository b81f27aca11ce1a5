"""A queue is deleted while threads use it: each of them is told so, and by nothing else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tailrace
from tailrace import Closed, InvalidName, LeaseLost, Queue, Store
from tests.log.helpers import WAIT

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


@pytest.mark.no_cover
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


def expire(store: Store, name: str) -> None:
    """Receive what has expired, so that a dead letter is written while one has the turn."""
    queue = store.queue(name, dlq={"expired": True})
    queue.publish(b"x", ttl="1ms")
    with queue.consumer("g") as consumer:
        time.sleep(0.002)
        consumer.receive(1)


def work(store: Store, name: str) -> None:
    queue = store.queue(name)
    queue.publish(b"x")
    with queue.consumer("g") as consumer:
        for message in consumer.receive(1):
            message.ack()


@pytest.mark.parametrize("use", [work, expire])
def test_nobody_waits_for_each_other(use: Callable[[Store, str], None], tmp_path: Path) -> None:
    """One deletes the queue, and others make it again and use it, in the same process."""
    until = time.monotonic() + 2
    errors: list[Exception] = []
    done = [0, 0]
    with tailrace.open(tmp_path, flush="none") as store:

        def make() -> None:
            while time.monotonic() < until and not errors:
                try:
                    use(store, "q")
                    done[0] += 1
                except (Closed, InvalidName, LeaseLost):
                    done[1] += 1
                except Exception as error:  # noqa: BLE001  the test shows it
                    errors.append(error)

        def delete() -> None:
            while time.monotonic() < until:
                for name in ("q", "$dlq/q"):
                    with contextlib.suppress(InvalidName, Closed):
                        store.delete(name)
                time.sleep(0.003)

        threads = [threading.Thread(target=each, daemon=True) for each in (make, make, delete)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert sum(done) > 1
