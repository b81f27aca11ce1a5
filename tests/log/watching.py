"""What the tests of `Watch` share: a writer in another process, and a look at the kernel's side."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.log import hub
from tailrace.log.watch import Watch
from tests.log.conftest import open_files
from tests.log.helpers import WAIT, eventually

# Appends a byte to each file in turn, the next only when somebody has confirmed the last.
WRITER = """
import os, sys
files = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in sys.argv[2:]]
for number in range(int(sys.argv[1])):
    os.write(files[number % len(files)], b"x")
    if not os.read(0, 1):
        break
"""


@pytest.fixture(autouse=True)
def fresh_hub() -> Iterator[None]:
    """A test begins with a hub of its own, and leaves nobody waiting and nothing in the kernel."""
    _let_others_end()
    hub.start_afresh()
    yield
    assert hub.current.leader is None
    assert not waiters()
    if kernel_watches():
        gc.collect()
    assert not kernel_watches()
    hub.start_afresh()


def _let_others_end() -> None:
    """A thread of a store that an earlier test has dropped would watch something in this hub."""
    others = [each for each in threading.enumerate() if each.name.startswith("tailrace-")]
    if others:
        gc.collect()
    for each in others:
        each.join(1.0)


@pytest.fixture
def by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_WATCH", "poll")


@pytest.fixture(params=["inotify", "poll"])
def either_way(request: pytest.FixtureRequest) -> None:
    """The test runs with inotify and without."""
    if request.param == "poll":
        request.getfixturevalue("by_looking")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def inotify_fds() -> list[int]:
    """Of this process, but for the one of those who wait aside: a thread of a store that an earlier
    test has left behind goes on with that at any time."""
    aside = hub.aside._changes.inotify
    found = [fd for fd, path in open_files().items() if path == "anon_inode:inotify"]
    return [fd for fd in found if aside is None or fd != aside.fd]


def kernel_watches() -> int:
    """How many watches the kernel keeps for this process, but for those aside."""
    infos = [Path(f"/proc/self/fdinfo/{fd}").read_text() for fd in inotify_fds()]
    return sum(info.count("inotify wd:") for info in infos)


def touch(path: Path) -> None:
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b"x")


def drain(watch: Watch) -> bool:
    """Until there is no news, not even the echo of what was seen by looking."""
    while watch.wait(0.025 if hub.current._changes.looked else 0):
        continue
    return False


class Waiting:
    """A thread that waits once. `result` is what came of it; hanging is a failure, not a hang."""

    def __init__(self, wait: Callable[[], bool]) -> None:
        self._wait = wait
        self._result: bool | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._wait()
        except BaseException as error:  # noqa: BLE001 (it is for the test to judge)
            self._result = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def tid(self) -> int:
        assert self._thread.native_id is not None
        return self._thread.native_id

    def result(self) -> bool | BaseException | None:
        self._thread.join(WAIT)
        assert not self.is_alive, "it sleeps for ever"
        return self._result


def waiters() -> int:
    """How many threads wait in this process."""
    return len(hub.current._queue)


def asleep(count: int) -> None:
    """Return when so many threads are waiting."""
    eventually(lambda: waiters() == count)


@contextmanager
def writer(count: int, *paths: Path) -> Iterator[Callable[[], None]]:
    """A process that appends `count` bytes, one at a time. Yields how to confirm the last."""
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(count), *map(str, paths)], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    pipe = process.stdin.fileno()

    def confirm() -> None:
        os.write(pipe, b"x")

    with process:
        try:
            yield confirm
            assert process.wait(WAIT) == 0
        finally:
            process.kill()


def tracing(step: Callable[[Any], None], wait: Callable[[], bool]) -> bool:
    """Run `wait` and call `step(frame)` before each instruction of the modules under test."""

    def trace(frame: Any, event: str, _argument: object) -> Any:
        if not is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode"):  # some versions of Python leave out instructions
            step(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return wait()
    finally:
        sys.settrace(before)


def is_ours(frame: Any) -> bool:
    return str(frame.f_code.co_filename).endswith(_OURS)


def is_collecting(frame: Any) -> bool:
    """Is it a forgotten Watch of before that goes? No exception comes out of that."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


_MODULES = ("watch", "hub", "changes", "inotify", "follow", "tip")
_OURS = tuple(f"tailrace/log/{name}.py" for name in _MODULES)


class AtStep:
    """Does something before the n-th instruction, once."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self.done = threading.Event()
        self._left = number
        self._action = action
        self._claim = threading.Lock()

    def __call__(self, _frame: object) -> None:
        self._left -= 1
        if self._left == 0 and self._claim.acquire(blocking=False):
            self._action()
            self.done.set()

    def was_reached(self) -> bool:
        """Was the instruction reached, or did the thread go to sleep before? Then it is too late,
        and nothing is done any more."""
        if self.done.wait(0.3):
            return True
        return not self._claim.acquire(blocking=False) and self.done.wait(WAIT)


class Interrupt(KeyboardInterrupt):
    """What a signal handler raises."""


class InterruptAt:
    """Raises at the n-th point where the interpreter may run a signal handler: when a function is
    entered, and when one written in C returns."""

    def __init__(self, number: int) -> None:
        self.was_reached = False
        self._left = number

    def __call__(self, frame: Any, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and is_ours(frame) and not is_collecting(frame):
            self._left -= 1
            if self._left == 0:
                self.was_reached = True
                raise Interrupt  # which ends the profiling, too

    def run(self, wait: Callable[[], bool]) -> bool:
        sys.setprofile(self)
        try:
            return wait()
        finally:
            sys.setprofile(None)
