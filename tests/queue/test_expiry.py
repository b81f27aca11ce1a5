"""Messages whose time runs out: nobody gets them, and who wants to knows of them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tailrace import Message, Queue, Store, hooks
from tailrace.testing import Fail, on
from tests.queue.clocks import Machine, ManualClock
from tests.queue.support import drain, numbers, offsets, one, values

EXPIRED = {"dlq": {"expired": True}}


def reasons(store: Store) -> list[tuple[bytes | None, bytes]]:
    return [(letter.value, letter.headers["_dlq_reason"]) for letter in store.dead("q")]


def test_the_time_of_a_queue_and_of_a_message(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", limits={"message_ttl": "10s"})
    queue.publish(b"queue's")
    queue.publish(b"own", ttl=60)
    queue.publish(b"for ever", ttl=0)
    clock.advance(11)
    assert [(m.value, m.expires_at is None) for m in queue.read()] == [
        (b"queue's", False),
        (b"own", False),
        (b"for ever", True),
    ]
    consumer = queue.consumer("w")
    assert values(consumer.receive(9)) == [b"own", b"for ever"]
    assert offsets_pending(queue) == [1, 2]


def offsets_pending(queue: Queue) -> list[int]:
    return [pending.offset for pending in queue.pending("w")]


def test_one_that_expires_while_it_waits_is_not_delivered_again(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", retry={"initial_backoff": "30s"})
    queue.publish(b"x", ttl=10)
    one(queue.consumer("w")).nack()
    clock.advance(31)
    assert queue.consumer("w").receive(9) == []
    assert offsets_pending(queue) == []
    assert store.dead("q") == []


def test_a_lease_outlives_its_message(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.publish(b"x", ttl=1)
    message = one(queue.consumer("w"))
    clock.advance(5)
    message.ack()
    assert queue.group("w").state.acked == 1


def test_one_that_expires_when_it_was_fetched_ahead_is_not_delivered(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(3), ttl=10)
    queue.publish(b"stays")
    consumer = queue.consumer("w", prefetch=10)
    assert one(consumer).value == b"0"
    clock.advance(11)
    with counted() as counts:
        assert one(consumer).value == b"stays"
    assert counts == {"expired": 2, "delivered": 1}
    assert offsets_pending(queue) == [0, 3]
    assert store.dead("q") == []
    assert consumer.receive(1) == []


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What is told of the group meanwhile, by name."""
    counts: Counter[str] = Counter()

    class Listener:
        def count(self, name: str, number: int, queue: str, group: str) -> None:
            if name in ("expired", "delivered"):
                assert (queue, group) == ("q", "w")
                counts[name] += number

        def observe(self, name: str, values: Sequence[float], queue: str, group: str) -> None:
            pass

    listener = Listener()
    hooks.subscribe(listener)
    try:
        yield counts
    finally:
        hooks.unsubscribe(listener)


