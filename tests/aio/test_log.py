"""Opening, appending and closing from tasks: order, receipts, errors, several loops."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Log, NotWritten, OutcomeUnknown, Receipt, aio
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Fail, FaultyFileSystem, SimulatedDisk, on
from tests.aio.support import offsets, run, until, values, wait
from tests.log.helpers import (
    WAIT,
    Gate,
    eventually,
    in_threads,
    pending,
    run_python,
    segment_syncs,
)
from tests.log.helpers import values as values_of
from tests.threads import our_threads

# --- open and close -----------------------------------------------------------------------


def test_three_ways_to_open(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            await log.append([b"0"])
        log = await aio.Log(path)
        await log.append([b"1"])
        await log.close()
        log = aio.Log(path)
        assert await log.open() is log
        assert await log.open() is log  # it is
        await log.append([b"2"])
        await log.close()
        await log.close()

    run(work())
    with Log(path) as log:
        assert values_of(log.read()) == [b"0", b"1", b"2"]


def test_tasks_that_open_it_at_once(path: Path) -> None:
    async def work() -> None:
        log = aio.Log(path)
        assert await asyncio.gather(*(log.open() for _ in range(10))) == [log] * 10
        await log.append([b"0"])
        await asyncio.gather(*(log.close() for _ in range(10)))

    run(work())


def test_what_was_asked_for_before_a_close_is_done(path: Path) -> None:
    async def work() -> None:
        log = await aio.Log(path)
        appends = [asyncio.ensure_future(log.append_one(b"%d" % n)) for n in range(100)]
        await asyncio.sleep(0)
        await log.close()
        receipts = await asyncio.gather(*appends)
        assert [receipt.offset for receipt in receipts] == [*range(100)]
        assert all(receipt.done for receipt in receipts)
        with pytest.raises(Closed):
            await log.append_one(b"too late")

    run(work())


def test_a_second_close_waits_for_the_first(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        log = await aio.Log(path, fs=fs)
        await log.append([b"0"])
        fs.plan = gate
        gate.shut()
        closes = [asyncio.ensure_future(log.close()) for _ in range(2)]
        await asyncio.to_thread(gate.reached.wait, WAIT)
        assert not any(close.done() for close in closes)
        gate.open()
        await asyncio.gather(*closes)
        async with aio.Log(path, exclusive=True):  # the first has let go of it
            pass

    run(work())


def test_an_error_of_a_close(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())

    async def work() -> None:
        log = await aio.Log(path, fs=fs)
        await log.append([b"0"])
        fs.plan = on("sync", Fail(errno.EIO), path="*.seg")
        with pytest.raises(OutcomeUnknown):
            await log.close()
        await log.close()

    run(work())


def test_close_while_it_is_being_opened(path: Path) -> None:
    fs, opened = FaultyFileSystem(OsFileSystem()), threading.Event()

    def hold(_call: object) -> None:
        assert opened.wait(WAIT)

    async def work() -> None:
        fs.plan = hold
        log = aio.Log(path, fs=fs)
        opening, late = asyncio.ensure_future(log.open()), asyncio.ensure_future(log.open())
        await until(lambda: bool(fs.calls))
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        opened.set()
        await closing
        await opening  # it was faster, and is told so
        with pytest.raises(Closed):
            await late
        with pytest.raises(Closed):
            await log.append([b"0"])

    run(work())


def test_a_log_that_is_dropped_goes(path: Path) -> None:
    async def work() -> None:
        log = await aio.Log(path, flush="async")
        await log.append([b"0"])
        with pytest.raises(ValueError, match="at least one"):
            await log.append([])
        forgotten = [weakref.ref(log)]
        log = await aio.Log(path.with_name("other"))  # nothing was asked of it yet
        forgotten.append(weakref.ref(log))
        del log
        await asyncio.sleep(0.01)
        gc.collect()
        assert [reference() for reference in forgotten] == [None, None]
        await until(lambda: not our_threads())
        async with aio.Log(path) as log:
            assert await values(log.read()) == [b"0"]

    run(work())


def test_the_threads_of_a_log(path: Path) -> None:
    async def work() -> None:
        log = aio.Log(path)
        assert not our_threads()
        await log.open()
        assert our_threads() == [f"tailrace-aio {path}"]
        await asyncio.gather(*(log.append([b"0"]) for _ in range(100)))
        assert our_threads() == [f"tailrace-aio {path}"]
        await (await log.append([b"0"]))
        assert len(our_threads()) == 2  # and one that flushes
        await log.close()
        await until(lambda: not our_threads())
        with pytest.raises(FileNotFoundError):
            await aio.Log(path / "nothing", read_only=True)
        await until(lambda: not our_threads())

    run(work())


# --- append -------------------------------------------------------------------------------


def test_a_task_appends(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            receipt = await log.append([b"0", ("k", b"1"), "2"])
            assert (receipt.offset, receipt.end_offset, receipt.count) == (0, 3, 3)
            assert pending(receipt)
            assert await receipt is receipt
            assert receipt.done
            receipt = await log.append_one(b"3", "key", {"a": b"b"}, 1_234)
            await receipt
            records = [record async for record in log.read()]
            assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]
            assert records[1].key == b"k"
            assert (records[3].key, records[3].timestamp) == (b"key", 1_234)
            assert dict(records[3].headers or {}) == {"a": b"b"}
            assert await log.durable_offset() == 4

    run(work())


def test_1000_appends_keep_the_order_of_their_calls(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", segment_bytes=5_000) as log:
            receipts = await asyncio.gather(*(log.append([b"%d" % n]) for n in range(1_000)))
            assert [receipt.offset for receipt in receipts] == [*range(1_000)]
            assert await values(log.read()) == [b"%d" % n for n in range(1_000)]

    run(work(), debug=False)


def test_each_of_many_tasks_keeps_its_order(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            verbs = [log.append_one, lambda value: log.append([value])]

            async def append(task: int) -> None:
                for number in range(50):
                    await verbs[number % 2](b"%d %d" % (task, number))

            await asyncio.gather(*(append(task) for task in range(20)))
            found: dict[int, list[int]] = {}
            async for record in log.read():
                task, number = map(int, (record.value or b"").split())
                found.setdefault(task, []).append(number)
            assert found == {task: [*range(50)] for task in range(20)}

    run(work(), debug=False)


def test_append_many(path: Path) -> None:
    """What it is given is taken in a thread, so that it may take its time."""
    me = threading.get_ident()

    def numbers() -> Any:
        for number in range(5_000):
            assert threading.get_ident() != me
            yield b"%d" % number

    async def work() -> None:
        async with aio.Log(path, max_batch_bytes=1_000) as log:
            many, one = await asyncio.gather(log.append_many(numbers()), log.append_one(b"one"))
            assert (many.offset, many.count, one.offset) == (0, 5_000, 5_000)
            await many
            assert await values(log.read(0, 5_000)) == [b"%d" % n for n in range(5_000)]
            assert len([batch async for batch in log.read_batches()]) > 10

            def breaks() -> Any:
                yield from [b"x" * 900] * 3
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as caught:
                await log.append_many(breaks())
            assert caught.value.__notes__ == ["the 2 records before were appended"]
            assert await log.end_offset() == 5_003

    run(work(), debug=False)


def test_append_arrow(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")

    async def work() -> None:
        async with aio.Log(path) as log:
            table = pa.table({"value": [b"0", b"1"], "key": ["a", "b"]})
            receipt = await log.append_arrow(table)
            await receipt
            assert (receipt.offset, receipt.count) == (0, 2)
            batches = [batch async for batch in log.read_arrow(columns=["key", "value"])]
            assert pa.Table.from_batches(batches).to_pydict() == {
                "key": [b"a", b"b"],
                "value": [b"0", b"1"],
            }

    run(work())


def test_a_producer_that_repeats_itself(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:

            async def append(sequence: int) -> tuple[int, int]:
                receipt = await log.append([b"%d" % sequence], producer="p", sequence=sequence)
                return receipt.offset, receipt.count

            asked = [0, 1, 0, 1, 2, 2, 0]
            found = await asyncio.gather(*map(append, asked))
            assert found == [(sequence, 1) for sequence in asked]
            receipt = await log.append_one(b"2", producer="p", sequence=2)
            assert (await receipt).offset == 2
        async with aio.Log(path) as log:
            assert await append(1) == (1, 1)
            assert await values(log.read()) == [b"0", b"1", b"2"]

    run(work())


def test_something_slow_does_not_hold_up_what_was_done_before_it(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        async with aio.Log(path, fs=fs) as log:
            fs.plan = gate
            gate.shut()
            appends = [asyncio.ensure_future(log.append_one(b"0")) for _ in range(3)]
            flush = asyncio.ensure_future(log.flush())
            late = asyncio.ensure_future(log.append_one(b"0"))
            await asyncio.gather(*appends)
            await asyncio.to_thread(gate.reached.wait, WAIT)
            assert not flush.done()
            assert not late.done()
            gate.open()
            await flush
            assert (await late).offset == 3

    run(work())


# --- receipts -----------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_receipts(path: Path, flush: str) -> None:
    async def work() -> None:
        async with aio.Log(path, flush=flush, upkeep=False) as log:
            assert log.flush_mode == flush
            receipts = [await log.append([b"%d" % n]) for n in range(3)]
            assert [receipt.done for receipt in receipts] == [flush != "sync"] * 3
            assert await log.durable_offset() == 0
            await receipts[1]
            assert await log.durable_offset() == (3 if flush == "sync" else 0)
            await log.flush()
            assert await log.durable_offset() == 3
            assert await asyncio.gather(*map(wait, receipts)) == receipts

    run(work())


def test_tasks_that_append_and_await_share_flushes(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())

    async def work() -> None:
        async with aio.Log(path, fs=fs) as log:

            async def append() -> None:
                for _ in range(5):
                    await (await log.append([b"x"]))

            before = segment_syncs(fs)
            await asyncio.gather(*(append() for _ in range(50)))
            assert segment_syncs(fs) - before <= 60  # one each would be 250
            assert await log.durable_offset() == 250

    run(work())


def test_a_failed_flush_reaches_those_who_wait_for_it() -> None:
    fs = FaultyFileSystem(SimulatedDisk())

    async def work() -> None:
        log = await aio.Log("log", fs=fs)
        durable = await log.append([b"0"])
        await durable
        receipts = await asyncio.gather(*(log.append([b"%d" % n]) for n in (1, 2, 3)))
        fs.plan = on("sync", Fail(errno.EIO), path="*.seg")
        found = await asyncio.gather(*map(wait, receipts), return_exceptions=True)
        assert [type(error) for error in found] == [OutcomeUnknown] * 3
        assert await durable is durable
        for again in (wait(receipts[0]), log.flush()):
            with pytest.raises(OutcomeUnknown):
                await again
        with pytest.raises(NotWritten, match="reopen"):
            await log.append([b"4"])
        await log.close()
        async with aio.Log("log", fs=fs) as log:
            assert (await values(log.read()))[0] == b"0"
            await (await log.append([b"5"]))

    run(work())


def test_a_full_disk(path: Path) -> None:
    fs = FaultyFileSystem(SimulatedDisk())

    async def work() -> None:
        async with aio.Log("log", fs=fs) as log:
            await log.append([b"0"])
            fs.plan = on("pwrite", Fail(errno.ENOSPC), path="*.seg")
            appends = [log.append_one(b"1"), log.append_one(b"2")]
            found = await asyncio.gather(*appends, return_exceptions=True)
            assert isinstance(found[0], NotWritten)
            assert isinstance(found[1], Receipt)
            await log.flush()
            assert await values(log.read()) == [b"0", b"2"]

    run(work())


# --- upkeep -------------------------------------------------------------------------------


def test_truncation_and_vacuum(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, segment_bytes=400, upkeep=False) as log:
            for number in range(50):
                await log.append_one(b"%010d" % number)
            await log.truncate_before(30)
            assert await log.start_offset() == 30
            report = await log.vacuum()
            assert report.segments > 0
            assert report.start_offset == 30
            assert await offsets(log.read()) == [*range(30, 50)]

    run(work())


# --- loops and processes ------------------------------------------------------------------


def test_two_loops_share_a_log(path: Path) -> None:
    log = aio.Log(path, segment_bytes=5_000)
    run(wait(log))

    def work(thread: int) -> None:
        async def append(task: int) -> None:
            for number in range(20):
                await (await log.append([b"%d %d %d" % (thread, task, number)]))

        async def tasks() -> None:
            await log.open()
            reading = asyncio.ensure_future(values(log.read(0, 200, follow=True)))
            await asyncio.gather(*(append(task) for task in range(5)))
            found = await reading
            mine = [value for value in found if value and value.startswith(b"%d " % thread)]
            assert len(set(mine)) == 100

        run(tasks())

    in_threads(2, work)
    run(log.close())


def test_loops_that_open_and_close_it_at_any_time(path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for number in range(30):
        log = aio.Log(path, flush="async", upkeep=False)
        random.seed(seed + number)
        delays = [random.random() * 0.004 for _ in range(3)]

        def work(
            thread: int, log: aio.Log = log, delays: list[float] = delays, number: int = number
        ) -> None:
            async def tasks() -> None:
                await asyncio.sleep(delays[thread])
                if thread == 2:
                    await log.close()
                    return
                try:
                    await log.open()
                    while True:
                        await log.append([b"%d %d" % (number, thread)])
                        await log.end_offset()
                except Closed:
                    return

            run(tasks(), debug=False)

        in_threads(3, work)


def test_a_loop_that_is_closed_while_jobs_are_pending(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    log = aio.Log(path, fs=fs)

    async def give_up() -> None:
        await log.open()
        await log.append([b"0"])
        fs.plan = gate
        gate.shut()
        flush = asyncio.ensure_future(log.flush())
        jobs = [asyncio.ensure_future(log.append([b"%d" % n])) for n in (1, 2)]
        await asyncio.to_thread(gate.reached.wait, WAIT)
        assert not any(job.done() for job in [flush, *jobs])
        # The loop ends here, and cancels them.

    async def go_on() -> None:
        await log.append([b"3"])
        await log.close()

    run(give_up())
    gate.open()
    run(go_on())
    with Log(path) as blocking:
        assert values_of(blocking.read()) == [b"0", b"3"]  # what had not begun was not done


def test_a_loop_that_goes_without_a_word(path: Path) -> None:
    """It is closed, and its tasks were not even cancelled."""
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    log = aio.Log(path, fs=fs)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(log.open())
    loop.run_until_complete(log.append([b"0"]))
    fs.plan = gate
    gate.shut()
    tasks = [loop.create_task(work) for work in (log.flush(), log.append([b"1"]))]
    loop.run_until_complete(asyncio.sleep(0))
    assert gate.reached.wait(WAIT)
    loop.close()
    gate.open()

    async def go_on() -> None:
        await log.append([b"2"])
        await log.close()

    run(go_on())
    with Log(path) as blocking:
        assert values_of(blocking.read()) == [b"0", b"1", b"2"]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()


def test_a_process_that_ends_without_a_close(path: Path) -> None:
    code = """
