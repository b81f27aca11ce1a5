"""`recover`: what is damaged is taken out and accounted for, and everything else stays."""

from __future__ import annotations

import errno
import random
from itertools import islice
from typing import Any

import pytest

from tailrace import Locked, Log
from tailrace.errors import ConfigError
from tailrace.kernel import crc32c
from tailrace.log.fs import FileSystem
from tailrace.log.offline.repair import RecoveryReport, recover
from tailrace.log.offline.verify import verify
from tailrace.log.sidefiles import Gap, Gaps, Poison, Seals, Watermark, WatermarkFile
from tailrace.testing import Crash, Fail, SimulatedDisk, every_call
from tests.log.damage import (
    FOLDER,
    WRITES,
    Loss,
    build,
    damage,
    layout,
    read_past_damage,
    segments,
    spoil,
)


def gaps(fs: FileSystem) -> list[Gap]:
    found = Gaps(fs, FOLDER)
    found.load()
    return found.all()


def lost_and_acknowledged(fs: FileSystem) -> set[int]:
    found = [gap for gap in gaps(fs) if gap.kind == "lost"]
    assert all(gap.acknowledged for gap in found)
    return {offset for gap in found for offset in range(gap.first, gap.next)}


def kinds(report: RecoveryReport) -> list[str]:
    return [action.kind for action in report.actions]


def assert_in_order(disk: SimulatedDisk, present: list[int], lost: set[int]) -> None:
    """The log is whole, has these records, and says that those are lost."""
    report = verify(disk, FOLDER)
    assert report.problems == []
    assert recover(disk, FOLDER).actions == []
    assert lost_and_acknowledged(disk) == lost
    assert read_past_damage(disk) == (present, 0)
    for path in segments(disk):  # FluxMQ walks the headers of every file, and wants no other bytes
        data = disk.read(path)
        position = 0
        while position < len(data):
            assert data[position : position + 4] == b"XULF"
            position += 44 + int.from_bytes(data[position + 16 : position + 20], "little")
        assert position == len(data)


# --- one thing at a time --------------------------------------------------------------------


def test_a_sound_log_is_left_alone() -> None:
    disk = build()
    before = {path: disk.read(path) for path in disk.files()}
    assert recover(disk, FOLDER).actions == []
    report = recover(disk, FOLDER, apply=True)
    assert report.actions == []
    assert report.applied
    assert {path: disk.read(path) for path in disk.files()} == before


def test_a_log_that_was_not_closed_needs_nothing() -> None:
    disk = SimulatedDisk()
    log = Log(FOLDER, fs=disk, upkeep=False)
    log.append([b"0"]).wait()
    disk.kill()
    assert recover(disk, FOLDER).actions == []


def test_a_dry_run_changes_nothing() -> None:
    disk = build()
    spoil(disk, layout(disk)[3])
    before = {path: disk.read(path) for path in disk.files()}
    report = recover(disk, FOLDER)
    assert kinds(report) == ["split", "lost"]
    assert not report.applied
    assert {path: disk.read(path) for path in disk.files()} == before


@pytest.mark.parametrize("which", [0, 1, 3, -2, -1])
def test_one_damaged_batch(which: int) -> None:
    disk = build()
    batches = layout(disk)
    batch = batches[which]
    end = batches[-1].next
    spoil(disk, batch)
    spoiled = disk.read(batch.path)[batch.position : batch.position + batch.size]
    report = recover(disk, FOLDER, apply=True)
    assert report.applied
    lost = set(range(batch.first, batch.next))
    assert_in_order(disk, [o for o in range(end) if o not in lost], lost)
    (kept,) = report.quarantined
    assert disk.read(f"{FOLDER}/{kept}") == spoiled
    with Log(FOLDER, fs=disk, upkeep=False) as log:
        assert log.append([b"%d" % end]).offset == end  # no offset is used twice


def test_what_follows_damage_goes_to_a_segment_of_its_own() -> None:
    disk = build()
    batches = layout(disk)
    spoil(disk, batches[2])
    report = recover(disk, FOLDER, apply=True)
    name = f"{FOLDER}/{batches[3].first:020d}.seg"
    assert name in disk.files()
    assert name.rpartition("/")[2] in report.actions[0].message
    last = batches[1]
    assert len(disk.read(last.path)) == last.position + last.size


def test_the_report_says_what_is_lost() -> None:
    disk = build()
    batch = layout(disk)[2]
    spoil(disk, batch)
    action = next(a for a in recover(disk, FOLDER).actions if a.kind == "lost")
    assert (action.first_offset, action.next_offset) == (batch.first, batch.next)


