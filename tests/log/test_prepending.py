"""What a log had once is put in front of it: all of it, or nothing, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace import Corrupt, Log, NotWritten, OffsetOutOfRange
from tailrace.errors import OutcomeUnknown
from tailrace.kernel import Record, encode
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.log.prepending import Front, Staged, joint_of, prepend
from tailrace.log.retention import delete_before
from tailrace.log.segments import list_segments
from tailrace.testing import (
    Crash,
    Fail,
    FaultyFileSystem,
    SimulatedCrash,
    SimulatedDisk,
    every_call,
    on,
)
from tests.log.damage import WRITES
from tests.log.helpers import WAIT
from tests.log.interrupts import at_call, at_line, each_hit
from tests.log.test_writer_deaths import Death, let_go, problems

FOLDER = "log"
SEGMENT = 300
MODES = ("sync", "async", "none")
THEN = 1_700_000_000_000


def options(flush: str, fs: FileSystem | None = None) -> dict[str, Any]:
    return {"flush": flush, "fs": fs, "segment_bytes": SEGMENT, "upkeep": False}


def value_of(offset: int) -> bytes:
    return b"%d" % offset * 20


def record_of(offset: int) -> Record:
    key = None if offset % 3 else b"" if offset % 2 else b"k"
    headers = {"h": b"%d" % offset} if offset % 4 else None
    return Record(timestamp=THEN + offset, key=key, value=value_of(offset), headers=headers)


def put(log: Log, first: int, last: int, *, at_once: int = 3, without: Any = ()) -> None:
    """Bring offsets back, in batches of so many, but for some."""
    with Front(log, "t") as front:
        staged = stage(front, first, last, at_once=at_once, without=without)
        prepend(log, front, staged, first, last)


def stage(front: Front, first: int, last: int, *, at_once: int = 3, without: Any = ()) -> Staged:
    batch: list[int] = []
    for offset in range(first, last + 1):
        is_there = offset < last and offset not in without
        if batch and (not is_there or len(batch) == at_once):
            front.add(encode([record_of(each) for each in batch], THEN, 0), batch[0])
            batch = []
        if is_there:
            batch.append(offset)
    return front.finish()


def fill(log: Log, count: int) -> None:
    """From where it ends on."""
    first = log.end_offset
    for offset in range(first, first + count):
        log.append([record_of(offset)]).wait()


def found(log: Log) -> list[tuple[Any, bytes | None]]:
    return [(record.offset, record.value) for record in log.read()]


def wanted(*ranges: tuple[int, int], without: Any = ()) -> list[tuple[int, bytes]]:
    offsets = [offset for first, last in ranges for offset in range(first, last)]
    return [(offset, value_of(offset)) for offset in offsets if offset not in without]


def parts(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, record.headers


def deleted(log: Log, before: int) -> None:
    log.truncate_before(before)
    log.vacuum()


def is_whole(folder: str) -> None:
    report = verify(OsFileSystem(), folder)
    assert not report.findings, report.findings


@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_it_comes_back(tmp_path: Path, flush: str, at_once: int) -> None:
    """For whoever has the log open, whatever for; and for who opens it later."""
    folder = str(tmp_path / "log")
    with (
        Log(folder, **options(flush)) as log,
        Log(folder, **options(flush)) as other,
        Log(folder, read_only=True) as reader,
    ):
        fill(log, 40)
        assert found(other) == found(reader) == wanted((0, 40))
        deleted(log, 25)
        first = joint_of(log).first
        assert found(other) == found(reader) == wanted((25, 40))
        put_to(log, 4, first, at_once)
        for each in (log, other, reader):
            assert each.start_offset == 4
            assert found(each) == wanted((4, 40))
            assert each.offset_at(THEN + 10) == 10
            assert [r.offset for r in each.read(timestamp=THEN + 7, end=9)] == [7, 8]
        fill(other, 1)
        fill(log, 1)
        assert found(other) == found(log) == found(reader) == wanted((4, 42))
        put(other, 0, 4)
        assert found(other) == found(log) == found(reader) == wanted((0, 42))
        assert list(map(parts, log.read(end=25))) == [parts(record_of(each)) for each in range(25)]
        deleted(other, 30)
        assert found(other) == found(log) == found(reader) == wanted((30, 42))
    is_whole(folder)
    with Log(folder, **options(flush)) as log:
        assert found(log) == wanted((30, 42))


def put_to(log: Log, first: int, last: int, at_once: int) -> None:
    """Up to the first segment; what it has below the start comes back with that."""
    with Front(log, "t") as front:
        staged = stage(front, first, last, at_once=at_once)
        prepend(log, front, staged, first, joint_of(log).seam)


@pytest.mark.parametrize("flush", MODES)
def test_into_a_log_without_records(tmp_path: Path, flush: str) -> None:
    folder = str(tmp_path / "log")
    with (
        Log(folder, **options(flush)) as log,
        Log(folder, **options(flush)) as other,
        Log(folder, read_only=True) as reader,
    ):
        assert found(reader) == []
        put(log, 0, 30)
        for each in (other, log, reader):
            assert (each.start_offset, each.end_offset) == (0, 30)
            assert found(each) == wanted((0, 30))
        fill(other, 2)
        fill(log, 2)
        assert found(other) == found(log) == found(reader) == wanted((0, 34))
    is_whole(folder)
    with Log(folder, **options(flush)) as log:
        assert found(log) == wanted((0, 34))
        deleted(log, 34)
        assert joint_of(log) == (34, 34, 34, False)
        put(log, 10, 20)
        assert found(log) == wanted((10, 20))
        assert log.end_offset == 34
        fill(log, 1)
        assert found(log) == wanted((10, 20), (34, 35))
    is_whole(folder)
    with Log(folder, **options(flush)) as log:
        assert found(log) == wanted((10, 20), (34, 35))


@pytest.mark.parametrize("flush", MODES)
def test_into_a_new_log_from_the_middle(tmp_path: Path, flush: str) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options(flush)) as log:
        put(log, 1000, 1010)
        assert found(log) == wanted((1000, 1010))
    with Log(folder, **options(flush)) as log:
        fill(log, 1)
        assert found(log) == wanted((1000, 1011))
        put(log, 990, 1000)
        assert found(log) == wanted((990, 1011))
    is_whole(folder)


def test_offsets_that_are_missing_stay_so(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    without = {0, 1, 5, 6, 7, 12, 29}
    with Log(folder, **options("sync")) as log:
        put(log, 0, 30, without=without)
        assert found(log) == wanted((2, 30), without=without)
        assert (log.start_offset, log.end_offset) == (2, 30)
        fill(log, 1)
    is_whole(folder)
    with Log(folder, **options("sync")) as log:
        assert found(log) == wanted((2, 31), without=without)
        assert [record.offset for record in log.read(5, 9)] == [8]


def test_what_the_first_segment_has_below_the_start_comes_back_with_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log:
        fill(log, 12)
        second = list_segments(OsFileSystem(), folder)[1].base
        deleted(log, second + 2)
        joint = joint_of(log)
        assert (joint.first, joint.start, joint.seam) == (second, second + 2, second + 2)
        with Front(log, "t") as front:
            prepend(log, front, front.finish(), second + 1, second + 2)
        assert found(log) == wanted((second + 1, 12))
        with Front(log, "t") as front:
            prepend(log, front, stage(front, 0, second), 0, second + 1)
        assert found(log) == wanted((0, 12))
    is_whole(folder)


def test_it_has_to_fit(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log:
        fill(log, 30)
        deleted(log, 25)
        joint = joint_of(log)
        for last in (joint.first - 1, joint.seam + 1, 40):
            with pytest.raises(OffsetOutOfRange, match="where the log starts"):
                put(log, 3, last)
        with Front(log, "t") as front, pytest.raises(ValueError, match="nothing to put"):
            prepend(log, front, front.finish(), 3, joint.seam)
        with Front(log, "t") as front:
            front.add(encode([b"x"], THEN, 0), 5)
            with pytest.raises(ValueError, match="is not after"):
                front.add(encode([b"x"], THEN, 0), 5)
        assert found(log) == wanted((25, 30))
    is_whole(folder)


def test_the_segments_are_of_the_size_and_age_of_others(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync"), segment_age="1s") as log, Front(log, "t") as front:
        for offset in range(6):
            record = Record(timestamp=THEN + 800 * offset, value=b"x")
            front.add(encode([record], THEN, 0), offset)
        prepend(log, front, front.finish(), 0, 6)
        assert [extent.base for extent in list_segments(OsFileSystem(), folder)] == [0, 2, 4, 6]
    with Log(str(tmp_path / "other"), **options("sync")) as log:
        put(log, 0, 100, at_once=2)
        sizes = [extent.size for extent in list_segments(OsFileSystem(), str(tmp_path / "other"))]
        assert max(sizes) <= SEGMENT
        assert len(sizes) > 5


def test_nobody_deletes_what_was_put_there(tmp_path: Path) -> None:
    """Who let segments go, and deletes their files only now, finds others of these names."""
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log, Log(folder, **options("sync")) as other:
        fill(log, 30)
        fill(other, 10)
        writer = log._writing()
        extents = list_segments(OsFileSystem(), folder)
        doomed = dict.fromkeys(extents[:3], extents[3].base)
        deleted(other, extents[3].base)
        put(other, 0, extents[3].base, at_once=1)
        is_same = lambda: writer.board.fronts == writer._fronts  # noqa: E731
        delete_before(writer.catalog, dict(doomed), extents[3].base, is_same)
        assert found(log) == found(other) == wanted((0, 40))
        other.truncate_before(extents[2].base)
        delete_before(writer.catalog, dict(doomed), extents[3].base, is_same)
        assert found(log) == found(other) == wanted((extents[2].base, 40))
        log.vacuum()
        other.vacuum()
        assert found(log) == found(other) == wanted((extents[2].base, 40))
    is_whole(folder)


def test_old_segments_of_the_same_names_are_not_mistaken(tmp_path: Path) -> None:
    """They were cut elsewhere, and may even have had the same size."""
    folder = str(tmp_path / "log")
    with (
        Log(folder, **options("sync")) as log,
        Log(folder, **options("sync")) as other,
        Log(folder, read_only=True) as reader,
    ):
        for size in (1, 2, 5, 3, 1):
            if log.end_offset:
                put_to(other, 0, joint_of(log).first, size)
            else:
                fill(log, 40)
            for each in (log, other, reader):
                assert found(each) == wanted((0, 40))
                for offset in range(0, 40, 3):
                    assert each.offset_at(THEN + offset) == offset
                    assert next(each.read(offset)).offset == offset
            deleted(log, joint_of(log).end - 3)
            assert found(reader)[-3:] == wanted((37, 40))
    is_whole(folder)


@pytest.mark.parametrize("flush", MODES)
def test_retention_goes_on(tmp_path: Path, flush: str) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options(flush), retention={"max_records": 10}) as log:
        fill(log, 30)
        log.vacuum()
        seam = joint_of(log).seam
        put(log, 0, seam, at_once=1)
        assert found(log) == wanted((0, 30))
        log.vacuum()
        assert 0 < log.start_offset <= 20
        assert found(log) == wanted((log.start_offset, 30))


@pytest.mark.parametrize("flush", MODES)
def test_those_who_follow_go_on(tmp_path: Path, flush: str) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options(flush)) as log, Log(folder, read_only=True) as reader:
        fill(log, 20)
        deleted(log, 15)
        following = reader.read(18, follow=True, timeout=20)
        assert [next(following).offset for _ in range(2)] == [18, 19]
        put_to(log, 0, joint_of(log).first, 3)
        fill(log, 3)
        assert [next(following).offset for _ in range(3)] == [20, 21, 22]
        following.close()


@pytest.mark.parametrize("flush", MODES)
def test_while_others_write_read_and_delete(tmp_path: Path, flush: str) -> None:
    """What is read is always the log's, without a hole, whatever its start is just then."""
    folder, seed = str(tmp_path / "log"), random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, dice = random.Random(seed), random.Random(seed + 1)
    stop, failures = threading.Event(), []

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001  told below
                failures.append(error)
                stop.set()

        return threading.Thread(target=run)

    with (
        Log(folder, **options(flush)) as log,
        Log(folder, **options(flush)) as writing,
        Log(folder, **options(flush)) as deleting,
        Log(folder, read_only=True) as reader,
    ):
        fill(log, 60)

        def write() -> None:
            writing.append([record_of(writing.end_offset)]).wait()
            stop.wait(0.001)

        def delete() -> None:
            start = deleting.start_offset
            further = dice.randrange(40)
            deleting.truncate_before(max(min(start + further, deleting.end_offset - 5), start))
            deleting.vacuum()
            stop.wait(0.1)

        def read() -> None:
            try:
                seen = found(reader)
            except OffsetOutOfRange:
                return
            offsets = [offset for offset, _ in seen]
            assert offsets[1:] == [offset + 1 for offset in offsets[:-1]]
            assert all(value == value_of(offset) for offset, value in seen)

        threads = [guarded(work) for work in (write, delete, read)]
        for thread in threads:
            thread.start()
        done = 0
        begun = time.monotonic()
        while time.monotonic() < begun + (1.5 if done else WAIT) and not stop.is_set():
            joint = joint_of(log)
            first = max(joint.first - chance.randrange(1, 30), 0)
            if first >= joint.first:
                stop.wait(0.005)
                continue
            try:
                with Front(log, "t") as front:
                    staged = stage(front, first, joint.first, at_once=chance.randrange(1, 5))
                    prepend(log, front, staged, first, joint.seam)
                done += 1
            except OffsetOutOfRange:
                continue  # it was deleted further meanwhile
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert done
    is_whole(folder)


