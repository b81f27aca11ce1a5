"""Several writers have a log open when a flush fails, and whoever recovers it then is killed.

It is killed at a line of the recovery, and in the middle of a store to the memory that all of them
share. Those of before the recovery never append again, and never get a receipt for what recovery
has cut off, neither then nor after the next one has recovered the log; what was acknowledged is in
the log, and no offset is given twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

from tailrace import Log, NotWritten, OutcomeUnknown
from tailrace.kernel.layout import NOTE_PLACES
from tailrace.log import turn
from tailrace.log.board import Board, Note
from tailrace.log.fs import FileSystem, OsFile, OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.testing import Fail, FaultyFileSystem, SimulatedCrash, SimulatedDisk, on
from tests.crash.countdown import Countdown
from tests.crash.oracle import scan
from tests.log.processes import Other, another_process
from tests.project import ROOT

OPTIONS: dict[str, Any] = {"mode": "shared", "upkeep": False, "segment_bytes": 4_000}

FOLDER = "log"
LASTS = ("failing", "restless", "idle", "restless_there", "idle_there")
WORD = 8  # bytes that are stored at once

REFUSED = re.compile(r"(NotWritten|OutcomeUnknown): .*[Rr]eopen the log")

_PLACES = tuple(
    os.sep + os.path.join("tailrace", *names)
    for names in (("log", "board.py"), ("log", "writer.py"), ("kernel", "pure", "notes.py"))
)


class UnsyncedFile(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        """Nobody cuts the power."""


class UnsyncedFileSystem(OsFileSystem):
    """The real one, in less time."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        file = super().open(path, write=write, create=create)
        try:
            return UnsyncedFile(os.dup(file.fd))
        finally:
            file.close()

    def sync_dir(self, path: str) -> None:
        """Nobody cuts the power."""


class Handle:
    """One that has the log open. What it tries comes to a word."""

    def __init__(self, path: str, flush: str, fs: FileSystem | None = None) -> None:
        self._faults = FaultyFileSystem(fs or UnsyncedFileSystem())
        self._sent: dict[str, Any] = {}
        self.log = Log(path, fs=self._faults, flush=flush, **OPTIONS)

    def append(self, value: str) -> str:
        return self._attempt(lambda: self._append(value))

    def _append(self, value: str) -> int:
        self._sent[value] = self.log.append_one(value.encode())
        return int(self._sent[value].offset)

    def wait(self, value: str) -> str:
        return self._attempt(lambda: self._sent[value].wait().offset)

    def flush(self) -> str:
        return self._attempt(self.log.flush)

    def fail(self) -> str:
        """A flush fails that takes no turn to write: one in the background, or of a receipt."""
        self._faults.plan = on("sync", Fail(), path="*.seg")
        writer = self.log._writer
        assert writer is not None
        result = self._attempt(writer.flush_own)
        self._faults.plan = None
        return result

    @staticmethod
    def _attempt(verb: Callable[[], object]) -> str:
        try:
            return str(verb())
        except (NotWritten, OutcomeUnknown) as error:
            return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        self.log.close()


Ask = Callable[..., str]  # has a handle do something: the name of the method, and its arguments


def here(handle: Handle) -> Ask:
    return lambda verb, *arguments: str(getattr(handle, verb)(*arguments))


def there(other: Other, name: str, path: str, flush: str) -> Ask:
    """A handle in another process, which is opened for it."""
    opening = f"globals().update({name}=module.Handle({path!r}, {flush!r}))"
    assert other.ask(opening) == "None"
    return lambda verb, *arguments: other.ask(f"{name}.{verb}(*{arguments!r})")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """Another process, with this module."""
    with another_process(tmp_path_factory.mktemp("other")) as other:
        assert other.ask(f"sys.path.insert(0, {str(ROOT)!r})") == "None"
        module = "__import__('tests.crash.test_poisoned_writers', fromlist=['recover'])"
        assert other.ask(f"globals().update(module={module})") == "None"
        yield other


