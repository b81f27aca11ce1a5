"""No wake-up is missed, whatever happens between two instructions.

The systematic tests trace a thread that waits, and have something happen before its first
instruction, its second, and so on: an event, another thread that reads it first, a leader that
leaves, an exception from a signal handler. The others let processes play ping-pong, each waiting
for the other without a time-out: one missed wake-up, and the game stands still.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log import hub, inotify
from tailrace.log.watch import Watch
from tests.log.helpers import WAIT, eventually, in_threads, run_python
from tests.log.watching import (
    AtStep,
    Interrupt,
    InterruptAt,
    Waiting,
    asleep,
    fresh_hub,
    kernel_watches,
    touch,
    tracing,
    waiters,
    writer,
)

pytestmark = pytest.mark.no_cover

__all__ = ["fresh_hub"]


class Scene:
    """Two files with a Watch each."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.theirs = folder / "ours", folder / "theirs"
        self.ours.touch()
        self.theirs.touch()
        self.watch, self.other = Watch(str(self.ours)), Watch(str(self.theirs))

    def close(self) -> None:
        self.watch.close()
        self.other.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def read_as_another() -> None:
    """Take events away from whoever sleeps on them, as another thread would. Not when the lock is
    held: then another thread could not."""
    if not hub.current._lock.locked():
        hub.current.take_in(None)


def every_step(play: Callable[[int], bool], *, least: int) -> None:
    """Play with something happening at each step, until there is no such step any more."""
    number = next(number for number in count(1) if not play(number))
    assert number > least, "it did not trace what it should"


def settle(*watches: Watch) -> None:
    for watch in watches:
        while watch.wait(0):
            continue


# --- step by step -------------------------------------------------------------------------


@pytest.mark.parametrize("is_stolen", [False, True])
def test_an_event_at_every_step_of_a_lone_waiter(scene: Scene, is_stolen: bool) -> None:
    def event() -> None:
        touch(scene.ours)
        if is_stolen:
            read_as_another()

    def play(number: int) -> bool:
        step = AtStep(number, event)
        waiting = Waiting(partial(tracing, step, scene.watch.wait))
        was_reached = step.was_reached()
        if not was_reached:
            touch(scene.ours)
        assert waiting.result() is True
        settle(scene.watch)
        return was_reached

    every_step(play, least=30)


@pytest.mark.parametrize("is_stolen", [False, True])
@pytest.mark.parametrize("order", ["leader first", "leader last"])
def test_a_leader_leaves_at_every_step_of_a_follower(
    scene: Scene, is_stolen: bool, order: str
) -> None:
    def play(number: int) -> bool:
        leader = Waiting(scene.other.wait)
        asleep(1)

        def event() -> None:
            if order == "leader first":
                touch(scene.theirs)
                if not hub.current._lock.locked():
                    assert leader.result() is True
            touch(scene.ours)
            if is_stolen:
                read_as_another()
            if order == "leader last":
                touch(scene.theirs)

        step = AtStep(number, event)
        follower = Waiting(partial(tracing, step, scene.watch.wait))
        was_reached = step.was_reached()
        if not was_reached:
            event()
        assert leader.result() is True
        assert follower.result() is True
        settle(scene.watch, scene.other)
        return was_reached

    every_step(play, least=30)


@pytest.mark.sample(2)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("is_stolen", [False, True])
def test_a_record_at_every_step_of_a_follower(path: Path, flush: str, is_stolen: bool) -> None:
    """Another one sees it first, and what that one has seen serves this one, too: but never instead
    of what came later."""
    with Log(path, flush=flush, upkeep=False) as log, Log(path, read_only=True) as reader:
        log.append_one(b"").wait()
        follower, other = reader.read(follow=True), reader.tail()
        assert next(follower).offset == 0
        assert len(list(other.poll())) == 1

        def append() -> None:
            log.append_one(b"").wait()
            if is_stolen:
                read_as_another()

        def play(number: int) -> bool:
            step = AtStep(number, append)
            append()
            while other.position < log.end_offset:
                assert list(other.poll())

            def see_two() -> bool:
                return [next(follower).offset, next(follower).offset] == due

            due = [log.end_offset - 1, log.end_offset]
            seeing = Waiting(partial(tracing, step, see_two))
            was_reached = step.was_reached()
            if not was_reached:
                append()
            assert seeing.result() is True
            return was_reached

        every_step(play, least=200)
        other.close()
        follower.close()


