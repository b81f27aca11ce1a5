"""Whoever archives may be killed, or lose its power, or its disk, at any call: the next one makes a
whole of it, with no row twice and none missing, and nothing is deleted that is not archived."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import Stream, TailraceError
from tailrace.log.cuts import sealed_end
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.queue.archived import ArchiveNote
from tailrace.spark.lake import archive as archiving
from tailrace.spark.lake.manifest import Manifest
from tailrace.testing import (
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    Run,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    at,
)
from tests.project import ROOT
from tests.spark.lake.support import (
    HOUR,
    SMALL,
    Inline,
    archived,
    check,
    fill,
    logged,
    open_store,
    parquet_files,
    put,
)

WRITES: Any = ("open", "pwrite", "truncate", "sync", "rename", "unlink", "make_dirs", "sync_dir")
LAKE = "/lake"


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few segments to a step, and one thread: so calls have the same order each time."""
    monkeypatch.setattr(archiving, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(archiving, "_VERIFYING", 1)


def made(partition_by: str = "date") -> tuple[SimulatedDisk, Any]:
    """A disk with a stream of which a part is archived, and all of its rows."""
    disk = SimulatedDisk()
    with open_store("/data", fs=disk) as store:
        stream = store.stream("events", **SMALL, flush="sync")
        fill(stream, 10, every_ms=4 * HOUR)
        put(store, stream, LAKE, partition_by=partition_by, engine=Inline())
        fill(stream, 16, every_ms=4 * HOUR)
        return disk, logged(stream)


def archive_on(fs: FileSystem, *, delete: bool) -> None:
    with open_store("/data", fs=fs) as store:
        put(store, store.stream("events"), LAKE, delete=delete, engine=Inline())


def runs(disk: SimulatedDisk, fault: Fault, *, delete: bool, stride: int) -> Iterator[Run]:
    """A run for each call to the archive, to the queue's note of it, and to segments that go; or
    for some of them."""

    def work(fs: FaultyFileSystem, acked: list[Any]) -> None:
        archive_on(fs, delete=delete)

    counting = FaultyFileSystem(disk.clone())
    work(counting, [])
    calls = [
        call
        for call in counting.calls
        if call.op in WRITES
        and (call.path.startswith(LAKE) or "archive" in call.path or call.op == "unlink")
    ]
    assert len(calls) > 80
    for call in calls[call_offset(fault) % stride :: stride]:
        copy = disk.clone()
        run = Run(call, FaultyFileSystem(copy, at(call.n, fault)), copy)
        try:
            work(run.fs, [])
        except (OSError, TailraceError, SimulatedCrash) as error:
            run.error = error
        yield run


def call_offset(fault: Fault) -> int:
    """Another one for each fault, so that those that run by default meet different calls."""
    return len(repr(fault))


def check_nothing_is_lost(disk: SimulatedDisk, rows: Any) -> None:
    """All rows are in the log or in files that the manifest names."""
    manifest = Manifest.load(disk, LAKE)
    with open_store("/data", fs=disk) as store:
        stream = store.stream("events")
        start = stream.log.start_offset
        assert manifest.reaches(0) >= start
        assert logged(stream).equals(rows.slice(start))
        note = ArchiveNote.load(disk, store.layout, "events")
        assert note is None or note.verified <= manifest.reaches(0)
        assert note is None or note.verified >= start


def check_it_goes_on(disk: SimulatedDisk, rows: Any, *, delete: bool) -> None:
    archive_on(disk, delete=delete)
    with open_store("/data", fs=disk) as store:
        stream = store.stream("events")
        end = sealed_end(stream.log)
        check(disk, LAKE, rows.slice(0, end))
        assert stream.log.start_offset == (end if delete else 0)
    assert disk.list(f"{LAKE}/_tailrace/staging") == []


SOME = 13
ALL = pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize("stride", [SOME, ALL])
@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("fault", [Crash(), Crash(after=True)])
def test_killed_at_every_call(fault: Fault, delete: bool, stride: int) -> None:
    disk, rows = made()
    for run in runs(disk, fault, delete=delete, stride=stride):
        after = disk_of(run)
        after.kill()
        check_nothing_is_lost(after, rows)
        check_it_goes_on(after, rows, delete=delete)


@pytest.mark.parametrize("stride", [SOME, ALL])
@pytest.mark.parametrize("seed", range(3))
def test_power_cut_at_every_call(seed: int, stride: int) -> None:
    disk, rows = made()
    for run in runs(disk, Crash(after=True), delete=True, stride=stride):
        after = disk_of(run)
        after.crash(seed * 100_003 + run.call.n)
        try:
            check_nothing_is_lost(after, rows)
            check_it_goes_on(after, rows, delete=True)
        except BaseException as error:
            error.add_note(f"seed {seed}, {run.call}")
            raise


@pytest.mark.parametrize("stride", [SOME, ALL])
@pytest.mark.parametrize("fault", [Fail(), Fail(after=True), ShortWrite(0.5, then=Fail())])
def test_an_error_at_every_call(fault: Fault, stride: int) -> None:
    """A disk that says no once: an error that is told, or it did not matter."""
    disk, rows = made()
    for run in runs(disk, fault, delete=True, stride=stride):
        after = disk_of(run)
        after.kill()
        check_nothing_is_lost(after, rows)
        check_it_goes_on(after, rows, delete=True)


def disk_of(run: Run) -> SimulatedDisk:
    assert isinstance(run.disk, SimulatedDisk)
    return run.disk


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 30))]
)
def test_killed_again_and_again(seed: int) -> None:
    """While more is published, and retention is at it, in any order."""
    rng = random.Random(seed)
    disk, _ = made(rng.choice(["", "date", "hour"]))
    for _life in range(8):
        fs = FaultyFileSystem(disk)
        last = rng.randrange(20, 700)
        fs.plan = lambda call, last=last: Crash() if call.n >= last else None
        try:
            with open_store("/data", fs=fs) as store:
                stream = store.stream("events")
                for _turn in range(5):
                    fill(stream, rng.randrange(8), every_ms=HOUR)
                    stream.configure(retention={"max_length_messages": rng.choice([0, 5, 50])})
                    put(store, stream, LAKE, delete=rng.random() < 0.5, engine=Inline())
                    stream.vacuum()
        except SimulatedCrash:
            if rng.random() < 0.5:
                disk.crash(rng.randrange(1 << 30))
            else:
                disk.kill()
        else:
            disk.kill()
    with open_store("/data", fs=disk) as store:
        stream = store.stream("events")
        end = sealed_end(stream.log)  # which recovers it first
        put(store, stream, LAKE, delete=True, engine=Inline())
        manifest = check(disk, LAKE, archived(disk, LAKE))
        rows = archived(disk, LAKE).to_pylist() + logged(stream).to_pylist()
        offsets = [row["offset"] for row in rows]
        assert len(set(offsets)) == len(offsets), f"seed {seed}"
        for low, high in manifest.ranges():
            assert set(range(low, high)) - set(offsets) == set(), f"seed {seed}"
        assert manifest.reaches(manifest.ranges()[-1][0]) == end
        for row in rows:
            assert row["value"] == b"value %d" % row["offset"], f"seed {seed}"


