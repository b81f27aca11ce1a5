"""The file-system seam: loops over short calls, and the real file system."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace.log import fs as fs_module
from tailrace.log.fs import (
    FileSystem,
    OsFileSystem,
    read_exactly,
    read_file,
    remove_tree,
    replace_file,
    write_all,
)
from tailrace.testing import Call, FaultyFileSystem, ShortWrite, SimulatedDisk
from tests.log.conftest import open_files
from tests.log.helpers import run_python

FS = OsFileSystem()


def test_write_all_writes_everything(tmp_path: Path) -> None:
    fs = FaultyFileSystem(FS, lambda call: ShortWrite(0.1))
    file = fs.open(str(tmp_path / "f"), write=True, create=True)
    write_all(file, bytes(range(200)), 10)
    write_all(file, b"", 0)
    file.close()
    assert (tmp_path / "f").read_bytes() == bytes(10) + bytes(range(200))
    assert len(fs.calls) > 5


class Short:
    """A file that gives a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + min(size, 3)]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 10, 11, 50])
def test_read_exactly(size: int) -> None:
    data = b"0123456789"
    file: object = Short(data)
    assert read_exactly(file, size, 0) == data[:size]  # type: ignore[arg-type]
    assert read_exactly(file, size, 8) == data[8:][:size]  # type: ignore[arg-type]
    assert read_exactly(file, size, 20) == b""  # type: ignore[arg-type]


def test_read_file(tmp_path: Path) -> None:
    assert read_file(FS, str(tmp_path / "none"), 10) is None
    (tmp_path / "f").write_bytes(b"0123456789")
    assert read_file(FS, str(tmp_path / "f"), 100) == b"0123456789"
    assert read_file(FS, str(tmp_path / "f"), 4) == b"0123"


