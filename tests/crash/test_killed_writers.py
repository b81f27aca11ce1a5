"""A writer is killed at a chosen point, beside one that has the log open and goes on.

The point is the n-th system call of a kind, by strace, or the n-th line of the log's own code,
which has the stores to shared memory between them. The one who is left completes the append that
was on its way, or cuts it off, answers for the dead one's producer id, and everything goes on; so
it is for somebody who reads, and has had the log open all the time.

    python -m tests.crash.test_killed_writers STAGE

is the process that has the log open, and forks those who are killed.
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
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tailrace import Log, OffsetOutOfRange
from tailrace.log import tail, turn
from tests.crash.countdown import Countdown
from tests.crash.crowd import PATIENCE_S, Book, Mode, Plan, Writer, read_book, shorten
from tests.crash.test_crowd import judge
from tests.crash.test_failing_system_calls import is_traceable
from tests.project import ROOT

LINE = "line"
CALLS = ("pwrite64", "fdatasync", "ftruncate", "openat", "flock", "unlink", "rename")
CONFIGURATIONS: list[tuple[str, Mode]] = [
    ("sync", "shared"),
    ("async", "owner"),
    ("sync", "owner"),
    ("async", "shared"),
]

# A few batches fill a segment.
OPTIONS: dict[str, Any] = {"segment_bytes": 900, "upkeep": False}
AHEAD = 200  # by which a segment is extended, in a sync log

_ENGINE = f"{os.sep}tailrace{os.sep}log{os.sep}"


# --- the stage --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Somebody dies at each of these `points`: calls of the kind `way`, or lines."""

    folder: str
    flush: str
    mode: Mode
    way: str
    points: list[int]
    strace: str = ""

    def plan(self, point: int) -> Plan:
        folder = f"{self.folder}/{point}"
        return Plan(folder, 0, 0, self.flush, (self.mode,))

    def run(self) -> None:
        tail._AHEAD = AHEAD
        turn._UNDISTURBED, turn._UNDISTURBED_S = 3, 60  # an owner keeps its turn soon
        for point in self.points:
            if self._play(point):
                break

    def _play(self, point: int) -> bool:
        """Returns whether it survived, because it never came so far."""
        plan = self.plan(point)
        survivor = Writer(plan, 1, 0)
        survivor.count = 0
        options = {"flush": plan.flush, "mode": self.mode, **OPTIONS}
        with Log(plan.log, **options) as log, Log(plan.log, read_only=True) as other:
            survivor.send(log, survivor.names()).wait()
            reader = Reader(plan, other)
            reader.look()
            victim, tracer = self._start_victim(plan, point, options)
            while True:
                ended, status = os.waitpid(victim, os.WNOHANG if tracer else 0)
                if ended:
                    break
                survivor.send(log, survivor.names())
                time.sleep(0.002)
            if tracer is not None:
                tracer.wait(PATIENCE_S)
            reader.look()
            repeat_for_victim(plan, survivor, log)
            for _ in range(5):
                receipt = survivor.send(log, survivor.names()).wait()
                reader.look()
                assert reader.position >= receipt.end_offset, "it cannot be read"
            reader.end()
        survivor.book.close()
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"it ended with {code}"
        return code == 0

    def _start_victim(
        self, plan: Plan, point: int, options: dict[str, Any]
    ) -> tuple[int, subprocess.Popen[bytes] | None]:
        go, signal_go = os.pipe()
        victim = os.fork()
        if not victim:
            code = 3
            try:
                os.close(signal_go)
                os.read(go, 1)
                countdown = Countdown(point, is_engine)
                if self.way == LINE:
                    sys.settrace(countdown)
                Victim(plan, 0, 0).perform(options)
                sys.settrace(None)
                (Path(self.folder) / "lines").write_text(json.dumps(countdown.passed))
                code = 0
            finally:
                os._exit(code)
        os.close(go)
        tracer = self._trace(victim, point) if self.strace else None
        os.close(signal_go)
        return victim, tracer

    def _trace(self, victim: int, point: int) -> subprocess.Popen[bytes]:
        """Have strace look at it, before it begins."""
        inject = f"inject={self.way}:signal=KILL:when={point}"
        words = ["-f", "-qq", "-o", "/dev/null", "-p", str(victim), "-e", f"trace={self.way}"]
        tracer = subprocess.Popen([self.strace, *words, "-e", inject])
        until = time.monotonic() + PATIENCE_S
        while "TracerPid:\t0\n" in Path(f"/proc/{victim}/status").read_text():
            assert tracer.poll() is None, "it cannot trace"
            assert time.monotonic() < until
            time.sleep(0.001)
        return tracer


def is_engine(frame: FrameType) -> bool:
    return _ENGINE in frame.f_code.co_filename


class Victim(Writer):
    """All that a writer may do, twice or more."""

    def perform(self, options: dict[str, Any]) -> None:
        self.count = 0
        log = Log(self.plan.log, **options)
        for k in range(3):
            self.send(log, self._some(1))
            receipt = self.send(log, self._some(6)).wait()
            self.book.note("acked", self.count - 1, receipt.offset, time.monotonic())
            self.send(log, self._some(2), 2 * k)
            if k:
                keep = log.end_offset - 5
                self.book.note("truncate", keep)
                log.truncate_before(keep)
                self.book.note("truncated", keep)
                log.vacuum()
            log.flush()
            self.send(log, self._some(1), 2 * k + 1)
        log.close()

    def _some(self, count: int) -> list[str]:
        return [f"{self.name}.0.{self.count}.{k}" for k in range(count)]


