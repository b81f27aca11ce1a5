"""Messages that are delivered later."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tailrace
from tailrace import Closed, ConfigError, Full, NotWritten, Queue, Store, Stream, TailraceError, aio
from tailrace.log.fs import OsFileSystem
from tailrace.queue.alarm import NEVER
from tailrace.queue.delays import Delayed, count_scheduled, due_ms, held_still
from tailrace.queue.handles import QueueLog
from tailrace.queue.publishing import Until
from tailrace.queue.pump import Pump
from tailrace.testing import Call, Fail, FaultyFileSystem
from tests.log.helpers import WAIT, run_python
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.delaying import Model, few_in_memory, values_of
from tests.queue.support import another_process, drain, numbers, values


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queue("q")


# --- when ---------------------------------------------------------------------------------------


def test_it_enters_the_queue_at_its_time(store: Store, queue: Queue, clock: ManualClock) -> None:
    delayed = queue.publish(b"x", delay="30s", key="k", headers={"a": "b"}, routing_key="eu")
    assert isinstance(delayed, Delayed)
    assert delayed.deliver_at == clock.wall_ms() + 30_000
    assert delayed.wait() is delayed
    clock.advance(29.999)
    assert (store.deliver_due(), values_of(queue)) == (0, [])
    clock.advance(0.001)
    assert (store.deliver_due(), store.deliver_due()) == (1, 0)
    [message] = queue.consumer("w").receive(10)
    assert (message.value, message.key, message.routing_key) == (b"x", b"k", "eu")
    assert dict(message.headers.pairs) == {"a": b"b"}
    assert message.timestamp == delayed.deliver_at


def test_those_that_are_due_come_in_the_order_of_their_times(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    for value, delay in [(b"c", 3), (b"a", 1), (b"e", 3), (b"b", 2), (b"f", 3), (b"0", 0)]:
        queue.publish(value, delay=delay)
    clock.advance(10)
    assert store.deliver_due() == 6
    assert values_of(queue) == [b"0", b"a", b"b", b"c", b"e", b"f"]


def test_what_is_due_already_comes_at_once(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.publish(b"past", deliver_at=clock.wall_ms() - 1)
    assert store.deliver_due() == 1


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_what_is_long_due_is_not_older_than_it_is(
    store: Store, clock: ManualClock, kind: str
) -> None:
    """Its timestamp is the time it is due, and `max_age` goes by that."""
    options: dict[str, Any] = {"retention": {"max_age": "1h"}, "topics": ["shop/#"]}
    make: Any = store.queue if kind == "queue" else store.stream
    queue = make("long", **options)
    now, past = clock.wall_ms(), 1_500_000_000_000
    delayed = queue.publish(b"own", deliver_at=past)
    assert delayed.deliver_at == now
    queue.publish(b"headers", deliver_at=past, headers={"a": "b"}, message_id="m")
    published = store.publish("shop/cups", b"topic", deliver_at=past)
    assert len(published.delay_ids) == 1
    assert {each.deliver_at for each in queue.delayed()} == {now}
    assert store.deliver_due() == 3
    queue.vacuum()
    found = [(message.value, message.timestamp) for message in queue.read()]
    assert found == [(b"own", now), (b"headers", now), (b"topic", now)]


def test_what_is_due_and_expired_is_as_any_other_that_is(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    """As when a list of what was delayed is published elsewhere, years later."""
    over = Until(clock.wall_ms() - 5)
    queue.publish(b"past", deliver_at=clock.wall_ms() - 10, ttl=over)
    queue.publish(b"plain", ttl=over)
    assert store.deliver_due() == 1
    assert queue.consumer("w").receive(9) == []


def test_a_clock_that_begins_in_1970_knows_early_times(open_store: OpenStore) -> None:
    with open_store(clock=ManualClock(5_000)) as store:
        queue = store.queue("early")
        queue.publish(b"x", deliver_at=6_000)
        [found] = queue.delayed()
        assert found.deliver_at == 6_000


def test_times_in_every_form(clock: ManualClock) -> None:
    now = clock.wall_ms()
    assert due_ms(None, None, now) is None
    assert due_ms(1.5, None, now) == now + 1_500
    assert due_ms("2m", None, now) == now + 120_000
    assert due_ms(None, now + 5, now) == now + 5
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert due_ms(None, moment, now) == round(moment.timestamp() * 1000)
    east = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert due_ms(None, east, now) == due_ms(None, moment, now)
    # Never before: a part of a millisecond counts for a whole one.
    later = moment + timedelta(microseconds=1)
    assert due_ms(None, later, now) == round(moment.timestamp() * 1000) + 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"delay": 1, "deliver_at": 1}, ValueError, "one of them"),
        ({"deliver_at": datetime(2030, 1, 1)}, ValueError, "no time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, TypeError, "whole number of milliseconds"),
        ({"deliver_at": 1.5}, TypeError, "whole number"),
        ({"deliver_at": True}, TypeError, "whole number"),
        ({"deliver_at": -1}, ValueError, "deliver_at: -1 is before 1970"),
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, ValueError, "is before 1970"),
        ({"deliver_at": 1_800_000_000}, ValueError, "deliver_at: 1800000000 .* milliseconds"),
        ({"deliver_at": datetime(1970, 1, 21, tzinfo=UTC)}, ValueError, "is long over"),
        ({"deliver_at": 2**60}, ValueError, "deliver_at: .* too late"),
        ({"delay": -1}, ConfigError, "delay"),
        ({"delay": "soon"}, ConfigError, "delay"),
        ({"delay": "9000000w"}, ValueError, "delay: .* too late"),
        ({"delay": 1, "timestamp": 5}, ValueError, "timestamp"),
        ({"delay": 1, "headers": {"_topic": "x"}}, ValueError, "reserved"),
        ({"delay": 1, "routing_key": "a/+"}, TailraceError, "a/"),
    ],
    ids=str,
)
def test_a_wrong_time_is_refused_and_leaves_nothing(
    queue: Queue, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        queue.publish(b"x", **options)
    assert queue.delayed_count() == 0
    assert not queue.delays.exists


def test_its_size_is_checked_when_it_is_published(store: Store) -> None:
    queue = store.queue("small", limits={"max_message_size": 10})
    chosen: list[dict[str, Any]] = [{}, {"headers": {"a": "b"}}, {"ttl": 5}]
    for options in chosen:
        with pytest.raises(Full, match="max_message_size"):
            queue.publish(b"x" * 11, delay=1, **options)
    with pytest.raises(Full, match="max_message_size"):
        store.publish("$queue/small", b"x" * 11, delay=1)
    assert queue.delayed_count() == 0


def test_what_does_not_fit_into_a_batch_of_the_queue_is_refused(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("narrow", max_batch_bytes=4096, compression="none")
    for size in (4000, 5000):
        for headers in (None, {"h": "y"}):
            with pytest.raises(Full, match="bytes"):
                queue.publish(b"x" * size, delay=1, headers=headers)
    for _ in range(20):
        queue.publish(b"x" * 3000, delay=1, headers={"h": "y" * 500})
    clock.advance(1)
    assert store.deliver_due() == 20
    assert len(queue) == 20


@pytest.mark.parametrize("sorted_away", [False, True])
def test_what_was_accepted_is_delivered_whatever_a_batch_may_hold_by_then(
    store: Store, clock: ManualClock, sorted_away: bool
) -> None:
    queue = store.queue("q", max_batch_bytes="1MiB", compression="none")
    before, after = numbers(3), [b"%d" % number for number in range(3, 9)]
    large = bytes(500_000)
    for value in (*before, large, *after):
        queue.publish(value, delay=1)
    store.queue("q", max_batch_bytes=4096)
    with contextlib.ExitStack() as stack:
        if sorted_away:
            stack.enter_context(few_in_memory())
            stack.enter_context(mock.patch("tailrace.queue.sorted_runs._BATCH_BYTES", 1_000))
            assert queue.delayed_count() == 10
            assert Path(store.layout.delayed(queue.incarnation), "runs").exists()
        clock.advance(1)
        assert store.deliver_due() == 10
    assert values_of(queue) == [*before, large, *after]
    with pytest.raises(Full, match="bytes"):
        queue.publish(bytes(5_000), delay=1)


def test_what_somebody_was_about_to_deliver_is_delivered_whatever_a_batch_may_hold_by_then(
    open_store: OpenStore, clock: ManualClock
) -> None:
    with open_store() as store:
        queue = store.queue("q", max_batch_bytes="1MiB", compression="none")
        for _ in range(10):
            queue.publish(bytes(10_000), delay=1)
        clock.advance(1)
        error = OSError(5, "broken")
        with (
            mock.patch.object(QueueLog, "append_accepted", side_effect=error),
            pytest.raises(OSError, match="broken"),
        ):
            store.deliver_due()
        store.queue("q", max_batch_bytes=4096)
    with open_store() as store:
        store.deliver_due()
        assert values_of(store.get("q")) == [bytes(10_000)] * 10


def test_a_lifetime_of_its_own_counts_from_when_it_was_published(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    queue.publish(b"short", delay=10, ttl=12)
    queue.publish(b"long", delay=10, ttl=20)
    queue.publish(b"for ever", delay=10, ttl=0)
    clock.advance(15)
    assert store.deliver_due() == 3
    consumer = queue.consumer("w")
    assert values(consumer.receive(10)) == [b"long", b"for ever"]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 10},
        {"delay": 5},
        {"delay": "7s", "headers": {"a": "b"}},
        {"deliver_at": datetime(2100, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_lifetime_that_is_over_before_it_is_due_is_refused(
    store: Store, queue: Queue, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"ttl: .* over before it is due"):
        queue.publish(b"x", ttl="5s", **options)
    with pytest.raises(ConfigError, match=r"ttl: .* over before it is due"):
        store.publish("$queue/q", b"x", ttl=5, **options)
    assert queue.delayed_count() == 0
    assert not queue.delays.exists


def test_the_lifetime_that_its_queue_gives_it_counts_from_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", limits={"message_ttl": "10s"})
    start = clock.wall_ms()
    queue.publish(b"plain", delay="1h")
    queue.publish(b"headers", delay="1h", headers={"a": "b"})
    store.publish("$queue/q", b"topic", delay="1h")
    queue.publish(b"past", deliver_at=start - 3_600_000)  # it may be had from now on
    store.deliver_due()
    assert [m.expires_at for m in queue.read()] == [start + 10_000]
    clock.advance(3_600)
    assert store.deliver_due() == 3
    assert {m.expires_at for m in queue.read(1)} == {start + 3_610_000}
    consumer = queue.consumer("w")
    assert values(consumer.receive(1)) == [b"plain"]
    clock.advance(11)
    assert consumer.receive(10) == []


def test_a_stream_has_them_too(store: Store, clock: ManualClock) -> None:
    stream = store.stream("s")
    stream.publish(b"x", delay=1)
    stream.publish(b"y")
    clock.advance(1)
    store.deliver_due()
    assert values_of(stream) == [b"y", b"x"]


def test_by_topic_it_waits_for_each_queue(store: Store, clock: ManualClock) -> None:
    queues = [store.queue(name, topics=["shop/#"]) for name in ("a", "b")]
    published = store.publish("shop/7", b"x", delay=5)
    assert sorted(published.delay_ids) == ["a", "b"]
    assert all(isinstance(each, Delayed) for each in published.values())
    assert queues[0].cancel(published.delay_ids["a"])
    assert not queues[1].cancel(published.delay_ids["a"])
    clock.advance(5)
    assert store.deliver_due() == 1
    assert [values_of(queue) for queue in queues] == [[], [b"x"]]
    assert store.publish("shop/7", b"now").delay_ids == {}


# --- cancel, list, count ------------------------------------------------------------------------


def test_a_message_is_cancelled_or_delivered(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    kept, gone = queue.publish(b"kept", delay=5), queue.publish(b"gone", delay=5)
    assert queue.cancel(gone.delay_id)
    assert queue.cancel(gone.delay_id)  # that it will never be delivered is still true
    assert queue.delayed_count() == 1
    clock.advance(5)
    assert store.deliver_due() == 1
    assert not queue.cancel(kept.delay_id)
    assert values_of(queue) == [b"kept"]


def test_what_publish_returns_can_be_cancelled(store: Store, queue: Queue) -> None:
    other = store.queue("other")
    first, second = (queue.publish(b"x", delay="1h") for _ in range(2))
    assert not other.cancel(first)
    assert queue.cancel(first)
    [listed] = queue.delayed()
    assert listed.delay_id == second.delay_id
    assert queue.cancel(listed)
    assert queue.delayed() == []
    with pytest.raises(TypeError, match="delay id"):
        queue.cancel(queue.publish(b"now"))  # type: ignore[arg-type]


def test_tasks_cancel_what_publish_returns(tmp_path: Path) -> None:
    async def cancel() -> None:
        async with aio.open(tmp_path / "data") as store:
            queue = await store.queue("q")
            delayed = await queue.publish(b"x", delay="1h")
            assert await queue.cancel(delayed)
            await queue.publish(b"y", delay="1h")
            [listed] = await queue.delayed()
            assert await queue.cancel(listed)
            assert await queue.delayed_count() == 0

    asyncio.run(cancel())


@pytest.mark.parametrize("delay_id", ["", "x", "1-2", "0-0-00000000", "f" * 40, "1-1-1-1"])
def test_an_id_that_is_nobodys(queue: Queue, delay_id: str) -> None:
    assert not queue.cancel(delay_id)
    assert not queue.delays.exists  # to ask makes nothing
    real = queue.publish(b"x", delay=5).delay_id
    due, offset, tag = real.split("-")
    for other in (f"{int(due, 16) + 1:x}-{offset}-{tag}", f"{due}-7-{tag}", delay_id):
        assert not queue.cancel(other)
    assert queue.delayed_count() == 1


def test_an_id_is_a_string(queue: Queue) -> None:
    with pytest.raises(TypeError, match="delay id"):
        queue.cancel(7)  # type: ignore[arg-type]


def test_what_is_scheduled_can_be_seen(queue: Queue, clock: ManualClock) -> None:
    assert (queue.delayed(), queue.delayed_count()) == ([], 0)
    later = queue.publish(b"later", delay=9, key="k", headers={"a": "b"})
    sooner = queue.publish(b"sooner", delay=3, routing_key="eu")
    first, second = queue.delayed()
    assert (first.delay_id, first.deliver_at) == (sooner.delay_id, sooner.deliver_at)
    assert (first.value, first.key, first.topic) == (b"sooner", None, "$queue/q/eu")
    assert (second.delay_id, second.key, second.value) == (later.delay_id, b"k", b"later")
    assert dict(second.headers.pairs) == {"a": b"b"}
    assert queue.delayed(limit=1) == [first]
    assert queue.delayed(limit=None) == [first, second]


def test_they_are_counted_without_disturbing_anybody(store: Store, queue: Queue) -> None:
    folder = store.layout.delayed(queue.incarnation)
    assert count_scheduled(store.fs, folder) == 0
    with few_in_memory():
        ids = [queue.publish(b"x", delay=5).delay_id for _ in range(20)]
        queue.cancel(ids[3])
        queue.cancel(ids[17])
        assert count_scheduled(store.fs, folder) == queue.delayed_count() == 18


def test_nothing_moves_while_somebody_holds_it_still(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    with held_still(store.fs, store.layout.delayed(queue.incarnation)):
        assert not queue.delays.exists
    queue.publish(b"x", delay=1)
    clock.advance(1)
    with held_still(store.fs, store.layout.delayed(queue.incarnation)):
        queue.publish(b"y", delay=1)
        lock = store.fs.lock(store.layout.delayed(queue.incarnation) + "/lock")
        assert not lock.acquire(wait=False)
        lock.close()
    assert store.deliver_due() == 1


# --- the queue goes -----------------------------------------------------------------------------


def test_purging_drops_them(store: Store, queue: Queue, clock: ManualClock) -> None:
    with few_in_memory():
        delay_id = ""
        for number in range(20):
            delay_id = queue.publish(b"%d" % number, delay=5).delay_id
            queue.delayed_count()
        queue.publish(b"now")
        queue.purge()
        assert queue.delayed_count() == 0
        assert not queue.cancel(delay_id)
        queue.publish(b"new", delay=5)
        clock.advance(10)
        assert store.deliver_due() == 1
    assert values_of(queue) == [b"new"]


def test_a_queue_that_is_made_anew_has_none(store: Store, queue: Queue, clock: ManualClock) -> None:
    delay_id = queue.publish(b"old", delay=5).delay_id
    folder = Path(store.layout.delayed())
    store.delete("q")
    assert {path.name for path in folder.iterdir()} <= {"bell", "board"}
    with pytest.raises(Closed):
        queue.cancel(delay_id)
    with pytest.raises(Closed):
        queue.publish(b"x", delay=1)
    queue = store.queue("q")
    assert not queue.cancel(delay_id)
    clock.advance(5)
    assert store.deliver_due() == 0
    assert values_of(queue) == []


def test_what_a_killed_deleter_left_goes_with_the_next_start(machine: Machine) -> None:
    store = machine.open()
    store.queue("q").publish(b"x", delay=5)
    machine.kill()
    # The entry is gone, and the process with it, before the delayed messages are.
    with machine.open() as store:
        [settings] = store.registry.current().values()
        store.registry.change(lambda queues: queues.clear())
    with machine.open() as store:
        assert not [path for path in machine.disk.files() if settings.incarnation in path]
        store.queue("q")
        machine.clock.advance(10)
        assert store.deliver_due() == 0


def test_nothing_is_left_when_nothing_is_scheduled(
    open_store: OpenStore, clock: ManualClock
) -> None:
    with open_store() as store:
        store.queue("q").publish(b"x", delay=5)
        clock.advance(5)
        store.deliver_due()
        folder = Path(store.layout.delayed())
        assert [path for path in folder.iterdir() if path.is_dir()]
    assert not [path for path in folder.iterdir() if path.is_dir()]
    with open_store() as store:
        queue = store.queue("q")
        queue.publish(b"y", delay=5)
    assert [path for path in folder.iterdir() if path.is_dir()]
    with open_store() as store:
        clock.advance(5)
        assert store.deliver_due() == 1
        assert values_of(store.get("q")) == [b"x", b"y"]


# --- the clock ----------------------------------------------------------------------------------


def test_a_clock_that_jumps_forward_delivers(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    queue.publish(b"x", delay="1d")
    clock.set_wall(clock.wall_ms() + 2 * 86_400_000)
    assert store.deliver_due() == 1


def test_a_clock_that_jumps_back_neither_repeats_nor_loses(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    start = clock.wall_ms()
    with few_in_memory():
        for number in range(10):
            queue.publish(b"a%d" % number, delay=number)
        clock.advance(5)
        assert store.deliver_due() == 6
        clock.set_wall(start - 3_600_000)
        assert store.deliver_due() == 0
        # These are due before some that were delivered.
        for number in range(10):
            queue.publish(b"b%d" % number, delay=number)
        clock.advance(20)
        assert store.deliver_due() == 10
        clock.set_wall(start + 60_000)
        assert store.deliver_due() == 4
    found = values_of(queue)
    assert len(found) == len(set(found)) == 20
    assert found[-4:] == [b"a6", b"a7", b"a8", b"a9"]


# --- power cuts -----------------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(20))
def test_what_the_queue_loses_with_the_power_is_delivered_again(
    machine: Machine, seed: int
) -> None:
    """An `async` queue may lose what it got a moment ago; but that was safe where it waited."""
    model = Model()
    with few_in_memory():
        store = machine.open(flush="async")
        queue = store.queue("q")
        for number in range(15):
            model.schedule(queue, machine.clock.wall_ms() + 100 * (number % 9))
            queue.delayed_count()
        queue.delays.incoming.flush()
        for _ in range(5):
            machine.clock.advance(0.1)
            store.deliver_due()
        machine.power_cut(seed, seconds_off=60)
        with machine.open() as store:
            store.deliver_due()
            model.check_end(store)


# --- space --------------------------------------------------------------------------------------


def test_a_full_queue_gets_them_when_there_is_room(store: Store, clock: ManualClock) -> None:
    queue = store.queue("full", limits={"max_depth": 3, "on_full": "raise"})
    consumer = queue.consumer("w")
    for number in range(5):
        queue.publish(b"%d" % number, delay=1)
    clock.advance(1)
    delivered = store.deliver_due()
    assert 0 < delivered <= 3
    assert queue.delayed_count() == 5 - delivered
    found: list[bytes | None] = []
    for _ in range(10):
        found += drain(consumer)
        store.deliver_due()
    assert found == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
def test_what_has_expired_when_it_comes_needs_no_room(
    store: Store, clock: ManualClock, on_full: str
) -> None:
    queue = store.queue("full", limits={"max_depth": 3, "on_full": on_full})
    queue.consumer("w").close()
    for number in range(3):
        queue.publish(b"late %d" % number, delay=1, ttl=2)
        queue.publish(b"%d" % number)
    clock.advance(3)
    assert store.deliver_due() == 3
    assert values(queue.peek("w", 9)) == numbers(3)
    assert queue.group("w").state.dropped == 0
    for _ in range(2):
        queue.publish(b"late", delay=1, ttl=2)
    queue.publish(b"in time", delay=1)
    clock.advance(3)
    assert store.deliver_due() == (3 if on_full == "drop_oldest" else 2)
    found = [b"1", b"2", b"in time"] if on_full == "drop_oldest" else numbers(3)
    assert values(queue.peek("w", 9)) == found


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_one_can_look_while_the_disk_has_no_room_for_what_is_due(
    machine: Machine, flush: str
) -> None:
    store, fs = machine.open_faulty(flush=flush)
    queue = store.queue("q")
    for number in numbers(3):
        queue.publish(number, delay=1)
    queue.publish(b"later", delay=100)
    machine.clock.advance(2)

    def plan(call: Call) -> Fail | None:
        is_in_queue = "/queues/" in call.path and call.path.endswith(".seg")
        return Fail(errno.ENOSPC) if call.op == "pwrite" and is_in_queue else None

    fs.plan = plan
    for _ in range(2):
        with pytest.raises(NotWritten):
            store.deliver_due()
        assert queue.delayed_count() == 1
        assert [each.value for each in queue.delayed()] == [b"later"]
    fs.plan = None
    assert queue.delayed_count() == 1
    assert values_of(queue) == numbers(3)


@pytest.mark.no_cover
def test_space_comes_back(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store(flush="async")
    queue = store.queue("q", compression="none")
    folder = Path(store.layout.delayed(queue.incarnation))
    for _ in range(3):
        for _number in range(3_000):
            queue.publish(b"x" * 1_000, delay=1, wait=False)
        clock.advance(1)
        store.deliver_due()
        queue.delays.tidy()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert size < 1_500_000
    assert len(queue) == 9_000


@pytest.mark.no_cover
def test_memory_is_sorted_away_and_comes_back_in_order(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", flush="none")
    model = Model()
    with few_in_memory():
        for number in range(200):
            model.schedule(queue, clock.wall_ms() + 1_000 * (number * 37 % 101))
            if number % 7 == 0:
                model.cancel(queue, b"%d" % (number // 2 + 1))
        assert queue.delayed_count() == 200 - len(model.cancelled)
        state = queue.delays._state
        assert state is not None
        assert len(state.runs) > 10
        assert len(state.waiting) < 10
        while queue.delays.merge():
            assert queue.delayed_count() == 200 - len(model.cancelled)
        state = queue.delays._state
        assert state is not None
        assert len(state.runs) < 10
        for value in sorted(model.ids):
            if int(value) % 5 == 0:
                assert model.cancel(queue, value)
        expected = sorted(
            model.due.keys() - model.cancelled, key=lambda value: (model.due[value], int(value))
        )
        assert [each.value for each in queue.delayed(None)] == expected
        for _ in range(110):
            clock.advance(1)
            store.deliver_due()
            model.check(values_of(queue), clock.wall_ms())
            queue.delays.merge()
            queue.delays.tidy()
    assert values_of(queue) == expected


# --- many processes -----------------------------------------------------------------------------


def test_two_stores_deliver_each_message_once(open_store: OpenStore, clock: ManualClock) -> None:
    stores = [open_store(), open_store()]
    queues = [store.queue("q") for store in stores]
    model = Model()
    with few_in_memory():
        for number in range(60):
            queue = queues[number % 2]
            model.schedule(queue, clock.wall_ms() + 100 * (number * 7 % 13))
            if number % 5 == 0:
                model.cancel(queues[number // 5 % 2], b"%d" % (number // 2 + 1))
            clock.advance(0.05)
            stores[number // 3 % 2].deliver_due()
        clock.advance(60)
        assert sum(store.deliver_due() for store in stores) >= 0
    for store in stores:
        model.check_end(store)


@pytest.fixture
def awake(tmp_path: Path) -> Iterator[Store]:
    """A store that delivers by itself."""
    with tailrace.open(tmp_path / "data") as store:
        yield store


def arrives(queue: Queue | Stream, count: int = 1) -> float:
    """When so many messages are in the queue, in milliseconds since 1970."""
    limit = time.monotonic() + WAIT
    while len(values_of(queue)) < count:
        assert time.monotonic() < limit, "it does not come"
        time.sleep(0.001)
    return time.time() * 1000


def test_it_comes_by_itself(awake: Store) -> None:
    queue = awake.queue("q")
    for delay in (0.3, 0.05, 0):
        before = len(queue)
        delayed = queue.publish(b"x", delay=delay)
        came = arrives(queue, before + 1)
        assert came >= delayed.deliver_at
        assert came < delayed.deliver_at + 2_000


def test_a_sooner_one_wakes_whoever_waits_for_a_later_one(awake: Store) -> None:
    queue, other = awake.queue("q"), awake.queue("other")
    queue.publish(b"later", delay=3600)
    time.sleep(0.1)
    sooner = other.publish(b"sooner", delay=0.1)
    assert arrives(other) < sooner.deliver_at + 2_000
    assert queue.delayed_count() == 1


def test_somebody_who_was_there_first_delivers_for_one_who_has_left(
    awake: Store, tmp_path: Path
) -> None:
    queue = awake.queue("q")
    with another_process(tmp_path / "data") as other:
        other.ask("store.queue('q').publish(b'x', delay=0.5)")
        other.kill()
    arrives(queue)
    with tailrace.open(tmp_path / "data", upkeep=False) as idle:
        idle.queue("q").publish(b"y", delay=0.2)
    arrives(queue, 2)
    assert values_of(queue) == [b"x", b"y"]


def test_the_one_who_delivers_is_killed(awake: Store, tmp_path: Path) -> None:
    with another_process(tmp_path / "data") as other:
        # It came second, but had the lock when both were there.
        other.ask("store.queue('q').publish(b'1', delay=0.01)")
        queue = awake.queue("q")
        arrives(queue)
        other.ask("[store.queue('q').publish(b'%d' % n, delay=0.3) for n in (2, 3)] and 0")
        other.kill()
    arrives(queue, 3)
    assert values_of(queue) == [b"1", b"2", b"3"]


@contextlib.contextmanager
def stopped(process: subprocess.Popen[Any], store: Store, name: str) -> Iterator[None]:
    """It does nothing, and is in nobody's way: it has no turn."""
    lock = store.fs.lock(os.path.join(store.layout.delayed(store.get(name).incarnation), "lock"))
    try:
        while True:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            if lock.acquire(wait=False):
                lock.release()
                break
            process.send_signal(signal.SIGCONT)
        yield
    finally:
        lock.close()
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("later", [False, True], ids=["nothing else", "something later"])
def test_the_one_who_delivers_is_stopped(tmp_path: Path, later: bool) -> None:
    """Another one does, until it goes on; each message comes once."""
    with another_process(tmp_path / "data") as other:
        other.ask("store.queue('q').publish(b'1', delay=0.01)")
        eventually(lambda: other.ask("store._pump.is_delivering") == "True")
        with tailrace.open(tmp_path / "data") as store:
            queue = store.queue("q")
            arrives(queue)
            if later:
                queue.publish(b"later", delay=3600)
            assert not is_delivering(store)
            with stopped(other.process, store, "q"):
                came = arrives_after(queue, 2, queue.publish(b"2", delay=0.1).deliver_at)
                assert came < 10
                assert is_delivering(store)
                queue.publish(b"3", delay=0.1)
                arrives(queue, 3)
            other.ask("store.queue('q').publish(b'4', delay=0.1)")
            queue.publish(b"5", delay=0.2)
            arrives(queue, 5)
            assert values_of(queue) == [b"1", b"2", b"3", b"4", b"5"]


