"""Every call fails once, in every way: the answer is "not written", "unknown" or success.

A refused record never shows up, an acknowledged one never goes, and after a failed sync nothing is
appended until the log is opened anew.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tailrace import Closed, Locked, Log, NotWritten, OutcomeUnknown, TailraceError
from tailrace.testing import (
    Call,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    ShortWrite,
    SimulatedDisk,
    at,
    from_call,
    on,
)
from tailrace.testing.faults import Operation
from tests.crash.oracle import Oracle, scan
from tests.crash.workloads import WORKLOADS, Workload, append, make_batch
from tests.crash.world import CLOCK, NOW_MS, fates, observe, open_log, side

FAULTS: list[Fault] = [
    Fail(errno.EIO),
    Fail(errno.ENOSPC),
    Fail(errno.EINTR),
    LoseDirty(),
    Fail(errno.EMFILE),
    ShortWrite(0.5),
    ShortWrite(0.5, Fail(errno.ENOSPC)),
    Fail(errno.EIO, after=True),
]
FULL = Fail(errno.ENOSPC)
GROWING: tuple[Operation, ...] = ("pwrite", "make_dirs")  # the calls that need space


def applies(fault: Fault, call: Call) -> bool:
    if isinstance(fault, ShortWrite):
        return call.op == "pwrite"
    return call.op == "sync" if isinstance(fault, LoseDirty) else True


class Session:
    """A log that is worked on while calls fail; every answer is one of those that are allowed."""

    def __init__(self, flush: str) -> None:
        CLOCK.now_ms = NOW_MS
        self.disk = SimulatedDisk()
        self.oracle = Oracle(self.disk)
        self.fs = FaultyFileSystem(self.disk)
        self.log = open_log(self.fs, flush=flush, segment_bytes=200)
        self.flush_mode = flush

    def work(self) -> None:
        """Something of everything. An error ends a step, not the work."""
        for step in self.steps():
            try:
                step()
            except (NotWritten, OutcomeUnknown):
                self.look()
                continue
        self.look()

    def steps(self) -> Iterator[Callable[[], object]]:
        log, oracle = self.log, self.oracle
        for sequence in range(6):
            yield lambda: append(log, oracle)
            yield partial(append, log, oracle, producer="p", sequence=sequence)
        yield self.flush
        yield partial(self.truncate, 5)
        yield self.vacuum
        yield lambda: append(log, oracle, wait=False)
        yield lambda: append(log, oracle)

    def flush(self) -> None:
        self.log.flush()
        try:
            self.oracle.promise_visible(self.log)
        except OSError:  # it was the look at it that failed
            assert self.fs.hits, "an error from nowhere"

    def truncate(self, offset: int) -> None:
        if offset <= self.log.end_offset:
            self.oracle.allow_start(offset)
            self.log.truncate_before(offset)
            self.oracle.truncate(offset)

    def vacuum(self) -> None:
        try:
            self.oracle.truncate(self.log.vacuum().start_offset)
        except OSError:  # whatever was not deleted is deleted the next time
            assert self.fs.hits, "an error from nowhere"

    def look(self) -> None:
        """The log can be read at any time (unless it is the reading that fails)."""
        try:
            scan(self.log)
        except OSError:
            assert self.fs.hits, "an error from nowhere"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("flush", "fault"),
    [*(("sync", fault) for fault in FAULTS), *(("async", fault) for fault in FAULTS[::3])],
    ids=str,
)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_every_call_fails_once(flush: str, fault: Fault, step: int) -> None:
    counting = Session(flush)
    first = len(counting.fs.calls)
    counting.work()
    for call in counting.fs.calls[first::step]:
        if not applies(fault, call):
            continue
        session = Session(flush)
        session.fs.plan = at(call.n, fault)
        try:
            session.work()
            assert session.fs.hits
            session.fs.plan = None
            goes_on(session)
        except Exception as error:
            error.add_note(f"{fault} at {call}")
            raise


def goes_on(session: Session) -> None:
    """After the fault: the same handle works, or refuses because a sync failed; and whatever comes
    then, the next life has all that was promised and none that was refused."""
    log, oracle = session.log, session.oracle
    synced = [
        call
        for call in session.fs.hits
        if (call.op == "sync" and call.path.endswith("seg"))
        or (call.op == "sync_dir" and log.flush_mode == "async")
    ]
    try:
        append(log, oracle)
    except NotWritten:
        assert synced, "nothing that is left behind explains the refusal"
        assert side("poisoned") in session.disk.files()
        if log.durable_offset < log.end_offset:
            with pytest.raises(OutcomeUnknown):
                log.flush()
    with pytest.raises(Locked):
        open_log(session.disk, exclusive=True)
    for name, fate in fates([1]):
        disk = session.disk.clone()
        fate(disk)
        if synced:
            disk.evict()
        mine = oracle.on(disk)
        try:
            again = open_log(disk)
            mine.check(again)
            append(again, mine)
            again.close()
        except Exception as error:
            error.add_note(f"then {name}")
            raise


@pytest.mark.sample(2)
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("workload", WORKLOADS[1:10], ids=str)
def test_an_open_that_fails_leaves_the_log_as_good_as_before(
    workload: Workload, error: int
) -> None:
    past, memory = workload.prepare()
    counting = FaultyFileSystem(past.clone())
    open_log(counting)
    for call in counting.calls:
        disk = past.clone()
        oracle = memory.on(disk)
        fs = FaultyFileSystem(disk, at(call.n, Fail(error)))
        try:
            log = open_log(fs)
        except (OSError, TailraceError):
            assert not disk.open_files(), f"{call} failed, and files stay open"
        else:
            fs.plan = None
            oracle.check(log)
            log.close()
        try:
            with open_log(disk) as log:  # the lock was given back
                oracle.check(log)
                append(log, oracle)
        except Exception as failure:
            failure.add_note(f"{error} at {call}")
            raise


# --- a sync that fails ----------------------------------------------------------------------


def poisoned_session(flush: str, fault: Fault) -> Session:
    session = Session(flush)
    append(session.log, session.oracle)
    session.flush()
    append(session.log, session.oracle, wait=False)
    session.fs.plan = on("sync", fault, path="*.seg")
    with pytest.raises(OutcomeUnknown):
        session.log.flush()
    return session


@pytest.mark.parametrize("fault", [LoseDirty(), Fail(errno.EIO), Fail(errno.ENOSPC)], ids=str)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_failed_sync_poisons_the_log(flush: str, fault: Fault) -> None:
    session = poisoned_session(flush, fault)
    log = session.log
    calls = len(session.fs.calls)
    for _ in range(2):
        with pytest.raises(NotWritten, match="reopen"):
            log.append([b"x"])
        with pytest.raises(NotWritten, match="reopen"):
            log.append_one(b"x")
        with pytest.raises(OutcomeUnknown, match="Reopen"):
            log.flush()
    assert [r.offset for r in log.read(end=2)] == [0, 1]
    log.close()
    again = [c for c in session.fs.calls[calls:] if c.op == "sync" and c.path.endswith(".seg")]
    assert not again, "a sync was tried again"
    with observe(session.disk) as reader:
        assert [r.offset for r in reader.read()] == [0, 1], "an observer believes the page cache"
    with pytest.raises(Closed):
        log.append([b"x"])


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_reopening_a_poisoned_log_goes_back_to_the_watermark(flush: str) -> None:
    session = poisoned_session(flush, LoseDirty())
    disk, oracle = session.disk, session.oracle
    disk.kill()
    with open_log(disk) as log:
        found = oracle.check(log)
        assert [r.offset for r in found.records] == [0, 1]
        assert append(log, oracle).bases
        assert side("poisoned") not in disk.files()
    disk.crash(5)
    with open_log(disk) as log:
        oracle.check(log)


def test_a_second_failure_in_the_next_life() -> None:
    session = poisoned_session("sync", LoseDirty())
    disk, oracle = session.disk, session.oracle
    for _ in range(3):
        disk.kill()
        fs = FaultyFileSystem(disk)
        log = open_log(fs)
        append(log, oracle)
        fs.plan = on("sync", LoseDirty(), path="*.seg")
        with pytest.raises(OutcomeUnknown):
            append(log, oracle)
        disk.evict()
    disk.kill()
    with open_log(disk) as log:
        oracle.check(log)


# --- a disk that is full --------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_full_disk(flush: str) -> None:
    """From any call on nothing can be written: the log can be read, and works with space again."""
    counting = Session(flush)
    first = len(counting.fs.calls)
    counting.work()
    for n in range(first, len(counting.fs.calls), 3):
        session = Session(flush)
        session.fs.plan = from_call(n, FULL, ops=GROWING)
        try:
            session.work()
            session.look()
            session.fs.plan = None
            append(session.log, session.oracle)
            session.oracle.check(session.log)
            session.log.close()
            with open_log(session.disk) as log:
                session.oracle.check(log)
        except Exception as error:
            error.add_note(f"full from call {n} on: {counting.fs.calls[n]}")
            raise


# --- writes that fail when they are done already --------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_refused_record_does_not_come_back(flush: str) -> None:
    """The write failed after most of its bytes were in the cache, and was taken back: no power cut
    may bring it to light."""
    for seed in range(40):
        session = Session(flush)
        append(session.log, session.oracle)
        session.fs.plan = on("pwrite", ShortWrite(0.9, then=Fail(errno.EIO)), path="*.seg")
        with pytest.raises(NotWritten):
            append(session.log, session.oracle)
        session.disk.crash(seed)
        with open_log(session.disk) as log:
            session.oracle.check(log)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_write_that_fails_after_its_last_byte_is_an_append(flush: str) -> None:
    """A reader may have seen the record: it is there, whatever the call says."""
    session = Session(flush)
    append(session.log, session.oracle)
    session.fs.plan = on("pwrite", Fail(errno.EIO, after=True), path="*.seg")
    append(session.log, session.oracle)
    session.fs.plan = None
    append(session.log, session.oracle)
    session.oracle.check(session.log)
    session.disk.kill()
    with open_log(session.disk) as log:
        session.oracle.check(log)


@pytest.mark.parametrize("fate", ["kill", "cut"])
def test_a_write_that_cannot_be_taken_back_is_not_called_refused(fate: str) -> None:
    session = Session("sync")
    append(session.log, session.oracle)
    session.fs.plan = both(
        on("pwrite", ShortWrite(0.9, then=Fail(errno.EIO)), path="*.seg"),
        on("truncate", Fail(errno.EIO), path="*.seg"),
    )
    with pytest.raises((NotWritten, OutcomeUnknown)):
        append(session.log, session.oracle)
    if fate == "kill":
        session.disk.kill()
    else:
        session.disk.crash(1)
    with open_log(session.disk) as log:
        session.oracle.check(log)


def both(*plans: Callable[[Call], Fault | None]) -> Callable[[Call], Fault | None]:
    def plan(call: Call) -> Fault | None:
        faults = [plan(call) for plan in plans]
        return next((fault for fault in faults if fault is not None), None)

    return plan


def test_interrupted_calls_are_errors_like_others() -> None:
    """Python repeats an interrupted call by itself; one that arrives here is reported."""
    session = Session("sync")
    session.fs.plan = on("pwrite", Fail(errno.EINTR), path="*.seg")
    with pytest.raises(NotWritten) as caught:
        session.log.append(make_batch())
    assert isinstance(caught.value.__cause__, InterruptedError)
    append(session.log, session.oracle)


def test_a_sync_that_fails_in_recovery_is_not_simply_tried_again() -> None:
    """What the last writer left unsynced is in the page cache, and after the failure only there:
    the next open writes it again before it calls it durable."""
    disk = SimulatedDisk()
    log = Log("log", fs=disk, upkeep=False)
    log.append([b"durable"]).wait()
    log.append([b"not durable"])
    disk.kill()
    faulty = FaultyFileSystem(disk, on("sync", LoseDirty(), path="*.seg"))
    with pytest.raises(OutcomeUnknown, match="cannot be made durable"):
        Log("log", fs=faulty, upkeep=False)
    with Log("log", fs=disk, upkeep=False) as log:
        log.append([b"next"]).wait()
    disk.crash(1)
    with Log("log", fs=disk, upkeep=False) as log:
        assert [r.value for r in log.read()] == [b"durable", b"not durable", b"next"]
