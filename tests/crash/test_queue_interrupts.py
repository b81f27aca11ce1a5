"""Ctrl-C may come at any moment: whoever goes on finds a queue that goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tailrace import LeaseLost, Message, Store
from tests.queue.support import drain, numbers, offsets

# The signal that ends a test that hangs is the one that we use.
pytestmark = pytest.mark.timeout(120, method="thread")

INTERRUPTS = 300


class Interrupted(BaseException):
    """What Ctrl-C raises, without the chance that a runner takes it for one."""


def raise_it(_signum: int, _frame: FrameType | None) -> None:
    raise Interrupted


@contextlib.contextmanager
def interrupting(interrupt: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """By the alarm, in the main thread."""
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("prefetch", [1, 5])
def test_interrupted_anywhere(tmp_path: Path, prefetch: int) -> None:
    with Store(tmp_path, flush="async", visibility_timeout="100ms", upkeep=False) as store:
        queue = store.queue("q", retry={"max_retries": "unlimited"})
        queue.publish_many(numbers(200))
        acked: list[bytes | None] = []
        consumer = queue.consumer("w", prefetch=prefetch)
        with interrupting(raise_it):
            for number in range(INTERRUPTS):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.000_007 * (number % 97))
                    work(consumer.receive(3), acked)
                    signal.setitimer(signal.ITIMER_REAL, 0)
        assert queue.pending("w") is not None  # nobody has the turn
        time.sleep(0.15)
        left = drain(queue.consumer("w"))
        assert set(left).isdisjoint(acked)
        assert len(set(left)) + len(acked) <= 200
        assert queue.group("w").state.acked == 200


def work(messages: list[Message], acked: list[bytes | None]) -> None:
    for message in messages:
        with contextlib.suppress(LeaseLost):
            message.ack()
            acked.append(message.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["ack", "commit", "auto"])
def test_a_stream_is_read_without_a_gap_by_one_who_is_interrupted(tmp_path: Path, way: str) -> None:
    """In `receive`, wherever that is; what comes when it has returned is the caller's affair."""
    with Store(tmp_path, flush="async", upkeep=False) as store:
        stream = store.stream("s", auto_commit_interval="1ms")
        stream.publish_many(numbers(1500))
        consumer = stream.consumer("g", auto_commit=way != "commit")

        def interrupt(_signum: int, _frame: FrameType | None) -> None:
            if consumer._had is not None:
                raise Interrupted

        seen: list[int] = []
        interrupted = 0
        with interrupting(interrupt):
            for number in range(INTERRUPTS):
                messages: list[Message] = []
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.000_02 + 0.000_003 * (number % 97))
                    messages = consumer.receive(3)
                except Interrupted:
                    interrupted += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                seen += offsets(messages)
                if messages and way == "ack":
                    messages[-1].ack()
                elif way == "commit":
                    consumer.commit(messages[-1] if messages and number % 2 else None)
        assert interrupted > 10
        consumer.close()
        last = stream.consumer("g")
        while messages := last.receive(1500):
            seen += offsets(messages)
        assert set(range(1500)) == set(seen)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_other_threads_ack(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(600))
        stop = threading.Event()

        def ack() -> None:
            with queue.consumer("w") as consumer:
                while not stop.is_set() and (messages := consumer.receive(1)):
                    messages[0].ack()

        threads = [threading.Thread(target=ack) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                child = os.fork()
                if not child:
                    signal.alarm(30)  # a child that hangs is killed, and that is seen below
                    messages = queue.consumer("w").receive(1)
                    for message in messages:
                        message.ack()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
