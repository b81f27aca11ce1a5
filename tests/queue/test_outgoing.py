"""What an ack publishes: to the queue that was meant, once, and where there is room for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Full, Message, Outgoing, Queue, Store
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import numbers, one, states, values


def work_on(store: Store) -> tuple[Queue, Message]:
    queue = store.queue("q", visibility_timeout="1s")
    queue.publish(b"x")
    return queue, one(queue.consumer("w"))


# --- the queue that was meant ---------------------------------------------------------------------


def test_a_queue_that_was_deleted_and_made_anew_is_another(store: Store) -> None:
    queue, message = work_on(store)
    old = store.queue("out")
    store.delete("out")
    for is_there in (False, True):
        if is_there:
            store.queue("out")
        for outgoing in ((old, b"y"), Outgoing("out", b"y", queue=old)):
            with pytest.raises(Closed, match="the queue 'out' was deleted"):
                message.ack(publish=[outgoing])
        assert states(queue) == {0: ("leased", 1)}
    new = store.queue("out")
    message.ack(publish=[(new, b"y")])
    assert values(new.read()) == [b"y"]


def test_a_queue_of_another_store_is_another(store: Store, tmp_path: Path) -> None:
    queue, message = work_on(store)
    ours = store.queue("out")
    with Store(tmp_path / "other", upkeep=False) as other:
        theirs = other.queue("out")
        with pytest.raises(ValueError, match=r"'out'.* is of another store"):
            message.ack(publish=[(ours, b"x"), (theirs, b"y")])
        assert (len(ours), len(theirs)) == (0, 0)
    assert states(queue) == {0: ("leased", 1)}


def test_a_queue_of_the_same_store_that_was_opened_twice(
    store: Store, open_store: OpenStore
) -> None:
    _queue, message = work_on(store)
    queues = [each.queue("a/b") for each in (store, open_store())]
    wrong: Any = Outgoing("a", b"x", queue="a/b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is a Queue or a Stream, not 'a/b'"):
        message.ack(publish=[wrong])
    message.ack(publish=[(queues[0], b"y"), Outgoing("a", b"z", queue=queues[1])])
    assert values(store.get("a/b").read()) == [b"y", b"z"]


# --- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_full", ["raise", "block", "drop_oldest"])
def test_what_was_published_before_a_crash_needs_no_room(
    open_store: OpenStore, clock: ManualClock, on_full: str
) -> None:
    store = open_store()
    out = store.queue("out", limits={"max_depth": 2, "on_full": on_full})
    out.publish(b"0")
    queue, message = work_on(store)
    account = queue.group("w").account()
    queue.publish_once(message, account, [(out, b"y")])  # and then it was killed
    clock.advance(2)
    with open_store() as other:
        message = one(other.queue("q").consumer("w"))
        message.ack(publish=[(other.queue("out"), b"y")])
        assert states(queue) == {}
        assert values(out.peek("r", 9)) == [b"0", b"y"]


def test_what_was_not_published_needs_room(store: Store) -> None:
    queue, message = work_on(store)
    free, full = store.queue("free"), store.queue("full", limits={"max_depth": 1})
    full.publish_many(numbers(1))
    with pytest.raises(Full):
        message.ack(publish=[(free, b"y"), (full, b"y")])
    assert (len(free), len(full)) == (0, 1)
    assert states(queue) == {0: ("leased", 1)}
