"""Where a queue ends, while another process appends to it and keeps its turn: that one tells others
only now and then how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tailrace
from tailrace import Queue, Stream
from tailrace.log.turn import Keeper
from tests.queue.support import another_process, numbers, offsets

COUNT = 400  # enough for a turn that is kept


class Both(NamedTuple):
    """Of one queue, as two processes have it: the first appends, the other looks on."""

    appending: Queue | Stream
    looking: Queue | Stream


def append(queue: Queue | Stream, count: int = COUNT) -> None:
    for number in numbers(count):
        queue.publish(number)


@pytest.fixture(params=["queue", "stream"])
def both(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Both]:
    monkeypatch.setattr(Keeper, "INTERVAL_S", 0.3)  # so long nobody is told anything
    with (
        tailrace.open(tmp_path, flush="async", upkeep=False) as store,
        tailrace.open(tmp_path, upkeep=False) as other,
    ):
        appending = getattr(store, request.param)("q")
        looking = getattr(other, request.param)("q")
        append(looking, 3)
        append(appending)
        writer = appending.log._writer
        assert writer.turn.held
        assert looking.log._writer.end_offset < writer.end_offset, "nobody was told"
        yield Both(appending, looking)


def test_what_can_be_read_is_counted(both: Both) -> None:
    end = both.appending.log.end_offset
    assert end == COUNT + 3
    assert both.looking.log.end_offset == end
    assert len(both.looking) == end
    assert both.looking.resolve("next") == end
    assert both.looking.resolve(end - 1) == end - 1


def test_who_looks_at_a_group_does_not_send_it_back(
    both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    """It has passed more than is known to those who load it."""
    with both.appending.consumer("g") as consumer:
        taken = consumer.receive(1000)
        assert offsets(taken) == list(range(COUNT + 3))
        [group] = both.looking.groups()
        assert (group.cursor, group.lag) == (COUNT + 3, COUNT + 3)
        for message in taken:
            message.ack()
        append(both.appending, 2)
        assert offsets(consumer.receive(10)) == [COUNT + 3, COUNT + 4]
    assert not caplog.records


def test_a_purge_takes_all_that_was_there(both: Both) -> None:
    assert both.looking.purge() == COUNT + 3
    append(both.appending, 1)
    with both.looking.consumer("g") as consumer:
        assert offsets(consumer.receive(10)) == [COUNT + 3]


def test_a_consumer_who_comes_does_not_get_what_others_have_settled(tmp_path: Path) -> None:
    """By real processes, and as fast as they can."""
    with tailrace.open(tmp_path, flush="async") as store, another_process(tmp_path) as other:
        queue = store.queue("q")
        found: list[int] = []
        stop = threading.Event()

        def work() -> None:
            with queue.consumer("g") as consumer:
                while not stop.is_set():
                    append(queue, 100)
                    while messages := consumer.receive(100):
                        found.extend(offsets(messages))
                        consumer.ack(messages)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(20):
                assert other.ask("[g.id for g in store.get('q').groups()]") in ("['g']", "[]")
                assert other.ask("store.close()") == "None"
                other.ask("(store := tailrace.open(sys.argv[1]))")
        finally:
            stop.set()
            thread.join()
        assert len(found) == len(set(found))
