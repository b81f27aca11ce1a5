"""The job that makes indexes: they are as the log would write them, whatever they were."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Log
from tailrace.errors import Locked
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.queue.offline.verify import verify_store
from tailrace.spark.jobs.reindex import reindex, settings_of
from tailrace.spark.jobs.running import Means
from tests.spark.jobs.stores import contents, files_of, flip, log_of, make_store

HERE = Means(spark=False)


def spoil(path: Path, rng: random.Random) -> None:
    """Make an index file wrong."""
    data = path.read_bytes()
    match rng.choice(["cut", "flip", "gone", "empty", "more"]):
        case "cut":
            path.write_bytes(data[: rng.randrange(len(data))])
        case "flip":
            flip(path, rng.randrange(len(data)))
        case "gone":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "more":
            path.write_bytes(data + rng.randbytes(24))


def indexes(root: str | Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(Path(root), ".idx", ".tix")}


def values(path: Path) -> list[bytes | None]:
    with tailrace.open(path, upkeep=False) as store:
        return [record.value for record in store.stream("events").log.read()]


def test_indexes_that_are_right_stay(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    before = contents(root)
    report, running = reindex(settings_of(root), HERE)
    assert report.ok
    assert not any(log.renewed or log.left_out for log in report.logs)
    assert sum(log.segments for log in report.logs) > 5
    assert running.total == sum(log.bytes for log in report.logs)
    after = contents(root)
    changed = {path.name for path, data in after.items() if data != before.get(path)}
    assert changed <= {"board", "members"}  # who has the log, and that others look anew


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(20))
def test_they_become_what_the_log_would_write(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root = make_store(tmp_path, seed, time_index_interval=rng.choice(["1s", "5s"]))
    before = indexes(root)
    spoiled = rng.sample(sorted(before), rng.randint(1, 6))
    for path in spoiled:
        spoil(path, rng)
    if rng.random() < 0.3:
        (log_of(root, "events") / ".tailrace" / "seals").unlink()
    report, _ = reindex(settings_of(root), HERE)
    assert report.ok
    assert indexes(root) == before
    changed = {Path(log.folder, name) for log in report.logs for name in log.renewed}
    assert changed <= set(spoiled)
    found = verify_store(OsFileSystem(), root)
    assert not found.findings
    assert not reindex(settings_of(root), HERE)[0].logs[0].renewed


def test_a_log_by_itself_keeps_its_interval(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Log(folder, upkeep=False, segment_bytes=3_000, index_interval=150) as log:
        for number in range(200):
            log.append([b"%d" % number] * 2)
    before = indexes(folder)
    files_of(folder, ".idx")[1].write_bytes(b"")
    report, _ = reindex({str(folder): None}, HERE)
    assert len(report.logs[0].renewed) == 1
    assert indexes(folder) == before
    assert not verify(OsFileSystem(), str(folder)).findings


def test_what_is_damaged_stays_as_it_is(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    first, second, *_ = files_of(log_of(root, "events"), ".seg")
    flip(first, 60)
    first.with_suffix(".idx").unlink()
    second.with_suffix(".idx").unlink()
    report, _ = reindex(settings_of(root), HERE)
    assert not report.ok
    [log] = [log for log in report.logs if log.damaged]
    assert log.damaged == [(0, 0)]
    assert log.renewed == [second.with_suffix(".idx").name]
    assert not first.with_suffix(".idx").exists()


def test_a_segment_that_may_grow_is_left_out(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    (log_of(root, "events") / ".tailrace" / "clean").unlink()
    for path in files_of(log_of(root, "events"), ".idx"):
        path.unlink()
    report, _ = reindex(settings_of(root), HERE)
    [log] = [log for log in report.logs if "events" in log.folder]
    last = files_of(log_of(root, "events"), ".seg")[-1]
    assert log.left_out == [int(last.stem)]
    assert not last.with_suffix(".idx").exists()
    assert len(files_of(log_of(root, "events"), ".idx")) == log.segments


def test_no_seal_outlives_bytes_that_nobody_syncs(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Log(folder, upkeep=False, flush="none", segment_bytes=2_000) as log:
        for number in range(100):
            log.append([b"%d" % number] * 2)
    before = indexes(folder)
    files_of(folder, ".idx")[0].unlink()
    reindex({str(folder): None}, HERE)
    assert indexes(folder) == before
    assert not (folder / ".tailrace" / "seals").exists()


def test_nobody_may_write_meanwhile(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    with tailrace.open(tmp_path, upkeep=False) as store:
        store.stream("events").publish(b"more")
        before = indexes(root)
        with pytest.raises(Locked):
            reindex(settings_of(root), HERE)
        assert indexes(root) == before


# Kills itself at the nth rename of an index file, before or behind it.
KILLED = """
import os, signal, sys
from tailrace.log.fs import OsFileSystem
from tailrace.spark.jobs.reindex import reindex, settings_of
from tailrace.spark.jobs.running import Means

root, number, is_behind = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "behind"
rename, calls = OsFileSystem.rename, []

def counted(self, source, target):
    calls.append(target)
    is_it = len(calls) == number
    if is_it and not is_behind:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(self, source, target)
    if is_it:
        os.kill(os.getpid(), signal.SIGKILL)

OsFileSystem.rename = counted
reindex(settings_of(root), Means(spark=False))
"""


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_killed(tmp_path: Path, number: int, when: str) -> None:
    """The store works, and the next run completes what was begun."""
    root = make_store(tmp_path)
    wanted, before = values(tmp_path), indexes(root)
    rng = random.Random(number)
    for path in files_of(log_of(root, "events"), ".idx", ".tix")[:8]:
        path.write_bytes(path.read_bytes()[: rng.randrange(20)])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, root, str(number), when],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    whole = {path: data for path, data in indexes(root).items() if data == before.get(path)}
    assert len(whole) >= len(before) - 8
    assert values(tmp_path) == wanted
    report, _ = reindex(settings_of(root), HERE)
    assert report.ok
    assert values(tmp_path) == wanted
    assert verify_store(OsFileSystem(), root).ok
    for path, data in before.items():
        assert path.read_bytes() == data


def test_on_spark(spark: Any, tmp_path: Path) -> None:
    root = make_store(tmp_path)
    before = indexes(root)
    for path in files_of(log_of(root, "events"), ".idx"):
        path.unlink()
    report, running = reindex(settings_of(root), Means(True, session=spark))
    assert report.ok
    assert running.path == "spark"
    assert indexes(root) == before
    assert not verify_store(OsFileSystem(), root).findings