def arrives_after(queue: Queue | Stream, count: int, due_ms: int) -> float:
    """How many seconds after it was due."""
    return (arrives(queue, count) - due_ms) / 1000


def test_who_was_given_up_has_the_other_one_look_at_all_queues(awake: Store) -> None:
    """It may have taken calls of which the other one does not know."""
    queue, pump = awake.queue("q"), awake._pump
    assert pump is not None
    queue.publish(b"x", delay=0.01)
    arrives(queue)
    before = pump._number
    with mock.patch.object(awake.alarm, "call_all", wraps=awake.alarm.call_all) as call_all:
        awake.alarm.take_over()  # as another process does
        eventually(lambda: pump._number != before)  # it has come back
    call_all.assert_called_once()
    queue.publish(b"y", delay=0.01)
    arrives(queue, 2)


@pytest.mark.parametrize("error", [OSError, ImportError, Closed])
def test_it_is_not_tried_again_at_once(tmp_path: Path, error: type[Exception]) -> None:
    tailrace.open(tmp_path / "data").close()
    with mock.patch.object(Pump, "_attend", side_effect=error("it fails")) as attend:
        with tailrace.open(tmp_path / "data"):
            time.sleep(0.5)
        assert attend.call_count == 1


# What threads of ours import, and where. A child that is forked meanwhile never gets the rest.
_IMPORTS = """
import json, sys, threading, time
found = []

class Spy:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            found.append((threading.current_thread().name, name))

sys.meta_path.insert(0, Spy())
import tailrace

store = tailrace.open(sys.argv[1], flush="async")
queue = store.queue("q", retention={"max_records": 1}, flush_interval="10ms")
queue.publish(b"x", delay=0.05)
store.publish("nobody", b"x")
with store.queue("q").consumer("g").receive(wait=10)[0] as message, message.auto_extend():
    time.sleep(0.5)
store.close()
print(json.dumps(found))
"""


