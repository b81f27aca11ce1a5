"""Several handles write to one log: each sees what the others did, and goes on from there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace import Log, NotWritten, OutcomeUnknown, Record
from tailrace.log.offline.verify import verify
from tailrace.log.recovery import Diagnosis
from tailrace.log.segments import list_segments
from tailrace.testing import FaultyFileSystem, LoseDirty, RecordingFileSystem, SimulatedDisk, on
from tests.log.helpers import T0, in_threads, offsets, pending, segment_syncs, values

FOLDER = "log"
MODES = ["sync", "async", "none"]


class World:
    """A disk, and the logs that were opened on it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.faults = FaultyFileSystem(self.disk)
        self.recorder = RecordingFileSystem(self.faults)
        self.logs: list[Log] = []

    def open(self, **options: Any) -> Log:
        options = {"fs": self.recorder, "upkeep": False, "mode": "shared", **options}
        log = Log(FOLDER, **options)
        self.logs.append(log)
        return log

    def pair(self, **options: Any) -> tuple[Log, Log]:
        return self.open(**options), self.open(**options)

    def read_only(self) -> Log:
        log = Log(FOLDER, fs=self.disk, read_only=True)
        self.logs.append(log)
        return log

    def bases(self) -> list[int]:
        return [extent.base for extent in list_segments(self.disk, FOLDER)]

    def syncs(self) -> int:
        return segment_syncs(self.recorder)

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def after_power_cut(self, seed: int) -> SimulatedDisk:
        disk = self.disk.clone()
        disk.crash(seed)
        return disk


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def check(world: World, count: int, *logs: Log) -> None:
    """Every handle reads every record, and so does everybody else; then close, and verify."""
    logs[0].flush()
    for log in (*logs, world.read_only()):
        assert offsets(log.read()) == list(range(count))
        assert values(log.read()) == [b"%d" % number for number in range(count)]
        assert log.end_offset == count
    world.close()
    report = verify(world.disk, FOLDER)
    assert not report.findings
    assert report.records == count
    found = diagnosis(world.open(mode="owner"))
    assert found.clean


def diagnosis(log: Log) -> Diagnosis:
    """What the handle found, which was the first."""
    assert log._writer is not None
    assert log._writer.diagnosis is not None
    return log._writer.diagnosis


# --- appending ------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("segment_bytes", [400, 1 << 20])
def test_handles_take_turns(flush: str, segment_bytes: int, world: World) -> None:
    logs = [
        world.open(flush=flush, segment_bytes=segment_bytes, index_interval=100, mode=mode)
        for mode in ("shared", "owner", "shared")
    ]
    rng = random.Random(1)
    for number in range(200):
        log = rng.choice(logs)
        assert log.append_one(b"%d" % number).offset == number
        assert {each.end_offset for each in logs} == {number + 1}
    assert (len(world.bases()) > 10) is (segment_bytes == 400)
    check(world, 200, *logs)


def test_handles_in_threads(world: World) -> None:
    logs = [world.open(flush="async", segment_bytes=2_000, mode="owner") for _ in range(3)]
    found: list[tuple[int, bytes]] = []

    def append(number: int) -> None:
        for i in range(200):
            value = b"%d:%d" % (number, i)
            found.append((logs[number].append_one(value).offset, value))

    in_threads(3, append)
    for log in logs:
        assert [(r.offset, r.value) for r in log.read()] == sorted(found)
    world.close()
    assert not verify(world.disk, FOLDER).findings


