"""Readers look while somebody takes in what was staged: they see all of it or nothing, and nothing
that is taken back. Every step of the one meets every call of the other."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log.adopting import adopt
from tailrace.log.board import Board
from tailrace.log.fs import Entry
from tailrace.testing import Call, Fail, FaultyFileSystem, SimulatedCrash, SimulatedDisk
from tests.log.damage import WRITES
from tests.log.helpers import WAIT
from tests.log.test_adoption import (
    BEFORE,
    FOLDER,
    MODES,
    flat,
    options,
    pieces_of,
    prepared,
    what,
)
from tests.log.test_writer_deaths import let_go

BOARD = f"{FOLDER}/.tailrace/board"
ADOPTION = f"{FOLDER}/.tailrace/adoption"
NEXT = [b"next-%d" % number for number in range(12)]  # more than is copied, and no roll

Do = Callable[[FaultyFileSystem, list[Log]], None]


class Other(threading.Thread):
    """Another process, which makes one step when it is told: to its next call that changes
    something, or to its next store that tells of the set of segments."""

    def __init__(self, disk: SimulatedDisk, do: Do) -> None:
        super().__init__(daemon=True)
        self._disk, self._do = disk, do
        self._fs = FaultyFileSystem(disk, self.pause)
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._opened: list[Log] = []
        self._error: BaseException | None = None
        self.is_over = False
        self.start()
        assert self._stands.acquire(timeout=WAIT)

    def run(self) -> None:
        try:
            self.pause()
            self._do(self._fs, self._opened)
        except BaseException as error:  # noqa: BLE001 (it is raised in the test's own thread)
            self._error = None if isinstance(error, SimulatedCrash) else error
        self.is_over = True
        self._stands.release()

    def pause(self, call: Call | None = None) -> None:
        if not self._fs.crashed and (call is None or call.op in WRITES):
            self._stands.release()
            assert self._go.acquire(timeout=WAIT)
        if self._fs.crashed:
            raise SimulatedCrash

    def step(self) -> None:
        if not self.is_over:
            self._go.release()
            assert self._stands.acquire(timeout=WAIT)
            if self._error is not None:
                raise self._error

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def all_steps(self) -> int:
        count = 0
        while not self.is_over:
            self.step()
            count += 1
        return count

    def die(self) -> None:
        """Where it stands. What is tidied up after it here is not its doing."""
        board = self._disk.map(BOARD, 4096, write=False)
        memory = None if board is None else bytes(board)
        self._fs.crashed = True
        self.step()
        self.join(WAIT)
        for log in self._opened:
            let_go(log)
        if board is not None and memory is not None:
            board[:] = memory


class Looking(FaultyFileSystem):
    """A listing is not one moment: each name is looked at for itself, and those that come meanwhile
    may be in it."""

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        found: dict[str, Entry | None] = {}
        while True:
            names = [name for name in self.inner.names(path) if name.endswith(ending)]
            new = sorted(set(names) - set(found))
            if not new:
                return [entry for entry in found.values() if entry is not None]
            found[new[0]] = None
            with contextlib.suppress(FileNotFoundError):
                found[new[0]] = self.stat(os.path.join(path, new[0]))


@pytest.fixture(autouse=True)
def stores_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(store: Callable[..., None]) -> Callable[..., None]:
        def paused(*arguments: Any) -> None:
            current = threading.current_thread()
            if isinstance(current, Other):
                current.pause()
            store(*arguments)

        return paused

    for name in ("set_up", "bump_layout", "take_down"):
        monkeypatch.setattr(Board, name, before(getattr(Board, name)))


class Scene:
    """One reader, and what others do meanwhile."""

    def __init__(self, flush: str, kind: str, *, is_new: bool) -> None:
        """`is_new`: nobody has ever kept a board up, and the reader comes with its first look."""
        self.flush, self.kind, self.is_new = flush, kind, is_new
        self._prepared = prepared(flush, kind)
        if is_new:
            self._prepared.unlink(BOARD)
        self.begin()

    def begin(self) -> None:
        self.disk = self._prepared.clone()
        self.fs = Looking(self.disk)
        self.reader: Log | None = None
        if not self.is_new:
            assert self.look() == BEFORE

    def look(self) -> list[bytes | None]:
        if self.reader is None:
            self.reader = Log(FOLDER, fs=self.fs, read_only=True)
        return [record.value for record in self.reader.read()]

    def look_while(self, plan: Callable[[int], None]) -> list[bytes | None]:
        """Look, with the plan told of each call before it is made; all of what was staged is seen,
        or nothing."""
        first = len(self.fs.calls)
        self.fs.plan = lambda call: plan(call.n - first)
        try:
            seen = self.look()
        finally:
            self.fs.plan = None
        batches = flat(what(self.kind))
        assert [value for value in seen if value in batches] in ([], batches)
        return seen

    def calls_of_a_look(self) -> int:
        self.begin()
        first = len(self.fs.calls)
        self.look()
        self.end([])
        return len(self.fs.calls) - first

    def adopter(self) -> Other:
        pieces = pieces_of(self.disk, self.kind)

        def do(fs: FaultyFileSystem, opened: list[Log]) -> None:
            opened.append(log := Log(FOLDER, **options(self.flush, fs)))
            adopt(log, pieces, producer="t", sequence=0).wait()
            log.close()

        return Other(self.disk, do)

    def steps_of_the_adopter(self) -> int:
        self.begin()
        count = self.adopter().all_steps()
        self.end([])
        return count

    def next_writer(self) -> Other:
        def do(fs: FaultyFileSystem, opened: list[Log]) -> None:
            opened.append(log := Log(FOLDER, **options(self.flush, fs)))
            append_next(log)
            log.close()

        return Other(self.disk, do)

    def end(self, seen: Sequence[bytes | None]) -> list[bytes | None]:
        """What was seen stays, and the reader sees what there is now."""
        with Log(FOLDER, **options(self.flush, self.disk)) as log:
            there = [record.value for record in log.read()]
        assert list(seen) == there[: len(seen)]
        assert self.look() == there
        assert self.reader is not None
        self.reader.close()
        return there


def append_next(log: Log) -> None:
    for value in NEXT:
        log.append([value]).wait()


def everything(kind: str) -> list[bytes]:
    return BEFORE + flat(what(kind))


@pytest.fixture(params=["a reader that comes", "a reader that is there"])
def is_new(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "a reader that comes")


SOME = [29, pytest.param(1, marks=pytest.mark.long)]  # one of so many meetings


def meetings(calls: Iterable[int], steps: Iterable[int], some: int) -> Iterator[tuple[int, int]]:
    return islice(product(calls, steps), 0, None, some)


def at_once(other: Other, number: int, count: int) -> Callable[[int], None]:
    """It makes so many steps at one of the reader's calls."""
    return lambda n: other.steps(count if n == number else 0)


