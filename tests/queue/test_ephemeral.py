"""Ephemeral queues: how long they stay, and how one becomes durable."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import ConfigError, Full, InvalidName, OutcomeUnknown, Queue, Store
from tailrace.queue.ephemeral import Attendance, Sweeper
from tailrace.testing import Fail, on
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, drain, numbers, one, values

# --- how long they stay -----------------------------------------------------------------------


def names(store: Store) -> list[str]:
    return [queue.name for queue in store.queues()]


def long_ago(store: Store, name: str) -> None:
    """Whoever came, came an hour ago."""
    path = os.path.join(store.layout.queue(name), ".tailrace", "attended")
    then = time.time() - 3600
    os.utime(path, (then, then))


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "the last of two"])
def test_the_grace_begins_when_it_is_seen_that_the_last_consumer_was_killed(
    store: Store, clock: ManualClock, tmp_path: Path, others: int
) -> None:
    store.queue("e", ephemeral=True, expires_after="10s").publish(b"kept")
    with another_process(tmp_path / "data") as other:
        for _ in range(others):
            left = store.consumer("e", "w")
            other.ask("(c := store.queue('e').consumer('w'))")
            left.close()
        other.ask("(c := store.queue('e').consumer('w'))")
        long_ago(store, "e")
        clock.set_wall(time.time_ns() // 1_000_000)
        store._sweep()
        assert names(store) == ["e"]
    store._sweep()
    assert names(store) == ["e"]  # from here on
    clock.advance(9)
    store._sweep()
    assert names(store) == ["e"]
    clock.advance(2)
    store._sweep()
    assert names(store) == []


def test_who_leaves_says_so(store: Store, clock: ManualClock) -> None:
    store.queue("e", ephemeral=True, expires_after="10s").publish(b"x")
    consumer = store.consumer("e", "w")
    path = Path(store.layout.queue("e"), ".tailrace", "attended")
    assert path.read_bytes() == b"here\n"
    long_ago(store, "e")
    consumer.close()
    assert path.read_bytes() == b"left\n"
    now_ms = time.time_ns() // 1_000_000
    idle_s = Attendance.idle_s(store.fs, store.layout.queue("e"), now_ms + 5000)
    assert idle_s is not None
    assert 4 < idle_s < 60  # not since it came


def test_a_sweeper_is_woken_for_what_goes_sooner() -> None:
    swept = threading.Semaphore(0)

    def sweep() -> float:
        swept.release()
        return 3600.0

    sweeper = Sweeper(sweep)
    try:
        sweeper.start()
        assert swept.acquire(timeout=WAIT)
        sweeper.start(1800.0)
        assert not swept.acquire(timeout=0.1)
        sweeper.start(0.01)
        assert swept.acquire(timeout=WAIT)
        assert not swept.acquire(timeout=0.1)
    finally:
        sweeper.stop()
    sweeper.start()
    assert not swept.acquire(timeout=0.1)


def test_a_sweeper_that_is_called_while_it_sweeps_for_the_last_time() -> None:
    count, done = [0], threading.Event()

    def sweep() -> float | None:
        count[0] += 1
        if count[0] == 1:
            sweeper.start(0.0)
        else:
            done.set()
        return None

    sweeper = Sweeper(sweep)
    sweeper.start()
    assert done.wait(WAIT)
    sweeper.stop()
    assert count == [2]


@pytest.mark.parametrize("how", ["made", "changed"])
def test_a_short_grace_beside_a_long_one(tmp_path: Path, how: str) -> None:
    with Store(tmp_path) as store:
        store.publish("long", b"x")
        if how == "made":
            store.queue("short", ephemeral=True, expires_after="100ms").publish(b"x")
        else:
            store.queue("short", ephemeral=True).publish(b"x")
            store.configure("short", expires_after="100ms")
        deadline = time.monotonic() + WAIT
        while "short" in names(store) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert names(store) == ["long"]


def test_what_is_to_come_keeps_it(open_store: OpenStore, clock: ManualClock) -> None:
    """And when it is there, a consumer has time to come."""
    clock.set_wall(time.time_ns() // 1_000_000)
    with open_store(expires_after="10s") as store:
        store.publish("nobody/there", b"x", delay="1h")
        [name] = names(store)
        clock.advance(3_599)
        store._sweep()
        assert names(store) == [name]
        long_ago(store, name)
        store._sweep()
        clock.set_wall(time.time_ns() // 1_000_000 + 3_601_000)
        assert store.deliver_due() == 1
        clock.set_wall(time.time_ns() // 1_000_000 + 9_000)  # since it was last seen to
        store._sweep()
        assert names(store) == [name]
        clock.advance(2)
        store._sweep()
        assert names(store) == []


def test_what_was_cancelled_keeps_nothing(open_store: OpenStore, clock: ManualClock) -> None:
    with open_store(expires_after="10s") as store:
        published = store.publish("nobody/there", b"x", delay="1h")
        [name] = names(store)
        assert store.get(name).cancel(published.delay_ids[name])
        clock.set_wall(time.time_ns() // 1_000_000 + 11_000)
        store._sweep()
        assert names(store) == []


# --- a name that is taken ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "name", "topics", "kind"),
    [
        ("orders", "orders", None, "queue"),
        ("orders", "orders", None, "stream"),
        ("a/b", "a/b", [], "queue"),
    ],
)
def test_a_queue_that_is_not_bound_to_a_topic_does_not_get_it(
    store: Store, topic: str, name: str, topics: list[str] | None, kind: str
) -> None:
    queue = getattr(store, kind)(name, topics=topics)
    source = store.queue("source")
    source.publish(b"from")
    for publish in (
        lambda: store.publish(topic, b"x"),
        lambda: store.publish(topic, b"x", delay=1),
        lambda: one(source.consumer("w")).ack(publish=[(topic, b"x")]),
    ):
        with pytest.raises(InvalidName, match=f"no queue is bound to the topic '.*{topic[-2:]}'"):
            publish()
    assert (len(queue), queue.delayed_count()) == (0, 0)
    assert len(source.pending("w")) == 1  # it was not acked
    queue.configure(topics=[topic])
    assert list(store.publish(topic, b"x")) == [name]
    assert values(queue.read()) == [b"x"]


REFUSED: list[tuple[type[Exception], Callable[[Store], object]]] = [
    (TypeError, lambda s: s.publish("new", 3)),  # type: ignore[arg-type]
    (TypeError, lambda s: s.publish("new", b"x", key=3)),  # type: ignore[arg-type]
    (ConfigError, lambda s: s.publish("new", b"x", ttl=-1)),
    (ValueError, lambda s: s.publish("$queue/new", b"x", headers={"_a": "b"})),
    (TypeError, lambda s: s.publish("new", b"x", headers={"a": 5})),
    (TypeError, lambda s: s.publish("new", 3, delay=1)),  # type: ignore[arg-type]
    (TypeError, lambda s: s.publish("new", 3, producer="p", sequence=1)),  # type: ignore[arg-type]
    (ValueError, lambda s: s.publish("new", b"x", producer="", sequence=1)),
    (Full, lambda s: s.publish("new", bytes(1001))),
    (Full, lambda s: s.publish("new", b"x", key=bytes(3000))),
    (Full, lambda s: s.publish("new", b"x", key=bytes(3000), delay=1)),
    (InvalidName, lambda s: s.consumer("new", "")),
    (InvalidName, lambda s: s.consumer("new", "@x")),
    (InvalidName, lambda s: s.consumer("new", "g", filter="#/x")),
    (ConfigError, lambda s: s.consumer("new", "g", prefetch=0)),
    (ConfigError, lambda s: s.consumer("new", "g", visibility_timeout="soon")),
    (TypeError, lambda s: s.consumer("new", "g", wrong=1)),
    (TypeError, lambda s: s.consumer("new", "g", start="first")),
]


@pytest.mark.parametrize(("error", "call"), REFUSED)
def test_what_is_refused_makes_no_queue(
    tmp_path: Path, error: type[Exception], call: Callable[[Store], object]
) -> None:
    options: dict[str, Any] = {"limits": {"max_message_size": 1000}, "max_batch_bytes": 2000}
    with tailrace.open(tmp_path, flush="none", compression="none", **options) as store:
        with pytest.raises(error):
            call(store)
        assert names(store) == []
        store.stream("new")


def test_an_ack_that_is_refused_makes_no_queue(store: Store) -> None:
    source = store.queue("source")
    full = store.queue("full", limits={"max_depth": 1})
    full.publish(b"x")
    source.publish(b"1")
    message = one(source.consumer("w"))
    for wrong, error in (((full, b"y"), Full), (("other", 3), TypeError)):
        with pytest.raises(error):
            message.ack(publish=[("new", b"x"), wrong])
        assert names(store) == ["full", "source"]
    message.ack(publish=[("new", b"x"), ("new", b"y"), ("$queue/new/a", b"z")])
    assert names(store) == ["full", "new", "source"]
    assert values(store.get("new").read()) == [b"x", b"y", b"z"]


def test_a_full_disk_makes_no_queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise Full("the disk")

    monkeypatch.setattr(store.disk, "check", check)
    for options in ({}, {"delay": 1}, {"producer": "p", "sequence": 1}):
        with pytest.raises(Full):
            store.publish("new", b"x", **options)
    assert names(store) == []


@pytest.mark.parametrize("wrong", [{"start": "bad"}, {"start": 5, "timestamp": 5}])
def test_a_start_that_is_refused_makes_no_group(store: Store, wrong: dict[str, Any]) -> None:
    stream = store.stream("s")
    with pytest.raises(ValueError, match="start"):
        stream.consumer("g", **wrong)
    assert stream.group_ids() == []


def test_an_address_reaches_its_queue_whatever_that_is_bound_to(store: Store) -> None:
    queue = store.queue("bound", topics=["shop/#"])
    assert list(store.publish("$queue/bound/x", b"x")) == ["bound"]
    assert [(m.value, m.routing_key) for m in queue.read()] == [(b"x", "x")]


def test_two_processes_that_make_the_same_queue(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the making somebody else is faster."""
    store, other = open_store(), open_store()
    change = store.registry.change

    def late(edit: Any, *then: Any) -> Any:
        monkeypatch.undo()
        other.publish("some/topic", b"1")
        return change(edit, *then)

    monkeypatch.setattr(store.registry, "change", late)
    assert list(store.publish("some/topic", b"2")) == ["some/topic"]
    assert values(store.get("some/topic").read()) == [b"1", b"2"]


