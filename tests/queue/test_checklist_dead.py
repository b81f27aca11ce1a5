"""What a queue has to promise, line by line: dead letters and delivery counts."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

from tailrace import Full, NotWritten, OutcomeUnknown, Store, TailraceError
from tailrace.testing import Call, Fail, on
from tailrace.testing.faults import Operation
from tests.queue.clocks import Machine
from tests.queue.support import FAST, drain, numbers, on_machine, one, states, values

# --- dead letters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ("pwrite", Fail(errno.ENOSPC)),
        ("sync", Fail(errno.EIO)),
        ("sync", Fail(errno.EIO, after=True)),
    ],
    ids=str,
)
def test_a_dead_letter_that_cannot_be_written_leaves_the_message(
    machine: Machine, op: Operation, fault: Fail
) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(2))
    consumer = queue.consumer("w")
    bad, good = consumer.receive(2)
    fs.plan = on(op, fault, path="*dlq*/*.seg")
    with pytest.raises((TailraceError, OSError)):
        bad.reject("bad")
    assert fs.hits
    fs.plan = None
    good.ack()
    assert 0 in states(queue)  # it has not vanished
    machine.kill()  # a log whose sync has failed is opened anew
    machine.clock.advance(60)
    with machine.open() as store:
        queue = store.queue("q")
        again = one(queue.consumer("w"))
        assert again.value == b"0"
        again.reject("bad")
        assert values(store.dead("q")) == [b"0"]
        assert states(queue) == {}
        assert drain(queue.consumer("w")) == []


@pytest.mark.parametrize("word", ["reject", "nack"])
def test_what_the_group_cannot_write_down_has_not_died(machine: Machine, word: str) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", visibility_timeout="1s", retry={"max_retries": 0})
    queue.publish(b"x")
    message = one(queue.consumer("w"))
    fs.plan = on("pwrite", Fail(errno.EIO), path="*/ops.log")
    with pytest.raises(NotWritten):
        getattr(message, word)()
    fs.plan = None
    assert store.dead("q") == []
    assert states(queue) == {0: ("leased", 1)}
    message.ack()
    assert store.dead("q") == []
    assert states(queue) == {}


def test_a_dead_letter_that_can_never_be_written_stops_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_machine() as (machine, store, queue):
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        for _ in range(3):
            one(consumer)
            machine.clock.advance(2)

        def fail(*arguments: object) -> None:
            raise TypeError("no such letter")

        monkeypatch.setattr(store, "bury", fail)
        assert values(consumer.receive(2)) == [b"1"]
        assert "q:0 cannot become a dead letter: no such letter" in caplog.text
        monkeypatch.undo()
        machine.clock.advance(60)
        consumer.receive(2)
        assert values(store.dead("q")) == [b"0"]


@pytest.mark.parametrize("timeout", ["12h", "100ms"])
def test_how_long_a_message_may_take_to_die_has_nothing_to_do_with_its_lease(
    monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    """Whoever was about to bury it may have been killed; and to fail may take longer than a lease,
    so that whoever looks again at once never comes to an end."""
    options = {"visibility_timeout": timeout, "retry": {"max_retries": 0}}
    with on_machine(**options) as (machine, store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        one(consumer)
        machine.clock.advance("13h")
        tries = 0

        def fail(*arguments: object) -> None:
            nonlocal tries
            tries += 1
            machine.clock.advance("1s")
            if tries < 10:
                raise TypeError("no such letter")

        monkeypatch.setattr(store, "bury", fail)
        assert consumer.receive() == []
        assert tries == 1
        assert states(queue) == {0: ("dying", 1)}
        monkeypatch.undo()
        machine.clock.advance("28s")
        assert consumer.receive() == []
        assert store.dead("q") == []
        machine.clock.advance("2s")
        assert consumer.receive() == []
        assert values(store.dead("q")) == [b"x"]


@pytest.mark.parametrize("how", ["reject", "nack", "kept", "expired"])
def test_whatever_can_be_published_can_die(how: str) -> None:
    """A dead letter has more to tell than the message, and its queue takes it all the same; but not
    that of others."""
    small: dict[str, Any] = {"max_batch_bytes": "4KiB", "compression": "none"}
    options: dict[str, Any] = {"retry": {"max_retries": 0}, "dlq": {"expired": True}, **small}
    with on_machine(**options) as (machine, store, queue):
        letters = store.queue("$dlq/q", **small)
        topic, name = "x" * 500, "i" * 500
        for size in range(4 << 10, 0, -1):
            with contextlib.suppress(Full):
                queue.publish(bytes(size), routing_key=topic, message_id=name, ttl=60)
                break
        assert 2900 < size < 3100
        consumer = queue.consumer("w")
        if how != "expired":
            message = one(consumer)
            if how == "reject":
                message.reject("no" * 1_000_000)
            elif how == "nack":
                message.nack(error="no" * 1_000_000)
            else:
                message.extend(0)
        machine.clock.advance(90)
        assert consumer.receive() == []
        [letter] = store.dead("q")
        assert (letter.value, letter.id) == (bytes(size), name)
        assert letter.headers["_dlq_original_topic"] == f"$queue/q/{topic}".encode()
        assert states(queue) == {}
        with pytest.raises(Full, match="max_batch_bytes is 4,096"):
            letters.publish(bytes(4 << 10))


def test_of_an_error_a_thousand_characters_travel(store: Store) -> None:
    queue = store.queue("q", retry={"max_retries": 3, "initial_backoff": 0})
    queue.publish(b"x")
    consumer = queue.consumer("w")
    one(consumer).nack(error="a" * 5000)
    message = one(consumer)
    assert message.last_error == "a" * 1000
    consumer.nack([message], error="b" * 5000)
    with pytest.raises(ValueError, match="c"), one(consumer) as message:
        raise ValueError("c" * 5000)
    message = one(consumer)
    assert message.last_error == f"ValueError: {'c' * 988}"
    consumer.reject([message], "d" * 5000)
    [letter] = store.dead("q")
    assert letter.headers["_dlq_reason"] == b"d" * 1000


def test_a_dead_letter_is_there_once_whatever_is_interrupted(machine: Machine) -> None:
    """The append goes through, and what follows it does not."""
    store, fs = machine.open_faulty()
    queue = store.queue("q", **FAST)
    queue.publish(b"0")
    message = one(queue.consumer("w"))
    writes = 0

    def fail_settling(call: Call) -> Fail | None:
        nonlocal writes
        if call.op == "pwrite" and "consumers/w/ops" in call.path:
            writes += 1
            return Fail(errno.ENOSPC) if writes >= 2 else None  # the first says that it is dying
        return None

    fs.plan = fail_settling
    with pytest.raises((NotWritten, OutcomeUnknown, OSError)):
        message.reject("bad")
    fs.plan = None
    assert values(store.dead("q")) == [b"0"]
    assert states(queue) == {0: ("dying", 1)}
    consumer = queue.consumer("w")
    machine.clock.advance(60)
    assert consumer.receive() == []  # nobody gets it again
    assert states(queue) == {}
    assert values(store.dead("q")) == [b"0"]


def test_after_too_many_deliveries_it_is_a_dead_letter_with_its_story() -> None:
    with on_machine() as (machine, store, queue):
        queue.publish(b"x", key="k", routing_key="eu/a", headers={"a": "b"}, message_id="m-1")
        consumer = queue.consumer("w")
        for delivery in (1, 2, 3):
            message = one(consumer)
            assert message.delivery_count == delivery
            assert message.last_error == ("" if delivery == 1 else f"no {delivery - 1}")
            message.nack(error=f"no {delivery}")
        assert consumer.receive() == []
        [letter] = store.dead("q")
        assert (letter.value, letter.key, letter.id) == (b"x", b"k", "m-1")
        told = {name: value.decode() for name, value in letter.headers.pairs}
        assert told.pop("_dlq_moved_at").endswith("Z")
        assert told.pop("_dlq_reason") == "delivered 3 times: no 3"
        assert told == {
            "a": "b",
            "_dlq_original_queue": "q",
            "_dlq_original_topic": "$queue/q/eu/a",
            "_dlq_group": "w",
            "_dlq_delivery_count": "3",
            "_dlq_original_id": "m-1",
            "_dlq_original_offset": "0",
        }
        assert machine.clock.boot_ms()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(8))
def test_a_dead_letter_is_as_durable_as_the_message_was(
    machine: Machine, seed: int, flush: str
) -> None:
    """Queues that are made here by default are not flushed with each message. In `async` the
    message is on the disk for long, and that it is settled may be."""
    store = machine.open(flush="async")
    queue = store.queue("q", **FAST, flush=flush)
    queue.publish(b"x")
    queue.log.flush()
    one(queue.consumer("w")).reject("bad")
    queue.group("w").flush()
    machine.power_cut(seed)
    with machine.open() as store:
        left = drain(store.queue("q").consumer("w")) + values(store.dead("q"))
        assert left == [b"x"]


# --- counts -----------------------------------------------------------------------------------


def test_the_count_survives_restarts_and_kills(machine: Machine) -> None:
    for delivery in (1, 2, 3):
        store = machine.open()
        queue = store.queue("q", **{**FAST, "retry": {"max_retries": 9}})
        if delivery == 1:
            queue.publish(b"x")
        message = one(queue.consumer("w"))
        assert message.delivery_count == delivery
        if delivery % 2:
            store.close()
        else:
            machine.kill()
        machine.clock.advance(1.1)


def test_release_does_not_raise_the_count() -> None:
    with on_machine() as (_machine, store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        for _ in range(20):
            message = one(consumer)
            assert message.delivery_count == 1
            message.release()
        assert store.dead("q") == []


def test_what_is_only_fetched_ahead_is_not_delivered() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish_many(numbers(5))
        with queue.consumer("w", prefetch=5) as consumer:
            one(consumer)
            assert states(queue) == {0: ("leased", 1), **dict.fromkeys(range(1, 5), ("claimed", 0))}
            machine.clock.advance(1.1)
            assert states(queue) == {n: ("expired", int(n == 0)) for n in range(5)}
        assert states(queue)[4] == ("free", 0)


def test_redrive_resets_the_count_and_comes_to_the_group_that_had_it() -> None:
    with on_machine() as (_machine, store, queue):
        queue.publish(b"x", key="k", headers={"a": "b"})
        consumer, other = queue.consumer("w"), queue.consumer("others")
        assert drain(other) == [b"x"]
        for _ in range(3):
            one(consumer).nack()
        assert store.redrive("q") == 1
        assert (store.redrive("q"), store.dead("q")) == (0, [])
        assert other.receive() == []
        back = one(consumer)
        assert (back.delivery_count, back.value, back.key) == (1, b"x", b"k")
        assert back.headers.pairs == (("a", b"b"),)
        for _ in range(2):
            back.nack()
            back = one(consumer)
        assert back.delivery_count == 3
        back.nack()
        assert values(store.dead("q")) == [b"x"]  # it may die again


def test_a_redrive_that_is_killed_brings_each_back_once(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(3))
    for message in queue.consumer("w").receive(3):
        message.reject()
    # The first one comes back, and then the process ends before it says so.
    fs.plan = on("pwrite", Fail(errno.EIO), path="*dead/ops.log", nth=3)
    with pytest.raises((TailraceError, OSError)):
        store.redrive("q")
    machine.kill()
    machine.clock.advance(60)
    with machine.open() as store:
        store.redrive("q")
        assert drain(store.queue("q").consumer("w")) == numbers(3)
        assert store.dead("q") == []