def by_turns(other: Other, number: int, pace: int) -> Callable[[int], None]:
    """It makes some at each, from one on."""
    return lambda n: other.steps(pace if n >= number else 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("pace", [1, 2, 5])
def test_readers_see_all_of_an_adoption_or_nothing_wherever_both_are(
    flush: str, kind: str, is_new: bool, pace: int
) -> None:
    """They go on step by step, whichever was ahead by whatever."""
    scene = Scene(flush, kind, is_new=is_new)
    steps, calls = scene.steps_of_the_adopter(), scene.calls_of_a_look()
    for ahead in range(-calls, steps, 2 * pace):
        scene.begin()
        adopter = scene.adopter()
        adopter.steps(ahead)
        seen = scene.look_while(by_turns(adopter, -ahead, pace))
        adopter.all_steps()
        assert scene.end(seen) == everything(kind)


@pytest.mark.parametrize("some", SOME)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_readers_see_nothing_of_an_adoption_that_the_next_writer_puts_back(
    flush: str, kind: str, is_new: bool, some: int
) -> None:
    """It comes as far as it comes at one of the reader's calls, and is killed there."""
    scene = Scene(flush, kind, is_new=is_new)
    steps, calls = scene.steps_of_the_adopter(), scene.calls_of_a_look()
    ends = set()
    for number, count in meetings(range(calls), range(1, steps + 1), some):
        scene.begin()
        adopter = scene.adopter()
        seen = scene.look_while(at_once(adopter, number, count))
        adopter.die()
        ends.add(len(scene.end(seen)))
    assert ends == {len(BEFORE), len(everything(kind))}


@pytest.mark.parametrize("some", SOME)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_readers_look_while_the_next_writer_puts_an_adoption_back(
    flush: str, kind: str, some: int
) -> None:
    scene = Scene(flush, kind, is_new=False)
    steps, calls = scene.steps_of_the_adopter(), scene.calls_of_a_look()
    for ahead, count in meetings(range(-calls, 30), range(1, steps), some):
        scene.begin()
        adopter = scene.adopter()
        adopter.steps(count)
        adopter.die()
        first = scene.look()
        other = scene.next_writer()
        other.steps(ahead)
        seen = scene.look_while(by_turns(other, -ahead, 1))
        other.all_steps()
        assert first == seen[: len(first)]
        assert scene.end(seen)[-len(NEXT) :] == NEXT


def around_the_adoption(scene: Scene) -> tuple[int, int]:
    """After how many steps of the adopter its note is about to be stored, and to be removed."""
    scene.begin()
    adopter = scene.adopter()
    is_stored = []
    while not adopter.is_over:
        is_stored.append(ADOPTION in scene.disk.files())
        adopter.step()
    scene.end([])
    first = is_stored.index(True)
    return first - 1, first + is_stored[first:].index(False) - 1


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_a_reader_that_has_looked_for_the_note_too_early_looks_again(
    flush: str, kind: str, is_new: bool, is_told: bool
) -> None:
    """When it begins to look, everything else is prepared. At one of its calls the note is stored,
    and all is written which it forbids to see, and perhaps the board `is_told` of it, which is the
    step before the note goes; and then it is put back."""
    scene = Scene(flush, kind, is_new=is_new)
    stored, removed = around_the_adoption(scene)
    count = removed - stored - (not is_told)
    number, is_reached = 0, True
    while is_reached:
        scene.begin()
        adopter = scene.adopter()
        adopter.steps(stored)
        seen = scene.look_while(at_once(adopter, number, count))
        number, is_reached = number + 1, ADOPTION in scene.disk.files()
        adopter.die()
        assert seen == BEFORE
        assert scene.end(seen) == BEFORE
    assert number > 3


@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_one_who_follows_does_not_see_what_the_note_forbids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, kind: str
) -> None:
    """It stands at the end of the log, and would read on there without a look at the folder."""
    (tmp_path / FOLDER / ".tailrace").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # where there is something to watch
    scene = Scene(flush, kind, is_new=False)
    stored, removed = around_the_adoption(scene)
    for count in range(stored, removed + 1):
        scene.begin()
        assert scene.reader is not None
        tailing = scene.reader.tail("first")
        adopter = scene.adopter()
        adopter.steps(stored)
        assert [record.value for record in tailing.poll()] == BEFORE
        adopter.steps(count - stored)
        assert not tailing.poll_tip()
        assert list(tailing.poll()) == []
        adopter.die()
        with Log(FOLDER, **options(flush, scene.disk)) as log:
            append_next(log)
        assert [record.value for record in tailing.poll()] == NEXT
        tailing.close()
        assert scene.end(BEFORE) == BEFORE + NEXT


