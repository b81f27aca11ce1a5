"""Figures of queues: right, cheap, and taken without anybody noticing."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

import tailrace
from tailrace import Message, Store, restore_backup
from tailrace.kernel import encode
from tailrace.log.fs import OsFileSystem
from tailrace.log.sidefiles import store_checked_json
from tailrace.metrics import prometheus_text
from tailrace.queue import dead_letters
from tailrace.queue.offline.verify import verify_store
from tailrace.queue.schedule import Manifest
from tailrace.queue.sorted_runs import RunInfo
from tailrace.queue.stats import CHEAP
from tailrace.testing import (
    Call,
    Fail,
    Fault,
    FaultyFileSystem,
    RecordingFileSystem,
    SimulatedDisk,
)
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_every_message_is_in_one_place(path: Path) -> None:
    with tailrace.open(path) as store:
        queue = store.queue("q", retry={"max_retries": 0})
        queue.publish_many([b"%d" % n for n in range(20)])
        with queue.consumer("g") as consumer:
            acked, nacked, dead, freed, *_held = consumer.receive(8)
            acked.ack()
            dead.reject("no")
            freed.release()
            assert queue.stats().groups[0].leased == 5
            del nacked
            found = queue.stats()
    [group] = found.groups
    assert (found.name, found.type, found.messages) == ("q", "classic", 20)
    assert (group.ready, group.leased, group.waiting, group.dying) == (13, 5, 0, 0)
    assert (group.cursor, group.committed, group.lag, group.settled) == (8, 1, 19, 2)
    assert (found.ready, found.leased, found.dead, found.estimated) == (13, 5, 1, False)
    assert group.members == 1


def calls_of_stats(path: Path, segments: int, batch: int) -> list[Counter[str]]:
    """What is done to the files of a queue that the store has open, and that has so many segments
    of one batch: the second time that it is asked, and after a roll."""
    fs, found = RecordingFileSystem(OsFileSystem()), []
    with tailrace.open(path, fs=fs) as store:
        queue = store.queue("q", flush="none")
        folder = Path(store.layout.segments("q"))
        folder.mkdir(parents=True)
        draft = encode([b"value"] * batch, 1_700_000_000_000, 0)
        for base in range(0, segments * batch, batch):  # to publish so many would take a while
            (folder / f"{base:020d}.seg").write_bytes(draft.place(base))
        queue.publish(b"")  # in a segment of its own, as those are old
        store.stats()
        for more in (1, 2):
            fs.trace.clear()
            figures = store.stats()["q"]
            found.append(Counter(each.op for each in fs.trace if str(folder) in each.path))
            assert (figures.segments, figures.messages) == (
                segments + more,
                segments * batch + more,
            )
            files = [each for each in folder.iterdir() if each.is_file()]
            assert figures.bytes == sum(each.stat().st_size for each in files)
            queue.log._writing().tail.roll()
            queue.publish(b"")
    return found


@pytest.mark.no_cover
def test_the_same_calls_for_10_and_for_10_000_segments(tmp_path: Path) -> None:
    few = calls_of_stats(tmp_path / "few", 10, 1_100)
    assert few == calls_of_stats(tmp_path / "many", 10_000, 2)
    assert few[0] == {"stat": 3, "size": 2, "pread": 1}


def test_time() -> None:
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q", visibility_timeout="10s")
        queue.publish(b"old", timestamp=machine.clock.wall_ms())
        queue.publish(b"nack", timestamp=machine.clock.wall_ms())
        consumer = queue.consumer("g")
        consumer.receive(2)[1].nack(delay=100)
        machine.clock.advance(5)
        [group] = queue.stats().groups
        assert (group.ready, group.leased, group.waiting) == (0, 1, 1)
        assert group.oldest_age_ms == 5_000
        machine.clock.advance(6)  # the lease is over
        [group] = queue.stats().groups
        assert (group.ready, group.leased, group.waiting) == (1, 0, 1)
        machine.clock.advance(100)
        [group] = queue.stats().groups
        assert (group.ready, group.leased, group.waiting) == (2, 0, 0)


def test_expired_messages_and_filters_are_not_ready() -> None:
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q")
        for number in range(9):
            queue.publish(
                b"x", routing_key="eu" if number % 2 else "am", ttl=60 if number < 4 else 0
            )
        for group in ("all", "eu@eu"):
            queue.group(group)
        assert [group.ready for group in queue.stats().groups] == [9, 4]
        machine.clock.advance(61)
        assert [group.ready for group in queue.stats().groups] == [5, 2]
        assert queue.stats().ready == 7


def test_estimates(path: Path) -> None:
    with tailrace.open(path, flush="async") as store:
        queue = store.queue("q")
        queue.publish_many([b"x"] * CHEAP, routing_key="am")
        queue.publish_many([b"x"] * 10, routing_key="eu")
        queue.group("far", "eu")
        queue.group("near", "eu").reset(CHEAP)
        far, near = queue.stats().groups
        assert (far.ready, far.estimated) == (CHEAP + 10, True)
        assert (near.ready, near.estimated) == (10, False)
        assert queue.stats().estimated
        far, near = queue.stats(exact=True).groups
        assert (far.ready, near.ready, far.estimated, near.estimated) == (10, 10, False, False)
        none = store.queue("none")
        none.publish_many([b"x"] * (CHEAP + 1), ttl="1h")
        assert (none.stats().ready, none.stats().ready_estimated) == (CHEAP + 1, True)
        assert not none.stats(exact=True).ready_estimated


def test_dead_letters_beyond_what_is_cheap(path: Path) -> None:
    with tailrace.open(path, flush="none") as store:
        queue = store.queue("q")
        queue.publish_many([b"x"] * (CHEAP + 5))
        with queue.consumer("g") as consumer:
            consumer.reject(consumer.receive(CHEAP + 5), "no")
        assert (queue.stats().dead, queue.stats().dead_estimated) == (CHEAP + 5, True)
        found = queue.stats(exact=True)
        assert (found.dead, found.dead_estimated) == (CHEAP + 5, False)
        store.redrive("q", limit=10)
        found = queue.stats()
        assert (found.dead, found.dead_estimated) == (CHEAP - 5, False)


def test_a_place_that_queues_share_is_counted_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tailrace.open(path, flush="none", upkeep=False) as store:
        queues = [store.queue(f"q{number}", dlq={"topic": "dead"}) for number in range(20)]
        for number in (0, 1, 7):
            queues[number].publish_many([b"x"] * (number + 1))
            with queues[number].consumer("g") as consumer:
                consumer.reject(consumer.receive(number + 1), "no")
        asked: list[str] = []

        def origin(message: Message) -> tuple[str, str]:
            asked.append(message.message_id)
            return found_origin(message)

        found_origin = dead_letters.origin
        monkeypatch.setattr(dead_letters, "origin", origin)
        found = store.stats()
        told = {name: each.dead for name, each in found.items() if each.dead}
        assert told == {"q0": 1, "q1": 2, "q7": 8}
        assert len(asked) == 11  # as many as there are
        assert queues[7].stats().dead == 8
        store.redrive("q7", limit=3)
        assert store.stats()["q7"].dead == 5


def test_what_was_dropped_is_told(path: Path) -> None:
    with tailrace.open(path) as store:
        queue = store.queue("q", limits={"max_depth": 2, "on_full": "drop_oldest"})
        queue.group("w")
        for number in range(5):
            queue.publish(b"%d" % number)
        [group] = queue.stats().groups
        assert (group.dropped, group.ready, group.settled) == (3, 2, 0)
        assert 'tailrace_group_dropped_total{queue="q",group="w"} 3' in prometheus_text(
            store.stats()
        )


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_what_was_dropped_of_nobody_is_told(path: Path, kind: str) -> None:
    """Of a stream, or where there is no group yet: the queue counts it, and that lasts."""
    limits = {"max_depth": 2, "on_full": "drop_oldest"}
    with tailrace.open(path) as store:
        queue = getattr(store, kind)("q", limits=limits)
        assert queue.stats().dropped == 0
        for number in range(5):
            queue.publish(b"%d" % number)
        assert (queue.stats().dropped, queue.stats().ready) == (3, 2)
        assert 'tailrace_queue_dropped_total{queue="q"} 3\n' in prometheus_text(store.stats())
    with tailrace.open(path) as store:
        queue = getattr(store, kind)("q")
        queue.publish_many([b"5", b"6"])
        assert queue.stats().dropped == 5
        store.backup(path.parent / "backup")
        restore_backup(path.parent / "backup", path.parent / "restored")
        store.delete("q")
        assert getattr(store, kind)("q", limits=limits).stats().dropped == 0
    with tailrace.open(path.parent / "restored") as store:
        assert getattr(store, kind)("q").stats().dropped == 5


def test_what_was_dropped_is_counted_once(path: Path) -> None:
    """However many drop at the same time."""
    limits = {"max_depth": 10, "on_full": "drop_oldest"}
    with tailrace.open(path, flush="async") as store, tailrace.open(path) as other:
        store.stream("s", limits=limits)

        def publish(where: tailrace.Store) -> None:
            for _ in range(40):
                where.get("s").publish(b"x")

        threads = [threading.Thread(target=publish, args=(each,)) for each in (store, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        found = store.get("s").stats()
        assert (found.dropped, found.end_offset) == (found.start_offset, 160)
        assert found.dropped >= 150 - 4


def test_a_count_that_is_damaged(path: Path) -> None:
    with tailrace.open(path) as store:
        stream = store.stream("s", limits={"max_depth": 1, "on_full": "drop_oldest"})
        stream.publish(b"1")
        stream.publish(b"2")
        file = Path(store.layout.queue("s"), ".tailrace", "dropped")
        file.write_bytes(b"?" * file.stat().st_size)
        assert stream.stats().dropped == 0
        root, name = store.layout.root, "queues/s/.tailrace/dropped"
        findings = {each.path: each for each in verify_store(OsFileSystem(), root).findings}
        assert findings[name].severity == "note"
        assert "counting begins anew" in findings[name].message
        stream.publish(b"3")
        assert stream.stats().dropped == 1
        assert name not in {each.path for each in verify_store(OsFileSystem(), root).findings}


def test_what_is_dropped_where_the_count_cannot_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def plan(call: Call) -> Fault | None:
        return Fail(errno.ENOSPC) if "dropped" in call.path else None

    disk = SimulatedDisk()
    fs = FaultyFileSystem(disk, plan)
    with Store("data", fs=fs, upkeep=False) as store:
        stream = store.stream("s", limits={"max_depth": 1, "on_full": "drop_oldest"})
        stream.publish(b"1")
        stream.publish(b"2")
        assert [record.value for record in stream.read()] == [b"2"]
    assert "s: what is dropped may not be counted" in caplog.text


def test_streams(path: Path) -> None:
    with tailrace.open(path) as store:
        stream = store.stream("s")
        stream.publish_many([b"%d" % n for n in range(10)])
        with stream.consumer("g", auto_commit=False) as consumer:
            consumer.receive(3)
            consumer.commit()
            consumer.receive(2)
            [group] = stream.stats().groups
            assert (group.committed, group.ready, group.leased, group.lag) == (3, 5, 2, 7)
        [group] = stream.stats().groups
        assert (group.ready, group.leased, group.settled) == (7, 0, 3)
        assert stream.stats().pinned_by is None


def test_a_stream_counts_messages_and_not_offsets() -> None:
    """What a filter or a lifetime passes by is nobody's, wherever the group is."""
    with Machine() as machine:
        store = machine.open()
        stream = store.stream("s")
        for number in range(20):
            stream.publish(b"x", routing_key="eu" if number in (3, 9) else "am", ttl=60)
        consumer = stream.consumer("g", filter="eu", auto_commit=False)
        assert len(consumer.receive(100)) == 2
        [group] = stream.stats().groups
        assert (group.ready, group.leased, group.estimated) == (0, 2, False)
        consumer.close()
        [group] = stream.stats().groups
        assert (group.ready, group.leased, group.estimated) == (2, 0, False)
        machine.clock.advance(61)
        [group] = stream.stats().groups
        assert (group.ready, group.leased, group.oldest_age_ms) == (0, 0, None)


