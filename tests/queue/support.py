"""What the tests of the queues share: short words for long calls, and another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from tailrace import Consumer, LeaseLost, Message, Queue, Store
from tailrace.log.producers import Once
from tailrace.queue.message import new_record
from tailrace.queue.settings import DeadLetters, QueueSettings
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine

__all__ = [
    "FAST",
    "Other",
    "another_process",
    "drain",
    "leases_are_lost",
    "numbers",
    "offsets",
    "on_machine",
    "one",
    "refuse",
    "send_letters",
    "small_disk_of",
    "states",
    "values",
]

# Leases of a second by a clock that the test moves, and no waiting before a retry.
FAST: dict[str, Any] = {
    "visibility_timeout": "1s",
    "retry": {"max_retries": 2, "initial_backoff": 0},
}


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def values(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.offset for message in messages]


def one(consumer: Consumer) -> Message:
    """The next message, which has to be there."""
    [message] = consumer.receive(1)
    return message


def drain(consumer: Any, at_once: int = 100) -> list[bytes | None]:
    """Everything there is, acknowledged."""
    found: list[bytes | None] = []
    while messages := consumer.receive(at_once):
        found += values(messages)
        consumer.ack(messages)
    return found


def states(queue: Queue, group: str = "w") -> dict[int, tuple[str, int]]:
    """What is pending: state and delivery count, by offset."""
    return {p.offset: (p.state, p.delivery_count) for p in queue.pending(group)}


def leases_are_lost(*messages: Message) -> None:
    """Nothing but reading can be done to them any more."""
    for message in messages:
        for word in ("ack", "nack", "reject", "extend", "release"):
            with pytest.raises(LeaseLost) as caught:
                getattr(message, word)()
            assert caught.value.lost == [message.message_id]


def send_letters(store: Store, name: str, topic: str) -> None:
    """Have the dead letters of a queue go where nobody can have them go any more, as FluxMQ or an
    older version has it."""

    def edit(queues: dict[str, QueueSettings]) -> None:
        queues[name] = replace(queues[name], dlq=DeadLetters(topic=topic))

    store.registry.change(edit)


@contextmanager
def on_machine(**options: Any) -> Iterator[tuple[Machine, Store, Queue]]:
    """A machine, a store and a queue `q` on it."""
    with Machine() as machine, machine.open() as store:
        yield machine, store, store.queue("q", **{**FAST, **options})


# A line at a time, each answered with one; what is assigned in a line is there for the next.
_CODE = """
import sys
import tailrace

store = tailrace.open(sys.argv[1])
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except tailrace.TailraceError as error:
        print(type(error).__name__, flush=True)
"""


class Other:
    """Another process, which has the store open as `store`."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, expression: str) -> None:
        """Have it evaluate something, and do not wait for the answer."""
        _there(self.process.stdin).write(expression + "\n")
        _there(self.process.stdin).flush()

    def ask(self, expression: str) -> str:
        """Have it evaluate something; the answer, or the name of the error."""
        self.begin(expression)
        return _there(self.process.stdout).readline().rstrip("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT)


def _there(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextmanager
def another_process(path: Path) -> Iterator[Other]:
    other = Other(path)
    with other.process:
        try:
            yield other
        finally:
            other.kill()


@contextmanager
def small_disk_of(tmp_path: Path, size: str) -> Iterator[Path]:
    """A disk of that size, in a folder of this one."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def refuse(
    store: Store, pipeline: str, *offsets: int, place: str = "$dlq/orders", of: str = ""
) -> None:
    """Dead letters of `orders`, as a pipeline writes them (`spark/pipelines/planning.py`)."""
    store.prepare_letters(place)
    letters = store.get(place)
    assert isinstance(letters, Queue)
    for offset in offsets:
        told = {
            "_dlq_original_queue": "orders",
            "_dlq_original_incarnation": of or store.get("orders").incarnation,
            "_dlq_original_offset": str(offset),
            "_dlq_original_topic": "$queue/orders",
            "_dlq_group": "",
            "_dlq_pipeline": pipeline,
            "_dlq_reason": "bad",
        }
        record = new_record(b"%d" % offset, place, headers=told)
        letters.append_accepted([record], Once(pipeline, letters.log.end_offset, 0)).wait()
