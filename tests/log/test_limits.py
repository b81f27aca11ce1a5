"""What is too much is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import Log
from tests.log.conftest import OpenLog
from tests.log.helpers import tree, values


def test_a_batch_holds_65535_records(open_log: OpenLog) -> None:
    log = open_log(flush="async")
    assert log.append([b""] * 65_535).count == 65_535
    with pytest.raises(ValueError, match="at most 65535 records, not 65536"):
        log.append([b""] * 65_536)
    assert log.end_offset == 65_535


@pytest.mark.parametrize("compression", ["none", "s2", "zstd"])
def test_max_batch_bytes_counts_the_records_before_compression(
    open_log: OpenLog, path: Path, compression: str
) -> None:
    log = open_log(max_batch_bytes=1_000, compression=compression)
    fits, too_much = b"x" * 994, b"x" * 995  # a record takes 6 bytes beside its value
    log.append([fits]).wait()
    log.append_one(fits).wait()
    files = tree(path)
    with pytest.raises(ValueError, match=r"a record of 1001 bytes, .* max_batch_bytes is 1000"):
        log.append([too_much])
    with pytest.raises(ValueError, match=r"a record of 1001 bytes, .* max_batch_bytes is 1000"):
        log.append_one(too_much)
    assert tree(path) == files
    assert values(log.read()) == [fits, fits]


def test_many_small_records_count_together(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=100)
    with pytest.raises(ValueError, match="a batch may hold 100"):
        log.append([b"12345"] * 11)
    assert log.append([b"12345"] * 10).count == 10


def test_a_refused_append_does_not_disturb_the_next(log: Log) -> None:
    with pytest.raises(TypeError):
        log.append([b"good", object()])
    log.append([b"next"]).wait()
    assert values(log.read()) == [b"next"]
    assert log.end_offset == 1
