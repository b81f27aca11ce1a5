"""Whoever waits for a message: it is closed, it is interrupted, or somebody else dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Message, Store
from tailrace.queue.classic import ClassicGroup
from tests.log.helpers import WAIT, eventually
from tests.queue.support import another_process, numbers, states, values

KINDS = ["queue", "stream"]


def receive(consumer: Any, got: list[bytes | None]) -> None:
    while messages := consumer.receive(9, wait=None):
        got += values(messages)


def iterate(consumer: Any, got: list[bytes | None]) -> None:
    for message in consumer:
        message.ack()
        got.append(message.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wait", [receive, iterate])
def test_closing_ends_whoever_waits(
    tmp_path: Path, kind: str, wait: Callable[[Any, list[bytes | None]], None]
) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = getattr(store, kind)("q")
        consumer = queue.consume(group="w")
        got: list[bytes | None] = []
        ended = threading.Event()

        def work() -> None:
            wait(consumer, got)
            ended.set()  # not if it raised

        thread = threading.Thread(target=work)
        thread.start()
        queue.publish(b"x")
        eventually(lambda: got == [b"x"])
        assert not ended.wait(0.1)  # it waits by now
        consumer.close()
        thread.join(WAIT)
        assert ended.is_set()
        with pytest.raises(Closed):
            consumer.receive()
        queue.publish(b"y")
        assert b"y" in values(queue.consumer("w").receive(9))  # it has taken nothing with it


INTERRUPTED = """
import sys
import tailrace

with tailrace.open(sys.argv[1]) as store:
    consumer = store.get("q").consumer("w")
    print("waiting", flush=True)
    try:
        consumer.receive(wait=None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    messages = consumer.receive(9, wait=60)
    for message in messages:
        message.ack()
    print([message.value for message in messages], flush=True)
"""


@pytest.mark.parametrize("word", ["claim", "hand"])
def test_closing_while_another_thread_fetches_ahead_leaves_nothing_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(5))
    consumer = queue.consumer("w", prefetch=3)
    claim_or_hand = getattr(ClassicGroup, word)

    def and_close(*arguments: Any, **options: Any) -> Any:
        try:
            if word == "hand":
                raise OSError(5, "the disk is broken")
            return claim_or_hand(*arguments, **options)
        finally:
            closer = threading.Thread(target=consumer.close)
            closer.start()
            closer.join(WAIT)

    with monkeypatch.context() as patched:
        patched.setattr(ClassicGroup, word, and_close)
        if word == "claim":
            assert consumer.receive() == []
        else:
            with pytest.raises(OSError, match="broken"):
                consumer.receive()
    assert consumer.closed
    assert states(queue) == dict.fromkeys(range(3), ("free", 0))
    assert values(queue.consumer("w").receive(9)) == numbers(5)


def test_another_thread_takes_what_was_fetched_ahead(store: Store) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w", prefetch=2)
    taken: list[bytes | None] = []

    class Contended(deque[Message]):
        def popleft(self) -> Message:
            if not taken:  # the other thread has its turn here
                taken.extend(values(deque.popleft(self) for _ in range(2)))
            return super().popleft()

    consumer._ahead = Contended()
    assert values(consumer.receive(1)) == [b"2"]
    assert taken == [b"0", b"1"]


def test_threads_share_a_consumer(store: Store) -> None:
    """Also what it has fetched ahead: each message goes to one of them."""
    total, workers = 1500, 4
    queue = store.queue("q", flush="none")
    queue.publish_many(numbers(total))
    consumer = queue.consumer("w", prefetch=3)
    got: list[bytes | None] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while messages := consumer.receive(2):
                got.extend(values(messages))
                consumer.ack(messages)
        except BaseException as error:
            errors.append(error)
            raise

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert sorted(got, key=lambda value: int(value or b"")) == numbers(total)
    assert states(queue) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c(tmp_path: Path, kind: str) -> None:
    """It comes at once, though the main thread sleeps, and nothing is lost by it."""
    with Store(tmp_path, upkeep=False) as store:
        queue = getattr(store, kind)("q")
        child = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        watchdog = threading.Timer(WAIT, child.kill)
        watchdog.start()
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            time.sleep(0.2)  # until it does; nobody but itself can see that
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            queue.publish(b"x")
            assert child.stdout.readline() == "[b'x']\n"
            assert child.wait(WAIT) == 0
        watchdog.cancel()
        watchdog.join()
        assert queue.consumer("w").receive() == []


def test_who_waits_gets_what_a_killed_process_had(tmp_path: Path) -> None:
    """In about a second, however long its lease is."""
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(1))
        other.ask("globals().update(c=store.queue('q').consumer('w'))")
        assert other.ask("[m.value for m in c.receive()]") == "[b'0']"
        consumer = queue.consumer("w")
        assert consumer.receive() == []
        killer = threading.Timer(0.2, other.kill)
        killer.start()
        assert values(consumer.receive(wait=WAIT)) == [b"0"]
        killer.join()


def test_who_waits_is_told_when_a_lease_gets_shorter(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        kept, given_up = consumer.receive(2)
        got: list[bytes | None] = []

        def wait() -> None:
            got.extend(values(queue.consumer("w").receive(9, wait=2 * WAIT)))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)  # it waits by now, for as long as they were to be kept
        consumer.extend([kept, given_up])
        given_up.extend("50ms")
        thread.join(WAIT)
        assert got == [given_up.value]
        kept.ack()