class Reader:
    """Somebody who has had the log open since before the death."""

    def __init__(self, plan: Plan, log: Log) -> None:
        self._book = Book(plan.books, "follower-0-0")
        self._book.note("seek", 0)
        self._log = log
        self._tail = log.tail(0)

    def look(self) -> None:
        try:
            for record in self._tail.poll():
                self._book.note("read", record.offset, shorten(record.value).decode())
        except OffsetOutOfRange as error:  # it was deleted
            self._tail.close()
            self._tail = self._log.tail(error.low)
            self._book.note("seek", error.low)
            self.look()

    @property
    def position(self) -> int:
        return self._tail.position

    def end(self) -> None:
        self._book.note("end")
        self._book.close()
        self._tail.close()


def repeat_for_victim(plan: Plan, survivor: Writer, log: Log) -> None:
    """Its last append with a producer id may have been on its way: another process repeats it. But
    not if it is deleted already, and may be forgotten."""
    events = victims_book(plan)
    sends = [event for event in events if event[0] == "send" and event[4]]
    if sends:
        _send, number, names, _now, producer, sequence = sends[-1]
        offsets = [event[2] for event in events if event[:2] == ["written", number]]
        if not offsets or offsets[0] >= log.start_offset:
            survivor.send(log, names, sequence, producer).wait()


def victims_book(plan: Plan) -> list[Any]:
    try:
        return read_book(plan.books / "writer-0-00000")
    except FileNotFoundError:
        return []


# --- the test's side --------------------------------------------------------------------------


def perform(stage: Stage) -> Iterator[tuple[int, Plan]]:
    """Have them die, and check what is left each time; the points that were reached."""
    with (Path(stage.folder) / "complaints").open("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.test_killed_writers", json.dumps(asdict(stage))],
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
    for point in stage.points:
        plan = stage.plan(point)
        if not plan.books.exists():
            return
        try:
            _books, report = judge(plan)
            assert report.ok, report
        except BaseException as error:
            error.add_note(f"killed at {stage.way} {point}; what is left is in {plan.folder}")
            raise
        yield point, plan
        shutil.rmtree(plan.folder)


def kill_at_calls(
    folder: Path, flush: str, mode: Mode, call: str, points: Iterable[int], strace: str
) -> None:
    """Until there are no more, or all the points were tried."""
    reached = list(perform(Stage(str(folder), flush, mode, call, list(points), strace)))
    assert reached, f"there is no {call}"


def lines_by_function(folder: Path, flush: str, mode: Mode) -> dict[str, list[int]]:
    """Which lines there are, counted from 1 as they run."""
    assert list(perform(Stage(str(folder), flush, mode, LINE, [1 << 40])))
    found: dict[str, list[int]] = {}
    for number, function in enumerate(json.loads((folder / "lines").read_text()), 1):
        found.setdefault(function, []).append(number)
    return found


@pytest.fixture
def tracer(strace: str) -> str:
    if not is_traceable(strace):
        pytest.skip("strace may not trace here")
    return strace


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("call", "points", "configuration"),
    [
        ("pwrite64", (1, 3, 9, 21, 34), 0),
        ("pwrite64", (2, 7, 13), 1),
        ("fdatasync", (1, 5, 12), 0),
        ("ftruncate", (2, 5), 0),
        ("openat", (9, 26), 1),
        ("flock", (1, 2, 9, 22), 1),
        ("unlink", (1, 4), 0),
        ("rename", (1, 2), 0),
    ],
)
def test_a_writer_is_killed_at_a_system_call(
    tracer: str, tmp_path: Path, call: str, points: tuple[int, ...], configuration: int
) -> None:
    flush, mode = CONFIGURATIONS[configuration]
    kill_at_calls(tmp_path, flush, mode, call, points, tracer)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("flush", "mode"), CONFIGURATIONS)
def test_a_writer_is_killed_at_any_system_call(
    tracer: str, tmp_path: Path, call: str, flush: str, mode: Mode
) -> None:
    kill_at_calls(tmp_path, flush, mode, call, range(1, 1000), tracer)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("flush", "mode"), CONFIGURATIONS)
def test_a_writer_is_killed_at_some_lines(tmp_path: Path, flush: str, mode: Mode) -> None:
    """Once in each of some functions; and all over the one that tells of a new segment."""
    lines = lines_by_function(tmp_path, flush, mode)
    rng = random.Random(flush + mode)
    points = {rng.choice(lines[name]) for name in rng.sample(sorted(lines), 20)}
    points.update(lines["Writer._announce"][:3])
    kill_at_lines(tmp_path, flush, mode, sorted(points))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(8))  # so that several processes can share the work
@pytest.mark.parametrize(("flush", "mode"), CONFIGURATIONS)
def test_a_writer_is_killed_at_any_line(tmp_path: Path, flush: str, mode: Mode, block: int) -> None:
    lines = sorted(itertools.chain(*lines_by_function(tmp_path, flush, mode).values()))
    kill_at_lines(tmp_path, flush, mode, lines[block::8])


def kill_at_lines(folder: Path, flush: str, mode: Mode, points: list[int]) -> None:
    assert list(perform(Stage(str(folder), flush, mode, LINE, points)))


if __name__ == "__main__":
    Stage(**json.loads(sys.argv[1])).run()