class Scene:
    """A log that several have open, each of which had a record acknowledged and has another on its
    way when a flush fails. The `restless` try to go on after each death, the `idle` know of nothing
    until the log is recovered; `last` was the last to append, and is the first to try again: to it
    the log is as it left it."""

    def __init__(self, flush: str, handles: dict[str, Ask], last: str) -> None:
        self._flush = flush
        self._handles = handles
        self._acked: dict[int, str] = {}
        self._refusals = 0
        first = sorted(handles, key=lambda name: name != last)
        self.restless = [name for name in first if name.startswith("restless")]
        self.idle = [name for name in first if name.startswith("idle")]
        for name, ask in handles.items():
            self._have_acked(name, ask)
        for name in sorted(handles, key=lambda name: name == last):
            assert handles[name]("append", f"{name} pending").isdigit()
        assert REFUSED.match(handles["failing"]("fail"))

    def _have_acked(self, name: str, ask: Ask) -> None:
        value = f"{name} acked {len(self._acked)}"
        offset = int(ask("append", value))
        if self._flush == "async":
            assert ask("flush") == "None"
        assert ask("wait", value) == str(offset)
        assert offset not in self._acked, "the offset was given twice"
        self._acked[offset] = value

    def refuse(self, names: list[str]) -> None:
        """None of them can do anything any more, whatever it tries first."""
        for name in names:
            tries = [("append", f"{name} never"), ("flush",)]
            if self._flush == "sync":  # the receipts of an `async` log wait for nothing
                tries.append(("wait", f"{name} pending"))
            first = self._refusals % len(tries)
            for what in (*tries[first:], *tries[:first]):
                answer = self._handles[name](*what)
                assert REFUSED.match(answer), f"{name}, {what}: {answer}"
            self._refusals += 1

    def go_on(self, open_it: Callable[[], Handle]) -> None:
        """Somebody recovers the log. Nobody disturbs him, not even by closing."""
        recovered = open_it()
        for name in (*self.idle, *self.restless, "failing"):
            self._have_acked("recovered", here(recovered))
            self.refuse([name])
        late = open_it()
        self._have_acked("late", here(late))
        for ask in self._handles.values():
            ask("close")
            self._have_acked("recovered", here(recovered))
        self._check(recovered.log)
        recovered.close()
        self._have_acked("late", here(late))
        late.close()
        again = open_it()
        self._check(again.log)
        again.close()

    def _check(self, log: Log) -> None:
        found = scan(log)
        offsets = [seen.offset for seen in found.records]
        assert offsets == sorted(set(offsets))
        there = {seen.offset: seen.value.decode() for seen in found.records}
        assert {offset: there.get(offset) for offset in self._acked} == self._acked
        assert set(there.values()) == set(self._acked.values()), "what was cut off is there"
        assert self._flush == "async" or not found.lost


# --- killed at a line -------------------------------------------------------------------------


def is_recovery(frame: FrameType) -> bool:
    """Does `Writer._recover` do it, in the writer or on the board?"""
    if not frame.f_code.co_filename.endswith(_PLACES):
        return False
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_qualname != "Writer._recover":
        caller = caller.f_back
    return caller is not None


