"""Making indexes anew: they are as they were, and a crash at any call leaves a log that works."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from tailrace import Locked, Log
from tailrace.errors import ConfigError
from tailrace.log.fs import FileSystem
from tailrace.log.offline.reindex import Reindexed, log_reindexing, reindex_segment
from tailrace.log.offline.verify import verify
from tailrace.log.options import LogOptions
from tailrace.log.sidefiles import side_path, store_checked_json
from tailrace.testing import Crash, Fail, SimulatedDisk, every_call
from tests.log.damage import FOLDER, WRITES, build, layout, spoil

OPTIONS = LogOptions(index_interval=100)  # as `build` has it


def reindex(fs: FileSystem, options: LogOptions | None = OPTIONS) -> list[Reindexed]:
    with log_reindexing(fs, FOLDER, options) as log:
        found = [reindex_segment(fs, task) for task in log.tasks]
        log.note(found)
    return found


def indexes(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files() if path.endswith((".idx", ".tix"))}


def values(disk: FileSystem) -> list[bytes | None]:
    with Log(FOLDER, fs=disk, upkeep=False) as log:
        return [record.value for record in log.read()]


def spoil_indexes(disk: SimulatedDisk, rng: random.Random) -> list[str]:
    """Some are gone, some cut short, some wrong."""
    chosen = rng.sample(sorted(indexes(disk)), 4)
    for path, how in zip(chosen, ("gone", "cut", "flip", "flip"), strict=True):
        data = disk.read(path)
        if how == "gone":
            disk.unlink(path)
        elif how == "cut":
            file = disk.open(path, write=True)
            file.truncate(rng.randrange(len(data)))
            file.sync()
            file.close()
        else:
            position = rng.randrange(len(data))
            disk.corrupt(path, position, bytes([data[position] ^ 0xFF]))
    disk.sync_dir(FOLDER)
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_they_are_as_they_were(seed: int) -> None:
    disk = build(seed)
    before = indexes(disk)
    chosen = spoil_indexes(disk, random.Random(seed))
    found = reindex(disk)
    assert indexes(disk) == before
    changed = {f"{FOLDER}/{name}" for each in found for name in each.files}
    assert changed == set(chosen)
    assert not verify(disk, FOLDER).findings
    assert [each.outcome for each in reindex(disk)] == ["right"] * len(found)


@pytest.mark.no_cover
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_call(after: bool, power_cut: bool) -> None:
    """The log has what it had, for whoever opens it; and the next time completes it."""
    spoiled = build(1)
    before, wanted = indexes(spoiled), values(spoiled.clone())
    spoil_indexes(spoiled, random.Random(1))
    (seals,) = [path for path in spoiled.files() if path.endswith("/seals")]
    spoiled.corrupt(seals, 100, bytes(20))
    runs = 0

    def run_it(fs: FileSystem, _: list[Any]) -> None:
        reindex(fs)

    for run in every_call(run_it, Crash(after=after), spoiled.clone, ops=WRITES):
        disk = run.disk
        assert isinstance(disk, SimulatedDisk)
        if power_cut:
            disk.crash(run.call.n)
        else:
            disk.kill()
        assert values(disk.clone()) == wanted, run.call
        assert all(each.outcome != "damaged" for each in reindex(disk)), run.call
        assert indexes(disk) == before, run.call
        assert verify(disk, FOLDER).ok, run.call
        assert values(disk) == wanted, run.call
        runs += 1
    assert runs > 15


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call(error: int) -> None:
    """Nothing stays locked, and doing it again completes it."""
    spoiled = build(2)
    before = indexes(spoiled)
    spoil_indexes(spoiled, random.Random(2))

    def run_it(fs: FileSystem, _: list[Any]) -> None:
        reindex(fs)

    for run in every_call(run_it, Fail(error), spoiled.clone, ops=WRITES):
        disk = run.disk
        assert isinstance(disk, SimulatedDisk)
        reindex(disk)
        assert indexes(disk) == before, run.call


def test_a_damaged_segment_is_left_alone() -> None:
    disk = build(3)
    batch = layout(disk)[1]
    spoil(disk, batch)
    before = indexes(disk)
    [damaged] = [each for each in reindex(disk) if each.outcome == "damaged"]
    assert (damaged.position, damaged.seal, damaged.files) == (batch.position, None, ())
    assert indexes(disk) == before


def test_of_a_log_alone_its_own_files_tell_the_interval() -> None:
    disk = build(4)
    before = indexes(disk)
    disk.unlink(next(path for path in before if path.endswith(".idx")))
    reindex(disk, None)
    assert indexes(disk) == before
    for path in before:
        disk.unlink(path)
    reindex(disk, None)  # nobody knows it any more, and the usual one is right, too
    assert verify(disk, FOLDER).ok


def test_a_log_that_another_program_wrote() -> None:
    ours = build(5)
    disk = SimulatedDisk(5)
    disk.make_dirs(FOLDER)
    for path in ours.files():
        if path.endswith(".seg"):
            disk.put(path, ours.read(path))
    bases = [path for path in disk.files() if path.endswith(".seg")]
    found = reindex(disk)
    assert len(found) == len(bases) - 1  # the last one may go on
    assert all(each.outcome == "renewed" for each in found)
    assert values(disk) == values(ours)


def test_who_writes_is_not_disturbed() -> None:
    disk = build(6)
    with Log(FOLDER, fs=disk, upkeep=False), pytest.raises(Locked), log_reindexing(disk, FOLDER):
        pass
    reindex(disk)


def test_a_newer_log_is_refused() -> None:
    disk = build(7)
    store_checked_json(disk, side_path(FOLDER, "log.json"), {"format": 99})
    with pytest.raises(ConfigError, match="upgrade tailrace"), log_reindexing(disk, FOLDER):
        pass
