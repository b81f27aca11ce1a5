"""A crowd on one log: processes that append, follow, truncate and want it alone, all of them killed
at random and started again, and each with a history of what it sent and saw.

    python -m tests.crash.crowd PLAN

starts and kills them, as the plan (a line of JSON) says, and `run` does that from a test.
The tests then put the histories together and compare them with what is in the log. The seed decides
who does what, and who is killed after which pause; what the others are doing then is up to the
scheduler.

A history is a file for each incarnation, a line of JSON for each event, written at once: the page
cache outlives the process, so a kill costs at most the end of the last line. There is a line before
each append and one after it, so what was on its way is known to be in doubt.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from tailrace import Locked, Log, OffsetOutOfRange, Receipt, Record, aio
from tailrace.aio.reading import Reading
from tailrace.log.follow import Follower as FollowedRecords
from tests.project import ROOT

__all__ = [
    "PATIENCE_S", "Actor", "Book", "Crowd", "Plan", "Writer", "errors_of", "expand", "read_book",
    "run", "shorten",
]  # fmt: skip

PATIENCE_S = 30.0  # for what must happen, and soon does

Mode = Literal["owner", "shared"]

_SIZES = (0, 0, 30, 120, 700)
_BATCHES = (1, 1, 1, 2, 5, 20)


@dataclass(frozen=True)
class Plan:
    """What a crowd does. `modes` and `segment_bytes` are chosen from for each incarnation; `kept`
    is how many records one of the writers leaves of the log, if it truncates."""

    folder: str
    seed: int
    seconds: float
    flush: str = "sync"
    modes: tuple[Mode, ...] = ("owner",)
    writers: int = 3
    followers: int = 2
    aio_writers: int = 0
    aio_followers: int = 0
    segment_bytes: tuple[str, ...] = ("8KiB", "64KiB")
    kept: int | None = None
    exclusive: bool = False  # does somebody want the log alone?
    mount: str = ""  # where the log is, if not beside the histories

    @classmethod
    def parse(cls, text: str) -> Plan:
        """What `str` makes."""
        fields = json.loads(text)
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists})

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def log(self) -> str:
        return f"{self.mount or self.folder}/log"

    @property
    def books(self) -> Path:
        return Path(self.folder) / "books"

    @property
    def all_sent(self) -> Path:
        """Exists when nobody will append any more."""
        return Path(self.folder) / "all-sent"


# --- values -----------------------------------------------------------------------------------


def expand(name: str) -> bytes:
    """The value of the record of that name: every byte of it follows from the name."""
    crc = zlib.crc32(name.encode())
    return f"{name} ".encode() + b"%08x" % crc * (_SIZES[crc % len(_SIZES)] // 8)


def shorten(value: bytes | None) -> bytes:
    """The name of the record with that value; the value itself if nobody can have sent it."""
    assert value is not None
    name = value.partition(b" ")[0]
    return name if value == expand(name.decode("utf-8", "replace")) else value


# --- the books ----------------------------------------------------------------------------------


class Book:
    """Where one incarnation writes down what happens to it."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *event: object) -> None:
        os.write(self._fd, json.dumps(event).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_book(path: Path) -> list[Any]:
    """The events; without the last one, if the kill came in the middle of it."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def book_name(role: str, slot: int, incarnation: int) -> str:
    return f"{role}-{slot}-{incarnation:05d}"


# --- who is in the crowd ----------------------------------------------------------------------


class Actor:
    """One incarnation: what runs in a process of its own until it is stopped, or killed."""

    role = ""

    def __init__(self, plan: Plan, slot: int, incarnation: int) -> None:
        self.plan = plan
        self.slot = slot
        self.incarnation = incarnation
        self.name = f"{self.role}{slot}"
        self.rng = random.Random(f"{plan.seed} {self.name} {incarnation}")
        self.book = Book(plan.books, book_name(self.role, slot, incarnation))
        self._stopped = False

    def run(self) -> None:
        try:
            signal.signal(signal.SIGTERM, self.stop)
            faulthandler.enable()
            logging.getLogger("tailrace").addHandler(_Complaints(self.book))
            self.act()
        except BaseException:
            self.book.note("error", traceback.format_exc())
            raise

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def is_stopped(self) -> bool:
        return self._stopped

    def act(self) -> None:
        raise NotImplementedError

    def past(self) -> Iterator[list[Any]]:
        """What the incarnations before this one have written, the last one first."""
        for incarnation in reversed(range(self.incarnation)):
            with suppress(FileNotFoundError):  # it did not come so far
                yield read_book(self.plan.books / book_name(self.role, self.slot, incarnation))

    def pause(self, *choices: float) -> None:
        time.sleep(self.rng.random() * self.rng.choice(choices))

    def open(self, **options: Any) -> Log | None:
        """The log, as soon as nobody has it alone; `None` if we are to stop before."""
        while not self.is_stopped():
            try:
                return Log(self.plan.log, **self.choices(), **options)
            except Locked:
                self.book.note("refused")
                self.pause(0.02)
        return None

    async def open_aio(self, **options: Any) -> aio.Log | None:
        """The same for asyncio."""
        while not self.is_stopped():
            try:
                return await aio.Log(self.plan.log, **self.choices(), **options)
            except Locked:
                self.book.note("refused")
                await asyncio.sleep(0.02 * self.rng.random())
        return None

    def choices(self) -> dict[str, Any]:
        """The options of a handle."""
        return {
            "mode": self.rng.choice(self.plan.modes),
            "segment_bytes": self.rng.choice(self.plan.segment_bytes),
            "flush_interval": "20ms",
        }


class _Complaints(logging.Handler):
    """What the log's own threads could not do."""

    def __init__(self, book: Book) -> None:
        super().__init__(logging.WARNING)
        self._book = book

    def emit(self, record: logging.LogRecord) -> None:
        self._book.note("error", record.getMessage())


class Writer(Actor):
    role = "writer"

    def act(self) -> None:
        self.count = 0
        names, self.sequence = self._last_attempt()
        log = self.open(flush=self._flush_mode())
        if log is None:
            return
        with log:
            if names:
                self.send(log, names, self.sequence).wait()
            while not self.is_stopped():
                for _ in range(self.rng.choice((1, 10, 50, 200))):
                    self._step(log)
                    if self.is_stopped():
                        break
                if self.plan.kept is not None and self.slot == 0:
                    self.truncate(log, self.plan.kept)
                if self.rng.random() < 0.1:
                    end = log.end_offset
                    log.flush()
                    self.book.note("flushed", end)
                self.pause(0, 0, 0.005, 0.05)

    def _flush_mode(self) -> str:
        """A handle may be stricter than the log, if there is one."""
        is_there = os.path.exists(f"{self.plan.log}/.tailrace/log.json")
        return "sync" if is_there and self.rng.random() < 0.2 else self.plan.flush

    def _last_attempt(self) -> tuple[list[str], int]:
        """The last append with our producer id, and its sequence: we repeat it, if there are
        names, whether or not it was answered."""
        answered = []
        for events in self.past():
            for event in reversed(events):
                if event[0] == "send" and event[4] == self.name:
                    # What was deleted since may have been forgotten, and would be new again.
                    is_old = self.plan.kept is not None and event[1] in answered
                    return [] if is_old else event[2], event[5]
                if event[0] in ("written", "acked"):
                    answered.append(event[1])
            answered = []
        return [], -1

    def _step(self, log: Log) -> None:
        """Some appends, and some of their receipts."""
        receipts = []
        for _ in range(self.rng.choice((1, 1, 1, 3, 8))):
            if self.rng.random() < 0.15:
                self.sequence += 1
                names = self.names()
                receipts.append(self.send(log, names, self.sequence))
                if self.rng.random() < 0.1:  # what was answered may be sent again
                    again = self.append(log, names, self.name, self.sequence)
                    assert again.offset == receipts[-1].offset
            else:
                receipts.append(self.send(log, self.names()))
        if self.rng.random() < 0.7:
            for number, receipt in enumerate(receipts, self.count - len(receipts)):
                receipt.wait()
                self.book.note("acked", number, receipt.offset, time.monotonic())

    def names(self) -> list[str]:
        first = f"{self.name}.{self.incarnation}.{self.count}"
        return [f"{first}.{k}" for k in range(self.rng.choice(_BATCHES))]

    def send(
        self, log: Log, names: list[str], sequence: int | None = None, producer: str = ""
    ) -> Receipt:
        """Append; with a `sequence`, as this producer, or as another that is no more."""
        producer = producer or self.name if sequence is not None else ""
        self.book.note("send", self.count, names, time.monotonic(), producer, sequence)
        receipt = self.append(log, names, producer, sequence)
        assert receipt.count == len(names)
        self.book.note("written", self.count, receipt.offset, time.monotonic())
        self.count += 1
        return receipt

    def append(self, log: Log, names: list[str], producer: str, sequence: int | None) -> Receipt:
        values = [expand(name) for name in names]
        if producer:
            return log.append(values, producer=producer, sequence=sequence)
        if len(values) == 1 and self.rng.random() < 0.8:
            return log.append_one(values[0])
        return log.append(values)

    def truncate(self, log: Log, kept: int) -> None:
        keep = log.end_offset - kept
        if keep > log.start_offset:
            self.book.note("truncate", keep)
            log.truncate_before(keep)
            self.book.note("truncated", keep)
            log.vacuum()


class AioWriter(Writer):
    """Some tasks that share a handle. One of them has the producer id; and some appends are
    cancelled, so that nobody knows whether they happened."""

    role = "aiowriter"
    TASKS = 3

    def act(self) -> None:
        asyncio.run(self._act())

    async def _act(self) -> None:
        self.count = 0
        names, self.sequence = self._last_attempt()
        log = await self.open_aio(flush=self._flush_mode())
        if log is None:
            return
        async with log, asyncio.TaskGroup() as tasks:
            if names:
                _number, receipt = await self._send(log, self.sequence, names)
                await receipt
            for task in range(self.TASKS):
                tasks.create_task(self._append_for_long(log, has_id=task == 0))

    async def _append_for_long(self, log: aio.Log, *, has_id: bool) -> None:
        while not self.is_stopped():
            for _ in range(self.rng.choice((1, 10, 50))):
                sent = await self._step_aio(log, has_id)
                if self.rng.random() < 0.7:
                    for number, receipt in sent:
                        await receipt
                        self.book.note("acked", number, receipt.offset, time.monotonic())
                if self.is_stopped():
                    break
            if self.rng.random() < 0.1:
                end = await log.end_offset()
                await log.flush()
                self.book.note("flushed", end)
            await asyncio.sleep(self.rng.random() * self.rng.choice((0, 0.005, 0.05)))

    async def _step_aio(self, log: aio.Log, has_id: bool) -> list[tuple[int, Receipt]]:
        """Some appends, one after the other or at once; those that were answered."""
        if has_id and self.rng.random() < 0.3:
            self.sequence += 1
            return [await self._send(log, self.sequence)]
        if self.rng.random() < 0.05:
            try:
                async with asyncio.timeout(self.rng.random() * 0.002):
                    return [await self._send(log)]
            except TimeoutError:
                return []
        many = range(self.rng.choice((1, 1, 3, 8)))
        return await asyncio.gather(*(self._send(log) for _ in many))

    async def _send(
        self, log: aio.Log, sequence: int | None = None, names: Sequence[str] = ()
    ) -> tuple[int, Receipt]:
        """Append what has these names, or new ones; the number of the attempt, and its receipt."""
        number, producer = self.count, self.name if sequence is not None else None
        names = names or self.names()
        self.count += 1
        self.book.note("send", number, names, time.monotonic(), producer or "", sequence)
        values = [expand(name) for name in names]
        receipt = await log.append(values, producer=producer, sequence=sequence)
        assert receipt.count == len(names)
        self.book.note("written", number, receipt.offset, time.monotonic())
        return number, receipt


class Loner(Writer):
    """Wants the log for itself, now and then, and gets it when nobody else is there."""

    role = "loner"

    def act(self) -> None:
        self.count = 0
        while not self.is_stopped():
            self.pause(0.02, 0.1)
            try:
                log = Log(self.plan.log, flush=self._flush_mode(), exclusive=True)
            except Locked:
                self.book.note("refused")
                continue
            self.book.note("alone", time.monotonic())
            for _ in range(self.rng.choice((0, 1, 30, 300))):
                self.send(log, self.names())
                if self.is_stopped():
                    break
            self.book.note("together", time.monotonic())
            log.close()


class Follower(Actor):
    role = "follower"
    _records: FollowedRecords | Reading[Record] | None = None

    def act(self) -> None:
        position: int | None = next(self._positions(), 0)
        while not os.path.exists(f"{self.plan.log}/.tailrace/log.json"):
            if self.is_stopped():
                return
            time.sleep(0.01)
        # Whoever may write sees the same as whoever may not.
        log = self.open(read_only=True) if self.rng.random() < 0.7 else self.open()
        if log is None:
            return
        while position is not None:
            position = self._follow(log, position)
        log.close()

    def _positions(self) -> Iterator[int]:
        """Where the incarnation before this one was."""
        for events in self.past():
            for event in reversed(events):
                if event[0] in ("read", "seek"):
                    yield event[1] + (event[0] == "read")

    def _follow(self, log: Log, position: int) -> int | None:
        """Read from there on until told to stop; or return where to read from instead."""
        self.book.note("seek", position)
        timeout = self.rng.choice((None, None, 0.1))
        try:
            with log.read(position, follow=True, timeout=timeout) as records:
                self._records = records
                if self.is_stopped():  # before it could be closed
                    records.close()
                for record in records:
                    position = self._note(record)
        except OffsetOutOfRange as error:  # retention was faster
            if error.low <= position:
                raise
            return error.low
        return self._end(position)

    def _note(self, record: Record) -> int:
        """Write it down; where to go on."""
        assert record.offset is not None
        name = shorten(record.value).decode("utf-8", "backslashreplace")
        self.book.note("read", record.offset, name)
        return record.offset + 1

    def _end(self, position: int) -> int | None:
        """Where to go on after a reading that has ended by itself, or was told to."""
        if self.is_stopped() and self.plan.all_sent.exists():
            self.book.note("end")
        return None if self.is_stopped() else position

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        super().stop(_signal, _frame)
        if self._records is not None:
            self._records.close()


class AioFollower(Follower):
    role = "aiofollower"

    def act(self) -> None:
        asyncio.run(self._act())

    async def _act(self) -> None:
        # Between two steps of the loop, so that a reading is closed there, and the loop wakes up.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop, 0, None)
        position: int | None = next(self._positions(), 0)
        while not os.path.exists(f"{self.plan.log}/.tailrace/log.json"):
            if self.is_stopped():
                return
            await asyncio.sleep(0.01)
        log = await self.open_aio(read_only=self.rng.random() < 0.7)
        if log is None:
            return
        async with log:
            while position is not None:
                position = await self._follow_aio(log, position)

    async def _follow_aio(self, log: aio.Log, position: int) -> int | None:
        self.book.note("seek", position)
        timeout = self.rng.choice((None, None, 0.1))
        try:
            async with log.read(position, follow=True, timeout=timeout) as records:
                self._records = records
                if self.is_stopped():  # before it could be closed
                    records.close()
                async for record in records:
                    position = self._note(record)
        except OffsetOutOfRange as error:  # retention was faster
            if error.low <= position:
                raise
            return error.low
        return self._end(position)


# --- starting and killing them ----------------------------------------------------------------


Who = tuple[type[Actor], int]  # and the slot


@dataclass
class Crowd:
    """Those who are there, in the process that started them. It has no log and no threads, so that
    what it forks is as good as a process of its own."""

    plan: Plan
    pids: dict[Who, int] = field(default_factory=dict)
    incarnations: Counter[Who] = field(default_factory=Counter)

    def conduct(self) -> None:
        plan = self.plan
        rng = random.Random(plan.seed)
        writers: list[Who] = [(Writer, slot) for slot in range(plan.writers)]
        writers += [(AioWriter, slot) for slot in range(plan.aio_writers)]
        others: list[Who] = [(Follower, slot) for slot in range(plan.followers)]
        others += [(AioFollower, slot) for slot in range(plan.aio_followers)]
        if plan.exclusive:
            others.append((Loner, 0))
        for who in (*writers, *others):
            self.start(who)
        until = time.monotonic() + plan.seconds
        while time.monotonic() < until:
            time.sleep(rng.choice((0.02, 0.1, 0.25)) * rng.random() * 2)
            few, many = [rng.choice([*writers, *writers, *others])], [*writers, *others]
            victims = rng.choice((writers, many, *[few] * 8))
            way = signal.SIGKILL if rng.random() < 0.8 else signal.SIGTERM
            for who in victims:
                self.end(who, way)
            time.sleep(rng.choice((0, 0, 0.03)))
            for who in victims:
                self.start(who)
        way = rng.choice((signal.SIGKILL, signal.SIGTERM))
        for who in [who for who in self.pids if not issubclass(who[0], Follower)]:
            self.end(who, way)
        self._wait_for_followers()
        plan.all_sent.touch()
        for who in list(self.pids):
            self.end(who, signal.SIGTERM)

    def start(self, who: Who) -> None:
        kind, slot = who
        incarnation = self.incarnations[who]
        self.incarnations[who] += 1
        pid = os.fork()
        if not pid:
            code = 3
            try:
                kind(self.plan, slot, incarnation).run()
                code = 0
            finally:
                os._exit(code)
        self.pids[who] = pid

    def end(self, who: Who, way: signal.Signals) -> None:
        pid = self.pids.pop(who)
        os.kill(pid, way)
        until = time.monotonic() + PATIENCE_S
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGABRT)  # says where it is
                os.waitpid(pid, 0)
                raise SystemExit(f"{who} hangs")
            time.sleep(0.001)
        code = os.waitstatus_to_exitcode(ended[1])
        if code not in (0, -way):
            raise SystemExit(f"{who} ended with {code}")

    def _wait_for_followers(self) -> None:
        """Nobody writes any more: those who follow come to the end by themselves, or never."""
        with Log(self.plan.log, read_only=True) as log:
            end = log.end_offset
        until = time.monotonic() + PATIENCE_S
        for kind, slot in [who for who in self.pids if issubclass(who[0], Follower)]:
            last = self.incarnations[kind, slot] - 1
            path = self.plan.books / book_name(kind.role, slot, last)
            while time.monotonic() < until:
                events = read_book(path) if path.exists() else []  # it may not have come so far
                if events and events[-1][:2] in (["read", end - 1], ["seek", end]):
                    break
                time.sleep(0.01)


# --- the test's side --------------------------------------------------------------------------


def run(plan: Plan) -> None:
    """Have a crowd do it. None of them is left behind, however it ends."""
    plan.books.mkdir(parents=True)
    complaints = Path(plan.folder) / "complaints"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.crowd", str(plan)],
            cwd=ROOT,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        code = process.wait(plan.seconds + 4 * PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not code, "\n".join([complaints.read_text(), *errors_of(plan)])


def errors_of(plan: Plan) -> list[str]:
    """What should not have happened to anybody."""
    books = {path.name: read_book(path) for path in sorted(plan.books.iterdir())}
    return [f"{who}: {e[1]}" for who, events in books.items() for e in events if e[0] == "error"]


if __name__ == "__main__":
    Crowd(Plan.parse(sys.argv[1])).conduct()
