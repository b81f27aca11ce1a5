"""`verify`: every kind of damage is found, what is normal is no problem, and nothing is changed."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tailrace import Log, Record
from tailrace.kernel import crc32c
from tailrace.log.extents import Extent
from tailrace.log.fs import OsFileSystem
from tailrace.log.index import TimeIndex
from tailrace.log.offline.verify import VerifyReport, verify
from tailrace.log.sidefiles import (
    CleanMarker,
    Gap,
    Gaps,
    Poison,
    Seals,
    StartOffset,
    Watermark,
    WatermarkFile,
    store_checked_json,
)
from tailrace.testing import SimulatedDisk
from tests.log.damage import FOLDER, build, damage, layout, segments, spoil

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "fluxmq"
SIDE = f"{FOLDER}/.tailrace"


def messages(report: VerifyReport, severity: str = "problem") -> list[str]:
    return [f"{f.path}: {f.message}" for f in report.findings if f.severity == severity]


def only(report: VerifyReport, severity: str = "problem") -> str:
    """The one finding that there is."""
    assert [f.severity for f in report.findings] == [severity], report.findings
    return messages(report, severity)[0]


def unclean(disk: SimulatedDisk) -> None:
    disk.unlink(f"{SIDE}/clean")


# --- sound logs -----------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_sound_log(flush: str) -> None:
    disk = build(flush=flush)
    before = {path: disk.read(path) for path in disk.files()}
    seen: list[tuple[int, int]] = []
    report = verify(disk, FOLDER, lambda done, total: seen.append((done, total)))
    assert report.findings == []
    assert report.ok
    batches = layout(disk)
    assert report.records == report.end_offset == batches[-1].next
    assert report.start_offset == 0
    assert report.batches == len(batches)
    assert report.segments == len(segments(disk))
    assert report.bytes == sum(len(disk.read(path)) for path in segments(disk))
    assert seen[-1] == (report.bytes, report.bytes)
    assert seen == sorted(seen)
    assert {path: disk.read(path) for path in disk.files()} == before
    assert disk.open_files() == []


def test_an_empty_log() -> None:
    disk = SimulatedDisk()
    Log(FOLDER, fs=disk, upkeep=False).close()
    report = verify(disk, FOLDER)
    assert report.findings == []
    assert (report.records, report.end_offset) == (0, 0)


def test_a_log_in_use_has_no_problem() -> None:
    disk = SimulatedDisk()
    with Log(FOLDER, fs=disk, upkeep=False, segment_bytes=200) as log:
        for i in range(20):
            log.append([b"%d" % i]).wait()
        assert verify(disk, FOLDER).ok


def test_a_log_that_was_killed_has_no_problem() -> None:
    disk = SimulatedDisk()
    log = Log(FOLDER, fs=disk, upkeep=False, segment_bytes=200)
    for i in range(20):
        log.append([b"%d" % i]).wait()
    log.append([b"not waited for"])
    disk.kill()
    assert verify(disk, FOLDER).ok


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_and_an_open_nothing_is_wrong_but_indexes(seed: int) -> None:
    disk = SimulatedDisk()
    log = Log(FOLDER, fs=disk, upkeep=False, segment_bytes=300)
    for i in range(20):
        log.append([b"%d" % i]).wait()
    log.append([b"not waited for"])
    disk.crash(seed)
    before = verify(disk, FOLDER)
    assert all(f.path.endswith(("idx", "tix")) for f in before.problems), before.problems
    Log(FOLDER, fs=disk, upkeep=False).close()
    after = verify(disk, FOLDER)
    assert all(f.path.endswith(("idx", "tix")) for f in after.problems), after.problems


def test_after_truncation_and_vacuum() -> None:
    disk = build()
    with Log(FOLDER, fs=disk, upkeep=False) as log:
        log.truncate_before(40)
        log.vacuum()
    report = verify(disk, FOLDER)
    assert report.findings == []
    assert report.start_offset == 40


@pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")
@pytest.mark.parametrize("codec", ["none", "s2"])
@pytest.mark.parametrize("queue", ["orders", "events", "eph"])
def test_files_of_fluxmq(codec: str, queue: str, tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    shutil.copytree(FIXTURES / codec / "queues" / queue / "segments", folder)
    report = verify(OsFileSystem(), str(folder))
    assert report.findings == []
    assert report.records == (53 if queue == "orders" else 0)
    assert not (folder / ".tailrace").exists()


# --- segments -------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_segment_is_found() -> None:
    disk = build(appends=8, segment_bytes=200)
    path = segments(disk)[1]
    data = disk.read(path)
    for position in range(len(data)):
        disk.corrupt(path, position, bytes([data[position] ^ 0x20]))
        report = verify(disk, FOLDER)
        assert any(f.path == path.rpartition("/")[2] for f in report.problems), position
        disk.corrupt(path, position, data[position : position + 1])
    assert verify(disk, FOLDER).findings == []


def test_damage_tells_where_and_what() -> None:
    disk = build()
    batch = layout(disk)[3]
    spoil(disk, batch)
    (finding,) = verify(disk, FOLDER).findings
    assert finding.severity == "problem"
    assert finding.path == batch.path.rpartition("/")[2]
    assert (finding.position, finding.offset) == (batch.position, batch.first)
    assert "checksum" in finding.message


@pytest.mark.no_cover
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("seed", range(25))
def test_random_damage_is_found(seed: int, flush: str) -> None:
    disk = build(seed, flush=flush)
    loss = damage(disk, random.Random(seed), spare_last=flush == "none")
    report = verify(disk, FOLDER)
    assert not report.ok or not loss.sure
    assert disk.open_files() == []


def test_a_torn_tail_is_a_note() -> None:
    disk = build()
    unclean(disk)
    path = segments(disk)[-1]
    disk.put(path, disk.read(path) + b"XULF and no more")
    message = only(verify(disk, FOLDER), "note")
    assert "will be cut off by the next open" in message


def test_a_missing_tail_is_a_problem() -> None:
    disk = build()
    unclean(disk)
    path = segments(disk)[-1]
    disk.put(path, disk.read(path)[:-3])
    report = verify(disk, FOLDER)
    assert any("lost" in message for message in messages(report))


def test_a_missing_segment() -> None:
    disk = build()
    disk.unlink(segments(disk)[2])
    assert any("not there" in message for message in messages(verify(disk, FOLDER)))


def test_a_missing_segment_of_another_writer_is_a_note() -> None:
    disk = build()
    missing = segments(disk)[2][:-4]
    for path in disk.files():
        if ".tailrace" in path or path.startswith(missing):
            disk.unlink(path)
    assert "not there" in only(verify(disk, FOLDER), "note")


def test_records_that_cannot_be_decoded() -> None:
    disk = build()
    batch = layout(disk)[3]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    data[44] = 9
    rewrite(disk, batch.path, batch.position, data)
    assert "cannot be read" in only(verify(disk, FOLDER))


@pytest.mark.parametrize(("change", "severity"), [(-1, "problem"), (1, "note")])
def test_a_wrong_greatest_timestamp(change: int, severity: str) -> None:
    disk = build(appends=3, segment_bytes=10_000)
    batch = layout(disk)[1]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    stamp = int.from_bytes(data[36:44], "little") + change
    data[36:44] = stamp.to_bytes(8, "little")
    rewrite(disk, batch.path, batch.position, data)
    report = verify(disk, FOLDER)
    found = [f for f in report.findings if f.path.endswith(".seg")]
    assert [f.severity for f in found] == [severity]
    assert "greatest timestamp" in found[0].message


def rewrite(disk: SimulatedDisk, path: str, position: int, batch: bytearray) -> None:
    """Put a changed batch in its place, with the checksum that belongs to it."""
    batch[4:8] = crc32c(batch[8:]).to_bytes(4, "little")
    disk.corrupt(path, position, bytes(batch))


def test_a_newer_format_is_named() -> None:
    disk = build()
    batch = layout(disk)[3]
    data = bytearray(disk.read(batch.path)[batch.position : batch.position + batch.size])
    data[25] = 2
    rewrite(disk, batch.path, batch.position, data)
    assert "newer tailrace" in only(verify(disk, FOLDER))


def test_batches_that_are_there_twice() -> None:
    disk = build()
    first, second = segments(disk)[:2]
    disk.put(first, disk.read(first) + disk.read(second))
    assert any("next segment as well" in m for m in messages(verify(disk, FOLDER)))


def test_offsets_that_go_back() -> None:
    disk = build()
    first = segments(disk)[0]
    disk.put(first, disk.read(first) + disk.read(first))
    assert any("is due" in message for message in messages(verify(disk, FOLDER)))


# --- indexes --------------------------------------------------------------------------------


def timed_log() -> SimulatedDisk:
    """Two segments, the first one with several entries in each index."""
    disk = SimulatedDisk()
    with Log(FOLDER, fs=disk, upkeep=False, segment_bytes=600, index_interval=100) as log:
        for i in range(12):
            log.append([Record(timestamp=1_700_000_000_000 + 2_000 * i, value=b"%d" % i)]).wait()
    return disk


@pytest.mark.parametrize("extension", ["idx", "tix"])
def test_every_flipped_byte_of_an_index_is_found(extension: str) -> None:
    disk = timed_log()
    assert verify(disk, FOLDER).findings == []
    path = segments(disk)[0].replace("seg", extension)
    data = disk.read(path)
    severities = set()
    for position in range(len(data)):
        disk.corrupt(path, position, bytes([data[position] ^ 0x01]))
        found = verify(disk, FOLDER).findings
        assert {f.path for f in found} == {path.rpartition("/")[2]}, position
        if position >= (32 if extension == "idx" else 36):
            assert any(f.severity == "problem" for f in found), position
        severities |= {f.severity for f in found}
        disk.corrupt(path, position, data[position : position + 1])
    assert severities == {"problem", "note"}


@pytest.mark.no_cover
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("extension", ["idx", "tix"])
def test_every_shortened_index_is_found(extension: str, sealed: bool) -> None:
    disk = timed_log()
    if not sealed:
        disk.unlink(f"{SIDE}/seals")
    path = segments(disk)[0].replace("seg", extension)
    data = disk.read(path)
    for size in range(len(data)):
        disk.put(path, data[:size])
        report = verify(disk, FOLDER)
        assert report.findings, size
        assert not report.ok or not sealed, size
    disk.unlink(path)
    assert "is missing" in only(verify(disk, FOLDER))


@pytest.mark.parametrize("extension", ["idx", "tix"])
def test_an_index_with_more_than_there_is(extension: str) -> None:
    disk = timed_log()
    path = segments(disk)[0].replace("seg", extension)
    disk.put(path, disk.read(path) + b"\xff" * (8 if extension == "idx" else 12))
    assert any("where no batch begins" in m for m in messages(verify(disk, FOLDER)))


@pytest.mark.parametrize("extension", ["idx", "tix"])
def test_the_index_of_another_segment(extension: str) -> None:
    disk = timed_log()
    first, second = (path.replace("seg", extension) for path in segments(disk)[:2])
    disk.put(first, disk.read(second))
    assert "belongs to the segment" in only(verify(disk, FOLDER))


def test_the_index_of_the_segment_being_written_may_be_behind() -> None:
    disk = timed_log()
    unclean(disk)
    path = segments(disk)[-1].replace("seg", "idx")
    disk.put(path, b"")
    assert "the next open makes it anew" in only(verify(disk, FOLDER), "note")


def test_an_index_without_a_segment() -> None:
    disk = timed_log()
    disk.put(f"{FOLDER}/{777:020d}.idx", b"")
    assert "left over" in only(verify(disk, FOLDER), "note")


# --- logs that somebody writes to -----------------------------------------------------------


def hold(disk: SimulatedDisk, pid: int, host: str | None = None) -> None:
    host = host or os.uname().nodename
    note = {"pid": pid, "host": host, "since": 1_700_000_000, "mode": "owner"}
    disk.put(f"{SIDE}/members", json.dumps([note]).encode())


def unfinished() -> SimulatedDisk:
    """A log with everything that a writer leaves for later."""
    disk = timed_log()
    last = segments(disk)[-1]
    disk.put(last.replace("seg", "idx"), b"")
    disk.put(last, disk.read(last) + b"torn")
    disk.put(f"{SIDE}/watermark.tmp", b"")
    return disk


def test_what_is_unfinished_is_being_written() -> None:
    disk = unfinished()
    hold(disk, os.getpid())
    report = verify(disk, FOLDER)
    assert [writer.pid for writer in report.writers] == [os.getpid()]
    assert report.ok
    by_file = {f.path.rpartition(".")[2]: f.message for f in report.notes}
    assert by_file["idx"].endswith("; the segment is being written")
    assert by_file["seg"] == "its end (4 bytes) is not whole; the segment is being written"
    assert by_file["tailrace/clean"] == "does not fit the last segment; that is being written"
    assert by_file["tmp"].startswith("is being written, or left over")


def test_a_holder_changes_nothing_but_words() -> None:
    disk = unfinished()
    disk.corrupt(segments(disk)[0], 45, b"\xee")
    alone = verify(disk, FOLDER)
    hold(disk, os.getpid())
    held = verify(disk, FOLDER)
    assert not alone.writers
    assert [f[:4] for f in held.findings] == [f[:4] for f in alone.findings]
    assert held.problems == alone.problems != []
    for note in alone.notes:
        assert "being written" not in note.message


def test_who_holds_the_lock() -> None:
    disk = timed_log()
    hold(disk, 2**22 + 1)  # above the greatest pid of Linux
    assert not verify(disk, FOLDER).writers
    hold(disk, 2**22 + 1, "elsewhere.invalid")  # nobody here can tell
    assert verify(disk, FOLDER).writers
    hold(disk, 1)  # not ours to send a signal to
    assert verify(disk, FOLDER).writers
    for note in (
        b"",
        b"rubbish",
        b"{}",
        b'[{"pid":-1,"host":"a","since":1,"mode":"x"}]',
        b"\xff" * 5_000,
    ):
        disk.put(f"{SIDE}/members", note)
        assert not verify(disk, FOLDER).writers


def test_one_of_something() -> None:
    disk = build()
    unclean(disk)
    last = segments(disk)[-1]
    disk.put(last, disk.read(last) + b"x")
    message = "its end (1 byte) will be cut off by the next open: it is not whole"
    assert message in only(verify(disk, FOLDER), "note")
    Gaps(disk, FOLDER).add(Gap(5, 6, "lost", False, "for a test", 1))
    assert "offset 5 is lost (for a test)" in messages(verify(disk, FOLDER))[0]


# --- side files -----------------------------------------------------------------------------


NAMES = ["log.json", "watermark", "start", "clean", "seals", "gaps", "poisoned", "producers"]


def log_with_all_side_files() -> SimulatedDisk:
    disk = SimulatedDisk()
    with Log(FOLDER, fs=disk, upkeep=False, flush="async", segment_bytes=300) as log:
        for i in range(10):
            log.append([b"%d" % i], producer="p", sequence=i).wait()
        log.truncate_before(2)
    Gaps(disk, FOLDER).add(Gap(0, 1, "lost", True, "for a test", 1))
    return disk


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [*NAMES, "reserved"])
def test_every_flipped_byte_of_a_side_file_is_found(name: str) -> None:
    disk = log_with_all_side_files()
    if name == "poisoned":
        Poison(10, 8, 0, "EIO").store(disk, FOLDER)
    path = f"{SIDE}/{name}"
    data = disk.read(path)
    for position in [p for p in range(len(data)) if data[p]]:
        disk.corrupt(path, position, bytes([data[position] ^ 0x10]))
        found = verify(disk, FOLDER).findings
        assert any(f.path == f".tailrace/{name}" for f in found), position
        disk.corrupt(path, position, data[position : position + 1])


@pytest.mark.parametrize("name", [*NAMES, "reserved"])
@pytest.mark.parametrize("contents", [b"", b"rubbish", b"\xff" * 2_000, b'{"a":1}\n', b"\n\n"])
def test_rubbish_in_a_side_file_is_no_error(name: str, contents: bytes) -> None:
    disk = log_with_all_side_files()
    disk.put(f"{SIDE}/{name}", contents)
    report = verify(disk, FOLDER)
    if name in ("log.json", "watermark", "start", "poisoned", "reserved"):
        assert not report.ok


@pytest.mark.parametrize("name", ["log.json", "clean", "poisoned", "producers"])
@pytest.mark.parametrize(
    "document", [{}, {"format": 9}, {"format": 1, "flush": "x"}, {"format": 1, "flush": "sync"}]
)
def test_documents_that_make_no_sense(name: str, document: dict[str, object]) -> None:
    disk = log_with_all_side_files()
    store_checked_json(disk, f"{SIDE}/{name}", document)
    assert verify(disk, FOLDER).findings


def test_one_of_two_slots_is_enough() -> None:
    disk = build()
    disk.corrupt(f"{SIDE}/watermark", 20, b"\xff\xff")
    assert "one of its two slots" in only(verify(disk, FOLDER), "note")


def test_a_watermark_above_the_end() -> None:
    disk = build()
    end = layout(disk)[-1].next
    set_watermark(disk, Watermark(end + 5, 0, 0, disk.boot_id()))
    assert not verify(disk, FOLDER).ok
    unclean(disk)
    assert any("lost" in message for message in messages(verify(disk, FOLDER)))


def test_a_watermark_inside_a_batch() -> None:
    disk = build()
    last = layout(disk)[-1]
    base = int(last.path[-24:-4])
    set_watermark(disk, Watermark(last.next, base, last.position + 5, disk.boot_id()))
    assert "it is not" in only(verify(disk, FOLDER))


def set_watermark(disk: SimulatedDisk, mark: Watermark) -> None:
    file = WatermarkFile(disk, FOLDER)
    file.load()
    file.store(mark)
    file.close()


def test_a_missing_watermark() -> None:
    disk = build()
    disk.unlink(f"{SIDE}/watermark")
    assert any("is missing" in message for message in messages(verify(disk, FOLDER)))


def test_a_loss_that_nobody_has_acknowledged() -> None:
    disk = build()
    Gaps(disk, FOLDER).add(Gap(3, 5, "lost", False, "for a test", 1))
    assert "acknowledged" in only(verify(disk, FOLDER))
    Gaps(disk, FOLDER).add(Gap(3, 5, "lost", True, "for a test", 1))
    assert verify(disk, FOLDER).findings == []


def test_a_torn_line_of_gaps_is_a_note() -> None:
    disk = build()
    disk.put(f"{SIDE}/gaps", b'12345678 {"first"')
    assert "tore" in only(verify(disk, FOLDER), "note")
    disk.put(f"{SIDE}/gaps", b'12345678 {"first"\n')
    assert "line 1" in only(verify(disk, FOLDER))


def test_poison() -> None:
    disk = build()
    Poison(3, 0, 100, "Input/output error").store(disk, FOLDER)
    report = verify(disk, FOLDER)
    assert any("Input/output error" in message for message in messages(report))


def test_a_clean_marker_that_does_not_fit() -> None:
    disk = build()
    CleanMarker(0, 1, 2, "").store(disk, FOLDER)
    assert "does not fit" in only(verify(disk, FOLDER), "note")


def test_a_seal_that_is_wrong() -> None:
    disk = build()
    path = segments(disk)[0]
    seals = Seals(disk, FOLDER)
    seals.load({0})
    seal = seals.get(*Extent(0, len(disk.read(path))))
    assert seal is not None
    seals.add(seal._replace(records=seal.records + 1))
    assert "is not so" in only(verify(disk, FOLDER))


def test_producers_that_are_ahead() -> None:
    disk = build()
    store_checked_json(disk, f"{SIDE}/producers", {"next_offset": 9_999, "producers": {}})
    assert "is not used" in only(verify(disk, FOLDER), "note")


def test_offsets_that_will_be_left_out() -> None:
    """After a power cut an `async` log goes on behind everything that somebody may have seen."""
    disk = SimulatedDisk()
    log = Log(FOLDER, fs=disk, upkeep=False, flush="async")
    log.append([b"0"])
    log.flush()
    log.append([b"1"])
    disk.crash(1)
    assert any("will be left out" in m for m in messages(verify(disk, FOLDER), "note"))


def test_a_start_behind_the_end() -> None:
    disk = build()
    start = StartOffset(disk, FOLDER)
    start.store(10_000)
    start.close()
    assert any("beyond its end" in m for m in messages(verify(disk, FOLDER), "note"))


def test_a_time_index_that_goes_back() -> None:
    """Both entries are of batches, and have their times; but a search would start too late."""
    disk = SimulatedDisk()
    with Log(FOLDER, fs=disk, upkeep=False, time_index_interval="1ms") as log:
        for stamp in (5_000, 9_000, 7_000):
            log.append([Record(timestamp=stamp, value=b"v")]).wait()
    path = segments(disk)[0].replace("seg", "tix")
    header = TimeIndex.HEADER.pack(TimeIndex.MAGIC, 1, 0, 2, 5_000, 7_000)
    entries = TimeIndex.ENTRY.pack(5_000, 0) + TimeIndex.ENTRY.pack(7_000, 2)
    disk.put(path, header + entries)
    assert any("had reached" in message for message in messages(verify(disk, FOLDER)))


def test_files_left_over() -> None:
    disk = build()
    disk.put(f"{SIDE}/log.json.tmp", b"")
    assert "left over" in only(verify(disk, FOLDER), "note")
