"""A signal handler that raises, as Ctrl-C does, at any moment of an append or a wait.

A timer sends signals while the main thread works; each raises somewhere else. Whatever it hits, the
log goes on: nothing hangs, what was acknowledged is there once, and the files are whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import tailrace
from tailrace import Log
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import verify
from tests.log.helpers import eventually

ROUNDS = 120
PACKAGE = os.path.dirname(tailrace.__file__)
LIBRARY = os.path.dirname(os.__file__)


class Interrupt(Exception):
    """What the handler raises."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def handler(_signal: int, frame: FrameType | None) -> None:
        if is_ours(frame):
            raise Interrupt
        signal.setitimer(signal.ITIMER_PROF, 0.000_1)

    before = signal.signal(signal.SIGPROF, handler)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def is_ours(frame: FrameType | None) -> bool:
    """Does nothing but the package and what it calls run, up to the test? A finalizer or a callback
    of the garbage collector would swallow the exception, and coverage would keep its lock."""
    while frame is not None and frame.f_code.co_filename != __file__:
        path = frame.f_code.co_filename
        if not path.startswith((PACKAGE, LIBRARY)) or frame.f_code.co_name == "__del__":
            return False
        if "site-packages" in path.removeprefix(PACKAGE) or path.endswith(("weakref.py", "set.py")):
            return False
        frame = frame.f_back
    return True


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("rounds", [40, pytest.param(ROUNDS, marks=pytest.mark.long)])
def test_interrupted_anywhere(tmp_path: Path, rounds: int, flush: str) -> None:
    acknowledged: dict[int, bytes] = {}
    interrupted = 0
    log = Log(tmp_path, flush=flush, segment_bytes=4_000, index_interval=64, upkeep=False)
    number = 1
    while interrupted < rounds:
        try:
            signal.setitimer(signal.ITIMER_PROF, 0.000_05 + (number % 37) * 0.000_02)
            while True:
                value = b"%d" % number
                receipt = log.append([value], producer="p", sequence=number).wait()
                acknowledged[receipt.offset] = value
                number += 1
        except Interrupt:
            interrupted += 1
        # Repeating what was interrupted is safe: it is in the log once.
        value = b"%d" % number
        receipt = log.append([value], producer="p", sequence=number).wait()
        assert acknowledged.setdefault(receipt.offset, value) == value
        number += 1
    check(log, tmp_path, acknowledged, number)


@pytest.mark.usefixtures("interrupts")
def test_others_go_on(tmp_path: Path) -> None:
    """Threads that wait for the same flushes do not notice that one of them is interrupted."""
    log = Log(tmp_path, segment_bytes=20_000, index_interval=64, upkeep=False)
    stop = threading.Event()
    counts = [0] * 4

    def work(i: int) -> None:
        while not stop.is_set():
            log.append_one(b"%d %d" % (i, counts[i])).wait(30)
            counts[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for interrupted in range(ROUNDS):
        with contextlib.suppress(Interrupt):
            signal.setitimer(signal.ITIMER_PROF, 0.000_05 + (interrupted % 37) * 0.000_02)
            while True:
                log.append_one(b"mine").wait(30)
    before = sum(counts)
    log.append_one(b"mine").wait(30)
    eventually(lambda: sum(counts) > before + 20)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    found = [record.value for record in log.read()]
    for i, count in enumerate(counts):
        assert [v for v in found if v and v.startswith(b"%d " % i)] == [
            b"%d %d" % (i, n) for n in range(count)
        ]
    log.close()


@pytest.mark.usefixtures("interrupts")
def test_interrupted_one_by_one(tmp_path: Path) -> None:
    acknowledged: dict[int, bytes] = {}
    interrupted = number = 0
    log = Log(tmp_path, flush="async", segment_bytes=20_000, index_interval=64, upkeep=False)
    while interrupted < ROUNDS:
        try:
            signal.setitimer(signal.ITIMER_PROF, 0.000_05 + (interrupted % 23) * 0.000_01)
            while True:
                value = b"%d" % number
                acknowledged[log.append_one(value).offset] = value
                number += 1
        except Interrupt:
            interrupted += 1
        number += 1
    log.append_one(b"last").wait()
    found = {record.offset: record.value for record in log.read()}
    assert all(found[offset] == value for offset, value in acknowledged.items())
    log.close()
    assert not verify(OsFileSystem(), str(tmp_path)).problems


def check(log: Log, path: Path, acknowledged: dict[int, bytes], number: int) -> None:
    records = list(log.read())
    found = {record.offset: record.value for record in records}
    assert all(found[offset] == value for offset, value in acknowledged.items())
    assert [record.value for record in records] == [b"%d" % n for n in range(1, number)]
    log.close()
    assert not verify(OsFileSystem(), str(path)).problems
    with Log(path) as log:
        assert [record.value for record in log.read()] == [record.value for record in records]
