"""Those who wait for messages are woken when another process takes in what was staged.

They look several times while it does: when it writes what does not count yet, they find nothing and
go to sleep again. So it waits in front of the step from which on the messages count until they are
asleep, and from there on nobody else touches a file: one who was not told would sleep on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import tailrace
from tailrace import aio
from tailrace.log import hub
from tests.log.helpers import WAIT, eventually, in_threads

# Takes in so many messages for each line of its input, and stops halfway until there is another.
ADOPTER = """
import sys, time
from tailrace import Log, Record
from tailrace.kernel import encode
from tailrace.log.adopting import adopt
from tailrace.log.adoption import Adoption
from tailrace.log.fs import OsFileSystem
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER
from tailrace.log.staging import Stage

folder = sys.argv[1]
remove = Adoption.remove

def when_told(*arguments):
    print("halfway", flush=True)
    sys.stdin.readline()
    remove(*arguments)

with Log(folder, upkeep=False) as log:
    Adoption.remove = staticmethod(when_told)
    print("ready", flush=True)
    for sequence, line in enumerate(iter(sys.stdin.readline, "")):
        marks = [(PRODUCER_HEADER, b"p"), (SEQUENCE_HEADER, b"%d" % sequence)]
        stage = Stage(OsFileSystem(), folder, f"t{sequence}", log.options)
        records = [Record(value=b"%d" % number) for number in range(int(line))]
        stage.add(encode(records, time.time_ns() // 1_000_000, 0, marks))
        adopt(log, stage.finish(), producer="p", sequence=sequence).wait()
        print("done", flush=True)
    Adoption.remove = remove
"""
SMALL, LARGE = 3, 1_500  # one is copied, the other becomes a segment

LIMIT = 15.0  # seconds, for what takes a millisecond if it is told
PATIENCE = (
    LIMIT + 10
)  # of those who wait: when it ends, they look, and find what they were not told

Got = Callable[[], None]


class Adopter:
    """Another process. It has the log open for as long as anybody may wait for what it does."""

    def __init__(self, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ADOPTER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answers("ready")

    def __enter__(self) -> Adopter:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=WAIT)

    def tell(self, line: str) -> None:
        print(line, file=_there(self._process.stdin), flush=True)

    def answers(self, answer: str) -> None:
        assert _there(self._process.stdout).readline() == f"{answer}\n"


def _there(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def is_asleep() -> bool:
    """Does somebody wait, and is nothing left to tell?"""
    news, tasks = hub.current.news, list(hub.current._attendances.values())
    is_there = bool(hub.current._queue) or any(each.tasks for each in tasks)
    time.sleep(0.05)
    return is_there and hub.current.news == news


@pytest.fixture(autouse=True)
def nobody_else_waits() -> Iterator[None]:
    """A thread of a store that an earlier test has left behind may."""
    hub.start_afresh()
    yield
    hub.start_afresh()


def blocking(path: str, counts: list[int], got: Got) -> None:
    with (
        tailrace.open(path, upkeep=False) as store,
        store.queue("q").consumer("blocking") as consumer,
    ):
        for count in counts:
            received = 0
            while received < count:
                messages = consumer.receive(count, wait=PATIENCE)
                assert messages, "it was not woken"
                consumer.ack(messages)
                received += len(messages)
            got()


def tasks(path: str, counts: list[int], got: Got) -> None:
    async def run() -> None:
        async with (
            aio.open(path, upkeep=False) as store,
            (await store.queue("q")).consumer("tasks") as consumer,
        ):
            for count in counts:
                received = 0
                while received < count:
                    messages = await consumer.receive(count, wait=PATIENCE)
                    assert messages, "it was not woken"
                    await consumer.ack(messages)
                    received += len(messages)
                got()

    asyncio.run(run())


def following(path: str, counts: list[int], got: Got) -> None:
    with tailrace.open(path, upkeep=False) as store:
        records: Any = store.queue("q").read("first", follow=True, timeout=PATIENCE)
        for count in counts:
            found = sum(1 for _, _ in zip(range(count), records, strict=False))
            assert found == count, "it was not woken"
            got()
        records.close()


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("wait", [blocking, tasks, following])
def test_whoever_waits_is_woken_by_an_adoption(tmp_path: Path, flush: str, wait: Any) -> None:
    path, counts = str(tmp_path / "data"), [1, SMALL, LARGE, SMALL, LARGE]
    with tailrace.open(path, upkeep=False) as store:
        queue = store.queue("q", flush=flush, segment_bytes=20_000)
        for group in ("blocking", "tasks"):
            queue.consumer(group).close()
        queue.publish(b"0")  # so that a second one is not the first in a folder
        folder = store.layout.segments("q")
    has_got = threading.Semaphore(0)
    is_over = False

    def got() -> None:
        assert not is_over
        has_got.release()

    def tell_and_wait() -> None:
        assert has_got.acquire(timeout=LIMIT)
        for count in counts[1:]:
            eventually(is_asleep)
            adopter.tell(str(count))
            adopter.answers("halfway")
            eventually(is_asleep)
            adopter.tell("go on")
            adopter.answers("done")
            assert has_got.acquire(timeout=LIMIT), "it was not woken"

    def work(number: int) -> None:
        nonlocal is_over
        if number:
            wait(path, counts, got)
            return
        try:
            tell_and_wait()
        except BaseException:
            is_over = True
            raise

    with Adopter(folder) as adopter:
        in_threads(2, work)
