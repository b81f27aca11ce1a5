"""What groups do when consumers come, wait and go."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace import Corrupt, Full, LeaseLost, Queue, Store, Stream
from tailrace.queue import scanning
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.extending import AutoExtend
from tailrace.queue.group_files import GroupFiles, discard
from tailrace.queue.journal import Op, encode_line
from tailrace.queue.ledger import Ledger
from tailrace.queue.turns import turn_of
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, one, states, values

DAY = 86_400


def test_a_rejected_message_of_a_stream_takes_nothing_from_others(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        stream = store.stream("s")
        stream.publish_many(numbers(20))
        first, second = (stream.consumer("g", auto_commit=False) for _ in range(2))
        first.receive(5)
        second.receive(5)[2].reject()
        assert second.committed == 0
        first.close()
        assert offsets(second.receive(5)) == [0, 1, 2, 3, 4]


def test_what_was_moved_past_is_committed_while_nothing_comes(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        stream = store.stream("s")
        stream.publish_many(numbers(3))
        consumer = stream.consumer("g", auto_commit_interval="50ms")
        assert len(consumer.receive(3)) == 3
        assert consumer.receive(1, wait=0.5) == []
        assert consumer.committed == 3


def test_a_group_that_nobody_uses_is_expired_after_a_restart_too(
    open_store: OpenStore, clock: ManualClock
) -> None:
    with open_store() as store:
        queue = store.queue("q")
        queue.publish(b"x")
        one(queue.consumer("old")).ack()
        clock.advance(6 * DAY)
        one(queue.consumer("new")).ack()
    clock.advance(DAY)
    store, other = open_store(), open_store()
    queue = store.queue("q")
    with other.queue("q").consumer("old"):
        assert queue.expire_groups("7d") == []  # somebody came back
    assert queue.expire_groups("7d") == []
    clock.advance(7 * DAY - 1)
    assert queue.expire_groups("7d") == ["new"]
    clock.advance(1)
    assert queue.expire_groups("7d") == ["old"]
    assert queue.group_ids() == []


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
def test_publishers_do_not_use_groups(
    open_store: OpenStore, clock: ManualClock, on_full: str
) -> None:
    """They open them in order to count, and write to them what they drop or pass by."""
    with open_store() as store:
        queue = store.queue("q", limits={"max_depth": 3, "on_full": on_full})
        queue.publish(b"x")
        queue.consumer("old").receive(1)
    for _ in range(4):
        clock.advance(DAY)
        with open_store() as store:
            store.queue("q").publish(b"y", ttl="1h")
    with open_store() as publisher:
        publisher.queue("q").publish(b"y")  # and keeps them open
        assert open_store().queue("q").expire_groups("4d") == ["old"]


def test_a_group_of_somebody_who_was_killed_is_used_until_that_is_noticed(
    open_store: OpenStore, clock: ManualClock
) -> None:
    with open_store() as store:
        queue = store.queue("q")
        consumer = queue.consumer("g")
        clock.advance(9 * DAY)
        folder = Path(store.layout.group("q", "g"))
        [alive] = (folder / ".tailrace").glob("alive-*")
        alive.unlink()
        assert open_store().queue("q").expire_groups("7d") == []
        clock.advance(7 * DAY)
        assert open_store().queue("q").expire_groups("7d") == ["g"]
        del consumer


@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.parametrize("of", ["store", "queue"])
def test_vacuum_expires_groups_by_their_rule(
    open_store: OpenStore, clock: ManualClock, kind: str, of: str
) -> None:
    """And what only they held back goes along."""
    store = open_store()
    make = store.queue if kind == "queue" else store.stream
    queue: Queue | Stream = make("q", expire_groups="1d", segment_bytes=400, compression="none")
    for number in numbers(20):
        queue.publish(number)
    queue.consumer("idle").close()
    with queue.consumer("busy") as consumer:
        for message in consumer.receive(20):
            message.ack()
    vacuum = store.vacuum if of == "store" else queue.vacuum
    vacuum()
    assert queue.group_ids() == ["busy", "idle"]
    clock.advance(2 * DAY)
    with queue.consumer("busy") as consumer:
        consumer.receive(1)
        vacuum()
        assert queue.group_ids() == ["busy"]
    if kind == "queue":
        assert len(queue) == 0


def test_a_group_of_which_somebody_has_a_message_does_not_expire(
    open_store: OpenStore, clock: ManualClock
) -> None:
    queue, elsewhere = open_store().queue("q"), open_store().queue("q")
    queue.publish_many(numbers(2))
    consumer = queue.consumer("g", visibility_timeout="10d")
    message = one(consumer)
    consumer.close()
    clock.advance(8 * DAY)
    assert elsewhere.expire_groups("7d") == []
    message.ack()
    assert elsewhere.expire_groups("7d") == ["g"]


def test_who_resets_a_group_uses_it(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    queue, stream = store.queue("q"), store.stream("s")
    for each in (queue, stream):
        each.consumer("g").close()
    clock.advance(7 * DAY)
    queue.group("g").reset(0)
    stream.group("g").seek(0)
    assert queue.expire_groups("7d") == stream.expire_groups("7d") == []


def test_somebody_who_comes_just_then_keeps_the_group(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, elsewhere = open_store().queue("q"), open_store().queue("q")
    queue.publish_many(numbers(2))
    queue.consumer("g").close()
    clock.advance(8 * DAY)
    idle = queue.idle_ms()
    consumer = elsewhere.consumer("g")
    message = one(consumer)
    monkeypatch.setattr(queue, "idle_ms", lambda: idle)
    assert idle["g"] >= 7 * DAY * 1000
    assert queue.expire_groups("7d") == []
    message.ack()
    consumer.close()
    assert queue.expire_groups("7d") == []
    assert queue.group_ids() == ["g"]


def test_a_group_that_an_older_version_wrote_counts_from_then(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dumped(ledger: Ledger) -> tuple[dict[str, Any], dict[int, Op]]:
        state, entries = dump(ledger)
        del state["used_ms"]
        return state, entries

    dump = Ledger.dump
    with monkeypatch.context() as patch, open_store() as store:
        patch.setattr(Ledger, "dump", dumped)
        store.queue("q").consumer("g").close()
    clock.advance(DAY)
    with open_store() as store:
        store.queue("q").group("g")
    assert open_store().queue("q").idle_ms() == {"g": DAY * 1000}


def test_a_group_that_is_damaged_expires(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("q")
        queue.publish(b"x")
        one(queue.consumer("g")).ack()
    folder = Path(store.layout.group("q", "g"))
    begin = {"t": "begin", "format": 1, "generation": 9, "id": "0123456789abcdef"}
    (folder / "ops.log").write_bytes(encode_line(begin))
    queue = open_store().queue("q")
    with pytest.raises(Corrupt):
        queue.consumer("g")
    assert queue.expire_groups(0) == ["g"]
    assert queue.group_ids() == []


def test_a_group_that_was_deleted_does_not_come_back(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has seen it a moment ago finds that it is gone, and goes on."""
    queue = open_store().queue("q", limits={"max_depth": 2, "on_full": "drop_oldest"})
    queue.publish(b"x")
    one(queue.consumer("g")).release()
    queue.close()
    queue.delete_group("g")
    with monkeypatch.context() as patch:
        patch.setattr(queue, "group_ids", lambda: ["g"])
        for _ in range(4):
            queue.publish(b"y")
        assert queue.groups() == []
        assert queue.pending("g") == []
        assert queue.purge() == 2
    assert queue.group_ids() == []
    assert not Path(queue._store.layout.group("q", "g")).exists()


