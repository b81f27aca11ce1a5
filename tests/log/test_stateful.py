"""Anything that can be done to a log, in any order, against a list that does the same.

The model is a list of what was appended. In a `sync` log the visible end is the durable one, so
the model also knows how far a flush must have got.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace import Log, NotWritten, OffsetOutOfRange, Record
from tests.log.helpers import T0, bases, copy_as_killed, flip, offsets, require

pytestmark = pytest.mark.no_cover

VALUES = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 300))
STAMPS = st.integers(T0 - 50, T0 + 50)
RECORDS = st.lists(st.tuples(VALUES, STAMPS), min_size=1, max_size=5)

Fields = tuple[int, int, bytes | None]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-stateful-"))
        self.copies = 0
        self.records: list[Fields] = []
        self.ends: list[int] = []  # of batches
        self.start = 0
        self.durable = 0  # at least
        self.sequence = 0
        self.sequences: dict[int, tuple[int, int]] = {}

    @initialize(
        flush=st.sampled_from(["sync", "sync", "async", "none"]),
        compression=st.sampled_from(["none", "s2", "zstd"]),
        segment_bytes=st.sampled_from([1, 150, 400, 2_000]),
        index_interval=st.sampled_from([1, 100, 4096]),
        time_index_interval=st.sampled_from([0, 0.01, 1]),
        max_records=st.sampled_from([0, 5, 20]),
    )
    def create(self, flush: str, max_records: int, **options: Any) -> None:
        self.flush_mode = flush
        self.max_records = max_records
        self.options: dict[str, Any] = {
            **options,
            "retention": {"max_records": max_records},
            "open_files": 2,
            "upkeep": False,
        }
        self.log = Log(self.path, flush=flush, **self.options)

    @property
    def path(self) -> Path:
        return self.folder / str(self.copies)

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def visible(self) -> int:
        return self.log.durable_offset if self.flush_mode == "sync" else self.end

    def added(self, given: list[tuple[bytes | None, int]], offset: int) -> None:
        assert offset == self.end
        self.records += [(offset + n, stamp, value) for n, (value, stamp) in enumerate(given)]
        self.ends.append(self.end)

    # --- append -----------------------------------------------------------------------------

    @rule(given=RECORDS, wait=st.booleans())
    def append(self, given: list[tuple[bytes | None, int]], wait: bool) -> None:
        receipt = self.log.append([Record(timestamp=s, value=v) for v, s in given])
        assert (receipt.count, receipt.end_offset) == (len(given), receipt.offset + len(given))
        self.added(given, receipt.offset)
        if wait:
            assert receipt.wait().done
            if self.flush_mode == "sync":
                self.durable = self.end

    @rule(value=VALUES, stamp=STAMPS)
    def append_one(self, value: bytes | None, stamp: int) -> None:
        self.added([(value, stamp)], self.log.append_one(value, timestamp=stamp).offset)

    @rule(given=RECORDS)
    def append_many(self, given: list[tuple[bytes | None, int]]) -> None:
        receipt = self.log.append_many(Record(timestamp=s, value=v) for v, s in given)
        self.added(given, receipt.offset)

    @rule(given=RECORDS)
    def append_once(self, given: list[tuple[bytes | None, int]]) -> None:
        self.sequence += 1
        records = [Record(timestamp=s, value=v) for v, s in given]
        receipt = self.log.append(records, producer="p", sequence=self.sequence)
        self.added(given, receipt.offset)
        self.sequences[self.sequence] = (receipt.offset, receipt.count)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.sequences)))
        if self.sequences[sequence][0] < self.start:
            return  # its batch may be deleted, and forgotten with it
        try:
            receipt = self.log.append([b"repeated"], producer="p", sequence=sequence)
        except NotWritten:
            assert sequence <= self.sequence - 64
        else:
            assert (receipt.offset, receipt.count) == self.sequences[sequence]

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = self.end
        assert self.log.durable_offset == self.end

    # --- delete -----------------------------------------------------------------------------

    @rule(data=st.data())
    def truncate_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.log.truncate_before(offset)
        self.start = max(self.start, offset)
        if self.flush_mode != "none":
            self.durable = max(self.durable, offset)

    @rule()
    def vacuum(self) -> None:
        report = self.log.vacuum()
        start = self.log.start_offset
        assert report.start_offset == start >= self.start
        if start > self.start:  # by number of records, whole segments
            assert self.max_records
            assert self.end - start >= self.max_records
        self.start = start
        kept = bases(self.path)
        assert len(kept) == 1 or kept[1] > start

    # --- reopen -----------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.log.close()
        if self.flush_mode != "none":
            self.durable = self.end
        self.log = Log(self.path, **self.options)

    @rule(index=st.sampled_from(["", "idx", "tix"]), drop_seals=st.booleans())
    def reopen_killed(self, index: str, drop_seals: bool) -> None:
        """As if the process had been killed: everything is still in the page cache."""
        old = self.path
        self.copies += 1
        copy_as_killed(old, self.path)
        self.log.close()
        shutil.rmtree(old)
        if index:
            flip(max(self.path.glob(f"*.{index}")), 0)
        if drop_seals:
            (self.path / ".tailrace" / "seals").unlink(missing_ok=True)
        self.log = Log(self.path, **self.options)

    # --- read -------------------------------------------------------------------------------

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        visible = self.visible
        start = data.draw(st.integers(0, self.end + 2))
        end = data.draw(st.one_of(st.none(), st.integers(0, self.end + 2)))
        if self.start <= start <= visible:
            last = visible if end is None else min(end, visible)
            found = [fields(record) for record in self.log.read(start, end)]
            assert found == self.records[start:last]
            covered = [b.base_offset + b.count for b in self.log.read_batches(start, end)]
            expected = [e for e in self.ends if e > start and self.begins(e) < last]
            assert covered == (expected if start < last else [])
        else:
            with pytest.raises(OffsetOutOfRange) as caught:
                self.log.read(start, end)
            assert (caught.value.low, caught.value.high) == (self.start, visible)

    def begins(self, end: int) -> int:
        """The first offset of the batch that ends at `end`."""
        before = self.ends.index(end) - 1
        return self.ends[before] if before >= 0 else 0

    @rule(stamp=st.integers(T0 - 52, T0 + 52))
    def offset_at(self, stamp: int) -> None:
        visible = self.visible
        expected = (o for o, s, _ in self.records[self.start : visible] if s >= stamp)
        assert self.log.offset_at(stamp) == next(expected, visible)

    @rule()
    def read_only_view(self) -> None:
        with Log(self.path, read_only=True) as reader:
            assert (reader.start_offset, reader.end_offset) == (self.start, self.visible)
            assert [fields(r) for r in reader.read()] == self.records[self.start : self.visible]
            middle = (self.start + self.visible) // 2
            assert offsets(reader.read(middle)) == list(range(middle, self.visible))

    # --- always -----------------------------------------------------------------------------

    @invariant()
    def ends_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        assert self.durable <= self.log.durable_offset <= self.end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            with Log(self.path, read_only=True) as log:
                assert [fields(record) for record in log.read()] == self.records[self.start :]
        shutil.rmtree(self.folder)


def fields(record: Record) -> Fields:
    return require(record.offset), require(record.timestamp), record.value


def test_a_log_behaves_like_a_list() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=40, stateful_step_count=30)
    )


@pytest.mark.long
def test_a_log_behaves_like_a_list_for_long() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=2_000, stateful_step_count=60)
    )
