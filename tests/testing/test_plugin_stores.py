"""What the pytest plugin stands on: a clock to turn, and places for stores where things fail."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tailrace
from tailrace import Full, NotWritten, OutcomeUnknown, Queue, Store
from tailrace.errors import ConfigError
from tailrace.log import follow
from tailrace.log.watch import Watch
from tailrace.testing import (
    Crash,
    Fail,
    FaultyStorePlace,
    LoseDirty,
    Machine,
    ManualClock,
    ShortWrite,
    SimulatedCrash,
    StorePlace,
)
from tailrace.testing.timekeeping import looking_often
from tests.log.helpers import WAIT


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Iterator[StorePlace]:
    with StorePlace(tmp_path / "data", clock) as place:
        yield place


@pytest.fixture
def faults(clock: ManualClock) -> Iterator[FaultyStorePlace]:
    with FaultyStorePlace("data", clock) as faults:
        yield faults


@pytest.fixture
def jobs(faults: FaultyStorePlace) -> Queue:
    queue = faults.open().queue("jobs")
    queue.publish(b"0")
    return queue


def publish(queue: Queue, count: int) -> list[bool]:
    """Which of so many publishes succeed."""
    found = []
    for _ in range(count):
        try:
            queue.publish(b"x")
        except NotWritten:
            found.append(False)
        else:
            found.append(True)
    return found


def received(store: Store) -> list[bytes | None]:
    return [message.value for message in store.queue("jobs").consumer("w").receive(100)]


# --- the clock ------------------------------------------------------------------------------------


def test_both_clocks_go_on_together(clock: ManualClock) -> None:
    boot_ms, wall_ms = clock.boot_ms(), clock.wall_ms()
    clock.advance(1.5)
    clock.advance("2m")
    assert clock.boot_ms() - boot_ms == clock.wall_ms() - wall_ms == 121_500
    with pytest.raises(ConfigError, match="advance: 'soon' is not a duration"):
        clock.advance("soon")


@pytest.mark.parametrize("seconds", [-5, -0.001])
def test_time_does_not_run_backwards(clock: ManualClock, seconds: float) -> None:
    """A wrong sign in a test does not pass for time that went by."""
    before = clock.boot_ms(), clock.wall_ms()
    with pytest.raises(ValueError, match="set_wall sets the time of day back"):
        clock.advance(seconds)
    assert (clock.boot_ms(), clock.wall_ms()) == before
    clock.advance(0)


def test_the_time_of_day_is_set(clock: ManualClock) -> None:
    boot_ms = clock.boot_ms()
    when = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    clock.set_wall(when)
    assert clock.now() == when
    assert clock.wall_ms() == when.timestamp() * 1000
    clock.set_wall(when.astimezone(timezone(timedelta(hours=-3))) - timedelta(days=1))
    assert clock.now() == when - timedelta(days=1)
    clock.set_wall(0)
    assert clock.now().year == 1970
    assert clock.boot_ms() == boot_ms
    with pytest.raises(ValueError, match="has no time zone"):
        clock.set_wall(datetime(2030, 1, 1))  # noqa: DTZ001
    assert clock.wall_ms() == 0
    assert repr(clock) == "ManualClock(1970-01-01T00:00:00+00:00)"


def test_who_wants_to_know_is_told(clock: ManualClock) -> None:
    seen: list[int] = []
    clock.on_change = lambda: seen.append(clock.wall_ms())
    clock.advance(1)
    clock.set_wall(5)
    assert len(seen) == 2


# --- those who wait -------------------------------------------------------------------------------


def restless() -> Watch:
    with looking_often():
        watch: Watch = vars(follow)["Watch"]()
    return watch


def test_who_waits_looks_and_gives_up_in_time() -> None:
    watch = restless()
    began = time.monotonic()
    assert watch.wait(60)  # for nothing
    assert watch.wait(None)
    assert not watch.wait(0.001)
    assert time.monotonic() - began < WAIT
    watch.close()
    assert not watch.wait(60)
    assert vars(follow)["Watch"] is Watch


def test_tasks_do_too() -> None:
    async def main() -> None:
        watch = restless()
        assert await watch.wait_async(60)
        assert await watch.wait_async()
        assert not await watch.wait_async(0.001)
        watch.close()
        assert not await watch.wait_async(60)

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_machine_lets_a_consumer_wait() -> None:
    with Machine() as machine, machine.open() as store:
        queue = store.queue("q")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(queue.consumer("w").receive(1, WAIT)))
        thread.start()
        queue.publish(b"x")
        thread.join(WAIT)
        assert [message.value for message in found] == [b"x"]


# --- places ---------------------------------------------------------------------------------------


def test_what_is_left_open_is_closed(tmp_path: Path, clock: ManualClock) -> None:
    with StorePlace(tmp_path / "data", clock) as place:
        one, other = place.open(), place.open(flush="none")
        one.queue("q").publish(b"1")
        one.close()
        another = place.open_async()

        async def main() -> None:
            queue = await (await another).queue("q")
            await queue.publish(b"2")

        asyncio.run(main())
        place.open_async()  # which nobody opens
    for store in (one, other):
        with pytest.raises(tailrace.Closed):
            store.queue("q")
    with pytest.raises(tailrace.Closed):
        asyncio.run(another.queue("q"))
    with tailrace.open(tmp_path / "data") as store:
        assert len(store.queue("q")) == 2


def test_all_are_closed_though_one_cannot(tmp_path: Path, clock: ManualClock) -> None:
    place = StorePlace(tmp_path / "data", clock)
    stores = [place.open() for _ in range(3)]
    broken = mock.patch.object(stores[1], "close", side_effect=OSError(errno.EIO, "broken"))
    with broken, pytest.raises(OSError, match="broken"):
        place.close()
    assert [repr(store).endswith(", closed)") for store in stores] == [True, False, True]
    stores[1].close()


def test_the_clock_takes_along_whoever_goes_by_it(
    place: StorePlace, clock: ManualClock, tmp_path: Path
) -> None:
    with tailrace.open(tmp_path / "other", clock=clock) as other:
        stores = [place.open(), other]
        for store in stores:
            store.queue("jobs").publish(b"1", delay="1h")
        clock.advance("1h")
        assert [received(store) for store in stores] == [[b"1"], [b"1"]]
    place.close()
    with place.open() as store:
        store.queue("jobs").publish(b"2", delay="1h")
        clock.advance("1h")  # it is on its own again
        assert store.queue("jobs").delayed_count() == 1


# --- calls that fail ------------------------------------------------------------------------------


def test_the_next_fails(faults: FaultyStorePlace, jobs: Queue) -> None:
    faults.fail_next("write", "ENOSPC", path="*.seg")
    assert publish(jobs, 3) == [False, True, True]
    faults.fail_next(("write", "truncate"), errno.EDQUOT, path="*.seg", skip=1, times=2)
    assert publish(jobs, 5) == [True, False, False, True, True]
    assert [(call.op, os.path.splitext(call.path)[1]) for call in faults.hits] == [
        ("pwrite", ".seg")
    ] * 3
    assert len(jobs) == 1 + 5


def test_every_nth_fails_until_it_is_over(faults: FaultyStorePlace, jobs: Queue) -> None:
    faults.fail_every(3, "write", path="*.seg")
    assert publish(jobs, 6) == [True, True, False, True, True, False]
    faults.fail_next("write", times=None, path="*.seg")
    assert publish(jobs, 3) == [False, False, False]
    faults.stop_failing()
    assert publish(jobs, 3) == [True, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_a_failed_fsync(faults: FaultyStorePlace, jobs: Queue, seed: int) -> None:
    faults.fail_next("fsync")
    with pytest.raises(OutcomeUnknown):
        jobs.publish(b"1")
    with pytest.raises(tailrace.TailraceError):  # nobody can know what is on the disk
        jobs.publish(b"2")
    faults.power_cut(seed)
    found = received(faults.open())
    assert found in ([b"0"], [b"0", b"1"])


def test_an_error_as_an_exception(faults: FaultyStorePlace, jobs: Queue) -> None:
    faults.fail_next("write", OSError(errno.ENOSPC, "no space"), path="*.seg")
    assert publish(jobs, 2) == [False, True]
    faults.fail_next("fsync", OSError(errno.EIO, "io"))
    with pytest.raises(OutcomeUnknown):
        jobs.publish(b"1")
    with pytest.raises(tailrace.TailraceError):  # as if it had been said by its name
        jobs.publish(b"2")


@pytest.mark.parametrize("error", [ValueError("no"), OSError, None, 1.5, True, Crash])
def test_what_is_no_error_is_refused(faults: FaultyStorePlace, jobs: Queue, error: Any) -> None:
    """What never fails would make a test pass that tests nothing."""
    with pytest.raises(TypeError, match="expected an error such as 'EIO'"):
        faults.fail_next("fsync", error)
    with pytest.raises(TypeError, match="expected an error such as 'EIO'"):
        faults.fail_every(1, "fsync", error)
    assert publish(jobs, 1) == [True]


def test_faults_of_other_kinds(faults: FaultyStorePlace, jobs: Queue) -> None:
    faults.fail_next("sync", Fail(errno.EIO))  # which may be tried again, as on no Linux
    with pytest.raises(OutcomeUnknown):
        jobs.publish(b"1")
    faults.kill()
    assert received(faults.open())[0] == b"0"


def test_it_dies_in_the_middle(faults: FaultyStorePlace, jobs: Queue) -> None:
    faults.fail_next("fsync", Crash())
    for value in (b"1", b"2"):
        with pytest.raises(SimulatedCrash):
            jobs.publish(value)
    faults.kill()
    assert received(faults.open()) in ([b"0"], [b"0", b"1"])


def test_what_died_need_not_be_tidied_up(clock: ManualClock) -> None:
    with FaultyStorePlace("data", clock) as faults:
        queue = faults.open().queue("q")
        faults.fail_next("any", Crash())
        with pytest.raises(SimulatedCrash):
            queue.publish(b"1")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("scribble",), "'scribble' is not an operation; there are read, write, fsync, any, open"),
        ((["write", "scribble"],), "'scribble' is not an operation"),
        (("write", "EWRONG"), "'EWRONG' is not an error of the system"),
        (("write", -1), "-1 is not an error"),
        (("write", OSError("why")), r"OSError\('why'\) is not an error of the system"),
        (("fsync", ShortWrite()), "no fsync is one for a ShortWrite, only pwrite is"),
        (("write", LoseDirty()), "no write is one for a LoseDirty, only sync is"),
    ],
)
def test_wrong_wishes_are_refused(
    faults: FaultyStorePlace, jobs: Queue, arguments: tuple[Any, ...], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        faults.fail_next(*arguments)
    with pytest.raises(ValueError, match=match):
        faults.fail_every(1, *arguments)
    for skip, times in ((-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="numbers of calls"):
            faults.fail_next("any", skip=skip, times=times)
    with pytest.raises(ValueError, match="nth is a number of calls, at least 1, not 0"):
        faults.fail_every(0, "any")
    assert publish(jobs, 1) == [True]


def test_a_delivery_that_fails_is_tried_again(
    faults: FaultyStorePlace, jobs: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.publish(b"later", delay=10)
    faults.fail_next("write", "ENOSPC", path="*.seg", times=None)
    clock.advance(11)
    assert "delayed messages cannot be delivered" in caplog.text
    faults.stop_failing()
    clock.advance(1)
    assert received(faults.open()) == [b"0", b"later"]


# --- no space -------------------------------------------------------------------------------------


def test_a_full_disk_is_noticed(faults: FaultyStorePlace, jobs: Queue) -> None:
    consumer = jobs.consumer("w")
    faults.fail_next("write", path="*.seg")  # which is for the publish below
    faults.fill_disk()
    with pytest.raises(Full):
        jobs.publish(b"1")
    for message in consumer.receive(10):
        message.ack()
    faults.free_disk()
    assert publish(jobs, 2) == [False, True]


def test_or_found_out(clock: ManualClock) -> None:
    with FaultyStorePlace("data", clock, disk={"refuse_ratio": 1}) as faults:
        jobs = faults.open().queue("jobs", compression="none")
        jobs.publish(b"0")
        faults.fill_disk(room=100_000)
        with pytest.raises(NotWritten):
            jobs.publish(os.urandom(2 << 20))
        jobs.publish(b"1")
        faults.free_disk()
        jobs.publish(os.urandom(2 << 20))


# --- the end of processes and machines ------------------------------------------------------------


def test_killed_it_keeps_what_it_has_written(faults: FaultyStorePlace, clock: ManualClock) -> None:
    old = faults.open()
    jobs = old.queue("jobs", flush="none")
    jobs.publish(b"1")
    jobs.publish(b"later", delay=5)
    faults.fail_next("write")  # it does not outlive the process
    faults.kill()
    with pytest.raises((OSError, tailrace.TailraceError)):
        jobs.publish(b"2")
    clock.advance(6)  # nothing is delivered by the dead
    assert received(faults.open()) == [b"1", b"later"]


def test_a_power_cut_takes_what_was_not_synced() -> None:
    """With one seed or another, and always the same with the same."""

    def cut(seed: int) -> int:
        with FaultyStorePlace("data", ManualClock()) as faults:
            jobs = faults.open().queue("jobs", flush="none")
            for number in range(20):
                jobs.publish(random.Random(number).randbytes(1000))
            faults.power_cut(seed)
            return len(faults.open().queue("jobs"))

    found = [cut(seed) for seed in range(12)]
    assert min(found) < 20
    assert found == [cut(seed) for seed in range(12)]


def test_leases_end_with_the_power(
    faults: FaultyStorePlace, jobs: Queue, clock: ManualClock
) -> None:
    jobs.consumer("w").receive()
    jobs.publish(b"later", delay=60)
    wall_ms = clock.wall_ms()
    faults.power_cut(seconds_off=61)
    assert clock.wall_ms() == wall_ms + 61_000
    assert received(faults.open()) == [b"0", b"later"]
    faults.power_cut()
    assert len(received(faults.open())) == 2
