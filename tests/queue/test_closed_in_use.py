"""A store is closed, or a queue deleted, while others are at it: what they are told is why."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Closed
from tailrace.queue.turns import Turn
from tests.log.helpers import WAIT
from tests.queue.support import numbers


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_worker_who_has_waited_is_told_that_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The last one leaves no journal; that is not because the group was deleted."""
    store = tailrace.open(tmp_path, upkeep=False)
    queue = store.queue("q") if kind == "queue" else store.stream("q")
    queue.publish_many(numbers(3))
    group = queue.open_group("g")
    with queue.consumer("g") as consumer:
        consumer.receive(1)
    told: list[BaseException | None] = []
    leave = Turn.__exit__

    def leave_and_let_in(turn: Turn, *error: Any) -> None:
        leave(turn, *error)
        if group._is_stale and not told:  # all is exported
            told.append(None)
            with ThreadPoolExecutor(1) as pool:
                told.append(pool.submit(group.members).exception(WAIT))

    monkeypatch.setattr(Turn, "__exit__", leave_and_let_in)
    store.close()
    assert isinstance(told[-1], Closed)
    assert str(told[-1]) == "the group 'g' is closed"


def follow_until_it_ends(queue: Any, ended: list[BaseException]) -> None:
    try:
        for _ in queue.read(follow=True):
            pass
    except Closed as error:
        ended.append(error)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_who_follows_is_told_that_it_was_deleted(tmp_path: Path, kind: str) -> None:
    with tailrace.open(tmp_path) as store:
        queue: Any = store.queue("q") if kind == "queue" else store.stream("q")
        queue.publish_many(numbers(3))
        ended: list[BaseException] = []
        thread = threading.Thread(target=follow_until_it_ends, args=(queue, ended))
        thread.start()
        time.sleep(0.1)
        store.delete("q")
        thread.join(WAIT)
        assert [str(each) for each in ended] == [
            "the queue 'q' was deleted; open it again to have it anew"
        ]


DELETED = "the queue 'q' was deleted; open it again to have it anew"


def said_by(use: Callable[[], object]) -> str:
    with pytest.raises(Closed) as caught:
        use()
    return str(caught.value)


@pytest.mark.parametrize("who", ["we", "somebody else"])
@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_deleted_queue_is_what_everybody_is_told_of(tmp_path: Path, kind: str, who: str) -> None:
    with tailrace.open(tmp_path) as store, tailrace.open(tmp_path) as other:
        queue: Any = getattr(store, kind)("q")
        queue.publish_many(numbers(3))
        first, second = queue.consumer("g"), queue.consumer("g")
        [message] = first.receive()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(second.receive, 9, WAIT)
            assert len(waiting.result()) == 2
            waiting = pool.submit(second.receive, 1, WAIT)
            time.sleep(0.05)
            (store if who == "we" else other).delete("q")
            assert said_by(waiting.result) == DELETED
        for use in (first.receive, second.receive, message.ack, message.reject, first.receive):
            assert said_by(use) == DELETED
        again: Any = getattr(store, kind)("q")
        again.publish(b"new")
        for use in (first.receive, message.ack):
            assert said_by(use) == DELETED
        assert len(again.consumer("g").receive(9)) == 1


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_receive_that_ends_because_the_queue_was_deleted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who has waited may come too late to look: its consumer is closed already."""
    with tailrace.open(tmp_path) as store:
        queue: Any = getattr(store, kind)("q")
        consumer = queue.consumer("g")
        look = type(consumer)._look

        def look_and_delete(self: Any, into: list[Any], limit: int) -> Any:
            found = look(self, into, limit)
            store.delete("q")
            return found

        monkeypatch.setattr(type(consumer), "_look", look_and_delete)
        assert said_by(lambda: consumer.receive(1, WAIT)) == DELETED


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_deleted_group_is_what_its_members_are_told_of(tmp_path: Path, kind: str) -> None:
    with tailrace.open(tmp_path) as store:
        queue: Any = getattr(store, kind)("q")
        queue.publish(b"x")
        consumer = queue.consumer("g")
        [message] = consumer.receive()
        with ThreadPoolExecutor(1) as pool:
            other = queue.consumer("g")
            waiting = pool.submit(other.receive, 1, WAIT)
            time.sleep(0.05)
            queue.delete_group("g")
            assert said_by(waiting.result) == "the group 'g' was deleted"
        for use in (consumer.receive, message.ack, consumer.receive):
            assert said_by(use) == "the group 'g' was deleted"


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_group_that_goes_with_its_queue_in_the_middle_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_stale: bool
) -> None:
    """Its journal is gone, or what it would read; that is because the queue is."""
    with tailrace.open(tmp_path) as store, tailrace.open(tmp_path) as other:
        queue: Any = getattr(store, kind)("q")
        queue.publish(b"x")
        consumer = queue.consumer("g")
        group = queue.group("g")
        take = Turn._take

        def delete_and_take(turn: Turn) -> None:
            if turn is group._turn and "q" in other.registry.current():
                other.delete("q")
                group._is_stale = is_stale
            take(turn)

        group._turn._processes.give()
        monkeypatch.setattr(Turn, "_take", delete_and_take)
        assert said_by(consumer.receive) == DELETED


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_what_is_left_of_a_closed_store_tells_of_the_store(tmp_path: Path, kind: str) -> None:
    store = tailrace.open(tmp_path)
    queue: Any = getattr(store, kind)("q")
    queue.publish(b"x")
    consumer = queue.consumer("g")
    [message] = consumer.receive()
    store.close()
    for use in (consumer.receive, message.ack):
        assert said_by(use) == f"the store in {tmp_path} is closed"