# --- one that becomes durable -----------------------------------------------------------------


def test_asking_for_it_makes_it_durable(open_store: OpenStore) -> None:
    with open_store() as store:
        consumer = store.consumer("jobs", "w")
        store.publish("$queue/jobs/a", b"0")
        store.publish("$queue/jobs/a", b"1")
        consumer.receive()[0].ack()
        incarnation = store.get("jobs").incarnation
        queue = store.queue("jobs", visibility_timeout="7s")
        assert not queue.settings.ephemeral
        assert (queue.settings.flush, queue.log.flush_mode) == ("sync", "sync")
        assert (queue.incarnation, queue.settings.visibility_timeout_ms) == (incarnation, 7000)
        assert store.queue("jobs").settings is queue.settings
        queue.publish(b"2")
        assert values(consumer.receive(9)) == [b"1", b"2"]  # who was there goes on
    with open_store() as store:
        queue = store.queue("jobs")
        assert drain(queue.consumer("w")) == [b"1", b"2"]
        assert queue.log._observer.flush_mode == "sync"  # nobody had it open


def test_it_stays_bound_to_its_topic(store: Store) -> None:
    store.publish("some/topic", b"0")
    queue = store.queue("some/topic")
    assert queue.settings.topics == ("$queue/some/topic/#", "some/topic")
    store.publish("some/topic", b"1")
    assert drain(queue.consumer("w")) == [b"0", b"1"]
    store.publish("other", b"0")
    assert store.queue("other", topics=["x"]).settings.topics == ("x",)


