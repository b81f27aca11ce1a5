"""What a stream has to promise its groups: nothing is skipped, and nothing is committed that was
not processed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tailrace import Message, Store, Stream, StreamConsumer
from tests.queue.clocks import Machine
from tests.queue.support import another_process, numbers, offsets, values


def fill(store: Store, count: int = 10, **options: Any) -> Stream:
    stream = store.stream("s", **options)
    stream.publish_many(numbers(count))
    return stream


def take(consumer: StreamConsumer, count: int) -> list[int]:
    return offsets(consumer.receive(count))


def test_two_consumers_of_a_group_share_what_there_is(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    assert (take(first, 3), take(second, 3), take(first, 9)) == (
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
    )
    assert take(stream.consumer("another"), 10) == list(range(10))


def test_committed_is_the_lowest_that_anybody_is_at(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 3)
    take(second, 3)
    take(first, 2)
    second.commit()
    assert first.committed == 0
    first.commit(3)
    assert first.committed == 6
    first.commit()
    assert (first.committed, second.committed) == (8, 8)


def test_what_somebody_had_who_left_is_for_the_others(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 3)
    take(second, 3)
    first.commit(1)
    first.close()
    assert second.committed == 1
    assert (take(second, 9), take(second, 9)) == ([1, 2], [6, 7, 8, 9])
    second.commit()
    assert second.committed == 10


def test_what_a_killed_process_had_is_for_the_others(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        stream = fill(store)
        other.ask("globals().update(c=store.stream('s').consumer('g', auto_commit=False))")
        assert other.ask("[m.offset for m in c.receive(4)]") == "[0, 1, 2, 3]"
        other.ask("c.commit(2)")
        with stream.consumer("g", auto_commit=False) as consumer:
            assert take(consumer, 3) == [4, 5, 6]
            other.kill()
            [back] = consumer.receive(1, wait=30)  # it looks round, now and then
            seen = [back.offset]
            while len(seen) < 5:
                seen += offsets(consumer.receive(2, wait=30))
            assert sorted(seen) == [2, 3, 7, 8, 9]
            consumer.commit(10)
            assert consumer.committed == 10


def test_processed_is_what_the_caller_has_moved_past(store: Store) -> None:
    stream = fill(store)
    consumer = stream.consumer("g", auto_commit_interval=0)
    assert take(consumer, 3) == [0, 1, 2]
    assert consumer.committed == 0  # it is at them
    assert take(consumer, 3) == [3, 4, 5]
    assert consumer.committed == 3
    consumer.close()
    assert take(stream.consumer("g"), 2) == [3, 4]


def fail() -> None:
    raise ZeroDivisionError


def test_an_interval_of_nothing_commits_with_each_batch(store: Store) -> None:
    stream = store.stream("each", auto_commit_interval=0)
    stream.publish_many(numbers(9))
    consumer = stream.consumer("g")
    for batch in range(3):
        assert consumer.committed == max(batch - 1, 0) * 3
        assert take(consumer, 3) == [3 * batch, 3 * batch + 1, 3 * batch + 2]
    stream.configure(auto_commit_interval="1h")
    assert stream.settings.auto_commit_interval_ms == 3_600_000


def test_an_error_in_a_loop_commits_nothing_of_the_last_message(store: Store) -> None:
    stream = fill(store)

    def work() -> None:
        with stream.consumer("g") as consumer:
            for message in consumer:
                if message.offset == 4:
                    fail()

    with pytest.raises(ZeroDivisionError):
        work()
    assert take(stream.consumer("g"), 1) == [4]


def test_nothing_that_came_back_is_committed_before_it_is_processed(store: Store) -> None:
    """One consumer leaves what is below what the other has got meanwhile."""
    stream = fill(store)
    leaving = stream.consumer("g", auto_commit=False)
    staying = stream.consumer("g", auto_commit=True)
    assert (take(leaving, 5), take(staying, 5)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    leaving.close()
    assert take(staying, 5) == [0, 1, 2, 3, 4]
    staying.close()  # as `with` does when what is done with them fails
    assert stream.groups()[0].committed == 0
    assert take(stream.consumer("g"), 5) == [0, 1, 2, 3, 4]


def test_commit_means_all_that_was_received(store: Store) -> None:
    stream = fill(store)
    leaving, staying = (stream.consumer("g", auto_commit=False) for _ in range(2))
    assert (take(leaving, 5), take(staying, 5)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    leaving.close()
    assert take(staying, 5) == [0, 1, 2, 3, 4]
    staying.commit()
    assert staying.committed == 10


def test_a_commit_of_more_than_was_received_commits_what_was(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 3)
    take(second, 3)
    first.commit(6)
    assert first.committed == 3
    assert take(first, 1) == [6]


def test_a_commit_beyond_what_anybody_has_received_is_refused(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 3)
    for consumer in (first, second):  # the other has received nothing yet
        with pytest.raises(ValueError, match=r"^upto: 4 is beyond what the group 'g' has received"):
            consumer.commit(4)
    assert first.committed == 0
    first.commit(3)
    assert first.committed == 3
    second.seek(0)
    first.commit(3)  # what it had before, which counts for nothing
    assert first.committed == 0


def test_a_commit_from_before_a_seek_does_not_count(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 8)
    second.seek(0)
    first.commit()
    assert second.committed == 0
    assert take(second, 2) == [0, 1]


def test_a_seek_moves_the_whole_group(store: Store) -> None:
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 6)
    second.seek(2)
    assert (take(first, 2), take(second, 2)) == ([2, 3], [4, 5])
    second.seek("next")
    assert (take(first, 2), first.committed) == ([], 10)


def test_a_group_that_begins_at_the_end_misses_nothing_from_then_on(tmp_path: Path) -> None:
    """While others go on writing."""
    with Store(tmp_path, flush="async", upkeep=False) as store:
        stream = fill(store)
        done = threading.Event()

        def write() -> None:
            while not done.is_set():
                stream.publish(b"x")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            got: list[Message] = []
            with stream.consumer("g", start="next") as consumer:
                first = consumer.committed
                while len(got) < 500:
                    got += consumer.receive(50, wait=10)
        finally:
            done.set()
            writer.join()
        assert first >= 10
        assert offsets(got) == list(range(first, first + len(got)))


@pytest.mark.parametrize("seed", range(8))
def test_after_a_power_cut_a_group_goes_on_behind_what_it_committed(
    machine: Machine, seed: int
) -> None:
    store = machine.open(compact_after=1 + seed % 3)
    stream = fill(store)
    first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
    take(first, 3)
    take(second, 3)
    second.commit()
    first.commit(2)
    take(first, 2)
    machine.power_cut(seed)
    with machine.open() as store:
        consumer = store.stream("s").consumer("g", auto_commit=False)
        assert consumer.committed == 2
        seen: list[int] = []
        while got := take(consumer, 4):
            seen += got
        assert seen == [2, 6, 7, 8, 9]


def test_a_kill_loses_what_was_not_committed_and_nothing_else(machine: Machine) -> None:
    store = machine.open(flush="async")
    consumer = fill(store).consumer("g", auto_commit=False)
    take(consumer, 4)
    consumer.commit()
    take(consumer, 4)
    machine.kill()
    with machine.open() as store:
        consumer = store.stream("s").consumer("g")
        assert (take(consumer, 9), take(consumer, 9)) == ([4, 5, 6, 7], [8, 9])


def test_a_position_never_goes_back_by_itself(store: Store) -> None:
    stream = fill(store, 50)
    consumer = stream.consumer("g", auto_commit_interval=0)
    seen: list[int] = []
    for count in (7, 1, 20, 3, 40):
        seen += take(consumer, count)
    assert seen == list(range(50))
    consumer.close()
    assert values(stream.consumer("g").receive(9)) == numbers(50)[31:40]


@pytest.mark.parametrize("seed", range(8))
def test_a_seek_is_durable_when_it_returns(machine: Machine, seed: int) -> None:
    store = machine.open()
    stream = fill(store)
    consumer = stream.consumer("g", auto_commit=False)
    take(consumer, 8)
    consumer.commit()
    consumer.seek(2)
    machine.power_cut(seed)
    with machine.open() as store:
        again = store.stream("s").consumer("g")
        assert again.committed == 2
        assert take(again, 2) == [2, 3]


def test_what_a_delivery_of_a_stream_carries(store: Store) -> None:
    stream = store.stream("s")
    stream.publish(b"x", timestamp=1_700_000_000_123, routing_key="eu/it")
    [message] = stream.consumer("g").receive()
    assert message.properties == {
        "message-id": "s:0",
        "queue": "s",
        "offset": 0,
        "x-source-topic": "$queue/s/eu/it",
        "group-id": "g",
        "x-stream-offset": 0,
        "x-stream-timestamp": 1_700_000_000_123,
    }
