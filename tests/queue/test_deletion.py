"""A queue that was deleted is gone for everybody, and one of the same name is another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace import (
    Closed,
    Consumer,
    InvalidName,
    LeaseLost,
    Message,
    Queue,
    Store,
    Stream,
    StreamConsumer,
)
from tailrace.testing import Call, Crash, SimulatedCrash, on
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, drain, numbers, offsets, one, values

QUEUE_USES: dict[str, Callable[[Queue, Consumer, Message], object]] = {
    "publish": lambda queue, consumer, message: queue.publish(b"x"),
    "read": lambda queue, consumer, message: list(queue.read()),
    "len": lambda queue, consumer, message: len(queue),
    "groups": lambda queue, consumer, message: queue.groups(),
    "consumer": lambda queue, consumer, message: queue.consumer("w"),
    "receive": lambda queue, consumer, message: consumer.receive(),
    "ack": lambda queue, consumer, message: message.ack(),
    "nack": lambda queue, consumer, message: message.nack(),
    "reject": lambda queue, consumer, message: message.reject(),
    "release": lambda queue, consumer, message: message.release(),
    "extend": lambda queue, consumer, message: message.extend(),
}
STREAM_USES: dict[str, Callable[[Stream, StreamConsumer, Message], object]] = {
    "publish": lambda stream, consumer, message: stream.publish(b"x"),
    "receive": lambda stream, consumer, message: consumer.receive(),
    "commit": lambda stream, consumer, message: consumer.commit(),
    "seek": lambda stream, consumer, message: consumer.seek(0),
    "reject": lambda stream, consumer, message: message.reject(),
}


@pytest.mark.parametrize("is_there_another", [False, True], ids=["gone", "made anew"])
@pytest.mark.parametrize("use", QUEUE_USES)
def test_a_deleted_queue_is_closed_for_everybody(
    open_store: OpenStore, use: str, is_there_another: bool
) -> None:
    ours, theirs = open_store(), open_store()
    ours.queue("q").publish_many(numbers(3))
    queue = theirs.queue("q")
    consumer = queue.consumer("w")
    message = one(consumer)
    ours.delete("q")
    if is_there_another:
        ours.queue("q").publish(b"new")
    with pytest.raises((Closed, LeaseLost)):
        QUEUE_USES[use](queue, consumer, message)
    if is_there_another:
        assert drain(ours.queue("q").consumer("w")) == [b"new"]


@pytest.mark.parametrize("use", STREAM_USES)
def test_a_deleted_stream_is_closed_for_everybody(open_store: OpenStore, use: str) -> None:
    ours, theirs = open_store(), open_store()
    ours.stream("s").publish_many(numbers(3))
    stream = theirs.stream("s")
    consumer = stream.consumer("g", auto_commit=False)
    [message] = consumer.receive()
    ours.delete("s")
    with pytest.raises(Closed):
        STREAM_USES[use](stream, consumer, message)


def test_a_store_with_a_queue_that_another_deleted_can_be_closed(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store()
    ours.queue("q").publish_many(numbers(3))
    one(theirs.queue("q").consumer("w"))
    ours.delete("q")
    theirs.close()


def test_a_name_that_is_deleted_is_unknown(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store()
    ours.queue("q")
    ours.delete("q")
    for use in (theirs.get, theirs.delete, theirs.dead, theirs.redrive):
        with pytest.raises(InvalidName):
            use("q")


def test_whoever_waits_for_a_queue_that_is_deleted_is_told(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store()
    ours.queue("q")
    consumer = theirs.queue("q").consumer("w")
    assert consumer.receive() == []
    ours.delete("q")
    with pytest.raises(Closed):
        consumer.receive(wait=30)


def test_one_of_the_same_name_is_another(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store()
    old = theirs.queue("q")
    ours.queue("q").publish_many(numbers(10))
    consumer = old.consumer("w")
    consumer.ack(consumer.receive(8))
    ours.delete("q")
    new = ours.queue("q")
    new.publish_many([b"a", b"b", b"c"])
    fresh = new.consumer("w")
    assert values(fresh.receive(1)) == [b"a"]
    with pytest.raises(Closed):
        old.publish(b"x")
    with pytest.raises(Closed):
        consumer.receive()
    assert new.incarnation != old.incarnation
    assert theirs.queue("q").group("w").progress() == (1, 0)
    assert values(fresh.receive(9)) == [b"b", b"c"]


def test_closing_a_store_that_has_a_deleted_queue_leaves_the_new_one_alone(
    open_store: OpenStore,
) -> None:
    ours, theirs = open_store(), open_store()
    consumer = theirs.queue("q").consumer("w")
    ours.queue("q").publish_many(numbers(10))
    consumer.ack(consumer.receive(10))
    ours.delete("q")
    ours.queue("q").publish_many([b"a", b"b", b"c"])
    assert len(ours.queue("q").groups()) == 0
    theirs.close()
    assert drain(ours.queue("q").consumer("w")) == [b"a", b"b", b"c"]


def test_from_another_process(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q")
        queue.publish_many(numbers(4))
        consumer = queue.consumer("w")
        consumer.ack(consumer.receive(3))
        message = one(consumer)
        assert other.ask("store.delete('q')") == "None"
        assert other.ask("store.queue('q').publish_many([b'a', b'b']).count") == "2"
        with pytest.raises((Closed, LeaseLost)):
            message.ack()
        with pytest.raises(Closed):
            consumer.receive()
        with pytest.raises(Closed):
            queue.publish(b"x")
        assert drain(store.queue("q").consumer("w")) == [b"a", b"b"]


def test_what_another_makes_while_we_delete_is_left_alone(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    other = machine.open()
    store.queue("q").publish_many(numbers(3))
    consumer = store.queue("q").consumer("w")
    consumer.ack(consumer.receive(3))
    consumer.close()
    maker = threading.Thread(target=lambda: other.queue("q").publish(b"new"))

    def make(call: Call) -> None:
        if call.op == "rename" and "trash" in call.path and maker.ident is None:
            maker.start()
            maker.join(0.3)  # it may do it now, or have to wait for us

    fs.plan = make
    store.delete("q")
    maker.join(WAIT)
    assert not maker.is_alive()
    assert values(other.queue("q").read()) == [b"new"]
    assert drain(other.queue("q").consumer("w")) == [b"new"]


@pytest.mark.parametrize("op", ["rename", "list", "unlink"])
def test_a_deletion_that_is_killed_leaves_nothing_to_the_next_one(
    machine: Machine, op: str
) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q")
    queue.publish_many(numbers(10))
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(10))
    fs.plan = on(op, Crash(), path="*trash*")  # type: ignore[arg-type]
    with pytest.raises(SimulatedCrash):
        store.delete("q")
    machine.kill()
    with machine.open() as store:
        queue = store.queue("q")
        assert values(queue.read()) == []
        queue.publish_many([b"a", b"b"])
        assert drain(queue.consumer("w")) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_after_a_deletion_brings_nothing_back(machine: Machine, seed: int) -> None:
    with machine.open() as store:
        consumer = store.queue("q").consumer("w")
        store.queue("q").publish_many(numbers(10))
        consumer.ack(consumer.receive(10))
    with machine.open() as store:  # its groups were exported when it was closed
        store.delete("q")
        machine.power_cut(seed)
    with machine.open() as store:
        queue = store.queue("q")
        assert queue.group_ids() == []
        queue.publish_many([b"a", b"b"])
        assert drain(queue.consumer("w")) == [b"a", b"b"]


def test_a_deleted_group_is_closed_for_everybody(open_store: OpenStore) -> None:
    ours, theirs = open_store(), open_store()
    ours.queue("q").publish_many(numbers(3))
    consumer = theirs.queue("q").consumer("w")
    message = one(consumer)
    ours.queue("q").delete_group("w")
    with pytest.raises(Closed):
        message.ack()
    with pytest.raises(Closed):
        consumer.receive()
    assert ours.queue("q").group_ids() == []
    assert offsets(theirs.queue("q").consumer("w").receive(9)) == [0, 1, 2]
    with pytest.raises(Closed):
        message.ack()
    assert offsets(ours.queue("q").consumer("w").receive(9)) == []


def test_a_group_whose_deletion_is_killed_is_gone(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q")
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(3))
    fs.plan = on("unlink", Crash(), path="*.deleted-*")
    with pytest.raises(SimulatedCrash):
        queue.delete_group("w")
    machine.kill()
    with machine.open() as store:
        queue = store.queue("q")
        assert queue.group_ids() == []
        assert queue.groups() == []
        assert drain(queue.consumer("w")) == numbers(3)


def test_a_name_that_is_free_again_can_be_of_another_kind(store: Store) -> None:
    store.queue("q").publish(b"x")
    store.delete("q")
    stream = store.stream("q")
    assert (len(stream), stream.group_ids()) == (0, [])
    assert values(stream.consumer("w").receive()) == []


def test_who_deletes_nothing_is_told(store: Store) -> None:
    with pytest.raises(InvalidName, match="no queue 'nobody'"):
        store.delete("nobody")
    with pytest.raises(InvalidName, match="no group 'nobody'"):
        store.queue("q").delete_group("nobody")