def test_what_it_becomes_is_up_to_who_asks(open_store: OpenStore) -> None:
    store = open_store(flush="async", visibility_timeout="9s")
    for name in "abcd":
        store.publish(name, b"x")
    assert store.queue("a").log.flush_mode == "async"
    assert store.queue("b", flush="sync").log.flush_mode == "sync"
    assert store.queue("c", flush="none").log.flush_mode == "none"
    assert store.queue("c").settings.visibility_timeout_ms == 9000
    assert not store.queue("c").settings.ephemeral
    assert store.queue("d", ephemeral=True).settings.ephemeral
    assert store.queue("d").settings.ephemeral  # it was asked for so
    with pytest.raises(ConfigError, match="cannot become durable"):
        store.queue("d", ephemeral=False)


def test_it_cannot_become_a_stream(store: Store) -> None:
    store.publish("$queue/jobs", b"x")
    with pytest.raises(ConfigError, match="jobs is a classic queue, because somebody published"):
        store.stream("jobs")
    assert store.get("jobs").settings.ephemeral


def test_to_configure_or_to_use_it_is_not_to_ask_for_it(store: Store) -> None:
    store.publish("jobs", b"x")
    store.configure("jobs", visibility_timeout="7s")
    store.consumer("jobs", "w").close()
    assert store.get("jobs").settings.ephemeral
    assert store.get("jobs").settings.implied


