"""The job that checks: in pieces, in threads or on Spark, it finds what `tailrace verify` finds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.queue.offline.verify import verify_store as verify_plainly
from tailrace.spark.jobs.running import Means
from tailrace.spark.jobs.verify import verify_log, verify_store
from tests.spark.jobs.stores import contents, files_of, flip, log_of, make_store

HERE = Means(spark=False)


def test_a_sound_store(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    before = contents(root)
    for piece_bytes in (1, 1_000, 1 << 30):
        report, running = verify_store(root, HERE, piece_bytes)
        assert report.ok
        assert report == verify_plainly(OsFileSystem(), root)
        assert running.path == "direct"
        assert running.total == sum(log.bytes for log in report.logs) > 10_000
    assert contents(root) == before


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(25))
def test_it_finds_what_the_plain_check_finds(tmp_path: Path, seed: int) -> None:
    """Whatever is damaged: segments, indexes, side files, files of groups."""
    rng = random.Random(seed)
    root = make_store(tmp_path, seed)
    for _ in range(rng.randint(1, 4)):
        path = rng.choice([path for path, data in contents(root).items() if data])
        if rng.random() < 0.7:
            flip(path, rng.randrange(path.stat().st_size))
        else:
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    report, _ = verify_store(root, HERE, rng.choice([1, 700, 1 << 30]))
    assert report == verify_plainly(OsFileSystem(), root), path


def test_each_damage_has_its_file_and_position(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    first, second, *_ = files_of(log_of(root, "events"), ".seg")
    flip(first, 60)
    flip(second, second.stat().st_size - 1)
    report, _ = verify_store(root, HERE, 500)
    places = {(finding.path, finding.position) for finding in report.problems}
    assert (f"queues/events/segments/{first.name}", 0) in places
    [position] = [p for path, p in places if path.endswith(second.name)]
    assert position is not None
    assert 0 < position < second.stat().st_size


def test_a_log_by_itself(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with Log(folder, upkeep=False, segment_bytes=2_000) as log:
        for number in range(100):
            log.append([b"%d" % number] * 3)
    report, _ = verify_log(folder, HERE)
    assert report.ok
    assert report == verify(OsFileSystem(), folder)
    flip(next(iter(files_of(Path(folder), ".idx"))), 5)
    report, _ = verify_log(folder, HERE)
    assert not report.ok
    assert report == verify(OsFileSystem(), folder)


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    seen: list[tuple[int, int | None]] = []
    _, running = verify_store(
        root, Means(spark=False, progress=lambda *step: seen.append(step)), 1_000
    )
    done = [step for step, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {running.total}
    assert done[-1] == running.total
    assert len(set(done)) > 5


def test_on_spark(spark: Any, tmp_path: Path) -> None:
    """Pieces go to more than one task; the close look does, too."""
    root = make_store(tmp_path)
    seen: list[int] = []
    means = Means(True, session=spark, progress=lambda done, total: seen.append(done))
    report, running = verify_store(root, means, 1_000)
    assert report.ok
    assert report == verify_plainly(OsFileSystem(), root)
    assert running.path == "spark"
    assert running.tasks > 1
    assert seen[-1] == running.total
    for path in files_of(log_of(root, "events"), ".seg")[:2]:
        flip(path, 60)
    report, _ = verify_store(root, Means(True, session=spark), 1_000)
    assert len(report.problems) >= 2
    assert report == verify_plainly(OsFileSystem(), root)
