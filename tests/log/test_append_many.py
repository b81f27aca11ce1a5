"""append_many: any number of records, in as few batches as the limits allow."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, Log, NotWritten, Record
from tailrace.kernel import TooLarge
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Fail, FaultyFileSystem, on
from tests.log.conftest import OpenLog
from tests.log.helpers import pending, values


def test_few_records_are_one_batch(log: Log) -> None:
    receipt = log.append_many([b"1", ("k", b"2"), None])
    receipt.wait()
    assert (receipt.offset, receipt.count, receipt.end_offset) == (0, 3, 3)
    assert [batch.count for batch in log.read_batches()] == [3]


def test_split_at_65535_records(open_log: OpenLog) -> None:
    log = open_log(flush="async")
    receipt = log.append_many(b"%d" % n for n in range(65_536))
    assert (receipt.offset, receipt.count, receipt.end_offset) == (0, 65_536, 65_536)
    assert [batch.count for batch in log.read_batches()] == [65_535, 1]
    assert values(log.read(65_534)) == [b"65534", b"65535"]


def test_split_by_bytes(open_log: OpenLog) -> None:
    log = open_log(flush="async", max_batch_bytes=1_000)
    given = [b"%0100d" % n for n in range(50)]
    receipt = log.append_many(given)
    assert (receipt.count, log.end_offset) == (50, 50)
    assert values(log.read()) == given
    batches = list(log.read_batches())
    assert all(len(batch.data) <= 1_044 for batch in batches)
    assert len(batches) <= 16


def test_the_receipt_waits_for_the_last_batch(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=1_000)
    receipt = log.append_many([bytes(400)] * 10)
    assert pending(receipt)
    assert log.durable_offset == 0
    assert receipt.wait() is receipt
    assert receipt.done
    assert log.durable_offset == 10


def test_the_offset_is_the_first_one(log: Log) -> None:
    log.append([b"before"] * 5)
    assert log.append_many([b"x", b"y"]).offset == 5


def test_nothing_to_append(log: Log) -> None:
    with pytest.raises(ValueError, match="append_many was given no records"):
        log.append_many([])
    assert log.end_offset == 0


def test_one_record_over_the_limit_says_what_went_in_before(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=1_000)
    given = [b"a"] * 10 + [bytes(2_000)] + [b"b"]
    with pytest.raises(
        TooLarge, match=r"a record of 2006 bytes, .* max_batch_bytes is 1000"
    ) as caught:
        log.append_many(given)
    assert caught.value.__notes__ == [f"the {log.end_offset} records before were appended"]


def test_a_wrong_record_says_what_went_in_before(open_log: OpenLog) -> None:
    log = open_log(flush="async")
    with pytest.raises(TypeError, match="not int") as caught:
        log.append_many(iter([b""] * 65_535 + [5]))
    assert log.end_offset == 65_535
    assert caught.value.__notes__ == ["the 65535 records before were appended"]


def test_a_source_that_fails_comes_out(log: Log) -> None:
    def source() -> Iterator[bytes]:
        yield b"1"
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        log.append_many(source())


def test_a_failing_disk_in_the_middle(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs, max_batch_bytes=1_000) as log:
        fs.plan = on("pwrite", Fail(errno.ENOSPC), path="*.seg", nth=2)
        given = [b"%0400d" % n for n in range(20)]
        with pytest.raises(NotWritten) as caught:
            log.append_many(given)
        appended = caught.value.appended
        assert 0 < appended == log.end_offset < 20
        rest = log.append_many(given[appended:])
        assert rest.offset == appended
        rest.wait()
        assert values(log.read()) == given


def test_on_a_closed_log(log: Log) -> None:
    log.close()
    with pytest.raises(Closed):
        log.append_many([b"x"])


@pytest.mark.parametrize("given", ["text", b"bytes", bytearray(b"bytes"), memoryview(b"bytes")])
def test_one_value_is_not_many(log: Log, given: Any) -> None:
    with pytest.raises(TypeError, match="put it in a list"):
        log.append_many(given)
    assert log.end_offset == 0


@pytest.mark.parametrize(
    "record",
    [
        Record(value=b"v", headers={"h": b"x" * 300}),
        (b"k", b"v", {"h": "x" * 300}),
        "ü" * 150,
        ("ü" * 80, "ü" * 80),
        bytearray(300),
        None,
    ],
    ids=["headers", "tuple", "text", "pair", "bytearray", "null"],
)
def test_records_that_are_larger_than_they_look(open_log: OpenLog, record: object) -> None:
    log = open_log(max_batch_bytes=1_000, flush="async", upkeep=False)
    receipt = log.append_many([record] * 40)
    assert (receipt.offset, receipt.count, receipt.end_offset) == (0, 40, 40)
    assert len(list(log.read())) == 40
    assert all(len(batch.data) <= 1_044 for batch in log.read_batches())
