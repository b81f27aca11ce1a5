"""Arrow in, Arrow out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, NotWritten, Record
from tailrace.kernel import TooLarge, arrow, batches
from tailrace.log.fs import OsFileSystem
from tailrace.testing import Fail, FaultyFileSystem, on
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, values

pa = pytest.importorskip("pyarrow")

COLUMNS = ["offset", "timestamp", "key", "value", "headers"]


def table(log: Log, *arguments: Any, **options: Any) -> Any:
    return pa.Table.from_batches(list(log.read_arrow(*arguments, **options)))


@pytest.fixture(params=["none", "s2", "zstd"])
def filled(request: pytest.FixtureRequest, open_log: OpenLog) -> Log:
    log = open_log(compression=request.param, segment_bytes=2_000, index_interval=200)
    for first in range(0, 60, 6):
        log.append(
            [
                Record(
                    timestamp=T0 + n,
                    key=b"k%d" % n if n % 2 else None,
                    value=b"v" * n if n % 5 else None,
                    headers=[("a", b"%d" % n), ("a", b"")] if n % 3 else None,
                )
                for n in range(first, first + 6)
            ]
        )
    log.flush()
    return log


def test_all_columns_equal_the_records(filled: Log) -> None:
    found = table(filled)
    assert found.schema.names == COLUMNS
    records = list(filled.read())
    assert found["offset"].to_pylist() == list(range(60))
    assert found["timestamp"].to_pylist() == [record.timestamp for record in records]
    assert found["key"].to_pylist() == [record.key for record in records]
    assert found["value"].to_pylist() == [record.value for record in records]
    headers = [[(h["key"], h["value"]) for h in row] for row in found["headers"].to_pylist()]
    assert headers == [list(record.headers.items()) for record in records]


def test_only_the_columns_asked_for_in_that_order(filled: Log) -> None:
    assert table(filled, columns=["value", "offset"]).schema.names == ["value", "offset"]
    assert table(filled, columns=["key"]).num_rows == 60
    assert sum(batch.num_rows for batch in filled.read_arrow(columns=[])) == 60


def test_an_unknown_column_is_refused_at_once(filled: Log) -> None:
    with pytest.raises(ValueError, match="no such column: topic; there are offset"):
        filled.read_arrow(columns=["topic"])


@pytest.mark.parametrize(("start", "end"), [(0, 1), (7, 8), (5, 31), (59, 60), (60, 60), (9, 3)])
def test_ranges(filled: Log, start: int, end: int) -> None:
    batches = list(filled.read_arrow(start, end))
    found = [row for batch in batches for row in batch.column("offset").to_pylist()]
    assert found == list(range(start, end))
    assert all(batch.num_rows for batch in batches)


def test_from_a_time(filled: Log) -> None:
    assert table(filled, timestamp=T0 + 31)["offset"].to_pylist() == list(range(31, 60))


# --- append -----------------------------------------------------------------------------------


def test_append_a_table(log: Log) -> None:
    given = pa.table(
        {
            "key": pa.array([b"k", None, b""]),
            "value": pa.array(["v", None, ""]),
            "timestamp": pa.array([T0, None, T0 + 2]),
            "headers": pa.array(
                [[("a", b"1"), ("a", b"2")], [], None], pa.map_(pa.string(), pa.binary())
            ),
        }
    )
    receipt = log.append_arrow(given).wait()
    assert (receipt.offset, receipt.count, receipt.end_offset) == (0, 3, 3)
    first, second, third = log.read()
    assert (first.timestamp, first.key, first.value) == (T0, b"k", b"v")
    assert first.headers == [("a", b"1"), ("a", b"2")]
    assert (second.key, second.value, len(second.headers)) == (None, None, 0)
    assert second.timestamp is not None
    assert second.timestamp > T0
    assert (third.key, third.value, len(third.headers)) == (b"", b"", 0)


def test_append_a_record_batch_and_a_slice(log: Log) -> None:
    batch = pa.record_batch({"value": pa.array([b"%d" % n for n in range(10)])})
    log.append_arrow(batch)
    log.append_arrow(batch.slice(3, 4)).wait()
    assert values(log.read(10)) == [b"3", b"4", b"5", b"6"]


def test_a_table_of_chunks(log: Log) -> None:
    column = pa.chunked_array([[b"1", b"2"], [b"3"], pa.array([], pa.binary()), [b"4"]])
    receipt = log.append_arrow(pa.table({"value": column})).wait()
    assert (receipt.offset, receipt.count) == (0, 4)
    assert values(log.read()) == [b"1", b"2", b"3", b"4"]


def test_what_was_read_can_be_appended(filled: Log) -> None:
    before = [(r.timestamp, r.key, r.value, r.headers) for r in filled.read()]
    filled.append_arrow(table(filled)).wait()
    assert [(r.timestamp, r.key, r.value, r.headers) for r in filled.read(60)] == before


def test_rows_split_at_65535(open_log: OpenLog) -> None:
    log = open_log(flush="async")
    receipt = log.append_arrow(pa.table({"value": pa.array([b""] * 65_540)}))
    assert (receipt.count, receipt.end_offset) == (65_540, 65_540)
    assert [batch.count for batch in log.read_batches()] == [65_535, 5]


def test_rows_split_by_bytes(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=1_000)
    given = [b"%0100d" % n for n in range(40)]
    receipt = log.append_arrow(pa.table({"value": given}))
    assert not receipt.done
    receipt.wait()
    assert values(log.read()) == given
    assert all(len(batch.data) <= 1_044 for batch in log.read_batches())


def test_a_row_over_the_limit(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=1_000)
    with pytest.raises(ValueError, match=r"a record of 2006 bytes, .* max_batch_bytes is 1000"):
        log.append_arrow(pa.table({"value": [b"small", bytes(2_000)]}))
    assert log.end_offset == 0


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"value": pa.array([], pa.binary())}, ValueError, "no rows"),
        ({"key": [b"k"]}, ValueError, "'value' is missing"),
        ({"value": [b"v"], "topic": ["t"]}, ValueError, "'topic' is unknown"),
        ({"value": [5]}, TypeError, "'value' must be binary or string"),
        ({"value": [b"v"], "timestamp": ["noon"]}, TypeError, "'timestamp'"),
        ({"value": [b"v"], "headers": [5]}, TypeError, "'headers'"),
    ],
)
def test_what_cannot_be_appended(
    log: Log, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        log.append_arrow(pa.table(given))
    assert log.end_offset == 0


def test_a_failing_disk_in_the_middle(path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs, max_batch_bytes=1_000) as log:
        fs.plan = on("pwrite", Fail(), path="*.seg", nth=1)
        with pytest.raises(NotWritten) as caught:
            log.append_arrow(pa.table({"value": [b"%0400d" % n for n in range(10)]}))
        assert 0 < caught.value.appended == log.end_offset < 10


def test_batches_that_inflate_to_too_much_come_one_by_one(
    filled: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = arrow.decode_arrow

    def limited(data: Any, start: int, stop: int, *arguments: Any) -> Any:
        if len(batches(data, start, stop)) > 1:
            raise TooLarge("together they are too much", 2, 1)
        return decode(data, start, stop, *arguments)

    monkeypatch.setattr(arrow, "decode_arrow", limited)
    for start in range(0, 61, 7):
        assert sum(batch.num_rows for batch in filled.read_arrow(start)) == 60 - start
        assert all(batch.num_rows for batch in filled.read_arrow(start, 50))


def test_reads_see_only_what_is_visible(log: Log) -> None:
    log.append([at(T0)]).wait()
    log.append([at(T0)])
    assert table(log).num_rows == 1