def test_a_stream_with_more_than_is_cheap(path: Path) -> None:
    with tailrace.open(path, flush="none") as store:
        stream = store.stream("s")
        stream.publish_many([b"x"] * CHEAP, routing_key="am")
        stream.publish_many([b"x"] * 5, routing_key="eu")
        with stream.consumer("g", filter="eu", auto_commit=False) as consumer:
            consumer.receive(3)
            [group] = stream.stats().groups
            assert group.estimated
            assert group.leased >= 3
            [group] = stream.stats(exact=True).groups
            assert (group.ready, group.leased, group.estimated) == (2, 3, False)


def test_a_queue_that_nobody_works_on() -> None:
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q")
        queue.publish(b"old", timestamp=machine.clock.wall_ms())
        machine.clock.advance(5)
        queue.publish(b"new", timestamp=machine.clock.wall_ms())
        found = store.stats()
        assert (found["q"].lag, found["q"].oldest_age_ms) == (2, 5_000)
        assert 'tailrace_queue_oldest_age_seconds{queue="q"} 5.0\n' in prometheus_text(found)
        with queue.consumer("g") as consumer:
            consumer.ack(consumer.receive(1))
        found = store.stats()
        assert (found["q"].lag, found["q"].oldest_age_ms) == (1, 0)


