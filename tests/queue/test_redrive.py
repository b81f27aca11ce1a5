"""Bringing dead letters back: which ones, beside others who do so, and of queues that are gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tailrace import ConfigError, Consumer, Full, InvalidName, Message, Queue, Receipt, Store
from tailrace.queue import dead_letters
from tailrace.queue.caretaker import Caretaker
from tailrace.queue.dead_letters import GROUP
from tailrace.queue.redriving import Redriving
from tailrace.testing import Call, Crash, SimulatedCrash
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import FAST, drain, numbers, on_machine, one, states, values

SHARED: dict[str, Any] = {**FAST, "dlq": {"topic": "letters"}}


def bury(queue: Queue, *messages: bytes, group: str = "w") -> None:
    """Dead letters of these messages."""
    queue.publish_many(messages)
    with queue.consumer(group) as consumer:
        consumer.reject(consumer.receive(len(messages)), "bad")


def test_it_gets_the_time_to_live_of_its_queue_anew() -> None:
    with on_machine(limits={"message_ttl": "1h"}) as (machine, store, queue):
        bury(queue, b"x")
        machine.clock.advance(1800)
        assert store.redrive("q") == 1
        back = one(queue.consumer("w"))
        assert back.expires_at == machine.clock.wall_ms() + 3_600_000
        machine.clock.advance(3601)
        back.release()
        assert drain(queue.consumer("w")) == []


def test_letters_of_another_queue_that_somebody_has_hold_nothing_up(store: Store) -> None:
    a, b = store.queue("a", **SHARED), store.queue("b", **SHARED)
    bury(b, b"1", b"2")
    bury(a, b"3")
    bury(b, b"4")
    letters = store.get("letters")
    assert isinstance(letters, Queue)
    with letters.consumer(GROUP) as somebody:
        held = somebody.receive(2)
        assert values(held) == [b"1", b"2"]
        assert store.redrive("a") == 1
        assert drain(a.consumer("w")) == [b"3"]
        assert store.redrive("b") == 1  # the two are left to whoever has them
        assert drain(b.consumer("w")) == [b"4"]
        somebody.ack(held)
    assert (store.dead("a"), store.dead("b")) == ([], [])


@pytest.mark.parametrize(
    ("topic", "binding"),
    [
        ("$queue/graves", "$queue/graves/#"),
        ("$queue/graves/of/q", "$queue/graves/#"),
        ("graves", "graves/#"),
    ],
)
def test_dead_letters_go_to_the_queue_that_is_addressed(
    store: Store, topic: str, binding: str
) -> None:
    queue = store.queue("q", **FAST, dlq={"topic": topic})
    bury(queue, b"x")
    assert sorted(each.name for each in store.queues()) == ["graves", "q"]
    graves = store.get("graves")
    assert graves.settings.topics == (binding,)
    assert [(letter.value, letter.topic) for letter in graves.read()] == [(b"x", topic)]
    assert [(letter.queue, letter.value) for letter in store.dead("q")] == [("graves", b"x")]
    assert queue.stats().dead == 1
    assert store.redrive("q") == 1
    assert drain(queue.consumer("w")) == [b"x"]
    assert (store.dead("q"), queue.stats().dead) == ([], 0)


def test_dead_letters_join_what_is_in_the_queue_that_is_addressed(store: Store) -> None:
    graves = store.queue("graves", topics=["other/#"])
    graves.publish(b"old")
    bury(store.queue("q", **FAST, dlq={"topic": "$queue/graves"}), b"x")
    assert values(graves.read()) == [b"old", b"x"]
    assert graves.settings.topics == ("other/#",)
    assert values(store.dead("q")) == [b"x"]


@pytest.mark.parametrize("topic", ["$queue/", "$queue/graves/$ack", "$queue/$ack/graves"])
def test_an_address_that_is_none_is_refused(store: Store, topic: str) -> None:
    with pytest.raises(ConfigError, match=r"^dlq\.topic: "):
        store.queue("q", dlq={"topic": topic})


def test_letters_from_before_they_went_elsewhere_are_found(store: Store) -> None:
    queue = store.queue("q", **FAST)
    bury(queue, b"1", b"2")
    queue.configure(dlq={"topic": "graves"})
    bury(queue, b"3")
    assert values(store.dead("q")) == [b"1", b"2", b"3"]
    assert values(store.dead("q", limit=1)) == [b"1"]
    assert (queue.stats().dead, store.stats(exact=True)["q"].dead) == (3, 3)
    with pytest.raises(ValueError, match=r"0 is .* both in '\$dlq/q' and in 'graves'"):
        store.redrive("q", offsets=[0])
    assert store.redrive("q", offsets=[1, 7]) == 1
    assert store.redrive("q", limit=1) == 1
    assert values(store.dead("q")) == [b"3"]
    assert store.redrive("q", offsets=[0]) == 1
    assert drain(queue.consumer("w")) == [b"2", b"1", b"3"]
    assert (store.dead("q"), queue.stats().dead) == ([], 0)


def test_a_stream_in_the_place_that_nobody_uses_holds_nothing_up(store: Store) -> None:
    store.stream("$dlq/q").publish(b"x")
    queue = store.queue("q", **FAST, dlq={"topic": "graves"})
    bury(queue, b"y")
    assert (values(store.dead("q")), queue.stats().dead, store.redrive("q")) == ([b"y"], 1, 1)


def test_redriving_two_queues_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is in the middle of it while the other does it."""
    queues = [store.queue(name, **SHARED) for name in "ab"]
    for number in range(30):
        bury(queues[number % 2], b"%d" % number)
    counts: dict[str, int] = {}
    revive, is_inside, goes_on = store._revive, threading.Event(), threading.Event()

    def slowly(message: Any, letters: Any, target: Any) -> Receipt:
        if target.name == "b":
            is_inside.set()
            assert goes_on.wait(WAIT)
        return revive(message, letters, target)

    monkeypatch.setattr(store, "_revive", slowly)
    thread = threading.Thread(target=lambda: counts.update(b=store.redrive("b")))
    thread.start()
    assert is_inside.wait(WAIT)
    try:
        counts["a"] = store.redrive("a")
    finally:
        goes_on.set()
        thread.join()
    assert counts == {"a": 15, "b": 15}
    assert drain(queues[0].consumer("w")) == [b"%d" % n for n in range(0, 30, 2)]
    assert drain(queues[1].consumer("w")) == [b"%d" % n for n in range(1, 30, 2)]


