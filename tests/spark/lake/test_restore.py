"""What was archived comes back as it was: with its offsets, its gaps, and every byte of it."""

from __future__ import annotations

import errno
import os
import random
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailrace import ConfigError, Corrupt, Log, NotWritten, OffsetOutOfRange
from tailrace.kernel import Record, encode
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.log.prepending import Front, prepend
from tests.spark.lake.making import make_archive

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[spark]")

from tailrace.spark.lake import reading
from tailrace.spark.lake.manifest import Manifest, Origin, Writing
from tailrace.spark.lake.reading import first_at
from tailrace.spark.lake.restore import Wanted, choose, restore

T0 = 1_700_000_000_000
HOUR = 3_600_000
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SMALL: dict[str, Any] = {"flush": "async", "segment_bytes": 2_000, "upkeep": False}


def record_of(chance: random.Random, number: int, *, steady: bool = False) -> Record:
    key = chance.choice([None, b"", b"key", b"\xff\0"])
    value = chance.choice([None, b"", b"v%d" % number, chance.randbytes(chance.randrange(200))])
    names = chance.sample(["a", "_topic", "_id", "_expires_at", "é", ""], chance.randrange(4))
    headers = {name: chance.choice([b"", b"12", b"\xfe"]) for name in names}
    back = 0 if steady else chance.randrange(3 * HOUR)
    return Record(timestamp=T0 + number * 60_000 - back, key=key, value=value, headers=headers)


def parts(record: Record) -> tuple[Any, ...]:
    assert record.offset is not None
    return record.offset, record.timestamp, record.key, record.value, record.headers


def everything(log: Log) -> list[tuple[Any, ...]]:
    return [parts(record) for record in log.read()]


def fill(log: Log, count: int, chance: random.Random | None = None) -> None:
    chance = chance or random.Random(1)
    while count > 0:
        many = min(chance.randrange(1, 6), count)
        log.append([record_of(chance, log.end_offset + number) for number in range(many)]).wait()
        count -= many


def bring_back(log: Log, manifest: Manifest, *, force: bool = False, **wanted: Any) -> Any:
    bounds = choose(log, manifest, "q", "", Wanted(**wanted), force=force)
    return restore(log, manifest, bounds)


def deleted(log: Log, before: int) -> None:
    log.truncate_before(before)
    log.vacuum()


def is_whole(log: Log) -> None:
    findings = verify(OsFileSystem(), log.path).findings
    assert not [each for each in findings if each.severity == "problem"], findings


def sparse(folder: Path, chance: random.Random, count: int) -> Log:
    """A log with gaps."""
    log = Log(folder, **SMALL)
    with Front(log, "t") as front:
        offset = first = chance.randrange(5)
        while offset < count:
            many = chance.randrange(1, 5)
            records = [record_of(chance, offset + number) for number in range(many)]
            front.add(encode(records, T0, 0), offset)
            offset += many + chance.choice([0, 0, 0, 1, 7])
        prepend(log, front, front.finish(), first, max(offset, count))
    return log


# A range without rows, and one whose rows are all in the log's own first segment.
FOUND = [(0, 3330606786), (0, 3298640518)]


@pytest.mark.parametrize(("turn", "seed"), [*((turn, None) for turn in range(10)), *FOUND])
def test_what_comes_back_is_what_was_there(tmp_path: Path, turn: int, seed: int | None) -> None:
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}")
    chance = random.Random(seed)
    options = {**SMALL, "compression": chance.choice(["none", "s2"])}
    if turn % 3:
        log = Log(tmp_path / "log", **options)
        fill(log, 120, chance)
    else:
        log = sparse(tmp_path / "log", chance, 120)
    with log:
        before, end = everything(log), log.end_offset
        cuts = sorted({log.start_offset, end, *(chance.randrange(end) for _ in range(3))})
        manifest = make_archive(
            tmp_path / "archive",
            log,
            pairwise(cuts),
            partition_by=chance.choice(["", "date", "hour"]),
            row_group=chance.choice([3, 50]),
        )
        assert Manifest.load(OsFileSystem(), str(tmp_path / "archive")) == manifest
        deleted(log, chance.choice([end, chance.randrange(log.start_offset, end)]))
        kept = everything(log)
        since = chance.randrange(log.start_offset) if log.start_offset else 0
        if chance.random() < 0.5 and since < log.start_offset:
            wanted = [each for each in before if each[0] >= since]
            has_rows = len(wanted) > len(kept)  # or one may be told that there are none
            with nullcontext() if has_rows else suppress(ConfigError):
                bring_back(log, manifest, start=since)
            assert everything(log) == wanted
        if log.start_offset > before[0][0]:
            report = bring_back(log, manifest)
            assert (report.first, report.missing >= 0) == (before[0][0], True)
        assert everything(log) == before
        assert kept == before[len(before) - len(kept) :]
        assert log.end_offset == end
        is_whole(log)
        with Log(tmp_path / "other", **options) as other:
            bring_back(other, manifest)
            assert everything(other) == before
            assert (other.start_offset, other.end_offset) == (before[0][0], end)
            fill(other, 2)
            is_whole(other)
        with Log(tmp_path / "other", **options) as other:
            assert everything(other)[:-2] == before


