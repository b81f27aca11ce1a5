"""A process that uses a queue is killed at a line of the code, beside one who has the group open,
or who comes later. Between calls to the file system there are stores to shared memory, too.

    python -m tests.crash.test_queue_lines STAGE

is the process that forks those who are killed, and looks at what they leave (`queue_works.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tailrace
from tailrace import Consumer, Message, Store
from tailrace.queue import burying
from tests.crash.countdown import Countdown
from tests.crash.crowd import PATIENCE_S, Book, read_book
from tests.crash.queue_works import GONE, GROUP, OPTIONS, WORKS, Process, Survivor, Told
from tests.project import ROOT

LINE_WORKS = ("many-acks", "nacks", "rejects", "redrives", "outputs", "closes", "purges")
_QUEUES = f"{os.sep}tailrace{os.sep}queue{os.sep}"
_BURIAL_MS = 50


class WrittenTold(Told):
    """Writes down what it is told."""

    def __init__(self, book: Book) -> None:
        super().__init__()
        self._book = book

    @contextlib.contextmanager
    def doing(self, values: Iterable[str], place: str) -> Iterator[None]:
        values = list(values)
        self._book.note("doing", values, place)
        with super().doing(values, place):
            yield
        self._book.note("done")

    def may_die(self, *values: str) -> None:
        self._book.note("may die", values)
        super().may_die(*values)


def read_told(path: Path) -> Told:
    told = Told()
    values: list[str] = []
    place = ""
    for event in read_book(path):
        match event:
            case ["doing", values, place]:
                for value in values:
                    told.places.setdefault(value, {GONE}).add(place)
            case ["done"]:
                told.places.update((value, {place}) for value in values)
            case ["may die", values]:
                told.may_die(*values)
    return told


class OpenProcess(Process):
    """Its consumers stay open, so that others see at once that it died."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._consumers: list[Consumer] = []

    def receive(self, count: int, **options: Any) -> list[Message]:
        self._consumers.append(self.queue.consumer(GROUP, **options))
        return self._consumers[-1].receive(count)


class LateSurvivor(Survivor):
    wait_s = 0.02


def time_stands(_seconds: float) -> None:
    raise NotImplementedError("this is for a clock that can be set")


@dataclass(frozen=True)
class Stage:
    """Somebody dies at each of these lines, beside one who has the group open, or comes later."""

    folder: str
    work: str
    flush: str
    points: list[int]

    def run(self) -> None:
        burying._BURIAL_MS = _BURIAL_MS
        for point in self.points:
            try:
                if self._play(point):
                    return
            except BaseException as error:
                error.add_note(f"killed at line {point} of {self.work}, {self.flush}")
                raise

    def _play(self, point: int) -> bool:
        """Returns whether it survived, because it never came so far."""
        folder = Path(self.folder) / str(point)
        book = Book(folder, "book")
        with self._open(folder) as store:
            process = Process(store, WrittenTold(book), time_stands)
            process.publish("a", "b", "c")
            process.publish(*"defg")
            first, second = process.receive(2)
            process.ack(first)
            process.nack(second)
        bystander = self._open(folder) if point % 2 else None
        if bystander is not None:
            bystander.queue("q").group(GROUP)
        victim = os.fork()
        if not victim:
            code = 3
            try:
                self._die(folder, book, point)
                code = 0
            finally:
                os._exit(code)
        _pid, status = os.waitpid(victim, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"it ended with {code}"
        book.close()
        survivor = LateSurvivor(read_told(folder / "book"))
        with bystander or self._open(folder) as store:
            left, dead = survivor.take_all(store)
            survivor.compare(left, dead)
            survivor.check_counts(store, is_sync=True)
        with self._open(folder) as store:
            assert survivor.take_all(store) == ([], dead)
        shutil.rmtree(folder)
        return code == 0

    def _open(self, folder: Path) -> Store:
        return tailrace.open(folder / "store", flush=self.flush, upkeep=False, **OPTIONS)

    def _die(self, folder: Path, book: Book, point: int) -> None:
        told = WrittenTold(book)
        told.places = read_told(folder / "book").places
        store = self._open(folder)
        process = OpenProcess(store, told, time_stands)
        countdown = Countdown(point, is_of_queues)
        sys.settrace(countdown)
        WORKS[self.work](process)
        store.close()
        sys.settrace(None)
        (Path(self.folder) / "lines").write_text(json.dumps(countdown.passed))


def is_of_queues(frame: FrameType) -> bool:
    return _QUEUES in frame.f_code.co_filename


def play(stage: Stage) -> None:
    with (Path(stage.folder) / "complaints").open("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.test_queue_lines", json.dumps(asdict(stage))],
            cwd=ROOT,
            stderr=complaints,
            start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            code = process.wait(PATIENCE_S + 5 * len(stage.points))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        complaints.seek(0)
        assert not code, complaints.read()


def lines_by_function(folder: Path, work: str, flush: str) -> dict[str, list[int]]:
    """Which lines there are, counted from 1 as they run."""
    play(Stage(str(folder), work, flush, [1 << 40]))
    found: dict[str, list[int]] = {}
    for number, function in enumerate(json.loads((folder / "lines").read_text()), 1):
        found.setdefault(function, []).append(number)
    return found


@pytest.mark.parametrize(("work", "flush"), [("redrives", "sync"), ("closes", "async")])
def test_a_consumer_is_killed_at_some_lines(tmp_path: Path, work: str, flush: str) -> None:
    """Once in each of some functions."""
    lines = lines_by_function(tmp_path, work, flush)
    rng = random.Random(work + flush)
    points = {rng.choice(lines[name]) for name in rng.sample(sorted(lines), 12)}
    play(Stage(str(tmp_path), work, flush, sorted(points)))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("work", LINE_WORKS)
def test_a_consumer_is_killed_at_any_line(tmp_path: Path, work: str, flush: str) -> None:
    lines = sorted(itertools.chain(*lines_by_function(tmp_path, work, flush).values()))
    play(Stage(str(tmp_path), work, flush, lines))


if __name__ == "__main__":
    Stage(**json.loads(sys.argv[1])).run()