def test_two_who_redrive_the_same_queue_share_the_work(store: Store) -> None:
    queue = store.queue("q", **FAST)
    bury(queue, *numbers(300))
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(store.redrive("q"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 300
    assert sorted(drain(queue.consumer("w"))) == sorted(numbers(300))  # type: ignore[type-var]


def test_letters_that_are_skipped_are_not_met_again_however_long_it_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one takes longer than a lease, so whatever was claimed and not settled would be free."""
    with machine.open() as store:
        a, b = store.queue("a", **SHARED), store.queue("b", **SHARED)
        for number in range(4):
            bury(b, b"b%d" % number)
            bury(a, b"a%d" % number)
        revive = store._revive
        revived: list[bytes | None] = []

        def slowly(message: Any, letters: Any, target: Any) -> Receipt:
            revived.append(message.value)
            machine.clock.advance(31)
            return revive(message, letters, target)

        monkeypatch.setattr(store, "_revive", slowly)
        assert store.redrive("a") == 4
        assert revived == [b"a0", b"a1", b"a2", b"a3"]
        assert values(store.dead("b")) == [b"b0", b"b1", b"b2", b"b3"]
        letters = store.queue("letters")
        assert states(letters, GROUP) == dict.fromkeys((0, 2, 4, 6), ("free", 0))
        assert store.redrive("b") == 4


def test_a_lease_that_is_lost_meanwhile_is_counted_by_the_one_who_has_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.open() as store:
        queue = store.queue("q", **FAST)
        bury(queue, b"x")
        revive, inner = store._revive, [0]

        def interrupted(message: Any, letters: Any, target: Any) -> Receipt:
            if not inner[0]:
                machine.clock.advance(31)
                inner[0] = -1
                inner[0] = store.redrive("q")
            return revive(message, letters, target)

        monkeypatch.setattr(store, "_revive", interrupted)
        assert (store.redrive("q"), inner) == (0, [1])
        assert drain(queue.consumer("w")) == [b"x"]


def test_a_group_that_there_is_not_and_never_was(store: Store) -> None:
    queue = store.queue("q", **FAST)
    said = r"^'q' has no group 'wo', and no dead letters of one$"
    with pytest.raises(InvalidName, match=said):
        store.redrive("q", group="wo")  # there are none at all
    bury(queue, b"x")
    with pytest.raises(InvalidName, match=said):
        store.redrive("q", group="wo")
    assert values(store.dead("q")) == [b"x"]
    assert store.redrive("q", group="w") == 1


def test_a_group_is_named_by_text(store: Store) -> None:
    redrive: Any = store.redrive
    bury(store.queue("q", **SHARED), b"x")
    with pytest.raises(TypeError, match="group is text, not 5"):
        redrive("q", group=5)
    assert values(store.dead("q", 10**30)) == [b"x"]


@pytest.mark.parametrize(
    ("options", "comes"),
    [
        ({"limit": 10**30}, [b"0", b"2", b"4"]),
        ({"limit": 2}, [b"0", b"2"]),
        ({"limit": 0}, []),
        ({"group": "w"}, [b"0", b"2", b"4"]),
        ({"group": ""}, []),
        ({"offsets": [4]}, [b"4"]),
        ({"offsets": [4, 0], "limit": 1}, [b"0"]),
        ({"offsets": [1, 99]}, []),  # it is the other queue's
    ],
    ids=str,
)
def test_which_ones(store: Store, options: dict[str, Any], comes: Sequence[bytes]) -> None:
    queues = [store.queue(name, **SHARED) for name in "ab"]
    for number in range(6):
        bury(queues[number % 2], b"%d" % number)
    assert store.redrive("a", **options) == len(comes)
    assert drain(queues[0].consumer("w")) == comes
    left = [b"0", b"2", b"4"]
    assert values(store.dead("a")) == [value for value in left if value not in comes]
    assert values(store.dead("b")) == [b"1", b"3", b"5"]


def test_what_fails_in_the_middle_is_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", **FAST)
    bury(queue, *numbers(5))
    revive: Callable[..., Receipt] = store._revive

    def fail_at_two(message: Any, letters: Any, target: Any) -> Receipt:
        if message.value == b"2":
            raise OSError("no")
        return revive(message, letters, target)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_revive", fail_at_two)
        with pytest.raises(OSError, match="no"):
            store.redrive("q")
    assert values(store.dead("q")) == [b"2", b"3", b"4"]
    assert store.redrive("q") == 3
    assert drain(queue.consumer("w")) == numbers(5)


def test_many_are_brought_back_with_few_waits_for_the_disk(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q", **FAST)
    bury(queue, *numbers(200))
    syncs = 0

    def count(call: Call) -> None:
        nonlocal syncs
        syncs += call.op == "sync"

    fs.plan = count
    assert store.redrive("q") == 200
    fs.plan = None
    assert syncs < 20
    assert drain(queue.consumer("w")) == numbers(200)
    assert store.dead("q") == []


@pytest.mark.no_cover
@pytest.mark.parametrize("size", ["many", "large"])
def test_not_too_many_are_brought_back_together(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """When some are back they are settled, before the next ones come."""
    queue = store.queue("q", **FAST, flush="async")
    count = 1200 if size == "many" else 10
    bury(queue, *[b"x" * 30] * count)
    if size == "large":
        monkeypatch.setattr(dead_letters, "_BYTES_AT_ONCE", 100)
    told: list[int] = []
    bring_back = Redriving._bring_back

    def note(self: Redriving, claimed: list[Message], *given: Any) -> None:
        told.append(len(claimed))
        bring_back(self, claimed, *given)

    monkeypatch.setattr(Redriving, "_bring_back", note)
    assert store.redrive("q", limit=count - 1) == count - 1
    assert told == ([512, 512, 175] if size == "many" else [4, 4, 1])
    assert len(store.dead("q")) == 1


@pytest.mark.no_cover
def test_whoever_dies_while_bringing_them_back_leaves_each_message_once() -> None:
    """At each call that changes a file, in a run of its own: in the queue, or a dead letter, and in
    the end all are back."""
    nth, has_died = 0, True
    while has_died:
        with Machine() as machine:
            with machine.open() as store:
                bury(store.queue("q", **FAST), *numbers(3))
            store, fs = machine.open_faulty()
            count = 0

            def crash(call: Call, nth: int = nth) -> Crash | None:
                nonlocal count
                count += call.op in ("pwrite", "sync", "rename", "sync_dir")
                return Crash() if count > nth else None

            fs.plan, has_died = crash, False
            try:
                assert store.redrive("q") == 3
            except SimulatedCrash:
                has_died = True
                machine.kill()
            fs.plan = None
            if not has_died:
                store.close()
            machine.clock.advance(60)
            with machine.open() as store:
                store.redrive("q")
                back = drain(store.queue("q").consumer("w"))
                assert sorted(map(str, back)) == list(map(str, numbers(3)))
                assert store.dead("q") == []
        nth += 1
    assert nth > 5


def test_letters_are_claimed_by_their_offsets(store: Store, clock: ManualClock) -> None:
    """Nobody else is held up by that, and none is passed over."""
    queue = store.queue("q", **FAST)
    queue.publish_many(numbers(8))
    with queue.consumer("w") as one_of_them, queue.consumer("w") as other:
        held = one_of_them.receive(2)
        one_of_them.ack(held[:1])
        claimed = other.claim_at([0, 1, 3, 5])  # settled, somebody's, and two that nobody has
        assert [(m.offset, m.delivery_count) for m in claimed] == [(3, 1), (5, 1)]
        assert states(queue) == {
            1: ("leased", 1),
            2: ("free", 0),
            3: ("leased", 1),
            4: ("free", 0),
            5: ("leased", 1),
        }
        assert other.claim_at([3, 5]) == []
        clock.advance(2)
        claimed = other.claim_at([1, 2])
        assert [(m.offset, m.delivery_count) for m in claimed] == [(1, 2), (2, 1)]
        other.ack(claimed)
        assert values(one_of_them.receive(1)) == [b"3"]  # alone, as it was kept for too long


def test_letters_outlive_their_queue_and_come_back_to_the_next_of_its_name(store: Store) -> None:
    bury(store.queue("q", **FAST), b"old")
    store.delete("q")
    queue = store.queue("q", **FAST)
    bury(queue, b"new")
    assert values(store.dead("q")) == [b"old", b"new"]
    assert store.redrive("q") == 2
    assert drain(queue.consumer("w")) == [b"old", b"new"]
    bury(queue, b"x")
    store.delete("$dlq/q")  # who does not want them deletes them, too
    assert store.dead("q") == []


def test_a_letter_of_a_deleted_group_waits_for_a_group_of_its_name(store: Store) -> None:
    queue = store.queue("q", **FAST)
    bury(queue, b"x")
    queue.delete_group("w")
    assert drain(queue.consumer("other")) == [b"x"]
    assert store.redrive("q") == 0  # nobody would get it, and all others pass it by
    assert store.redrive("q", group="w") == 0
    assert values(store.dead("q")) == [b"x"]
    queue.purge()
    with queue.consumer("w") as consumer:
        assert store.redrive("q") == 1
        assert drain(consumer) == [b"x"]
    assert drain(queue.consumer("other")) == []
    assert store.dead("q") == []


def test_many_between_are_read_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [store.queue(name, **SHARED, flush="async") for name in "ab"]
    bury(queues[1], *numbers(40))
    bury(queues[0], b"last")
    monkeypatch.setattr("tailrace.queue.classic.SCAN_MOST", 7)
    assert store.redrive("a") == 1
    assert len(store.dead("b")) == 40


def test_numbers_that_are_none(store: Store) -> None:
    bury(store.queue("q", **FAST), b"x")
    with pytest.raises(ValueError, match="limit"):
        store.dead("q", limit=-1)
    with pytest.raises(ValueError, match="limit"):
        store.redrive("q", limit=-1)
    with pytest.raises(TypeError, match="offsets"):
        store.redrive("q", offsets=["0"])  # type: ignore[list-item]
    assert values(store.dead("q")) == [b"x"]


@pytest.mark.parametrize("on_full", ["raise", "block", "drop_oldest"])
def test_as_many_come_back_as_there_is_room_for(store: Store, on_full: str) -> None:
    queue = store.queue("q", **FAST, limits={"max_depth": 3, "on_full": on_full})
    bury(queue, b"1", b"2", b"3")
    queue.publish(b"new")
    with pytest.raises(Full, match="max_depth") as caught:
        store.redrive("q")
    assert caught.value.__notes__ == ["2 dead letters were brought back before"]
    assert values(store.dead("q")) == [b"3"]
    assert drain(queue.consumer("w")) == [b"new", b"1", b"2"]
    assert store.redrive("q") == 1
    assert drain(queue.consumer("w")) == [b"3"]


def test_none_comes_back_to_a_disk_that_is_too_full(open_store: OpenStore) -> None:
    with open_store() as store:
        bury(store.queue("q", **FAST), b"1")
    with open_store(disk={"max_used_ratio": 1e-9, "refuse_ratio": 1e-9}) as store:
        with pytest.raises(Full, match="refuse_ratio"):
            store.redrive("q")
        assert values(store.dead("q")) == [b"1"]


def test_what_is_back_already_needs_no_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.queue("q", **FAST, limits={"max_depth": 2})
    bury(queue, b"1", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "ack", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.redrive("q", limit=1)
    queue.publish(b"new")
    with pytest.raises(Full) as caught:
        store.redrive("q")
    assert caught.value.__notes__ == ["1 dead letters were brought back before"]
    assert drain(queue.consumer("w")) == [b"1", b"new"]


@pytest.mark.parametrize("given", ["by rule", "by hand"])
def test_those_that_came_back_stay_so_however_long_nobody_looks_at_them(
    open_store: OpenStore, clock: ManualClock, given: str
) -> None:
    with open_store(expire_groups="1h", producer_expiry="1h") as store:
        queue = store.queue("q", **FAST)
        bury(queue, b"1")
        assert store.redrive("q") == 1
        assert drain(queue.consumer("w")) == [b"1"]
    clock.advance(86_400)
    with open_store(expire_groups="1h", producer_expiry="1h") as store:
        queue, letters = store.queue("q"), store.get("$dlq/q")
        consumer = queue.consumer("w")
        if given == "by hand":
            assert letters.expire_groups("1h") == []
        else:
            caretaker = Caretaker(store)
            caretaker.retain()
            caretaker.stop()
        assert store.dead("q") == []
        assert store.redrive("q") == 0
        assert drain(consumer) == []
