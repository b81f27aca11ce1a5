"""Tasks wait for changes without blocking their loop, and leave nothing behind in it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace.log import hub
from tailrace.log.watch import Watch
from tests.log.helpers import WAIT, in_threads
from tests.log.watching import (
    AtStep,
    Interrupt,
    InterruptAt,
    Waiting,
    asleep,
    by_looking,
    drain,
    either_way,
    file,
    fresh_hub,
    inotify_fds,
    kernel_watches,
    touch,
    tracing,
    writer,
)

__all__ = ["by_looking", "either_way", "file", "fresh_hub"]


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run it; hanging is a failure, not a hang."""
    asyncio.run(asyncio.wait_for(work, WAIT))


def is_left_behind(loop: asyncio.AbstractEventLoop) -> bool:
    """Has the loop a reader, or the hub anything about the loop?"""
    return any(map(loop.remove_reader, inotify_fds())) or bool(hub.current._attendances)


async def asleep_in_loop(watch: Watch, tasks: int = 1) -> None:
    while len(watch._ear.sleepers) != tasks:
        await asyncio.sleep(0.001)


# --- what is told -------------------------------------------------------------------------


@pytest.mark.usefixtures("either_way")
def test_a_change_is_told(file: Path) -> None:
    async def work() -> None:
        watch = Watch(str(file))
        drain(watch)
        assert not await watch.wait_async(0)
        touch(file)
        assert await watch.wait_async(0)  # it was there before
        drain(watch)
        task = asyncio.create_task(watch.wait_async())
        await asleep_in_loop(watch)
        touch(file)
        assert await task
        drain(watch)
        assert not await watch.wait_async(0.02)
        assert not await watch.wait_async(-1)
        watch.close()

    run(work())


@pytest.mark.usefixtures("either_way")
def test_threads_and_tasks_are_told_alike(file: Path) -> None:
    async def work() -> None:
        watches = [Watch(str(file)) for _ in range(4)]
        for watch in watches:
            drain(watch)
        for _ in range(5):
            threads = [Waiting(watch.wait) for watch in watches[:2]]
            tasks = [asyncio.create_task(watch.wait_async()) for watch in watches[1:]]
            asleep(2)
            await asleep_in_loop(watches[3])
            touch(file)
            assert all(await asyncio.gather(*tasks))
            assert [thread.result() for thread in threads] == [True, True]
            for watch in watches:
                drain(watch)
        for watch in watches:
            watch.close()

    run(work())


@pytest.mark.usefixtures("either_way")
def test_a_loop_goes_on_while_its_tasks_wait(file: Path) -> None:
    async def work() -> None:
        watch = Watch(str(file))
        drain(watch)
        tasks = [asyncio.create_task(watch.wait_async()) for _ in range(10)]
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in tasks)
        touch(file)
        assert all(await asyncio.gather(*tasks))
        watch.close()

    run(work())


@pytest.mark.usefixtures("either_way")
def test_a_file_that_is_removed_and_made_anew(file: Path) -> None:
    async def work() -> None:
        watch = Watch(str(file))
        drain(watch)
        file.unlink()
        assert await watch.wait_async()
        drain(watch)
        task = asyncio.create_task(watch.wait_async())
        await asleep_in_loop(watch)
        file.touch()
        assert await task
        drain(watch)
        touch(file)
        assert await watch.wait_async()
        watch.close()

    run(work())