# --- what goes wrong ------------------------------------------------------------------------


def prepared(flush: str, kind: str) -> SimulatedDisk:
    """A log that somebody had open, and has let go of some."""
    disk = SimulatedDisk()
    with Log(FOLDER, **options(flush, disk)) as log:
        if kind != "new":
            fill(log, 12)
            deleted(log, 12 if kind == "drained" else list_segments(disk, FOLDER)[2].base)
        log.flush()
    return disk


def start_of(disk: FileSystem, kind: str) -> int:
    return 0 if kind == "new" else 12 if kind == "drained" else list_segments(disk, FOLDER)[0].base


def work(flush: str, kind: str, start: int, opened: list[Log] | None = None) -> Any:
    last = start or 10

    def workload(fs: FileSystem, acked: list[Any]) -> Log:
        log = Log(FOLDER, **options(flush, fs))
        if opened is not None:
            opened.append(log)
        put(log, 1, last, at_once=2, without={4})
        acked.append("put")
        fill(log, 1)
        acked.append("behind")
        return log

    return workload


def check(log: Log, kind: str, start: int, acked: list[Any]) -> list[tuple[Any, bytes | None]]:
    """All of it, or nothing."""
    last = start or 10
    seen = past_loss(log)
    before = [pair for pair in seen if pair[0] < last]
    assert before in ([], wanted((1, last), without={4}))
    if acked:
        assert before
    behind = [pair for pair in seen if pair[0] >= last]
    base = 12 if kind != "new" else 10
    kept = wanted((start, 12)) if kind == "some" else []
    assert behind in (kept, kept + wanted((base, base + 1)))
    if len(acked) > 1:
        assert len(behind) > len(kept)
    return seen


