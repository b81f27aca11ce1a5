"""Publishing with a producer and a sequence: however often it is repeated, it is there once."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Full, NotWritten, Store, hooks
from tailrace.testing import Call, Fail, Fault, FaultyFileSystem, SimulatedDisk
from tests.log.helpers import WAIT
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, drain, numbers, one, values


class Collector:
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def count(self, name: str, number: int, queue: str, group: str) -> None:
        self.counted[name] += number

    def observe(self, name: str, values: Sequence[float], queue: str, group: str) -> None:
        pass


ONCE: dict[str, Any] = {"producer": "p", "sequence": 7}


# --- one message --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_repeat_gets_the_receipt_of_the_first_time(store: Store, kind: str) -> None:
    queue = getattr(store, kind)("q")
    queue.publish(b"before")
    first = queue.publish(b"42.00", **ONCE)
    queue.publish(b"after")
    again = queue.publish(b"something else", wait=False, **ONCE).wait()
    for receipt in (first, again):
        assert (receipt.offset, receipt.end_offset, receipt.count) == (1, 2, 1)
        assert receipt.done
    assert values(queue.read()) == [b"before", b"42.00", b"after"]


def test_everything_that_a_message_has_is_there(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", limits={"message_ttl": "1h"})
    queue.publish(
        "text",
        key="k",
        routing_key="eu/images",
        headers={"a": "b"},
        message_id="mine",
        ttl=60,
        timestamp=1,
        **ONCE,
    )
    queue.publish(b"plain", producer="p", sequence=8)
    rich, plain = queue.consumer("w").receive(2)
    assert (rich.value, rich.key, rich.timestamp, rich.id) == (b"text", b"k", 1, "mine")
    assert (rich.topic, rich.routing_key) == ("$queue/q/eu/images", "eu/images")
    assert rich.headers.pairs == (("a", b"b"),)
    assert rich.expires_at == clock.wall_ms() + 60_000
    assert (plain.value, plain.key, plain.topic) == (b"plain", None, "$queue/q")
    assert plain.id.isdigit()
    assert plain.headers.pairs == ()
    assert plain.expires_at == clock.wall_ms() + 3_600_000
    rich.reject()
    [letter] = store.dead("q")  # what is the log's own stays behind
    assert letter.id == "mine"
    assert not {"_producer", "_sequence"} & {name for name, _ in letter.headers.pairs}
    assert store.redrive("q") == 1
    assert one(queue.consumer("w")).value == b"text"


def test_an_expired_message_is_remembered(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.publish(b"1", ttl=1, **ONCE)
    clock.advance(2)
    assert queue.publish(b"1", ttl=1, **ONCE).offset == 0
    assert drain(queue.consumer("w")) == []


def test_each_producer_and_each_queue_for_itself(store: Store) -> None:
    first, second = store.queue("first"), store.queue("second")
    for queue in (first, second):
        queue.publish(b"p", **ONCE)
        queue.publish(b"other", producer="other", sequence=7)
        assert values(queue.read()) == [b"p", b"other"]


def test_sequences_rise_and_may_leave_numbers_out(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"3", producer="p", sequence=3)
    queue.publish(b"9", producer="p", sequence=9)
    assert queue.publish(b"3", producer="p", sequence=3).offset == 0
    with pytest.raises(NotWritten, match="sequence 5 of producer 'p' is below the last one, 9"):
        queue.publish(b"5", producer="p", sequence=5)
    with pytest.raises(NotWritten, match="sequences must rise"):
        queue.publish_many([b"5"], producer="p", sequence=5)
    assert len(queue) == 2


@pytest.mark.parametrize(
    ("once", "says"),
    [
        ({"producer": "p"}, "a sequence is a whole number from 0 on, not None"),
        ({"sequence": 1}, "a producer id is 1 to 255 characters, not None"),
        ({"producer": "", "sequence": 1}, "1 to 255 characters, not ''"),
        ({"producer": "x" * 256, "sequence": 1}, "1 to 255 characters"),
        ({"producer": b"p", "sequence": 1}, "a producer id is"),
        ({"producer": "p", "sequence": -1}, "from 0 on, not -1"),
        ({"producer": "p", "sequence": 2**63}, "a sequence is"),
        ({"producer": "p", "sequence": True}, "a sequence is"),
        ({"producer": "p", "sequence": "1"}, "a sequence is"),
    ],
)
def test_what_is_no_producer_or_no_sequence(store: Store, once: dict[str, Any], says: str) -> None:
    queue = store.queue("q")
    for publish in (
        lambda: queue.publish(b"1", **once),
        lambda: queue.publish_many([b"1"], **once),
        lambda: store.publish("$queue/q", b"1", **once),
    ):
        with pytest.raises(ValueError, match=says):
            publish()
    assert len(queue) == 0


@pytest.mark.parametrize("later", [{"delay": 1}, {"deliver_at": 2_000_000_000_000}])
def test_a_delayed_message_cannot_have_them(store: Store, later: dict[str, Any]) -> None:
    queue: Any = store.queue("q")
    with pytest.raises(ValueError, match="producer, sequence: a delayed message cannot have them"):
        queue.publish(b"1", **later, **ONCE)
    with pytest.raises(ValueError, match="a delayed message cannot have them"):
        store.publish("$queue/q", b"1", **later, **ONCE)
    assert (len(queue), queue.delayed_count()) == (0, 0)


# --- batches ------------------------------------------------------------------------------------


def test_a_batch_is_there_once(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", limits={"message_ttl": "1h"})
    given: list[Any] = [b"0", ("k", "1"), (None, b"2", {"a": "b"})]
    first = queue.publish_many(iter(given), routing_key="eu", **ONCE)
    again = queue.publish_many(iter(given), routing_key="eu", **ONCE)
    assert (first.offset, first.end_offset, first.count) == (0, 3, 3)
    assert (again.offset, again.end_offset, again.count) == (0, 3, 3)
    messages = list(queue.read())
    assert [(m.value, m.key) for m in messages] == [(b"0", None), (b"1", b"k"), (b"2", None)]
    assert [m.headers.pairs for m in messages] == [(), (), (("a", b"b"),)]
    assert {m.routing_key for m in messages} == {"eu"}
    assert {m.expires_at for m in messages} == {clock.wall_ms() + 3_600_000}
    assert len({m.id for m in messages}) == 3


def test_many_plain_messages_are_one_batch(store: Store) -> None:
    queue = store.queue("q")
    for _ in range(2):
        assert queue.publish_many(numbers(65_535), producer="p", sequence=0).count == 65_535
    assert values(queue.read(65_530)) == numbers(65_535)[65_530:]


def test_more_than_a_batch_holds_is_refused(store: Store) -> None:
    queue = store.queue("q", max_batch_bytes=2000)
    with pytest.raises(ValueError, match="a sequence is one batch, of at most 65,535 messages"):
        queue.publish_many(map(bytes, [1] * 65_536), **ONCE)
    with pytest.raises(ValueError, match="a batch may hold 2000; split them"):
        queue.publish_many([os.urandom(900)] * 3, **ONCE)
    assert len(queue) == 0
    assert queue.publish_many([b"1", b"2"], **ONCE).count == 2  # the sequence is free


def test_no_messages_and_one_that_is_no_list(store: Store) -> None:
    queue = store.queue("q")
    with pytest.raises(ValueError, match="publish_many was given no messages"):
        queue.publish_many([], **ONCE)
    with pytest.raises(TypeError):
        queue.publish_many(b"one", **ONCE)
    with pytest.raises(ValueError, match="'_producer': names that begin with '_' are reserved"):
        queue.publish_many([("k", b"v", {"_producer": "me"})], **ONCE)
    with pytest.raises(ValueError, match="'_sequence': names that begin with '_' are reserved"):
        queue.publish(b"1", headers={"_sequence": "1"}, **ONCE)
    assert len(queue) == 0


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_full", ["raise", "block", "drop_oldest"])
def test_what_is_there_needs_no_room(store: Store, on_full: str) -> None:
    queue = store.queue("q", limits={"max_depth": 2, "on_full": on_full})
    first = queue.publish_many([b"1", b"2"], **ONCE)
    assert queue.publish_many([b"1", b"2"], **ONCE).offset == first.offset
    assert queue.publish(b"1", **ONCE).offset == first.offset
    published = store.publish("$queue/q", b"1", **ONCE)
    assert published["q"].offset == first.offset
    assert drain(queue.consumer("w")) == [b"1", b"2"]  # nothing was dropped for it


def test_what_is_not_there_needs_room(store: Store) -> None:
    queue = store.queue("q", limits={"max_depth": 2, "on_full": "block"})
    queue.publish_many([b"1", b"2"], **ONCE)
    next_one: dict[str, Any] = {"producer": "p", "sequence": 8, "block": False}
    with pytest.raises(Full, match="max_depth"):
        queue.publish(b"3", **next_one)
    with pytest.raises(Full, match="max_depth"):
        queue.publish_many([b"3"], **next_one)
    with pytest.raises(Full, match="3 messages at once are more than the queue 'q' holds"):
        queue.publish_many([b"3"] * 3, **next_one)
    with pytest.raises(Full, match="max_depth"):
        store.publish("$queue/q", b"3", **next_one)
    consumer = queue.consumer("w")
    one(consumer).ack()
    assert queue.publish(b"3", **next_one).offset == 2


def test_the_largest_message(store: Store) -> None:
    queue = store.queue("q", limits={"max_message_size": 10})
    for publish in (
        lambda: queue.publish(b"x" * 11, **ONCE),
        lambda: queue.publish_many([b"x", b"x" * 11], **ONCE),
        lambda: store.publish("$queue/q", b"x" * 11, **ONCE),
    ):
        with pytest.raises(Full, match=r"limits\.max_message_size is 10"):
            publish()
    assert len(queue) == 0
    queue.publish(b"x" * 10, **ONCE)
    queue.configure(limits={"max_message_size": 5})
    assert queue.publish(b"x" * 10, **ONCE).offset == 0
    assert store.publish("$queue/q", b"x" * 10, **ONCE)["q"].offset == 0


# --- who repeats it -----------------------------------------------------------------------------


def test_after_a_restart(open_store: OpenStore) -> None:
    store = open_store()
    store.queue("q").publish(b"1", timestamp=1, **ONCE)
    store.close()
    store = open_store()
    queue = store.queue("q")
    assert queue.publish(b"1", **ONCE).offset == 0
    assert queue.publish(b"2", producer="p", sequence=8).offset == 1


def test_after_everything_was_purged(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"1", **ONCE)
    queue.purge()
    assert queue.publish(b"1", **ONCE).offset == 0
    assert len(queue) == 0


def test_in_another_process(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as store, another_process(tmp_path) as other:
        queue = store.queue("q")
        ask = "store.queue('q').publish(b'x', producer='p', sequence={}).offset"
        assert other.ask(ask.format(1)) == "0"
        assert queue.publish(b"x", producer="p", sequence=1).offset == 0
        assert queue.publish(b"y", producer="p", sequence=3).offset == 1
        assert other.ask(ask.format(3)) == "1"
        assert other.ask(ask.format(2)) == "NotWritten"
        assert values(queue.read()) == [b"x", b"y"]


_KILLED = """
import os, signal, sys
import tailrace
queue = tailrace.open(sys.argv[1]).queue("q")
queue.publish(b"old", producer="p", sequence=1, timestamp=1, message_id="mine")
queue.publish_many([b"1", b"2"], producer="p", sequence=2, wait=False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_the_publisher_was_killed(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, "-c", _KILLED, str(tmp_path)]
        done = subprocess.run(command, check=False, timeout=WAIT)
        assert done.returncode == -signal.SIGKILL
    with tailrace.open(tmp_path) as store:
        assert values(store.queue("q").read()) == [b"old", b"1", b"2"]


def test_by_several_threads_at_once(store: Store) -> None:
    queue = store.queue("q")
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            publish = partial(queue.publish, b"%d" % number, producer="p", sequence=number)
            found = {future.result().offset for future in [pool.submit(publish) for _ in "1234"]}
            assert found == {number}
    assert values(queue.read()) == numbers(20)


def test_a_repeat_is_not_counted(store: Store) -> None:
    listener = Collector()
    hooks.subscribe(listener)
    try:
        queue = store.queue("q")
        for _ in range(2):
            queue.publish(b"12", **ONCE)
            queue.publish_many([b"3", b"4"], producer="p", sequence=8)
            store.publish("$queue/q", b"5", producer="p", sequence=9)
    finally:
        hooks.unsubscribe(listener)
    assert (listener.counted["published"], listener.counted["published_bytes"]) == (4, 5)


# --- topics -------------------------------------------------------------------------------------


def test_each_queue_of_a_topic_gets_it_once(store: Store) -> None:
    for name in ("a", "b"):
        store.queue(name, topics=["news/#"])
    first = store.publish("news/1", b"1", key="k", message_id="mine", ttl="1h", **ONCE)
    assert {name: receipt.offset for name, receipt in first.items()} == {"a": 0, "b": 0}
    store.queue("c", topics=["news/#"])  # it was not there, and gets it now
    again = store.publish("news/1", b"1", key="k", message_id="mine", ttl="1h", **ONCE)
    assert {name: receipt.offset for name, receipt in again.items()} == {"a": 0, "b": 0, "c": 0}
    for name in ("a", "b", "c"):
        [message] = store.queue(name).read()
        assert (message.value, message.key, message.id) == (b"1", b"k", "mine")
        assert message.topic == "news/1"
        assert message.expires_at is not None


@pytest.mark.parametrize("broken", ["a", "b", "c"])
def test_to_repeat_it_completes_what_failed_in_part(broken: str) -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    with Store("data", fs=fs, upkeep=False, flush="none") as store:
        names = ("a", "b", "c")
        for name in names:
            store.queue(name, topics=["news/#"])
        store.publish("news/first", b"1", producer="p", sequence=1)

        def plan(call: Call) -> Fault | None:
            is_meant = call.op == "pwrite" and f"/{broken}/" in call.path
            return Fail(errno.EIO) if is_meant and call.path.endswith(".seg") else None

        fs.plan = plan
        with pytest.raises(NotWritten, match=f"not for sure, in {broken} .* repeat it with both"):
            store.publish("news/second", b"2", producer="p", sequence=2)
        assert len(store.get(broken)) == 1
        fs.plan = None
        published = store.publish("news/second", b"2", producer="p", sequence=2)
        assert {name: published[name].offset for name in names} == dict.fromkeys(names, 1)
        assert [len(store.get(name)) for name in names] == [2, 2, 2]


def test_one_queue_that_refuses_it_keeps_it_from_all(store: Store) -> None:
    first, second = (store.queue(name, topics=["news/#"]) for name in ("a", "b"))
    second.publish(b"9", producer="p", sequence=9)
    with pytest.raises(NotWritten, match="sequence 7 of producer 'p' is below the last one, 9"):
        store.publish("news/1", b"1", **ONCE)
    assert (len(first), len(second)) == (0, 1)