def test_a_lost_file_is_looked_for_although_a_thread_sleeps_on_another(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").touch()

    async def work() -> None:
        watch, other = Watch(str(file)), Watch(str(tmp_path / "other"))
        leader = Waiting(other.wait)
        asleep(1)
        file.unlink()
        assert await watch.wait_async()
        Waiting(partial(drain, watch)).result()
        thread = Waiting(watch.wait)
        asleep(2)
        file.touch()
        assert thread.result() is True
        other.close()
        assert leader.result() is False
        watch.close()

    run(work())


def test_a_watch_goes_on_with_another_hub(file: Path) -> None:
    """As in a forked child."""

    async def work() -> None:
        watch = Watch(str(file))

        async def wait_in_thread(timeout: float | None = None) -> bool:
            return await asyncio.to_thread(watch.wait, timeout)

        for wait in (watch.wait_async, wait_in_thread):
            hub.start_afresh()
            assert await wait()  # something may have happened
            assert not await wait(0)
            touch(file)
            assert await wait()
        watch.close()

    run(work())


# --- the end of a wait --------------------------------------------------------------------


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("closer", ["the loop", "a thread"])
def test_close(file: Path, closer: str) -> None:
    async def work() -> None:
        watch = Watch(str(file))
        drain(watch)
        tasks = [asyncio.create_task(watch.wait_async()) for _ in range(3)]
        await asleep_in_loop(watch, 3)
        if closer == "the loop":
            watch.close()
        else:
            await asyncio.to_thread(watch.close)
        assert await asyncio.gather(*tasks) == [False] * 3
        assert not await watch.wait_async()

    run(work())


@pytest.mark.usefixtures("either_way")
def test_cancellation_leaves_nothing_behind_and_takes_nothing_away(file: Path) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        watch = Watch(str(file))
        drain(watch)
        tasks = [asyncio.create_task(watch.wait_async(WAIT)) for _ in range(3)]
        await asleep_in_loop(watch, 3)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert len(watch._ear.sleepers) == 2
        assert hub.current._attendances  # the others wait
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert not watch._ear.sleepers
        assert not is_left_behind(loop)
        task = asyncio.create_task(watch.wait_async())
        await asleep_in_loop(watch)
        touch(file)
        hub.current.take_in(loop)  # it is told, and cancelled before it can go on
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await watch.wait_async(0)
        await asyncio.sleep(0)
        assert not is_left_behind(loop)
        watch.close()

    run(work())


@pytest.mark.usefixtures("either_way")
def test_timeouts_leave_nothing_behind(file: Path) -> None:
    async def work() -> None:
        watch = Watch(str(file))
        drain(watch)
        assert not await watch.wait_async(0.001)
        touch(file)
        assert await watch.wait_async(3600)
        await asyncio.sleep(0)
        assert not is_left_behind(asyncio.get_running_loop())
        watch.close()

    run(work())


def test_a_loop_that_is_closed_while_a_task_waits(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")  # which finds it worth a word
    watch = Watch(str(file))
    gone = Watch(str(file))
    loop = asyncio.new_event_loop()
    task = loop.create_task(gone.wait_async())
    loop.run_until_complete(asyncio.sleep(0.001))
    assert len(gone._ear.sleepers) == 1
    loop.close()
    sleeper, forgotten = weakref.ref(task), weakref.ref(gone)
    del task, gone
    touch(file)
    assert watch.wait(WAIT)
    gc.collect()
    assert sleeper() is None
    assert forgotten() is None

    async def work() -> None:
        touch(file)
        assert await watch.wait_async()

    run(work())
    assert not hub.current._attendances
    watch.close()


def test_a_loop_that_ends_with_the_wait(file: Path) -> None:
    """It has no turn left to take its reader away."""
    watch = Watch(str(file))
    for _ in range(3):
        touch(file)
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(watch.wait_async())
        loop.close()
    assert len(hub.current._attendances) <= 1
    watch.close()


def test_100_tasks_share_a_reader(tmp_path: Path) -> None:
    async def work() -> None:
        watches = [Watch(str(tmp_path)) for _ in range(100)]
        assert kernel_watches() == 1
        tasks = [asyncio.create_task(watch.wait_async()) for watch in watches]
        await asleep_in_loop(watches[99])
        touch(tmp_path / "new")
        assert all(await asyncio.gather(*tasks))
        await asyncio.sleep(0)
        assert not is_left_behind(asyncio.get_running_loop())
        for watch in watches:
            watch.close()

    run(work())


# --- no wake-up is missed -----------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("happening", ["event", "stolen event", "close"])
def test_something_happens_at_every_step(file: Path, happening: str) -> None:
    """As `test_watch_races.py` does with threads."""
    for number in count(1):
        watch = Watch(str(file))

        def happen(watch: Watch = watch) -> None:
            if happening == "close":
                watch.close()
                return
            touch(file)
            if happening == "stolen event" and not hub.current._lock.locked():
                hub.current.take_in(None)

        step = AtStep(number, happen)

        def wait(watch: Watch = watch) -> bool:
            return asyncio.run(watch.wait_async())

        waiting = Waiting(partial(tracing, step, wait))
        was_reached = step.was_reached()
        if not was_reached:
            happen()
        assert waiting.result() is (happening != "close")
        watch.close()
        if not was_reached:
            break
    assert number > 30


def test_an_interrupt_at_every_step_of_a_loop(file: Path, tmp_path: Path) -> None:
    """A thread that waits is told, also of what the loop had read when it was interrupted."""
    (tmp_path / "other").touch()
    watch, other = Watch(str(file)), Watch(str(tmp_path / "other"))
    told: list[bool] = []

    async def work() -> bool:
        told.append(await watch.wait_async())
        return True

    for number in count(1):
        interrupt = InterruptAt(number)
        looping = Waiting(partial(interrupt.run, lambda: asyncio.run(work())))
        while looping.is_alive and not watch._ear.sleepers:
            time.sleep(0.0001)
        thread = Waiting(other.wait)
        asleep(1)
        with hub.current._lock:  # nobody reads one event without the other
            touch(tmp_path / "other")
            touch(file)
        assert thread.result() is True
        result = looping.result()
        assert isinstance(result, Interrupt) if interrupt.was_reached else result is True
        assert told == [True] or watch.wait(WAIT)  # nothing was taken away
        told.clear()
        assert not watch._ear.sleepers
        drain(watch)
        drain(other)
        if not interrupt.was_reached:
            break
    assert number > 10
    watch.close()
    other.close()


async def follow(
    watch: Watch, path: Path, records: int, step: int, confirm: Callable[[], None]
) -> None:
    for number in range(0, records, step):
        while path.stat().st_size <= number // step:
            assert await watch.wait_async()
        confirm()


def test_ping_pong_with_another_process(file: Path) -> None:
    os.truncate(file, 0)
    watch, records = Watch(str(file)), 2000

    async def work() -> None:
        with writer(records, file) as confirm:
            await follow(watch, file, records, 1, confirm)

    run(work())
    watch.close()


def test_ping_pong_of_tasks_in_two_loops_and_of_threads(tmp_path: Path) -> None:
    """Whoever reads an event tells the others, in whatever way they wait."""
    players, records = 6, 1200
    paths = [tmp_path / f"file{number}" for number in range(players)]
    for path in paths:
        path.touch()
    watches = [Watch(str(path)) for path in paths]

    with writer(records, *paths) as confirm:

        async def work(numbers: list[int]) -> None:
            await asyncio.gather(
                *(follow(watches[n], paths[n], records, players, confirm) for n in numbers)
            )

        def play(number: int) -> None:
            if number < 2:
                run(work([2 * number, 2 * number + 1]))
                return
            watchdog = threading.Timer(WAIT, watches[number + 2].close)
            watchdog.start()
            for expected in range(1, records // players + 1):
                while paths[number + 2].stat().st_size < expected:
                    assert watches[number + 2].wait()
                confirm()
            watchdog.cancel()
            watchdog.join()

        in_threads(4, play)
    for watch in watches:
        watch.close()
