"""`async for`: everything comes out once and in order, also when tasks are cancelled or closed."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Corrupt, Log, OffsetOutOfRange, Record, aio
from tailrace.aio.reading import Reading
from tailrace.log.fs import OsFileSystem
from tailrace.testing import FaultyFileSystem
from tests.aio.support import collect, offsets, run, steps, take, until
from tests.log.following import OtherProcess, Ping
from tests.log.helpers import WAIT, Gate, at, bases, fill, flip, require, segment
from tests.log.watching import by_looking, either_way, inotify_fds, kernel_watches

__all__ = ["by_looking", "either_way"]

FLUSH = ["sync", "async", "none"]


@pytest.fixture
def filled(path: Path) -> Path:
    """A log of 2,000 records in many segments."""
    with Log(path, segment_bytes=5_000, flush="async") as log:
        fill(log, 2_000)
    return path


async def is_waiting(reading: Reading[Any]) -> None:
    """Return when a task waits for more."""
    await until(lambda: reading._tailing is not None and bool(reading._tailing.watch._ear.sleepers))


async def collect_into(found: list[int], reading: Reading[Record]) -> None:
    async for record in reading:
        found.append(require(record.offset))  # noqa: PERF401 (an error must not take it along)


# --- what there is ------------------------------------------------------------------------


def test_records_batches_and_arrow(filled: Path) -> None:
    pa = pytest.importorskip("pyarrow")

    async def work() -> None:
        with Log(filled, read_only=True) as blocking:
            async with aio.Log(filled, read_only=True) as log:
                assert await collect(log.read()) == list(blocking.read())
                assert await collect(log.read_batches()) == list(blocking.read_batches())
                ours = pa.Table.from_batches(await collect(log.read_arrow()))
                assert ours == pa.Table.from_batches(blocking.read_arrow())
                assert await offsets(log.read(700, 1_500)) == [*range(700, 1_500)]
                batches = await collect(log.read_batches(1_990))
                assert [batch.base_offset for batch in batches] == [*range(1_990, 2_000)]
                columns = await collect(log.read_arrow(1_998, columns=["offset"]))
                assert [batch.to_pydict() for batch in columns] == [{"offset": [1_998, 1_999]}]

    run(work())


def test_where_to_begin(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            await (await log.append([at(1_000 * n) for n in range(10)]))
            assert await offsets(log.read("first")) == [*range(10)]
            assert await offsets(log.read("last")) == [9]
            assert await offsets(log.read("next")) == []
            assert await offsets(log.read(7)) == [7, 8, 9]
            assert await offsets(log.read(10)) == []
            assert await offsets(log.read(timestamp=6_500)) == [7, 8, 9]
            assert await log.offset_at(6_500) == 7
            assert len(await collect(log.read_batches(timestamp=6_500))) == 1
            assert await offsets(log.read(3, 5, follow=True)) == [3, 4]
            assert await offsets(log.read("last", follow=True, timeout=0)) == [9]
            assert await offsets(log.read(timestamp=8_500, follow=True, timeout=0)) == [9]

    run(work())


def test_an_empty_log(path: Path) -> None:
    pytest.importorskip("pyarrow")

    async def work() -> None:
        async with aio.Log(path) as log:
            for reading in (log.read(), log.read("last"), log.read_batches(), log.read_arrow()):
                assert await collect(reading) == []
            reading = log.read(follow=True)
            task = asyncio.ensure_future(take(2, reading))
            await is_waiting(reading)
            await (await log.append([b"0", b"1"]))
            assert [record.offset for record in await task] == [0, 1]
            reading.close()

    run(work())


def test_a_reading_ends_where_the_log_ended_when_it_began(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            await log.append([b"0"] * 100)
            early, late = log.read(), log.read()
            async with early:
                await log.append([b"1"] * 100)
                assert len(await collect(early)) == 100
            assert len(await collect(late)) == 200
            following = log.read("next", follow=True)
            async with following:  # it knows by now what the next one is
                await log.append([b"2"])
                assert (await anext(following)).offset == 200

    run(work())


def test_it_may_be_entered_when_it_has_begun(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            await log.append([b"0"] * 5)
            reading = log.read()
            assert (await anext(reading)).offset == 0
            async with reading as same:
                assert same is reading
                assert await offsets(reading) == [1, 2, 3, 4]
            async with reading:
                assert await offsets(reading) == []

    run(work())


@pytest.mark.parametrize("size", [1, 15, 16, 17, 32, 48, 1_024 + 512 + 256 + 128 + 64 + 32 + 16])
def test_as_many_as_are_read_at_a_time(path: Path, size: int) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            await log.append([b"0"] * size)
            assert await offsets(log.read()) == [*range(size)]
            assert await offsets(log.read(follow=True, timeout=0)) == [*range(size)]
            assert await offsets(log.read(0, size, follow=True)) == [*range(size)]

    run(work())


def test_no_more_is_read_ahead_than_fits_into_memory(path: Path) -> None:
    """Records of one megabyte, of which the log has many."""
    pytest.importorskip("pyarrow")

    async def work() -> None:
        async with aio.Log(path, flush="none") as log:
            for _ in range(20):
                await log.append_one(b"x" * (1 << 20))
            readings: list[Reading[Any]] = [log.read(), log.read_batches()]
            for reading in [*readings, log.read(follow=True, timeout=0)]:
                async for _item in reading:
                    assert not reading._portion.items

    run(work(), debug=False)


def test_two_readings_at_once(filled: Path) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            one, two = log.read(), log.read(1_000)
            for number in range(500):
                assert (await anext(one)).offset == number
                assert (await anext(two)).offset == 1_000 + number
            rest = tuple(await asyncio.gather(offsets(one), offsets(two)))
            assert rest == ([*range(500, 2_000)], [*range(1_500, 2_000)])

    run(work())


@pytest.mark.parametrize("follow", [False, True])
def test_tasks_that_share_a_reading(path: Path, follow: bool) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", segment_bytes=2_000) as log:
            await log.append_many([b"%d" % n for n in range(1_000)])
            reading = log.read(follow=follow)
            found: list[int] = []

            async def share(every: int) -> None:
                async for record in reading:
                    found.append(require(record.offset))
                    await steps(every)

            tasks = [asyncio.ensure_future(share(number)) for number in range(5)]
            if follow:
                for number in range(1_000, 1_200):
                    await log.append_one(b"%d" % number)
                await until(lambda: len(found) >= 1_200)
                reading.close()
            await asyncio.gather(*tasks)
            assert sorted(found) == [*range(1_200 if follow else 1_000)]

    run(work(), debug=False)


# --- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
def test_an_offset_that_is_not_there(path: Path, follow: bool) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            await (await log.append([b"0"] * 5))
            await log.truncate_before(2)
            for offset in (1, 6):
                reading = log.read(offset, follow=follow)
                with pytest.raises(OffsetOutOfRange) as caught:
                    await anext(reading)
                assert (caught.value.offset, caught.value.low) == (offset, 2)
                assert await offsets(reading) == []  # that was the end

    run(work())


@pytest.mark.parametrize("follow", [False, True])
def test_damage_comes_out_behind_what_is_whole(filled: Path, follow: bool) -> None:
    async def work() -> None:
        base = bases(filled)[5]
        flip(segment(filled, base), 2_000)
        async with aio.Log(filled, read_only=True) as log:
            reading = log.read(follow=follow)
            seen: list[int] = []
            with pytest.raises(Corrupt) as caught:
                await collect_into(seen, reading)
            assert seen == [*range(len(seen))]
            assert base < len(seen) == caught.value.first_offset
            assert await offsets(reading) == []
            after = require(caught.value.next_offset)
            rest = log.read(after, 2_000, follow=follow)
            assert await offsets(rest) == [*range(after, 2_000)]

    run(work())


def test_what_it_was_to_read_was_deleted(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, segment_bytes=2_000, flush="async", upkeep=False) as log:
            await log.append_many([b"%d" % n for n in range(10)])
            for number in range(1_000):
                await log.append_one(b"%d" % number)
            reading = log.read()
            assert (await anext(reading)).offset == 0
            await log.truncate_before(900)
            await log.vacuum()
            with pytest.raises(OffsetOutOfRange) as caught:
                await collect(reading)
            assert caught.value.low == 900

    run(work(), debug=False)


# --- following ----------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("flush", FLUSH)
def test_what_another_process_and_this_one_append(path: Path, flush: str) -> None:
    async def work() -> None:
        options = {"flush": flush, "segment_bytes": 400}
        with OtherProcess(path, **options) as other:
            async with aio.Log(path, flush=flush) as log, aio.Log(path, read_only=True) as reader:
                readings = [log.read(follow=True), reader.read(follow=True)]
                end = 0
                for number in range(6):
                    if number % 2:
                        receipt = await (await log.append([b"0"] * 3))
                        expected = [*range(end, receipt.end_offset)]
                    else:
                        expected = [*range(end, await asyncio.to_thread(other.append, 10))]
                    end += len(expected)
                    for reading in readings:
                        found = await take(len(expected), reading)
                        assert [record.offset for record in found] == expected
                    await steps(number)

    run(work())


@pytest.mark.no_cover
@pytest.mark.parametrize("flush", FLUSH)
def test_a_writer_that_comes_and_goes(path: Path, flush: str) -> None:
    async def work() -> None:
        Log(path, flush=flush).close()
        async with aio.Log(path, read_only=True) as log:
            reading = log.read(follow=True)
            for life in range(4):
                task = asyncio.ensure_future(take(5, reading))
                if life:
                    await is_waiting(reading)
                other = await asyncio.to_thread(OtherProcess, path)
                with other:
                    await asyncio.to_thread(other.append, 5)
                    found = [record.offset for record in await task]
                    assert found == [*range(5 * life, 5 * life + 5)]
                    if life % 2:
                        other.kill()

    run(work())


@pytest.mark.parametrize("flush", FLUSH)
def test_a_folder_where_a_log_is_made_later(path: Path, flush: str) -> None:
    """Also by tasks of which one waits while another looks."""

    async def work() -> None:
        path.mkdir()
        async with aio.Log(path, read_only=True) as reader:
            reading = reader.read(0, 20, follow=True)
            tasks = [asyncio.ensure_future(offsets(reading)) for _ in range(3)]
            await is_waiting(reading)
            async with aio.Log(path, flush=flush) as log:
                for _ in range(20):
                    await (await log.append_one(b"0"))
                found = await asyncio.gather(*tasks)
            assert sorted(require(offset) for each in found for offset in each) == [*range(20)]

    run(work())


@pytest.mark.no_cover
@pytest.mark.parametrize("flush", FLUSH)
def test_ping_pong_with_another_process(path: Path, flush: str) -> None:
    async def work() -> None:
        Log(path, flush=flush).close()
        with Ping(path, 1_000, segment_bytes=5_000) as ping:
            async with aio.Log(path, read_only=True) as log, log.read(follow=True) as reading:
                for number in range(1_000):
                    assert (await anext(reading)).value == b"%d" % number
                    ping.confirm()

    run(work(), debug=False)


def test_a_log_of_sync_shows_what_is_durable(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        async with aio.Log(path, fs=fs) as log:
            reading = log.read(follow=True)
            task = asyncio.ensure_future(take(1, reading))
            await is_waiting(reading)
            fs.plan = gate
            gate.shut()
            receipt = await log.append([b"0"])
            flush = asyncio.ensure_future(log.flush())
            await asyncio.to_thread(gate.reached.wait, WAIT)
            assert await offsets(log.read(follow=True, timeout=0.05)) == []
            assert not task.done()
            gate.open()
            await flush
            assert receipt.done
            assert (await task)[0].value == b"0"

    run(work())


def test_truncation_behind_it(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", segment_bytes=400, upkeep=False) as log:
            reading = log.read(follow=True)
            for start in range(0, 200, 50):
                for number in range(start, start + 50):
                    await log.append_one(b"%010d" % number)
                found = [record.offset for record in await take(50, reading)]
                assert found == [*range(start, start + 50)]
                await log.truncate_before(start + 50)
                await log.vacuum()

    run(work(), debug=False)


def is_at(reading: Reading[Record], position: int) -> bool:
    return reading._tailing is not None and reading._tailing.position == position


def test_100_followers_of_10_logs_in_one_loop(tmp_path: Path) -> None:
    async def work() -> None:
        logs = [aio.Log(tmp_path / f"log{n}", flush="async", upkeep=False) for n in range(10)]
        await asyncio.gather(*(log.open() for log in logs))
        readings = [log.read(follow=True) for log in logs for _ in range(10)]
        tasks = [asyncio.ensure_future(offsets(reading)) for reading in readings]
        for _ in range(20):
            await asyncio.gather(*(log.append_one(b"x") for log in logs))
        await asyncio.gather(*map(is_waiting, readings))
        await asyncio.gather(*(log.append_one(b"x") for log in logs))
        for reading in readings:
            await until(partial(is_at, reading, 21))
        assert len(inotify_fds()) == 1
        assert kernel_watches() == len(logs)
        await until(lambda: not any(reading._portion.items for reading in readings))
        await asyncio.gather(*(log.close() for log in logs))
        assert await asyncio.gather(*tasks) == [[*range(21)]] * 100

    run(work(), debug=False)


# --- how it ends --------------------------------------------------------------------------


def test_an_end(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            reading = log.read(0, 25, follow=True)
            task = asyncio.ensure_future(offsets(reading))
            await is_waiting(reading)
            for _ in range(3):
                await (await log.append([b"0"] * 10))
            assert await task == [*range(25)]
            assert kernel_watches() == 0

    run(work())


@pytest.mark.usefixtures("either_way")
def test_a_timeout(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", upkeep=False) as log:
            await log.append([b"0"] * 3)
            assert await offsets(log.read(follow=True, timeout=0)) == [0, 1, 2]
            assert await offsets(log.read(follow=True, timeout=-1)) == [0, 1, 2]
            began = time.monotonic()
            assert await offsets(log.read("last", follow=True, timeout=0.2)) == [2]
            assert time.monotonic() - began >= 0.2
            task = asyncio.ensure_future(offsets(log.read("next", follow=True, timeout=1.0)))
            for _ in range(5):
                await asyncio.sleep(0.4)  # more in all than the time that nothing may come
                await log.append([b"0"])
            assert await task == [*range(3, 8)]

    run(work())


def test_a_timeout_is_about_records(path: Path) -> None:
    """Not about whatever else happens in the folder; and whoever is cancelled and asks again does
    not begin to wait anew."""

    async def work() -> None:
        async with aio.Log(path, flush="async", upkeep=False) as log:
            await log.append([b"0"])
            reading = log.read(follow=True, timeout=0.4)
            assert (await anext(reading)).offset == 0
            rounds = 0
            while True:
                (path / "noise").write_bytes(b"%d" % rounds)
                try:
                    await asyncio.wait_for(anext(reading), 0.02)
                except TimeoutError:
                    rounds += 1
                except StopAsyncIteration:
                    break
            assert rounds > 1

    run(work())


def test_whoever_comes_back_late_still_gets_what_has_come(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", upkeep=False) as log:
            reading = log.read(follow=True, timeout=0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reading), 0.01)
            await log.append([b"0"])
            await asyncio.sleep(0.1)
            assert await offsets(reading) == [0]

    run(work())


@pytest.mark.parametrize("follow", [False, True])
def test_breaking_out_of_the_loop(filled: Path, follow: bool) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            reading = log.read(follow=follow)
            async for record in reading:
                if record.offset == 100:
                    break
            assert (await anext(reading)).offset == 101  # it can be gone on with
            forgotten = weakref.ref(reading)
            del reading
            await until(lambda: forgotten() is None)  # a thread may still be about to let go
            await until(lambda: kernel_watches() == 0)
            async for record in log.read(follow=follow):
                assert record.offset == 0
                break

    run(work())


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("how", ["close", "aclose", "async with"])
def test_closing_it(filled: Path, follow: bool, how: str) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True, open_files=1) as log:
            reading = log.read(follow=follow)
            if how == "async with":
                async with reading:
                    assert len(await take(100, reading)) == 100
            else:
                assert len(await take(100, reading)) == 100
                if how == "aclose":
                    await reading.aclose()
                reading.close()
            assert await offsets(reading) == []
            await reading.aclose()
            assert reading._source is None
            assert kernel_watches() == 0
            files = log._log._observer.catalog.files._open  # type: ignore[union-attr]
            assert not any(file.users for file in files.values())

    run(work())


@pytest.mark.parametrize("follow", [False, True])
def test_closing_what_has_not_begun(filled: Path, follow: bool) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            for number in range(3):
                reading = log.read(follow=follow)
                if number == 0:
                    reading.close()
                elif number == 1:
                    await reading.aclose()
                else:
                    async with reading:
                        pass
                assert await offsets(reading) == []
        assert kernel_watches() == 0

    run(work())


@pytest.mark.parametrize("how", ["reading", "log"])
def test_closing_while_a_task_waits(path: Path, how: str) -> None:
    async def work() -> None:
        log = await aio.Log(path)
        await (await log.append([b"0"] * 3))
        readings = [log.read(follow=True) for _ in range(3)]
        tasks = [asyncio.ensure_future(offsets(reading)) for reading in readings]
        await asyncio.gather(*map(is_waiting, readings))
        for reading in readings if how == "reading" else []:
            reading.close()
        if how == "log":
            await log.close()
        assert await asyncio.gather(*tasks) == [[0, 1, 2]] * 3
        await log.close()

    run(work())


def test_closing_from_another_thread(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            reading = log.read(follow=True)
            task = asyncio.ensure_future(offsets(reading))
            await is_waiting(reading)
            await asyncio.to_thread(reading.close)
            assert await task == []

    run(work())


@pytest.mark.parametrize("follow", [False, True])
def test_closing_while_a_thread_reads(path: Path, follow: bool) -> None:
    """The first look, in which there is nothing yet to be closed, or a later one."""
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, segment_bytes=400) as blocking:
        fill(blocking, 100)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with aio.Log(path, read_only=True, fs=fs) as log:
            for number in count():
                reading = log.read(follow=follow)
                left = number

                def close(_call: object, reading: Reading[Record] = reading) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        asyncio.run_coroutine_threadsafe(close_it(reading), loop).result(WAIT)

                async def close_it(reading: Reading[Record]) -> None:
                    reading.close()

                fs.plan = close
                seen = []
                async for record in reading:
                    seen.append(record.offset)
                    if len(seen) == 100:
                        break
                fs.plan = None
                assert seen == [*range(len(seen))]
                await reading.aclose()
                assert kernel_watches() == 0
                if left > 0:
                    break
            assert number > 5

    run(work())


def test_a_plain_reading_does_not_end_early_in_silence(filled: Path) -> None:
    """If the log is closed before everything was read, that is an error."""

    async def work() -> None:
        log = await aio.Log(filled, read_only=True)
        begun, not_begun = log.read(), log.read()
        assert (await anext(begun)).offset == 0
        await log.close()
        with pytest.raises(Closed):
            await collect(begun)
        with pytest.raises(Closed):
            await collect(not_begun)
        with pytest.raises(Closed):
            log.read()

    run(work())


def test_the_log_is_closed_at_any_time(path: Path) -> None:
    """Whatever a follower is about to do, it comes to its end, without an error."""

    async def work() -> None:
        for number in range(60):
            flush = FLUSH[number % 3]
            log = await aio.Log(path.with_name(f"log {flush}"), flush=flush, segment_bytes=2_000)
            tasks = [asyncio.ensure_future(offsets(log.read(follow=True))) for _ in range(3)]
            appends = [asyncio.ensure_future(log.append_one(b"0")) for _ in range(50)]
            await asyncio.sleep(0.000_5 * (number % 20))
            await log.close()
            await asyncio.gather(*appends)
            for found in await asyncio.gather(*tasks):
                assert found == [*range(len(found))]

    run(work(), debug=False)


def test_a_loop_that_ends_with_tasks_that_follow(path: Path) -> None:
    log = aio.Log(path)
    kept = []

    async def follow() -> None:
        await log.open()
        await (await log.append([b"0"]))
        for _ in range(3):
            reading = log.read(follow=True)
            kept.append((reading, asyncio.ensure_future(offsets(reading))))
        for reading, _task in kept:
            await is_waiting(reading)

    async def go_on() -> None:
        await (await log.append([b"1"]))
        for reading, task in kept:
            assert task.cancelled()
            assert (await anext(reading)).offset == 1  # in another loop, where it was
        await log.close()

    run(follow())
    run(go_on())


# --- cancellation -------------------------------------------------------------------------


async def impatiently(reading: AsyncIterator[Record], most: int) -> list[int]:
    """Read to the end, by tasks that are cancelled after 0, 1, 2, … rounds of the loop."""
    found: list[int] = []
    for number in count():
        task = asyncio.ensure_future(anext(reading))
        await steps(number % most)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            continue
        if isinstance(task.exception(), StopAsyncIteration):
            return found
        found.append(require(task.result().offset))
    raise AssertionError


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("most", [3, 10, 50])
def test_no_record_is_lost_or_repeated_by_cancellation(
    filled: Path, follow: bool, most: int
) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            reading = log.read(0, 500, follow=follow)
            assert await impatiently(reading, most) == [*range(500)]

    run(work(), debug=False)


def test_no_record_that_comes_meanwhile_is_lost_or_repeated(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async", segment_bytes=2_000) as log:

            async def append() -> None:
                for number in range(500):
                    await log.append_one(b"%d" % number)
                    await steps(number % 5)

            reading = log.read(0, 500, follow=True)
            found, _ = await asyncio.gather(impatiently(reading, 12), append())
            assert found == [*range(500)]

    run(work(), debug=False)


def test_timeouts_around_the_next_record(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path, flush="async") as log:
            reading = log.read(follow=True)
            found: list[int] = []
            for number in range(30):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(reading), 0.001 * (number % 4))
                if number % 3:
                    await log.append([b"0"] * (number % 3))
                found.extend(require(record.offset) for record in await take(number % 3, reading))
            assert found == [*range(30)]

    run(work())


def test_an_error_that_came_after_a_cancellation_is_not_lost(filled: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()

    async def work() -> None:
        async with aio.Log(filled, read_only=True, fs=fs) as log:

            def hold(call: Any) -> None:
                if call.op == "pread":
                    gate.reached.set()
                    assert gate.opened.wait(WAIT)

            reading = log.read(5_000)
            fs.plan = hold
            task = asyncio.ensure_future(anext(reading))
            await asyncio.to_thread(gate.reached.wait, WAIT)
            task.cancel()
            await asyncio.wait([task])
            gate.open()
            fs.plan = None
            with pytest.raises(OffsetOutOfRange):
                await anext(reading)

    run(work())


@pytest.mark.no_cover
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("verb", ["__aenter__", "aclose", "__anext__"])
def test_cancelled_at_every_step(filled: Path, follow: bool, verb: str) -> None:
    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            for number in range(40):
                reading = log.read(follow=follow)
                if verb == "aclose":
                    await take(20, reading)
                task = asyncio.ensure_future(getattr(reading, verb)())
                await steps(number)
                task.cancel()
                await asyncio.wait([task])
                await reading.aclose()
                assert reading._source is None
                assert await offsets(reading) == []
                assert kernel_watches() == 0
            assert await offsets(log.read(1_990)) == [*range(1_990, 2_000)]

    run(work())


def test_an_async_with_that_is_cancelled_leaves_nothing(filled: Path) -> None:
    """Nobody leaves what he has not entered, so it closes itself."""

    async def work() -> None:
        async with aio.Log(filled, read_only=True) as log:
            for number in range(30):
                reading = log.read(follow=True)

                async def enter(reading: Reading[Record] = reading) -> None:
                    async with reading:
                        await asyncio.sleep(WAIT)

                task = asyncio.ensure_future(enter())
                await steps(number)
                task.cancel()
                await asyncio.wait([task])
                await until(lambda: kernel_watches() == 0)

    run(work())


def test_a_timeout_that_is_none(path: Path) -> None:
    async def work() -> None:
        async with aio.Log(path) as log:
            with pytest.raises(TypeError, match="timeout is a number of seconds"):
                log.read(follow=True, timeout="1")  # type: ignore[arg-type]

    run(work())
