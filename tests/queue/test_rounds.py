"""What may be deleted goes also where no process lives as long as it is between two looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import Closed, Store
from tailrace.log.fs import OsFileSystem
from tailrace.queue.caretaker import Caretaker
from tailrace.queue.rounds import NAME, Rounds
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import drain
from tests.queue.test_retention import SMALL, eventually, fill, segments_in

INTERVAL_S = 300


def leave_settled(open_store: OpenStore, *names: str) -> None:
    """Messages that may go, and nobody who deletes them."""
    with open_store() as store:
        for name in names:
            queue = store.queue(name, **SMALL)
            fill(queue)
            drain(queue.consumer("w"))


def left(open_store: OpenStore, name: str = "q") -> int:
    """How many segments a queue has."""
    with open_store() as store:
        return segments_in(store.layout.segments(name))


def come_and_go(open_store: OpenStore) -> None:
    open_store(upkeep=True).close()


def test_who_leaves_does_what_is_overdue(open_store: OpenStore, clock: ManualClock) -> None:
    come_and_go(open_store)
    for _ in range(2):
        leave_settled(open_store, "q")
        clock.advance(INTERVAL_S - 1)
        come_and_go(open_store)
        assert left(open_store) > 3  # it is not time yet
        clock.advance(1)
        come_and_go(open_store)
        assert left(open_store) <= 1


def test_who_stays_does_not_wait_a_whole_interval(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.queue.caretaker._FIRST_S", 0.03)
    come_and_go(open_store)
    leave_settled(open_store, "q")
    clock.advance(INTERVAL_S)
    with open_store(upkeep=True) as store:
        eventually(lambda: segments_in(store.layout.segments("q")) <= 1)


@pytest.mark.parametrize("name", ["q", "\u00fc" * 60], ids=["short", "long"])
def test_what_is_broken_off_goes_on_there(
    open_store: OpenStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    names = [f"{name}{number}" for number in range(4)]
    come_and_go(open_store)
    leave_settled(open_store, *names)
    clock.advance(INTERVAL_S)
    let_pass(monkeypatch, 0.015)  # with each queue, and each close has 20 ms
    for number in range(1, len(names) + 1):
        come_and_go(open_store)
        done = [each for each in names if left(open_store, each) <= 1]
        assert done == names[:number]
    leave_settled(open_store, *names)
    come_and_go(open_store)
    assert all(left(open_store, each) > 3 for each in names)  # that was the look of this time


def let_pass(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """Each time that somebody asks."""
    seconds: Iterator[float] = count(1_000, step_s)
    caretaker = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("tailrace.queue.caretaker.time", caretaker)


class Killed(BaseException):
    """In the middle of a look."""


@pytest.mark.parametrize(
    "error", [Killed(), Closed("the store is closed")], ids=["killed", "closed"]
)
def test_a_look_that_does_not_come_to_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    names = [f"q{number}" for number in range(6)]
    store.declare([(name, "classic", {}) for name in names])
    caretaker = Caretaker(store)
    caretaker._rounds.note()
    let_pass(monkeypatch, 0.06)
    seen: list[str] = []

    def see_to(store: Store, settings: Any, may_delete: bool) -> int:
        seen.append(settings.name)
        if len(seen) == 4:
            if isinstance(error, Closed):
                monkeypatch.setattr(store, "check_open", refuse)
            raise error
        return 0

    def refuse() -> None:
        raise error

    monkeypatch.setattr(caretaker, "_see_to", see_to)
    with contextlib.suppress(Killed):
        caretaker.retain()
    assert seen == names[:4]
    first = caretaker._rounds.left_of(names)[0]
    assert names.index(first) in ((3,) if isinstance(error, Closed) else (1, 2, 3))


def rounds(path: Path, clock: ManualClock) -> Rounds:
    return Rounds(OsFileSystem(), str(path), clock)


def test_clocks_that_jump(tmp_path: Path, clock: ManualClock) -> None:
    assert rounds(tmp_path, clock).left_s(10) == 10  # nobody knows: it begins now
    clock.advance(4)
    assert rounds(tmp_path, clock).left_s(10) == 6
    clock.advance(6)
    assert rounds(tmp_path, clock).left_s(10) == 0
    rounds(tmp_path, clock).note()
    clock.set_wall(clock.wall_ms() - 1)
    assert rounds(tmp_path, clock).left_s(10) == 0


def test_a_file_that_is_damaged_or_in_the_way(tmp_path: Path, clock: ManualClock) -> None:
    look = rounds(tmp_path, clock)
    look.note("b")
    assert look.left_of(["c", "a", "b"]) == ["b", "c"]
    (tmp_path / NAME).write_bytes(b"x" * 700)
    assert look.left_of(["c", "a", "b"]) == ["a", "b", "c"]
    assert look.left_s(10) == 10
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    look.note("b")
    assert look.left_of(["c", "a", "b"]) == ["a", "b", "c"]
    assert look.left_s(10) == 10
