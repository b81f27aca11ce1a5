"""Where FluxMQ's documents and its source disagree, these queues do as the first say.

Each test begins with the row of the table of disagreements that it is about. Rows 9 to 13, 18 and
19 are about protocols and replication, which are not here; 26 and 28, about journals and logs that
are torn or damaged, are F7 and F8 in `test_fluxmq_defects.py` and the tests of the log; 31, flush
modes, are those of `tests/log`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailrace import Full, LeaseLost, Store
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, on_machine, one, states, values

# --- routing ----------------------------------------------------------------------------------


def test_a_topic_goes_to_the_queues_that_are_bound_to_it_and_to_no_other(store: Store) -> None:
    """Row 1: a publish to a topic is a fan-out to what is bound to it, and nothing is dropped."""
    store.queue("sensors", topics=["sensors/#"])
    store.queue("all", topics=["#"])
    store.queue("orders")
    published = store.publish("sensors/1", b"x")
    assert sorted(published) == ["all", "sensors"]
    assert [len(queue) for queue in (store.get("all"), store.get("orders"))] == [1, 0]
    assert sorted(store.publish("$queue/orders/eu", b"y")) == ["orders"]  # `#` is not for `$`


@pytest.mark.parametrize(
    ("topic", "name", "pattern"),
    [
        ("$queue/n/a/b", "n", "$queue/n/#"),
        ("$queue/n", "n", "$queue/n/#"),
        ("plain/topic", "plain/topic", "plain/topic"),
        ("plain", "plain", "plain"),
    ],
)
def test_a_topic_that_matches_nothing_makes_a_queue(
    store: Store, topic: str, name: str, pattern: str
) -> None:
    """Row 2: what an auto-created queue is called."""
    assert list(store.publish(topic, b"x")) == [name]
    settings = store.get(name).settings
    assert (settings.topics, settings.ephemeral) == ((pattern,), True)
    store.publish(topic, b"y")
    assert drain(store.consumer(name, "w")) == [b"x", b"y"]


def test_ephemeral_queues_are_gone_after_a_restart(open_store: OpenStore) -> None:
    """Row 3: ephemeral queues do not outlive a restart."""
    with open_store() as store:
        store.publish("plain", b"x")
        store.queue("kept").publish(b"x")
        with open_store() as other:  # another process comes and goes: no restart
            assert [queue.name for queue in other.queues()] == ["kept", "plain"]
        assert len(store.get("plain")) == 1
    assert [queue.name for queue in open_store().queues()] == ["kept"]


def test_ephemeral_queues_are_never_flushed(machine: Machine) -> None:
    """Row 3: ephemeral storage is best effort."""
    store, fs = machine.open_faulty(segment_bytes=200)
    with store:
        store.queue("kept", topics=["kept"])
        for name in ("plain", "kept"):
            for number in range(9):
                store.publish(name, b"%d" % number)
            store.get(name).publish(b"later", delay="1s")
            assert len(drain(store.consumer(name, "w"), 2)) == 9
        machine.clock.advance(2)
        assert store.deliver_due() == 2
        kept, plain = (
            (f"/{name}/", f"/{store.get(name).incarnation}/") for name in ("kept", "plain")
        )
    data = [call.path for call in fs.calls if call.op == "sync"]
    data = [path for path in data if path.endswith((".seg", "ops.log"))]
    for part in kept:  # also where what is delayed waits
        assert any(part in path for path in data)
    for part in plain:
        assert not any(part in path for path in data)


def test_an_ephemeral_queue_goes_when_its_last_consumer_has_left(
    open_store: OpenStore, clock: ManualClock
) -> None:
    """Row 4: ephemeral queues go when the last consumer has left, after a while."""
    store = open_store()
    store.publish("plain", b"x")
    clock.set_wall(time.time_ns() // 1_000_000)  # as the files have it
    consumer, other = store.consumer("plain", "w"), store.consumer("plain", "w")
    consumer.close()
    clock.advance(301)
    store._sweep()
    assert [queue.name for queue in store.queues()] == ["plain"]
    clock.set_wall(clock.wall_ms() - 301_000)
    other.close()
    store._sweep()
    assert [queue.name for queue in store.queues()] == ["plain"]  # somebody may come back
    clock.advance(301)
    store._sweep()
    assert store.queues() == []


# --- retries ----------------------------------------------------------------------------------


def test_a_nack_waits_longer_each_time() -> None:
    """Row 5: a nack redelivers with backoff."""
    retry = {"max_retries": 9, "initial_backoff": "4s", "max_backoff": "12s", "multiplier": 2}
    with on_machine(retry=retry) as (machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        for wait_s in (4, 8, 12, 12):
            one(consumer).nack()
            machine.clock.advance(wait_s - 0.1)
            assert consumer.receive() == []
            machine.clock.advance(0.2)
        message = one(consumer)
        message.nack(delay=0)
        assert one(consumer).delivery_count == 6


@pytest.mark.parametrize("max_retries", [0, 1, 10])
def test_how_often_it_is_tried_again_is_up_to_the_queue(max_retries: int) -> None:
    """Row 6: retries are configured for each queue."""
    retry = {"max_retries": max_retries, "initial_backoff": 0}
    with on_machine(retry=retry) as (_machine, store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        deliveries = 0
        while messages := consumer.receive():
            deliveries += 1
            messages[0].nack()
        assert deliveries == max_retries + 1
        assert values(store.dead("q")) == [b"x"]


def test_retries_may_be_without_limit() -> None:
    """Row 6: likewise, without limit."""
    with on_machine(retry={"max_retries": "unlimited"}) as (_machine, store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        for _ in range(40):
            one(consumer).nack(delay=0)
        assert one(consumer).delivery_count == 41
        assert store.dead("q") == []


def test_a_reject_leads_to_the_dead_letters() -> None:
    """Row 7: dead letters on reject."""
    with on_machine() as (_machine, store, queue):
        queue.publish(b"x")
        one(queue.consumer("w")).reject("bad")
        [letter] = store.dead("q")
        assert letter.headers["_dlq_reason"] == b"bad"


def test_a_reject_without_dead_letters_drops_it() -> None:
    """Row 7: they are an option."""
    with on_machine(dlq={"enabled": False}) as (_machine, store, queue):
        queue.publish(b"x")
        one(queue.consumer("w")).reject("bad")
        assert states(queue) == {}
        assert [each.name for each in store.queues()] == ["q"]


def test_too_many_leases_that_end_lead_to_the_dead_letters() -> None:
    """Row 8: dead letters when deliveries are used up."""
    with on_machine() as (machine, store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        for delivery in (1, 2, 3):
            assert one(consumer).delivery_count == delivery
            machine.clock.advance(1.1)
        assert consumer.receive() == []
        [letter] = store.dead("q")
        assert letter.headers["_dlq_delivery_count"] == b"3"


def test_dead_letters_may_go_elsewhere() -> None:
    """Rows 7 and 8: `dlq.topic` says where they go."""
    with on_machine(dlq={"topic": "graves"}) as (_machine, store, queue):
        store.queue("other", dlq={"topic": "graves"}).publish(b"y")
        queue.publish(b"x")
        one(queue.consumer("w")).reject()
        one(store.queue("other").consumer("w")).reject()
        assert values(store.get("graves").read()) == [b"x", b"y"]
        assert (values(store.dead("q")), values(store.dead("other"))) == ([b"x"], [b"y"])
        assert store.redrive("other") == 1
        assert values(store.dead("q")) == [b"x"]


# --- filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("images/#", "images", True),
        ("images/#", "images/a/b", True),
        ("images/#", "imagesx", False),
        ("+", "", False),
        ("+", "a", True),
        ("a/+/b", "a//b", True),
        ("+/#", "a", True),
        ("#", "", True),
        ("a", "a", True),
        ("a", "a/b", False),
        ("+/b", "$a/b", True),
    ],
)
def test_filters_are_those_of_mqtt(store: Store, pattern: str, key: str, is_match: bool) -> None:
    """Row 14: filters have the semantics of MQTT."""
    queue, stream = store.queue("q"), store.stream("s")
    queue.publish(b"x", routing_key=key)
    stream.publish(b"x", routing_key=key)
    assert len(queue.consumer("w", filter=pattern).receive()) == is_match
    assert len(stream.consumer("g", filter=pattern).receive()) == is_match


def test_a_filter_makes_a_group_of_its_own(store: Store) -> None:
    """Row 14: what a filter adds to a group's name."""
    queue = store.queue("q")
    queue.publish(b"x", routing_key="eu/x")
    for pattern in ("", "#", "eu/#"):
        message = one(queue.consumer("w", filter=pattern))
        assert message.properties["group-id"] == (f"w@{pattern}" if pattern else "w")
    assert queue.group_ids() == ["w", "w@#", "w@eu/#"]