def test_threads_import_nothing(tmp_path: Path) -> None:
    assert run_python(_IMPORTS, tmp_path / "data") == []


def test_it_waits_until_somebody_comes(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        store.queue("q").publish(b"x", delay=0.01)
        time.sleep(0.05)
        assert values_of(store.get("q")) == []
    with tailrace.open(tmp_path / "data") as store:
        arrives(store.get("q"))


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_whoever_comes_finds_what_is_due(tmp_path: Path, kind: str) -> None:
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        queue = getattr(store, kind)("q")
        for number in range(20):
            queue.publish(b"%d" % number, delay=0.01)
        queue.publish(b"now")
        queue.publish(b"later", delay=3600)
        time.sleep(0.05)
    with few_in_memory(), nobody_delivers(), tailrace.open(tmp_path / "data") as store:
        consumer = getattr(store, kind)("q").consumer("w")
        found = []
        while messages := consumer.receive(5):
            found += values(messages)
        assert len(found) == 21
        assert set(found) == {b"now", *numbers(20)}
        assert [each.value for each in store.get("q").delayed()] == [b"later"]


@pytest.mark.parametrize("upkeep", [False, True])
@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_what_is_due_when_it_is_published_is_found_by_the_first_look(
    tmp_path: Path, kind: str, upkeep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a consumer that has looked before; nobody else has to come first."""
    monkeypatch.setattr(Pump, "_deliver", lambda *_: NEVER)  # the thread is never fast enough
    with tailrace.open(tmp_path, upkeep=upkeep, flush="none") as store:
        queue: Any = store.queue("q") if kind == "queue" else store.stream("q")
        with queue.consumer("g") as consumer:
            assert consumer.receive(1) == []
            queue.publish(b"now", delay=0)
            assert [message.value for message in consumer.receive(1)] == [b"now"]
            queue.publish(b"before", deliver_at=1_600_000_000_000)
            store.publish("$queue/q", b"by topic", delay=0)
            assert {message.value for message in consumer.receive(9)} == {b"before", b"by topic"}
            queue.publish(b"later", delay=60)
            assert consumer.receive(1) == []


def test_who_opens_a_consumer_finds_what_is_due_beside_the_rest(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        store.queue("q").publish(b"now")
        store.queue("q").publish(b"due", delay=0.01)
        time.sleep(0.05)
    with nobody_delivers(), tailrace.open(tmp_path / "data") as store:
        assert values(store.queue("q").peek("w", 5)) == [b"now", b"due"]
        assert values(store.queue("q").consumer("w").receive(5)) == [b"now", b"due"]


@contextmanager
def nobody_delivers() -> Iterator[None]:
    """The thread of a store is late."""
    with mock.patch.object(Pump, "_look", return_value=60.0):
        yield


def test_what_cannot_be_delivered_stops_no_consumer(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        store.queue("q").publish(b"now")
        store.queue("q").publish(b"due", delay=0.01)
        time.sleep(0.05)
    with nobody_delivers(), tailrace.open(tmp_path / "data") as store:
        queue = store.queue("q")
        with mock.patch.object(queue.delays, "deliver", side_effect=OSError(5, "broken")):
            assert values(queue.consumer("w").receive(5)) == [b"now"]


def test_a_queue_that_fails_in_a_way_nobody_thought_of_stops_no_other(
    awake: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broken, others = awake.queue("broken"), [awake.queue(f"q{n}") for n in range(5)]
    with mock.patch.object(broken.delays, "deliver", side_effect=ValueError("odd")):
        for queue in (broken, *others):
            queue.publish(b"x", delay=0.05)
        for queue in others:
            arrives(queue)
        limit = time.monotonic() + WAIT
        while not any("odd" in each.getMessage() for each in caplog.records):
            assert time.monotonic() < limit, "nobody tells of it"
            time.sleep(0.001)
    arrives(broken)


def test_who_has_no_delayed_messages_opens_nothing_for_them(tmp_path: Path) -> None:
    with nobody_delivers(), tailrace.open(tmp_path / "data") as store:
        queue = store.queue("q")
        assert queue.consumer("w").receive() == []
        assert not queue.delays.is_open
        assert not Path(store.layout.delayed()).exists()


@pytest.mark.no_cover
def test_far_away_ones_need_nothing_open(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data", upkeep=False, flush="none") as store:
        for number in range(40):
            store.queue(f"q{number}").publish(b"x", delay=86_400)
    with tailrace.open(tmp_path / "data") as store:
        limit = time.monotonic() + WAIT
        while True:
            opened = sum(queue.delays._incoming is not None for queue in store.queues())
            assert store._pump is not None
            if len(store._pump._seen) == 40 and opened <= 32:
                break
            assert time.monotonic() < limit
            time.sleep(0.01)
        # And whoever publishes to one of them is heard.
        with tailrace.open(tmp_path / "data", upkeep=False) as other:
            other.queue("q0").publish(b"soon", delay=0.05)
            arrives(store.get("q0"))


@pytest.mark.parametrize("most", [32, 1], ids=["few", "many"])
def test_queues_with_much_that_is_due_take_turns(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Nor need all of them be open."""
    monkeypatch.setattr("tailrace.queue.delivery._AT_ONCE", 4)
    seconds = iter(range(1_000))
    monkeypatch.setattr("tailrace.queue.pump.monotonic", lambda: next(seconds))
    store = open_store(upkeep=True, flush="none")
    pump = store._pump
    assert pump is not None
    pump.stop()  # from here on, look by look
    pump._stopped, pump._open_most = False, most
    queues = [store.queue(name) for name in ("a", "b", "c")]
    for queue in queues:
        for number in range(12):
            queue.publish(b"%d" % number, delay=1)
        queue.delays.rest()
    clock.advance(1)
    pump._lock, pump.is_delivering = None, False
    for count in (4, 8, 12):
        assert (pump._look(is_called=False) == 0) == (count < 12)  # is there more?
        assert [len(queue) for queue in queues] == [count] * 3
        assert sum(queue.delays.is_open for queue in queues) <= most
    assert [values_of(queue) for queue in queues] == [numbers(12)] * 3


def asleep(store: Store) -> bool:
    """Has whoever delivers let go of everything?"""
    pump = store._pump
    is_over = pump is not None and pump._knows_all and not pump._awake
    return is_over and not any(queue.delays.is_open for queue in store.queues())


def has_no_files(store: Store) -> bool:
    return not any(queue.files for queue in store.queues())


@pytest.mark.no_cover
@pytest.mark.parametrize("due", [True, False], ids=["scheduled", "delivered"])
def test_queues_that_wait_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, due: bool
) -> None:
    """A second of a store where many queues have something scheduled takes as many calls as one
    of a store with one such queue, and nothing is open."""
    monkeypatch.setattr("tailrace.queue.pump._QUIET_S", 0.0)
    costs = {}
    for count in (1, 40):
        place = tmp_path / str(count)
        with tailrace.open(place, upkeep=False, flush="none") as store:
            for number in range(count):
                queue = store.queue(f"q{number}")
                queue.publish(b"x", delay=86_400)
                if not due:
                    queue.publish(b"y", delay=0.001)
                    [later] = [each for each in queue.delayed() if each.value == b"x"]
                    queue.cancel(later)
        fs = FaultyFileSystem(OsFileSystem(), lambda call: None)
        threads = threading.active_count()
        with Store(place, fs=fs) as store:
            eventually(partial(asleep, store))
            eventually(partial(has_no_files, store))
            pump = store._pump
            assert pump is not None
            pump.stop()  # from here on, look by look
            assert threading.active_count() <= threads + 1  # who looks after the store
            pump._stopped = False
            pump._lock, pump.is_delivering = None, False
            pump._look(is_called=True)
            before = len(fs.calls)
            for _ in range(3):
                pump._look(is_called=False)
            costs[count] = len(fs.calls) - before
            pump._lock.close()  # type: ignore[attr-defined]
    assert costs[40] == costs[1]


def eventually(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_queue_that_sleeps_is_heard_by_others_than_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something far away, and then something sooner, from another process and from this one."""
    monkeypatch.setattr("tailrace.queue.pump._QUIET_S", 0.0)
    with tailrace.open(tmp_path) as store, another_process(tmp_path) as other:
        for number in range(3):
            store.queue(f"q{number}").publish(b"x", delay=86_400)
        eventually(lambda: asleep(store) or not is_delivering(store))
        for number in range(3):
            other.ask(f"store.queue('q{number}').publish(b'y', delay=1.5).offset")
        for number in range(3):
            store.queue(f"q{number}").publish(b"z", delay=1.6)
        for number in range(3):
            arrives(store.queue(f"q{number}"), 2)
            assert values_of(store.queue(f"q{number}")) == [b"y", b"z"]


def is_delivering(store: Store) -> bool:
    return store._pump is not None and store._pump.is_delivering


def test_who_is_killed_after_calling_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody rings for what it has appended, or calls again."""
    monkeypatch.setattr("tailrace.queue.pump._QUIET_S", 0.0)
    with tailrace.open(tmp_path) as store, tailrace.open(tmp_path, upkeep=False) as other:
        queue = store.queue("q")
        queue.publish(b"x", delay=86_400)
        eventually(lambda: asleep(store))
        delays = other.get("q").delays
        with (
            mock.patch.object(delays, "_wall_ms", side_effect=KeyboardInterrupt),
            contextlib.suppress(KeyboardInterrupt),
        ):
            other.get("q").publish(b"y", delay=0.2)
        arrives(queue)


def test_what_was_removed_and_made_anew_is_noticed(tmp_path: Path) -> None:
    """Whoever delivers has let go of a queue for which nothing is scheduled, and others remove its
    files, and begin again."""
    with tailrace.open(tmp_path / "data") as store:
        queue, count = store.queue("q"), 0
        while not count or queue.delays.exists:  # unless it was just being looked at
            count += 1
            assert count < 50, "its files are never removed"
            with tailrace.open(tmp_path / "data", upkeep=False) as other:
                other.queue("q").publish(b"x", delay=0.01)
                arrives(queue, count)
                queue.delays.fall_asleep(None)
        with tailrace.open(tmp_path / "data", upkeep=False) as other:
            other.queue("q").publish(b"y", delay=0.1)
            arrives(queue, count + 1)


_FORK = """
import json, os, sys, time, tailrace

def values(queue):
    return [message.value.decode() for message in queue.read()]

store = tailrace.open(sys.argv[1])
queue = store.queue("q")
queue.publish(b"parent", delay=0.2)
queue.delayed_count()
child = os.fork()
if not child:
    queue.publish(b"child", delay=0.2)
    limit = time.monotonic() + 30
    while len(values(queue)) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    store.close()
    os._exit(0)
os.waitpid(child, 0)
queue.publish(b"again", delay=0)
limit = time.monotonic() + 30
while len(values(queue)) < 3 and time.monotonic() < limit:
    time.sleep(0.01)
found = values(queue)
store.close()
print(json.dumps(found))
"""


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    assert run_python(_FORK, tmp_path / "data") == ["parent", "child", "again"]


def test_a_store_that_is_dropped_ends_its_thread(tmp_path: Path) -> None:
    store = tailrace.open(tmp_path / "data")
    pump = store._pump
    assert pump is not None
    thread = pump._thread
    del store, pump
    limit = time.monotonic() + WAIT
    while thread.is_alive():  # it may be at it just now, and then has the store
        assert time.monotonic() < limit
        gc.collect()
        thread.join(0.01)


def test_a_queue_that_rests_is_closed_cleanly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was delivered is made durable before its traces go, and the log may be closed."""
    with tailrace.open(tmp_path / "data", flush="async") as store:
        queue = store.queue("q")
        queue.publish(b"x", delay=0.001)
        until = time.monotonic() + WAIT
        while queue.delayed_count():
            assert time.monotonic() < until
            time.sleep(0.001)
        held = queue.delays.incoming
        while queue.is_open:
            queue.rest()
            assert time.monotonic() < until
        assert (queue.is_open, queue.delays.is_open) == (False, True)
        del held
    assert not caplog.messages
    assert not [*tmp_path.glob("data/queue/.tailrace/delayed/*/*")]
