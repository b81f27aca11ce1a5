"""The reserve of a store: space that is given up on a full disk, so that consumers can go on."""

from __future__ import annotations

import errno
import zlib

import pytest

from tailrace import Full, NotWritten
from tailrace.queue.reserve import SIZE, Reserve, is_full
from tailrace.testing import Fail, FaultyFileSystem, ShortWrite, SimulatedDisk, on


@pytest.fixture
def fs() -> FaultyFileSystem:
    fs = FaultyFileSystem(SimulatedDisk(0))
    fs.make_dirs("side")
    return fs


@pytest.fixture
def reserve(fs: FaultyFileSystem) -> Reserve:
    return Reserve(fs, "side")


def size(fs: FaultyFileSystem) -> int:
    return fs.stat("side/reserve").size


def test_it_is_made_once(fs: FaultyFileSystem, reserve: Reserve) -> None:
    reserve.fill()
    assert size(fs) == SIZE
    found = fs.open("side/reserve").pread(SIZE, 0)
    assert len(zlib.compress(found)) >= SIZE  # it takes its space wherever it is
    calls = [call.op for call in fs.calls]
    assert calls.count("sync") == 1
    reserve.fill()
    assert [call.op for call in fs.calls][len(calls) :] == ["stat"]


def test_half_of_one_is_completed(fs: FaultyFileSystem, reserve: Reserve) -> None:
    file = fs.open("side/reserve", write=True, create=True)
    file.pwrite(bytes(SIZE - 1), 0)
    file.close()
    reserve.fill()
    assert size(fs) == SIZE


def test_without_room_there_is_none(fs: FaultyFileSystem, reserve: Reserve) -> None:
    """It takes nothing, then; and that is no error."""
    fs.plan = on("pwrite", ShortWrite(0.5, then=Fail(errno.ENOSPC)))
    reserve.fill()
    assert size(fs) == 0
    assert not reserve.spend()
    assert size(fs) == 0


def test_a_broken_disk_is_an_error(fs: FaultyFileSystem, reserve: Reserve) -> None:
    fs.plan = on("pwrite", Fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        reserve.fill()
    assert size(fs) == 0


def test_it_is_given_up_once(
    fs: FaultyFileSystem, reserve: Reserve, caplog: pytest.LogCaptureFixture
) -> None:
    assert not reserve.spend()
    assert not caplog.records
    reserve.fill()
    assert reserve.spend()
    assert "the disk is full: side/reserve was given up" in caplog.text
    assert not reserve.spend()
    reserve.fill()
    fs.plan = on("unlink", Fail(errno.EROFS))
    assert not reserve.spend()
    assert size(fs) == SIZE


def full(number: int = errno.ENOSPC) -> NotWritten:
    error = NotWritten("no")
    error.__cause__ = OSError(number, "no")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EDQUOT, ""), True),
        (OSError(errno.EIO, ""), False),
        (full(), True),
        (full(errno.EDQUOT), True),
        (full(errno.EIO), False),
        (NotWritten("no"), False),
        (ValueError("no"), False),
    ],
)
def test_what_a_full_disk_is(error: Exception, expected: bool) -> None:
    assert is_full(error) is expected


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), full()])
def test_in_need_it_is_tried_again(
    fs: FaultyFileSystem, reserve: Reserve, error: Exception
) -> None:
    reserve.fill()
    errors = [error]

    def do() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert reserve.in_need(do) == "done"
    assert reserve.in_need(do) == "done"
    assert not reserve.spend()
    errors = [error]
    expected = Full if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):  # there is none left
        reserve.in_need(do)


def test_for_another_error_it_is_kept(fs: FaultyFileSystem, reserve: Reserve) -> None:
    reserve.fill()

    def do() -> None:
        raise full(errno.EIO)

    with pytest.raises(NotWritten):
        reserve.in_need(do)
    assert size(fs) == SIZE
