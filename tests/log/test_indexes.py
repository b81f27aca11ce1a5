"""Index files are hints: whatever happens to them, answers stay right and they are made anew."""

from __future__ import annotations

import errno
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, NotWritten
from tailrace.kernel import crc32c
from tailrace.log.fs import OsFileSystem
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.options import LogOptions
from tailrace.log.segments import Catalog, list_segments
from tailrace.testing import Call, Fail, FaultyFileSystem, on
from tests.log import fluxmq
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    T0,
    at,
    bases,
    flip,
    forget_clean_close,
    offsets,
    segment,
    side_file,
    tree,
)

OPTIONS: dict[str, Any] = {
    "segment_bytes": 600,
    "index_interval": 150,
    "time_index_interval": "5ms",
}


@pytest.fixture
def indexed(path: Path) -> dict[str, bytes]:
    """A closed log with several segments, and its files."""
    with Log(path, **OPTIONS) as log:
        for n in range(60):
            log.append([at(T0 + n, b"%d" % n)])
    assert len(bases(path)) > 3
    return tree(path)


def check(log: Log) -> None:
    for start in range(60):
        assert next(log.read(start)).offset == start
        assert log.offset_at(T0 + start) == start
    assert offsets(log.read()) == list(range(60))


def indexes(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(path).items() if name.endswith("ix")}


def test_after_a_clean_close_they_are_complete(path: Path, indexed: dict[str, bytes]) -> None:
    for base in bases(path):
        batches = fluxmq.scan(segment(path, base))
        idx = fluxmq.read_idx(segment(path, base, "idx"))
        assert idx.header_count == len(idx.entries) > 1
        assert idx.interval == 150
        tix = fluxmq.read_tix(segment(path, base, "tix"))
        assert tix.header_count == len(tix.entries) > 0
        assert tix.low == batches[0].max_ts == tix.entries[0][0]
        assert tix.high == tix.entries[-1][0] <= batches[-1].max_ts


def missing(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def without_its_last_entry(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: -(8 if file.suffix == ".idx" else 12)])


def flipped_header(file: Path) -> None:
    flip(file, 0)


def flipped_entry(file: Path) -> None:
    flip(file, file.stat().st_size - 5)


def of_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def ahead_of_the_data(file: Path) -> None:
    """With an entry for a batch that is not there (any more)."""
    entry = (
        struct.pack("<II", 999, 99_999) if file.suffix == ".idx" else struct.pack("<qI", T0, 999)
    )
    file.write_bytes(file.read_bytes() + entry)


def of_another_segment(file: Path) -> None:
    others = [other for other in file.parent.glob(f"*{file.suffix}") if other != file]
    file.write_bytes(min(others).read_bytes())


DAMAGES: list[Callable[[Path], None]] = [
    missing,
    empty,
    short,
    without_its_last_entry,
    flipped_header,
    flipped_entry,
    of_zeros,
    ahead_of_the_data,
    of_another_segment,
]


@pytest.mark.parametrize("kind", ["idx", "tix"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "active"])
def test_a_damaged_index_is_made_anew(
    open_log: OpenLog,
    path: Path,
    indexed: dict[str, bytes],
    kind: str,
    damage: Callable[[Path], None],
    which: int,
) -> None:
    file = segment(path, bases(path)[which], kind)
    damage(file)
    damaged = tree(path)
    with open_log(read_only=True) as log:
        check(log)
    assert tree(path) == damaged
    with open_log(**OPTIONS) as log:
        check(log)
    assert indexes(path) == {name: data for name, data in indexed.items() if name.endswith("ix")}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_all_indexes_damaged_after_a_kill(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes], damage: Callable[[Path], None]
) -> None:
    for file in sorted(path.glob("*.?ix")):
        damage(file)
    forget_clean_close(path)
    with open_log(**OPTIONS) as log:
        check(log)
        log.append([at(T0 + 60)]).wait()
        assert log.offset_at(T0 + 60) == 60


def test_without_seals_every_segment_is_looked_at_again(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes]
) -> None:
    side_file(path, "seals").unlink()
    with open_log(**OPTIONS) as log:
        check(log)
    assert indexes(path) == {name: data for name, data in indexed.items() if name.endswith("ix")}
    assert side_file(path, "seals").stat().st_size >= 76 * len(bases(path))


