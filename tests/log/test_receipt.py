"""Receipts in threads: what done means, waiting, time-outs, and the sharing of flushes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tailrace import Log, NotWritten, OutcomeUnknown
from tailrace.log import commit
from tailrace.log.commit import _Waiter
from tailrace.log.fs import OsFileSystem
from tailrace.log.locks import ProcessLock
from tailrace.testing import (
    Fail,
    FaultyFileSystem,
    Range,
    RecordingFileSystem,
    assert_durable,
    on,
)
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    WAIT,
    Gate,
    eventually,
    in_threads,
    pending,
    segment,
    segment_syncs,
    side_file,
    values,
)
from tests.threads import our_threads


def test_a_receipt_is_pending_until_waited_for(log: Log) -> None:
    receipt = log.append([b"1", b"2"])
    assert pending(receipt)
    assert log.durable_offset == 0
    assert receipt.wait() is receipt
    assert receipt.done
    assert log.durable_offset == 2
    assert receipt.wait(0) is receipt  # at once: no time is needed


def test_waiting_for_the_last_covers_those_before(log: Log) -> None:
    receipts = [log.append([b"x"]) for _ in range(5)]
    receipts[-1].wait()
    assert all(receipt.done for receipt in receipts)


def test_waiting_for_the_first_covers_what_was_written_by_then(log: Log) -> None:
    receipts = [log.append([b"x"]) for _ in range(5)]
    receipts[0].wait()
    assert all(receipt.done for receipt in receipts)


def test_a_receipt_is_done_after_close(log: Log) -> None:
    receipt = log.append([b"x"])
    log.close()
    assert receipt.done
    assert receipt.wait() is receipt


def test_when_a_receipt_is_done_its_bytes_are_on_the_disk(path: Path) -> None:
    fs = RecordingFileSystem(OsFileSystem())
    with Log(path, fs=fs, segment_bytes=300) as log:
        for number in range(10):
            receipt = log.append([b"%0100d" % number]).wait()
            fs.mark(f"ack {receipt.offset}")
            (batch,) = log.read_batches(receipt.offset)
            base = max(int(f.stem) for f in path.glob("*.seg"))
            end = segment(path, base).stat().st_size
            written = Range(str(segment(path, base)), end - len(batch.data), end)
            assert_durable(fs.trace, f"ack {receipt.offset}", [written])


# --- one flush for many -------------------------------------------------------------------------


def test_a_lone_writer_flushes_by_itself(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:
        before = segment_syncs(fs)
        for _ in range(10):
            log.append([b"x"]).wait()
        assert segment_syncs(fs) == before + 10
        assert not our_threads()


def test_what_is_durable_already_costs_nothing(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:
        receipt = log.append([b"x"]).wait()
        calls = len(fs.calls)
        receipt.wait()
        log.flush()
        assert len(fs.calls) == calls


def test_many_appends_one_flush(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:
        before = segment_syncs(fs)
        for receipt in [log.append([b"x"]) for _ in range(100)]:
            receipt.wait()
        assert segment_syncs(fs) == before + 1


def test_64_threads_share_flushes(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate
        gate.shut()
        first = threading.Thread(target=log.append([b"first"]).wait)
        first.start()
        assert gate.reached.wait(WAIT)  # a flush is under way
        before = segment_syncs(fs)
        appended = threading.Semaphore(0)

        def work(number: int) -> None:
            receipt = log.append([b"%d" % number])
            appended.release()
            receipt.wait()
            assert receipt.done

        def let_go() -> None:
            for _ in range(64):
                assert appended.acquire(timeout=WAIT)
            gate.open()

        opener = threading.Thread(target=let_go)
        opener.start()
        in_threads(64, work)
        for thread in (first, opener):
            thread.join(WAIT)
        # One for all that came while the first was under way; another for a straggler at most.
        assert 1 <= segment_syncs(fs) - before <= 2
        assert log.durable_offset == 65
        assert len(set(values(log.read()))) == 65
        assert not our_threads()


def test_a_late_append_takes_the_next_flush(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate
        gate.shut()
        early = log.append([b"early"])
        flusher = threading.Thread(target=early.wait)
        flusher.start()
        assert gate.reached.wait(WAIT)
        late = log.append([b"late"])  # in the file, but the flush had begun
        waiter = threading.Thread(target=late.wait)
        waiter.start()
        before = segment_syncs(fs)
        gate.open()
        flusher.join(WAIT)
        waiter.join(WAIT)
        assert early.done
        assert late.done
        assert segment_syncs(fs) == before + 1


def test_a_time_out_leaves_the_append_alone(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate
        gate.shut()
        flusher = threading.Thread(target=log.append([b"1"]).wait)
        flusher.start()
        assert gate.reached.wait(WAIT)
        receipt = log.append([b"2"])
        for timeout in (0, 0.01, -1):
            with pytest.raises(TimeoutError, match="offset 1 is not durable yet"):
                receipt.wait(timeout)
        assert pending(receipt)
        gate.open()
        flusher.join(WAIT)
        assert receipt.wait(WAIT).done
        assert values(log.read()) == [b"1", b"2"]


def test_a_turn_that_nobody_takes_goes_to_the_next(path: Path) -> None:
    """Of three that wait, the first gives up; the others are still served."""
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log:
        fs.plan = gate
        gate.shut()
        flusher = threading.Thread(target=log.append([b"1"]).wait)
        flusher.start()
        assert gate.reached.wait(WAIT)
        hasty, patient = log.append([b"2"]), log.append([b"3"])
        with pytest.raises(TimeoutError):
            hasty.wait(0.01)
        waiters = [threading.Thread(target=patient.wait) for _ in range(2)]
        for waiter in waiters:
            waiter.start()
        gate.open()
        for thread in (flusher, *waiters):
            thread.join(WAIT)
            assert not thread.is_alive()
        assert hasty.done
        assert patient.done


def test_threads_that_append_and_wait_all_get_through(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=1_000)
    seen: set[int] = set()

    def work(number: int) -> None:
        for i in range(30):
            receipt = log.append([b"%d-%d" % (number, i)]).wait()
            assert receipt.done
            assert receipt.offset not in seen
            seen.add(receipt.offset)

    in_threads(8, work)
    assert seen == set(range(240))
    assert len(set(values(log.read()))) == 240


def test_close_waits_for_a_flush_under_way(path: Path) -> None:
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    log = Log(path, fs=fs)
    fs.plan = gate
    gate.shut()
    receipt = log.append([b"x"])
    flusher = threading.Thread(target=receipt.wait)
    flusher.start()
    assert gate.reached.wait(WAIT)
    closer = threading.Thread(target=log.close)
    closer.start()
    eventually(lambda: repr(log).endswith("closed)"))
    gate.open()
    flusher.join(WAIT)
    closer.join(WAIT)
    assert receipt.done
    with Log(path) as log:
        assert values(log.read()) == [b"x"]


def test_an_interrupted_wait_leaves_the_log_fine(path: Path) -> None:
    """Ctrl-C while another thread flushes."""
    fs, gate = FaultyFileSystem(OsFileSystem()), Gate()
    with Log(path, fs=fs) as log, on_signal(KeyboardInterrupt):
        fs.plan = gate
        gate.shut()
        flusher = threading.Thread(target=log.append([b"1"]).wait)
        flusher.start()
        assert gate.reached.wait(WAIT)
        receipt = log.append([b"2"])
        for timeout in (None, WAIT):
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                receipt.wait(timeout)
            timer.join(WAIT)
        gate.open()
        flusher.join(WAIT)
        assert receipt.wait(WAIT).done
        assert values(log.read()) == [b"1", b"2"]


@contextmanager
def on_signal(error: type[BaseException]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_turn_that_comes_too_late_goes_to_the_next(log: Log) -> None:
    """Who gave up may have been chosen to flush in the same moment."""
    assert log._writer is not None
    committer = log._writer.committer
    next_one = _Waiter(6, -1, threading.Lock())
    assert next_one.turn.acquire()
    committer._waiters.append(next_one)
    committer._holder = threading.get_ident()  # we were chosen
    committer._withdraw()
    assert next_one.turn.acquire(blocking=False)
    assert committer._holder == next_one.thread
    assert not committer._waiters
    committer._holder = 0


def test_a_turn_that_nobody_gives_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two interrupts, the second in the clean-up after the first, may leave it with a thread that
    has gone, or does something else."""
    assert log._writer is not None
    monkeypatch.setattr(commit, "_PATIENCE_S", 0.01)
    gone = threading.Thread(target=int)
    gone.start()
    gone.join()
    other = threading.Event()
    busy = threading.Thread(target=other.wait)
    busy.start()
    for holder in (gone.ident, busy.ident):
        assert holder is not None
        log._writer.committer._holder = holder
        assert log.append([b"1"]).wait(WAIT).done
    other.set()
    busy.join()


