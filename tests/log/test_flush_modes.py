"""sync, async, none: a property of the log; what readers see, and when the disk has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import ConfigError, Log
from tailrace.log.fs import OsFileSystem
from tailrace.testing import FaultyFileSystem, SimulatedDisk
from tests.log.conftest import OpenLog
from tests.log.helpers import bases, eventually, fill, offsets, segment_syncs, side_file, values
from tests.threads import our_threads

MODES = ["sync", "async", "none"]  # from the strictest


def test_sync_is_the_default(log: Log, path: Path) -> None:
    assert log.flush_mode == "sync"
    assert b'"flush":"sync"' in side_file(path, "log.json").read_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_is_kept(open_log: OpenLog, mode: str) -> None:
    open_log(flush=mode).close()
    with open_log() as log:
        assert log.flush_mode == mode
    with open_log(read_only=True) as log:
        assert log.flush_mode == mode


@pytest.mark.parametrize("created", MODES)
@pytest.mark.parametrize("asked", MODES)
def test_a_handle_may_be_stricter_not_looser(open_log: OpenLog, created: str, asked: str) -> None:
    open_log(flush=created).close()
    if MODES.index(asked) <= MODES.index(created):
        with open_log(flush=asked) as log:
            assert log.flush_mode == asked
            receipt = log.append([b"x"])
            assert receipt.done == (asked != "sync")
            assert receipt.wait().done
    else:
        with pytest.raises(ConfigError, match=f"flush: .* created with flush='{created}'.*looser"):
            open_log(flush=asked)
    with open_log() as log:  # asking changed nothing
        assert log.flush_mode == created


def test_a_stricter_handle_waits_but_readers_see_what_the_log_shows(open_log: OpenLog) -> None:
    open_log(flush="async").close()
    log = open_log(flush="sync", upkeep=False)
    receipt = log.append([b"x"])
    assert not receipt.done
    assert values(log.read()) == [b"x"]
    receipt.wait()
    assert log.durable_offset == 1


# --- visibility -------------------------------------------------------------------------------


def test_sync_shows_only_what_is_durable(log: Log) -> None:
    first = log.append([b"1"])
    assert list(log.read()) == []
    assert log.end_offset == 1
    first.wait()
    log.append([b"2"])
    assert values(log.read()) == [b"1"]
    assert values(log.read("last")) == [b"1"]
    assert offsets(log.read("next")) == []
    assert log.offset_at(2**60) == 1


@pytest.mark.parametrize("mode", ["async", "none"])
def test_the_others_show_every_whole_batch(open_log: OpenLog, mode: str) -> None:
    log = open_log(flush=mode, upkeep=False, segment_bytes=200)
    for number in range(10):
        receipt = log.append([b"%d" % number])
        assert receipt.done
        assert offsets(log.read()) == list(range(number + 1))
    with open_log(read_only=True) as reader:
        assert offsets(reader.read()) == list(range(10))
        assert reader.end_offset == 10


# --- durability -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_flush_makes_everything_durable(open_log: OpenLog, path: Path, mode: str) -> None:
    log = open_log(flush=mode, upkeep=False, segment_bytes=200)
    for number in range(10):
        log.append([b"%d" % number])
    assert log.durable_offset < 10
    log.flush()
    assert log.durable_offset == log.end_offset == 10
    with open_log(read_only=True) as reader:
        assert reader.durable_offset == 10
    assert len(bases(path)) > 1


@pytest.mark.parametrize("mode", MODES)
def test_what_flush_covered_survives_a_power_cut(mode: str) -> None:
    for seed in range(5):
        disk = SimulatedDisk(seed)
        log = Log("/log", fs=disk, flush=mode, upkeep=False, segment_bytes=200)
        fill(log, 10)
        log.append([b"not flushed"])
        disk.crash(seed)
        with Log("/log", fs=disk, upkeep=False) as log:
            assert values(log.read(0, 10)) == [b"%010d" % n for n in range(10)]
            assert log.append([b"next"]).offset >= 10


@pytest.mark.parametrize(("mode", "syncs"), [("async", True), ("none", False)])
def test_none_never_syncs_by_itself(path: Path, mode: str, syncs: bool) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs, flush=mode, upkeep=False, segment_bytes=200) as log:
        before = segment_syncs(fs)
        for number in range(10):
            log.append([b"%d" % number]).wait()
        assert len(bases(path)) > 1
    assert (segment_syncs(fs) > before) == syncs


@pytest.mark.parametrize("mode", ["async", "none"])
def test_reopened_after_a_clean_close(open_log: OpenLog, mode: str) -> None:
    for round_ in range(3):
        with open_log(flush=mode) as log:
            assert log.end_offset == 5 * round_
            assert offsets(log.read()) == list(range(5 * round_))
            for _ in range(5):
                log.append([b"x"])
        assert log.durable_offset == (log.end_offset if mode == "async" else 0)


def test_the_background_flush(open_log: OpenLog) -> None:
    log = open_log(flush="async", flush_interval="10ms")
    assert our_threads() == ["tailrace-upkeep"]
    for count in (1, 2, 3):
        log.append([b"x"])
        eventually(lambda count=count: log.durable_offset == count)  # type: ignore[misc]
    log.close()
    assert not our_threads()


def test_no_background_flush_without_upkeep(open_log: OpenLog) -> None:
    log = open_log(flush="async", flush_interval="1ms", upkeep=False)
    log.append([b"x"])
    assert not our_threads()
    assert log.durable_offset == 0


@pytest.mark.parametrize("mode", ["sync", "none"])
def test_sync_and_none_need_no_thread(open_log: OpenLog, mode: str) -> None:
    log = open_log(flush=mode)
    log.append([b"x"]).wait()
    assert not our_threads()


def test_offsets_that_an_async_log_showed_never_come_again() -> None:
    for seed in range(10):
        disk = SimulatedDisk(seed)
        log = Log("/log", fs=disk, flush="async", upkeep=False)
        fill(log, 3)
        seen = log.append([b"seen"] * 5).end_offset
        assert offsets(log.read())[-1] == seen - 1
        disk.crash(seed)
        with Log("/log", fs=disk, upkeep=False) as log:
            assert log.append([b"new"]).offset >= seen
            assert offsets(log.read())[:3] == [0, 1, 2]
            assert values(log.read("last")) == [b"new"]