@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_what_a_reader_has_found_of_an_adoption_is_not_taken_for_what_comes_instead(
    flush: str, kind: str
) -> None:
    """Another writer is there, and puts it back without a recovery, within the same look."""
    scene = Scene(flush, kind, is_new=False)
    for number, count in meetings(range(2), range(1, scene.steps_of_the_adopter()), 1):
        scene.begin()
        alive = Log(FOLDER, **options(flush, scene.disk))
        assert scene.look() == BEFORE  # so that the next look takes two calls, or three
        adopter = scene.adopter()
        come = at_once(adopter, number, count)

        def plan(
            n: int, come: Any = come, adopter: Other = adopter, last: int = number + 1
        ) -> None:
            come(n)
            if n == last and adopter.is_alive():
                adopter.die()

        seen = scene.look_while(plan)
        adopter.die()
        append_next(alive)
        assert scene.look()[-len(NEXT) :] == NEXT
        alive.close()
        scene.end(seen)


@pytest.mark.parametrize("flush", MODES)
def test_a_reader_does_not_look_for_ever_where_the_segments_change_all_the_time(flush: str) -> None:
    scene = Scene(flush, "small", is_new=False)
    with Log(FOLDER, **options(flush, scene.disk)) as alive:
        append_next(alive)
        assert scene.look_while(lambda _: alive._writing().bump_layout()) == BEFORE + NEXT
    scene.end([])


@pytest.mark.parametrize("flush", ["async", "none"])
def test_a_reader_says_so_if_the_last_segment_is_listed_and_cannot_be_found(flush: str) -> None:
    scene = Scene(flush, "small", is_new=True)

    def plan(call: Call) -> Fail | None:
        is_segment = call.op == "open" and call.path.endswith(".seg")
        return Fail(errno.ENOENT) if is_segment else None

    scene.fs.plan = plan
    with pytest.raises(FileNotFoundError):
        scene.look()
    scene.fs.plan = None
    scene.end(BEFORE)
