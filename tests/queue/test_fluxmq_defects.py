"""Defects of FluxMQ's queues that these must not share, one by one: each test begins with the
number of the defect."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from tailrace import LeaseLost, Store
from tailrace.queue.journal import parse_line
from tests.log.helpers import flip
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, drain, numbers, offsets, on_machine, one, states


def test_an_ack_settles_that_message_and_no_other() -> None:
    """F1: an ack acked the next pending offset, too."""
    with on_machine() as (_machine, _store, queue):
        queue.publish_many(numbers(3))
        messages = queue.consumer("w").receive(3)
        messages[0].ack()
        assert sorted(states(queue)) == [1, 2]
        messages[2].ack()
        assert sorted(states(queue)) == [1]


def test_a_nack_counts_and_brings_it_back() -> None:
    """F2: a nack had no effect."""
    with on_machine() as (_machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        one(consumer).nack(error="why")
        assert states(queue) == {0: ("waiting", 1)}
        again = one(consumer)
        assert (again.delivery_count, again.last_error) == (2, "why")


def test_a_consumer_that_is_alone_gets_its_own_messages_back() -> None:
    """F3: a lone consumer never got its own messages back."""
    with on_machine() as (machine, _store, queue):
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        kept, failed = consumer.receive(2)
        failed.nack()
        assert offsets(consumer.receive(2)) == [failed.offset]
        machine.clock.advance(1.1)
        assert offsets(consumer.receive(1)) == [kept.offset]


def test_what_was_taken_over_has_a_lease_of_its_own() -> None:
    """F3b: nobody takes it away again at once, so it does not use up its deliveries in a moment."""
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        consumers = [queue.consumer("w") for _ in range(4)]
        one(consumers[0])
        machine.clock.advance(1.1)
        assert one(consumers[1]).delivery_count == 2
        for _ in range(10):
            assert [consumer.receive() for consumer in consumers] == [[], [], [], []]
        machine.clock.advance(0.9)
        assert consumers[2].receive() == []


@pytest.mark.parametrize("pattern", ["images/#", "a/b/+", "../../x", "%2F", "+"])
def test_a_group_with_a_filter_goes_on_where_it_was(machine: Machine, pattern: str) -> None:
    """F4: groups with a filter that holds a slash restarted at 0."""
    with machine.open() as store:
        queue = store.queue("q")
        key = pattern.replace("#", "x").replace("+", "y")
        for number in range(4):
            queue.publish(b"%d" % number, routing_key=key)
        consumer = queue.consumer("w", filter=pattern)
        consumer.ack(consumer.receive(2))
    with machine.open() as store:
        queue = store.queue("q")
        assert queue.group_ids() == [f"w@{pattern}"]
        assert drain(queue.consumer("w", filter=pattern)) == [b"2", b"3"]
    assert not [path for path in machine.disk.files() if not path.startswith("data/")]


def test_a_queue_without_groups_and_limits_keeps_everything(
    tmp_path: Path, clock: ManualClock
) -> None:
    """F5: a queue without groups and limits was emptied by retention."""
    with Store(tmp_path, clock=clock, upkeep=False, segment_bytes=200) as store:
        for queue in (store.queue("q"), store.stream("s")):
            for number in range(20):
                queue.publish(b"%d" % number)
            assert queue.vacuum().segments == 0
            store.vacuum()
            assert (len(queue), queue.log.start_offset) == (20, 0)


def test_committed_is_behind_the_last_when_all_are_acked(machine: Machine) -> None:
    """F6: committed fell back by one at the next read."""
    queue = machine.open().queue("q")
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(3))
    group = queue.group("w")
    assert (group.progress(), group.progress()) == ((3, 3), (3, 3))
    machine.kill()
    with machine.open() as store:
        assert store.queue("q").group("w").progress() == (3, 3)


@pytest.mark.parametrize("torn", [b"{", b'{"k":"00000000","t":"ack","r":[0,', b"\0" * 40])
def test_a_torn_line_takes_nothing_that_comes_after_it(machine: Machine, torn: bytes) -> None:
    """F7: a torn line of the journal lost the later ones."""
    store = machine.open()
    queue = store.queue("q")
    queue.publish_many(numbers(6))
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(2))
    machine.kill()
    path = "data/queue/queues/q/consumers/w/ops.log"
    lines, _end, rest = machine.disk.read(path).rpartition(b"\n")
    machine.disk.put(path, lines + b"\n" + torn + rest[len(torn) :])
    for _ in range(3):
        store = machine.open()
        consumer = store.queue("q").consumer("w")
        one(consumer).ack()
        machine.kill()
    with machine.open() as store:
        assert drain(store.queue("q").consumer("w")) == [b"5"]


def test_a_damaged_line_leads_to_a_second_delivery_and_takes_nothing_else(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """F7: likewise, in the middle of the journal."""
    store = machine.open()
    queue = store.queue("q")
    queue.publish_many(numbers(6))
    consumer = queue.consumer("w")
    for _ in range(4):
        one(consumer).ack()
    machine.kill()
    path = "data/queue/queues/q/consumers/w/ops.log"
    data = machine.disk.read(path)
    ops = {line: parse_line(line) for line in data.split(b"\n")}
    [damaged] = [
        line for line, op in ops.items() if op and (op["t"], op.get("r")) == ("ack", [1, 1])
    ]
    machine.disk.corrupt(path, data.index(damaged) + 20, b"?")
    with machine.open() as store:
        machine.clock.advance(3600)
        assert drain(store.queue("q").consumer("w")) == [b"1", b"4", b"5"]
        assert "damaged" in caplog.text
    kept = [path for path in machine.disk.files() if "damaged" in path]
    assert len(kept) == 1  # for a person to look at


def test_after_damage_all_processes_agree_on_who_has_what(machine: Machine) -> None:
    """F7: one of them has the group open, and knows what the line said."""
    queue = machine.open().queue("q")
    queue.publish_many(numbers(4))
    old = queue.consumer("w").receive(2)
    path = "data/queue/queues/q/consumers/w/ops.log"
    data = machine.disk.read(path)
    ops = {line: parse_line(line) for line in data.split(b"\n")}
    [damaged] = [line for line, op in ops.items() if op and op["t"] == "claim"]
    machine.disk.corrupt(path, data.index(damaged) + 20, b"?")
    other = machine.open().queue("q")
    new = other.consumer("w").receive(4)
    assert offsets(new) == [0, 1, 2, 3]
    assert queue.pending("w") == other.pending("w")
    for message in old:
        with pytest.raises(LeaseLost):
            message.ack()
    for message in new:
        message.ack()


def test_a_damaged_record_does_not_stop_a_group(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F8: damage in the log stalled a group for ever."""
    with open_store(segment_bytes=150) as store:
        for number in range(12):
            store.queue("q").publish(b"%d" % number)
            store.stream("s").publish(b"%d" % number)
    for name in ("q", "s"):
        folder = tmp_path / "data" / "queue" / "queues" / name / "segments"
        flip(sorted(folder.glob("*.seg"))[2], 60)
    with caplog.at_level(logging.ERROR), open_store() as store:
        left = drain(store.queue("q").consumer("w"))
        assert b"0" in left
        assert b"11" in left
        assert 0 < len(left) < 12
        assert store.queue("q").group("w").progress() == (12, 12)
        consumer = store.stream("s").consumer("g")
        assert [message.value for message in consumer.receive(20)] == left
        assert "cannot be read" in caplog.text