def recover(path: str, flush: str, line: int) -> str:
    """Have a child open the log that dies at a line; the lines that it passed, as JSON, if it did
    not come so far. In a process without threads."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        code = 3
        try:
            countdown = Countdown(line, is_recovery)
            fs = UnsyncedFileSystem()
            sys.settrace(countdown)
            log = Log(path, flush=flush, fs=fs, **OPTIONS)
            sys.settrace(None)
            os.write(theirs, json.dumps(countdown.passed).encode())
            code = 0 if log.end_offset else 3
        finally:
            os._exit(code)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        passed = pipe.read()
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == (0 if passed else -signal.SIGKILL), f"it ended with {code}"
    return passed.decode()


def have_recovered(other: Other, path: str, flush: str, line: int = 1 << 40) -> list[str]:
    answer = other.ask(f"module.recover({path!r}, {flush!r}, {line})")
    return list(json.loads(answer)) if answer else []


@contextlib.contextmanager
def set_scene(folder: Path, flush: str, other: Other, last: str) -> Iterator[tuple[str, Scene]]:
    folder.mkdir()
    path = str(folder / "log")
    asks = {name: here(Handle(path, flush)) for name in ("failing", "restless", "idle")}
    for name in ("restless_there", "idle_there"):
        asks[name] = there(other, name, path, flush)
    try:
        yield path, Scene(flush, asks, last)
    finally:
        for ask in asks.values():
            ask("close")
    problems = verify(OsFileSystem(), path).problems
    assert all(found.message.startswith("offsets") for found in problems), problems


@pytest.mark.sample(2)
@pytest.mark.parametrize("last", LASTS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_whoever_recovers_the_log_is_killed_at_a_line(
    flush: str, last: str, tmp_path: Path, other: Other
) -> None:
    """All of these together come to every line; and to those of the board in either flush mode."""
    with set_scene(tmp_path / "whole", flush, other, last) as (path, scene):
        lines = have_recovered(other, path, flush)
        scene.go_on(lambda: Handle(path, flush))
    assert {"Writer._recover", "Board.set_up"} <= set(lines)
    mine, count = LASTS.index(last), len(LASTS)
    points = []
    for n, function in enumerate(lines, 1):
        is_for_both = function.startswith("Board.") or (flush == "sync") is (n // count % 2 == 0)
        if n % count == mine and is_for_both:
            points.append([n])
    points.append(random.Random(flush + last).choices(range(1, len(lines) + 1), k=2))
    kill_at_lines(tmp_path, flush, last, other, lines, points)


@pytest.mark.long
@pytest.mark.parametrize("last", LASTS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_whoever_recovers_the_log_is_killed_at_any_line(
    flush: str, last: str, tmp_path: Path, other: Other
) -> None:
    with set_scene(tmp_path / "whole", flush, other, last) as (path, _scene):
        lines = have_recovered(other, path, flush)
    rng = random.Random(flush + last)
    points = [[n] for n in range(1, len(lines) + 1)]
    points += [rng.choices(range(1, len(lines) + 1), k=rng.choice((2, 3))) for _ in range(300)]
    kill_at_lines(tmp_path, flush, last, other, lines, points)


def kill_at_lines(
    folder: Path, flush: str, last: str, other: Other, lines: list[str], points: list[list[int]]
) -> None:
    for number, deaths in enumerate(points):
        try:
            with set_scene(folder / f"{number}", flush, other, last) as (path, scene):
                for number_of_death, line in enumerate(deaths):
                    # What the first one has done, the next one need not do, and comes to its end.
                    passed = have_recovered(other, path, flush, line)
                    assert not passed or number_of_death
                    scene.refuse(scene.restless)
                scene.go_on(partial(Handle, path, flush))
        except BaseException as error:
            where = " and ".join(f"{line} ({lines[line - 1]})" for line in deaths)
            error.add_note(f"killed at line {where}; {last} was the last to append")
            raise
        shutil.rmtree(folder / f"{number}")


# --- killed in the middle of a store ----------------------------------------------------------


def boards_on_the_way(board: Board, set_up: Callable[[], None]) -> list[bytes]:
    """What the board may look like to others if one dies who sets it up: after each instruction,
    and after each word that an instruction stores, from below or from above."""
    whole = [bytes(board.memory)]

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        if (now := bytes(board.memory)) != whole[-1]:
            whole.append(now)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        set_up()
    finally:
        sys.settrace(before)
    whole.append(bytes(board.memory))
    found = whole[:1]
    for old, new in itertools.pairwise(whole):
        changed = [
            at for at in range(0, len(old), WORD) if old[at : at + WORD] != new[at : at + WORD]
        ]
        # A note is put up before anything points to it, in whatever order it is written.
        for order in (changed, changed[::-1]):
            torn = bytearray(old)
            for position in sorted(order, key=lambda position: position < NOTE_PLACES[0]):
                torn[position : position + WORD] = new[position : position + WORD]
                if torn not in found:
                    found.append(bytes(torn))
    return found


def end_in_set_up(disk: SimulatedDisk, flush: str, image: bytes) -> list[bytes]:
    """Open the log, and die when the board is as in the image; the images that there are."""
    images = []

    def die(board: Board, note: Note) -> None:
        images.extend(boards_on_the_way(board, partial(set_up, board, note)))
        board.memory[:] = image or images[0]
        raise SimulatedCrash

    set_up = Board.set_up
    with patch.object(Board, "set_up", die), pytest.raises(SimulatedCrash):
        Handle(FOLDER, flush, disk)
    return images


@pytest.mark.parametrize("last", ["failing", "restless", "idle"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_whoever_recovers_the_log_is_killed_in_a_store_to_the_board(flush: str, last: str) -> None:
    def play(image: bytes) -> list[bytes]:
        disk = SimulatedDisk()
        names = ("failing", "restless", "idle")
        with patch.object(turn, "_draw", itertools.count(1).__next__):  # the same each time
            scene = Scene(flush, {name: here(Handle(FOLDER, flush, disk)) for name in names}, last)
            images = end_in_set_up(disk, flush, image)
            scene.refuse(scene.restless)
            scene.go_on(lambda: Handle(FOLDER, flush, disk))
        return images

    images = play(b"")
    assert len(images) > 5
    for number, image in enumerate(images):
        try:
            assert play(image) == images
        except BaseException as error:
            error.add_note(f"killed at store {number}: {image[:176].hex(' ', 8)}")
            raise
