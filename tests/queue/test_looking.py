"""To look at a store that is being used, or that another system has written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import Corrupt, InvalidName
from tailrace.queue.looking import Look, records
from tests.queue.clocks import Machine
from tests.queue.support import another_process, on_machine, states, values


def look_of(store: tailrace.Store) -> Look:
    return Look(store.fs, store.layout, store.registry.current, store.clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.no_cover
def test_while_everything_changes(path: Path) -> None:
    """The journal of the group is replaced again and again, and the group is closed and opened; a
    look sees a state that was there at some moment."""
    total = 3_000
    with tailrace.open(path, flush="none", compact_after=3) as store:
        queue = store.queue("q")
        queue.publish_many([b"x"] * total)
        queue.group("g")
        failures: list[BaseException] = []

        def work() -> None:
            try:
                with tailrace.open(path) as other:
                    mine = other.get("q")
                    assert isinstance(mine, tailrace.Queue)
                    done = 0
                    while done < total:
                        with mine.consumer("g") as consumer:
                            for _ in range(20):
                                batch = consumer.receive(5)
                                consumer.ack(batch)
                                done += len(batch)
                        mine.close()  # the last one leaves no journal
            except BaseException as error:
                failures.append(error)
                raise

        queue.close()
        worker = threading.Thread(target=work)
        worker.start()
        look, settings = look_of(store), queue.settings
        looks, settled = 0, 0
        try:
            while worker.is_alive():
                state = look.look_at(settings, "g").state
                assert state.committed >= settled
                settled = state.committed
                looks += 1
        finally:
            worker.join()
        assert not failures
        assert looks > 10
        assert look.look_at(settings, "g").state.committed == total


def test_what_comes_next_is_not_what_nobody_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pending may have expired, be about to die, or be dying."""
    with on_machine(retry={"max_retries": 0}) as (machine, store, queue):

        def shown(limit: int = 9) -> list[bytes | None]:
            look = look_of(store)
            with look.log("q") as log:
                assert log is not None
                found = values(look.peek(look.group("q", "w"), "q", log, limit))
            assert values(queue.peek("w", limit)) == found
            return found

        def fail(*arguments: object) -> None:
            raise TypeError("no such letter")

        queue.publish(b"dying")
        consumer = queue.consumer("w")
        consumer.receive()
        machine.clock.advance(2)
        monkeypatch.setattr(store, "bury", fail)
        assert consumer.receive() == []
        queue.publish(b"spent")
        consumer.receive()
        queue.publish_many([b"expired"] * 3, ttl=1)
        queue.publish_many([b"1", b"2"])
        consumer.release(consumer.receive(4))
        machine.clock.advance(60)
        queue.publish(b"3")
        assert states(queue) == {
            0: ("dying", 1),
            1: ("expired", 1),
            **dict.fromkeys(range(2, 6), ("free", 0)),
        }
        assert shown() == [b"1", b"2", b"3"]
        assert shown(1) == [b"1"]
        assert shown(0) == []
        monkeypatch.undo()
        assert values(consumer.receive(9)) == [b"1", b"2", b"3"]


def test_a_group_that_is_not_there(path: Path) -> None:
    with tailrace.open(path) as store:
        store.queue("q")
        look = look_of(store)
        with pytest.raises(InvalidName, match="the queue 'q' has no group 'g'; it has none"):
            look.group("q", "g")
        with pytest.raises(InvalidName, match="there is no queue 'x'"):
            look.group("x", "g")
        assert store.queue("q").group_ids() == []


def test_what_the_next_consumer_would_find() -> None:
    """A process is killed, and the machine goes on: what it had is free, for a look, too."""
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        consumer = queue.consumer("g", id="me")
        consumer.receive(2)
        look = look_of(store)
        group = look.group("q", "g")
        assert [(member.id, member.alive) for member in group.members] == [("me", True)]
        assert [each.state for each in group.pending(machine.clock.boot_ms())] == ["leased"] * 2
        machine.kill()
        again = machine.open()
        group = look_of(again).group("q", "g")
        assert [(member.id, member.alive) for member in group.members] == [("me", False)]
        now_ms = machine.clock.boot_ms()
        assert [each.state for each in group.pending(now_ms)] == ["expired"] * 2


def test_what_is_pending_names_who_had_it_and_died(path: Path) -> None:
    with tailrace.open(path) as store, another_process(path) as other:
        queue = store.queue("q")
        queue.publish_many([b"x"] * 2)
        other.ask("globals().update(c=store.get('q').consumer('w', id='worker-7'))")
        assert other.ask("len(c.receive(2))") == "2"
        other.kill()
        assert [member.alive for member in queue.group("w").members()] == [False]
        found = [(each.consumer, each.state) for each in queue.pending("w")]
        assert found == [("worker-7", "expired")] * 2
        look = look_of(store).look_at(queue.settings, "w")
        assert [each.consumer for each in look.pending(0)] == ["worker-7"] * 2
        with queue.consumer("w", id="next") as consumer:
            assert [message.delivery_count for message in consumer.receive(2)] == [2]
            assert [each.consumer for each in queue.pending("w")] == ["next", "worker-7"]


def test_damage_is_stepped_over(path: Path) -> None:
    with tailrace.open(path) as store:
        queue = store.queue("q", compression="none")
        for number in range(5):
            queue.publish(b"value %d" % number)
    [segment] = path.rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value 2")] ^= 1
    segment.write_bytes(data)
    with tailrace.open(path) as store, look_of(store).log("q") as log:
        assert log is not None
        with pytest.raises(Corrupt):
            list(log.read())
        assert [record.offset for record in records(log, 0)] == [0, 1, 3, 4]
        assert [record.offset for record in records(log, 1, 4)] == [1, 3]
        assert list(records(log, 9)) == []
        assert store.get("q").stats(exact=True).ready == 4


def test_a_group_of_fluxmq(path: Path) -> None:
    """It has no journal of ours, and is read as the next open would."""
    with tailrace.open(path) as store:
        queue = store.queue("q")
        queue.publish_many([b"%d" % number for number in range(6)])
        with queue.consumer("g") as consumer:
            first, *_ = consumer.receive(4)
            first.ack()
    folder = path / "queue/queues/q/consumers/g"
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    with tailrace.open(path) as store:
        look = look_of(store)
        before = sorted(folder.iterdir())
        group = look.group("q", "g")
        assert sorted(folder.iterdir()) == before
        found = store.get("q").groups()[0]
        assert (group.state.cursor, group.state.committed) == (found.cursor, found.committed)
        assert group.state.cursor == 4