def test_an_empty_queue_takes_messages_however_old_it_is(machine: Machine) -> None:
    """F9: an empty segment that was old blocked appends."""
    with machine.open(segment_age="1h") as store:
        store.queue("q")
        assert len(store.queue("q")) == 0
    machine.clock.advance(48 * 3600)
    with machine.open(segment_age="1h") as store:
        store.queue("q").publish(b"x")
        machine.clock.advance(48 * 3600)
        store.queue("q").publish(b"y")
        assert drain(store.queue("q").consumer("w")) == [b"x", b"y"]


def test_what_a_filter_does_not_match_is_looked_at_once(tmp_path: Path) -> None:
    """F10: what does not match was scanned again and again. Whoever has looked past it is killed
    while it waits for more; whoever comes next begins behind it."""
    with another_process(tmp_path) as other:
        other.ask("globals().update(q=store.queue('q', flush='async'))")
        other.ask("q.publish_many([b'x'] * 5_000, routing_key='us')")
        other.ask("globals().update(c=q.consumer('w', filter='eu/#'))")
        assert other.ask("c.receive()") == "[]"
        other.begin("c.receive(wait=None)")
        other.kill()
    folder = tmp_path / "queue" / "queues" / "q" / "consumers"
    [journal] = folder.rglob("ops.log")
    assert journal.stat().st_size > 0  # nobody has closed it
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        group = queue.group("w", "eu/#")
        assert group.progress() == (5_000, 5_000)
        assert [member.alive for member in group.members()] == [False]
        queue.publish(b"x", routing_key="eu/x")
        assert drain(queue.consumer("w", filter="eu/#")) == [b"x"]


def test_a_filter_finds_what_is_behind_many_others(store: Store) -> None:
    """F10: and what does match behind it is found."""
    queue = store.queue("q")
    queue.publish_many(numbers(10_000), routing_key="us")
    queue.publish(b"x", routing_key="eu/x")
    assert [message.value for message in queue.peek("w", filter="eu/#")] == [b"x"]
    assert drain(queue.consumer("w", filter="eu/#")) == [b"x"]


def test_idle_consumers_write_nothing(tmp_path: Path) -> None:
    """F11: idle consumers had the group's file rewritten every second."""
    with Store(tmp_path, upkeep=False) as store:
        queue, stream = store.queue("q"), store.stream("s")
        queue.publish_many(numbers(3))
        stream.publish_many(numbers(3))
        consumers = [
            *(queue.consumer("w") for _ in range(3)),
            *(stream.consumer("g") for _ in range(3)),
        ]
        for consumer in consumers:
            consumer.receive(1)
            consumer.receive(1)

        def files() -> dict[str, tuple[int, int]]:
            found = {}
            for folder, _folders, names in os.walk(tmp_path):
                for name in names:
                    stat = os.stat(os.path.join(folder, name))
                    found[os.path.join(folder, name)] = (stat.st_size, stat.st_mtime_ns)
            return found

        for consumer in consumers:
            consumer.receive(1)
        before = files()
        deadline = time.monotonic() + 2.5  # more than the second after which it looks for the dead
        while time.monotonic() < deadline:
            for consumer in consumers:
                assert consumer.receive(1, wait=0.1) == []
        assert files() == before


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_who_leaves_leaves_the_group_that_it_joined(tmp_path: Path, kind: str) -> None:
    """F12: whatever the names of the group and of the consumer are: what looks like a prefix is
    none."""
    with Store(tmp_path, upkeep=False) as store:
        queue = getattr(store, kind)("q")
        queue.publish(b"x")
        for group, pattern in (("my-own-group", ""), ("client", "#"), ("client-1", "")):
            with queue.consumer(group, filter=pattern, id="client-1") as consumer:
                assert len(queue.group(group, pattern).members()) == 1
                assert len(consumer.receive()) == 1
            assert queue.group(group, pattern).members() == []
        assert sorted(queue.group_ids()) == ["client-1", "client@#", "my-own-group"]