# --- real processes -------------------------------------------------------------------------------

CHILD = """
import sys
from tests.spark.lake.support import archiving, open_store, put
archiving.PIECE_BYTES = 20_000
with open_store(sys.argv[1]) as store:
    stream = store.stream("events")
    print("ready", flush=True)
    put(store, stream, sys.argv[2], partition_by="hour", delete=True, format=sys.argv[3])
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_processes_that_are_killed(tmp_path: Path, kind: str) -> None:
    """With kill -9, soon at first and later each time, however fast this machine is; the table has
    each file once in the end."""
    pytest.importorskip({"parquet": "pyarrow", "delta": "deltalake"}.get(kind, "pyiceberg"))
    data, lake = tmp_path / "data", tmp_path / "lake"
    with open_store(data) as store:
        stream = store.stream("events", **{**SMALL, "segment_bytes": 10_000})
        fill(stream, 3_000, every_ms=HOUR // 30)
        rows, end = logged(stream), sealed_end(stream.log)
    rng = random.Random(kind)
    soon, kills = 0.1 if kind == "parquet" else 0.4, 0
    for _ in range(40):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(data), str(lake), kind],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, soon * 2**kills))
            ended = child.poll() is not None
            if not ended:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
            code = child.wait()
        if ended:
            assert code == 0
            break
        check_steps(lake, rows)
        if kills >= 4:
            break
    assert kills
    with open_store(data) as store:
        found = store.stream("events")
        assert isinstance(found, Stream)
        put(store, found, lake, delete=True, format=kind)  # nobody may have come to say so
        assert found.log.start_offset == end
    check(OsFileSystem(), lake, rows.slice(0, end))
    assert table_offsets(lake, kind) == list(range(end))


def check_steps(lake: Path, rows: Any) -> None:
    manifest = Manifest.find(OsFileSystem(), str(lake))
    if manifest is not None:
        named = {file.path for step in manifest.steps for file in step.files}
        assert named <= set(parquet_files(OsFileSystem(), str(lake)))


def table_offsets(lake: Path, kind: str) -> list[int]:
    if kind == "parquet":
        table = archived(OsFileSystem(), lake)
    elif kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(lake)).to_pyarrow_table()
    else:
        from tests.spark.lake.test_tables import iceberg_table

        table = iceberg_table(lake).scan().to_arrow()
    found: list[int] = sorted(table.column("offset").to_pylist())
    return found