def test_of_the_disk(path: Path) -> None:
    settings = {"max_used_ratio": 1e-9, "refuse_ratio": 1.0}
    with tailrace.open(path) as store, tailrace.open(path, disk=settings) as other:
        found = store.stats().disk
        assert 0 < found.free_bytes < found.total_bytes
        assert found.used_ratio == pytest.approx(1 - found.free_bytes / found.total_bytes)
        assert found.reserve
        assert other.stats().disk.level == "high"
        text = prometheus_text(other.stats())
        assert "tailrace_disk_refusing 0\n" in text
        assert "tailrace_reserve_present 1\n" in text
        assert "tailrace_disk_used_ratio 0." in text
        other.reserve.spend()
        assert not store.stats().disk.reserve
    refusing = {"max_used_ratio": 1e-9, "refuse_ratio": 1e-9}
    with tailrace.open(path, disk=refusing) as store:
        assert store.stats().disk.level == "refusing"
        assert "tailrace_disk_refusing 1\n" in prometheus_text(store.stats())


def test_who_pins_the_log(path: Path) -> None:
    with tailrace.open(path, segment_bytes=4096, compression="none") as store:
        queue = store.queue("q")
        for _ in range(10):
            queue.publish_many([os.urandom(1000) for _ in range(4)])
        assert (queue.stats().pinned_by, queue.stats().pinned_bytes) == (None, 0)
        for group in ("slow", "fast"):
            with queue.consumer(group) as consumer:
                consumer.ack(consumer.receive(40 if group == "fast" else 4))
        found = queue.stats()
        assert found.pinned_by == "slow"
        assert 25_000 < found.pinned_bytes < found.bytes
        assert found.segments == 10
        with queue.consumer("slow") as consumer:
            consumer.ack(consumer.receive(100))
        assert (queue.stats().pinned_by, queue.stats().pinned_bytes) == (None, 0)