@pytest.mark.parametrize("extension", ["idx", "tix"])
@pytest.mark.parametrize("how", ["unlink", "flip", "shorten", "swap"])
def test_indexes_are_made_anew(extension: str, how: str) -> None:
    disk = build()
    path = segments(disk)[1].replace(".seg", f".{extension}")
    right = disk.read(path)
    if how == "unlink":
        disk.unlink(path)
    elif how == "flip":
        disk.corrupt(path, len(right) - 1, bytes([right[-1] ^ 0x55]))
    elif how == "shorten":
        disk.put(path, right[:-3])
    else:
        disk.put(path, disk.read(segments(disk)[2].replace(".seg", f".{extension}")))
    report = recover(disk, FOLDER, apply=True)
    assert kinds(report) == ["index"]
    # As the default options make it: few entries, and right ones.
    assert verify(disk, FOLDER).findings == []
    assert recover(disk, FOLDER).actions == []


def test_a_loss_that_was_recorded_is_acknowledged() -> None:
    disk = build()
    batches = layout(disk)
    spoil(disk, batches[-2])
    disk.unlink(f"{FOLDER}/.tailrace/clean")
    Log(FOLDER, fs=disk, upkeep=False).close()  # records the loss, and keeps the bytes
    assert [gap.acknowledged for gap in gaps(disk)] == [False]
    assert "acknowledge" in kinds(recover(disk, FOLDER))
    recover(disk, FOLDER, apply=True)
    lost = set(range(batches[-2].first, batches[-2].next))
    assert_in_order(disk, [o for o in range(batches[-1].next) if o not in lost], lost)


def test_a_torn_tail_is_cut() -> None:
    disk = build()
    end = layout(disk)[-1].next
    path = segments(disk)[-1]
    disk.unlink(f"{FOLDER}/.tailrace/clean")
    disk.put(path, disk.read(path) + b"XULF torn")
    assert kinds(recover(disk, FOLDER)) == ["cut"]
    recover(disk, FOLDER, apply=True)
    assert_in_order(disk, list(range(end)), set())


def test_poison_is_cleared() -> None:
    disk = build()
    batches = layout(disk)
    last_good = batches[-2]
    where = (int(last_good.path[-24:-4]), last_good.position + last_good.size)
    mark = WatermarkFile(disk, FOLDER)
    mark.load()
    mark.store(Watermark(last_good.next, *where, disk.boot_id()))
    mark.close()
    Poison(last_good.next, *where, "EIO").store(disk, FOLDER)
    assert {"cut", "file"} <= set(kinds(recover(disk, FOLDER)))
    recover(disk, FOLDER, apply=True)
    lost = set(range(batches[-1].first, batches[-1].next))
    present = [o for o in range(batches[-1].next) if o not in lost]
    report = verify(disk, FOLDER)
    assert report.problems == []
    assert read_past_damage(disk)[0] == present
    assert recover(disk, FOLDER).actions == []


def test_a_batch_of_good_checksum_and_bad_records() -> None:
    """No disk does that, but a writer may."""
    disk = build()
    batch = layout(disk)[3]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    data[44] = 7  # the first offset delta
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")
    disk.corrupt(batch.path, batch.position, bytes(data))
    recover(disk, FOLDER, apply=True)
    lost = set(range(batch.first, batch.next))
    assert_in_order(disk, [o for o in range(layout(disk)[-1].next) if o not in lost], lost)


def test_bytes_in_front_of_the_first_batch() -> None:
    disk = build()
    end = layout(disk)[-1].next
    path = segments(disk)[1]
    disk.put(path, b"something else" + disk.read(path))
    recover(disk, FOLDER, apply=True)
    assert_in_order(disk, list(range(end)), set())


def test_a_whole_segment_of_rubbish() -> None:
    disk = build()
    batches = layout(disk)
    path = segments(disk)[1]
    disk.put(path, b"rubbish" * 40)
    recover(disk, FOLDER, apply=True)
    lost = {o for b in batches if b.path == path for o in range(b.first, b.next)}
    assert_in_order(disk, [o for o in range(batches[-1].next) if o not in lost], lost)
    assert path not in disk.files()


def test_everything_is_rubbish() -> None:
    disk = build(appends=5)
    end = layout(disk)[-1].next
    for path in segments(disk):
        disk.put(path, b"rubbish" * 40)
    recover(disk, FOLDER, apply=True)
    assert_in_order(disk, [], set(range(end)))
    with Log(FOLDER, fs=disk, upkeep=False) as log:
        assert log.append_one(b"%d" % end).offset == end


