"""Dead letters that nobody has looked at are not what retention may take."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Queue, Store
from tests.log.helpers import WAIT
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, refuse

FEW: dict[str, Any] = {"max_age": "1s", "max_length_messages": 5}
SMALL: dict[str, Any] = {"segment_bytes": 400, "flush": "async", "compression": "none"}


def reject_all(queue: Queue, count: int) -> None:
    queue.publish_many(numbers(count))
    with queue.consumer("w") as consumer:
        consumer.reject(consumer.receive(count), "bad")


def segments(store: Store, name: str) -> int:
    return len(list(Path(store.get(name).log.path).glob("*.seg")))


@pytest.mark.parametrize("place", ["$dlq/q", "letters"])
def test_dead_letters_that_nobody_has_looked_at_stay(
    open_store: OpenStore, clock: ManualClock, place: str
) -> None:
    if place == "letters":
        store = open_store(**SMALL)
        store.queue(place, retention=FEW)
        queue = store.queue("q", dlq={"topic": place})
    else:
        store = open_store(**SMALL, retention=FEW)
        queue = store.queue("q")
        assert queue.settings.retention
    reject_all(queue, 20)
    clock.advance(3600)
    assert segments(store, place) > 5
    assert store.vacuum()[place].segments == 0
    assert offsets(store.dead("q")) == list(range(20))
    assert store.redrive("q") == 20
    assert store.vacuum()[place].segments > 0  # somebody has dealt with them


def test_nor_does_upkeep_take_them(tmp_path: Path) -> None:
    options = {"retention": {"max_age": "20ms"}, "retention_check_interval": "20ms", **SMALL}
    with tailrace.open(tmp_path, **options) as store:
        queue = store.queue("q")
        store.queue("letters")
        for topic in ("$dlq/q", "letters"):
            queue.configure(dlq={"topic": topic})
            reject_all(queue, 20)
        settled = store.queue("settled")
        settled.publish_many(numbers(20))
        drain(settled.consumer("w"))
        deadline = time.monotonic() + WAIT
        before = segments(store, "$dlq/q"), segments(store, "letters")
        settled.publish(b"next")
        while segments(store, "settled") > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        assert (segments(store, "$dlq/q"), segments(store, "letters")) == before
        assert store.stats()["q"].dead == 40


def test_letters_of_a_pipeline_stay_too(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store(**SMALL)
    store.queue("refused", retention=FEW)
    store.queue("orders")
    refuse(store, "etl", *range(10), place="refused")
    clock.advance(3600)
    assert store.vacuum()["refused"].segments == 0
    assert len(store.dead("orders", places=["refused"])) == 10


def test_letters_stay_when_somebody_has_deleted_the_group_that_knows_of_them(
    open_store: OpenStore,
) -> None:
    store, other = open_store(**SMALL), open_store()
    store.queue("letters", retention=FEW)
    queue = store.queue("q", dlq={"topic": "letters"})
    reject_all(queue, 1)
    other.get("letters").delete_group("$dead")
    reject_all(queue, 20)
    store.vacuum()
    assert len(store.dead("q")) == 21