def test_rates() -> None:
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q")
        before = queue.stats()
        queue.publish_many([b"x"] * 40)
        with queue.consumer("g") as consumer:
            consumer.ack(consumer.receive(10))
            between = queue.stats()
            machine.clock.advance(4)
            assert queue.stats().since(before) == (10.0, 0.0)  # the group was not there then
            consumer.ack(consumer.receive(8))
            assert queue.stats().since(between) == (0.0, 2.0)


def test_of_a_store(path: Path) -> None:
    with tailrace.open(path) as store:
        assert store.stats() == {}
        store.queue("b").publish(b"x")
        store.stream("a")
        found = store.stats()
        assert list(found) == ["a", "b"]
        assert found["a"].bytes == 0
        assert found["b"].ready == 1
        assert (found["a"].lag, found["a"].oldest_age_ms) == (0, None)
    with pytest.raises(tailrace.Closed):
        store.stats()


@pytest.mark.parametrize("damage", ["torn", "nonsense", "newer", "no run"])
def test_a_damaged_schedule_hides_nothing_else(path: Path, damage: str) -> None:
    with tailrace.open(path, upkeep=False) as store:
        for name in ("broken", "fine"):
            queue = store.queue(name)
            queue.publish(b"now")
            queue.consumer("g").close()
            queue.publish(b"later", delay="1h")
        incarnation = store.get("broken").incarnation
    [manifest] = [each for each in path.rglob("schedule.json") if each.parent.name == incarnation]
    fs = OsFileSystem()
    if damage == "torn":
        manifest.write_text('{"format": 1}')
    elif damage == "nonsense":
        store_checked_json(fs, str(manifest), {"format": 1, "runs": 7})
    elif damage == "newer":
        store_checked_json(fs, str(manifest), {"format": 2})
    else:
        there = Manifest.load(fs, str(manifest.parent))
        lost = RunInfo("00000007", 0, 1, 1, 0, 0, 0)
        there._replace(runs=(lost,)).store(fs, str(manifest.parent))
    with tailrace.open(path, upkeep=False) as store:
        stats = store.stats()
        broken, fine = stats["broken"], stats["fine"]
        assert (fine.delayed, fine.ready, fine.error) == (1, 1, "")
        assert (broken.delayed, broken.ready) == (0, 1)
        assert broken.error.startswith("what is delayed cannot be read: ")
        assert incarnation in broken.error
        assert store.get("broken").stats().error == broken.error
        text = prometheus_text(stats)
        assert 'tailrace_queue_damaged{queue="broken"} 1' in text
        assert 'tailrace_queue_damaged{queue="fine"} 0' in text
        assert 'tailrace_queue_delayed{queue="fine"} 1' in text
        assert 'tailrace_queue_delayed{queue="broken"}' not in text  # nothing is known of it


