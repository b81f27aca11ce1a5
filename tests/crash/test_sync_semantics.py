"""Nothing is acknowledged before it is on the disk: bytes, and the name of their file.

A recorder between the engine and the disk sees every call, so a missing sync is found by its
absence and not by luck.
"""

from __future__ import annotations

import pytest

from tailrace.testing import Range, RecordingFileSystem, SimulatedDisk, assert_durable
from tests.crash.workloads import make_batch
from tests.crash.world import Placed, offsets, open_log, placed_batches, side


class Notary:
    """Marks each acknowledgement, and checks what was durable then."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.fs = RecordingFileSystem(self.disk)
        self._marks = 0

    def certify(self, below: int) -> None:
        """Everything below this offset was just promised."""
        self._marks += 1
        self.fs.mark(f"ack {self._marks}")
        ranges = [
            Range(batch.path, batch.start, batch.end)
            for batch in placed_batches(self.disk)
            if batch.offsets.start < below and self.is_recorded(batch)
        ]
        assert ranges
        assert_durable(self.fs.trace, f"ack {self._marks}", ranges)

    def is_recorded(self, batch: Placed) -> bool:
        return any(event.path == batch.path for event in self.fs.trace)

    def certify_file(self, path: str, size: int, start: int = 0) -> None:
        self._marks += 1
        self.fs.mark(f"ack {self._marks}")
        assert_durable(self.fs.trace, f"ack {self._marks}", [Range(path, start, size)])


def test_each_acknowledged_record_was_synced_before() -> None:
    """Through rolls, with some receipts that nobody waits for."""
    notary = Notary()
    log = open_log(notary.fs)
    for i in range(20):
        receipt = log.append(make_batch(1 + i % 4))
        if i % 3:
            receipt.wait()
            assert receipt.done
            notary.certify(receipt.end_offset)
    assert len({batch.path for batch in placed_batches(notary.disk)}) > 2


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_flush_covers_everything(flush: str) -> None:
    notary = Notary()
    log = open_log(notary.fs, flush=flush)
    for i in range(20):
        log.append(make_batch())
        if i % 7 == 6:
            log.flush()
            assert log.durable_offset == log.end_offset
            notary.certify(log.end_offset)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_close_covers_everything(flush: str) -> None:
    notary = Notary()
    log = open_log(notary.fs, flush=flush)
    for _ in range(12):
        end = log.append(make_batch()).end_offset
    log.close()
    notary.certify(end)


def test_a_strict_handle_of_a_loose_log() -> None:
    notary = Notary()
    open_log(notary.fs, flush="none").close()
    log = open_log(notary.fs, flush="sync")
    for _ in range(9):
        notary.certify(log.append(make_batch()).wait().end_offset)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_durable_offset_is_never_ahead(flush: str) -> None:
    """After every single call, whoever asks is told the truth."""
    notary = Notary()
    log = open_log(notary.fs, flush=flush)
    for i in range(15):
        log.append(make_batch())
        if i == 11:
            log.flush()
        if log.durable_offset:
            notary.certify(log.durable_offset)


def test_a_recovered_record_is_synced_before_it_counts() -> None:
    """Recovery reads the page cache; what it finds there may not be on the disk."""
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=150)
    for _ in range(5):
        log.append(make_batch())
    disk.kill()
    at_risk = [path for path in disk.unsynced() if path.endswith(".seg")]
    assert at_risk
    log = open_log(disk)
    assert log.durable_offset == log.end_offset == 10
    assert not [path for path in disk.unsynced() if path.endswith(".seg")]


def test_the_start_offset_is_durable_when_truncate_returns() -> None:
    notary = Notary()
    log = open_log(notary.fs)
    log.append(make_batch(5)).wait()
    log.truncate_before(3)
    size = len(notary.disk.read(side("start")))
    slot = 512
    notary.certify_file(side("start"), size, slot)


def test_offsets_are_reserved_before_they_are_handed_out() -> None:
    """An async receipt is complete at once; its offset must not come again all the same."""
    notary = Notary()
    log = open_log(notary.fs, flush="async")
    receipt = log.append(make_batch())
    assert receipt.done
    slot_of_the_first = 512
    end = len(notary.disk.read(side("reserved")))
    notary.certify_file(side("reserved"), end, slot_of_the_first)


def test_readers_of_a_sync_log_see_durable_records_only() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append(make_batch()).wait()
    log.append(make_batch())
    observer = open_log(disk, read_only=True)
    assert offsets(log.read()) == offsets(observer.read()) == [0, 1]
    log.flush()
    assert offsets(log.read()) == offsets(observer.read()) == [0, 1, 2, 3]
