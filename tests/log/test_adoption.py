"""What was written elsewhere is taken in as one: all of it, or nothing, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailrace import Corrupt, Locked, Log, NotWritten
from tailrace.errors import OutcomeUnknown
from tailrace.kernel import HEADER_SIZE, encode, read_header
from tailrace.log import staging
from tailrace.log.adopting import adopt, is_adopted, pack_staged
from tailrace.log.adoption import Piece
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.log.options import LogOptions
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER
from tailrace.log.segments import list_segments
from tailrace.log.staging import Stage, discard, pack, staging_path, sweep
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    SimulatedCrash,
    SimulatedDisk,
    every_call,
    on,
)
from tailrace.testing.disk import SimulatedFile
from tests.log.damage import WRITES
from tests.log.interrupts import at_call, at_line, each_hit
from tests.log.test_writer_deaths import Death, let_go, problems

FOLDER = "log"
SEGMENT = 2_000
MODES = ("sync", "async", "none")
SOON = time.time_ns() // 1_000_000 + 3_600_000


def names(prefix: str, count: int) -> list[bytes]:
    return [b"%s-%d" % (prefix.encode(), number) for number in range(count)]


def stage(
    fs: FileSystem,
    batches: list[list[bytes]],
    *,
    folder: str = FOLDER,
    txn: str = "t",
    segment: int = SEGMENT,
) -> list[Piece]:
    """One file with these batches, or several where they do not fit into a segment."""
    writing = Stage(fs, folder, txn, LogOptions(segment_bytes=segment))
    marks = [(PRODUCER_HEADER, txn.encode()), (SEQUENCE_HEADER, b"0")]
    for number, batch in enumerate(batches):
        writing.add(encode(batch, SOON + number, 0, marks if not number else ()))
    try:
        return writing.finish()
    finally:
        writing.close()


def options(flush: str, fs: FileSystem | None = None) -> dict[str, Any]:
    return {"flush": flush, "fs": fs, "segment_bytes": SEGMENT, "upkeep": False}


def values(log: Log) -> list[bytes | None]:
    """Past what is lost, where a flush has failed."""
    found: list[bytes | None] = []
    first = log.start_offset
    while True:
        try:
            for record in log.read(first):
                found.append(record.value)  # noqa: PERF401  what comes before an error counts
            return found
        except Corrupt as error:
            first = error.next_offset or log.end_offset


def large(name: str) -> list[list[bytes]]:
    """More than a quarter of a segment."""
    return [[value.ljust(100, b".") for value in names(f"{name}{n}", 3)] for n in range(3)]


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [value for batch in batches for value in batch]


@pytest.fixture(params=["small", "large", "many"])
def batches(request: pytest.FixtureRequest) -> list[list[bytes]]:
    if request.param == "small":
        return [names("a", 3), names("b", 2)]
    return large("x") if request.param == "large" else [b for n in range(5) for b in large(str(n))]


def test_what_is_staged_is_sent_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte once; all of it is synced in the end, and is not kept in memory then, but for the
    headers: whoever takes it in writes to them."""
    hints: list[tuple[int, int]] = []
    disk = SimulatedDisk()
    monkeypatch.setattr(staging, "_AT_ONCE", 300)
    monkeypatch.setattr(SimulatedFile, "part_with", lambda _, *part: hints.append(part))
    [piece] = stage(disk, large("x"))
    file = disk.open(staging_path(FOLDER, piece.path))
    batches: list[int] = []
    while sum(batches) < piece.size:
        header = file.pread(HEADER_SIZE, sum(batches))
        batches.append(read_header(header, 0).size)
    bodies = [
        (size - HEADER_SIZE, sum(batches[:number]) + HEADER_SIZE)
        for number, size in enumerate(batches)
    ]
    sent = [hint for hint in hints if hint not in bodies]
    ends = [position + size for size, position in sent]
    assert [0, *ends] == [*(position for _, position in sent), piece.size]
    assert [hint for hint in hints if hint in bodies] == bodies
    assert hints.index(bodies[0]) < hints.index(sent[-1])  # not only when all of it is written
    disk.crash(0)
    file = disk.open(staging_path(FOLDER, piece.path))
    assert file.size() == piece.size


