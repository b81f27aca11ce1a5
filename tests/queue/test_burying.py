"""Dead letters are written when nobody has a turn or a lock: nobody is held up, whoever else comes
or deletes the queue meanwhile, and whatever fails."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tailrace import Closed, Full, LeaseLost, NotWritten, Queue, Store, TailraceError
from tailrace.queue import dead_letters
from tailrace.queue.base import LogQueue
from tailrace.testing import Call, Crash, Fail, SimulatedCrash, on
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, one, states, values

EXPIRED: dict[str, Any] = {"dlq": {"expired": True}}


def expire(queue: Queue, clock: ManualClock, count: int = 3) -> None:
    queue.publish_many(numbers(count), ttl=10)
    clock.advance(11)


@contextmanager
def while_burying(do: Callable[[], None]) -> Iterator[None]:
    """Once, before letters are written, by whomever."""
    bury, done = Store.bury, False

    def bury_after(*given: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            do()
        return bury(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "bury", bury_after)
        yield
    assert done


def succeeds(do: Callable[[], object]) -> None:
    """In another thread, which does not have to wait for this one."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001  the test shows it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT / 4)
    assert not thread.is_alive(), "it waits"
    assert errors == []


USES: dict[str, Callable[[Queue], object]] = {
    "groups": lambda queue: queue.groups(),
    "pending": lambda queue: queue.pending("w"),
    "peek": lambda queue: queue.peek("w"),
    "consumer": lambda queue: queue.consumer("w").receive(1),
    "purge": lambda queue: queue.purge(),
}


@pytest.mark.parametrize("use", USES)
def test_nobody_waits_for_who_writes_letters(store: Store, clock: ManualClock, use: str) -> None:
    queue = store.queue("q", **EXPIRED)
    consumer = queue.consumer("w")
    expire(queue, clock)
    with while_burying(lambda: succeeds(lambda: USES[use](queue))):
        assert consumer.receive(1) == []
    assert values(store.dead("q")) == numbers(3)
    assert states(queue) == {}


@pytest.mark.parametrize("prefetch", [1, 10])
def test_a_queue_that_is_deleted_when_letters_are_to_be_written(
    open_store: OpenStore, clock: ManualClock, prefetch: int
) -> None:
    queue, other = open_store().queue("q", **EXPIRED), open_store()
    consumer = queue.consumer("w", prefetch=prefetch)
    if prefetch > 1:
        queue.publish_many(numbers(3), ttl=10)
        one(consumer)
    expire(queue, clock)
    with while_burying(lambda: succeeds(lambda: other.delete("q"))), pytest.raises(Closed):
        consumer.receive(1, wait=WAIT)
    assert not queue.is_open


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_full_queue_that_is_deleted_when_letters_are_to_be_written(
    open_store: OpenStore, clock: ManualClock, is_elsewhere: bool
) -> None:
    """Whoever deletes it has the registry, in which the queue for the letters is to be made."""
    store = open_store()
    other = open_store() if is_elsewhere else store
    queue = store.queue("q", limits={"max_depth": 3}, **EXPIRED)
    queue.consumer("w").close()
    expire(queue, clock)
    with while_burying(lambda: succeeds(lambda: other.delete("q"))), pytest.raises(Closed):
        queue.publish(b"new")
    assert not queue.is_open