def test_a_log_that_somebody_writes_to() -> None:
    disk = build()
    spoil(disk, layout(disk)[2])
    with Log(FOLDER, fs=disk, upkeep=False), pytest.raises(Locked):
        recover(disk, FOLDER, apply=True)


def test_a_newer_format_is_not_touched() -> None:
    disk = build()
    batch = layout(disk)[3]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    data[25] = 2
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")
    disk.corrupt(batch.path, batch.position, bytes(data))
    before = {path: disk.read(path) for path in disk.files()}
    for apply in (False, True):
        with pytest.raises(ConfigError, match="upgrade tailrace"):
            recover(disk, FOLDER, apply=apply)
    assert {path: disk.read(path) for path in disk.files()} == before


def test_an_unknown_codec_is_not_touched() -> None:
    disk = build()
    batch = layout(disk)[3]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    data[22] |= 1
    data[24] = 9
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")
    disk.corrupt(batch.path, batch.position, bytes(data))
    with pytest.raises(ConfigError, match="codec 9"):
        recover(disk, FOLDER, apply=True)


def test_without_a_watermark_nothing_whole_is_given_up() -> None:
    """Opening the log would cut off everything behind the damage in the last segment."""
    disk = build(segment_bytes=100_000)
    batches = layout(disk)
    spoil(disk, batches[4])
    disk.put(f"{FOLDER}/.tailrace/watermark", b"x" * 1024)
    disk.unlink(f"{FOLDER}/.tailrace/clean")
    assert any("before that" in finding.message for finding in verify(disk, FOLDER).problems)
    recover(disk, FOLDER, apply=True)
    lost = set(range(batches[4].first, batches[4].next))
    assert_in_order(disk, [o for o in range(batches[-1].next) if o not in lost], lost)


def test_without_a_watermark_a_torn_tail_is_cut_all_the_same() -> None:
    disk = build(segment_bytes=100_000)
    batches = layout(disk)
    spoil(disk, batches[4])
    disk.put(batches[0].path, disk.read(batches[0].path) + b"XULF torn")
    disk.put(f"{FOLDER}/.tailrace/watermark", b"x" * 1024)
    disk.unlink(f"{FOLDER}/.tailrace/log.json")
    disk.unlink(f"{FOLDER}/.tailrace/clean")
    assert {"cut", "split", "lost"} <= set(kinds(recover(disk, FOLDER)))
    recover(disk, FOLDER, apply=True)
    lost = set(range(batches[4].first, batches[4].next))
    assert_in_order(disk, [o for o in range(batches[-1].next) if o not in lost], lost)


def test_a_seal_that_is_wrong() -> None:
    disk = build()
    seals = Seals(disk, FOLDER)
    seals.load({0})
    seal = seals.get(0, len(disk.read(segments(disk)[0])))
    assert seal is not None
    seals.add(seal._replace(max_timestamp=5))
    assert kinds(recover(disk, FOLDER, apply=True)) == ["seal"]
    assert verify(disk, FOLDER).findings == []


def test_a_folder_of_another_writer() -> None:
    disk = build(segment_bytes=300)
    batches = layout(disk)
    for path in disk.files():
        if ".tailrace" in path or path == batches[8].path:
            disk.unlink(path)  # a gap between segments, which is none of our business
    assert recover(disk, FOLDER).actions[0].kind == "remove"  # the indexes of that segment
    for extension in ("idx", "tix"):
        disk.unlink(batches[8].path.replace("seg", extension))
    assert recover(disk, FOLDER).actions == []
    spoil(disk, batches[-2])
    gone = {o for b in batches if b.path == batches[8].path for o in range(b.first, b.next)}
    lost = set(range(batches[-2].first, batches[-2].next))
    recover(disk, FOLDER, apply=True)
    present = [o for o in range(batches[-1].next) if o not in lost | gone]
    assert_in_order(disk, present, lost)


@pytest.mark.parametrize("name", ["log.json", "watermark", "reserved", "start", "gaps", "poisoned"])
def test_side_files_are_made_anew(name: str) -> None:
    disk = build()
    end = layout(disk)[-1].next
    disk.put(f"{FOLDER}/.tailrace/{name}", b"not what it should be\n" * 60)
    assert not verify(disk, FOLDER).ok
    report = recover(disk, FOLDER, apply=True)
    assert "file" in kinds(report)
    assert_in_order(disk, list(range(end)), set())


def test_a_watermark_that_is_wrong() -> None:
    disk = build()
    end = layout(disk)[-1].next
    mark = WatermarkFile(disk, FOLDER)
    before = mark.load()
    assert before is not None
    mark.store(Watermark(before.durable, before.segment, before.position - 1, before.boot_id))
    mark.close()
    assert not verify(disk, FOLDER).ok
    recover(disk, FOLDER, apply=True)
    assert_in_order(disk, list(range(end)), set())


