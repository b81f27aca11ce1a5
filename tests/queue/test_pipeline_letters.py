"""Dead letters that pipelines have written: each message comes back once, however many of them have
refused it, and wherever they put their letters."""

from __future__ import annotations

import errno
import threading

import pytest

from tailrace import Store, Stream, TailraceError
from tailrace.log.producers import Once
from tailrace.queue.dead_letters import refused_by
from tailrace.queue.message import new_record
from tailrace.testing import Fail, on
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine
from tests.queue.conftest import OpenStore
from tests.queue.support import refuse, values


def filled(store: Store) -> Stream:
    orders = store.stream("orders")
    orders.publish_many([b"0", b"1", b"2"])
    return orders


def test_a_message_that_several_have_refused_comes_back_once(store: Store) -> None:
    orders = filled(store)
    refuse(store, "a", 0, 2)
    refuse(store, "b", 0, 1, 2)
    refuse(store, "c", 2)
    assert [refused_by(letter) for letter in store.dead("orders")] == list("aabbbc")
    assert store.redrive("orders") == 3
    assert values(orders.read(3)) == [b"0", b"2", b"1"]
    assert store.dead("orders") == []
    [first, *_] = orders.read(3)
    assert [name for name, _ in first.headers.pairs if name.startswith("_dlq_")] == []


def test_it_comes_back_once_over_several_calls_and_again_if_it_is_refused_again(
    store: Store,
) -> None:
    orders = filled(store)
    refuse(store, "a", 0, 1)
    refuse(store, "b", 0, 1)
    assert store.redrive("orders", limit=1) == 1
    assert store.redrive("orders", limit=2) == 1  # and the letters of b say nothing new
    refuse(store, "late", 0, 1)
    assert store.redrive("orders") == 0
    assert (values(orders.read(3)), store.dead("orders")) == ([b"0", b"1"], [])
    refuse(store, "a", 3, 4)  # what came back is another message
    refuse(store, "b", 3, 4)
    assert store.redrive("orders") == 2
    assert orders.log.end_offset == 7


def test_an_offset_of_a_queue_that_was_deleted_is_another_message(store: Store) -> None:
    before = filled(store).incarnation
    store.delete("orders")
    orders = filled(store)
    refuse(store, "a", 0, of=before)
    refuse(store, "a", 0)
    assert store.redrive("orders") == 2
    assert orders.log.end_offset == 5


def test_letters_that_name_no_pipeline_are_each_by_itself(store: Store) -> None:
    """As those of another system, whose offsets may be anything."""
    orders = filled(store)
    store.prepare_letters("$dlq/orders")
    letters = store.get("$dlq/orders")
    told = {"_dlq_original_queue": "orders", "_dlq_original_offset": "0"}
    for name in ("x", "y"):
        record = new_record(name.encode(), "$dlq/orders", headers=told)
        letters.append_accepted([record], Once(name, 0, 0)).wait()
    assert [refused_by(letter) for letter in store.dead("orders")] == [None, None]
    assert store.redrive("orders") == 2
    assert values(orders.read(3)) == [b"x", b"y"]


def test_those_in_other_queues_are_found_where_they_are_looked_for(store: Store) -> None:
    orders = filled(store)
    refuse(store, "a", 0)
    refuse(store, "b", 0, 1, place="refused")
    store.stream("no letters")
    places = ["refused", "$dlq/orders", "not there", "no letters"]
    assert len(store.dead("orders")) == 1
    assert values(store.dead("orders", places=places)) == [b"0", b"0", b"1"]
    assert values(store.dead("orders", 2, places="refused")) == [b"0", b"0"]
    assert store.redrive("orders", places=places) == 2
    assert values(orders.read(3)) == [b"0", b"1"]
    assert store.dead("orders", places=places) == []


def test_two_who_redrive_at_once_bring_each_back_once(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    orders = filled(store)
    for pipeline in "abcd":
        refuse(store, pipeline, 0, 1, 2, place=f"refused by {pipeline}")
    places = [f"refused by {pipeline}" for pipeline in "abcd"]
    threads = [
        threading.Thread(target=each.redrive, args=("orders",), kwargs={"places": given})
        for each, given in ((store, places), (other, places[::-1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    store.redrive("orders", places=places)  # what one of them had, and let go
    assert sorted(m.value or b"" for m in orders.read(3)) == [b"0", b"1", b"2"]


def test_a_redrive_that_is_killed_brings_it_back_once(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    filled(store)
    refuse(store, "a", 0)
    refuse(store, "b", 0)
    # It comes back, and then the process ends before it says so.
    fs.plan = on("pwrite", Fail(errno.EIO), path="*dead/ops.log", nth=2)
    with pytest.raises((TailraceError, OSError)):
        store.redrive("orders")
    assert values(store.get("orders").read(3)) == [b"0"]
    machine.kill()
    machine.clock.advance(60)
    with machine.open() as store:
        assert len(store.dead("orders")) == 2
        store.redrive("orders")
        assert values(store.get("orders").read(3)) == [b"0"]
        assert store.dead("orders") == []