@pytest.mark.parametrize("position", range(0, 76, 7))
def test_damaged_seals(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes], position: int
) -> None:
    for entry in range(side_file(path, "seals").stat().st_size // 76):
        flip(side_file(path, "seals"), 76 * entry + position)
    with open_log(**OPTIONS) as log:
        check(log)


@pytest.mark.parametrize("wrong", [1, -1, 44, 10_000])
def test_an_index_that_lies(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes], wrong: int
) -> None:
    """Its positions are wrong, and the seal says that they are right: it costs time, no more."""
    catalog = Catalog(OsFileSystem(), str(path), LogOptions.parse(**OPTIONS), read_only=False)
    extents = list_segments(OsFileSystem(), str(path))
    catalog.seals.load({extent.base for extent in extents})
    for extent in extents:
        facts = catalog.facts(extent)
        for i in range(1, len(facts.offsets)):
            facts.offsets._positions[i] += wrong
        catalog.save(facts)
    catalog.close()
    with open_log(**OPTIONS) as log:
        check(log)


@pytest.mark.parametrize("kind", ["idx", "tix"])
@pytest.mark.parametrize("nth", range(4))
def test_an_index_that_cannot_be_written(
    open_log: OpenLog, path: Path, kind: str, nth: int
) -> None:
    """It is made again; at worst an append that rolls has to be repeated."""
    fs = FaultyFileSystem(OsFileSystem())
    with Log(path, fs=fs, **OPTIONS) as log:
        fs.plan = on("pwrite", Fail(errno.ENOSPC), path=f"*.{kind}", nth=nth)
        for n in range(60):
            try:
                log.append([at(T0 + n, b"%d" % n)])
            except NotWritten:  # it came in the middle of a roll
                log.append([at(T0 + n, b"%d" % n)])
        log.flush()
        check(log)
        assert fs.hits
    for _ in range(2):
        with open_log(**OPTIONS) as log:
            check(log)
    fluxmq.check_folder(path)


@pytest.mark.parametrize("kind", ["idx", "tix"])
def test_an_index_of_the_last_segment_that_cannot_be_made_again(
    path: Path, indexed: dict[str, bytes], kind: str
) -> None:
    """It is of no use to those who read the file, and to nobody else: whoever closes it tries once
    more."""
    side_file(path, "clean").unlink()
    fs = FaultyFileSystem(OsFileSystem())
    fs.plan = on("pwrite", Fail(errno.ENOSPC), path=f"*.{kind}")
    with Log(path, fs=fs, **OPTIONS) as log:
        assert fs.hits
        check(log)
    before = {name: data for name, data in indexed.items() if name.endswith("ix")}
    assert indexes(path) == before


def test_an_index_that_cannot_be_made_again(path: Path, indexed: dict[str, bytes]) -> None:
    for file in path.glob("*.?ix"):
        file.unlink()
    fs = FaultyFileSystem(OsFileSystem())

    def full(call: Call) -> Fail | None:
        return Fail(errno.ENOSPC) if call.op == "pwrite" and call.path.endswith("ix") else None

    fs.plan = full
    with Log(path, fs=fs, **OPTIONS) as log:
        check(log)
        assert fs.hits
    with Log(path, **OPTIONS) as log:
        check(log)
    fluxmq.check_folder(path)


def test_indexes_of_segments_that_are_gone_are_removed(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes]
) -> None:
    segment(path, 999, "idx").write_bytes(b"orphan")
    segment(path, 999, "tix").write_bytes(b"orphan")
    (path / "notes.txt").write_text("not ours, left alone")
    with open_log(read_only=True):
        assert segment(path, 999, "idx").exists()
    with open_log(**OPTIONS) as log:
        check(log)
    assert not segment(path, 999, "idx").exists()
    assert not segment(path, 999, "tix").exists()
    assert (path / "notes.txt").exists()


def test_other_intervals_after_reopening(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes]
) -> None:
    """The options are of the handle; segments that are done keep what they have."""
    with open_log(index_interval="1MiB", time_index_interval="1h", segment_bytes=600) as log:
        check(log)
        for n in range(60, 90):
            log.append([at(T0 + n)])
        log.flush()
        assert [log.offset_at(T0 + n) for n in (5, 59, 60, 89)] == [5, 59, 60, 89]
    with open_log(index_interval=1, time_index_interval="0s") as log:
        assert offsets(log.read(75)) == list(range(75, 90))
        assert [log.offset_at(T0 + n) for n in range(90)] == list(range(90))