def test_a_range_of_times(tmp_path: Path) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        for number in range(100):
            log.append([Record(timestamp=T0 + number * 1000, value=b"%d" % number)])
        manifest = make_archive(tmp_path / "a", log, [(0, 40), (40, 100)], partition_by="hour")
        assert first_at(manifest, T0 + 39_001) == 40
        assert first_at(manifest, T0 - 1) == 0
        assert first_at(manifest, T0 + 99_001) is None
        deleted(log, 100)
        times: dict[str, Any] = {"since_ms": T0 + 20_000, "until_ms": T0 + 70_000}
        with pytest.raises(OffsetOutOfRange, match=r"from 70 on could never .* --force"):
            bring_back(log, manifest, **times)
        assert (everything(log), log.end_offset) == ([], 100)
        report = bring_back(log, manifest, force=True, **times)
        assert (report.first, report.last, report.records) == (20, 70, 50)
        assert report.missing == 30  # behind it
        assert [record.offset for record in log.read()] == list(range(20, 70))
        assert log.end_offset == 100
        with pytest.raises(ConfigError, match="nothing from that time on"):
            bring_back(log, manifest, since_ms=T0 + 200_000)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 100)
        manifest = make_archive(tmp_path / "a", log, [(0, 30)])
        for end in (None, 0, 5):
            with pytest.raises(ConfigError, match=r"starts at offset 0, .* nothing before it"):
                bring_back(log, manifest, end=end)
        deleted(log, 60)
        start = log.start_offset
        before = everything(log)
        with pytest.raises(OffsetOutOfRange, match=f"--end {start}"):
            bring_back(log, manifest, end=30)
        with pytest.raises(OffsetOutOfRange, match="ends at offset 30"):
            bring_back(log, manifest)
        with pytest.raises(ConfigError, match="archive of the queue 'q', not of 'other'"):
            choose(log, manifest, "other", "", Wanted())
        with pytest.raises(ConfigError, match="which was deleted"):
            choose(log, manifest, "q", "another", Wanted())
        assert everything(log) == before
    with Log(tmp_path / "new", **SMALL) as log:
        choose(log, manifest, "other", "another", Wanted())  # it never had any of its own
        with pytest.raises(ConfigError, match="nothing to restore"):
            bring_back(log, manifest, start=30)
        with (
            Writing(OsFileSystem(), str(tmp_path / "none"), Origin("q", "")) as writing,
            pytest.raises(ConfigError, match="is empty"),
        ):
            bring_back(log, writing.manifest)
        assert log.end_offset == 0


def test_another_queue_whose_numbers_agree_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 100)
        manifest = make_archive(tmp_path / "a", log, [(0, 100)])
    with Log(tmp_path / "other", **SMALL) as other:
        fill(other, 100)
        deleted(other, 100)
        assert (other.start_offset, other.end_offset) == (100, 100)
        with pytest.raises(ConfigError, match="archive of the queue 'q', not of 'other'"):
            choose(other, manifest, "other", "", Wanted())
        with pytest.raises(ConfigError, match="which was deleted"):
            choose(other, manifest, "q", "another", Wanted())
        bring_back(other, manifest)  # the same queue