def test_the_next_of_its_key_comes_when_one_that_was_fetched_ahead_has_expired(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q")
    consumer = queue.consumer("w", prefetch=10, key_order=True)
    queue.publish(b"first")
    queue.publish(b"gone", key="k", ttl=10)
    queue.publish(b"next", key="k")
    assert one(consumer).value == b"first"
    clock.advance(11)
    assert one(consumer).value == b"next"


def test_clocks_that_jump(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.publish(b"x", ttl=10)
    now_ms = clock.wall_ms()
    clock.set_wall(now_ms + 3_600_000)
    assert queue.peek("w") == []
    clock.set_wall(now_ms - 3_600_000)  # nobody had looked for good
    assert values(queue.peek("w")) == [b"x"]
    clock.set_wall(now_ms + 3_600_000)
    consumer = queue.consumer("w")
    assert consumer.receive(1) == []
    clock.set_wall(now_ms)
    assert consumer.receive(1) == []  # what was passed is passed


# --- dead letters of them -----------------------------------------------------------------------


def test_expired_messages_become_dead_letters_if_that_is_wanted(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.publish_many(numbers(3), ttl=10)
    queue.publish(b"stays")
    clock.advance(11)
    assert values(queue.consumer("w").receive(9)) == [b"stays"]
    assert reasons(store) == [(number, b"expired") for number in numbers(3)]
    assert offsets_pending(queue) == [3]
    clock.advance(3600)
    assert len(store.dead("q")) == 3


def test_each_group_has_its_own(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.publish(b"eu", routing_key="eu", ttl=10)
    queue.publish(b"us", routing_key="us", ttl=10)
    clock.advance(11)
    drain(queue.consumer("w"))
    drain(queue.consumer("w", filter="eu"))
    groups = [letter.headers["_dlq_group"] for letter in store.dead("q")]
    assert sorted(groups) == [b"w", b"w", b"w@eu"]


def test_also_one_that_expires_between_two_deliveries(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.publish(b"x", ttl=10)
    with queue.consumer("w") as consumer:
        one(consumer).nack(delay=20)
        clock.advance(21)
        assert consumer.receive(1) == []
    [letter] = store.dead("q")
    assert (letter.headers["_dlq_reason"], letter.headers["_dlq_delivery_count"]) == (
        b"expired",
        b"1",
    )


def test_also_one_that_was_fetched_ahead(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.publish_many(numbers(3), ttl=10)
    consumer = queue.consumer("w", prefetch=10)
    message = one(consumer)
    clock.advance(11)
    assert consumer.receive(2) == []
    message.ack()
    assert reasons(store) == [(b"1", b"expired"), (b"2", b"expired")]
    assert {letter.headers["_dlq_delivery_count"] for letter in store.dead("q")} == {b"0"}
    assert offsets_pending(queue) == []


def test_to_look_writes_no_letters(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.group("w")
    queue.publish(b"x", ttl=10)
    clock.advance(11)
    assert queue.peek("w") == []
    assert store.dead("q") == []


def test_redriven_it_expires_no_more(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    queue.publish(b"x", ttl=10)
    clock.advance(11)
    consumer = queue.consumer("w")
    assert consumer.receive(1) == []
    assert store.redrive("q") == 1
    message: Message = one(consumer)
    assert (message.value, message.expires_at) == (b"x", None)


@pytest.mark.parametrize("key_order", [None, True])
@pytest.mark.parametrize("place", ["new", "pending", "ahead"])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_letter_that_cannot_be_written_is_written_later(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key_order: bool | None,
    place: str,
    is_full: bool,
) -> None:
    """Nobody is held up by it meanwhile, and it is not passed over, however often it fails."""
    queue = store.queue("q", **EXPIRED)
    prefetch = 10 if place == "ahead" else 1
    consumer = queue.consumer("w", key_order=key_order, prefetch=prefetch)
    queue.publish(b"first")
    queue.publish_many([b"x", b"y"], ttl=10)
    queue.publish(b"last")
    if place == "pending":
        consumer.release(consumer.receive(3))
    elif place == "ahead":
        one(consumer).release()
    clock.advance(11)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise OSError(5, "no letter today")

        broken.setattr(Store, "bury", fail)
        if is_full:
            assert queue.group("w").pass_by(4) == 0
        assert sorted(map(str, drain(consumer))) == ["b'first'", "b'last'"]
        assert "q:1 cannot become a dead letter: [Errno 5] no letter today" in caplog.text
        clock.advance(31)
        assert drain(consumer) == []
        assert [(p.offset, p.state, p.delivery_count) for p in queue.pending("w")] == [
            (1, "dying", 0),
            (2, "dying", 0),
        ]
    assert drain(consumer) == []
    assert store.dead("q") == []
    clock.advance(31)
    assert drain(consumer) == []
    assert offsets_pending(queue) == []
    assert reasons(store) == [(b"x", b"expired"), (b"y", b"expired")]
    assert {letter.headers["_dlq_delivery_count"] for letter in store.dead("q")} == {b"0"}


@pytest.mark.no_cover
def test_a_letter_that_cannot_be_written_when_the_power_fails(machine: Machine) -> None:
    """However much of what the group wrote down is left, the message is there."""
    seeds = 24
    for seed in range(seeds):
        with machine.open() as store:
            store.queue(f"q{seed}", **EXPIRED).publish(b"x", ttl=10)
    store, fs = machine.open_faulty()
    machine.clock.advance(11)
    fs.plan = on("pwrite", Fail(errno.EIO), path="*dlq*/*.seg")
    for seed in range(seeds):
        assert store.queue(f"q{seed}").consumer("w").receive(1) == []
    machine.power_cut(1)
    machine.clock.advance(60)
    with machine.open() as store:
        for seed in range(seeds):
            assert drain(store.queue(f"q{seed}").consumer("w")) == []
            assert values(store.dead(f"q{seed}")) == [b"x"]


@pytest.mark.parametrize("seed", range(12))
def test_the_power_fails_and_there_is_one_letter(seed: int, machine: Machine) -> None:
    store = machine.open()
    queue = store.queue("q", **EXPIRED)
    queue.publish_many(numbers(3), ttl=10)
    machine.clock.advance(11)
    assert queue.consumer("w").receive(9) == []
    machine.power_cut(seed)
    with machine.open() as again:
        assert again.queue("q").consumer("w").receive(9) == []
        assert sorted(offsets(again.dead("q"))) == [0, 1, 2]
        assert reasons(again) == [(number, b"expired") for number in numbers(3)]
