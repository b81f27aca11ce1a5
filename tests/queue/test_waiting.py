"""Whoever waits for a message: it is closed, it is interrupted, or somebody else dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Store
from tests.log.helpers import WAIT, eventually
from tests.queue.support import another_process, numbers, values

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
