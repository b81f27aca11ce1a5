"""The thread of a log: jobs in their order, whoever asks for them and however that ends. And those
that do each job on its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tailrace.aio import worker as worker_module
from tailrace.aio.worker import Crew, Worker, _Job, finish
from tests.aio.support import run, steps, until
from tests.log.helpers import WAIT, eventually, in_threads, run_python
from tests.threads import our_threads


def fail(error: BaseException) -> Callable[..., Any]:
    def job(*_arguments: object) -> None:
        raise error

    return job


def test_results_and_errors() -> None:
    async def work() -> None:
        worker = Worker("test")
        assert await worker.do(lambda: 1) == 1
        futures = [worker.do(lambda: 2), worker.do(fail(KeyError("3"))), worker.do(lambda: 4)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert found[0] == 2
        assert isinstance(found[1], KeyError)
        assert found[2] == 4

    run(work())


def test_an_error_that_no_future_can_carry() -> None:
    async def work() -> None:
        worker = Worker("test")
        futures = [worker.do(fail(StopIteration(1))), worker.do(lambda: 2)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(found[0], RuntimeError)
        assert found[1] == 2

    run(work())


def test_one_after_the_other_in_the_order_of_the_calls() -> None:
    async def work() -> None:
        worker = Worker("test")
        done: list[int] = []
        for number in range(1_000):
            worker.do(partial(done.append, number), slow=number % 3 == 0)
        await worker.do(lambda: None)
        assert done == [*range(1_000)]

    run(work())


def test_tasks_go_on_in_that_order() -> None:
    async def work() -> None:
        worker, resumed = Worker("test"), []

        async def task(number: int) -> None:
            await worker.do(lambda: None)
            resumed.append(number)

        await asyncio.gather(*map(task, range(100)))
        assert resumed == [*range(100)]

    run(work())


def test_what_is_cancelled_in_time_is_not_done() -> None:
    async def work() -> None:
        worker, go_on, done = Worker("test"), threading.Event(), []
        first = worker.do(lambda: go_on.wait(WAIT))
        futures = [worker.do(lambda n=n: done.append(n)) for n in range(4)]  # type: ignore[misc]
        futures[1].cancel()
        futures[3].cancel()
        go_on.set()
        await first
        await futures[2]
        await worker.do(lambda: None)
        assert done == [0, 2]

    run(work())


def test_what_has_begun_is_done_although_it_is_cancelled() -> None:
    async def work() -> None:
        worker, begun, go_on, done = Worker("test"), threading.Event(), threading.Event(), []

        def job() -> None:
            begun.set()
            assert go_on.wait(WAIT)
            done.append(1)

        future = worker.do(job)
        await until(begun.is_set)
        future.cancel()
        go_on.set()
        await worker.do(lambda: None)
        assert done == [1]

    run(work())


def test_tasks_are_told_before_something_slow_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.aio.worker._TELL_AFTER_S", 2 * WAIT)

    async def work() -> None:
        worker, begin, go_on = Worker("test"), threading.Event(), threading.Event()
        quick = [worker.do(lambda: begin.wait(WAIT)), worker.do(lambda: True)]
        slow = worker.do(lambda: go_on.wait(WAIT), slow=True)
        begin.set()
        assert await asyncio.gather(*quick) == [True, True]
        assert not slow.done()
        go_on.set()
        assert await slow

    run(work())


def test_tasks_are_told_although_there_is_always_more_to_do() -> None:
    async def work() -> None:
        worker, stopped = Worker("test"), threading.Event()

        def more() -> None:
            if not stopped.is_set():
                worker._put(_Job(more, slow=False, future=None))

        worker._put(_Job(more, slow=False, future=None))
        for _ in range(20):
            await worker.do(lambda: None)
        stopped.set()

    run(work(), debug=False)


def test_the_thread_is_there_while_it_is_needed() -> None:
    async def work() -> None:
        worker = Worker("test")
        assert not our_threads()
        threads = {await worker.do(threading.get_ident) for _ in range(10)}
        eventually(lambda: not our_threads())
        worker.keep()
        threads = {await worker.do(threading.get_ident) for _ in range(10)}
        assert len(threads) == 1
        assert our_threads() == ["tailrace-aio test"]
        worker.let_go()
        eventually(lambda: not our_threads())
        assert await worker.do(lambda: 1) == 1  # it can be asked all the same
        worker.let_go()
        worker.let_go()
        assert await worker.do(lambda: 1) == 1

    run(work())


def test_it_keeps_nothing_alive() -> None:
    class Thing:
        def use(self) -> None:
            return

        def fail(self) -> None:
            raise ValueError

    async def work() -> None:
        worker = Worker("test")
        worker.keep()
        gc.disable()  # there must be no cycle either
        try:
            for verb in ("use", "fail"):
                thing = Thing()
                gone = weakref.ref(thing)
                await asyncio.gather(worker.do(getattr(thing, verb)), return_exceptions=True)
                del thing
                await until(lambda gone=gone: gone() is None)  # type: ignore[misc]
        finally:
            gc.enable()
        worker.let_go()

    run(work(), debug=False)


def test_a_job_for_which_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = Worker("test"), threading.Event()
    with caplog.at_level(logging.ERROR, "tailrace"):
        worker.post(fail(ValueError("what happened")))
        worker.post(done.set)
        assert done.wait(WAIT)
    assert "what happened" in caplog.text
    eventually(lambda: not our_threads())


def test_what_is_dropped_is_closed_in_the_thread() -> None:
    async def work() -> None:
        worker, closers = Worker("test"), []

        def close() -> None:
            closers.append(threading.current_thread().name)

        worker.drop(close)  # there is none, and this is no reason to have one
        assert not our_threads()
        worker.keep()
        await worker.do(lambda: None)
        worker.drop(close)
        await until(lambda: closers == ["tailrace-aio test"])
        worker.let_go()

    run(work())


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no job either, also when there is one later."""

    async def work() -> None:
        worker, done = Worker("test"), []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail(RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError):
                worker.do(lambda: done.append(1))
        await worker.do(lambda: None)
        assert not done

    run(work())