def test_dead_letters_are_kept_though_somebody_waits_for_them(open_store: OpenStore) -> None:
    with open_store() as store:
        watcher = store.consumer("$dlq/jobs", "alarm")
        queue = store.queue("jobs")
        queue.publish(b"x")
        one(queue.consumer("w")).reject("no")
        assert values(watcher.receive()) == [b"x"]
    with open_store() as store:
        assert values(store.dead("jobs")) == [b"x"]


def test_another_process_that_has_it_open_goes_on_and_waits_for_the_disk(
    store: Store, tmp_path: Path
) -> None:
    with another_process(tmp_path / "data") as other:
        other.ask("(c := store.consumer('jobs', 'w'))")
        other.ask("store.publish('$queue/jobs', b'0')")
        assert other.ask("store.get('jobs').log.flush_mode") == "'none'"
        queue = store.queue("jobs")
        queue.publish(b"1")
        assert other.ask("[m.value for m in c.receive(9)]") == "[b'0', b'1']"
        assert other.ask("store.get('jobs').log.flush_mode") == "'sync'"
        assert other.ask("store.get('jobs').group('w').files.is_sync") == "True"
        assert other.ask("store.get('jobs').publish(b'2').done") == "True"
        assert other.ask("store.get('jobs').log.durable_offset") == "3"
        assert other.ask("[m.ack() for m in c.receive(9)]") == "[None]"
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(60)
    assert values(queue.consumer("w").receive(9)) == [b"0"]  # with which somebody was killed


