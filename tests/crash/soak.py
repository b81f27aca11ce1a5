"""A hundred queues and ten groups in daily use: several processes that publish, delay, cancel,
consume and die, with lifetimes, retries and retention, for as long as one likes.

A worker writes what it is about to do, and what it was told, to a file; `Books` compares them with
what is left in the end. Each life of a worker ends by itself, or by a kill; the first worker stays
from the beginning to the end, so that one can see whether it takes more and more.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tailrace
from tailrace import LeaseLost, Message, Queue, Store
from tests.project import ROOT

__all__ = ["GROUPS", "QUEUES", "Books", "Figures", "drain", "flat", "groups_of", "run", "space"]

QUEUES = [f"q{number:02d}" for number in range(100)]
GROUPS = [f"g{number}" for number in range(10)]
OPTIONS: dict[str, Any] = {
    "flush": "async",
    "segment_bytes": "16KiB",
    "visibility_timeout": "1s",
    "retry": {"max_retries": 3, "initial_backoff": "20ms", "max_backoff": "200ms"},
    "retention_check_interval": "500ms",
}
DELAY_MOST_S = 2.0
LATE_S = 2.0  # by which a message may be received after it has expired: the machine is busy


def groups_of(queue: str) -> list[str]:
    """Every tenth queue has all groups, the others two."""
    number = int(queue[1:])
    if number % 10 == 0:
        return GROUPS
    return sorted({GROUPS[number % 10], GROUPS[(number // 10 + 5) % 10]})


# --- a worker -------------------------------------------------------------------------------------


class Worker:
    def __init__(self, store: Store, name: str, seed: int) -> None:
        self.store = store
        self.name = name
        self.rng = random.Random(seed)
        self.count = 0

    def note(self, *words: str) -> None:
        """In the file when this returns, whatever becomes of us."""
        os.write(1, (" ".join(words) + "\n").encode())

    def work(self, seconds: float) -> None:
        """Whatever is rare is done once in any case: a busy machine may get to little more."""
        until = time.monotonic() + seconds
        self.later(DELAY_MOST_S, cancel=True)
        self.publish_and_reject()
        while time.monotonic() < until:
            self.rng.choices([self.publish, self.publish_many, self.later, self.consume],
                             [3, 2, 2, 6])[0]()  # fmt: skip

    def queue(self) -> Queue:
        return self.store.queue(self.rng.choice(QUEUES))

    def new(self, queue: Queue, kind: str) -> str:
        self.count += 1
        value = f"{self.name}.{self.count}"
        self.note("p", queue.name, value, kind)
        return value

    def publish(self) -> None:
        queue, ttl = self.queue(), self.rng.choice([None, None, 0.5])
        value = self.new(queue, "n" if ttl is None else "t")
        queue.publish(value, ttl=ttl, headers={"pad": b"." * self.rng.randrange(200)})
        self.note("P", queue.name, value)

    def publish_many(self) -> None:
        queue = self.queue()
        values = [self.new(queue, "n") for _ in range(self.rng.randrange(1, 20))]
        queue.publish_many(values)
        for value in values:
            self.note("P", queue.name, value)

    def publish_and_reject(self) -> None:
        """Some message: other workers may be faster at this one."""
        queue = self.queue()
        group = self.rng.choice(groups_of(queue.name))
        with queue.consumer(group) as consumer:
            messages: list[Message] = []
            while not messages:
                value = self.new(queue, "n")
                queue.publish(value)
                self.note("P", queue.name, value)
                messages = consumer.receive(1)
            messages[0].reject("bad")

    def later(self, delay: float | None = None, *, cancel: bool | None = None) -> None:
        queue = self.queue()
        value = self.new(queue, "n")
        delay = self.rng.random() * DELAY_MOST_S if delay is None else delay
        cancel = self.rng.random() < 0.3 if cancel is None else cancel
        delayed = queue.publish(value, delay=delay)
        self.note("P", queue.name, value)
        if cancel:
            self.note("c", queue.name, value)
            if queue.cancel(delayed.delay_id):
                self.note("C", queue.name, value)

    def consume(self) -> None:
        queue = self.queue()
        group = self.rng.choice(groups_of(queue.name))
        with queue.consumer(group, prefetch=self.rng.choice([1, 10])) as consumer:
            for message in consumer.receive(self.rng.choice([1, 5, 50])):
                with contextlib.suppress(LeaseLost):
                    self.settle(group, message)

    def settle(self, group: str, message: Message) -> None:
        expires_at = message.expires_at
        assert expires_at is None or time.time() * 1000 < expires_at + LATE_S * 1000, "expired"
        words = (message.queue, group, value_of(message))
        match self.rng.choices("anrlk", [85, 5, 2, 5, 3])[0]:
            case "a":
                self.note("a", *words)
                message.ack()
                self.note("A", *words)
            case "n":
                message.nack(error="again")
            case "r":
                message.reject("bad")
            case "l":
                message.release()
            # Or it is kept until its lease is over.


def value_of(message: Message) -> str:
    assert message.value is not None
    return message.value.decode()


# --- the books ------------------------------------------------------------------------------------


@dataclass
class Books:
    """What workers were told, and what somebody found afterwards."""

    kinds: dict[tuple[str, str], str] = field(default_factory=dict)  # of all that was begun
    published: set[tuple[str, str]] = field(default_factory=set)
    cancelled: set[tuple[str, str]] = field(default_factory=set)
    maybe_cancelled: set[tuple[str, str]] = field(default_factory=set)
    acked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    maybe_acked: set[tuple[str, str, str]] = field(default_factory=set)
    dead: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def read(self, path: Path) -> None:
        """The notes of a life. The last line may be torn."""
        for line in path.read_bytes().decode().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            match line.split():
                case ["p", queue, value, kind]:
                    self.kinds[queue, value] = kind
                case ["P", queue, value]:
                    self.published.add((queue, value))
                case ["c", queue, value]:
                    self.maybe_cancelled.add((queue, value))
                case ["C", queue, value]:
                    self.cancelled.add((queue, value))
                case ["a", queue, group, value]:
                    self.maybe_acked.add((queue, group, value))
                case ["A", queue, group, value]:
                    self.acked[queue, group, value] += 1
                case words:
                    raise AssertionError(f"{path.name}: {words}")

    def check(self) -> None:
        """Every message is accounted for, in every group of its queue."""
        twice = [each for each, count in (self.acked + self.dead).items() if count > 1]
        assert not twice, f"acknowledged twice, or also dead: {twice[:5]}"
        seen = set(self.acked) | set(self.dead)
        strangers = [each for each in seen if (each[0], each[2]) not in self.kinds]
        assert not strangers, f"nobody published them: {strangers[:5]}"
        undone = [each for each in seen if (each[0], each[2]) in self.cancelled]
        assert not undone, f"cancelled, and delivered: {undone[:5]}"
        known = seen | self.maybe_acked
        lost = [
            (queue, group, value)
            for queue, value in self.published - self.maybe_cancelled
            if self.kinds[queue, value] == "n"
            for group in groups_of(queue)
            if (queue, group, value) not in known
        ]
        assert not lost, f"{len(lost)} lost: {lost[:5]}"


def drain(store: Store, books: Books) -> None:
    """Take all that is left, when every delay and every lease is over."""
    time.sleep(DELAY_MOST_S + 1)
    for name in QUEUES:
        queue = store.queue(name)
        until = time.monotonic() + 60
        while queue.delayed_count():
            assert time.monotonic() < until, f"{name}: delayed messages never come"
            time.sleep(0.01)
        for group in groups_of(name):
            with queue.consumer(group) as consumer:
                while messages := consumer.receive(1000, 0.0):
                    consumer.ack(messages)
                    books.acked.update((name, group, value_of(each)) for each in messages)
                while queue.pending(group):  # somebody was to bury it, and was killed
                    assert time.monotonic() < until, queue.pending(group)
                    for message in consumer.receive(1000, 0.05):
                        message.ack()
                        books.acked[name, group, value_of(message)] += 1
        for letter in store.dead(name):
            group = letter.headers["_dlq_group"].decode()
            books.dead[name, group, value_of(letter)] += 1


def space(path: Path) -> int:
    """The bytes of all segments, but for those of dead letters."""
    found = 0
    for each in path.glob("queue/queues/q*/segments/*.seg"):
        with contextlib.suppress(FileNotFoundError):
            found += each.stat().st_size
    return found


# --- a run ----------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """Of a process, at some time."""

    rss: int
    files: int


def look_at(pid: int) -> Figures | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Figures(pages * os.sysconf("SC_PAGESIZE"), len(os.listdir(f"/proc/{pid}/fd")))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def flat(figures: list[Figures]) -> None:
    """After a while, a process takes no more and no more."""
    third = len(figures) // 3
    middle, end = figures[third : 2 * third], figures[2 * third :]
    for name in Figures._fields:
        before, after = (max(getattr(each, name) for each in part) for part in (middle, end))
        slack = 8 << 20 if name == "rss" else 16
        assert after <= 1.1 * before + slack, f"{name}: {before:,}, and then {after:,}"


def run(path: Path, notes: Path, seconds: float, seed: int) -> tuple[Books, list[Figures]]:
    """Have three workers at it, of which two come and go; the books, and the figures of the one
    that stays."""
    rng = random.Random(seed)
    notes.mkdir()
    with tailrace.open(path, **OPTIONS) as store:
        for name in QUEUES:
            for group in groups_of(name):
                store.queue(name).group(group)
    figures: list[Figures] = []
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(_started(path, notes, "w0", seed, seconds))
        others: list[tuple[subprocess.Popen[bytes], float]] = []
        lives = 1
        while (left := until - time.monotonic()) > 0:
            for each in [each for each in others if each[0].poll() is not None]:
                assert each[0].returncode in (0, -9), f"seed {seed}"
                others.remove(each)
            while len(others) < 2:
                life_s, kill_s = rng.uniform(2, 8), rng.uniform(1, 12)
                name = f"w{lives}"
                lives += 1
                started = _started(path, notes, name, seed + lives, min(life_s, left))
                others.append((stack.enter_context(started), time.monotonic() + kill_s))
            for worker, kill_at in others:
                if time.monotonic() > kill_at:
                    worker.kill()
            found = look_at(steady.pid)
            if found is not None:
                figures.append(found)
            time.sleep(0.25)
        for worker in (steady, *(each for each, _ in others)):
            assert worker.wait(60) in (0, -9), f"seed {seed}"
    books = Books()
    for path_of_notes in sorted(notes.iterdir()):
        books.read(path_of_notes)
    return books, figures


@contextlib.contextmanager
def _started(
    path: Path, notes: Path, name: str, seed: int, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    line = [sys.executable, "-m", "tests.crash.soak", str(path), name, str(seed), str(seconds)]
    with (notes / name).open("wb") as out, subprocess.Popen(line, cwd=ROOT, stdout=out) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def _main(path: str, name: str, seed: str, seconds: str) -> None:
    with tailrace.open(path, **OPTIONS) as store:
        Worker(store, name, int(seed)).work(float(seconds))


if __name__ == "__main__":
    _main(*sys.argv[1:])