def test_replace_file(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    temporary = tmp_path / f"f.{os.getpid()}.tmp"
    temporary.write_bytes(b"left by somebody who was killed, and longer than the new one")
    for data in (b"first", b"second, longer", b""):
        replace_file(FS, path, data)
        assert Path(path).read_bytes() == data
    assert not temporary.exists()


def test_files(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        FS.open(path)
    with pytest.raises(FileNotFoundError):
        FS.open(path, write=True)
    file = FS.open(path, write=True, create=True)
    assert file.pwrite(b"0123456789", 0) == 10
    assert FS.open(path, write=True, create=True).size() == 10  # never truncated
    assert file.pread(3, 2) == b"234"
    buffer = bytearray(4)
    assert file.pread_into(buffer, 8) == 2
    assert buffer == b"89\0\0"
    file.truncate(5)
    file.part_with(100, 2)  # as far as it goes
    file.sync()
    assert file.size() == 5
    assert file.pread(9, 0) == b"01234"
    file.close()
    file.close()
    file.part_with(5, 0)  # a hint: it never fails
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()
    with pytest.raises(OSError, match="Bad file descriptor"):
        FS.open(path).pwrite(b"x", 0)


def test_folders(tmp_path: Path) -> None:
    FS.make_dirs(str(tmp_path / "a" / "b"))
    FS.make_dirs(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "f").write_bytes(b"123")
    entries = {entry.name: entry for entry in FS.list(str(tmp_path / "a"))}
    assert (entries["f"].size, entries["f"].is_dir) == (3, False)
    assert entries["b"].is_dir
    assert entries["f"].modified_ms == (tmp_path / "a" / "f").stat().st_mtime_ns // 1_000_000
    assert FS.stat(str(tmp_path / "a" / "f")) == entries["f"]
    FS.rename(str(tmp_path / "a" / "f"), str(tmp_path / "a" / "g"))
    FS.sync_dir(str(tmp_path / "a"))
    FS.unlink(str(tmp_path / "a" / "g"))
    with pytest.raises(FileNotFoundError):
        FS.unlink(str(tmp_path / "a" / "g"))


def test_a_folder_that_others_make_and_remove(tmp_path: Path) -> None:
    """They may do so while we make it: then it is there, or missing, and no file is in the way."""
    folder, make = tmp_path / "a", os.mkdir

    def twice(path: str) -> None:
        make(path)
        make(path)

    def twice_and_gone(path: str) -> None:
        try:
            twice(path)
        finally:
            os.rmdir(path)

    with mock.patch("os.mkdir", twice):
        FS.make_dirs(str(folder))
    assert folder.is_dir()
    folder.rmdir()
    with mock.patch("os.mkdir", twice_and_gone), pytest.raises(FileNotFoundError):
        FS.make_dirs(str(folder))
    folder.touch()
    with pytest.raises(FileExistsError):
        FS.make_dirs(str(folder))


def test_a_folder_that_is_empty_can_be_removed(tmp_path: Path) -> None:
    folder, file = tmp_path / "a", tmp_path / "a" / "f"
    FS.make_dirs(str(folder))
    file.touch()
    for path, number in (
        (folder, errno.ENOTEMPTY),
        (file, errno.ENOTDIR),
        (tmp_path / "none", errno.ENOENT),
    ):
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            FS.remove_dir(str(path))
    file.unlink()
    FS.remove_dir(str(folder))
    assert not folder.exists()


def a_tree(fs: FileSystem, top: str) -> None:
    for folder in ("a/b/c", "a/d", "e"):
        fs.make_dirs(f"{top}/{folder}")
    for name in ("f", "a/f", "a/b/f", "a/b/c/f", "a/b/c/g"):
        fs.open(f"{top}/{name}", write=True, create=True).close()


@pytest.fixture(params=["disk", "os"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file system, and an empty folder in it."""
    if request.param == "os":
        return FS, str(tmp_path)
    disk = SimulatedDisk()
    disk.make_dirs("d")
    return disk, "d"


def test_a_tree_is_removed(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    a_tree(fs, f"{folder}/t")
    a_tree(fs, f"{folder}/other")
    before = len(fs.list(f"{folder}/other"))
    remove_tree(fs, f"{folder}/t")
    assert [entry.name for entry in fs.list(folder)] == ["other"]
    assert len(fs.list(f"{folder}/other")) == before
    remove_tree(fs, f"{folder}/t")  # it is gone


def test_two_remove_the_same_tree(place: tuple[FileSystem, str]) -> None:
    """At each call of the one, the other does all of it."""
    inner, folder = place
    top = f"{folder}/t"
    a_tree(inner, top)
    counting = FaultyFileSystem(inner)
    remove_tree(counting, top)
    assert {"list", "unlink", "remove_dir"} == {call.op for call in counting.calls}
    for number in range(len(counting.calls)):
        a_tree(inner, top)

        def meanwhile(call: Call, number: int = number) -> None:
            if call.n == number:
                remove_tree(inner, top)

        remove_tree(FaultyFileSystem(inner, meanwhile), top)
        assert not inner.list(folder)


def test_what_is_made_in_a_tree_that_is_removed(place: tuple[FileSystem, str]) -> None:
    """Whoever removes it learns that it is not gone."""
    inner, folder = place
    a_tree(inner, f"{folder}/t")

    def meanwhile(call: Call) -> None:
        if call.op == "remove_dir" and call.path == f"{folder}/t":
            inner.make_dirs(f"{folder}/t/new")

    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        remove_tree(FaultyFileSystem(inner, meanwhile), f"{folder}/t")
    assert [entry.name for entry in inner.list(f"{folder}/t")] == ["new"]


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    a_tree(FS, str(tmp_path / "t"))
    a_tree(FS, str(tmp_path / "other"))
    (tmp_path / "t" / "a" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "t" / "a" / "file").symlink_to(tmp_path / "other" / "f")
    before = sorted((tmp_path / "other").rglob("*"))
    remove_tree(FS, str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()
    assert sorted((tmp_path / "other").rglob("*")) == before


def test_relative_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FS.make_dirs("x/y")
    assert (tmp_path / "x" / "y").is_dir()


def test_the_listing_skips_what_goes_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "here").touch()
    assert [entry.name for entry in FS.list(str(tmp_path))] == ["here"]


def test_the_boot_id_is_that_of_the_machine() -> None:
    assert FS.boot_id() == OsFileSystem().boot_id()
    assert len(FS.boot_id()) == 16
    disk = SimulatedDisk()
    before = disk.boot_id()
    disk.crash(0)
    assert disk.boot_id() != before


NO_BOOT_ID = """
import json, os, sys
from tailrace.log import fs

def missing(path):
    raise FileNotFoundError(2, "there is no /proc", path)

fs.open = missing
down = os.pipe()
child = os.fork()
if not child:  # it is the first to ask
    os.write(down[1], fs.OsFileSystem().boot_id())
    os._exit(0)
os.waitpid(child, 0)
ids = [os.read(down[0], 100), fs.OsFileSystem().boot_id(), fs.OsFileSystem().boot_id()]
del fs.open  # it is mounted after all: this process stays what it is
ids.append(fs.OsFileSystem().boot_id())
print(json.dumps([boot_id.hex() for boot_id in ids]))
"""


def test_where_nothing_tells_the_boot_each_process_is_one() -> None:
    """With those it forks: handles of the same process, above all, have to agree."""
    one, other = run_python(NO_BOOT_ID), run_python(NO_BOOT_ID)
    assert len(set(one)) == len(set(other)) == 1
    assert len({one[0], other[0], FS.boot_id().hex()}) == 3
    assert len(one[0]) == 32


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_no_boot_id_is_made_up_for_want_of_a_descriptor(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one process made up, all others would take for another boot."""

    def refuse(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    before = FS.boot_id()
    fs_module._boot_id.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(fs_module, "open", refuse, raising=False)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            FS.boot_id()
    assert FS.boot_id() == before


# --- macOS ----------------------------------------------------------------------------------

FULL = 51


class Drive:
    """The system calls of macOS, by what they are asked to sync. A full sync may be refused."""

    def __init__(self, refusal: int | None) -> None:
        self.refusal = refusal
        self.calls: list[tuple[str, str]] = []

    def fcntl(self, fd: int, command: int) -> int:
        assert command == FULL
        self._note("full", fd)
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return 0

    def fsync(self, fd: int) -> None:
        self._note("fsync", fd)

    def _note(self, call: str, fd: int) -> None:
        self.calls.append((call, "names" if stat.S_ISDIR(os.fstat(fd).st_mode) else "data"))


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], tuple[Any, Drive]]:
    """The module as it is there."""

    def load(refusal: int | None) -> tuple[Any, Drive]:
        drive = Drive(refusal)
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", drive.fcntl)
        monkeypatch.setattr(os, "fsync", drive.fsync)
        spec = importlib.util.spec_from_file_location("fs_of_macos", fs_module.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "darwin")
            spec.loader.exec_module(module)
        return module, drive

    return load


def sync_both(module: Any, folder: Path) -> None:
    file = module.OsFileSystem().open(str(folder / "f"), write=True, create=True)
    try:
        file.sync()
    finally:
        file.close()
    module.OsFileSystem().sync_dir(str(folder))


def test_a_full_sync_of_data_and_of_names(macos: Any, tmp_path: Path) -> None:
    module, drive = macos(None)
    sync_both(module, tmp_path)
    assert drive.calls == [("full", "data"), ("full", "names")]


@pytest.mark.parametrize("refusal", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_a_full_sync(refusal: int, macos: Any, tmp_path: Path) -> None:
    module, drive = macos(refusal)
    sync_both(module, tmp_path)
    both = [("full", "data"), ("fsync", "data"), ("full", "names"), ("fsync", "names")]
    assert drive.calls == both


def test_a_full_sync_that_fails_is_not_tried_in_another_way(macos: Any, tmp_path: Path) -> None:
    """The kernel reports a lost write once; a second sync would find nothing wrong."""
    module, drive = macos(errno.EIO)
    before = open_files()
    for sync in (sync_both, lambda module, path: module.OsFileSystem().sync_dir(str(path))):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            sync(module, tmp_path)
    assert drive.calls == [("full", "data"), ("full", "names")]
    assert open_files() == before


def test_files_are_not_inherited(tmp_path: Path) -> None:
    file = FS.open(str(tmp_path / "f"), write=True, create=True)
    assert not os.get_inheritable(file.fd)
    file.close()


@pytest.mark.parametrize("kind", ["real", "simulated"])
def test_to_map_a_file_whose_folder_is_missing(kind: str, tmp_path: Path) -> None:
    """Who only looks finds nothing; who wants to write has to know."""
    fs: FileSystem = OsFileSystem() if kind == "real" else SimulatedDisk()
    path = str(tmp_path / "missing" / "map")
    assert fs.map(path, 4096, write=False) is None
    with pytest.raises(FileNotFoundError):
        fs.map(path, 4096, write=True)
    fs.make_dirs(str(tmp_path / "missing"))
    assert fs.map(path, 4096, write=False) is None
    assert fs.map(path, 4096, write=True) is not None