# --- streams ----------------------------------------------------------------------------------


def test_a_stream_is_read_on_from_what_was_committed(open_store: OpenStore) -> None:
    """Row 15: a stream resumes from committed, and reads the gap again."""
    with open_store() as store:
        stream = store.stream("s")
        stream.publish_many(numbers(6))
        consumer = stream.consumer("g", auto_commit=False)
        consumer.receive(2)
        consumer.commit()
        consumer.receive(2)
    with open_store() as store:
        assert values(store.stream("s").consumer("g").receive(2)) == [b"2", b"3"]


def test_without_auto_commit_only_a_commit_commits(store: Store) -> None:
    """Row 16: manual commits are required where they are asked for."""
    stream = store.stream("s")
    stream.publish_many(numbers(4))
    consumer = stream.consumer("g", auto_commit=False, auto_commit_interval=0)
    for message in consumer.receive(2) + consumer.receive(2):
        message.ack()
    consumer.close()
    again = stream.consumer("g", auto_commit=False)
    assert (again.committed, values(again.receive(4))) == (0, numbers(4))


def test_each_group_of_a_stream_has_one_position(store: Store) -> None:
    """Row 24: one cursor for each group of a stream."""
    stream = store.stream("s")
    stream.publish_many(numbers(4))
    first, second = stream.consumer("g"), stream.consumer("g")
    assert (offsets(first.receive(2)), offsets(second.receive(2))) == ([0, 1], [2, 3])
    assert offsets(stream.consumer("h").receive(4)) == [0, 1, 2, 3]