def test_more_segments_than_facts_are_kept_in_memory(open_log: OpenLog, path: Path) -> None:
    with open_log(segment_bytes=1, flush="async", upkeep=False) as log:
        for n in range(80):
            log.append([at(T0 + n), at(T0 + n)])
    assert len(bases(path)) == 80
    with open_log() as log:
        for _ in range(2):
            for n in range(0, 160, 3):
                assert next(log.read(n)).offset == n
                assert log.offset_at(T0 + n // 2) == n // 2 * 2


def test_seals_of_deleted_segments_are_thrown_out(open_log: OpenLog, path: Path) -> None:
    options = {"segment_bytes": 1, "flush": "async", "retention": {"max_records": 3}}
    with open_log(**options) as log:
        for _ in range(100):
            log.append([b"x"])
        log.vacuum()
    assert side_file(path, "seals").stat().st_size >= 100 * 76
    with open_log(**options) as log:
        assert offsets(log.read()) == [97, 98, 99]
        assert side_file(path, "seals").stat().st_size < 10 * 76
    with open_log(read_only=True) as log:
        assert offsets(log.read(98)) == [98, 99]


# --- many entries at once -----------------------------------------------------------------------


def packed(code: str, *numbers: int) -> bytes:
    return array(code, numbers).tobytes()


def test_many_entries_at_once() -> None:
    offsets = OffsetIndex(100, 150)
    assert offsets.last_indexed == -1
    offsets.add(100, 0)
    offsets.extend(packed("I", 5, 9), packed("I", 200, 400), 70)
    assert offsets.entries() == [(100, 0), (105, 200), (109, 400)]
    assert (offsets.last_indexed, offsets.unindexed_bytes) == (9, 70)
    offsets.extend(b"", b"", 90)
    assert (len(offsets), offsets.unindexed_bytes) == (3, 90)
    times = TimeIndex(100, 10)
    times.observe(100, T0)
    times.extend(packed("q", T0 + 10, T0 + 35), packed("I", 5, 9))
    times.extend(b"", b"")
    assert times.entries() == [(T0, 100), (T0 + 10, 105), (T0 + 35, 109)]
    assert times.next_timestamp == T0 + 45


class Watched(array):  # type: ignore[type-arg]
    """Numbers that somebody looks up just before and after they grow."""

    look: Callable[[], None]

    def frombytes(self, data: object) -> None:
        self.look()
        super().frombytes(data)  # type: ignore[arg-type]
        self.look()


def test_readers_look_up_while_entries_come() -> None:
    """At every moment, what is found is there in full."""
    offsets = OffsetIndex(0, 1)
    times = TimeIndex(0, 1)
    offsets._relative, offsets._positions = Watched("I"), Watched("I")
    times._timestamps, times._relative = Watched("q"), Watched("I")
    looks = []

    def look() -> None:
        offset, position = offsets.lookup(1_000)
        assert position == 10 * offset
        found = times.lookup(T0 + 1_000)
        assert found <= 99
        looks.append((offset, found))

    for numbers in (offsets._relative, offsets._positions, times._timestamps, times._relative):
        numbers.look = look
    for first in (0, 50):
        batches = range(first, first + 50)
        offsets.extend(packed("I", *batches), packed("I", *(10 * n for n in batches)), 0)
        times.extend(packed("q", *(T0 + n for n in batches)), packed("I", *batches))
    assert looks[0] == (0, 0)
    assert looks[-1] == (99, 99)
    assert len(looks) == 16


def test_a_batch_has_one_entry() -> None:
    """An append that was interrupted and taken back may have given it one."""
    index = OffsetIndex(100, 4096)
    index.add(100, 0)
    index.add(107, 5000)
    index.add(107, 5000)
    assert (len(index), index.last_indexed) == (2, 7)


def test_a_sealed_index_of_another_kind(
    open_log: OpenLog, path: Path, indexed: dict[str, bytes]
) -> None:
    """The seal says that it is whole, and it cannot be read all the same: it is made anew."""
    catalog = Catalog(OsFileSystem(), str(path), LogOptions.parse(**OPTIONS), read_only=False)
    first = list_segments(OsFileSystem(), str(path))[0]
    catalog.seals.load({first.base})
    seal = catalog.seals.get(*first)
    assert seal is not None
    file = segment(path, first.base).with_suffix(".idx")
    strange = b"strange!" + file.read_bytes()[8:]
    file.write_bytes(strange)
    catalog.seals.add(seal._replace(idx_crc=crc32c(strange)))
    catalog.close()
    with open_log(**OPTIONS) as log:
        check(log)
    assert tree(path)[file.name] == indexed[file.name]