@pytest.mark.parametrize("is_early", [False, True])
def test_another_comes_at_every_step_of_a_leader(scene: Scene, is_early: bool) -> None:
    """The leader's event is there from the beginning, so its steps are those of a whole wait."""

    def play(number: int) -> bool:
        others: list[Waiting] = []

        def come() -> None:
            others.append(Waiting(scene.other.wait))
            if not hub.current._lock.locked():
                asleep(1 + (leader_thread in hub.current._queue))
            if is_early:
                touch(scene.theirs)

        step = AtStep(number, come)
        leader_thread: Any = None

        def look(frame: Any) -> None:
            nonlocal leader_thread
            leader_thread = frame.f_locals.get("thread", leader_thread)
            step(frame)

        touch(scene.ours)
        assert Waiting(partial(tracing, look, scene.watch.wait)).result() is True
        if step.done.is_set():
            touch(scene.theirs)
            assert others[0].result() is True
        settle(scene.watch, scene.other)
        return step.done.is_set()

    every_step(play, least=60)


def test_a_file_that_is_to_be_looked_for_from_any_step_of_a_leader_on(scene: Scene) -> None:
    """The leader may be about to sleep until inotify says something, which it never will."""

    def until_it_is_back() -> bool:  # what is looked at may be told of twice
        while not scene.theirs.exists():
            scene.other.wait()
        return True

    def play(number: int) -> bool:
        def lose() -> None:
            scene.theirs.unlink()
            read_as_another()

        step = AtStep(number, lose)
        leader = Waiting(partial(tracing, step, scene.watch.wait))
        was_reached = step.was_reached()
        if not was_reached:
            lose()
        settle(scene.other)
        follower = Waiting(until_it_is_back)
        asleep(2)
        scene.theirs.touch()
        assert follower.result() is True
        touch(scene.ours)
        assert leader.result() is True
        settle(scene.watch, scene.other)
        return was_reached

    every_step(play, least=30)


@pytest.mark.parametrize("is_leader", [True, False])
def test_close_at_every_step(tmp_path: Path, is_leader: bool) -> None:
    scene = Scene(tmp_path)

    def play(number: int) -> bool:
        watch = Watch(str(scene.ours))
        leader = None if is_leader else Waiting(scene.other.wait)
        asleep(0 if is_leader else 1)
        step = AtStep(number, watch.close)
        waiting = Waiting(partial(tracing, step, watch.wait))
        was_reached = step.was_reached()
        if not was_reached:
            watch.close()
        assert waiting.result() is False
        if leader is not None:
            touch(scene.theirs)
            assert leader.result() is True
        return was_reached

    every_step(play, least=30)
    scene.close()


# --- interrupts ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("order", ["leader first", "leader last", "together"])
def test_an_interrupt_at_every_step_of_a_leader(
    scene: Scene, order: str, is_second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was about to do for the others is done, even if it comes when the sleep of the
    leader was interrupted before."""
    sleep = inotify.Inotify.sleep
    sleepy: list[Waiting] = []

    def be_interrupted(self: inotify.Inotify, timeout_s: float | None) -> None:
        sleep(self, timeout_s)
        if is_second and sleepy and sleepy[0].tid == threading.get_native_id():
            raise Interrupt

    monkeypatch.setattr(inotify.Inotify, "sleep", be_interrupted)

    def play(number: int) -> bool:
        interrupt = InterruptAt(number)
        leader = Waiting(partial(interrupt.run, scene.watch.wait))
        sleepy[:] = [leader]
        eventually(lambda: waiters() == 1 or not leader.is_alive)
        others = [Waiting(scene.other.wait) for _ in range(3)]
        eventually(lambda: waiters() >= 3)
        if order == "leader first":
            touch(scene.ours)
            leader.result()
        with hub.current._lock:  # nobody reads one event without the other
            touch(scene.theirs)
            if order == "together":
                touch(scene.ours)
        assert [other.result() for other in others] == [True] * 3
        if order == "leader last":
            touch(scene.ours)
        result = leader.result()
        if interrupt.was_reached or is_second:
            assert isinstance(result, Interrupt)
            assert scene.watch.wait(WAIT)  # nothing was taken away
        else:
            assert result is True
        assert hub.current.leader is None
        assert not waiters()
        settle(scene.watch, scene.other)
        return interrupt.was_reached

    every_step(play, least=10)


CTRL_C = """
import json, os, signal, sys, threading, time
from tailrace.log import hub
from tailrace.log.watch import Watch

leads, path, quiet = sys.argv[1] == "leads", sys.argv[2], sys.argv[3]
watches = [Watch(path) for _ in range(3)]
told = []
threads = [threading.Thread(target=lambda w=w: told.append(w.wait())) for w in watches]

def waiting(count):
    while len(hub.current._queue) < count:
        time.sleep(0.001)

def interrupt():
    waiting(1 if leads else 4)
    if leads:
        for thread in threads:
            thread.start()
        waiting(4)
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

if not leads:
    for thread in threads:
        thread.start()
    waiting(3)
threading.Thread(target=interrupt).start()
try:
    Watch(quiet).wait()
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    waiting_now = len(hub.current._queue)
os.truncate(path, 100)
for thread in threads:
    thread.join(30)
print(json.dumps([waiting_now, told]))
"""


@pytest.mark.parametrize("role", ["leads", "follows"])
def test_ctrl_c(tmp_path: Path, role: str) -> None:
    for name in ("file", "quiet"):
        (tmp_path / name).touch()
    told = run_python(CTRL_C, role, tmp_path / "file", tmp_path / "quiet")
    assert told == [3, [True, True, True]]


ALARMS = """
import json, os, random, signal, sys, threading
from tailrace.log.watch import Watch

class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

seed, rounds, path, quiet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
chance = random.Random(seed)
signal.signal(signal.SIGALRM, ring)
watches = [Watch(path) for _ in range(2)]
fd = os.open(path, os.O_WRONLY | os.O_APPEND)
state = {"turn": 0, "stop": False}

def play(me):
    for number in range(rounds):
        while state["turn"] % 2 != me:
            watches[me].wait()
        state["turn"] += 1
        os.write(fd, b"x")

threads = [threading.Thread(target=play, args=(me,), daemon=True) for me in range(2)]
for thread in threads:
    thread.start()
alarms, main = 0, Watch(quiet, path)
while any(thread.is_alive() for thread in threads):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.0003))
        main.wait(1)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        alarms += 1
