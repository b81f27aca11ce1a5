"""The file-system seam: loops over short calls, and the real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.log import fs as fs_module
from tailrace.log.fs import OsFileSystem, read_exactly, read_file, replace_file, write_all
from tailrace.testing import FaultyFileSystem, ShortWrite, SimulatedDisk

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
    file.sync()
    assert file.size() == 5
    file.close()
    file.close()
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


def test_where_nothing_tells_the_boot_every_open_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(fs_module, "open", missing, raising=False)
    monkeypatch.setattr(fs_module, "_known_boot_id", fs_module._known_boot_id.__wrapped__)
    assert len(FS.boot_id()) == 16
    assert FS.boot_id() != FS.boot_id()


def test_files_are_not_inherited(tmp_path: Path) -> None:
    file = FS.open(str(tmp_path / "f"), write=True, create=True)
    assert not os.get_inheritable(file.fd)
    file.close()