def use_it(store: Store, count: int, consumer: Any) -> tuple[list[bytes], list[bytes | None]]:
    """Publish and ack, while it is ephemeral; what is left, and what is settled."""
    done: list[bytes | None] = []
    for number in range(count):
        store.publish("$queue/jobs", b"e%d" % number, headers={"n": str(number)})
        if number % 2:
            message = one(consumer)
            message.ack()
            done.append(message.value or b"")
    return [b"e%d" % n for n in range(count) if b"e%d" % n not in done], done


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("where", ["here", "elsewhere", "both", "nowhere"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_is_lost_in_a_power_cut_after_it_became_durable(
    machine: Machine, where: str, flush: str, seed: int
) -> None:
    """Whoever had it open before: this process, another, both, or one that has closed it."""
    store, other = machine.open(), machine.open()
    user, asker = (store, other) if where in ("elsewhere", "nowhere") else (store, store)
    options = {"segment_bytes": 300} if seed % 2 else {}
    consumer = user.consumer("jobs", "w")
    user.configure("jobs", compact_after=3, **options)
    left, done = use_it(user, 9, consumer)
    if where == "both":
        other.get("jobs").publish(b"o")
        left.append(b"o")
        other.get("jobs").group("w").progress()
    if where == "nowhere":
        store.close()
    queue = asker.queue("jobs", flush=flush, compact_after=3)
    if where == "nowhere":
        store, consumer = machine.open(), queue.consumer("w")
    if flush == "sync":
        machine_left = list(left)
        for number, each in enumerate((store, other) * 2):
            value = b"d%d" % number
            each.get("jobs").publish(value)
            machine_left.append(value)
        first, second = consumer.receive(2)
        first.ack()
        second.ack()
        left = machine_left[2:]
        done += machine_left[:2]
    machine.power_cut(seed)
    with machine.open() as store:
        again = store.get("jobs")
        assert isinstance(again, Queue)
        assert again.incarnation == queue.incarnation
        assert not again.settings.ephemeral
        assert values(again.read()).count(None) == 0
        assert sorted(drain(again.consumer("w"))) == sorted(left)  # type: ignore[type-var]
        assert again.log._observer.flush_mode == flush


def test_delayed_messages_become_durable_too(machine: Machine) -> None:
    store = machine.open()
    store.consumer("jobs", "w")
    store.publish("$queue/jobs", b"later", delay="1h")
    queue = store.queue("jobs")
    queue.publish(b"even later", delay="2h")
    machine.power_cut(1)
    with machine.open() as store:
        assert [each.value for each in store.get("jobs").delayed()] == [b"later", b"even later"]


def test_a_process_that_dies_before_it_is_all_on_the_disk(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finds what was never synced, and makes up for it."""
    store = machine.open()
    consumer = store.consumer("jobs", "w")
    store.configure("jobs", compact_after=2)
    left, _ = use_it(store, 8, consumer)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_make_durable", lambda _queue: None)
        store.registry.change(
            lambda queues: queues.update(jobs=queues["jobs"].declared("classic", {}, {}))
        )
    machine.kill()
    store = machine.open()
    queue = store.queue("jobs")
    queue.publish(b"d")
    machine.clock.advance(60)
    message = one(queue.consumer("w"))
    message.ack()
    machine.power_cut(3)
    with machine.open() as store:
        assert drain(store.queue("jobs").consumer("w")) == [*left[1:], b"d"]
        assert message.value == left[0]


def test_a_flush_that_fails_while_it_becomes_durable(machine: Machine) -> None:
    """Whoever asks for it is told; what nobody had promised to keep may be gone."""
    store, fs = machine.open_faulty()
    store.publish("$queue/jobs", b"x")
    fs.plan = on("sync", Fail(errno.EIO), path="*.seg")
    with pytest.raises(OutcomeUnknown):
        store.queue("jobs")
    assert fs.hits
    fs.plan = None
    machine.kill()
    with machine.open() as store:
        queue = store.queue("jobs")
        queue.publish(b"y")
        assert values(queue.read())[-1] == b"y"
        assert queue.log.flush_mode == "sync"


def test_numbers_of_many_groups(store: Store) -> None:
    """Each group is on the disk, also one that nobody has open."""
    for group in "abc":
        store.consumer("jobs", group).close()
    queue = store.get("jobs")
    queue.publish_many(numbers(3))
    durable = store.queue("jobs")
    for group in "abc":
        assert not durable.group(group)._journal.is_unsynced
        assert drain(durable.consumer(group)) == numbers(3)