@pytest.mark.parametrize("left", ["nothing", "a note"])
def test_what_is_left_of_a_group_that_was_deleted_is_no_group(
    open_store: OpenStore, left: str
) -> None:
    """Whoever deleted it, or was to make it, was killed meanwhile."""
    queue = open_store().queue("q", limits={"max_depth": 9})
    one_folder = Path(queue._store.layout.group("q", "g"))
    if left == "a note":
        files = queue.group("g").files
        with (
            turn_of(queue._store.fs, str(one_folder)),
            mock.patch.object(queue._store.fs, "rename", side_effect=OSError(5, "killed")),
            pytest.raises(OSError, match="killed"),
        ):
            discard(files)
        queue.abandon()
    else:
        (one_folder / ".tailrace").mkdir(parents=True)
    assert queue.group_ids() == ["g"]
    queue.publish(b"x")
    assert queue.group_ids() == []
    assert values(queue.consumer("g").receive(5)) == [b"x"]


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
def test_a_group_that_was_made_anew_elsewhere_is_counted(
    open_store: OpenStore, on_full: str
) -> None:
    queue = open_store().queue("q", limits={"max_depth": 4, "on_full": on_full})
    elsewhere = open_store().queue("q")
    for number in range(4):
        queue.publish(str(number))
    drain(queue.consumer("g"))
    queue.publish(b"4")
    elsewhere.delete_group("g")
    assert values(elsewhere.consumer("g").receive(2)) == numbers(2)
    if on_full == "raise":
        with pytest.raises(Full):
            queue.publish(b"5")
        assert [each.pending for each in queue.groups()] == [2]
    else:
        queue.publish(b"5")
        assert values(queue.peek("g", 9)) == [b"4", b"5"]
    elsewhere.delete_group("g")
    elsewhere.consumer("g")
    assert queue.pending("g") == []
    elsewhere.delete_group("g")
    elsewhere.consumer("g")
    assert queue.purge() > 0