@pytest.mark.parametrize("flush", MODES)
def test_segments_are_as_large_as_those_of_one_writer(flush: str, world: World) -> None:
    """Whoever joined when the log was empty, or found it so, knows where to roll."""
    alone = World()
    log = alone.open(flush=flush, segment_bytes=1_000)
    for number in range(100):
        log.append_one(b"%03d" % number)
    alone.close()
    first, second = world.pair(flush=flush, segment_bytes=1_000)
    for number in range(100):
        (second, first)[number // 50].append_one(b"%03d" % number)
    assert world.bases() == alone.bases()


@pytest.mark.parametrize("flush", MODES)
def test_no_segment_is_cut_short(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush)
    for number in range(10):
        (second, first)[number % 2].append_one(b"%d" % number)
    assert world.bases() == [0]


def test_segments_roll_by_age_whoever_wrote_first(world: World) -> None:
    first, second = world.pair(flush="async", segment_age="1h")
    second.append([Record(timestamp=T0, value=b"0")])
    first.append([Record(timestamp=T0 + 3_600_000, value=b"1")])
    assert world.bases() == [0]
    for log, base in ((first, 2), (second, 3)):
        log.append([Record(timestamp=T0 + 3_600_001 * base, value=b"%d" % base)])
        assert world.bases()[-1] == base


def test_indexes_of_segments_that_several_wrote(world: World) -> None:
    """They lead to the right places, by offset and by time, for all."""
    logs = [
        world.open(flush="async", segment_bytes=5_000, index_interval=200, time_index_interval=1)
        for _ in range(3)
    ]
    rng = random.Random(2)
    for number in range(500):
        for log in (rng.choice(logs), rng.choice(logs))[: 1 + (number % 7 == 0)]:
            log.append([Record(timestamp=T0 + log.end_offset * 10, value=b"v")])
    end = logs[0].end_offset
    for log in (*logs, world.read_only()):
        for offset in rng.sample(range(end), 100):
            assert offsets(log.read(offset, offset + 1)) == [offset]
            assert log.offset_at(T0 + offset * 10) == offset
            assert log.offset_at(T0 + offset * 10 - 9) == offset
    world.close()
    assert len(world.bases()) > 5
    assert not verify(world.disk, FOLDER).findings
    sealed = world.open()._writer
    assert sealed is not None
    for extent in list_segments(world.disk, FOLDER)[:-1]:
        assert sealed.catalog.seals.get(*extent) is not None


# --- deletion -------------------------------------------------------------------------------


def fill_segments(log: Log, count: int) -> None:
    for number in range(count):
        log.append_one(b"%04d" % number)


@pytest.mark.parametrize("flush", MODES)
def test_what_one_deletes_is_gone_for_the_others(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush, segment_bytes=400)
    reader = world.read_only()
    fill_segments(first, 60)
    second.flush()
    bases = world.bases()
    first.truncate_before(bases[3] + 1)
    assert second.start_offset == reader.start_offset == bases[3] + 1
    assert offsets(second.read()) == offsets(first.read()) == list(range(bases[3] + 1, 60))
    for log in (second, first):  # both know where the log starts before anything is deleted
        log.append_one(b"more")
    assert second.vacuum().segments == 3
    assert first.vacuum().segments == 0
    assert second.vacuum().segments == 0
    assert world.bases()[0] == bases[3]
    for log in (first, second):
        log.append_one(b"more")
        log.flush()
    for log in (first, second, reader):
        assert offsets(log.read()) == list(range(bases[3] + 1, 64))
    world.close()
    assert not verify(world.disk, FOLDER).problems


@pytest.mark.parametrize("flush", MODES)
def test_a_flush_after_another_deleted_segments(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush, segment_bytes=400)
    fill_segments(first, 60)
    second.append_one(b"more")
    first.truncate_before(world.bases()[5])
    second.append_one(b"more")
    assert first.vacuum().segments == 5
    second.flush()
    assert first.append_one(b"more").wait().offset == 62


def test_retention_by_one(world: World) -> None:
    first, second = world.pair(flush="sync", segment_bytes=400, retention={"max_records": 20})
    for number in range(100):
        (first, second)[number % 2].append_one(b"%04d" % number)
        if number % 10 == 9:
            (second, first)[number % 20 == 9].vacuum()
    first.flush()
    start = first.start_offset
    assert 60 < start <= 80
    assert offsets(first.read()) == offsets(second.read()) == list(range(start, 100))
    world.close()
    assert not verify(world.disk, FOLDER).problems


# --- durability -----------------------------------------------------------------------------


def test_a_flush_of_one_covers_the_others(world: World) -> None:
    first, second = world.pair()
    third = world.open()
    receipts = [log.append_one(b"x") for log in (first, second, third)]
    before = world.syncs()
    receipts[1].wait()
    assert world.syncs() == before + 1
    for receipt in receipts:
        receipt.wait()
        assert receipt.done
    third.flush()
    assert world.syncs() == before + 1
    assert first.durable_offset == second.durable_offset == third.durable_offset == 3
    for seed in range(20):
        with Log(FOLDER, fs=world.after_power_cut(seed)) as log:
            assert offsets(log.read()) == [0, 1, 2]


def test_whoever_flushed_last_knows_how_far_that_went(world: World) -> None:
    """The others look it up, once."""
    first, second = world.pair()

    def looks(log: Log, count: int) -> int:
        before = len(world.faults.calls)
        for _ in range(count):
            log.append_one(b"x").wait()
        calls = world.faults.calls[before:]
        return sum(call.op == "pread" and call.path.endswith("watermark") for call in calls)

    assert looks(first, 5) > 0
    assert looks(first, 5) == 0
    assert looks(second, 5) == 1
    assert looks(first, 5) == 1
    assert offsets(world.read_only().read()) == [*range(20)]


def test_readers_see_what_is_durable_whoever_flushed(world: World) -> None:
    first, second = world.pair()
    receipt = first.append_one(b"0")
    for log in (first, second, world.read_only()):
        assert values(log.read()) == []
    second.append_one(b"1").wait()
    assert pending(receipt) or receipt.done
    for log in (first, second, world.read_only()):
        assert values(log.read()) == [b"0", b"1"]


@pytest.mark.parametrize("joins", ["before", "between", "after"])
@pytest.mark.parametrize("flush", ["async", "none"])
def test_a_flush_covers_the_segments_that_others_rolled(
    flush: str, joins: str, world: World
) -> None:
    first = world.open(flush=flush, segment_bytes=400)
    second = world.open(segment_bytes=400) if joins == "before" else None
    fill_segments(first, 20)
    second = world.open(segment_bytes=400) if joins == "between" else second
    fill_segments(first, 20)
    second = second or world.open(segment_bytes=400)
    second.flush()
    assert not [name for name in world.disk.unsynced() if name.endswith(".seg")]
    for seed in range(20):
        with Log(FOLDER, fs=world.after_power_cut(seed)) as log:
            assert offsets(log.read(end=40)) == list(range(40))


@pytest.mark.parametrize("flush", MODES)
def test_a_flush_covers_what_an_owner_appended_in_a_turn_that_it_keeps(
    flush: str, world: World
) -> None:
    first, second = world.open(flush=flush, mode="owner"), world.open()
    writer = first._writer
    assert writer is not None
    for _ in range(5):
        while not writer.turn.held:
            first.append_one(b"x")
        second.flush()
        first.append_one(b"kept")
        second.flush()
        for seed in range(2):
            with Log(FOLDER, fs=world.after_power_cut(seed)) as log:
                assert offsets(log.read(end=first.end_offset)) == list(range(first.end_offset))


@pytest.mark.parametrize("joins", ["before", "after"])
@pytest.mark.parametrize("flush", ["async", "none"])
def test_a_handle_that_is_stricter_than_the_others(flush: str, joins: str, world: World) -> None:
    """Its receipts hold, whatever the others have left to later."""
    loose = world.open(flush=flush, segment_bytes=400)
    strict = world.open(flush="sync", segment_bytes=400) if joins == "before" else None
    fill_segments(loose, 30)
    strict = strict or world.open(flush="sync", segment_bytes=400)
    receipt = strict.append_one(b"strict").wait()
    fill_segments(loose, 30)
    last = strict.append_one(b"strict").wait()
    for seed in range(20):
        with Log(FOLDER, fs=world.after_power_cut(seed)) as log:
            found = list(log.read(end=last.end_offset))
            assert offsets(found) == list(range(last.end_offset))
            assert found[receipt.offset].value == found[last.offset].value == b"strict"


def is_refused(log: Log) -> bool:
    try:
        log.append_one(b"never").wait()
        log.flush()
    except (NotWritten, OutcomeUnknown):
        return True
    return False


def fail_flush(world: World, log: Log) -> None:
    world.faults.plan = on("sync", LoseDirty(), path="*.seg")
    with pytest.raises(OutcomeUnknown):
        log.flush()
    world.faults.plan = None


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_flush_that_fails_stops_all(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush)
    first.append_one(b"0")
    first.flush()
    second.append_one(b"1")
    fail_flush(world, second)
    for log in (second, first):
        assert is_refused(log)
        with pytest.raises(NotWritten, match="a flush failed"):
            log.append_one(b"never")
    second.close()
    again = world.open()
    assert diagnosis(again).poison is not None
    assert values(again.read(end=1)) == [b"0"]
    for value in (b"2", b"3"):  # what one can do again, the other cannot
        with pytest.raises(NotWritten, match="reopen the log"):
            first.append_one(b"never")
        receipt = again.append_one(value).wait()
    again.flush()
    first.close()
    first = world.open()
    assert first.append_one(b"4").wait().offset == receipt.offset + 1
    first.flush()
    for log in (first, again):
        assert values(log.read(receipt.offset - 1)) == [b"2", b"3", b"4"]


def test_one_who_was_idle_when_a_flush_failed(world: World) -> None:
    """It is refused all the same, even though others have recovered the log since."""
    first, second = world.pair()
    first.append_one(b"0").wait()
    second.append_one(b"1")
    fail_flush(world, second)
    second.close()
    second = world.open()
    second.append_one(b"2").wait()
    assert is_refused(first)
    with pytest.raises(NotWritten, match="reopen the log"):
        first.append_one(b"never")
    assert values(second.read()) == [b"0", b"2"]
    assert second.append_one(b"3").wait().offset == second.end_offset - 1


# --- the first and the last -----------------------------------------------------------------


@pytest.mark.parametrize("flush", MODES)
def test_the_last_one_closes_the_log(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush)
    first.append_one(b"0")
    second.append_one(b"1")
    first.close()
    assert f"{FOLDER}/.tailrace/clean" not in world.disk.files()
    third = world.open()
    second.close()
    assert third.append_one(b"2").offset == 2
    third.close()
    assert f"{FOLDER}/.tailrace/clean" in world.disk.files()
    last = world.open()
    assert diagnosis(last).clean
    assert values(last.read()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("flush", MODES)
def test_a_log_whose_last_one_was_killed(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush)
    first.append_one(b"0")
    second.append_one(b"1")
    first.close()
    world.disk.kill()
    last = world.open()
    assert not diagnosis(last).clean
    assert offsets(last.read()) == [0, 1]
    assert last.append_one(b"2").offset == 2
    last.close()
    world.logs.clear()


def test_the_last_one_gives_back_the_offsets_that_others_reserved(world: World) -> None:
    """Or a power cut long after would leave a gap."""
    first, second = world.pair(flush="async")
    first.append_one(b"0")
    first.close()
    second.close()
    world.open()
    for seed in range(5):
        with Log(FOLDER, fs=world.after_power_cut(seed)) as log:
            assert log.end_offset == 1
    world.disk.kill()
    world.logs.clear()


# --- idempotent producers -------------------------------------------------------------------


@pytest.mark.parametrize("flush", MODES)
def test_producers_of_all_handles(flush: str, world: World) -> None:
    first, second = world.pair(flush=flush, segment_bytes=500)

    def append(log: Log, producer: str, sequence: int) -> int:
        return log.append([b"v"], producer=producer, sequence=sequence).offset

    assert append(first, "p", 1) == append(second, "p", 1) == append(first, "p", 1) == 0
    assert append(second, "p", 2) == 1
    second.append_one(b"its own")
    assert append(second, "q", 7) == 3
    assert append(first, "p", 2) == 1
    assert append(first, "q", 7) == 3
    for number in range(3, 40):
        (first, second)[number % 2].append_one(b"between")
        offset = append((first, second)[number % 3 == 0], "p", number)
        assert append(first, "p", number) == append(second, "p", number) == offset
    first.close()
    third = world.open()
    assert append(third, "p", 39) == offset
    with pytest.raises(NotWritten, match="sequences must rise"):
        append(third, "q", 6)
    third.close()
    second.close()
    assert append(world.open(), "p", 39) == offset
    assert offsets(world.logs[-1].read("first", 4)) == [0, 1, 2, 3]
