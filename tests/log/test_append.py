"""Append: every form of a record, one batch per call, offsets without holes."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace import Headers, Log, Receipt, Record
from tailrace.kernel import encode
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, offsets, tree, values


@pytest.mark.parametrize(
    ("given", "key", "value", "headers"),
    [
        (b"v", None, b"v", {}),
        ("text", None, b"text", {}),
        (bytearray(b"v"), None, b"v", {}),
        (memoryview(b"v"), None, b"v", {}),
        (None, None, None, {}),
        (b"", None, b"", {}),
        (("k", "v"), b"k", b"v", {}),
        ((b"k", None), b"k", None, {}),
        ((None, b"v"), None, b"v", {}),
        ((b"", b""), b"", b"", {}),
        (("k", "v", {"a": "b", "c": b"\0"}), b"k", b"v", {"a": b"b", "c": b"\0"}),
        (("k", "v", [("a", b"1"), ("a", b"2")]), b"k", b"v", [("a", b"1"), ("a", b"2")]),
        (("k", "v", None), b"k", b"v", {}),
        (Record(key="k", value="ü", headers={"h": "x"}), b"k", "ü".encode(), {"h": b"x"}),
        (Record(), None, None, {}),
    ],
)
def test_every_form_of_a_record(
    log: Log, given: object, key: bytes | None, value: bytes | None, headers: Any
) -> None:
    before = time.time_ns() // 1_000_000
    log.append([given]).wait()
    (record,) = log.read()
    assert (record.offset, record.key, record.value) == (0, key, value)
    assert record.headers == headers
    assert record.timestamp is not None
    assert before <= record.timestamp <= time.time_ns() // 1_000_000


def test_a_mixed_batch_is_one_batch_in_order(log: Log) -> None:
    receipt = log.append([b"1", ("k", b"2"), Record(value=b"3", timestamp=T0), None])
    receipt.wait()
    assert (receipt.offset, receipt.count, receipt.end_offset) == (0, 4, 4)
    assert values(log.read()) == [b"1", b"2", b"3", None]
    assert offsets(log.read()) == [0, 1, 2, 3]
    assert len(list(log.read_batches())) == 1


def test_records_of_a_generator(log: Log) -> None:
    log.append(value for value in (b"1", b"2")).wait()  # type: ignore[arg-type]
    assert values(log.read()) == [b"1", b"2"]


def test_offsets_follow_each_other(log: Log) -> None:
    assert [log.append([b"x"] * n).offset for n in (1, 3, 2)] == [0, 1, 4]
    assert log.end_offset == 6


def test_the_offset_and_time_of_a_read_record_can_be_appended_again(log: Log) -> None:
    log.append([Record(timestamp=T0, key=b"k", value=b"v", headers={"a": "b"})]).wait()
    (record,) = log.read()
    log.append([record]).wait()
    first, second = log.read()
    assert second.offset == 1  # the log gives offsets, whatever the record brings
    assert (first.timestamp, first.key, first.value, first.headers) == (
        second.timestamp,
        second.key,
        second.value,
        second.headers,
    )


@pytest.mark.parametrize("timestamp", [T0, 0, -5, 2**63 - 1, -(2**63)])
def test_any_timestamp_survives(log: Log, timestamp: int) -> None:
    log.append_one(b"v", timestamp=timestamp).wait()
    log.append([Record(timestamp=timestamp, value=b"v")]).wait()
    assert [record.timestamp for record in log.read()] == [timestamp, timestamp]


def test_append_one(log: Log) -> None:
    receipt = log.append_one("v", key="k", headers=[("a", "1"), ("a", "2")], timestamp=T0)
    assert isinstance(receipt, Receipt)
    assert (receipt.offset, receipt.count) == (0, 1)
    log.append_one(None).wait()
    first, second = log.read()
    assert first == Record(offset=0, timestamp=T0, key=b"k", value=b"v", headers=first.headers)
    assert first.headers == Headers([("a", b"1"), ("a", b"2")])
    assert (second.key, second.value, len(second.headers)) == (None, None, 0)


def test_append_one_and_append_leave_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "list"):
        with Log(tmp_path / name) as log:
            for number in range(3):
                if name == "one":
                    log.append_one(b"v%d" % number, key=b"k", headers={"h": b"x"}, timestamp=T0)
                else:
                    log.append([Record(T0, T0, b"k", b"v%d" % number, {"h": b"x"})])
    one, many = (
        [(r.timestamp, r.key, r.value, r.headers) for r in read_all(tmp_path / name)]
        for name in ("one", "list")
    )
    assert one == many


def read_all(path: Path) -> list[Record]:
    with Log(path, read_only=True) as log:
        return list(log.read())


@pytest.mark.parametrize("compression", ["none", "s2", "zstd"])
def test_compression_is_invisible(open_log: OpenLog, compression: str) -> None:
    log = open_log(compression=compression)
    given = [b"abc" * 300, b"", None, b"abc" * 300]
    log.append(given).wait()
    log.append_one(b"abc" * 300).wait()
    assert values(log.read()) == [*given, b"abc" * 300]
    stored = sum(len(batch.data) for batch in log.read_batches())
    assert (stored < 900) == (compression != "none")


def test_codecs_may_be_mixed_in_one_segment(open_log: OpenLog, path: Path) -> None:
    for compression in ("none", "s2", "zstd", "none"):
        with open_log(compression=compression) as log:
            log.append([compression.encode() * 200]).wait()
    with open_log() as log:
        assert values(log.read()) == [c * 200 for c in (b"none", b"s2", b"zstd", b"none")]
    assert len(list(path.glob("*.seg"))) == 1


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], ValueError, "at least one record"),
        ([5], TypeError, "record 0 must be bytes, str"),
        ([b"x", ("a", "b", {}, "d")], TypeError, "record 1 must be .* not a tuple of 4"),
        (b"bytes", TypeError, "put it in a list"),
        ("text", TypeError, "put it in a list"),
        ([("k", 5)], TypeError, "must be bytes or str, not int"),
        ([("k", b"v", {"a": 5})], TypeError, "header 'a' must be bytes or str, not int"),
        ([("k", b"v", {5: b""})], TypeError, "header's name must be a str"),
    ],
)
def test_what_is_no_record_is_refused_and_nothing_changes(
    log: Log, path: Path, given: Any, error: type[Exception], message: str
) -> None:
    log.append([b"before"]).wait()
    files = tree(path)
    with pytest.raises(error, match=message):
        log.append(given)
    assert tree(path) == files
    assert log.end_offset == 1
    assert log.append([b"after"]).wait().offset == 1


@pytest.mark.parametrize("timestamp", [1.5, "1", 2**63])
def test_a_wrong_timestamp_is_refused(log: Log, timestamp: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timestamp"):
        log.append_one(b"v", timestamp=timestamp)
    assert log.end_offset == 0


def test_a_draft_that_is_too_large(open_log: OpenLog) -> None:
    """Whoever encodes a batch before may have done so for a log with another limit."""
    with open_log(max_batch_bytes="1KiB") as log:
        with pytest.raises(ValueError, match="a batch may hold 1024; split them"):
            log.append_draft(encode([b"x" * 1000] * 2, T0))
        one = "a record of 20.. bytes, .* more than a batch may hold: max_batch_bytes is 1024"
        with pytest.raises(ValueError, match=one):
            log.append_draft(encode([b"x" * 2000], T0))
        with pytest.raises(ValueError, match=one):
            log.append([b"x" * 2000])
        with pytest.raises(ValueError, match=one):
            log.append_many([b"x", b"x" * 2000])
        assert log.end_offset == 1
        with pytest.raises(ValueError, match=one):
            log.append_one(b"x" * 2000)
        assert log.end_offset == 1


def test_a_log_is_not_pickled(log: Log) -> None:
    with pytest.raises(TypeError, match="pass its path, and open it in the other process"):
        pickle.dumps(log)


def test_headers_that_are_bytes_are_refused(tmp_path: Path) -> None:
    """Even if they are what would be on the disk, which nobody has checked."""
    with Log(tmp_path, flush="none") as log:
        for headers in (b"", b"\1\1a\1b", "text"):
            with pytest.raises(TypeError, match="headers must be a mapping"):
                log.append_one(b"v", headers=headers)
            with pytest.raises(TypeError, match="headers must be a mapping"):
                log.append([(b"k", b"v"), (b"k", b"v", headers)])
        assert log.end_offset == 0
