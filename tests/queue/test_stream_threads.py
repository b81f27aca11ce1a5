"""Threads and the consumer of a stream: it belongs to one of them at a time, so that nobody says of
what another thread has that it is done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tailrace import Locked, Message, Store, Stream
from tests.log.helpers import WAIT
from tests.queue.support import numbers, offsets


def fill(store: Store, count: int = 10) -> Stream:
    stream = store.stream("s")
    stream.publish_many(numbers(count))
    return stream


class Elsewhere:
    """Another thread, which does what it is told, one thing at a time."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        self._came = threading.Condition()
        self._results: list[object] = []
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="elsewhere")
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._came:
                self._came.wait_for(lambda: self._jobs or self._ends, WAIT)
                if not self._jobs:
                    return
                job = self._jobs.pop()
            try:
                result = job()
            except Exception as error:  # noqa: BLE001  the test looks at it
                result = error
            with self._came:
                self._results.append(result)
                self._came.notify_all()

    def begin(self, job: Callable[[], object]) -> None:
        with self._came:
            self._jobs.append(job)
            self._came.notify_all()

    def result(self) -> object:
        with self._came:
            assert self._came.wait_for(lambda: self._results, WAIT)
            return self._results.pop()

    def do(self, job: Callable[[], object]) -> object:
        self.begin(job)
        return self.result()

    def end(self) -> None:
        with self._came:
            self._ends = True
            self._came.notify_all()
        self._thread.join(WAIT)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def test_threads_that_share_a_consumer_repeat_and_lose_nothing(store: Store) -> None:
    total = 2_000
    stream = fill(store, total)
    consumer = stream.consumer("g", auto_commit_interval=0)
    seen: Counter[int] = Counter()
    told, wrong = [], []
    lock = threading.Lock()

    def work() -> None:
        while sum(seen.values()) < total:
            try:
                messages = consumer.receive(3)
            except Locked as error:
                told.append(error.holder)
                return
            with lock:
                seen.update(offsets(messages))
            if messages and consumer.committed > messages[0].offset:
                wrong.append(messages[0].offset)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert set(seen.values()) <= {1}
    assert wrong == []
    assert len(seen) == total or told


def test_who_comes_while_another_thread_receives_is_told(store: Store) -> None:
    stream = store.stream("s")
    with stream.consumer("g") as consumer, Elsewhere() as other:
        other.begin(lambda: offsets(consumer.receive(2, wait=WAIT)))
        while not consumer._is_receiving:
            pass
        with pytest.raises(Locked, match="consumer for each thread") as caught:
            consumer.receive()
        assert caught.value.holder == "elsewhere"
        with pytest.raises(Locked, match="'elsewhere' receives from it; name the message"):
            consumer.commit()
        stream.publish_many(numbers(2))
        assert other.result() in ([0], [0, 1])


def test_who_comes_while_another_thread_is_at_something_is_told(store: Store) -> None:
    stream = fill(store)
    with stream.consumer("g", auto_commit_interval=0) as consumer, Elsewhere() as other:
        assert other.do(lambda: offsets(consumer.receive(2))) == [0, 1]
        for ask in (consumer.receive, lambda: next(consumer)):
            with pytest.raises(Locked, match="'elsewhere' has not committed what it got"):
                ask()
        assert consumer.committed == 0
        assert other.do(lambda: offsets(consumer.receive(2))) == [2, 3]
        assert consumer.committed == 2


@pytest.mark.parametrize("how", ["commit", "commit-message", "commit-offset", "ack", "seek"])
def test_what_was_committed_may_be_handed_over(store: Store, how: str) -> None:
    stream = fill(store)
    with stream.consumer("g") as consumer, Elsewhere() as other:
        messages = other.do(lambda: consumer.receive(2))
        assert isinstance(messages, list)
        last: Message = messages[-1]
        ways: dict[str, Callable[[], None]] = {
            "commit": consumer.commit,
            "commit-message": lambda: consumer.commit(last),
            "commit-offset": lambda: consumer.commit(2),
            "ack": last.ack,
            "seek": lambda: consumer.seek(2),
        }
        ways[how]()
        assert offsets(consumer.receive(2)) == [2, 3]
        assert isinstance(other.do(consumer.receive), Locked)


def test_who_got_nothing_is_at_nothing(store: Store) -> None:
    stream = fill(store)
    with stream.consumer("g", filter="eu/#") as consumer, Elsewhere() as other:
        assert other.do(consumer.receive) == []
        assert consumer.receive() == []
        stream.publish(b"x", routing_key="eu/x")
        assert other.do(lambda: offsets(consumer.receive())) == [10]


@pytest.mark.parametrize("commits", [False, True])
def test_what_a_thread_had_that_has_ended_is_not_taken_for_done(
    store: Store, commits: bool
) -> None:
    stream = fill(store)
    with stream.consumer("g", auto_commit_interval=0) as consumer:
        with Elsewhere() as other:
            assert other.do(lambda: offsets(consumer.receive(2))) == [0, 1]
            assert other.do(lambda: offsets(consumer.receive(2))) == [2, 3]
        assert offsets(consumer.receive(2)) == [4, 5]
        assert offsets(consumer.receive(2)) == [6, 7]
        assert consumer.committed == 2
        if commits:
            consumer.commit()
            assert consumer.committed == 8
    with stream.consumer("g") as consumer:
        left = [message.offset for _ in range(3) for message in consumer.receive(9)]
        assert sorted(left) == ([8, 9] if commits else [2, 3, 6, 7, 8, 9])


def test_a_message_may_be_committed_while_another_thread_receives(store: Store) -> None:
    stream = store.stream("s")
    stream.publish_many(numbers(2))
    with stream.consumer("g", auto_commit=False) as consumer, Elsewhere() as other:
        messages = other.do(lambda: consumer.receive(2))
        assert isinstance(messages, list)
        other.begin(lambda: offsets(consumer.receive(1, wait=WAIT)))
        while not consumer._is_receiving:
            pass
        consumer.commit(messages[-1])
        stream.publish(b"x")
        assert other.result() == [2]
        assert consumer.committed == 2