def test_a_full_queue_has_room_when_letters_are_written(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", limits={"max_depth": 3}, **EXPIRED)
    consumer = queue.consumer("w")
    expire(queue, clock)
    queue.publish(b"new")
    assert values(store.dead("q")) == numbers(3)
    assert values(consumer.receive(9)) == [b"new"]


def test_who_finds_with_the_lock_that_it_was_deleted_lets_go_without(
    open_store: OpenStore,
) -> None:
    queue, other = open_store().queue("q"), open_store()
    queue.publish_many(numbers(3))
    group, ended = queue.group("w"), list[str]()
    found, go_on = threading.Event(), threading.Event()

    def have_the_turn() -> None:
        with group._turn:
            found.set()
            go_on.wait(WAIT)

    def look() -> None:
        try:
            queue.groups()
        except Closed:
            ended.append("closed")

    threads = [threading.Thread(target=each, daemon=True) for each in (have_the_turn, look)]
    threads[0].start()
    assert found.wait(WAIT)
    other.delete("q")
    threads[1].start()
    threads[1].join(0.2)  # somebody lets go of the group, and waits for its turn
    try:
        assert queue._lock.acquire(timeout=WAIT / 4)
        queue._lock.release()
    finally:
        go_on.set()
        for thread in threads:
            thread.join(WAIT)
    assert ended == ["closed"]
    until = time.monotonic() + WAIT
    while queue.is_open and time.monotonic() < until:
        time.sleep(0.001)
    assert (group.closed, queue.is_open) == (True, False)


def test_nobody_asks_for_settings_in_a_turn(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does may find that the queue was deleted, and let go of it."""
    options: dict[str, Any] = {"limits": {"max_depth": 20, "on_full": "drop_oldest"}}
    queue = store.queue("q", retry={"max_retries": 1, "initial_backoff": 0}, **options, **EXPIRED)
    consumers = [
        queue.consumer("w", prefetch=4),
        queue.consumer("f", filter="a/#"),
        queue.consumer("k", key_order=True),
    ]
    read: Callable[[LogQueue], Any] = vars(LogQueue)["settings"].fget
    asked = 0

    def ask(self: Queue) -> Any:
        nonlocal asked
        asked += 1
        for group in self._groups.values():
            assert not group._mutex._is_owned()  # type: ignore[attr-defined]
        return read(self)

    monkeypatch.setattr(LogQueue, "settings", property(ask))
    for number in range(12):
        queue.publish_many([("k", b"x"), ("l", b"y")], routing_key="a/b", ttl=10)
        queue.publish(b"z", routing_key="c", ttl=60)
        for consumer in consumers:
            for message in consumer.receive(3):
                message.extend()
                settle = (message.ack, message.nack, message.reject, message.release)
                settle[number % 4]()
        clock.advance(6)
    queue.peek("w", 9)
    queue.groups()
    queue.drop_segment()
    assert asked > 100
    assert len(store.dead("q")) > 3


def test_many_letters_are_written_with_few_waits_for_the_disk(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", **EXPIRED)
    consumer = queue.consumer("w")
    expire(queue, machine.clock, 200)
    syncs = 0

    def count(call: Call) -> None:
        nonlocal syncs
        syncs += call.op == "sync"

    fs.plan = count
    assert consumer.receive(1) == []
    assert syncs < 20
    assert values(store.dead("q")) == numbers(200)
    assert states(queue) == {}


@pytest.mark.parametrize("word", ["reject", "nack"])
def test_many_that_die_at_once_are_written_with_few_waits_for_the_disk(
    machine: Machine, word: str
) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", retry={"max_retries": 0})
    queue.publish_many(numbers(200))
    consumer = queue.consumer("w")
    messages = consumer.receive(200)
    syncs = 0

    def count(call: Call) -> None:
        nonlocal syncs
        syncs += call.op == "sync"

    fs.plan = count
    getattr(consumer, word)(messages)
    fs.plan = None
    assert syncs < 20
    assert values(store.dead("q")) == numbers(200)
    assert states(queue) == {}


@pytest.mark.parametrize("size", ["many", "large"])
def test_not_too_many_are_written_together(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """When some are there they are settled, before the next ones are written."""
    queue = store.queue("q", flush="async", retry={"max_retries": 0})
    count = 1200 if size == "many" else 10
    queue.publish_many([b"x" * 30] * count)
    if size == "large":
        monkeypatch.setattr(dead_letters, "_BYTES_AT_ONCE", 100)
    bury, found = Store.bury, list[tuple[int, int]]()

    def note(self: Store, settings: Any, letters: Any, *given: Any) -> Any:
        found.append((len(letters), len(states(queue))))
        return bury(self, settings, letters, *given)

    monkeypatch.setattr(Store, "bury", note)
    consumer = queue.consumer("w")
    consumer.reject(consumer.receive(count))
    together = [512, 512, 176] if size == "many" else [4, 4, 2]
    left = [sum(together[n:]) for n in range(3)]
    assert found == list(zip(together, left, strict=True))
    assert len(store.dead("q")) == count


@contextmanager
def refusing(*refused: int) -> Iterator[None]:
    """There are no dead letters of the messages at these offsets."""
    write = dead_letters.dead_letter

    def fail(message: Any, *given: Any) -> Any:
        if message.offset in refused:
            raise TypeError("no such letter")
        return write(message, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead_letters, "dead_letter", fail)
        yield


@pytest.mark.parametrize("word", ["reject", "nack"])
def test_of_many_that_die_at_once_some_cannot_be_written(store: Store, word: str) -> None:
    queue = store.queue("q", retry={"max_retries": 0})
    queue.publish_many(numbers(5))
    consumer = queue.consumer("w")
    messages = consumer.receive(5)
    with refusing(1, 2), pytest.raises(TypeError, match="no such letter") as caught:
        getattr(consumer, word)(messages)
    assert caught.value.__notes__ == [
        "2 of 5 messages did not become dead letters, and are given back to the group: q:1, q:2"
    ]
    assert [message.settled is None for message in messages] == [False, True, True, False, False]
    assert values(store.dead("q")) == [b"0", b"3", b"4"]
    assert {offset: state for offset, (state, _) in states(queue).items()} == {
        1: "waiting",
        2: "waiting",
    }
    assert consumer.receive(9) == []  # they had been tried often enough
    assert values(store.dead("q")) == [b"0", b"3", b"4", b"1", b"2"]
    assert states(queue) == {}


def test_a_nack_of_many_is_one_step_for_those_that_die_and_those_that_do_not(
    store: Store,
) -> None:
    queue = store.queue("q", retry={"max_retries": 1, "initial_backoff": 0})
    queue.publish_many(numbers(4))
    consumer = queue.consumer("w")
    consumer.nack(consumer.receive(2))
    consumer.release(consumer.receive(4))
    messages = consumer.receive(4)
    assert [message.delivery_count for message in messages] == [2, 2, 1, 1]
    messages[1].release()
    messages[2].release()
    with pytest.raises(LeaseLost, match=r"q:1 \(and 1 more\) cannot be nacked") as caught:
        consumer.nack(messages, error="why")
    assert caught.value.lost == ["q:1", "q:2"]
    [letter] = store.dead("q")
    assert (letter.value, letter.headers["_dlq_reason"]) == (b"0", b"delivered 2 times: why")
    assert [(m.value, m.delivery_count) for m in consumer.receive(9)] == [
        (b"1", 2),
        (b"2", 1),
        (b"3", 2),
    ]


def test_a_letter_that_cannot_be_written_does_not_hide_that_others_were_lost(store: Store) -> None:
    queue = store.queue("q", retry={"max_retries": 0})
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    messages = consumer.receive(3)
    messages[1].ack()
    with refusing(0), pytest.raises(TypeError, match="no such letter") as caught:
        consumer.nack(messages)
    assert caught.value.__notes__ == [
        "1 of 2 messages did not become dead letters, and are given back to the group: q:0",
        "q:1 cannot be nacked: it was acked before",
    ]
    assert values(store.dead("q")) == [b"2"]


def test_who_is_interrupted_while_burying_leaves_the_rest_to_the_next_one(
    store: Store, clock: ManualClock
) -> None:
    """They might be delivered, and be among the dead letters."""
    queue = store.queue("q", flush="async")
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    append, count = Queue.append_accepted, 0

    def interrupt(self: Queue, *given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return append(self, *given)

    messages = consumer.receive(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "append_accepted", interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.reject(messages, "bad")
    assert {state for state, _ in states(queue).values()} == {"dying"}
    assert consumer.receive(9) == []
    clock.advance(31)
    assert consumer.receive(9) == []
    assert values(store.dead("q")) == numbers(3)
    assert states(queue) == {}


@pytest.mark.parametrize("way", ["expired", "kept"])
def test_a_letter_that_cannot_be_written_holds_up_no_other(
    store: Store,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    way: str,
) -> None:
    queue = store.queue("q", retry={"max_retries": 0}, visibility_timeout="1s", **EXPIRED)
    consumer = queue.consumer("w")
    if way == "kept":
        queue.publish_many(numbers(4))
        consumer.receive(4)
        clock.advance(2)
    else:
        expire(queue, clock, 4)
    with refusing(1, 2):
        assert consumer.receive(9) == []
        assert values(store.dead("q")) == [b"0", b"3"]
        assert "q:1 cannot become a dead letter: no such letter (and 1 more)" in caplog.text
        assert {offset: state for offset, (state, _) in states(queue).items()} == {
            1: "dying",
            2: "dying",
        }
    clock.advance(31)
    assert consumer.receive(9) == []
    assert values(store.dead("q")) == [b"0", b"3", b"1", b"2"]
    assert states(queue) == {}


def test_what_was_expired_is_not_counted_as_delivered(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", **EXPIRED)
    expire(queue, clock)
    queue.publish(b"x")
    message = one(queue.consumer("w"))
    assert (message.delivery_count, states(queue)) == (1, {3: ("leased", 1)})
    message.ack()
    state = queue.group("w").state
    assert (state.delivered, state.dead, state.acked) == (1, 3, 1)


# --- no queue for the letters -------------------------------------------------------------------


def test_who_receives_has_nothing_to_do_with_the_queue_for_the_letters(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = store.queue("q", **EXPIRED)
    consumer = queue.consumer("w")
    queue.publish(b"healthy")

    def refuse(*given: object) -> None:
        raise NotWritten("there is no such queue")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_dead_letter_queue", refuse)
        one(consumer).ack()
        assert caplog.text == ""
        expire(queue, clock, 2)
        queue.publish(b"next")
        assert drain(consumer) == [b"next"]
        assert "q:1 cannot become a dead letter: there is no such queue (and 1" in caplog.text
    clock.advance(31)
    assert drain(consumer) == []
    assert values(store.dead("q")) == numbers(2)


@pytest.mark.parametrize("word", ["reject", "nack"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_queue_for_the_letters_that_cannot_be_made(
    machine: Machine, word: str, code: int
) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", retry={"max_retries": 0}, **EXPIRED)
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    fs.plan = on("pwrite", Fail(code), path="*queues.json*")
    bad, good = consumer.receive(2)
    with pytest.raises((NotWritten, Full), match=r"queues\.json"):
        getattr(bad, word)()
    assert fs.hits
    good.ack()
    fs.plan = None
    assert bad.settled is None
    assert values(consumer.receive(2)) == [b"2"]  # it had been tried often enough
    assert values(store.dead("q")) == [b"0"]


# --- whoever writes them dies -------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("way", ["receive", "prefetch", "publish", "reject", "nack"])
def test_whoever_dies_while_burying_leaves_each_letter_once(way: str) -> None:
    """At each of its calls that change a file, in a run of its own."""
    nth, has_died = 0, True
    while has_died:
        with Machine() as machine:
            with machine.open() as store:
                queue = store.queue("q", limits={"max_depth": 5}, **EXPIRED)
                queue.publish_many(numbers(3), ttl=10)
                queue.consumer("w").close()
            has_died = die_while_burying(machine, way, nth)
            machine.clock.advance(60)
            with machine.open() as store:
                queue = store.queue("q")
                consumer = queue.consumer("w")
                assert set(drain(consumer)) <= {b"4"}
                assert sorted(map(str, values(store.dead("q")))) == list(map(str, numbers(3)))
                assert states(queue) == {}
        nth += 1
    assert nth > 10


def die_while_burying(machine: Machine, way: str, nth: int) -> bool:
    store, fs = machine.open_faulty()
    queue = store.queue("q", retry={"max_retries": 0})
    consumer = queue.consumer("w", prefetch=5 if way == "prefetch" else 1)
    messages = []
    if way == "prefetch":
        one(consumer).release()
    elif way in ("reject", "nack"):
        messages = consumer.receive(3)
    count = 0

    def crash(call: Call) -> Crash | None:
        nonlocal count
        count += call.op in ("pwrite", "sync", "rename", "sync_dir")
        return Crash() if count > nth else None

    machine.clock.advance(11)
    fs.plan = crash
    try:
        if way == "publish":
            queue.publish_many([b"4", b"4", b"4"])
        elif messages:
            getattr(consumer, way)(messages)
        else:
            assert consumer.receive(1) == []
    except SimulatedCrash:
        machine.kill()
        return True
    fs.plan = None
    with suppress(TailraceError):
        store.close()
    return False