@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("before", [0, 1])
def test_it_is_appended(
    tmp_path: Path, flush: str, before: int, batches: list[list[bytes]]
) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options(flush)) as log:
        for value in names("before", before):
            log.append([value]).wait()
        pieces = stage(fs, batches, folder=folder)
        receipt = adopt(log, pieces, producer="t", sequence=0).wait()
        assert (receipt.offset, receipt.count) == (before, len(flat(batches)))
        log.append([b"behind"]).wait()
        expected = [*names("before", before), *flat(batches), b"behind"]
        assert values(log) == expected
        assert [record.offset for record in log.read()] == list(range(len(expected)))
        assert log.end_offset == len(expected)
        with Log(folder, read_only=True) as reader:
            assert values(reader) == expected
            assert reader.offset_at(SOON + 1) == before + len(batches[0])
    with Log(folder, **options(flush)) as log:
        assert values(log) == expected


@pytest.mark.parametrize("flush", MODES)
def test_a_second_time_changes_nothing(tmp_path: Path, flush: str) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options(flush)) as log:
        assert not is_adopted(log, producer="t", sequence=0)
        first = adopt(log, stage(fs, large("x"), folder=folder), producer="t", sequence=0).wait()
        assert is_adopted(log, producer="t", sequence=0)
        assert not is_adopted(log, producer="t", sequence=1)
        again = stage(fs, large("x"), folder=folder)
        for _ in range(10):
            second = adopt(log, again, producer="t", sequence=0)
            assert (second.offset, second.count) == (first.offset, first.count)
        assert values(log) == flat(large("x"))
    with Log(folder, **options(flush)) as log:
        adopt(log, again, producer="t", sequence=0)
        assert values(log) == flat(large("x"))
        other = stage(fs, large("y"), folder=folder, txn="u")
        assert adopt(log, other, producer="u", sequence=0).wait().offset == 9
        assert values(log) == flat(large("x")) + flat(large("y"))


def test_large_files_become_segments_and_small_ones_are_copied(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options("async")) as log:
        log.append([b"first"])
        for number in range(10):
            small = stage(fs, [[b"%d" % number]], folder=folder, txn=f"small{number}")
            adopt(log, small, producer=f"small{number}", sequence=0)
        assert len(list_segments(fs, folder)) == 1
        pieces = stage(fs, [batch for n in range(4) for batch in large(str(n))], folder=folder)
        assert len(pieces) == 3
        inodes = [(tmp_path / "log/.tailrace/staging" / p.path).stat().st_ino for p in pieces]
        adopt(log, pieces, producer="t", sequence=0)
        segments = sorted((tmp_path / "log").glob("*.seg"))
        assert [path.stat().st_ino for path in segments][1:] == inodes
        for number in range(3):  # the last of them is gone on with
            log.append([b"%d" % number])
        assert len(list_segments(fs, folder)) == 4