import asyncio, sys, tailrace
async def work():
    global log
    log = await tailrace.aio.Log(sys.argv[1])
    await (await log.append([b"0"]))
    async for record in log.read(follow=True):
        print(1)
        break
asyncio.run(work())
"""
    assert run_python(code, path) == 1
    with Log(path) as log:
        assert values_of(log.read()) == [b"0"]


def test_a_forked_child_goes_on_with_it(path: Path) -> None:
    """Its parent's jobs are not its own, and it has a thread of its own."""
    code = """
import asyncio, json, os, sys, threading, time, warnings
import tailrace
from tailrace.testing import FaultyFileSystem
from tailrace.log.fs import OsFileSystem

warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks
fs, go_on = FaultyFileSystem(OsFileSystem()), threading.Event()
log = tailrace.aio.Log(sys.argv[1], fs=fs)

async def append(value):
    await (await log.append([value]))

async def parent():
    await log.open()
    await append(b"0")
    parent_pid = os.getpid()
    def hold(call):
        if os.getpid() == parent_pid and call.op == "pwrite" and call.path.endswith(".seg"):
            go_on.wait(30)
    fs.plan = hold
    tasks = [asyncio.ensure_future(append(b"parent")) for _ in range(3)]
    await asyncio.sleep(0.05)  # the first is being done, the others wait
    child = os.fork()
    if not child:
        os._exit(in_child())
    go_on.set()
    await asyncio.gather(*tasks)
    status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status[1]) == 0
    await append(b"1")
    values = [record.value.decode() async for record in log.read()]
    await log.close()
    print(json.dumps(values))

def in_child():
    async def work():
        await append(b"child")
        await log.close()
    try:
        threading.Thread(target=asyncio.run, args=(work(),)).start()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(30)
        return 0
    except BaseException:
        import traceback
        traceback.print_exc()
        return 1

asyncio.run(parent())
"""
    found = run_python(code, path)
    assert sorted(found) == sorted(["0", "parent", "parent", "parent", "child", "1"])
    assert (found[0], found[-1]) == ("0", "1")


def test_two_logs_of_one_process(path: Path) -> None:
    """They are as of two."""

    async def work() -> None:
        async with aio.Log(path) as one, aio.Log(path) as two:

            async def append(log: aio.Log, name: bytes) -> None:
                for number in range(100):
                    await log.append([b"%s%d" % (name, number)])

            await asyncio.gather(append(one, b"a"), append(two, b"b"))
            await one.flush()
            found = await values(two.read())
            for name in (b"a", b"b"):
                mine = [value for value in found if value and value.startswith(name)]
                assert mine == [b"%s%d" % (name, number) for number in range(100)]

    run(work())


def test_the_worker_is_gone_when_the_loop_is(path: Path) -> None:
    async def work() -> None:
        log = await aio.Log(path)
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        closing.cancel()

    run(work())
    eventually(lambda: not our_threads())
    with Log(path, exclusive=True):
        pass