def past_loss(log: Log) -> list[tuple[Any, bytes | None]]:
    """Where a flush has failed."""
    pairs: list[tuple[Any, bytes | None]] = []
    first = log.start_offset
    while True:
        try:
            for record in log.read(first):
                pairs.append((record.offset, record.value))  # noqa: PERF401  what came counts
            return pairs
        except Corrupt as error:
            first = error.next_offset or log.end_offset


def check_after(
    disk: SimulatedDisk, flush: str, kind: str, start: int, acked: list[Any], is_kept: bool = True
) -> None:
    with Log(FOLDER, fs=disk, read_only=True) as reader:
        check(reader, kind, start, [])
    with Log(FOLDER, **options(flush, disk)) as log:
        seen = check(log, kind, start, acked if is_kept else acked[:1])
        if not seen or seen[0][0] >= (start or 10):  # it can be done again
            if kind != "some" and seen:
                return  # a record was written, which has its offset
            put(log, 1, start or 10, at_once=2, without={4})
            expected = wanted((1, start or 10), without={4}) + seen
            assert past_loss(log) == expected
    # A power cut tore the line of an attempt that came to nothing.
    assert all(each.path.endswith("gaps") for each in problems(disk))


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", MODES)
def test_a_kill_at_any_call(flush: str, kind: str) -> None:
    disk = prepared(flush, kind)
    start, runs = start_of(disk, kind), 0
    for run in every_call(work(flush, kind, start), Crash(after=True), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.kill()
        check_after(run.disk, flush, kind, start, run.acked)
        runs += 1
    assert runs > 20


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_cut_at_any_call(flush: str, kind: str) -> None:
    """What was put in front is durable in each flush mode, as soon as it is there."""
    disk = prepared(flush, kind)
    start = start_of(disk, kind)
    for run in every_call(work(flush, kind, start), Crash(after=True), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.crash(run.call.n)
        check_after(run.disk, flush, kind, start, run.acked, is_kept=flush == "sync")


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call(flush: str, kind: str, error: int) -> None:
    disk = prepared(flush, kind)
    start = start_of(disk, kind)
    for run in every_call(work(flush, kind, start), Fail(error), disk.clone, ops=WRITES):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.kill()
        is_poisoned = f"{FOLDER}/.tailrace/poisoned" in run.disk.files()
        check_after(run.disk, flush, kind, start, run.acked, is_kept=not is_poisoned)


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", MODES)
def test_another_writer_goes_on_behind_one_that_died(flush: str, kind: str) -> None:
    """It is there all the time, as are readers, who see all of it or nothing."""
    disk = prepared(flush, kind)
    start = start_of(disk, kind)
    fresh = disk.clone()
    counting = FaultyFileSystem(fresh)
    with Log(FOLDER, **options(flush, fresh)):
        let_go(work(flush, kind, start)(counting, []))
    for call in counting.calls:
        fresh = disk.clone()
        alive, reader = Log(FOLDER, **options(flush, fresh)), Log(FOLDER, fs=fresh, read_only=True)
        assert found(reader) == (wanted((start, 12)) if kind == "some" else [])
        death = Death(fresh, call.n, Crash())
        opened: list[Log] = []
        acked: list[Any] = []
        with pytest.raises(SimulatedCrash):
            work(flush, kind, start, opened)(FaultyFileSystem(fresh, death), acked)
        for log in opened:
            let_go(log)
        death.leave()
        seen = check(reader, kind, start, [])
        end = alive.append([b"mine"]).wait().offset
        after = found(alive)
        assert after[-1] == (end, b"mine")
        rest = after[:-1]
        assert [pair for pair in seen if pair not in rest] == []
        in_front = [pair for pair in rest if pair[0] < (start or 10) and pair[0] != end]
        assert in_front in ([], wanted((1, start or 10), without={4}))
        assert found(reader) == after
        assert not problems(fresh)
        reader.close()
        alive.close()


# --- the process lives on -------------------------------------------------------------------

FAULTS = [errno.EIO, errno.EMFILE, errno.ENOSPC, None]
LINES = ("prepending", "tail")


class Company:
    """One who puts something in front, and another writer; what each of them was told."""

    def __init__(self, disk: SimulatedDisk, flush: str, kind: str, start: int) -> None:
        self.disk, self.flush, self.kind, self.last = disk, flush, kind, start or 10
        self.fs = FaultyFileSystem(disk)
        self.other = Log(FOLDER, **options(flush, disk))
        self.log = Log(FOLDER, **options(flush, self.fs))
        self.before = found(self.other)
        self.outcome = "interrupted"
        self.acked: dict[int, bytes] = {}
        self.front = Front(self.log, "t")
        self.staged = stage(self.front, 1, self.last, at_once=2, without={4})

    def put(self) -> None:
        try:
            prepend(self.log, self.front, self.staged, 1, self.last)
            self.outcome = "done"
        except NotWritten:
            self.outcome = "not written"
            raise
        except OutcomeUnknown:
            self.outcome = "unknown"
            raise

    def append(self, log: Log, value: bytes) -> None:
        with contextlib.suppress(NotWritten, OutcomeUnknown):  # a flush has failed
            self.acked[log.append([value]).wait().offset] = value

    def go_on(self, who: str) -> None:
        """Somebody appends first: another who is here, or comes, or the one that failed. Then all
        of them close."""
        self.was_poisoned = f"{FOLDER}/.tailrace/poisoned" in self.disk.files()
        with Log(FOLDER, fs=self.disk, read_only=True) as reader:
            self.is_whole(reader)
        if who == "joins":
            with Log(FOLDER, **options(self.flush, self.disk)) as new:
                self.append(new, b"new")
        if who != "itself":
            self.append(self.other, b"other")
        if who != "the other":
            self.append(self.log, b"own")
        if not self.was_poisoned:
            self.other.vacuum()
            assert found(self.log) == found(self.other)
        self.front.close()
        self.log.close()
        self.append(self.other, b"last")
        self.other.close()

    def is_whole(self, log: Log) -> bool:
        """Is it there? All of it is, or nothing."""
        seen = found(log)
        for pair in [*self.before, *self.acked.items()]:
            assert pair in seen
            seen.remove(pair)
        assert seen in ([], wanted((1, self.last), without={4}))
        return bool(seen)

    def check(self) -> None:
        with Log(FOLDER, **options(self.flush, self.disk)) as log:
            is_there = self.is_whole(log)
            assert self.outcome in ("unknown", "interrupted", "done" if is_there else "not written")
            seen, seam = found(log), joint_of(log).seam
            if not is_there and seam:  # it can be done again
                put(log, 1, seam, at_once=2, without={4})
                assert found(log) == wanted((1, seam), without={4}) + seen
        assert self.was_poisoned or not problems(self.disk)


@pytest.mark.no_cover
@pytest.mark.sample(4)
@pytest.mark.parametrize("who", ["the other", "itself", "joins"])
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("error", FAULTS)
def test_a_call_fails_and_everybody_goes_on(
    flush: str, kind: str, error: int | None, who: str
) -> None:
    disk = prepared(flush, kind)
    start = start_of(disk, kind)

    def run(number: int) -> bool:
        company = Company(disk.clone(), flush, kind, start)
        is_hit = at_call(company.fs, error, number, company.put)
        company.go_on(who)
        company.check()
        return is_hit

    assert len(list(each_hit(run))) > 10


@pytest.mark.no_cover
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("who", ["the other", "itself"])
@pytest.mark.parametrize("kind", ["some", "drained", "new"])
@pytest.mark.parametrize("flush", MODES)
def test_an_interrupt_at_any_line_and_everybody_goes_on(
    flush: str, kind: str, who: str, step: int
) -> None:
    """Between calls to the file system there are stores to memory, which others share."""
    disk = prepared(flush, kind)
    start = start_of(disk, kind)

    def run(number: int) -> bool:
        company = Company(disk.clone(), flush, kind, start)
        is_hit = at_line(LINES, number, company.put)
        company.go_on(who)
        company.check()
        return is_hit

    assert len(list(each_hit(run, step))) > 5


# --- single cases ---------------------------------------------------------------------------


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    disk = prepared("sync", "some")
    start = start_of(disk, "some")
    before = {path for path in disk.files() if path.endswith(".seg")}
    with Log(FOLDER, **options("sync", disk)) as log:
        full = FaultyFileSystem(disk)
        log._fs = full
        with Front(log, "t") as front:
            full.plan = on("pwrite", Fail(errno.ENOSPC))
            with pytest.raises(OSError, match="No space"):
                stage(front, 0, start)
            full.plan = None
    assert {path for path in disk.files() if path.endswith(".seg")} == before
    assert not [path for path in disk.files() if "staging/" in path]


def test_what_an_unknown_outcome_left_is_put_right(tmp_path: Path) -> None:
    """The start could not be stored: whoever has the turn next sees to it, as after a death."""
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log:
        fill(log, 20)
        deleted(log, 15)
        writer, seam = log._writing(), joint_of(log).seam
        store = writer._start_file.store

        def fails(offset: int) -> None:
            store(offset)
            raise OSError(errno.EIO, "no")

        writer._start_file.store = fails  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            put_to(log, 0, joint_of(log).first, 1)
        writer._start_file.store = store  # type: ignore[method-assign]
        assert found(log)[-5:] == wanted((15, 20))
        assert joint_of(log).start == 0
        assert found(log) == wanted((0, 20))
        deleted(log, 15)
        put_to(log, 3, joint_of(log).first, 2)
        assert found(log) == wanted((3, 20))
        assert seam == 15
    is_whole(folder)


def test_it_is_refused_by_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log:
        fill(log, 2)
    with Log(folder, read_only=True) as log, pytest.raises(NotWritten, match="read-only"):
        joint_of(log)


def test_what_cannot_be_taken_back_stops_the_log(tmp_path: Path) -> None:
    """Its start is where nothing is, and cannot be changed: records would be below it."""
    folder = str(tmp_path / "log")
    with Log(folder, **options("sync")) as log, Front(log, "t") as front:
        staged = stage(front, 0, 10)
        writer = log._writing()
        store = writer._start_file.store

        def fails(offset: int) -> None:
            if offset:
                store(offset)
            raise OSError(errno.EIO, "no")

        writer._start_file.store = fails  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            prepend(log, front, staged, 0, 10)
        for _ in range(2):
            with pytest.raises(NotWritten):
                log.append([b"x"])
        with pytest.raises(NotWritten):
            log.close()
    with Log(folder, **options("sync")) as log:
        assert found(log) == []
        assert log.append([b"x"]).wait().offset == 10
        put(log, 0, 10)
        assert [offset for offset, _ in found(log)] == list(range(11))