print(json.dumps([state["turn"], alarms > 0]))
"""


def test_signals_that_raise_at_any_time_leave_the_others_playing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    for name in ("file", "quiet"):
        (tmp_path / name).touch()
    assert run_python(ALARMS, seed, 1500, tmp_path / "file", tmp_path / "quiet") == [3000, True]


# --- ping-pong ----------------------------------------------------------------------------


def follow(watch: Watch, path: Path, records: int, step: int, confirm: Callable[[], None]) -> None:
    """See each record come, and confirm it."""
    for number in range(0, records, step):
        while path.stat().st_size <= number // step:
            assert watch.wait()
        confirm()


@contextmanager
def watchdog(*watches: Watch) -> Iterator[None]:
    """Ends waits that would never end; then they return False, which fails the test."""

    def end() -> None:
        for watch in watches:
            watch.close()

    timer = threading.Timer(WAIT, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def test_ping_pong_with_another_process(tmp_path: Path) -> None:
    path, records = tmp_path / "file", 3000
    path.touch()
    watch = Watch(str(path))
    with watchdog(watch), writer(records, path) as confirm:
        follow(watch, path, records, 1, confirm)
    assert path.stat().st_size == records
    watch.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_ping_pong_of_several_threads_where_the_leader_changes(
    tmp_path: Path, is_shared: bool
) -> None:
    """Each waits for its own file, or all of them watch the folder, for every event."""
    players, records = 4, 2000
    paths = [tmp_path / f"file{number}" for number in range(players)]
    for path in paths:
        path.touch()
    watches = [Watch(str(tmp_path if is_shared else path)) for path in paths]
    leaders = set()

    with watchdog(*watches), writer(records, *paths) as confirm:

        def confirm_and_look() -> None:
            leaders.add(hub.current.leader)
            confirm()

        in_threads(
            players,
            lambda n: follow(watches[n], paths[n], records, players, confirm_and_look),
        )
    assert sum(path.stat().st_size for path in paths) == records
    assert len(leaders) > 10
    for watch in watches:
        watch.close()


def test_watches_come_and_go_while_others_wait(tmp_path: Path) -> None:
    path, records = tmp_path / "file", 1000
    path.touch()
    watch = Watch(str(path))
    stop = threading.Event()

    def come_and_go(number: int) -> None:
        if number:
            while not stop.is_set():
                passing = Watch(str(path), str(tmp_path))
                passing.wait(0.0001 * number)
                if number == 1:
                    passing.close()
            return
        try:
            with watchdog(watch), writer(records, path) as confirm:
                follow(watch, path, records, 1, confirm)
        finally:
            stop.set()

    in_threads(3, come_and_go)
    assert kernel_watches() == 1
    watch.close()
