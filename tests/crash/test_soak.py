"""A hundred queues and ten groups, as they are used from day to day: nothing is lost, nothing comes
twice, space comes back, and a process that stays takes no more and no more.

`SOAK_SECONDS` says how long the long one takes. A run that fails names its seed.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.crash.soak import OPTIONS, QUEUES, Figures, drain, flat, run, space

FLOOR = 100 * len(QUEUES)  # bytes of segments, when everything is settled
MEMORY_MOST = 400 << 20
FILES_MOST = 1024  # what a process may have open, where nobody has raised it


@pytest.fixture(autouse=True)
def few_files() -> Iterator[None]:
    """We and our children have no more of them than most processes may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MOST, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soak(tmp_path: Path, seconds: float) -> list[Figures]:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    path = tmp_path / "data"
    try:
        books, figures = run(path, tmp_path / "notes", seconds, seed)
        with tailrace.open(path, **OPTIONS) as store:
            drain(store, books)
            books.check()
            until = time.monotonic() + 60
            while space(path) > FLOOR:
                assert time.monotonic() < until, f"{space(path):,} bytes are left"
                time.sleep(0.05)
    except BaseException as error:
        error.add_note(f"SOAK_SEED={seed}")
        raise
    print(f"{len(books.published):,} published, {books.acked.total():,} acknowledged, "
          f"{books.dead.total():,} dead, {len(books.cancelled):,} cancelled")  # fmt: skip
    print(f"memory {figures[-1].rss:,} bytes, {figures[-1].files} files")
    assert len(books.published) > 100
    assert books.dead
    assert books.cancelled
    return figures


def test_some_seconds_of_a_hundred_queues(tmp_path: Path) -> None:
    figures = soak(tmp_path, 5)
    assert max(each.rss for each in figures) < MEMORY_MOST
    assert max(each.files for each in figures) < FILES_MOST


@pytest.mark.long
def test_minutes_of_a_hundred_queues(tmp_path: Path) -> None:
    flat(soak(tmp_path, float(os.environ.get("SOAK_SECONDS", "240"))))
