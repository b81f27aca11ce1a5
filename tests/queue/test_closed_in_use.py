"""A store is closed, or a queue deleted, while others are at it: what they are told is why."""

from __future__ import annotations

import threading
import time
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
