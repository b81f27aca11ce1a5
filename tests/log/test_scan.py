"""Walking a segment: regions of whole batches, and what is said where one is not whole."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import BAD, COMPLETE, PARTIAL, batches, encode
from tailrace.log.fs import OsFile, OsFileSystem
from tailrace.log.scan import LARGEST_KEPT, Chunks, Facts, Memory, find_next_batch, scan
from tests.log.helpers import T0


def batch(offset: int, size: int = 10, count: int = 1, timestamp: int = T0) -> bytes:
    return bytes(encode([bytes(size)] * count, timestamp).place(offset))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[OsFile]]:
    opened: list[OsFile] = []
    yield opened
    for file in opened:
        file.close()


@pytest.fixture
def file(tmp_path: Path, files: list[OsFile]) -> OsFile:
    file = OsFileSystem().open(str(tmp_path / "segment"), write=True, create=True)
    files.append(file)
    return file


def put(file: OsFile, *parts: bytes | bytearray) -> int:
    data = b"".join(parts)
    file.truncate(0)
    file.pwrite(data, 0)
    return len(data)


def facts(base: int = 0) -> Facts:
    return Facts(base, 100, 1_000)


# --- chunks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_size", [1, 10, 44, 60, 1 << 20])
def test_every_size_of_read(file: OsFile, read_size: int) -> None:
    parts = [batch(n, size) for n, size in enumerate((0, 1, 100, 5_000, 3))]
    size = put(file, *parts)
    chunks = Chunks(file, 0, size, read_size)
    found, next_offset = b"", 0
    while (region := chunks.next()) is not None:
        assert region.position == len(found)
        found += bytes(region.data)
        assert region.next_offset > next_offset
        next_offset = region.next_offset
    assert found == b"".join(parts)
    assert (chunks.position, chunks.status, next_offset) == (size, COMPLETE, 5)


def test_a_stop_inside_a_batch(file: OsFile) -> None:
    first = batch(0)
    size = put(file, first, batch(1))
    for stop in range(len(first) + 1, size):
        chunks = Chunks(file, 0, stop)
        assert chunks.next() is not None
        assert chunks.next() is None
        assert (chunks.position, chunks.status) == (len(first), PARTIAL)


def test_a_file_that_is_shorter_than_it_should_be(file: OsFile) -> None:
    size = put(file, batch(0), batch(1))
    chunks = Chunks(file, 0, size + 1_000)
    assert chunks.next() is not None
    assert chunks.next() is None
    assert chunks.position == size
    file.truncate(size - 3)
    chunks = Chunks(file, 0, size)
    assert chunks.next() is not None
    assert chunks.next() is None
    assert chunks.status == PARTIAL


def test_nothing_to_read(file: OsFile) -> None:
    assert Chunks(file, 0, 0).next() is None
    assert Chunks(file, 10, 5).next() is None


@pytest.mark.parametrize("junk", [b"\0", b"\0" * 100, b"junk" * 20])
def test_what_is_no_batch(file: OsFile, junk: bytes) -> None:
    size = put(file, batch(0), junk)
    chunks = Chunks(file, 0, size)
    assert chunks.next() is not None
    assert chunks.next() is None
    assert chunks.status == (BAD if len(junk) > 44 or junk[0] else chunks.status)
    assert chunks.status != COMPLETE


@given(
    sizes=st.lists(st.lists(st.integers(0, 3_000), max_size=8), max_size=4),
    read_size=st.integers(1, 2_000),
    largest=st.integers(1, 4_000),
)
def test_files_one_after_the_other_share_their_memory(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], read_size: int, largest: int
) -> None:
    memory = Memory()
    path = str(tmp_path_factory.mktemp("walk") / "segment")
    file = OsFileSystem().open(path, write=True, create=True)
    try:
        for each in sizes:
            parts = [batch(n, size) for n, size in enumerate(each)]
            stop = put(file, *parts)
            chunks = Chunks(file, 0, stop, read_size, largest, memory)
            found = b""
            while (region := chunks.next()) is not None:
                one = len(parts[region.base_offset])
                assert len(region.data) <= max(read_size, largest, one)
                found += region.data
            assert (found, chunks.status) == (b"".join(parts), COMPLETE)
    finally:
        file.close()


def test_memory_is_kept() -> None:
    memory = Memory()
    room = memory.room(1_000)
    assert len(room) >= 1_000
    for size in (1_000, 10, 1_050):  # batches are nearly of one size
        assert memory.room(size) is room
    assert len(memory.room(5_000)) >= 5_000


def test_what_an_exceptional_batch_needs_is_not_kept() -> None:
    memory = Memory()
    usual = memory.room(LARGEST_KEPT)
    assert len(usual) == LARGEST_KEPT
    assert memory.room(100) is usual
    exceptional = memory.room(LARGEST_KEPT + 1)
    assert len(exceptional) == LARGEST_KEPT + 1
    assert len(memory.room(100)) < 1_000


# --- scan ---------------------------------------------------------------------------------------


def test_facts(file: OsFile) -> None:
    size = put(file, batch(5, count=2), batch(7, count=3), batch(20))
    found = facts(base=5)
    assert scan(file, found, size) == COMPLETE
    assert (found.size, found.next_offset, found.records) == (size, 21, 6)
    assert found.first_timestamp == found.max_timestamp == T0
    assert not found.damages


def test_facts_grow_with_the_file(file: OsFile) -> None:
    found = facts()
    parts: list[bytes] = []
    for n in range(5):
        parts.append(batch(n))
        assert scan(file, found, put(file, *parts)) == COMPLETE
        assert found.next_offset == n + 1
    assert found.records == 5


def test_damage_in_the_middle(file: OsFile) -> None:
    parts = [batch(n) for n in range(5)]
    broken = bytearray(parts[2])
    broken[50] ^= 1
    size = put(file, *parts[:2], broken, *parts[3:])
    found = facts()
    assert scan(file, found, size) == COMPLETE
    (damage,) = found.damages
    assert (damage.first_offset, damage.next_offset) == (2, 3)
    assert (damage.position, damage.end) == (2 * len(parts[0]), 3 * len(parts[0]))
    assert (found.records, found.next_offset) == (4, 5)


def test_offsets_that_go_back_are_damage(file: OsFile) -> None:
    size = put(file, batch(5), batch(2), batch(6))
    found = facts()
    scan(file, found, size)
    assert [d.first_offset for d in found.damages] == [6]
    assert found.next_offset == 7


def test_offsets_too_far_from_the_base_are_damage(file: OsFile) -> None:
    size = put(file, batch(5), batch(2**32 + 5))
    found = facts()
    assert scan(file, found, size) == BAD
    assert found.next_offset == 6


def test_behind_the_durable_part_offsets_follow_each_other(file: OsFile) -> None:
    first = batch(0)
    size = put(file, first, batch(1), batch(5))
    found = facts()
    assert scan(file, found, size, durable_size=len(first), contiguous=True) == BAD
    assert found.next_offset == 2
    found = facts()
    assert scan(file, found, size, durable_size=size, contiguous=True) == COMPLETE
    assert found.next_offset == 6


def test_a_batch_that_is_being_written_is_no_damage(file: OsFile) -> None:
    """The first look finds it half there, the second whole."""
    parts = [batch(n) for n in range(3)]
    size = put(file, parts[0], bytes(len(parts[1])), parts[2])

    class Late(OsFile):
        def pread(self, size: int, position: int) -> bytes:
            self.pwrite(parts[1], len(parts[0]))  # just in time
            return super().pread(size, position)

    late = Late(os.dup(file.fd))
    found = facts()
    try:
        assert scan(late, found, size) == COMPLETE
    finally:
        late.close()
    assert not found.damages
    assert found.records == 3


# --- regions ------------------------------------------------------------------------------------


def observe_one_by_one(found: Facts, data: bytes, contiguous_from: int | None) -> bool:
    """What `observe_region` is to do, the long way."""
    for info in batches(data, 0, len(data)):
        gap = info.base_offset - found.next_offset
        strict = contiguous_from is not None and found.size >= contiguous_from
        if gap < 0 or (gap and strict) or info.next_offset - found.base > 2**32:
            return False
        found.observe(info.base_offset, info.count, info.size, info.max_timestamp)
    return True


def everything(found: Facts) -> tuple[object, ...]:
    return (
        (found.size, found.next_offset, found.records),
        (found.first_timestamp, found.max_timestamp),
        (found.offsets.entries(), found.offsets.unindexed_bytes, found.offsets.to_bytes()),
        (found.times.entries(), found.times.next_timestamp, found.times.to_bytes()),
    )


@given(
    regions=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 0, 0, 0, 1, 7, -1, 2**32]),
                st.integers(1, 3),
                st.integers(0, 100),
                st.integers(-30, 60),
            ),
            max_size=10,
        ),
        max_size=5,
    ),
    index_interval=st.sampled_from([1, 100, 250, 4096]),
    time_interval=st.sampled_from([0, 1, 20, 1_000]),
    contiguous_from=st.one_of(st.none(), st.integers(0, 2_000)),
)
def test_a_region_counts_as_its_batches_one_by_one(
    regions: list[list[tuple[int, int, int, int]]],
    index_interval: int,
    time_interval: int,
    contiguous_from: int | None,
) -> None:
    """Also behind what cannot follow: whoever goes on there does so with the same facts."""
    found, expected = (Facts(5, index_interval, time_interval) for _ in range(2))
    offset, timestamp = 5, T0
    for region in regions:
        data = b""
        for gap, count, size, step in region:
            offset = max(offset + gap, 0)
            timestamp += step
            data += batch(offset, size, count, timestamp)
            offset += count
        ended = observe_one_by_one(expected, data, contiguous_from)
        assert found.observe_region(memoryview(data), contiguous_from) == ended
        assert everything(found) == everything(expected)


class Interrupted(array):  # type: ignore[type-arg]
    """Numbers that a signal keeps from growing, once."""

    done = False

    def frombytes(self, data: object) -> None:
        if not self.done:
            self.done = True
            raise KeyboardInterrupt
        super().frombytes(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place", ["offsets._positions", "offsets._relative", "times._relative", "times._timestamps"]
)
@pytest.mark.parametrize("before", [0, 10])
def test_an_interrupted_scan_can_be_repeated(file: OsFile, place: str, before: int) -> None:
    rng = random.Random(place)
    times = [T0 + 400 * n + rng.randrange(-1_000, 1_000) for n in range(60)]
    parts = [batch(n, timestamp=times[n]) for n in range(60)]
    size = put(file, *parts)
    found = facts()
    assert scan(file, found, len(b"".join(parts[:before]))) == COMPLETE
    index = getattr(found, place.partition(".")[0])
    numbers = getattr(index, place.partition(".")[2])
    setattr(index, place.partition(".")[2], Interrupted(numbers.typecode, numbers))
    with pytest.raises(KeyboardInterrupt):
        scan(file, found, size)
    assert found.records == before
    assert scan(file, found, size) == COMPLETE
    assert (found.size, found.next_offset, found.records) == (size, 60, 60)
    entries = found.offsets.entries()
    assert entries == sorted(set(entries))
    assert set(entries) <= {(n, n * len(parts[0])) for n in range(60)}
    assert len(entries) > 20
    for n in range(60):
        offset, position = found.offsets.lookup(n)
        assert n - 2 <= offset <= n
        assert position == offset * len(parts[0])
        assert all(time < times[n] for time in times[: found.times.lookup(times[n])])
    timestamps = [timestamp for timestamp, _ in found.times.entries()]
    assert timestamps == sorted(set(timestamps))


# --- the next batch -----------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [0, 1, 43, 44, 100, (1 << 20) - 2, (1 << 20) + 5])
def test_the_next_batch_behind_junk(file: OsFile, junk: int) -> None:
    """Also where its first bytes lie across two reads."""
    size = put(file, b"j" * (junk + 1), batch(7), batch(8))
    found = find_next_batch(file, 0, size, 5)
    assert found is not None
    assert (found.position, found.base_offset) == (junk + 1, 7)
    assert find_next_batch(file, 0, size, 9) is None


def test_no_next_batch(file: OsFile) -> None:
    assert find_next_batch(file, 0, 0, 0) is None
    size = put(file, b"x" * 3)
    assert find_next_batch(file, 0, size, 0) is None
    size = put(file, b"x" * 100, batch(5)[:-1])
    assert find_next_batch(file, 0, size, 0) is None
    size = put(file, b"x" * 100, b"XULF", b"y" * 100)
    assert find_next_batch(file, 0, size, 0) is None


def test_a_batch_inside_a_value_is_not_taken_for_one(file: OsFile) -> None:
    inner = batch(50)
    outer = bytearray(encode([b"left", inner, b"right"], T0).place(3))
    outer[46] ^= 1
    after = batch(6)
    size = put(file, outer, after)
    found = find_next_batch(file, 0, size, 3)
    assert found is not None
    assert found.base_offset == 6
