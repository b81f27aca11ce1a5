"""The recorder's trace is complete, and its checker finds each step that was left out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tailrace.log.fs import FileSystem, OsFileSystem, replace_file
from tailrace.testing import (
    Call,
    Fail,
    Fault,
    FaultyFileSystem,
    Range,
    RecordingFileSystem,
    ShortWrite,
    SimulatedDisk,
    assert_durable,
    on,
    problems,
)


@pytest.fixture
def fs() -> RecordingFileSystem:
    fs = RecordingFileSystem(SimulatedDisk())
    fs.make_dirs("d")
    return fs


def found(fs: RecordingFileSystem, start: int = 0, end: int = 4, path: str = "d/f") -> list[str]:
    """What is wrong with a range now, without its place."""
    label = f"mark {len(fs.trace)}"
    fs.mark(label)
    return [p.split("): ", 1)[-1] for p in problems(fs.trace, label, [Range(path, start, end)])]


NO_SYNC = "no sync began after it was written"
NO_NAME = "its name is new (create), and no sync_dir began after that"


def as_file_system(fs: RecordingFileSystem) -> FileSystem:
    return fs  # mypy checks here that it is one


def test_the_proper_order_passes(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    file.sync()
    fs.mark("ack")
    assert_durable(fs.trace, "ack", [Range("d/f", 0, 4), Range("/d/f", 1, 2)])


def test_a_missing_sync_is_found(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    fs.mark("ack")
    file.sync()
    with pytest.raises(AssertionError, match=r"ack: d/f \[0, 4\): no sync"):
        assert_durable(fs.trace, "ack", [Range("d/f", 0, 4)])
    assert found(fs) == []


def test_a_missing_directory_sync_is_found(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    file.pwrite(b"data", 0)
    file.sync()
    assert found(fs) == [NO_NAME]
    fs.sync_dir("")
    assert found(fs) == [NO_NAME]
    fs.sync_dir("/d/")
    assert found(fs) == []


def test_a_directory_sync_before_the_name_does_not_count(fs: RecordingFileSystem) -> None:
    fs.sync_dir("d")
    file = fs.open("d/f", write=True, create=True)
    file.pwrite(b"data", 0)
    assert found(fs) == [NO_SYNC, NO_NAME]


def test_a_sync_of_another_file_does_not_count(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    other = fs.open("d/g", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    other.sync()
    assert found(fs) == [NO_SYNC]


def test_a_sync_by_another_handle_counts(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    fs.open("d/f").sync()
    assert found(fs) == []


def test_a_sync_before_the_last_write_does_not_count(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"da", 0)
    file.sync()
    file.pwrite(b"ta", 2)
    assert found(fs) == [NO_SYNC]
    assert found(fs, 0, 2) == []


def test_missing_and_truncated_bytes_are_found(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    file.sync()
    assert found(fs, 0, 5) == ["byte 4 was not written, or was truncated since"]
    file.truncate(2)
    file.truncate(4)
    assert found(fs, 0, 4) == ["byte 2 was not written, or was truncated since"]
    assert found(fs, 0, 2) == []


def test_a_failed_sync_does_not_count() -> None:
    fs = RecordingFileSystem(FaultyFileSystem(SimulatedDisk(), on("sync", Fail())))
    fs.make_dirs("d")
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    assert isinstance(fs.trace[-1].error, OSError)
    assert found(fs) == [NO_SYNC]


def test_a_short_write_counts_as_far_as_it_went() -> None:
    fs = RecordingFileSystem(FaultyFileSystem(SimulatedDisk(), on("pwrite", ShortWrite(0.5))))
    file = fs.open("f", write=True, create=True)
    assert file.pwrite(b"data", 0) == 2
    file.sync()
    fs.sync_dir("")
    assert found(fs, 0, 2, "f") == []
    assert found(fs, 0, 4, "f") == ["byte 2 was not written, or was truncated since"]


def test_files_are_followed_through_renames(fs: RecordingFileSystem) -> None:
    replace_file(fs, "d/f", b"data")
    assert found(fs) == []
    replace_file(fs, "d/f", b"DATA")
    assert found(fs) == []
    assert found(fs, path="d/f.tmp") == ["there is no such file"]
    fs.rename("d/f", "d/g")
    assert found(fs) == ["there is no such file"]
    assert found(fs, path="d/g") == ["its name is new (rename), and no sync_dir began after that"]
    fs.sync_dir("d")
    assert found(fs, path="d/g") == []
    fs.unlink("d/g")
    assert found(fs, path="d/g") == ["there is no such file"]


def test_a_new_file_with_an_old_name_is_another_file(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    file.sync()
    fs.unlink("d/f")
    fs.open("d/f", write=True, create=True).pwrite(b"data", 0)
    assert found(fs) == [NO_SYNC, NO_NAME]


def test_a_new_file_where_a_folder_was_renamed_is_another_file(fs: RecordingFileSystem) -> None:
    file = fs.open("d/f", write=True, create=True)
    fs.sync_dir("d")
    file.pwrite(b"data", 0)
    file.sync()
    fs.rename("d", "e")
    assert fs.open("e/f")._number == file._number
    fs.make_dirs("d")
    fs.open("d/f", write=True, create=True).pwrite(b"data", 0)
    assert found(fs) == [NO_SYNC, NO_NAME]


def test_an_old_name_needs_no_directory_sync() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"old.")
    fs = RecordingFileSystem(disk)
    file = fs.open("d/f", write=True, create=True)
    assert found(fs) == ["byte 0 was not written, or was truncated since"]
    file.pwrite(b"data", 0)
    file.sync()
    assert found(fs) == []


def test_a_renamed_file_that_was_never_opened(fs: RecordingFileSystem) -> None:
    assert isinstance(fs.inner, SimulatedDisk)
    fs.inner.put("d/g", b"data")
    fs.rename("d/g", "d/f")
    assert len(found(fs)) == 2


def test_a_mark_that_is_missing(fs: RecordingFileSystem) -> None:
    assert problems(fs.trace, "ack", []) == ["ack: no such mark in the trace"]


def test_a_write_during_a_sync_is_not_covered() -> None:
    """The plan holds the sync until another thread has written."""
    syncing, written = threading.Event(), threading.Event()

    def wait_in_sync(call: Call) -> Fault | None:
        if call.op == "sync":
            syncing.set()
            assert written.wait(10)
        return None

    fs = RecordingFileSystem(FaultyFileSystem(SimulatedDisk(), wait_in_sync))
    file = fs.open("f", write=True, create=True)
    fs.sync_dir("")
    file.pwrite(b"first", 0)
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert syncing.wait(10)
    file.pwrite(b"second", 5)
    written.set()
    thread.join()
    assert found(fs, 0, 5, "f") == []
    assert found(fs, 5, 11, "f") == [NO_SYNC]
    file.sync()
    assert found(fs, 5, 11, "f") == []


def test_the_trace_has_every_call_in_order(tmp_path: Path) -> None:
    fs = RecordingFileSystem(OsFileSystem())
    base = str(tmp_path / "d")
    path = os.path.join(base, "f")
    fs.make_dirs(base)
    lock = fs.lock(os.path.join(base, "lock"))
    file = fs.open(path, write=True, create=True)
    file.pwrite(b"0123456789", 3)
    file.truncate(8)
    assert file.pread(4, 2) == b"\x00012"
    assert file.pread_into(bytearray(100), 2) == 6
    assert file.size() == 8
    file.sync()
    file.close()
    assert {entry.name for entry in fs.list(base)} == {"f", "lock"}
    assert fs.stat(path).size == 8
    fs.sync_dir(base)
    fs.rename(path, path + "2")
    fs.unlink(path + "2")
    lock.close()
    memory = fs.map(os.path.join(base, "map"), 4096, write=True)
    assert memory is not None
    assert len(memory) == 4096
    memory.release()
    fs.make_dirs(os.path.join(base, "e"))
    fs.remove_dir(os.path.join(base, "e"))
    assert len(fs.boot_id()) == 16
    assert [event.op for event in fs.trace] == [
        "make_dirs", "lock", "create", "pwrite", "truncate", "pread", "pread_into", "size", "sync",
        "close", "list", "stat", "sync_dir", "rename", "unlink", "map",
        "make_dirs", "remove_dir",
    ]  # fmt: skip
    ranges = {event.op: (event.start, event.end) for event in fs.trace}
    assert ranges["pwrite"] == (3, 13)
    assert ranges["truncate"] == (8, 8)
    assert ranges["pread"] == (2, 6)
    assert ranges["pread_into"] == (2, 8)
    moments = [moment for event in fs.trace for moment in (event.began, event.ended)]
    assert moments == list(range(1, 2 * len(fs.trace) + 1))
