"""What a queue has to promise, line by line: leases, owners, restarts, poison."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace import LeaseLost, Message, Store
from tests.log.helpers import WAIT, in_threads
from tests.queue.clocks import Machine
from tests.queue.support import (
    FAST,
    another_process,
    drain,
    leases_are_lost,
    numbers,
    offsets,
    on_machine,
    one,
    states,
    values,
)

# --- leases -----------------------------------------------------------------------------------


def test_a_stale_token_is_refused_whatever_is_asked_with_it() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        first, second = queue.consumer("w"), queue.consumer("w")
        old = one(first)
        machine.clock.advance(1.1)
        new = one(second)
        assert (new.offset, new.delivery_count) == (old.offset, 2)
        leases_are_lost(old)
        assert states(queue) == {0: ("leased", 2)}  # nothing of it had an effect
        new.ack()
        leases_are_lost(old, new)


def test_a_token_does_not_outlive_a_second_lease_of_the_same_consumer() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        old = one(consumer)
        machine.clock.advance(1.1)
        new = one(consumer)
        leases_are_lost(old)
        new.extend()
        new.ack()


def test_a_token_does_not_outlive_a_reset() -> None:
    with on_machine() as (_machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        old = one(consumer)
        queue.group("w").reset(0)
        leases_are_lost(old)
        new = one(consumer)
        assert new.offset == old.offset
        leases_are_lost(old)  # the same offset, and the first attempt as well
        new.ack()


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_token_does_not_outlive_a_boot(machine: Machine, seed: int, is_synced: bool) -> None:
    """Claims are not synced: the power cut may have taken them, and who claims next must not get
    what could be taken for them."""
    store = machine.open()
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(4))
    consumer = queue.consumer("w")
    one(consumer).ack()  # so the group itself is on the disk
    before = consumer.receive(3)
    if is_synced:
        before[0].nack(delay=0.5)
    machine.power_cut(seed)
    with machine.open() as store:
        queue = store.queue("q")
        assert {state for state, _count in states(queue).values()} <= {"free", "waiting"}
        for message in before:
            message.settler = queue.group("w")  # what somebody kept of it: the token, no objects
        leases_are_lost(*before)
        found = queue.consumer("w").receive(3)
        assert set(values(found)) >= {b"2", b"3"}
        leases_are_lost(*before)
        for message in found:
            message.ack()


@pytest.mark.parametrize("seed", range(5))
def test_a_delay_goes_on_over_a_reboot(machine: Machine, seed: int) -> None:
    store = machine.open()
    queue = store.queue("q", **FAST)
    queue.publish(b"x")
    one(queue.consumer("w")).nack(delay=60)  # durable when it returns, as acks are
    machine.power_cut(seed, seconds_off=40)
    with machine.open() as store:
        consumer = store.queue("q").consumer("w")
        machine.clock.advance(19)
        assert consumer.receive() == []
        machine.clock.advance(1.1)
        assert one(consumer).delivery_count == 2


def test_a_second_ack_is_reported_and_harmless() -> None:
    with on_machine() as (_machine, _store, queue):
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        first, second = consumer.receive(2)
        first.ack()
        with pytest.raises(LeaseLost, match="acked before"):
            first.ack()
        with pytest.raises(LeaseLost) as caught:
            consumer.ack([first, second])
        assert caught.value.lost == [first.message_id]
        assert states(queue) == {}  # the other one of the same call is settled
        assert queue.group("w").progress() == (2, 2)


def test_the_same_message_twice_in_one_call_is_settled_once() -> None:
    with on_machine() as (_machine, _store, queue):
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        message, other = consumer.receive(2)
        consumer.ack([message, message, other])
        assert queue.group("w").progress() == (2, 2)


def test_an_ack_after_the_lease_ended_counts_if_nobody_else_has_it() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        message = one(consumer)
        machine.clock.advance(3600)
        assert states(queue) == {0: ("expired", 1)}
        message.ack()
        assert drain(consumer) == []
        assert queue.group("w").progress() == (1, 1)


def test_an_extension_keeps_it_and_one_that_comes_late_gets_it_back() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        consumer, other = queue.consumer("w"), queue.consumer("w")
        message = one(consumer)
        message.extend(10)
        machine.clock.advance(9)
        assert other.receive() == []
        machine.clock.advance(2)  # over, and nobody has looked
        message.extend()
        assert other.receive() == []
        machine.clock.advance(1.1)
        assert one(other).delivery_count == 2
        with pytest.raises(LeaseLost):
            message.extend()


def test_the_time_of_day_moves_no_lease() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish(b"x")
        consumer = queue.consumer("w")
        message = one(consumer)
        machine.clock.set_wall(machine.clock.wall_ms() + 10**9)
        assert consumer.receive() == []
        machine.clock.set_wall(machine.clock.wall_ms() - 10**10)
        assert consumer.receive() == []
        message.ack()


# --- exclusivity ------------------------------------------------------------------------------


def test_threads_never_share_a_lease(tmp_path: Path) -> None:
    count, workers = 400, 4
    with Store(tmp_path, flush="async", upkeep=False) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(count))
        got: list[Message] = []

        def work(number: int) -> None:
            with queue.consumer("w", prefetch=1 + 4 * (number % 2)) as consumer:
                while messages := consumer.receive(1 + number):
                    got.extend(messages)
                    consumer.ack(messages)

        in_threads(workers, work)
        assert sorted(offsets(got)) == list(range(count))
        assert queue.group("w").progress() == (count, count)


def test_processes_never_share_a_lease(tmp_path: Path) -> None:
    count = 60
    with (
        Store(tmp_path, flush="async", upkeep=False) as store,
        another_process(tmp_path) as first,
        another_process(tmp_path) as second,
    ):
        queue = store.queue("q")
        queue.publish_many(numbers(count))
        for other in (first, second):
            other.ask("globals().update(c=store.queue('q').consumer('w', prefetch=3))")
        consumer = queue.consumer("w", prefetch=2)
        got: list[int] = []
        while len(got) < count:
            for other in (first, second):
                found = other.ask("[(m.offset, m.ack())[0] for m in c.receive(2)]")
                got += eval(found)
            mine = consumer.receive(3)
            got += offsets(mine)
            consumer.ack(mine)
        assert sorted(got) == list(range(count))
        assert queue.group("w").progress() == (count, count)


def test_what_a_killed_process_had_is_free_when_somebody_comes(tmp_path: Path) -> None:
    with (
        Store(tmp_path, upkeep=False) as store,
        another_process(tmp_path) as other,
    ):
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(3))
        other.ask("globals().update(c=store.queue('q').consumer('w', prefetch=2))")
        assert other.ask("[m.offset for m in c.receive()]") == "[0]"
        consumer = queue.consumer("w")
        assert offsets(consumer.receive(9)) == [2]
        assert consumer.receive() == []  # as long as it lives
        other.kill()
        late = queue.consumer("w")
        assert [offsets(late.receive(9)) for _ in range(2)] == [[0], [1]]  # the first one alone
        assert [member.alive for member in queue.group("w").members()] == [True, True]


@pytest.mark.no_cover
@pytest.mark.parametrize("ending", ["c.close()", "globals().pop('c')"])
@pytest.mark.parametrize("is_snapshot", [False, True])
def test_what_a_killed_process_had_whose_consumer_was_gone_before(
    tmp_path: Path, ending: str, is_snapshot: bool
) -> None:
    """Who closes a consumer may settle what it has received, as long as it lives."""
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q", visibility_timeout="1h", compact_after=3 if is_snapshot else 1000)
        queue.publish_many(numbers(2))
        other.ask("globals().update(c=store.queue('q').consumer('w'))")
        other.ask("globals().update(m=c.receive(2))")
        other.ask(ending)
        other.ask("m[1].ack()")
        with queue.consumer("w") as consumer:
            assert consumer.receive() == []  # as long as it lives
            assert [each.offset for each in queue.pending("w")] == [0]
            other.kill()
            assert offsets(consumer.receive(wait=WAIT)) == [0]
        [found] = queue.stats().groups
        assert (found.leased, found.ready) == (1, 0)


def test_what_a_killed_process_had_whose_consumer_was_gone_is_free_in_stats(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(2))
        other.ask("globals().update(m=store.queue('q').consumer('w').receive(1))")
        assert [(each.leased, each.ready) for each in queue.stats().groups] == [(1, 1)]
        other.kill()
        assert [(each.leased, each.ready) for each in queue.stats().groups] == [(0, 2)]
        assert offsets(queue.consumer("w").receive(9)) == [0]


def test_what_a_killed_process_had_comes_while_there_is_enough_to_do(tmp_path: Path) -> None:
    """Nobody has to wait for the queue to run dry."""
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish(b"first")
        other.ask("globals().update(c=store.queue('q').consumer('w'))")
        assert other.ask("[m.value for m in c.receive()]") == "[b'first']"
        consumer = queue.consumer("w")
        other.kill()
        until = time.monotonic() + WAIT
        found = None
        while found != b"first":
            assert time.monotonic() < until
            queue.publish_many(numbers(2))
            message = one(consumer)
            found = message.value
            message.ack()


def test_of_two_with_one_name_the_one_who_lives_keeps_what_it_has(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store, another_process(tmp_path) as other:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(2))
        message = one(queue.consumer("w", id="worker"))
        other.ask("globals().update(c=store.queue('q').consumer('w', id='worker'))")
        assert other.ask("[m.offset for m in c.receive()]") == "[1]"
        other.kill()
        assert offsets(queue.consumer("w").receive(9)) == [1]
        message.ack()


def test_what_somebody_had_who_left_stays_his_until_the_lease_ends(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(2))
        with queue.consumer("w", prefetch=2) as consumer:
            message = one(consumer)
        assert offsets(queue.consumer("w").receive(2)) == [1]
        message.ack()


# --- the journal and the log --------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(12))
def test_acks_that_are_ahead_of_the_log_take_nothing_that_comes_later(
    machine: Machine, seed: int
) -> None:
    """In `async` mode a power cut may leave the acknowledgement of a message that it took."""
    store = machine.open(flush="async", compact_after=1 + seed % 3)
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(10))
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(4))
    consumer.receive(4)
    machine.power_cut(seed)
    with machine.open() as store:
        queue = store.queue("q")
        there = {message.offset: message.value for message in queue.read()}
        new = queue.publish_many([b"new 1", b"new 2"]).offset
        assert not [offset for offset in there if offset >= new]
        found = drain(queue.consumer("w"))
        assert found[-2:] == [b"new 1", b"new 2"]
        assert set(found[:-2]) >= {value for offset, value in there.items() if offset >= 4}
        assert queue.group("w").progress()[1] >= new + 2


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(12))
def test_acks_that_returned_are_never_undone(machine: Machine, seed: int) -> None:
    store = machine.open(compact_after=1 + seed % 4)
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(12))
    consumer = queue.consumer("w")
    messages = consumer.receive(8)
    messages[0].ack()
    consumer.ack(messages[3:6])
    messages[1].reject("bad")
    consumer.receive(2)
    machine.power_cut(seed)
    with machine.open() as store:
        left = drain(store.queue("q").consumer("w"))
        assert len(left) == len(set(left))
        assert set(left) == {b"2", b"6", b"7", b"8", b"9", b"10", b"11"}
        assert values(store.dead("q")) == [b"1"]


# --- poison -------------------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize(("prefetch", "at_once"), [(100, 1), (1, 100), (100, 100), (10, 7)])
def test_a_message_that_kills_whoever_gets_it_takes_no_other_with_it(
    machine: Machine, prefetch: int, at_once: int
) -> None:
    options = {**FAST, "retry": {"max_retries": 3, "initial_backoff": 0}}
    store = machine.open()
    store.queue("q", **options).publish_many(
        [b"poison" if n == 5 else b"%d" % n for n in range(100)]
    )
    done: set[bytes] = set()
    deaths = 0
    while deaths < 50:
        consumer = store.queue("q").consumer("w", prefetch=prefetch)
        messages = consumer.receive(at_once)
        if not messages:
            break
        for message in messages:
            if message.value == b"poison":
                deaths += 1
                machine.kill()
                store = machine.open()
                machine.clock.advance(1.1)
                break
            assert message.value is not None
            assert message.delivery_count <= 2, "a neighbour pays for it"
            message.ack()
            done.add(message.value)
        else:
            consumer.close()
    assert deaths == 4
    assert len(done) == 99
    assert values(store.dead("q")) == [b"poison"]
    store.close()


@pytest.mark.no_cover
@pytest.mark.parametrize(("prefetch", "at_once"), [(1, 1), (10, 1), (1, 3), (10, 3)])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("where", [0, 5])
def test_nor_does_it_if_its_process_has_several_consumers(
    machine: Machine, prefetch: int, at_once: int, workers: int, where: int
) -> None:
    """Whoever dies has something in each of its threads."""
    options = {**FAST, "retry": {"max_retries": 2, "initial_backoff": 0}}
    store = machine.open()
    store.queue("q", **options).publish_many(
        [b"poison" if n == where else b"%d" % n for n in range(30)]
    )
    done: list[bytes | None] = []
    deaths = 0
    while len(done) < 29 or deaths < 3:
        queue = store.queue("q")
        consumers = [queue.consumer("w", prefetch=prefetch) for _ in range(workers)]
        while messages := [m for each in consumers for m in each.receive(at_once)]:
            if b"poison" in values(messages):
                deaths += 1
                machine.kill()
                store = machine.open()
                machine.clock.advance(1.1)
                break
            assert all(m.delivery_count <= 2 for m in messages), "a neighbour pays for it"
            done += values(messages)
            for message in messages:
                message.ack()
        else:
            assert deaths == 3
            break
    assert len(done) == 29
    assert drain(store.queue("q").consumer("w")) == []
    assert values(store.dead("q")) == [b"poison"]
    store.close()


def test_a_message_with_which_somebody_died_comes_alone() -> None:
    with on_machine() as (machine, _store, queue):
        queue.publish_many(numbers(5))
        consumer = queue.consumer("w")
        consumer.receive(3)
        machine.clock.advance(1.1)
        seen = []
        while messages := consumer.receive(10):
            seen.append(offsets(messages))
            consumer.ack(messages)
        assert seen == [[0], [1], [2], [3, 4]]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_process_has_one_such_message_at_a_time(prefetch: int) -> None:
    with on_machine() as (machine, _store, queue), machine.open() as other:
        queue.publish_many(numbers(6))
        first, second = queue.consumer("w"), queue.consumer("w", prefetch=prefetch)
        first.receive(4)
        machine.clock.advance(1.1)
        assert offsets(first.receive(9)) == [0]
        assert offsets(other.queue("q").consumer("w").receive(9)) == [1]
        assert offsets(second.receive(1)) == [4]  # all others come beside it
        second.receive(1)
        assert first.receive(9) == second.receive(9) == []
        assert offsets(queue.peek("w", 9)) == [2, 3]
        machine.clock.advance(0.5)
        for consumer in (first, second):
            assert consumer.receive(9) == []
        machine.clock.advance(0.6)  # it was kept for too long
        assert offsets(second.receive(9)) == [0]
        assert first.receive(9) == []


SETTLE: dict[str, Callable[[Message], None]] = {
    "ack": Message.ack,
    "nack": lambda message: message.nack(delay="1h"),
    "reject": Message.reject,
    "extend": lambda message: message.extend(0),
}


@pytest.mark.parametrize("how", SETTLE)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_who_waits_for_the_next_such_message_is_told(tmp_path: Path, how: str, flush: str) -> None:
    with Store(tmp_path, flush=flush, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="1h")
        queue.publish_many(numbers(3))
        queue.consumer("w", visibility_timeout="1ms").receive(3)
        consumer = queue.consumer("w")
        [message] = consumer.receive(1, wait=WAIT)
        got: list[int] = []

        def wait() -> None:
            got.extend(offsets(queue.consumer("w").receive(9, wait=2 * WAIT)))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        assert got == []
        SETTLE[how](message)
        thread.join(WAIT)
        assert got == [0 if how == "extend" else 1]
