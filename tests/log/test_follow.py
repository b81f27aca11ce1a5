"""`read(follow=True)`: whatever any process appends comes out, once, in order, and soon."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import Closed, Corrupt, Follower, Log, OffsetOutOfRange
from tailrace.log import changes
from tailrace.log import follow as follow_module
from tailrace.log.fs import OsFileSystem
from tailrace.log.watch import Watch
from tailrace.testing import FaultyFileSystem
from tests.log.following import OtherProcess, Ping
from tests.log.helpers import (
    WAIT,
    Gate,
    at,
    bases,
    eventually,
    fill,
    flip,
    forget_clean_close,
    in_threads,
    offsets,
    require,
    run_python,
    segment,
    values,
)
from tests.log.watching import (
    Waiting,
    by_looking,
    drain,
    either_way,
    fresh_hub,
    inotify_fds,
    kernel_watches,
    touch,
)

__all__ = ["by_looking", "either_way", "fresh_hub"]

FLUSH = ["sync", "async", "none"]


class Following:
    """A thread that follows. Hanging is a failure, not a hang."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.offsets: list[int] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for record in self.follower:
                assert record.value is None or record.value.isdigit()
                self.offsets.append(require(record.offset))
        except BaseException as error:  # noqa: BLE001 (it is for the test to judge)
            self.error = error

    def sees(self, *expected: int) -> None:
        eventually(lambda: len(self.offsets) >= len(expected) or not self._thread.is_alive())
        assert self.error is None
        assert self.offsets == list(expected)

    def join(self) -> None:
        self._thread.join(WAIT)
        assert not self._thread.is_alive(), "it follows for ever"

    def ends(self) -> list[int]:
        self.join()
        if self.error is not None:
            raise self.error
        return self.offsets


