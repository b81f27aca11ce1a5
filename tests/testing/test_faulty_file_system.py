"""Faults happen where the plan says, do what they say, and a dead process stays dead."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import Closed
from tailrace.log.fs import FileSystem, OsFileSystem, replace_file, write_all
from tailrace.testing import (
    OPERATIONS,
    Call,
    Crash,
    Fail,
    FaultyFileSystem,
    LoseDirty,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    at,
    every_call,
    from_call,
    on,
)


def every_operation(fs: FileSystem, acked: list[Any]) -> None:
    """One call of each kind; the last durable state is acknowledged."""
    fs.make_dirs("d")
    lock = fs.lock("d/lock")
    assert lock.acquire(wait=False)
    file = fs.open("d/f", write=True, create=True)
    try:
        file.pwrite(b"0123456789", 0)
        file.truncate(8)
        file.sync()
        file.pread(4, 0)
        file.pread_into(bytearray(4), 0)
        file.size()
        fs.rename("d/f", "d/g")
        fs.sync_dir("d")
        acked.append(b"01234567")
        fs.list("d")
        fs.stat("d/g")
        assert fs.map("d/map", 16, write=True) is not None
    finally:
        file.close()
        lock.release()
        lock.close()
    fs.unlink("d/lock")
    fs.make_dirs("d/e")
    fs.remove_dir("d/e")


def make_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    return disk


def as_file_system(fs: FaultyFileSystem) -> FileSystem:
    return fs  # mypy checks here that it is one


def test_without_a_plan_it_only_counts() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk)
    every_operation(fs, [])
    assert {call.op for call in fs.calls} == set(OPERATIONS)
    assert [call.n for call in fs.calls] == list(range(len(fs.calls)))
    assert Call("pwrite", "d/f", 3) in fs.calls
    assert Call("rename", "d/g", 9) in fs.calls
    assert fs.hits == []
    assert disk.read("d/g") == b"01234567"
    assert disk.open_files() == []
    assert fs.boot_id() == disk.boot_id()


def test_it_wraps_the_real_file_system(tmp_path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem(), on("sync", Fail(), path="*.tmp"))
    target = str(tmp_path / "f")
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(fs, target, b"data")
    assert not (tmp_path / "f").exists()
    replace_file(fs, target, b"data")
    assert (tmp_path / "f").read_bytes() == b"data"


def test_fail_before_and_after() -> None:
    for after, size in ((False, 0), (True, 4)):
        disk = make_disk()
        fs = FaultyFileSystem(disk, on("pwrite", Fail(errno.ENOSPC, after=after)))
        file = fs.open("d/f", write=True, create=True)
        with pytest.raises(OSError, match="No space left") as raised:
            file.pwrite(b"data", 0)
        assert raised.value.filename == "d/f"
        assert file.size() == size
        assert fs.hits == [Call("pwrite", "d/f", 1)]
        assert file.pwrite(b"data", 0) == 4


def test_a_failed_open_or_lock_leaves_nothing_behind() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, from_call(0, Fail(errno.EMFILE, after=True)))
    with pytest.raises(OSError, match="Too many open files"):
        fs.open("d/f", create=True)
    with pytest.raises(OSError, match="Too many open files"):
        fs.lock("d/lock")
    with pytest.raises(OSError, match="Too many open files"):
        fs.map("d/map", 16, write=True)
    assert disk.files() == ["d/f", "d/lock", "d/map"]
    assert disk.open_files() == []
    assert disk.lock("d/lock").acquire(wait=False)


def test_a_call_that_fails_by_itself_comes_first() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("lock", Fail(after=True)))
    with pytest.raises(FileNotFoundError):
        fs.lock("nowhere/lock")
    fs = FaultyFileSystem(disk, on("lock", Crash(after=True)))
    with pytest.raises(SimulatedCrash):
        fs.lock("nowhere/lock")


def test_a_lock_is_that_of_the_disk() -> None:
    """To take one is no call that may fail: which thread does so when is not told beforehand."""
    disk = make_disk()
    fs = FaultyFileSystem(disk)
    lock, other = fs.lock("d/lock"), disk.lock("d/lock")
    fs.plan = from_call(0, Fail())
    assert lock.acquire(shared=True)
    assert other.acquire(shared=True, wait=False)
    assert not lock.acquire(wait=False)
    other.release()
    assert lock.acquire_now()
    assert not other.acquire_now()
    lock.write_note(b"note")
    assert other.read_note() == lock.read_note() == b"note"
    lock.close()
    assert other.acquire(wait=False)
    assert [call.op for call in fs.calls] == ["lock"]


def test_memory_is_that_of_the_disk() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk)
    assert fs.map("d/map", 16, write=False) is None
    memory = fs.map("d/map", 16, write=True)
    assert memory is not None
    memory[3] = 7
    assert disk.map("d/map", 16, write=False) == memory


@pytest.mark.parametrize(
    ("data", "part", "written"),
    [(b"0123456789", 0.5, 5), (b"0123456789", 0.0, 1), (b"0123456789", 1.0, 9), (b"0", 0.5, 1)],
)
def test_a_short_write_is_reported(data: bytes, part: float, written: int) -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("pwrite", ShortWrite(part)))
    file = fs.open("d/f", write=True, create=True)
    assert file.pwrite(data, 0) == written
    assert disk.read("d/f") == data[:written]
    write_all(file, data[written:], written)
    assert disk.read("d/f") == data


def test_short_writes_all_the_way() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, from_call(0, ShortWrite(0.3)))
    file = fs.open("d/f", write=True, create=True)
    write_all(file, bytes(range(100)), 0)
    assert disk.read("d/f") == bytes(range(100))
    assert len(fs.hits) > 5


def test_a_short_write_that_fails_or_crashes() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("pwrite", ShortWrite(0.4, Fail(errno.ENOSPC))))
    file = fs.open("d/f", write=True, create=True)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"0123456789", 0)
    assert disk.read("d/f") == b"0123"
    fs.plan = on("pwrite", ShortWrite(0.0, Crash()))
    with pytest.raises(SimulatedCrash):
        file.pwrite(b"abcdefghij", 0)
    assert disk.read("d/f") == b"0123"


def test_nothing_is_done_after_a_crash() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("sync", Crash()))
    file = fs.open("d/f", write=True, create=True)
    file.pwrite(b"data", 0)
    lock = fs.lock("d/lock")
    assert lock.acquire()
    with pytest.raises(SimulatedCrash, match="at call 3: sync d/f"):
        file.sync()
    assert fs.crashed
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pread_into(bytearray(1), 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        fs.boot_id,
        lambda: fs.open("d/f"),
        lambda: fs.list("d"),
        lambda: fs.stat("d/f"),
        lambda: fs.rename("d/f", "d/g"),
        lambda: fs.unlink("d/f"),
        lambda: fs.remove_dir("d"),
        lambda: fs.make_dirs("e"),
        lambda: fs.sync_dir("d"),
        lambda: fs.lock("d/other"),
        lambda: fs.map("d/map", 16, write=True),
        lambda: lock.acquire(wait=False),
        lock.acquire_now,
        lock.acquire,
    ):
        with pytest.raises(SimulatedCrash):
            call()
    assert len(fs.calls) == 4
    assert disk.files() == ["d/f", "d/lock"]
    assert disk.read("d/f") == b"data"
    assert disk.unsynced() == ["d/f", "d/lock"]
    lock.write_note(b"not any more")
    assert disk.read("d/lock") == b""
    file.close()
    assert not disk.lock("d/lock").acquire(wait=False)
    lock.release()
    assert disk.open_files() == []
    assert disk.lock("d/lock").acquire(wait=False)
    lock.close()


def test_a_crash_after_the_call() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("sync", Crash(after=True)))
    file = fs.open("d/f", write=True, create=True)
    disk.sync_dir("d")
    file.pwrite(b"data", 0)
    with pytest.raises(SimulatedCrash):
        file.sync()
    assert disk.unsynced() == []


def test_cleanup_cannot_repair_the_disk() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("pwrite", ShortWrite(0.5, Crash())))
    file = fs.open("d/f", write=True, create=True)

    def careful() -> None:
        try:
            file.pwrite(b"0123456789", 0)
        except Exception:  # noqa: BLE001
            pytest.fail("a crash is not an error")
        finally:
            file.truncate(0)

    with pytest.raises(SimulatedCrash):
        careful()
    assert disk.read("d/f") == b"01234"


def test_a_sync_that_loses_what_was_dirty() -> None:
    disk = make_disk()
    fs = FaultyFileSystem(disk, on("sync", LoseDirty()))
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert file.pread(9, 0) == b"data"
    disk.crash(1)
    assert disk.read("d/f") == bytes(4)


def test_losing_dirty_pages_needs_a_simulated_disk(tmp_path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem(), on("sync", LoseDirty()))
    file = fs.open(str(tmp_path / "f"), write=True, create=True)
    with pytest.raises(TypeError):
        file.sync()
    file.close()


def test_plans() -> None:
    fault = Fail()
    assert at(3, fault)(Call("size", "f", 3)) is fault
    assert at(3, fault)(Call("size", "f", 4)) is None
    second = on("size", fault, path="*.seg", nth=1)
    calls = [Call("size", "a.seg", 0), Call("size", "a.idx", 1), Call("size", "b.seg", 2)]
    assert [second(call) for call in calls] == [None, None, fault]
    assert second(Call("size", "b.seg", 3)) is None
    full = from_call(2, fault, ops=["pwrite"])
    assert full(Call("pwrite", "f", 1)) is None
    assert full(Call("pwrite", "f", 2)) is fault
    assert full(Call("size", "f", 3)) is None


def test_the_plan_may_be_lifted() -> None:
    fs = FaultyFileSystem(make_disk(), from_call(0, Fail(errno.ENOSPC)))
    with pytest.raises(OSError, match="No space left"):
        fs.open("d/f", create=True)
    fs.plan = None
    fs.open("d/f", create=True).close()


@pytest.mark.parametrize("fault", [Fail(), Fail(after=True), Crash(), Crash(after=True)])
def test_every_call_is_hit_once(fault: Fail | Crash) -> None:
    counting = FaultyFileSystem(make_disk())
    every_operation(counting, [])
    runs = list(every_call(every_operation, fault, make_disk))
    assert [run.call for run in runs] == counting.calls
    for run in runs:
        assert run.hit
        assert run.fs.hits == [run.call]
        assert isinstance(run.error, SimulatedCrash if isinstance(fault, Crash) else OSError)
        assert len({id(run.disk) for run in runs}) == len(runs)


def test_what_was_acknowledged_survives_a_crash_at_every_call() -> None:
    kept = 0
    for run in every_call(every_operation, Crash(after=True), make_disk):
        assert isinstance(run.disk, SimulatedDisk)
        for seed in range(20):
            disk = run.disk.clone()
            disk.crash(seed)
            for data in run.acked:
                assert disk.read("d/g") == data
                kept += 1
    assert kept


def test_only_some_operations() -> None:
    runs = list(every_call(every_operation, ShortWrite(), make_disk, ops=["pwrite"]))
    assert [run.call.op for run in runs] == ["pwrite"]
    assert runs[0].error is None
    assert runs[0].hit


def test_our_own_errors_end_a_run_and_others_come_out() -> None:
    def closes(fs: FileSystem, acked: list[Any]) -> None:
        try:
            fs.list("d")
        except OSError as error:
            raise Closed("no more") from error

    (run,) = every_call(closes, Fail(), make_disk)
    assert isinstance(run.error, Closed)

    def breaks(fs: FileSystem, acked: list[Any]) -> None:
        try:
            fs.list("d")
        except OSError:
            raise KeyError("a bug") from None

    with pytest.raises(KeyError) as raised:
        list(every_call(breaks, Fail(), make_disk))
    assert "at call 0: list d" in raised.value.__notes__[0]