def test_a_deleted_queue(path: Path) -> None:
    with tailrace.open(path) as store:
        queue = store.queue("q")
        queue.publish(b"x")
        store.delete("q")
        with pytest.raises(tailrace.Closed):
            queue.stats()
        assert store.stats() == {}


def test_nobody_notices(path: Path) -> None:
    """No file is written, no group is made or joined, and nothing more stays open."""
    with tailrace.open(path) as store:
        queue = store.queue("q")
        queue.publish_many([b"1", b"2"])
        consumer = queue.consumer("g")
        consumer.receive(1)[0].reject("no")

        def tree() -> dict[str, tuple[int, int]]:
            found = {str(each): each.stat() for each in path.rglob("*")}
            return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}

        store.stats()  # by the log that is open, which reads through files of its own
        before, handles = tree(), len(os.listdir("/proc/self/fd"))
        for exact in (False, True):
            store.stats(exact=exact)
        assert tree() == before
        assert len(os.listdir("/proc/self/fd")) == handles
        assert [member.alive for member in queue.group("g").members()] == [True]


@pytest.mark.no_cover
def test_many_queues(path: Path) -> None:
    """What was looked at is closed before the next."""
    with tailrace.open(path, flush="none") as store:
        for number in range(100):
            queue = store.queue(f"q{number}")
            queue.publish(b"x")
            queue.group("g")
            queue.close()
        handles = len(os.listdir("/proc/self/fd"))
        found = store.stats()
        assert len(found) == 100
        assert {each.ready for each in found.values()} == {1}
        assert len(os.listdir("/proc/self/fd")) == handles


def test_after_a_power_cut() -> None:
    """Leases ended with the machine, and it shows."""
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        queue.consumer("g").receive(2)
        assert queue.stats().leased == 2
        machine.power_cut(1)
        again = machine.open()
        [group] = again.stats()["q"].groups
        assert (group.ready, group.leased, group.members) == (3, 0, 0)


def test_for_tasks(path: Path) -> None:
    async def work() -> None:
        async with tailrace.aio.open(path) as store:
            queue = await store.queue("q")
            await queue.publish(b"x")
            found = await queue.stats(exact=True)
            assert (found.ready, found.estimated) == (1, False)
            assert (await store.stats())["q"].ready == 1

    asyncio.run(work())