Follow = Callable[[Follower], Following]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Follows in a thread, to the end of the test at most."""
    followings: list[Following] = []

    def follow_it(follower: Follower) -> Following:
        followings.append(Following(follower))
        return followings[-1]

    yield follow_it
    for following in followings:
        following.follower.close()
    for following in followings:
        following.join()


def asleep(following: Following) -> None:
    """Return when it waits."""
    eventually(lambda: bool(following.follower._tailing.watch._ear.sleepers))


@pytest.fixture(params=FLUSH)
def flush(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


# --- what is seen -------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("is_read_only", [False, True], ids=["writer", "reader"])
def test_what_another_process_and_this_one_append(
    path: Path, flush: str, is_read_only: bool, follow: Follow
) -> None:
    with OtherProcess(path, flush=flush) as other, Log(path, flush=flush) as log:
        other.append(3)
        with Log(path, read_only=True) as reader:
            following = follow((reader if is_read_only else log).read(follow=True))
            following.sees(0, 1, 2)
            asleep(following)
            log.append_one(b"3").wait()
            following.sees(*range(4))
            asleep(following)
            other.append(2)
            following.sees(*range(6))
            log.append([b"%d" % n for n in range(6, 300)]).wait()
            other.do("batch", 200)
            following.sees(*range(500))
            following.follower.close()
            assert len(following.ends()) == 500


def test_each_where_it_wants_to_begin(log: Log) -> None:
    log.append([at(1_000 * n) for n in range(10)]).wait()
    expected = {"first": 0, "last": 9, "next": 10, 4: 4, 10: 10}
    follow: Any = partial(log.read, follow=True)
    followers = {start: follow(start) for start in expected}
    followers["time"] = log.read(timestamp=6_500, follow=True)
    expected["time"] = 7
    log.append([at(1), at(2)]).wait()
    for start, follower in followers.items():
        assert follower.position == expected[start]
        assert [next(follower).offset for _ in range(expected[start], 12)] == [
            *range(expected[start], 12)
        ]
        assert follower.position == 12
        follower.close()


@pytest.mark.parametrize("start", ["first", "last", "next", 0])
def test_an_empty_log(log: Log, start: str, follow: Follow) -> None:
    following = follow(log.read(start, follow=True))  # type: ignore[call-overload]
    asleep(following)
    fill(log, 2)
    following.sees(0, 1)


def test_a_folder_where_a_log_is_made_later(path: Path, flush: str, follow: Follow) -> None:
    path.mkdir()
    with Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        asleep(following)
        with Log(path, flush=flush) as log:
            fill(log, 2)
            following.sees(0, 1)
            asleep(following)
            fill(log, 2)
            following.sees(*range(4))


def test_a_log_of_sync_shows_what_is_durable(path: Path, follow: Follow) -> None:
    """And a follower is woken by that, not by the append."""
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log, Log(path, read_only=True) as reader:
        fill(log, 1)
        followings = [follow(handle.read(follow=True)) for handle in (log, reader)]
        for following in followings:
            following.sees(0)
        fs.plan = gate
        gate.shut()
        receipt = log.append([b"1", b"2"])
        assert values(log.read(0, follow=True, timeout=0.1)) == [b"0000000000"]
        flushing = threading.Thread(target=receipt.wait)
        flushing.start()
        assert gate.reached.wait(WAIT)
        assert values(reader.read(0, follow=True, timeout=0.1)) == [b"0000000000"]
        gate.open()
        flushing.join()
        for following in followings:
            following.sees(0, 1, 2)


def test_a_reader_that_was_there_before_a_log_of_sync_shows_what_is_durable(path: Path) -> None:
    path.mkdir()
    with Log(path, read_only=True) as reader, Log(path, flush="sync") as log:
        receipt = log.append_one(b"0")
        assert not values(reader.read(follow=True, timeout=0.1))
        receipt.wait()
        assert values(reader.read(follow=True, timeout=0.1)) == [b"0"]


def test_across_rolls(path: Path, flush: str, follow: Follow) -> None:
    options = {"flush": flush, "segment_bytes": 400}
    with OtherProcess(path, **options) as other, Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        for count in (1, 50, 1, 100):
            end = other.append(count)
            following.sees(*range(end))
        assert len(bases(path)) > 10


def test_a_look_at_every_moment_of_a_writer(path: Path, flush: str) -> None:
    """Also when a segment is there, and nothing in it yet."""
    fs = FaultyFileSystem(OsFileSystem())
    options: Any = {"flush": flush, "segment_bytes": 400, "upkeep": False}
    with Log(path, fs=fs, **options) as log, Log(path, read_only=True) as reader:
        tailing = reader.tail()
        seen: list[int] = []

        def look(_call: object) -> None:
            seen.extend(offsets(tailing.poll()))

        for number in range(40):
            fs.plan = look
            log.append_one(b"%d" % number).wait()
            fs.plan = None
            look(None)
            assert seen == [*range(number + 1)]
        tailing.close()


def test_batches_of_every_size(path: Path, flush: str, follow: Follow) -> None:
    """Also those that are larger than what is read at a time."""
    with Log(path, flush=flush) as log:
        following = follow(log.read(follow=True))
        asleep(following)
        end = 0
        for size in (1, 1_000, 300_000, 1, 3_000_000, 10):
            log.append([b"1" * size, b"2" * size]).wait()
            end += 2
            following.sees(*range(end))


def test_two_followers_at_once(log: Log) -> None:
    fill(log, 100)
    one, two = log.read(follow=True), log.read(50, follow=True)
    assert [next(one).offset for _ in range(10)] == [*range(10)]
    assert [next(two).offset for _ in range(10)] == [*range(50, 60)]
    fill(log, 10)
    assert [next(one).offset for _ in range(100)] == [*range(10, 110)]
    assert [next(two).offset for _ in range(50)] == [*range(60, 110)]
    one.close()
    two.close()


def test_100_followers_share_an_inotify_instance(
    path: Path, tmp_path: Path, follow: Follow
) -> None:
    logs = [Log(tmp_path / f"log{n}", flush="async", upkeep=False) for n in range(10)]
    followings = [follow(log.read(follow=True)) for log in logs for _ in range(10)]
    for round_ in range(1, 4):
        for log in logs:
            log.append_one(b"0")
        for following in followings:
            following.sees(*range(round_))
    assert len(inotify_fds()) == 1
    assert kernel_watches() == len(logs)
    for log in logs:
        log.close()
    for following in followings:
        following.ends()


# --- truncation and retention -------------------------------------------------------------


def test_truncation_behind_it(path: Path, flush: str, follow: Follow) -> None:
    """What is deleted was read."""
    options = {"flush": flush, "segment_bytes": 400}
    with OtherProcess(path, **options) as other, Log(path, read_only=True) as reader:
        end = other.append(50)
        following = follow(reader.read(follow=True))
        following.sees(*range(end))
        other.do("truncate", 40)
        other.append(50)
        following.sees(*range(100))
        assert min(bases(path)) > 20
        other.do("truncate", 100)
        other.append(50)
        following.sees(*range(150))


@pytest.mark.parametrize("is_deleted", [False, True], ids=["truncated", "deleted"])
def test_retention_passes_its_position(path: Path, flush: str, is_deleted: bool) -> None:
    with (
        Log(path, flush=flush, segment_bytes=400, upkeep=False) as log,
        Log(path, read_only=True) as reader,
    ):
        fill(log, 50)
        behind = [log.read(follow=True), reader.read(5, follow=True)]
        log.truncate_before(30)
        if is_deleted:
            assert log.vacuum().segments
        for follower, position in zip(behind, (0, 5), strict=True):
            with pytest.raises(OffsetOutOfRange) as caught:
                next(follower)
            assert (caught.value.offset, caught.value.low) == (position, 30)
            assert not list(follower)  # that was the end
            go_on = reader.read(caught.value.low, follow=True, timeout=0)
            assert offsets(go_on) == [*range(30, 50)]


def test_retention_passes_one_that_is_in_the_middle(path: Path, flush: str) -> None:
    with (
        Log(path, flush=flush, segment_bytes=400, upkeep=False) as log,
        Log(path, read_only=True) as reader,
    ):
        fill(log, 50)
        follower = reader.read(follow=True)
        seen = [require(next(follower).offset)]
        log.truncate_before(30)
        log.vacuum()
        with pytest.raises(OffsetOutOfRange) as caught:
            seen.extend(require(record.offset) for record in follower)
        assert caught.value.low == 30
        assert seen == [*range(len(seen))]  # what it had open it could still read
        assert len(seen) < 30


def test_all_that_there_is_expires(path: Path, follow: Follow) -> None:
    retention = {"max_age": "1s"}
    with Log(path, flush="sync", retention=retention, upkeep=False) as log:
        log.append([at(1, b"0"), at(2, b"1")]).wait()
        following = follow(log.read(follow=True))
        following.sees(0, 1)
        asleep(following)
        assert log.vacuum().segments == 1
        log.append_one(b"2").wait()
        following.sees(0, 1, 2)


# --- damage -------------------------------------------------------------------------------


def test_damage_comes_out_behind_what_is_whole(path: Path) -> None:
    with Log(path, segment_bytes=400) as log:
        fill(log, 60)
        base = bases(path)[3]
        follower = log.read(follow=True, timeout=WAIT)
        seen = [require(next(follower).offset)]
        flip(segment(path, base), 150)
        with pytest.raises(Corrupt) as caught:
            seen.extend(require(record.offset) for record in follower)
        assert seen == [*range(len(seen))]
        assert base < len(seen) == caught.value.first_offset == follower.position
        assert not list(follower)  # that was the end
        after = require(caught.value.next_offset)
        assert offsets(log.read(after, follow=True, timeout=0)) == [*range(after, 60)]


# --- writers that come and go -------------------------------------------------------------


@pytest.mark.no_cover
def test_writers_come_and_go(path: Path, flush: str, follow: Follow) -> None:
    Log(path, flush=flush).close()
    with Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        for life in range(4):
            with OtherProcess(path) as other:
                other.append(5)
                following.sees(*range(5 * life + 5))


@pytest.mark.no_cover
def test_recovery_after_a_kill(path: Path, flush: str, follow: Follow) -> None:
    """What was acknowledged stays, and nothing comes twice: offsets that were seen keep their
    records."""
    options = {"flush": flush, "segment_bytes": 2_000}
    Log(path, **options).close()  # type: ignore[arg-type]
    with Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        end = 0
        for life in range(6):
            with OtherProcess(path, **options) as other:
                end = other.append(30)
                if life % 2:
                    other.do("start")  # not flushed
                else:
                    other.tell("append", 10_000)  # it is in the middle of something
                    time.sleep(0.01 * life)
                other.kill()
        with OtherProcess(path, **options) as other:
            end = other.append(1)
        following.sees(*range(end))
        assert values(reader.read()) == [b"%d" % offset for offset in range(end)]


def test_a_torn_append_that_is_taken_back(path: Path, follow: Follow) -> None:
    """A follower that has found half a batch, which recovery then replaces."""
    Log(path, flush="async").close()
    with Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        with OtherProcess(path) as other:
            other.append(5)
            following.sees(*range(5))
            other.kill()
        size = segment(path, 0).stat().st_size
        with segment(path, 0).open("ab") as file:
            file.write(segment(path, 0).read_bytes()[: size // 5 - 3])
        time.sleep(0.05)
        following.sees(*range(5))
        with OtherProcess(path) as other:
            other.append(5)
        following.sees(*range(10))


def test_recovery_quarantines_what_it_has_read(path: Path, flush: str, follow: Follow) -> None:
    """A follower is past the damage and goes on; who comes to it is told where to."""
    with Log(path, flush=flush, segment_bytes=400) as log:
        fill(log, 60)
    forget_clean_close(path)
    base = bases(path)[-1]
    with Log(path, read_only=True) as reader:
        following = follow(reader.read(follow=True))
        following.sees(*range(60))
        flip(segment(path, base), 20)
        with Log(path, segment_bytes=400) as log:
            fill(log, 5, first=60)
            log.flush()
            following.sees(*range(60), *range(log.end_offset - 5, log.end_offset))
            with pytest.raises(Corrupt) as caught:
                list(reader.read())
            assert caught.value.first_offset == base
            after = require(caught.value.next_offset)
            assert offsets(reader.read(after)) == offsets(log.read(after))
            assert offsets(log.read(after))[-5:] == [*range(log.end_offset - 5, log.end_offset)]


# --- how it ends --------------------------------------------------------------------------


def test_an_end(log: Log, path: Path, follow: Follow) -> None:
    fill(log, 5)
    assert offsets(log.read(1, 4, follow=True)) == [1, 2, 3]
    assert not offsets(log.read(4, 4, follow=True))
    assert not offsets(log.read(4, 2, follow=True))
    following = follow(log.read(3, 8, follow=True))
    following.sees(3, 4)
    asleep(following)
    fill(log, 1)
    following.sees(3, 4, 5)
    fill(log, 10)
    assert following.ends() == [3, 4, 5, 6, 7]
    assert following.follower.position == 8


def test_an_end_in_the_middle_of_a_batch(log: Log, follow: Follow) -> None:
    fill(log, 2)
    following = follow(log.read(2, 7, follow=True))
    for _ in range(3):
        log.append([b"0"] * 4).wait()
    assert following.ends() == [2, 3, 4, 5, 6]


@pytest.mark.usefixtures("either_way")
def test_a_timeout(path: Path, follow: Follow) -> None:
    with Log(path, flush="async", upkeep=False) as log:
        fill(log, 3)
        assert offsets(log.read(follow=True, timeout=0)) == [0, 1, 2]
        assert offsets(log.read(follow=True, timeout=-1)) == [0, 1, 2]
        began = time.monotonic()
        assert offsets(log.read("last", follow=True, timeout=0.2)) == [2]
        assert time.monotonic() - began >= 0.2
        following = follow(log.read("next", follow=True, timeout=1.0))
        for number in range(5):
            time.sleep(0.4)  # more in all than the time that nothing may come
            log.append_one(b"%d" % number)
        assert following.ends() == [*range(3, 8)]


def test_a_timeout_is_about_records(path: Path, follow: Follow) -> None:
    """Not about whatever else happens in the folder."""
    with Log(path, flush="async", upkeep=False) as log:
        fill(log, 1)
        following = follow(log.read(follow=True, timeout=0.3))
        deadline = time.monotonic() + WAIT
        while following._thread.is_alive():
            assert time.monotonic() < deadline, "it waits for ever"
            (path / "noise").write_bytes(b"x")
            time.sleep(0.02)
        assert following.ends() == [0]


def test_a_timeout_without_follow(log: Log) -> None:
    with pytest.raises(ValueError, match="follow=True"):
        log.read(timeout=1.0)  # type: ignore[call-overload]


def test_arguments_are_checked_at_once(log: Log) -> None:
    fill(log, 5)
    for start in ("middle", None, 1.5, True):
        with pytest.raises(ValueError, match="start is"):
            log.read(start, follow=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="end is"):
        log.read(0, "5", follow=True)  # type: ignore[call-overload]
    with pytest.raises(OffsetOutOfRange):
        log.read(6, follow=True)
    log.truncate_before(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, follow=True)
    log.close()
    with pytest.raises(Closed):
        log.read(follow=True)


@pytest.mark.parametrize("is_read_only", [False, True], ids=["writer", "reader"])
def test_close_from_another_thread(
    path: Path, flush: str, is_read_only: bool, follow: Follow
) -> None:
    with Log(path, flush=flush) as log, Log(path, read_only=True) as reader:
        fill(log, 3)
        handle = reader if is_read_only else log
        others = [follow(handle.read(follow=True)) for _ in range(2)]
        following = follow(handle.read(follow=True))
        following.sees(0, 1, 2)
        asleep(following)
        following.follower.close()
        following.follower.close()
        assert following.ends() == [0, 1, 2]
        assert not list(following.follower)
        fill(log, 1)
        for other in others:
            other.sees(0, 1, 2, 3)
        handle.close()  # ends all
        for other in others:
            other.ends()


def test_close_while_it_reads(path: Path) -> None:
    with Log(path, flush="async", upkeep=False) as log:
        fill(log, 1000)
        for handle in (log, Log(path, read_only=True)):
            follower = handle.read(follow=True)
            assert next(follower).offset == 0
            follower.close()
            assert not list(follower), "there is more to read, but nobody wants it"
            assert follower.position == 1
            if handle is not log:
                handle.close()


@pytest.mark.no_cover
def test_the_log_is_closed_at_any_time(path: Path, follow: Follow) -> None:
    """Whatever a follower is about to do, it comes to its end, without an error."""
    for number in range(60):
        flush = FLUSH[number % 3]
        log = Log(path.with_name(f"log {flush}"), flush=flush, segment_bytes=2_000)
        handle = log if number % 2 else Log(log.path, read_only=True)
        followings = [follow(handle.read(follow=True)) for _ in range(3)]

        def append(log: Log = log) -> None:
            try:
                for _ in range(100):
                    log.append_one(b"0")
            except Closed:
                return

        appending = threading.Thread(target=append)
        appending.start()
        time.sleep(0.000_5 * (number % 20))
        handle.close()
        for following in followings:
            following.ends()
        appending.join()
        log.close()


def test_a_follower_that_begins_while_the_log_is_closed(path: Path, follow: Follow) -> None:
    """It is refused, or comes to its end."""
    for number in range(40):
        log = Log(path, flush="async", upkeep=False)

        def work(who: int, log: Log = log, number: int = number) -> None:
            if who:
                time.sleep(0.000_05 * (number % 10))
                log.close()
                return
            try:
                follower = log.read(follow=True)
            except Closed:
                return
            follow(follower).ends()

        in_threads(2, work)


def test_a_tailing_of_a_closed_log(log: Log) -> None:
    tailing = log.tail()
    log.close()
    with pytest.raises(Closed):
        list(tailing.poll())
    tailing.close()


def test_a_with_statement(log: Log) -> None:
    fill(log, 3)
    with log.read(follow=True) as follower:
        assert next(follower).offset == 0
        assert kernel_watches() == 1
    assert kernel_watches() == 0


def test_a_forgotten_follower_goes(log: Log) -> None:
    fill(log, 3)
    follower = log.read(follow=True)
    untouched = log.read(follow=True)
    assert next(follower).offset == 0
    assert iter(follower) is follower
    gone = weakref.ref(follower), weakref.ref(untouched)
    del follower, untouched
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert kernel_watches() == 0
    assert not log._followers


def test_a_partly_read_poll_loses_nothing(path: Path, flush: str) -> None:
    with Log(path, flush=flush, segment_bytes=700) as log:
        tailing = log.tail()
        seen: list[int] = []
        for number in range(60):
            fill(log, 3)
            for record in tailing.poll():
                seen.append(require(record.offset))
                if len(seen) % 7 == number % 7:
                    break  # and the rest of it is for the next
        seen.extend(offsets(tailing.poll()))
        assert seen == [*range(180)]
        assert not list(tailing.poll())
        tailing.close()


# --- signals ------------------------------------------------------------------------------

CTRL_C = """
import os, signal, sys, threading, time
from tailrace import Log

