"""Locks on files: nobody waits, on both implementations."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.twins import Twin


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The same file, opened twice."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    yield first, second
    os.close(first)
    os.close(second)


def test_one_has_it_at_a_time(kernel: Twin, fds: tuple[int, int]) -> None:
    first, second = fds
    assert kernel.lock_now(first) is True
    assert kernel.lock_now(first) is True
    assert kernel.lock_now(second) is False
    kernel.unlock(first)
    kernel.unlock(first)
    assert kernel.lock_now(second) is True
    assert kernel.lock_now(first) is False


def test_both_twins_take_the_same_lock(twins: tuple[Twin, Twin], fds: tuple[int, int]) -> None:
    first, second = fds
    assert twins[0].lock_now(first)
    assert not twins[1].lock_now(second)
    twins[1].unlock(first)
    assert twins[1].lock_now(second)


def test_not_being_able_to_is_not_the_same_as_being_locked_out(
    kernel: Twin, tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.close(fd)
    for call in (kernel.lock_now, kernel.unlock):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            call(fd)
