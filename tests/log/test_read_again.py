"""What was read stays as it is when the reader goes on: it reads into the same memory again.

From the second read of a segment on, that is: the first one has a place of its own, and is small.
So segments and batches are of some hundred KB here, and all values are compared in the end, when
everything has been read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log.portions import Portions
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, bases

ROUNDS = 14
SIZES = [(100_000,), (20_000, 1, 50_000), (120_000,), (10, 300_000)]  # of records in a batch


def value(number: int, size: int) -> bytes:
    """Like no other; every other one can be compressed."""
    chance = random.Random(number)
    if number % 2:
        return chance.randbytes(size)
    return (chance.randbytes(16) * (size // 16 + 1))[:size]


def given() -> Iterator[list[bytes]]:
    """The batches."""
    number = 0
    for _ in range(ROUNDS):
        for sizes in SIZES:
            yield [value(number + place, size) for place, size in enumerate(sizes)]
            number += len(sizes)


EXPECTED = [value for batch in given() for value in batch]
COUNT = len(EXPECTED)


@pytest.fixture(params=["none", "s2", "zstd"])
def large(request: pytest.FixtureRequest, open_log: OpenLog, path: Path) -> Log:
    log = open_log(flush="async", segment_bytes=1 << 20, compression=request.param)
    number = 0
    for batch in given():
        log.append([at(T0 + number + place, value) for place, value in enumerate(batch)])
        number += len(batch)
    assert len(bases(path)) > 3
    return log


def same(found: list[Any], expected: list[Any] = EXPECTED) -> None:
    """Without telling how megabytes differ."""
    assert len(found) == len(expected)
    assert [n for n, each in enumerate(found) if each != expected[n]] == []


def test_batches(large: Log) -> None:
    kept = list(large.read_batches())
    large.close()
    same([record.value for batch in kept for record in batch.records()])
    offsets = [record.offset for batch in kept for record in batch.records()]
    assert offsets == list(range(COUNT))


def test_records(large: Log) -> None:
    kept = list(large.read())
    large.close()
    same([record.value for record in kept])
    assert [record.timestamp for record in kept] == list(range(T0, T0 + COUNT))


def test_arrow_batches(large: Log) -> None:
    pytest.importorskip("pyarrow")
    kept = list(large.read_arrow())
    large.close()
    same([value for batch in kept for value in batch.column("value").to_pylist()])
    assert [n for batch in kept for n in batch.column("offset").to_pylist()] == list(range(COUNT))


def test_what_is_promised(large: Log) -> None:
    """Records that are decoded when somebody looks at them."""
    reader, view = large.tail("first").look()
    portions = Portions(reader, view, 0, COUNT)
    kept: list[Any] = []
    while portions.position < COUNT:
        promise = portions.promise(portions.position + 2)
        kept.append(portions.take(1) if promise is None else promise)
    same([record.value for each in kept for record in each])


def test_readers_at_different_places(large: Log) -> None:
    """Each has a memory of its own."""
    readers: dict[int, Iterator[Any]] = {n: iter(large.read_batches(n)) for n in (0, 30, 60)}
    kept: dict[int, list[Any]] = {n: [] for n in readers}
    for _ in range(COUNT):
        for start, reader in readers.items():
            kept[start] += [batch for batch in [next(reader, None)] if batch is not None]
    for start, batches in kept.items():
        found = {record.offset: record.value for batch in batches for record in batch.records()}
        same([found[n] for n in range(start, COUNT)], EXPECTED[start:])