def test_a_commit_names_what_was_processed_last(store: Store) -> None:
    """Row 25: a commit names the last that was processed."""
    stream = store.stream("s")
    stream.publish_many(numbers(4))
    consumer = stream.consumer("g", auto_commit=False)
    messages = consumer.receive(4)
    consumer.commit(messages[1])
    assert consumer.committed == messages[1].offset + 1


# --- limits and the rest ------------------------------------------------------------------------


def test_no_time_to_live_means_for_ever() -> None:
    """Row 17: `message_ttl` of 0 disables it."""
    with on_machine() as (machine, store, queue):
        for each in (queue, store.queue("z", limits={"message_ttl": 0})):
            each.publish(b"x")
            machine.clock.advance(10 * 365 * 86_400)
            assert one(each.consumer("w")).expires_at is None


def test_a_message_that_has_expired_is_skipped_and_can_be_read() -> None:
    """Row 17: what any other `message_ttl` means."""
    with on_machine(limits={"message_ttl": "10s"}) as (machine, _store, queue):
        queue.publish(b"old")
        queue.publish(b"short", ttl=2)
        machine.clock.advance(5)
        queue.publish(b"new")
        machine.clock.advance(5)  # at the very moment it is still good
        consumer = queue.consumer("w")
        assert values(queue.peek("w")) == [b"old"]
        machine.clock.advance(0.1)
        assert drain(consumer) == [b"new"]
        assert values(queue.read()) == [b"old", b"short", b"new"]
        assert queue.group("w").progress() == (3, 3)


def test_what_expires_while_it_is_pending_stops_nobody() -> None:
    """Row 17: likewise, for what somebody had."""
    with on_machine() as (machine, _store, queue):
        queue.publish(b"old", ttl=5)
        queue.publish(b"new")
        consumer = queue.consumer("w")
        consumer.receive(2)
        machine.clock.advance(6)
        assert values(consumer.receive(1)) == [b"new"]


