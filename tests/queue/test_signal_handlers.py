"""What a signal handler may do to consumers and stores, whatever it has interrupted."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tailrace
from tailrace.errors import Closed, Locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

_ROUNDS = 12


@contextlib.contextmanager
def handling(do: Callable[[], object]) -> Iterator[None]:
    """SIGUSR1 does it, in the main thread."""
    before = signal.signal(signal.SIGUSR1, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def soon(delay_s: float) -> Iterator[None]:
    """The signal comes by then, unless the block was faster."""
    timer = threading.Timer(delay_s, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def interrupt(group: object, name: str, do: Callable[[], object]) -> None:
    """Have a method of a group do something else first, once, as a signal handler does."""
    method = getattr(group, name)

    def interrupted(*arguments: object, **options: object) -> object:
        setattr(group, name, method)
        do()
        return method(*arguments, **options)

    setattr(group, name, interrupted)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("what", ["consumer", "store"])
@pytest.mark.timeout(120, method="thread")
def test_it_closes_a_consumer_or_a_store_wherever_they_are(
    tmp_path: Path, flush: str, what: str
) -> None:
    acked: set[int] = set()
    for number in range(_ROUNDS):
        store = tailrace.open(tmp_path / "data", flush=flush)
        queue = store.queue("q")
        queue.publish_many([b"x"] * 2_000)
        consumer = queue.consume("workers")
        close = consumer.close if what == "consumer" else store.close
        with handling(close), soon(0.003 + number * 0.002):
            try:
                for message in consumer:
                    message.ack()
                    assert message.offset not in acked
                    acked.add(message.offset)
            except Closed:  # the store was, while it was at a message
                assert what == "store"
        assert consumer.closed
        store.close()
        with pytest.raises(Closed):
            queue.publish(b"x")
    with tailrace.open(tmp_path / "data") as store, store.queue("q").consumer("workers") as rest:
        while messages := rest.receive(1_000):
            for message in messages:
                assert message.offset not in acked
                acked.add(message.offset)
            rest.ack(messages)
        assert acked == set(range(_ROUNDS * 2_000))
        assert store.queue("q").pending("workers") == []


@pytest.mark.no_cover  # which traces lines, too
@pytest.mark.parametrize("type_", ["classic", "stream"])
def test_a_loop_over_a_consumer_ends_at_whichever_line_it_is_closed(
    tmp_path: Path, type_: str
) -> None:
    with tailrace.open(tmp_path / "data", flush="async") as store:
        queue = store.queue("q") if type_ == "classic" else store.stream("q")
        for number in range(1_000):
            queue.publish_many([b"1", b"2"])
            consumer = queue.consume("workers")
            next(consumer)
            with closing_at(number, consumer) as lines:
                list(itertools.islice(consumer, 1))
            if not consumer.closed:
                assert next(lines) > 10
                consumer.close()
                break
            assert list(consumer) == []


@contextlib.contextmanager
def closing_at(number: int, consumer: Any) -> Iterator[Iterator[int]]:
    """Closed before the n-th line of `consumer.py`, as a signal handler does; counts the lines."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call" and not frame.f_code.co_filename.endswith("queue/consumer.py"):
            return None
        if event == "line" and next(lines) == number:
            consumer.close()
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def test_who_waits_is_closed_with_the_store(tmp_path: Path) -> None:
    store = tailrace.open(tmp_path / "data")
    with handling(store.close), soon(0.2):
        assert list(store.queue("q").consume("workers")) == []
    store.close()
    with pytest.raises(Closed):
        store.queue("q")
    with tailrace.open(tmp_path / "data") as again:
        assert [group.members for group in again.queue("q").groups()] == [[]]


@pytest.mark.parametrize("step", ["_claim_new", "commit"])
def test_closing_amid_a_turn_gives_the_turn_to_nobody(tmp_path: Path, step: str) -> None:
    with (
        tailrace.open(tmp_path / "data", flush="async") as store,
        tailrace.open(tmp_path / "data", flush="async") as other,
    ):
        queue = store.queue("q")
        queue.publish_many([b"%d" % number for number in range(10)])
        consumer, extra = queue.consumer("workers"), queue.consumer("workers")
        elsewhere = other.queue("q").consumer("workers")
        got: list[list[int]] = []

        def others() -> None:
            messages = elsewhere.receive(3)
            elsewhere.ack(messages)
            got.append([message.offset for message in messages])

        thread = threading.Thread(target=others)

        def handler() -> None:
            extra.close()
            thread.start()
            time.sleep(0.2)
            assert got == []  # it has to wait

        interrupt(consumer._group, step, handler)
        mine = consumer.receive(2)
        thread.join()
        assert [message.offset for message in mine] == [0, 1]
        assert got == [[2, 3, 4]]
        consumer.ack(mine)
        assert extra.closed
        [group] = queue.groups()
        assert (group.committed, group.pending, len(group.members)) == (5, 0, 2)


def test_settling_amid_a_turn_is_refused(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", flush="async") as store:
        queue = store.queue("q")
        queue.publish_many([b"1", b"2"])
        consumer = queue.consumer("workers")
        [first] = consumer.receive()

        def handler() -> None:
            with pytest.raises(Locked, match="signal handler"):
                first.ack()

        interrupt(consumer._group, "_claim_new", handler)
        [second] = consumer.receive()
        first.ack()
        second.ack()
        assert queue.pending("workers") == []


def test_a_stream_is_read_again_from_what_was_not_committed(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", flush="async") as store:
        stream = store.stream("s")
        stream.publish_many([b"1", b"2", b"3"])
        consumer = stream.consumer("readers")
        assert [message.offset for message in consumer.receive(2)] == [0, 1]
        interrupt(consumer._group, "commit", consumer.close)
        consumer.receive()
        with stream.consumer("readers") as another:
            offsets = [message.offset for message in another.receive(3)]
        assert offsets == [0, 1, 2][-len(offsets) :]
        assert 2 in offsets