def test_jobs_of_loops_that_come_and_go() -> None:
    worker, done = Worker("test"), []
    worker.keep()

    def play(thread: int) -> None:
        async def work(number: int) -> None:
            futures = [worker.do(lambda: done.append(1)) for _ in range(20)]
            if number % 2:
                await futures[number % 20]
                await steps(number % 7)
                return  # the others are told when nobody is there any more
            await asyncio.gather(*futures)

        for number in range(30):
            run(work(number), debug=False)

    in_threads(3, play)

    async def check() -> None:
        await worker.do(lambda: None)

    run(check())
    assert len(done) == 3 * 30 * 20
    worker.let_go()


def test_the_thread_ends_at_any_moment_of_a_call() -> None:
    """A job that comes just then is done all the same."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        async def work() -> None:
            worker = Worker("test")
            for number in range(3_000):
                assert await worker.do(lambda number=number: number) == number  # type: ignore[misc]

        run(work(), debug=False)
    finally:
        sys.setswitchinterval(before)


def test_a_thread_that_lingers() -> None:
    async def work() -> None:
        worker = Worker("test", linger_s=0.05)
        threads = {await worker.do(threading.get_ident) for _ in range(20)}
        assert len(threads) == 1
        await until(lambda: not our_threads())
        assert await worker.do(lambda: 1) == 1
        worker.let_go()
        await until(lambda: not our_threads())
        assert await worker.do(lambda: 2) == 2  # with a thread that does not linger any more
        await until(lambda: not our_threads())
        await worker.drain()

    run(work())


def test_a_lingering_thread_that_is_let_go_ends_at_once() -> None:
    async def work() -> None:
        worker = Worker("test", linger_s=WAIT)
        await worker.do(lambda: None)
        await worker.drain()
        assert our_threads()
        worker.let_go()

    run(work())
    eventually(lambda: not our_threads())


def test_a_lingering_thread_ends_at_any_moment_of_a_call() -> None:
    """A job that comes just then is done all the same."""

    async def work() -> None:
        worker = Worker("test", linger_s=0.0005)
        for number in range(500):
            assert await worker.do(lambda number=number: number) == number  # type: ignore[misc]
            await asyncio.sleep(0.0005)

    run(work(), debug=False)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_is_finished_although_nobody_waits(is_cancelled: bool) -> None:
    """And nobody complains of its error."""
    gate = threading.Event()

    def job() -> None:
        assert gate.wait(WAIT)
        raise KeyError("it failed")

    async def work() -> None:
        worker = Worker("test")
        task = asyncio.ensure_future(finish(worker.do(job)))
        await steps(3)
        if is_cancelled:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        gate.set()
        await worker.drain()
        if not is_cancelled:
            with pytest.raises(KeyError):
                await task

    run(work())


# --- a crew -------------------------------------------------------------------------------


def test_a_crew_does_each_job_on_its_own() -> None:
    async def work() -> None:
        crew, together = Crew("test"), threading.Barrier(5)
        futures = [crew.do(lambda: together.wait(WAIT)) for _ in range(5)]
        assert sorted(await asyncio.gather(*futures)) == [*range(5)]
        futures = [crew.do(lambda: 1), crew.do(fail(KeyError("2"))), crew.do(lambda: 3)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert (found[0], type(found[1]), found[2]) == (1, KeyError, 3)
        assert set(our_threads()) == {"tailrace-aio test crew"}
        assert len(our_threads()) == 5
        crew.let_go()

    run(work())


def test_a_crew_has_no_more_threads_than_it_needs() -> None:
    async def work() -> None:
        crew = Crew("test")
        for number in range(200):
            assert await crew.do(lambda number=number: number) == number  # type: ignore[misc]
        assert len(our_threads()) == 1
        crew.let_go()

    run(work())


def test_a_crew_that_is_asked_for_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no thread for is done as soon as one is free; what is cancelled before that is
    not."""
    monkeypatch.setattr(worker_module, "_MOST_THREADS", 3)

    async def work() -> None:
        crew, go_on, done = Crew("test"), threading.Event(), []
        held = [crew.do(lambda: go_on.wait(WAIT)) for _ in range(3)]
        others = [crew.do(lambda n=n: done.append(n)) for n in range(50)]  # type: ignore[misc]
        assert len(our_threads()) == 3
        others[7].cancel()
        await steps(5)
        assert not done
        drained = asyncio.ensure_future(crew.drain())
        go_on.set()
        await drained
        assert sorted(done) == [n for n in range(50) if n != 7]
        await asyncio.gather(*held, *(each for each in others if not each.cancelled()))
        await crew.drain()
        crew.let_go()

    run(work())


