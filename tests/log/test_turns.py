"""Whose turn it is to write: kept while nobody else wants it, given when somebody does, and free
again when its process dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace import Log
from tailrace.log import turn as turn_module
from tailrace.log.board import Board
from tailrace.log.locks import ProcessLock
from tailrace.log.turn import Keeper, Turn
from tailrace.log.writer import Writer
from tailrace.testing import SimulatedDisk
from tests.log.boards import FOLDER, is_wanted
from tests.log.conftest import OpenLog
from tests.log.helpers import WAIT, eventually, in_threads, offsets, side_file, values
from tests.log.processes import Other, another_process

# A type checker would take what was so a moment ago for what is so now.


def is_written(board: Board) -> bool:
    return board.is_being_written


def is_held(turn: Turn) -> bool:
    return turn.held


# --- Turn -----------------------------------------------------------------------------------


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turn_module, "time", clock)
    return clock


def rounds(turn: Turn, count: int) -> int:
    """Take turns until one is to be kept; how many that took, or `count`."""
    for number in range(1, count + 1):
        turn.take()
        turn.give()
        if not turn.shares:
            return number
    return count


def test_an_owner_keeps_it_after_some_quick_turns(
    disk: SimulatedDisk, board: Board, clock: Clock
) -> None:
    turn = Turn(disk, FOLDER, board, "owner")
    assert rounds(turn, 1_000) <= 128
    turn.disturbed()
    assert turn.shares
    assert rounds(turn, 1_000) == 64


def test_not_after_slow_ones(disk: SimulatedDisk, board: Board, clock: Clock) -> None:
    turn = Turn(disk, FOLDER, board, "owner")
    for _ in range(300):
        assert rounds(turn, 1) == 1
        assert turn.shares
        clock.now += 0.01


@pytest.mark.usefixtures("clock")
def test_one_that_shares_never_keeps_it(disk: SimulatedDisk, board: Board) -> None:
    turn, other = (Turn(disk, FOLDER, board, "shared") for _ in range(2))
    assert rounds(turn, 1_000) == 1_000
    turn.take()
    assert is_held(turn)
    turn.give()
    assert not is_held(turn)
    other.take()
    other.give()


def test_an_exclusive_one_needs_no_lock(disk: SimulatedDisk, board: Board) -> None:
    turn = Turn(disk, FOLDER, board, "exclusive")
    assert not turn.shares
    turn.take()
    turn.give()
    assert is_held(turn)
    board.want()  # somebody came, and was refused
    turn.give()
    assert not turn.shares, "each append would pay for it"
    assert disk.lock(f"{FOLDER}/.tailrace/lock").acquire(wait=False)
    turn.close()
    assert not is_held(turn)


@pytest.mark.usefixtures("clock")
def test_attention_that_a_dead_waiter_left(disk: SimulatedDisk, board: Board) -> None:
    turn = Turn(disk, FOLDER, board, "owner")
    board.want()
    assert rounds(turn, 1_000) < 1_000
    assert not is_wanted(board)


@pytest.mark.usefixtures("clock")
def test_attention_of_one_who_waits(disk: SimulatedDisk, board: Board) -> None:
    turn = Turn(disk, FOLDER, board, "owner")
    gate = disk.lock(f"{FOLDER}/.tailrace/lock.next")
    assert gate.acquire()
    board.want()
    assert rounds(turn, 1_000) == 1_000
    assert is_wanted(board)


def test_those_who_find_it_taken_wait_and_ask(disk: SimulatedDisk, board: Board) -> None:
    turn = Turn(disk, FOLDER, board, "owner")
    taken: list[int] = []
    turn.take()

    def wait(number: int) -> None:
        if number == 3:
            eventually(lambda: is_wanted(board))
            assert not taken
            turn.give()
            return
        mine = Turn(disk, FOLDER, board, "owner")
        mine.take()
        taken.append(number)
        mine.give()

    in_threads(4, wait)
    assert sorted(taken) == [0, 1, 2]
    assert not is_wanted(board)


# --- Keeper ---------------------------------------------------------------------------------


class Kept:
    """Keeps its turn until it is told not to."""

    def __init__(self) -> None:
        self.looks = 0
        self.stays = True

    def look(self) -> bool:
        self.looks += 1
        return self.stays


def test_the_keeper_looks_as_long_as_there_is_anything_to_look_after() -> None:
    keeper = Keeper()
    first, second = Kept(), Kept()
    for _ in range(2):  # and again, with another thread
        first.stays = second.stays = True
        keeper.add(first)
        keeper.add(second)
        eventually(lambda: first.looks > 2 and second.looks > 2)
        first.stays = False
        looks, second.looks = first.looks, 0
        eventually(lambda: second.looks > 2)
        assert first.looks <= looks + 1
        second.stays = False
        eventually(lambda: not keeper._runs)
        first.looks = second.looks = 0


def test_the_keeper_outlives_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Kept):
        def look(self) -> bool:
            super().look()
            raise OSError("no locks available")

    monkeypatch.setattr(sys, "unraisablehook", lambda _error: None)
    keeper = Keeper()
    failing, first, second = Failing(), Kept(), Kept()
    keeper.add(first)
    keeper.add(failing)
    eventually(lambda: failing.looks > 0)
    keeper.add(second)
    eventually(lambda: first.looks > 2 and second.looks > 2)
    first.stays = second.stays = False
    eventually(lambda: not keeper._runs)


class Alone(NamedTuple):
    """A log whose turn is kept, and no keeper: the test looks itself."""

    log: Log
    writer: Writer


@pytest.fixture
def alone(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> Alone:
    class Nobody:
        def add(self, kept: object) -> None: ...

    monkeypatch.setattr("tailrace.log.writer.keeper", Nobody())
    log = open_log(flush="async", upkeep=False)
    return Alone(log, keep_turn(log))


def keep_turn(log: Log) -> Writer:
    """Append until the log keeps its turn."""
    writer = log._writer
    assert writer is not None
    deadline = time.monotonic() + WAIT
    while not writer.turn.held:
        log.append_one(b"x")
        assert time.monotonic() < deadline
    return writer


def test_a_turn_is_kept_as_long_as_it_is_used(alone: Alone) -> None:
    log, writer = alone
    assert writer.board.keeper == os.getpid()
    for _ in range(5):
        assert writer.look()
        log.append_one(b"x")
    assert writer.look()
    assert is_written(writer.board)
    assert not writer.look()  # nothing has happened since
    assert not is_held(writer.turn)
    assert not is_written(writer.board)
    assert writer.board.note().next_offset == log.end_offset
    log.append_one(b"x")
    assert not is_held(writer.turn)


def test_a_turn_is_given_back_to_those_who_ask(alone: Alone) -> None:
    log, writer = alone
    writer.board.want()
    assert not writer.look()
    assert not is_held(writer.turn)
    writer.board.unwant()
    keep_turn(log)
    writer.board.want()
    log.append_one(b"x")
    assert not is_held(writer.turn)


def test_a_turn_is_left_alone_while_its_handle_is_at_work(alone: Alone) -> None:
    _log, writer = alone
    writer.board.want()
    with writer.lock:
        assert writer.look()
    assert is_held(writer.turn)
    writer.board.unwant()


def test_a_kept_turn_ends_with_the_log(alone: Alone, open_log: OpenLog) -> None:
    log, writer = alone
    while writer.look():
        continue
    other = open_log(upkeep=False)
    keep_turn(log)
    log.close()
    assert not writer.look()
    assert other.append_one(b"y").offset == log.end_offset


# --- logs and processes ---------------------------------------------------------------------


@pytest.fixture
def other(path: Path) -> Iterator[Other]:
    with another_process(path) as other:
        yield other


def is_kept(log: Log) -> bool:
    assert log._writer is not None
    return log._writer.turn.held


def test_an_idle_owner_gives_it_back(open_log: OpenLog) -> None:
    log, seen = open_log(flush="async"), open_log(mode="shared")
    keep_turn(log)
    eventually(lambda: not is_kept(log))
    assert seen.end_offset == log.end_offset
    keep_turn(log)
    assert seen.append_one(b"y").offset == log.end_offset - 1  # by asking


@pytest.mark.parametrize("mode", ["owner", "shared"])
def test_a_busy_owner_gives_it_to_others(mode: str, open_log: OpenLog) -> None:
    log, second = open_log(flush="async"), open_log(mode=mode)
    stop = threading.Event()

    def work(number: int) -> None:
        if not number:
            while not stop.is_set():
                log.append_one(b"x")
            return
        try:
            for _ in range(50):
                eventually(lambda: is_kept(log))
                second.append_one(b"y")
        finally:
            stop.set()

    in_threads(2, work)
    records = list(log.read())
    assert offsets(records) == list(range(log.end_offset))
    assert values(records).count(b"y") == 50
    assert not is_kept(second)


def test_a_busy_owner_gives_it_to_other_processes(other: Other, open_log: OpenLog) -> None:
    log = open_log(flush="async")
    other.ask("(log := Log(path, mode='shared')).path")
    stop = threading.Event()

    def work(number: int) -> None:
        if not number:
            while not stop.is_set():
                log.append_one(b"x")
            return
        try:
            eventually(lambda: is_kept(log))
            assert other.ask("len([log.append_one(b'y') for _ in range(50)])") == "50"
        finally:
            stop.set()

    in_threads(2, work)
    assert other.ask("log.close()") == "None"
    records = list(log.read())
    assert offsets(records) == list(range(log.end_offset))
    assert values(records).count(b"y") == 50


def test_a_waiter_that_is_killed_stops_nobody(path: Path, other: Other, open_log: OpenLog) -> None:
    log, third = open_log(flush="async"), open_log()
    other.ask("(log := Log(path)).path")
    turn = ProcessLock(str(side_file(path, "lock")))
    writer = log._writer
    assert writer is not None
    eventually(lambda: turn.acquire(wait=False))
    other.tell("log.append_one(b'never')")
    eventually(lambda: is_wanted(writer.board))
    behind = threading.Thread(target=third.append_one, args=(b"y",))  # at the gate
    behind.start()
    other.kill()
    turn.close()
    behind.join(WAIT)
    assert not behind.is_alive()
    writer.board.want()  # as if nobody had come after it
    keep_turn(log)
    assert not is_wanted(writer.board)
    assert set(values(log.read())) == {b"x", b"y"}


class Interrupted(Exception):
    """What a signal handler raises."""


def test_a_wait_that_is_interrupted(path: Path, open_log: OpenLog) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    log, second = open_log(flush="async"), open_log()
    turn, gate = (ProcessLock(str(side_file(path, name))) for name in ("lock", "lock.next"))
    eventually(turn.acquire_now)
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(Interrupted):
            log.append_one(b"never")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert gate.acquire_now()
    gate.close()
    turn.close()
    assert second.append_one(b"y").offset == 0
    assert log.append_one(b"x").offset == 1
    assert values(second.read()) == [b"y", b"x"]


TORN = """
tail = log._writer.tail