# --- at random ------------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("seed", range(40))
def test_random_damage(seed: int, flush: str) -> None:
    """Records outside the damaged batches survive, and what is lost is exactly accounted for."""
    rng = random.Random(seed)
    disk = build(seed, appends=rng.randint(3, 60), flush=flush)
    if rng.random() < 0.5 and flush != "none":
        disk.unlink(f"{FOLDER}/.tailrace/clean")
    end = layout(disk)[-1].next
    # Of a `none` log nobody promised anything but what was closed.
    loss = damage(disk, rng, spare_last=flush == "none")
    before = verify(disk, FOLDER)
    assert not before.ok or not loss.sure
    recover(disk, FOLDER, apply=True)
    lost = assert_accounted_for(disk, end, loss)
    with Log(FOLDER, fs=disk, upkeep=False) as log:
        assert log.append_one(b"%d" % end).offset == end
    assert verify(disk, FOLDER).ok
    assert lost_and_acknowledged(disk) == lost


def assert_accounted_for(disk: SimulatedDisk, end: int, loss: Loss) -> set[int]:
    lost = lost_and_acknowledged(disk)
    assert loss.sure <= lost <= loss.sure | loss.possible
    assert_in_order(disk, [o for o in range(end) if o not in lost], lost)
    return lost


# --- interrupted ----------------------------------------------------------------------------


def damaged_disk() -> tuple[SimulatedDisk, set[int], int]:
    disk = build(appends=12, segment_bytes=350)
    batches = layout(disk)
    chosen = [batches[1], batches[3], batches[4], batches[-3], batches[-1]]
    for batch in chosen:
        spoil(disk, batch)
    lost = {offset for batch in chosen for offset in range(batch.first, batch.next)}
    return disk, lost, batches[-1].next


def repair(fs: FileSystem, _: list[Any]) -> None:
    recover(fs, FOLDER, apply=True)


# What is there before a call is what was there after the one before it, mostly.
@pytest.mark.no_cover
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_call(step: int, after: bool, power_cut: bool) -> None:
    """Whatever was done, an open shows the same records, each once; and doing it again completes
    it."""
    damaged, lost, end = damaged_disk()
    present = [o for o in range(end) if o not in lost]
    runs = 0
    crashes = every_call(repair, Crash(after=after), damaged.clone, ops=WRITES)
    for run in islice(crashes, 0, None, step):
        disk = run.disk
        assert isinstance(disk, SimulatedDisk)
        if power_cut:
            disk.crash(run.call.n)
        else:
            disk.kill()
        opened = disk.clone()
        assert read_past_damage(opened)[0] == present, run.call
        with Log(FOLDER, fs=opened, upkeep=False) as log:
            log.append([b"%d" % end])
        assert read_past_damage(opened)[0] == [*present, end], run.call
        for again in (disk, opened):
            recover(again, FOLDER, apply=True)
            assert verify(again, FOLDER).problems == [], run.call
            assert recover(again, FOLDER).actions == [], run.call
        assert_in_order(disk, present, lost)
        assert read_past_damage(opened) == ([*present, end], 0)
        runs += step
    assert runs > 100


@pytest.mark.no_cover
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_an_error_at_any_call(step: int, error: int) -> None:
    """The log is not left locked, and doing it again completes it."""
    damaged, lost, end = damaged_disk()
    present = [o for o in range(end) if o not in lost]
    errors = every_call(repair, Fail(error), damaged.clone, ops=WRITES)
    for run in islice(errors, 0, None, step):
        disk = run.disk
        assert isinstance(disk, SimulatedDisk)
        assert not any(path.endswith((".seg", ".tmp", ".cut")) for path in disk.open_files())
        recover(disk, FOLDER, apply=True)
        assert_in_order(disk, present, lost)


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(15))
def test_power_cuts_while_random_damage_is_repaired(seed: int) -> None:
    rng = random.Random(seed)
    damaged = build(seed, appends=rng.randint(5, 20), segment_bytes=300)
    end = layout(damaged)[-1].next
    loss = damage(damaged, rng)
    readable = read_past_damage(damaged.clone())[0]
    for run in every_call(repair, Crash(), damaged.clone, ops=("rename", "truncate", "sync_dir")):
        disk = run.disk
        assert isinstance(disk, SimulatedDisk)
        disk.crash(seed * 1000 + run.call.n)
        assert read_past_damage(disk.clone())[0] == readable
        recover(disk, FOLDER, apply=True)
        assert_accounted_for(disk, end, loss)
        assert read_past_damage(disk)[0] == readable
