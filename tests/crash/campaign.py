"""A random life of a log, and the next, and the next, from one seed.

Each life opens the log, checks it against the oracle, works on it, and ends: by a clean close, by
a kill, by a power cut, between two calls or at any one of them. The oracle goes on to the next.
"""

from __future__ import annotations

import errno
import random
from typing import Any
from unittest.mock import patch

from tailrace import Corrupt, Log, NotWritten, OutcomeUnknown, Record
from tailrace.log import tail
from tailrace.log.commit import Receipt
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    Plan,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
)
from tests.crash.oracle import Oracle, Told, scan
from tests.crash.world import CLOCK, NOW_MS, open_log, side

_SIZES = (8, 8, 30, 30, 120, 400, 900)
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE)


class Campaign:
    """All lives of one log. `story` is what happened, for a person who looks for the bug."""

    def __init__(self, seed: int, *, faults: bool = False) -> None:
        self.rng = random.Random(seed)
        self.story: list[str] = []
        self.disk = SimulatedDisk(seed, strict_names=self.rng.random() < 0.7)
        self.oracle = Oracle(self.disk)
        self.mode = self.rng.choice(("sync", "sync", "async", "async", "none"))
        self._faults = faults
        self._values = 0
        self._sequence = 0
        self._loose: list[tuple[Told, int]] = []  # idempotent batches whose fate is open
        self._options: dict[str, Any] = {
            "segment_bytes": self.rng.choice((200, 500, 2000, 10_000)),
            "index_interval": self.rng.choice((1, 100, 1000)),
            "time_index_interval": self.rng.choice(("1ms", "10ms", "1s")),
            "compression": self.rng.choice(("none", "none", "s2", "zstd")),
            "producer_expiry": "1000d",
        }
        CLOCK.now_ms = NOW_MS

    def run(self) -> None:
        ahead = self.rng.choice((1 << 20, 60, 300, 1000))
        with patch.object(tail, "_AHEAD", ahead):
            self._run()

    def _run(self) -> None:
        lives = self.rng.randint(1, 3)
        for life in range(lives):
            self._note(f"life {life}")
            self._look_from_outside()
            self._live()
            if self.rng.random() < 0.6:
                cut = self.rng.randrange(1 << 30)
                self._note(f"power cut {cut}")
                self.disk.crash(cut)
                if self.mode == "none":
                    self.oracle.forget_unpromised()
            else:
                self._note("kill")
                self.disk.kill()
        self._look_from_outside()
        self._note("the end: open, close, open")
        for _ in range(2):
            log = open_log(self.disk, **self._options)
            self._check(log)
            log.close()
        self._look_from_outside()
        assert not self.disk.open_files(), "files stay open after a close"

    def _note(self, text: str) -> None:
        self.story.append(text)

    # --- a life -----------------------------------------------------------------------------

    def _live(self) -> None:
        fs = FaultyFileSystem(self.disk, self._plan())
        log: Log | None = None
        try:
            log = self._open(fs)
            if log is None:
                return
            self._check(log)
            for _ in range(self.rng.randint(0, 20)):
                self._step(log)
            if self.rng.random() < 0.4:
                self._close(log)
        except SimulatedCrash as crash:
            self._note(f"crashed {crash}")

    def _plan(self) -> Plan | None:
        """A crash at some call, and with `faults` some errors before it."""
        rng = self.rng
        crash_at = rng.randrange(rng.choice((20, 60, 200))) if rng.random() < 0.6 else -1
        crash = Crash(after=rng.random() < 0.5)
        if rng.random() < 0.3:
            crash_write: Fault = ShortWrite(rng.random(), Crash())
        else:
            crash_write = crash
        failing: dict[int, Fault] = {}
        if self._faults:
            for _ in range(rng.choice((1, 1, 2, 5))):
                failing[rng.randrange(120)] = rng.choice(
                    (
                        Fail(rng.choice(_ERRORS)),
                        Fail(errno.EIO, after=True),
                        ShortWrite(rng.random()),
                        ShortWrite(rng.random(), Fail(errno.ENOSPC)),
                        LoseDirty(),
                    )
                )
        if crash_at < 0 and not failing:
            return None

        def plan(call: Call) -> Fault | None:
            if call.n == crash_at:
                return crash_write if call.op == "pwrite" else crash
            return failing.get(call.n)

        return plan

    def _open(self, fs: FaultyFileSystem) -> Log | None:
        flush = self.rng.choice((None, self.mode, "sync"))
        if side("log.json") not in self.disk.files():
            flush = self.mode  # what the first one says, holds
        self._note(f"open {flush} of {self.mode}")
        retention = {"max_records": self.rng.choice((5, 20, 60))}
        if self.rng.random() < 0.7:
            retention = {}
        self._kept = retention.get("max_records")
        try:
            return open_log(fs, flush=flush, retention=retention, **self._options)
        except (OSError, OutcomeUnknown) as error:
            assert self._faults, "an error from nowhere"
            self._note(f"  failed: {error}")
            return None

    def _check(self, log: Log) -> None:
        try:
            found = self.oracle.check(log)
        except OSError as error:
            assert self._faults, "an error from nowhere"
            self._note(f"  check failed: {error}")
        else:
            self._note(f"  {log!r}, lost {found.lost}")

    def _close(self, log: Log) -> None:
        self._note("close")
        try:
            log.close()
        except (OSError, OutcomeUnknown) as error:
            assert self._faults, "an error from nowhere"
            self._note(f"  failed: {error}")

    def _look_from_outside(self) -> None:
        """Somebody reads, without being the writer; what they see counts as seen."""
        if self.rng.random() < 0.35 and side("log.json") in self.disk.files():
            with open_log(self.disk, read_only=True, **self._options) as log:
                found = self.oracle.check(log, behind=self._faults)
                self._note(f"observer: {found.start}..{found.end}, lost {found.lost}")

    # --- what is done in it -----------------------------------------------------------------

    def _step(self, log: Log) -> None:
        CLOCK.tick(self.rng.choice((0, 0, 1, 5, 400)))
        dice = self.rng.random()
        if dice < 0.62:
            self._append(log)
        elif dice < 0.72:
            self._append_once(log)
        elif dice < 0.80:
            self._flush(log)
        elif dice < 0.86:
            self._truncate(log)
        elif dice < 0.92:
            self._vacuum(log)
        else:
            self._check(log)

    def _records(self, count: int) -> list[Record]:
        made = []
        for _ in range(count):
            self._values += 1
            size = self.rng.choice(_SIZES)
            value = (b"%d." % self._values).ljust(size, b"." if size % 20 else b"-")
            stamp = CLOCK.now_ms
            if self.rng.random() < 0.2:
                stamp += self.rng.choice((-5_000, -3, 0, 2, 50_000, -stamp - 7))
            key = self.rng.choice((None, b"", b"key"))
            headers = {"h": b"1"} if self.rng.random() < 0.2 else None
            made.append(Record(timestamp=stamp, key=key, value=value, headers=headers))
        return made

    def _append(self, log: Log) -> None:
        batch = self._records(self.rng.choice((1, 1, 1, 2, 3, 10)))
        told = self.oracle.tell(batch, log.end_offset)
        self._note(f"append {batch[0].value!r:.12} x{len(batch)} at {log.end_offset}")
        try:
            if len(batch) == 1:
                r = batch[0]
                receipt = log.append_one(
                    r.value, key=r.key, headers=r.headers, timestamp=r.timestamp
                )
            else:
                receipt = log.append(batch)
        except NotWritten as error:
            self._refused(told, error)
            return
        except OutcomeUnknown as error:
            self._unknown(error)
            return
        self._receive(log, told, receipt)

    def _append_once(self, log: Log) -> None:
        if self._loose and self.rng.random() < 0.5:
            told, sequence = self._loose[-1]
            if told.promised_at is not None and told.promised_at < log.start_offset:
                return  # deleted since: it may be forgotten, and then it is new again
            self.oracle.tell(told.records, log.end_offset)
        else:
            self._sequence += 1
            sequence = self._sequence
            told = self.oracle.tell(self._records(self.rng.randint(1, 3)), log.end_offset)
            self._loose.append((told, sequence))
        value = told.records[0].value
        self._note(f"append {sequence} {value!r:.12} x{len(told.records)} at {log.end_offset}")
        try:
            receipt = log.append(list(told.records), producer="p", sequence=sequence)
        except NotWritten as error:
            if told.promised_at is None and len(told.bases) == 1:
                self._refused(told, error)
            else:
                self._note(f"  not written again: {error}")
            return
        except OutcomeUnknown as error:
            self._unknown(error)
            return
        except OSError as error:  # the log could not be read to find out
            self._unknown(error)
            return
        if told.promised_at is not None:
            assert receipt.offset == told.promised_at, (
                f"{told.records[0]} is at {told.promised_at}, and again at {receipt.offset}"
            )
        self._receive(log, told, receipt)

    def _receive(self, log: Log, told: Told, receipt: Receipt) -> None:
        """The append is made. Wait for it, or don't."""
        assert receipt.offset in told.bases or told.promised_at is not None
        if log.flush_mode != "sync":
            # In the mode `none` a receipt says nothing about a power cut, nor do offsets.
            if self.mode != "none":
                self.oracle.hand_out(told, receipt.offset)
            return
        if self.rng.random() < 0.7:
            try:
                receipt.wait()
            except OutcomeUnknown as error:
                self._unknown(error)
            else:
                self._note(f"  durable at {receipt.offset}")
                self.oracle.promise(told, receipt.offset)

    def _refused(self, told: Told, error: Exception) -> None:
        assert self._faults, "an error from nowhere"
        self._note(f"  not written: {error}")
        self.oracle.refuse(told)

    def _unknown(self, error: Exception) -> None:
        assert self._faults, "an error from nowhere"
        self._note(f"  unknown: {error}")

    def _flush(self, log: Log) -> None:
        self._note("flush")
        end = log.end_offset
        try:
            log.flush()
        except (OutcomeUnknown, OSError) as error:
            self._unknown(error)
            return
        assert log.durable_offset >= end
        try:
            self.oracle.promise_visible(log)
        except OSError as error:
            self._unknown(error)

    def _truncate(self, log: Log) -> None:
        offset = self.rng.randint(log.start_offset, log.end_offset)
        self._note(f"truncate before {offset}")
        self.oracle.allow_start(offset)
        try:
            log.truncate_before(offset)
        except (NotWritten, OutcomeUnknown) as error:
            self._unknown(error)
        else:
            self.oracle.truncate(offset)

    def _vacuum(self, log: Log) -> None:
        self._note("vacuum")
        try:
            if self._kept is not None:
                self._allow_start(log, self._kept)
            report = log.vacuum()
        except (NotWritten, OutcomeUnknown, OSError, Corrupt) as error:
            self._unknown(error)
        else:
            self._note(f"  {report}")
            self.oracle.truncate(report.start_offset)

    def _allow_start(self, log: Log, kept: int) -> None:
        """Retention may go so far that `kept` records stay, with those that nobody sees yet."""
        found = scan(log)
        offsets = [*(r.offset for r in found.records), *range(found.end, log.end_offset)]
        if len(offsets) > kept:
            self.oracle.allow_start(offsets[-kept])