class Torn:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def pwrite(self, data, position):
        self.file.pwrite(bytes(data)[: len(data) // 2], position)
        os.kill(os.getpid(), signal.SIGKILL)

tail.state = (Torn(tail.state[0]), *tail.state[1:])
log.append_one(b"torn" * 20)
"""


@pytest.mark.no_cover
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("mode", ["owner", "shared"])
@pytest.mark.parametrize("how", ["whole", "torn"])
def test_a_writer_that_is_killed_in_its_turn(
    how: str, mode: str, flush: str, path: Path, other: Other, open_log: OpenLog
) -> None:
    """The next one, which had the log open all the time, takes in what is whole and cuts off what
    is not."""
    log = open_log(flush=flush, upkeep=False)
    log.append_one(b"ours").wait()
    other.ask(f"(log := Log(path, mode={mode!r}, upkeep=False)).path")
    append = "[log.append_one(b'x' * 50) for _ in range(400)]"
    if how == "whole":
        other.tell(f"{append} and os.kill(os.getpid(), {signal.SIGKILL})")
    else:
        other.tell(f"{append} and exec({TORN!r})")
    assert other.answer() == ""
    assert log.append_one(b"next").wait().offset == 401
    reader = open_log(read_only=True)
    for each in (log, reader):
        assert offsets(each.read()) == list(range(402))
        assert values(each.read(400)) == [b"x" * 50, b"next"]
    quarantined = [file.read_bytes() for file in path.glob(".tailrace/quarantine/*")]
    assert len(quarantined) == (how == "torn")
    assert all(data.rstrip(b"\0").endswith(b"torn") for data in quarantined)