log = Log(sys.argv[1], read_only=sys.argv[2] == "reader")
follower = log.read(follow=True)

def interrupt():
    while not follower._tailing.watch._ear.sleepers:
        pass
    time.sleep(0.1)  # Python misses a signal right before a system call until that returns
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
        print("raised", flush=True)

threading.Thread(target=interrupt).start()
try:
    for record in follower:
        print(record.offset, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
again = log.read(follower.position, follow=True, timeout=0)
print([record.offset for record in again], flush=True)
log.close()
"""


@pytest.mark.parametrize("handle", ["writer", "reader"])
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_ctrl_c(path: Path, handle: str, how: str) -> None:
    """The main thread sleeps, and yet it comes at once. (Only if another thread raises it for
    itself does nobody wake the main thread: then it comes with the next record.) Nothing is lost
    by it."""
    with Log(path) as log:
        fill(log, 3)
        child = subprocess.Popen(
            [sys.executable, "-c", CTRL_C, str(path), handle, how],
            stdout=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(WAIT, child.kill)
        watchdog.start()
        with child:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
            if how == "raise":
                assert child.stdout.readline() == "raised\n"
                fill(log, 1)
            assert child.stdout.readline() == "interrupted\n"
            assert child.stdout.readline() == ("[3]\n" if how == "raise" else "[]\n")
            assert child.wait(WAIT) == 0
        watchdog.cancel()
        watchdog.join()


# --- what it costs ------------------------------------------------------------------------

IDLE = """
import json, resource, sys, threading, time
from tailrace import Log

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

log = Log(sys.argv[1], read_only=True)
follower = log.read(follow=True)
for _ in range(3):
    next(follower)
usage = []
def look():
    while not follower._tailing.watch._ear.sleepers:
        time.sleep(0.001)
    before = cpu()
    time.sleep(1.5)
    usage.append(cpu() - before)
    log.close()
threading.Thread(target=look).start()
assert not list(follower)
print(json.dumps(usage[0]))
"""


def test_who_waits_uses_no_processor(path: Path, flush: str) -> None:
    with Log(path, flush=flush, upkeep=False) as log:
        fill(log, 3)
        assert run_python(IDLE, path) < 0.02


# --- no wake-up is missed -----------------------------------------------------------------


def confirm_each(follower: Follower, ping: Ping, count: int) -> None:
    watchdog = threading.Timer(WAIT, follower.close)
    watchdog.start()
    for number in range(count):
        assert next(follower).value == b"%d" % number
        ping.confirm()
    watchdog.cancel()
    watchdog.join()


@pytest.mark.no_cover
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1_000])
def test_ping_pong_with_another_process(path: Path, flush: str, segment_bytes: int) -> None:
    count = 2_000
    Log(path, flush=flush).close()
    with (
        Ping(path, count, segment_bytes=segment_bytes) as ping,
        Log(path, read_only=True) as reader,
        reader.read(follow=True) as follower,
    ):
        confirm_each(follower, ping, count)


def test_ping_pong_of_two_followers(path: Path) -> None:
    """Each record is confirmed by the one who was not the last, so both have to be woken."""
    count = 1_000
    with Log(path) as log, Ping(path, count, mode="shared") as ping:
        seen = [threading.Semaphore(0), threading.Semaphore(0)]

        def work(who: int) -> None:
            with Log(path, read_only=True) as reader:
                follower = (log if who else reader).read(follow=True)
                watchdog = threading.Timer(WAIT, follower.close)
                watchdog.start()
                for number in range(count):
                    assert next(follower).value == b"%d" % number
                    seen[who].release()
                    if who == number % 2:
                        assert seen[1 - who].acquire(timeout=WAIT)
                        ping.confirm()
                    else:
                        continue
                follower.close()
                watchdog.cancel()
                watchdog.join()

        in_threads(2, work)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_looking_instead_of_inotify(
    path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, by its environment."""
    monkeypatch.setenv("TAILRACE_WATCH", "poll")
    code = """
import json, os, sys
from tailrace import Log
with Log(sys.argv[1], read_only=True) as log:
    seen = []
    for record in log.read(follow=True):
        seen.append(record.offset)
        if len(seen) == 100:
            break
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    assert "anon_inode:inotify" not in links
print(json.dumps(seen))
"""
    with Log(path, flush=flush, segment_bytes=400) as log:
        done = threading.Event()

        def append() -> None:
            for number in range(100):
                log.append_one(b"%d" % number).wait()
                done.wait(0.001 * (number % 7))

        appending = threading.Thread(target=append)
        appending.start()
        assert run_python(code, path) == [*range(100)]
        appending.join()


def test_what_comes_while_the_watch_is_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of an empty folder learns that it has become a `sync` log, of which other files tell
    what is new. What becomes durable meanwhile is not lost on it."""
    path.mkdir()
    with Log(path, read_only=True) as reader:
        tailing = reader.tail()
        assert not list(tailing.poll())
        with Log(path, flush="sync") as log:

            class LateWatch(Watch):
                def __init__(self, *paths: str, names_in: Sequence[str]) -> None:
                    log.append_one(b"meanwhile").wait()
                    super().__init__(*paths, names_in=names_in)

            log.append_one(b"before").wait()
            monkeypatch.setattr(follow_module, "Watch", LateWatch)
            assert values(tailing.poll()) == [b"before", b"meanwhile"]
        tailing.close()


def test_one_read_serves_all_who_follow(path: Path, follow: Follow) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, flush="async", upkeep=False) as log, Log(path, read_only=True, fs=fs) as reader:
        fill(log, 3)
        followings = [follow(reader.read(follow=True)) for _ in range(20)]
        for following in followings:
            following.sees(0, 1, 2)
        fill(log, 1)  # from here on they are at the end
        for following in followings:
            following.sees(0, 1, 2, 3)
        for following in followings:
            asleep(following)
        before = len(fs.calls)
        log.append_one(b"4")
        for following in followings:
            following.sees(0, 1, 2, 3, 4)
        reads = [call for call in fs.calls[before:] if call.op == "pread"]
        assert len(reads) <= 4, "two may be about to look at once, and the event may come twice"


def test_many_records_at_the_tip_are_decoded_in_a_thread(path: Path) -> None:
    with Log(path, flush="async") as log:
        log.append_one(b"0")
        tailing = log.tail()
        assert offsets(tailing.poll()) == [0]
        assert not tailing.poll_tip(now=True)
        assert offsets(tailing.poll()) == []
        log.append_one(b"1")
        assert [record.offset for record in tailing.poll_tip(now=True) or []] == [1]
        log.append([b""] * 2_000)
        assert tailing.poll_tip(now=True) is None
        assert offsets(tailing.poll()) == [*range(2, 2_002)]
        tailing.close()


# --- what else it may watch, and where it goes on -----------------------------------------


@pytest.fixture
def besides(tmp_path: Path) -> Path:
    path = tmp_path / "besides"
    path.write_bytes(b"old")
    return path


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("is_read_only", [False, True], ids=["writer", "reader"])
def test_a_file_that_is_watched_also(
    path: Path, flush: str, is_read_only: bool, besides: Path
) -> None:
    with (
        Log(path, flush=flush, segment_bytes=400, upkeep=False) as log,
        Log(path, read_only=True) as reader,
    ):
        tailing = (reader if is_read_only else log).tail(also=[str(besides)])
        for round_ in range(3):  # each time in another segment
            fill(log, 20)
            assert offsets(tailing.poll()) == [*range(20 * round_, 20 * round_ + 20)]
            drain(tailing.watch)
            touch(besides)
            assert tailing.watch.wait(WAIT)
            assert not list(tailing.poll())
            drain(tailing.watch)
            waiting = Waiting(tailing.watch.wait)
            eventually(lambda: bool(tailing.watch._ear.sleepers))
            touch(besides)
            assert waiting.result() is True
        assert len(bases(path)) > 3
        drain(tailing.watch)
        log.append_one(b"60").wait()
        assert tailing.watch.wait(WAIT)
        assert offsets(tailing.poll()) == [60]
        tailing.close()


@pytest.mark.usefixtures("either_way")
def test_a_file_that_is_watched_also_in_a_folder_that_becomes_a_log(
    path: Path, flush: str, besides: Path
) -> None:
    path.mkdir()
    with Log(path, read_only=True) as reader:
        tailing = reader.tail(also=[str(besides)])
        assert not list(tailing.poll())
        with Log(path, flush=flush) as log:
            log.append_one(b"0").wait()
            assert offsets(tailing.poll()) == [0]
            drain(tailing.watch)
            touch(besides)
            assert tailing.watch.wait(WAIT)
        tailing.close()


def test_a_file_that_is_watched_also_has_to_be_there(log: Log, besides: Path) -> None:
    with pytest.raises(FileNotFoundError):
        log.tail(also=[str(besides), f"{besides} not"])
    assert kernel_watches() == 0


def test_a_watch_is_renewed_when_other_files_tell(path: Path) -> None:
    path.mkdir()
    with Log(path, read_only=True) as reader:
        tailing = reader.tail()
        watches = [tailing.watch]
        assert not tailing.renew_watch()
        assert [tailing.watch] == watches
        with Log(path, flush="sync") as log:
            log.append_one(b"0").wait()
            assert reader.end_offset == 1  # it has seen what sort of log that is
            assert tailing.renew_watch()
            watches.append(tailing.watch)
            assert [watch.closed for watch in watches] == [True, False]
            assert not tailing.renew_watch()
            assert tailing.watch is watches[1]
        tailing.close()


def test_reading_goes_on_elsewhere(path: Path, flush: str) -> None:
    with Log(path, flush=flush, segment_bytes=400) as log:
        fill(log, 50)
        tailing = log.tail()
        assert offsets(tailing.poll()) == [*range(50)]
        fill(log, 1)
        assert offsets(tailing.poll()) == [50]  # at the tip
        for offset in (0, 30, 7, 50, 51):
            tailing.seek(offset)
            assert tailing.position == offset
            assert tailing.poll_tip(now=True) is None
            assert offsets(tailing.poll()) == [*range(offset, 51)]
            assert tailing.position == 51
        tailing.seek(20)
        assert next(iter(tailing.poll())).offset == 20
        tailing.seek(45)  # away from the middle of it
        fill(log, 3)
        assert offsets(tailing.poll()) == [*range(45, 54)]
        tailing.close()


def test_reading_goes_on_behind_the_end(path: Path, flush: str) -> None:
    """What comes first is stepped over, also if that offset is in the middle of a batch."""
    with Log(path, flush=flush) as log:
        fill(log, 5)
        tailing = log.tail()
        assert len(offsets(tailing.poll())) == 5
        tailing.seek(8)
        assert not list(tailing.poll())
        log.append([b"5", b"6"]).wait()
        assert not list(tailing.poll())
        assert tailing.position == 8
        log.append([b"7", b"8", b"9"]).wait()
        assert offsets(tailing.poll()) == [8, 9]
        fill(log, 1)
        assert offsets(tailing.poll()) == [10]
        tailing.close()


def test_reading_goes_on_where_nothing_is_any_more(path: Path) -> None:
    with Log(path, flush="async", upkeep=False) as log:
        fill(log, 10)
        tailing = log.tail("next")
        log.truncate_before(5)
        tailing.seek(4)
        with pytest.raises(OffsetOutOfRange) as caught:
            list(tailing.poll())
        assert (caught.value.offset, caught.value.low) == (4, 5)
        tailing.seek(caught.value.low)
        assert offsets(tailing.poll()) == [*range(5, 10)]
        tailing.close()


def test_an_end_holds_wherever_reading_goes_on(log: Log) -> None:
    fill(log, 10)
    tailing = log.tail(2, 6)
    for offset, is_over in ((2, False), (4, False), (6, True), (9, True), (0, False)):
        tailing.seek(offset)
        assert tailing.is_over == is_over
        assert offsets(tailing.poll()) == [*range(offset, 6)]
        assert tailing.is_over
    tailing.close()


@pytest.mark.parametrize("timeout", ["1", True, [], float("nan")], ids=repr)
def test_a_timeout_that_is_none(log: Log, timeout: Any) -> None:
    kind = ValueError if isinstance(timeout, float) else TypeError
    with pytest.raises(kind, match="timeout is a number of seconds"):
        log.read(follow=True, timeout=timeout)


@pytest.mark.usefixtures("by_looking")
def test_looking_costs_no_more_in_a_large_folder(
    path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the segment that grows, and the names: not each of many files, a hundred times a
    second."""
    with Log(path, flush="async", upkeep=False, segment_bytes=200) as log:
        fill(log, 300)
        following = follow(log.read("next", follow=True))
        asleep(following)
        listed: list[str] = []
        scandir = os.scandir

        def noted(path: str) -> Any:
            listed.append(path)
            return scandir(path)

        monkeypatch.setattr(changes, "os", SimpleNamespace(**{**vars(os), "scandir": noted}))
        before = log.end_offset
        fill(log, 50, first=before)  # over many rolls
        following.sees(*range(before, before + 50))
        asleep(following)
        del listed[:]
        time.sleep(0.2)
        assert not listed
        log.append_one(b"%d" % log.end_offset)
        following.sees(*range(before, before + 51))