def test_a_crew_lingers_until_it_is_let_go() -> None:
    async def work() -> None:
        crew, begun, go_on = Crew("test"), threading.Semaphore(0), threading.Event()

        def job() -> bool:
            begun.release()
            return go_on.wait(WAIT)

        futures = [crew.do(job) for _ in range(3)]
        for _ in futures:
            begun.acquire()
        crew.let_go()
        futures.append(crew.do(lambda: True))
        go_on.set()
        assert await asyncio.gather(*futures) == [True] * 4
        await until(lambda: not our_threads())
        assert await crew.do(lambda: 1) == 1  # it can be asked all the same

    run(work())


def test_the_threads_of_a_crew_end_at_any_moment_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that comes just then is done all the same."""
    monkeypatch.setattr(worker_module, "LINGER_S", 0.0005)

    async def work() -> None:
        crew = Crew("test")

        async def ask(task: int) -> None:
            for number in range(200):
                assert await crew.do(lambda: number) == number  # noqa: B023
                await asyncio.sleep(0.0003 * (task % 3))

        await asyncio.gather(*map(ask, range(5)))
        await until(lambda: not our_threads())

    run(work(), debug=False)


def test_a_crew_keeps_nothing_alive() -> None:
    class Thing:
        def use(self) -> None:
            return

        def fail(self) -> None:
            raise ValueError

    async def work() -> None:
        crew = Crew("test")
        gc.disable()  # there must be no cycle either
        try:
            for verb in ("use", "fail"):
                thing = Thing()
                gone = weakref.ref(thing)
                await asyncio.gather(crew.do(getattr(thing, verb)), return_exceptions=True)
                del thing
                await until(lambda gone=gone: gone() is None)  # type: ignore[misc]
        finally:
            gc.enable()
        crew.let_go()

    run(work(), debug=False)


def test_a_crew_without_a_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        crew, done = Crew("test"), []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail(RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError):
                crew.do(lambda: done.append(1))
        await crew.drain()
        await crew.do(lambda: None)
        assert not done
        crew.let_go()

    run(work())


def test_a_crew_and_a_loop_that_is_closed() -> None:
    crew, go_on, done = Crew("test"), threading.Event(), threading.Event()

    def job() -> None:
        assert go_on.wait(WAIT)
        done.set()

    async def work() -> None:
        crew.do(job)

    run(work())
    go_on.set()
    assert done.wait(WAIT)
    crew.let_go()


def test_a_forked_child_has_a_crew_of_its_own() -> None:
    found = run_python(
        """
import asyncio, json, os, threading, warnings
from tailrace.aio.worker import Crew

warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks
crew, go_on = Crew("test"), threading.Event()

async def ask():
    await asyncio.wait_for(crew.drain(), 30)
    return await asyncio.wait_for(crew.do(lambda: 7), 30)

async def parent():
    await crew.do(lambda: None)
    held = [crew.do(lambda: go_on.wait(30)) for _ in range(20)]
    child = os.fork()
    if not child:
        found = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(ask())))
        thread.start()
        thread.join()
        os._exit(found[0])
    _pid, status = os.waitpid(child, 0)
    go_on.set()
    await asyncio.gather(*held)
    print(json.dumps(os.waitstatus_to_exitcode(status)))

asyncio.run(parent())
"""
    )
    assert found == 7