def test_a_message_that_is_too_large_is_refused() -> None:
    """Row 20: `max_message_size` is enforced; `max_depth` in `test_depth.py`."""
    with on_machine(limits={"max_message_size": 10}) as (_machine, store, queue):
        queue.publish(b"x" * 10)
        for refused in (
            lambda: queue.publish(b"x" * 11),
            lambda: queue.publish_many([b"x", b"x" * 11]),
            lambda: store.publish("$queue/q", b"x" * 11),
        ):
            with pytest.raises(Full, match=r"limits\.max_message_size is 10"):
                refused()
        assert len(queue) == 1


def test_committed_is_the_oldest_that_is_not_acked() -> None:
    """Row 22: the table of the seed: claim 0 and 1, ack 0, ack 1."""
    with on_machine() as (_machine, _store, queue):
        queue.publish_many(numbers(2))
        group = queue.group("w")
        first, second = queue.consumer("w").receive(2)
        assert group.progress() == (2, 0)
        first.ack()
        assert group.progress() == (2, 1)
        second.ack()
        assert group.progress() == (2, 2)


def test_committed_stays_behind_when_a_later_one_is_acked_first() -> None:
    """Row 22: committed is the oldest that is not acked, in any order."""
    with on_machine() as (_machine, _store, queue):
        queue.publish_many(numbers(3))
        messages = queue.consumer("w").receive(3)
        for message, committed in ((messages[2], 0), (messages[0], 1), (messages[1], 3)):
            message.ack()
            assert queue.group("w").progress() == (3, committed)


def test_others_get_it_when_the_lease_ends_and_not_before() -> None:
    """Row 23: others get it after the timeout, and not at once."""
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        first, second = queue.consumer("w"), queue.consumer("w")
        message = one(first)
        assert second.receive() == []
        machine.clock.advance(1.1)
        assert one(second).offset == message.offset
        assert first.receive() == []
        with pytest.raises(LeaseLost):
            message.ack()


@pytest.mark.parametrize("compact_after", [1, 7, 1_000])
def test_how_long_a_journal_grows_is_up_to_the_queue(machine: Machine, compact_after: int) -> None:
    """Row 27: when to compact is configurable."""
    with machine.open(flush="async", compact_after=compact_after) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(200))
        consumer = queue.consumer("w")
        longest = 0
        for _ in range(200):
            one(consumer).ack()
            journal = machine.disk.read("data/queue/queues/q/consumers/w/ops.log")
            longest = max(longest, journal.count(b"\n"))
        assert longest <= max(compact_after, 2) + 4
        assert queue.group("w").progress() == (200, 200)


def test_a_message_is_named_by_its_queue_and_offset(store: Store) -> None:
    """Rows 29 and 30: its properties; the queue is the first level of the address."""
    queue = store.queue("q")
    queue.publish(b"x", routing_key="a/b/c")
    message = one(queue.consumer("w"))
    assert (message.message_id, message.routing_key, message.topic) == (
        "q:0",
        "a/b/c",
        "$queue/q/a/b/c",
    )
    assert message.properties == {
        "message-id": "q:0",
        "queue": "q",
        "offset": 0,
        "x-source-topic": "$queue/q/a/b/c",
        "group-id": "w",
    }


def test_a_message_says_which_topic_it_was_published_to(store: Store) -> None:
    """Row 29: `x-source-topic`."""
    queue = store.queue("q", topics=["shop/#"])
    store.publish("shop/7/paid", b"x")
    queue.publish(b"y")
    first, second = queue.consumer("w").receive(2)
    assert first.properties["x-source-topic"] == "shop/7/paid"
    assert second.properties["x-source-topic"] == "$queue/q"


def test_retention_never_passes_what_a_group_needs(tmp_path: Path, clock: ManualClock) -> None:
    """Row 21: the floor of retention is what the groups have committed."""
    options = {"segment_bytes": 200, "retention": {"max_length_messages": 1}}
    with Store(tmp_path, clock=clock, upkeep=False) as store:
        queue = store.queue("q", **options)
        for number in range(20):
            queue.publish(b"%d" % number)
        messages = queue.consumer("w").receive(20)
        for message in messages[10:]:
            message.ack()
        assert queue.vacuum().segments == 0
        for message in messages[:5]:
            message.ack()
        assert queue.vacuum().segments > 0
        assert 0 < offsets(queue.read())[0] <= 5
        for message in messages[5:10]:
            message.ack()
        queue.vacuum()
        assert offsets(queue.read())[0] > 10