def test_small_files_are_packed(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    batches = [[b"%d" % number] * 3 for number in range(60)]
    with Log(folder, **options("none")) as log:
        pieces = [piece for batch in batches for piece in stage(fs, [batch], folder=folder)]
        packed = pack_staged(log, pieces)
        assert len(packed) < 10 < len(pieces)
        assert sum(piece.records for piece in packed) == 180
        adopt(log, packed, producer="t", sequence=0)
        assert values(log) == flat(batches)
        assert len(list_segments(fs, folder)) <= len(packed)


def test_large_files_are_not_packed(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options("none")):
        pieces = [
            *stage(fs, large("x"), folder=folder),
            *stage(fs, large("y"), folder=folder),
        ]
        assert pack(fs, folder, pieces, LogOptions(segment_bytes=SEGMENT)) == pieces
        small = [*stage(fs, [[b"1"]], folder=folder), pieces[0]]
        limits = LogOptions(segment_bytes=pieces[0].size)
        assert pack(fs, folder, small, limits) == small  # it would be more than a segment


@pytest.mark.no_cover
@pytest.mark.parametrize("at_once", [50, 8 << 20])
def test_small_files_go_to_large_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Whichever side they are on, and whatever is left of files of a segment's size."""
    monkeypatch.setattr(staging, "_AT_ONCE", at_once)
    fs, folder, segment = OsFileSystem(), str(tmp_path / "log"), 4 * SEGMENT
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for number in range(20):
        some = [large(f"{n}") * rng.choice([0, 0, 1, 2, 4]) or [[b"%d" % n]] for n in range(12)]
        with Log(f"{folder}{number}", **{**options("none"), "segment_bytes": segment}) as log:
            log.append([b"before"])
            staged = [
                piece for each in some for piece in stage(fs, each, folder=f"{folder}{number}")
            ]
            packed = pack_staged(log, staged)
            for one, other in pairwise(packed):
                least = min(one.size, other.size)
                assert least >= segment // 4 or one.size + other.size > segment
            assert max(piece.size for piece in packed) <= segment
            adopt(log, packed, producer="t", sequence=0)
            assert values(log) == [b"before", *(value for each in some for value in flat(each))]


def test_a_small_file_that_is_cut_short(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    pieces = [piece for _ in range(2) for piece in stage(fs, [[b"1"]], folder=folder)]
    path = staging_path(folder, pieces[1].path)
    os.truncate(path, pieces[1].size - 1)
    with pytest.raises(Corrupt, match=rf"{pieces[1].path} has {pieces[1].size - 1} bytes"):
        pack(fs, folder, pieces, LogOptions(segment_bytes=SEGMENT))


@pytest.mark.parametrize("flush", MODES)
def test_those_who_follow_are_woken(tmp_path: Path, flush: str) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options(flush)) as log, Log(folder, read_only=True) as reader:
        log.append([b"first"]).wait()
        following = reader.read(follow=True, timeout=20)
        assert next(following).value == b"first"
        for name in ("x", "y"):
            pieces = stage(fs, large(name), folder=folder, txn=name)
            adopt(log, pieces, producer=name, sequence=0).wait()
            assert [next(following).value for _ in range(9)] == flat(large(name))
        adopt(log, stage(fs, [[b"s"]], folder=folder, txn="s"), producer="s", sequence=0).wait()
        assert next(following).value == b"s"
        following.close()


@pytest.mark.parametrize("flush", MODES)
def test_two_writers(tmp_path: Path, flush: str) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    expected: list[bytes] = []
    with Log(folder, **options(flush)) as one, Log(folder, **options(flush)) as two:
        for number in range(6):
            for log in (one, two):
                log.append([b"%d" % number]).wait()
                expected.append(b"%d" % number)
            log = (one, two)[number % 2]
            batches = large(str(number)) if number % 3 else [[b"small"]]
            pieces = stage(fs, batches, folder=folder, txn=f"t{number}")
            adopt(log, pieces, producer=f"t{number}", sequence=0).wait()
            expected += flat(batches)
            assert values(one) == values(two) == expected
            again = (two, one)[number % 2]
            adopt(again, pieces, producer=f"t{number}", sequence=0)
            assert values(again) == expected


@pytest.mark.parametrize("flush", MODES)
def test_segments_of_a_usual_size(tmp_path: Path, flush: str) -> None:
    """A `sync` log extends such a file ahead of what it writes, and a segment that is left has to
    end where its last batch does."""
    fs, folder, segment = OsFileSystem(), str(tmp_path / "log"), 8 << 20
    expected: list[bytes] = []
    with Log(folder, **{**options(flush), "segment_bytes": segment}) as log:
        for number in range(3):
            for value in names(f"before{number}", 2):
                log.append([value]).wait()
                expected.append(value)
            for size in (2_500_000, 10):  # more than a quarter of a segment, and less
                batches = [[b"%d" % n * (size // 3)] for n in range(3, 6)]
                txn = f"{number}-{size}"
                pieces = stage(fs, batches, folder=folder, txn=txn, segment=segment)
                adopt(log, pieces, producer=txn, sequence=0).wait()
                expected += flat(batches)
            with Log(folder, read_only=True) as reader:
                assert values(reader) == expected
        assert len(list_segments(fs, folder)) == 4
        assert not verify(fs, folder).problems
    assert not verify(fs, folder).problems
    with Log(folder, **options(flush)) as log:
        assert values(log) == expected


# --- what goes wrong ------------------------------------------------------------------------

BEFORE = [b"one", b"two"]


def prepared(flush: str, kind: str) -> SimulatedDisk:
    """A log that somebody had open, and staged batches."""
    disk = SimulatedDisk()
    with Log(FOLDER, **options(flush, disk)) as log:
        log.append([BEFORE[0]]).wait()
        log.append([BEFORE[1]]).wait()
        log.flush()
    stage(disk, what(kind))
    return disk


def what(kind: str) -> list[list[bytes]]:
    return [names("a", 3), names("b", 2)] if kind == "small" else large("x") + large("y")


def pieces_of(disk: FileSystem, kind: str) -> list[Piece]:
    """As they were staged; sizes are the same each time."""
    other = SimulatedDisk()
    staged = stage(other, what(kind))
    paths = sorted(entry.name for entry in disk.list(staging_path(FOLDER, "t")))
    sizes = {disk.stat(staging_path(FOLDER, f"t/{name}")).size: name for name in paths}
    return [piece._replace(path=f"t/{sizes[piece.size]}") for piece in staged]


def work(flush: str, kind: str, opened: list[Log] | None = None) -> Any:
    def workload(fs: FileSystem, acked: list[Any]) -> Log:
        inner = fs.inner if isinstance(fs, FaultyFileSystem) else fs
        pieces = pieces_of(inner, kind)
        log = Log(FOLDER, **options(flush, fs))
        if opened is not None:
            opened.append(log)
        log.append([b"third"]).wait()
        acked.append(b"third")
        adopt(log, pieces, producer="t", sequence=0).wait()
        acked.append(b"all")
        log.append([b"fourth"]).wait()
        acked.append(b"fourth")
        return log

    return workload


def expected_of(acked: list[Any], kind: str, found: list[Any]) -> None:
    """All that was acknowledged is there, and nothing by halves."""
    batches = flat(what(kind))
    rest = found[len(BEFORE) :]
    assert found[: len(BEFORE)] == BEFORE
    whole = [b"third", *batches, b"fourth"]
    steps = [[], [b"third"], [b"third", *batches], whole]
    assert rest in steps, rest
    assert len(rest) >= len(steps[len(acked)])


def check_after(disk: SimulatedDisk, flush: str, kind: str, acked: list[Any]) -> None:
    with Log(FOLDER, fs=disk, read_only=True) as reader:
        expected_of([], kind, values(reader))  # a watermark that cannot be written is behind
    with Log(FOLDER, **options(flush, disk)) as log:
        found = values(log)
        expected_of(acked, kind, found)
        has_it = len(found) > len(BEFORE) + 1
        discard(disk, FOLDER, "t")
        adopt(log, stage(disk, what(kind)), producer="t", sequence=0).wait()
        behind = [] if has_it else flat(what(kind))
        assert values(log) == found + behind, "it comes again, and is there once"


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_a_kill_at_any_call(flush: str, kind: str) -> None:
    disk = prepared(flush, kind)
    runs = 0
    for run in every_call(work(flush, kind), Crash(after=True), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.kill()
        check_after(run.disk, flush, kind, run.acked)
        runs += 1
    assert runs > 20


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_cut_at_any_call(flush: str, kind: str) -> None:
    disk = prepared(flush, kind)
    for run in every_call(work(flush, kind), Crash(after=True), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.crash(run.call.n)
        with Log(FOLDER, **options(flush, run.disk)) as log:
            found = values(log)
            promised = run.acked if flush == "sync" else []
            expected_of(promised, kind, found)


@pytest.mark.no_cover
@pytest.mark.parametrize("before", [0, 1], ids=["empty", "not empty"])
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_cut_right_after_it_was_acknowledged(flush: str, kind: str, before: int) -> None:
    """Nothing else has been flushed since. Which sectors are lost is up to the seed; what was
    copied lies in one or two."""
    batches = flat(what(kind))
    for seed in range(12):
        disk = SimulatedDisk()
        log = Log(FOLDER, **options(flush, disk))
        for value in names("before", before):
            log.append([value]).wait()
        log.flush()
        adopt(log, stage(disk, what(kind)), producer="t", sequence=0).wait()
        if flush == "async":
            log.flush()
        disk.crash(seed)
        with Log(FOLDER, **options(flush, disk)) as again:
            assert values(again) == [*names("before", before), *batches], f"seed {seed}"
        let_go(log)


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call(flush: str, kind: str, error: int) -> None:
    """What fails leaves nothing, or everything; and the log can be gone on with, perhaps after it
    was opened anew."""
    disk = prepared(flush, kind)
    for run in every_call(work(flush, kind), Fail(error), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.kill()
        is_poisoned = f"{FOLDER}/.tailrace/poisoned" in run.disk.files()
        promised = [] if is_poisoned and flush != "sync" else run.acked
        check_after(run.disk, flush, kind, promised)


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_another_writer_goes_on_behind_one_that_died(flush: str, kind: str) -> None:
    """It is there all the time, and puts right what it finds; as readers are, who see all of it or
    nothing."""
    disk = prepared(flush, kind)
    fresh = disk.clone()
    counting = FaultyFileSystem(fresh)
    with Log(FOLDER, **options(flush, fresh)):
        let_go(work(flush, kind)(counting, []))
    for call in counting.calls:
        fresh = disk.clone()
        alive, reader = Log(FOLDER, **options(flush, fresh)), Log(FOLDER, fs=fresh, read_only=True)
        assert values(reader) == BEFORE
        death = Death(fresh, call.n, Crash())
        fs = FaultyFileSystem(fresh, death)
        opened: list[Log] = []
        acked: list[Any] = []
        with pytest.raises(SimulatedCrash):
            work(flush, kind, opened)(fs, acked)
        for log in opened:
            let_go(log)
        death.leave()
        seen = values(reader)
        expected_of([], kind, seen)
        alive.append([b"mine"]).wait()
        found = values(alive)
        assert found[-1] == b"mine"
        expected_of(acked, kind, found[:-1])
        assert seen == found[: len(seen)]
        assert values(reader) == found
        assert not problems(fresh)
        reader.close()
        alive.close()


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("fault", [Crash(), Crash(after=True)], ids=["before", "after"])
def test_a_power_cut_when_another_has_gone_on(fault: Crash, kind: str) -> None:
    """What it has put right, or found to be so, is so for good."""
    disk = prepared("sync", kind)
    fresh = disk.clone()
    counting = FaultyFileSystem(fresh)
    with Log(FOLDER, **options("sync", fresh)):
        let_go(work("sync", kind)(counting, []))
    for call in counting.calls:
        fresh = disk.clone()
        opened: list[Log] = []
        acked: list[Any] = []
        alive = Log(FOLDER, **options("sync", fresh))
        death = Death(fresh, call.n, fault)
        with pytest.raises(SimulatedCrash):
            work("sync", kind, opened)(FaultyFileSystem(fresh, death), acked)
        for log in opened:
            let_go(log)
        death.leave()
        alive.append([b"mine"]).wait()
        let_go(alive)
        fresh.crash(call.n)
        with Log(FOLDER, **options("sync", fresh)) as log:
            found = values(log)
        assert found[-1] == b"mine"
        expected_of(acked, kind, found[:-1])


@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_somebody_has_flushed_stays(flush: str, kind: str) -> None:
    """One dies when only the removal is left to do. Another flushes what the board tells of, as
    tasks of asyncio do without the turn, and dies as well."""
    disk = prepared(flush, kind)
    alive = Log(FOLDER, **options(flush, disk))
    removal = on("unlink", Crash(), path="*/adoption")
    memory = b""

    def plan(call: Call) -> Fault | None:
        nonlocal memory
        memory = bytes(alive._writing().board.memory)
        return removal(call)

    opened: list[Log] = []
    with pytest.raises(SimulatedCrash):
        work(flush, kind, opened)(FaultyFileSystem(disk, plan), [])
    let_go(opened[0])
    alive._writing().board.memory[:] = memory
    alive._writing().committer.flush()
    let_go(alive)
    disk.kill()
    with Log(FOLDER, **options(flush, disk)) as log:
        found = [record.value for record in log.read()]
    expected_of([b"third"], kind, found)
    assert not problems(disk)


# --- the process lives on -------------------------------------------------------------------

FAULTS = [errno.EIO, errno.EMFILE, errno.ENOSPC, None]
LINES = ("adopting", "adoption", "tail")


class Company:
    """One who takes in what was staged, and another writer; what each of them was told."""

    def __init__(self, disk: SimulatedDisk, flush: str, kind: str) -> None:
        self.disk, self.flush, self.kind = disk, flush, kind
        self.fs = FaultyFileSystem(disk)
        self.pieces = pieces_of(disk, kind)
        self.other = Log(FOLDER, **options(flush, disk))
        self.log = Log(FOLDER, **options(flush, self.fs))
        self.outcome = "interrupted"
        self.acked: list[bytes] = []
        self.append(self.log, b"third")

    def append(self, log: Log, value: bytes) -> None:
        with contextlib.suppress(NotWritten, OutcomeUnknown):  # a flush has failed
            log.append([value]).wait()
            self.acked.append(value)

    def take_in(self) -> None:
        try:
            adopt(self.log, self.pieces, producer="t", sequence=0).wait()
            self.outcome = "done"
        except NotWritten:
            self.outcome = "not written"
            raise
        except OutcomeUnknown:
            self.outcome = "unknown"
            raise

    def go_on(self, who: str) -> None:
        """Somebody appends first: another who is here, or comes, or the one that failed. Then all
        of them close."""
        self.was_poisoned = self.is_poisoned
        if self.was_poisoned and self.flush != "sync":
            self.acked.clear()  # nobody has promised that it is durable
        with Log(FOLDER, fs=self.disk, read_only=True) as reader:
            self.is_whole(values(reader))
        if who == "joins":
            with (
                contextlib.suppress(NotWritten),
                Log(FOLDER, **options(self.flush, self.disk)) as new,
            ):
                self.append(new, b"new")
        if who != "itself":
            self.append(self.other, b"other")
        if who != "the other":
            self.append(self.log, b"own")
            self.append(self.other, b"other again")
        if not self.was_poisoned:
            assert values(self.log) == values(self.other)
        self.log.close()
        self.append(self.other, b"last")
        self.other.close()

    @property
    def is_poisoned(self) -> bool:
        return f"{FOLDER}/.tailrace/poisoned" in self.disk.files()

    def is_whole(self, found: list[bytes | None]) -> bool:
        """Is it there? All of it is, or nothing."""
        batches = flat(what(self.kind))
        there = [value for value in found if value in batches]
        assert there in ([], batches)
        return bool(there)

    def check(self) -> None:
        acked = [*BEFORE, *self.acked]
        with Log(FOLDER, **options(self.flush, self.disk)) as log:
            found = values(log)
            assert [value for value in found if value in acked] == acked
            is_there = self.is_whole(found)
            assert self.outcome in ("unknown", "interrupted", "done" if is_there else "not written")
            assert f"{FOLDER}/.tailrace/adoption" not in self.disk.files()
            discard(self.disk, FOLDER, "t")
            adopt(log, stage(self.disk, what(self.kind)), producer="t", sequence=0).wait()
            behind = [] if is_there else flat(what(self.kind))
            assert values(log) == found + behind, "it comes again, and is there once"
        assert self.was_poisoned or not problems(self.disk)


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("who", ["the other", "itself", "joins"])
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("error", FAULTS)
def test_a_call_fails_and_everybody_goes_on(
    flush: str, kind: str, error: int | None, who: str
) -> None:
    disk = prepared(flush, kind)

    def run(number: int) -> bool:
        company = Company(disk.clone(), flush, kind)
        is_hit = at_call(company.fs, error, number, company.take_in)
        company.go_on(who)
        company.check()
        return is_hit

    assert len(list(each_hit(run))) > 10


@pytest.mark.no_cover
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("who", ["the other", "itself"])
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
def test_an_interrupt_at_any_line_and_everybody_goes_on(
    flush: str, kind: str, who: str, step: int
) -> None:
    """Between calls to the file system there are stores to memory, which others share."""
    disk = prepared(flush, kind)

    def run(number: int) -> bool:
        company = Company(disk.clone(), flush, kind)
        is_hit = at_line(LINES, number, company.take_in)
        company.go_on(who)
        company.check()
        return is_hit

    assert len(list(each_hit(run, step))) > 10


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("error", [errno.EMFILE, None])
def test_an_exclusive_writer_goes_on(flush: str, kind: str, error: int | None) -> None:
    """Nobody else can put it right, and nobody waits to learn that."""
    disk = prepared(flush, kind)

    def run(number: int) -> bool:
        fresh = disk.clone()
        fs = FaultyFileSystem(fresh)
        log = Log(FOLDER, **options(flush, fs), exclusive=True)
        pieces = pieces_of(fresh, kind)
        take_in = lambda: adopt(log, pieces, producer="t", sequence=0).wait()  # noqa: E731
        is_hit = at_call(fs, error, number, take_in)
        log.append([b"mine"]).wait()
        with pytest.raises(Locked):
            Log(FOLDER, **options(flush, fresh))
        found = values(log)
        assert found in ([*BEFORE, b"mine"], [*BEFORE, *flat(what(kind)), b"mine"])
        log.close()
        with Log(FOLDER, **options(flush, fresh)) as again:
            assert values(again) == found
        assert not problems(fresh)
        return is_hit

    assert len(list(each_hit(run))) > 10


# --- what is staged -------------------------------------------------------------------------


def test_what_is_staged_is_damaged(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options("none")) as log:
        log.append([b"first"])
        for batches in ([[b"1"]], large("x")):
            for size, says in ((10, "damaged"), (-1, "cut short")):
                [piece] = stage(fs, batches, folder=folder)
                path = tmp_path / "log/.tailrace/staging" / piece.path
                path.write_bytes(path.read_bytes()[:size])
                with pytest.raises((Corrupt, NotWritten), match=f"{says}|should have"):
                    adopt(log, [piece], producer="t", sequence=0)
                assert values(log) == [b"first"]
        [piece] = stage(fs, [[b"1"]], folder=folder)
        with pytest.raises(Corrupt, match="should have"):
            adopt(log, [piece._replace(records=2)], producer="t", sequence=0)
        with pytest.raises((NotWritten, FileNotFoundError)):
            adopt(log, [piece._replace(path="t/none")], producer="t", sequence=0)
        with pytest.raises(ValueError, match="nothing to adopt"):
            adopt(log, [], producer="t", sequence=0)
        assert values(log) == [b"first"]
        adopt(log, [piece], producer="t", sequence=0)
        assert values(log) == [b"first", b"1"]


def test_what_was_abandoned_is_swept(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), str(tmp_path / "log")
    with Log(folder, **options("none")) as log:
        stage(fs, [[b"1"]], folder=folder, txn="old")
        [entry] = fs.list(staging_path(folder))
        assert sweep(fs, folder, entry.modified_ms + 1_000, 2_000) == 0
        assert sweep(fs, folder, entry.modified_ms + 10_000, 2_000) == 1
        assert fs.list(staging_path(folder)) == []
        assert sweep(fs, str(tmp_path), 0) == 0
        assert values(log) == []
