"""The first use of a queue opens files. Whichever call fails there, the error is one of ours, and
says that nothing was written."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailrace import NotWritten, OutcomeUnknown, Queue, Store, TailraceError
from tailrace.testing import FaultyStorePlace, ManualClock

pytestmark = pytest.mark.no_cover

Publish = Callable[[Store, Queue], Any]

PUBLISHES: dict[str, Publish] = {
    "one": lambda store, queue: queue.publish(b"x"),
    "with headers": lambda store, queue: queue.publish(b"x", headers={"a": "b"}),
    "many": lambda store, queue: queue.publish_many([b"x"]),
    "later": lambda store, queue: queue.publish(b"x", delay=0),
    "by topic": lambda store, queue: store.publish("$queue/q", b"x"),
    "to nobody": lambda store, queue: store.publish("news", b"x"),
}


@pytest.fixture
def new_place() -> Iterator[Callable[[], FaultyStorePlace]]:
    places: list[FaultyStorePlace] = []

    def make() -> FaultyStorePlace:
        place = FaultyStorePlace("data", ManualClock())
        place.__enter__()
        places.append(place)
        return place

    yield make
    for place in reversed(places):
        place.close()


@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_the_first_publish(new_place: Callable[[], FaultyStorePlace], operation: str) -> None:
    place = new_place()
    queue = place.open().queue("q")
    place.fail_next(operation)
    with pytest.raises(NotWritten, match="the log of the queue 'q' cannot be opened: ") as caught:
        queue.publish(b"x")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    queue.publish(b"y")
    assert [message.value for message in queue.read()] == [b"y"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("publish", PUBLISHES.values(), ids=PUBLISHES)
def test_the_first_publish_whichever_call_fails(
    new_place: Callable[[], FaultyStorePlace], publish: Publish
) -> None:
    skip = 0
    while True:
        place = new_place()
        store = place.open()
        queue = store.queue("q")
        place.fail_next("any", skip=skip)
        error: TailraceError | None = None
        try:
            publish(store, queue)
        except (NotWritten, OutcomeUnknown) as caught:
            error = caught
        if not place.hits:
            break
        place.stop_failing()
        if isinstance(error, OutcomeUnknown):
            store.close()  # as it says
        else:
            store.deliver_due()
            found = [m.value for each in store.queues() for m in each.read()]
            assert found == ([b"x"] if error is None else [])
            publish(store, queue)
        skip += 1
    assert error is None
    assert skip > 10


def test_the_first_consumer_whichever_call_fails(new_place: Callable[[], FaultyStorePlace]) -> None:
    skip = 0
    while True:
        place = new_place()
        queue = place.open().queue("q")
        queue.publish(b"x")
        place.fail_next("any", skip=skip)
        with contextlib.suppress(NotWritten, OutcomeUnknown):
            queue.consumer("w")
        if not place.hits:
            break
        place.stop_failing()
        [message] = queue.consumer("w").receive()
        message.ack()
        skip += 1
    assert skip > 10