def test_what_was_broken_off_in_a_new_queue_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the next offset is another, and before anything is there."""
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 100)
        before = everything(log)
        manifest = make_archive(tmp_path / "a", log, [(0, 100)])
        another = make_archive(tmp_path / "b", log, [(0, 100)], queue="another")

    def killed(self: object, *arguments: object) -> None:
        raise KeyboardInterrupt

    def chosen(log: Log, manifest: Manifest) -> Any:
        return choose(log, manifest, "new", "new", Wanted())

    with Log(tmp_path / "new", **SMALL) as log:
        monkeypatch.setattr("tailrace.log.prepending._Prepender._place", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(log, manifest, chosen(log, manifest))
        monkeypatch.undo()
    with Log(tmp_path / "new", **SMALL) as log:
        assert (everything(log), log.end_offset) == ([], 100)
        with pytest.raises(ConfigError, match="archive of the queue 'another'"):
            chosen(log, another)
        restore(log, manifest, chosen(log, manifest))
        assert everything(log) == before
        deleted(log, 100)
        with pytest.raises(ConfigError, match="archive of the queue 'q', not of 'new'"):
            chosen(log, manifest)


@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_file_is_named_and_nothing_comes_back(tmp_path: Path, how: str) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 100)
        manifest = make_archive(tmp_path / "a", log, [(0, 50), (50, 100)])
        deleted(log, 100)
        path = tmp_path / "a" / manifest.steps[1].files[0].path
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            middle = len(data) // 2
            changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            path.write_bytes(data[:-9] if how == "cut" else changed)
        with pytest.raises(Corrupt, match=path.name) as caught:
            bring_back(log, manifest)
        assert caught.value.path == str(path)
        assert everything(log) == []
        assert not list((tmp_path / "log/.tailrace/staging").iterdir())
        assert bring_back(log, manifest, end=50, force=True).records == 50


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """So many more than now may be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = os.listdir("/proc/self/fd")
    used = {int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")}
    free = [number for number in range(len(used) + more + 1) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@linux_only
@pytest.mark.parametrize("how", ["one after the other", "all together", "some go on"])
def test_more_hours_than_files_may_be_open(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 4_000)  # so that there is more than one merge
    hours = 150
    options = {**SMALL, "segment_bytes": 1 << 20}
    with Log(tmp_path / "log", **options) as log:
        records = [
            Record(timestamp=T0 + hour * HOUR, value=b"%d of %d" % (turn, hour))
            for turn in range(5)
            for hour in range(hours)
        ]
        if how == "one after the other":
            records.sort(key=lambda record: record.timestamp or 0)
        if how == "some go on":
            more = [Record(timestamp=T0 + n % 3 * HOUR, value=bytes(50)) for n in range(3_000)]
            records = [
                each for n in range(len(records)) for each in (records[n], *more[n * 4 :][:4])
            ]
        log.append_many(records)
        before = everything(log)
        manifest = make_archive(tmp_path / "a", log, [(0, len(before))], partition_by="hour")
        assert len(manifest.steps[0].files) == hours
        deleted(log, len(before))
        with few_files(60):
            bring_back(log, manifest)
        assert everything(log) == before


@linux_only
def test_a_limit_of_the_system_is_no_damage(tmp_path: Path) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 20)
        manifest = make_archive(tmp_path / "a", log, [(0, 20)])
    [file] = manifest.steps[0].files
    path = str(tmp_path / "a" / file.path)
    with few_files(0), pytest.raises(OSError, match=r"Too many open files") as caught:
        list(reading.read_file(path, ["offset"]))
    assert caught.value.errno == errno.EMFILE
    assert file.path in str(caught.value)
    assert len(list(reading.read_file(path, ["offset"]))) == 1


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "log", **SMALL) as log:
        fill(log, 100)
        manifest = make_archive(tmp_path / "a", log, [(0, 100)])
        deleted(log, 100)

        def full(self: object, *arguments: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("tailrace.log.prepending.write_all", full)
        with pytest.raises(NotWritten, match="No space left"):
            bring_back(log, manifest)
        monkeypatch.undo()
        assert everything(log) == []
        assert not list((tmp_path / "log/.tailrace/staging").iterdir())
        assert bring_back(log, manifest).records == 100


def test_large_records_come_back(tmp_path: Path) -> None:
    """Larger than what a batch of ours holds, and than a batch of the log may hold by now."""
    with Log(tmp_path / "log", flush="none", upkeep=False) as log:
        log.append([b"x" * 3_000_000, b"y"])
        log.append([b"z" * 200_000])
        before = everything(log)
        manifest = make_archive(tmp_path / "a", log, [(0, 3)])
    with Log(tmp_path / "other", flush="none", upkeep=False, max_batch_bytes=100_000) as log:
        bring_back(log, manifest)
        assert everything(log) == before


def test_while_others_write(tmp_path: Path) -> None:
    """Only where the log starts matters."""
    with Log(tmp_path / "log", **SMALL) as log, Log(tmp_path / "log", **SMALL) as other:
        fill(log, 300)
        before = everything(log)
        manifest = make_archive(tmp_path / "a", log, [(0, 300)])
        deleted(log, 200)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                other.append([b"more"])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            bring_back(log, manifest, start=100)
            bring_back(other, manifest)
        finally:
            stop.set()
            thread.join()
        found = everything(other)
        assert found[:300] == before
        assert [each[0] for each in found] == list(range(len(found)))
        assert everything(log) == found
        is_whole(log)