def test_a_watermark_that_cannot_be_written_is_no_failure(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs) as log:
        fs.plan = on("pwrite", Fail(errno.ENOSPC), path="*watermark")
        assert log.append([b"1"]).wait().done  # the records are on the disk
        assert "cannot write the watermark" in caplog.text
        assert values(log.read()) == [b"1"]
        log.append([b"2"]).wait()
    with Log(path) as log:
        assert values(log.read()) == [b"1", b"2"]


def test_a_flush_that_failed_is_told_to_everybody(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    log = Log(path, fs=fs)
    log.append([b"durable"]).wait()
    fs.plan = on("sync", Fail(errno.EIO), path="*.seg")
    receipt = log.append([b"lost?"])
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="Reopen the log, and repeat the append"):
            receipt.wait()
    assert pending(receipt)
    with pytest.raises(OutcomeUnknown):
        log.flush()
    with pytest.raises(NotWritten, match="nothing can be appended; reopen the log"):
        log.append([b"more"])
    assert values(log.read()) == [b"durable"]  # readers go on
    log.close()
    with Log(path) as log:
        assert values(log.read(0, 1)) == [b"durable"]
        assert log.append([b"again"]).wait().offset >= 2  # no offset twice


def test_a_timeout_holds_when_another_process_flushes(open_log: OpenLog, path: Path) -> None:
    receipt = open_log().append_one(b"0")
    flushing = ProcessLock(str(side_file(path, "lock.flush")))
    assert flushing.acquire()
    with pytest.raises(TimeoutError):
        receipt.wait(0.05)
    assert pending(receipt)
    flushing.release()
    assert receipt.wait(WAIT).done
    flushing.close()


def test_a_log_that_was_dropped(path: Path) -> None:
    with pytest.raises(OutcomeUnknown, match="dropped without a close"):
        Log(path).append_one(b"0").wait()