def test_a_group_can_be_made_while_others_delete_it(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_store().queue("q")
    make, tries = queue._make_group, iter(range(9))

    def disturbed(files: GroupFiles, pattern: str) -> ClassicGroup:
        if next(tries) < 3:
            raise FileNotFoundError(2, "its folder was renamed")
        return make(files, pattern)

    monkeypatch.setattr(queue, "_make_group", disturbed)
    queue.publish(b"x")
    assert values(queue.consumer("g").receive(1)) == [b"x"]


def test_extending_keeps_it_as_long_as_the_consumer_asked_for(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="1s")
        queue.publish_many(numbers(2))
        message = one(queue.consumer("w", visibility_timeout="10m"))
        message.extend()
        assert queue.pending("w")[0].left > 500
        other = one(queue.consumer("w"))
        other.extend()
        assert queue.pending("w")[1].left <= 1.1


def test_a_batch_that_is_nacked_tells_of_all_that_were_lost(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", retry={"max_retries": 1, "initial_backoff": 0})
        queue.publish_many(numbers(2))
        consumer = queue.consumer("w")
        one(consumer).nack()
        time.sleep(0.05)  # times are rounded up a little
        spent = one(consumer)
        fresh = one(consumer)
        assert (spent.delivery_count, fresh.delivery_count) == (2, 1)
        queue.group("w").reset(0)
        with pytest.raises(LeaseLost) as caught:
            consumer.nack([spent, fresh])
        assert sorted(caught.value.lost) == ["q:0", "q:1"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_program_that_is_being_stopped_has_not_failed(
    store: Store, end: type[BaseException]
) -> None:
    queue = store.queue("q", retry={"max_retries": 0})
    queue.publish(b"x")
    consumer = queue.consumer("w")
    for _ in range(3):
        message = one(consumer)
        with pytest.raises(end), message:
            raise end
        assert message.settled == "released"
        assert states(queue) == {0: ("free", 0)}
    with pytest.raises(ValueError, match="no"), one(consumer) as message:
        raise ValueError("no")
    assert message.settled == "nacked"
    assert values(store.dead("q")) == [b"x"]


def test_keeping_a_message_tells_if_it_was_lost(tmp_path: Path) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="60ms")
        queue.publish_many(numbers(2))
        kept, lost = queue.consumer("w").receive(2)
        with kept.auto_extend() as keeping:
            assert isinstance(keeping, AutoExtend)
            time.sleep(0.3)
            assert not keeping.lost
        kept.ack()
        with lost.auto_extend() as keeping:
            assert isinstance(keeping, AutoExtend)
            queue.group("w").reset(0)
            deadline = time.monotonic() + WAIT
            while not keeping.lost and time.monotonic() < deadline:
                time.sleep(0.01)
            assert keeping.lost


@pytest.mark.parametrize("word", ["ack", "nack", "reject", "release"])
def test_what_is_settled_while_it_is_kept_is_not_lost(tmp_path: Path, word: str) -> None:
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="60ms")
        queue.publish(b"x")
        message = one(queue.consumer("w"))
        with message.auto_extend() as keeping:
            assert isinstance(keeping, AutoExtend)
            getattr(message, word)()
            assert keeping._thread is not None
            keeping._thread.join(WAIT)  # it has found that there is nothing to keep
            assert not keeping._thread.is_alive()
        assert not keeping.lost


def test_keeping_a_message_while_the_time_becomes_shorter(tmp_path: Path) -> None:
    """When to extend next is for the last extension to say."""
    with Store(tmp_path, upkeep=False) as store:
        queue = store.queue("q", visibility_timeout="3s")
        queue.publish(b"x")
        message, other = one(queue.consumer("w")), queue.consumer("w")
        with message.auto_extend() as keeping:
            queue.configure(visibility_timeout="500ms")
            assert other.receive(1, wait=4.5) == []
            assert isinstance(keeping, AutoExtend)
            assert not keeping.lost
        message.ack()


@pytest.mark.parametrize("when", ["before", "within"])
def test_keeping_a_message_never_shortens_its_lease(tmp_path: Path, when: str) -> None:
    clock = ManualClock()
    with Store(tmp_path, upkeep=False, clock=clock) as store:
        queue = store.queue("q", visibility_timeout="50ms")
        queue.publish(b"x")
        consumer = queue.consumer("w")
        [message] = consumer.receive()
        if when == "before":
            message.extend(60)
        with message.auto_extend():
            if when == "within":
                message.extend(60)
            time.sleep(0.2)  # it has been extended several times, if it was to be
        clock.advance(59)
        assert consumer.receive() == []
        clock.advance(2)
        assert offsets(consumer.receive()) == [0]


@pytest.mark.parametrize("at_once", [1, 7])
def test_so_many_wait_behind_others_of_their_key(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However often somebody looks."""
    assert scanning._PARKED_MOST == 10_000  # as documented
    monkeypatch.setattr(scanning, "_PARKED_MOST", 20)
    queue = store.queue("q", flush="async")
    queue.publish_many([("a", b"a%d" % number) for number in range(60)])
    queue.publish_many([("b", b"b")])
    consumer = queue.consumer("w", key_order=True)
    [first] = consumer.receive(at_once)
    for _ in range(30):
        assert consumer.receive(at_once) == []
    parked = [each for each in queue.pending("w") if each.state == "parked"]
    assert 20 <= len(parked) < 20 + at_once
    assert values(queue.peek("w", 5)) == []
    first.ack()
    found = [first.value, *drain(consumer, at_once)]
    assert [value for value in found if value != b"b"] == [b"a%d" % n for n in range(60)]
    assert b"b" in found


def test_who_peeks_sees_what_would_come_however_far_it_looks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each key, and none behind so many that wait."""
    monkeypatch.setattr(scanning, "SCAN_MOST", 4)
    queue = store.queue("q", flush="async")
    consumer = queue.consumer("w", key_order=True)
    queue.publish_many([*(("a", value) for value in numbers(19)), ("b", b"b"), (None, b"c")])
    assert values(queue.peek("w", 9)) == [b"0", b"b", b"c"]
    assert values(queue.peek("w", 2)) == [b"0", b"b"]
    monkeypatch.setattr(scanning, "_PARKED_MOST", 8)
    assert values(queue.peek("w", 9)) == [b"0"]
    assert values(consumer.receive(9)) == [b"0"]
    assert consumer.receive(9) == []


# --- operations that cannot be carried out --------------------------------------------------------

UNFIT: list[Op] = [
    {"t": "claim", "c": "x", "u": [], "h": 1, "f": 3, "x": 4, "r": [3, 1]},
    {"t": "ack"},
    {"t": "nack", "r": ["0", 1], "u": 0, "e": ""},
]


def journal(machine: Machine, queue: str) -> str:
    [path] = [p for p in machine.disk.files() if p.endswith("ops.log") and f"/{queue}/" in p]
    return path


@pytest.mark.parametrize("unfit", UNFIT, ids=lambda op: op["t"])
def test_an_operation_that_cannot_be_carried_out_is_passed_over(
    machine: Machine, caplog: pytest.LogCaptureFixture, unfit: Op
) -> None:
    """As a damaged line is: what others have done counts, and nothing of it is half done."""
    queue = machine.open().queue("q")
    queue.publish_many(numbers(5))
    consumer = queue.consumer("w")
    first, _second = consumer.receive(2)
    first.ack()
    path = journal(machine, "q")
    machine.kill()
    data = machine.disk.read(path).rstrip(b"\0")
    machine.disk.put(path, data + encode_line(unfit) + encode_line({"t": "ack", "r": [1, 1]}))
    for is_there in (True, False):  # and then there is nothing to pass over
        caplog.clear()
        with machine.open() as store:
            [info] = store.queue("q").groups()
            assert (info.cursor, info.committed, info.pending) == (2, 2, 0)
        assert ("messages may be delivered again" in caplog.text) == is_there
    assert any("damaged-" in name for name in machine.disk.files())
    with machine.open() as store:
        assert offsets(store.queue("q").consumer("w").receive(9)) == [2, 3, 4]


def test_those_who_have_the_group_open_pass_over_it_as_well(machine: Machine) -> None:
    streams = [machine.open().stream("s") for _ in range(2)]
    streams[0].publish_many(numbers(9))
    consumers = [stream.consumer("g", auto_commit=False) for stream in streams]
    assert [offsets(consumer.receive(2)) for consumer in consumers] == [[0, 1], [2, 3]]
    group = streams[0].group("g")
    with pytest.raises(TypeError), group._turn:
        group.commit({"t": "done", "c": consumers[0]._member, "x": "5"})
    # Nobody can commit what was taken before, so it comes again.
    assert offsets(consumers[0].receive(1)) == [0]
    assert offsets(consumers[1].receive(1)) == [1]
    assert consumers[1].committed == 0
    assert [offsets(consumer.receive(9)) for consumer in consumers] == [[2, 3], [4, 5, 6, 7, 8]]


def test_closing_a_store_closes_everything_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, upkeep=False)
    queues = [store.queue(name) for name in "abc"]
    consumers = [queue.consumer("w") for queue in queues]
    for queue, consumer in zip(queues, consumers, strict=True):
        queue.publish(b"x")
        one(consumer)

    def fail(number: int) -> None:
        raise RuntimeError(f"number {number}")

    for number in (0, 1):
        monkeypatch.setattr(queues[number].group("w"), "_give_up_leases", partial(fail, number))
    with pytest.raises(RuntimeError, match="number 0"):
        store.close()
    assert not any(queue.is_open for queue in queues)
    store.close()
    with Store(tmp_path, upkeep=False) as again:
        assert again.queue("c").pending("w")[0].state == "free"


@pytest.mark.parametrize("do", ["extend", "nack"])
def test_what_is_done_to_many_at_once_is_one_line(open_store: OpenStore, do: str) -> None:
    """Unless they differ in when they are due."""
    queue = open_store().queue("q", retry={"initial_backoff": "10s"})
    queue.publish_many(numbers(20))
    first, journal = queue.consumer("w"), queue.group("w")._journal
    seldom = queue.consumer("w", visibility_timeout="1h")
    one(first).nack(delay=0)
    messages = first.receive(10)
    assert [message.delivery_count for message in messages] == [2] + [1] * 9
    messages += seldom.receive(5)
    before = journal.ops
    getattr(first, do)(messages)
    assert journal.ops - before == 2
    left = {each.offset: each.left for each in queue.pending("w")}
    other = {0: 20} if do == "nack" else dict.fromkeys(range(10, 15), 3600)
    usual = 10 if do == "nack" else 30
    assert {offset: round(left[offset]) for offset in range(15)} == {
        offset: other.get(offset, usual) for offset in range(15)
    }
