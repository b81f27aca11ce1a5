"""The rows about jobs: checking a store, beside reading the same files and doing nothing."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tailrace
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.sparking import Sparking, timed
from tailrace.cli.measure import Sample
from tailrace.cli.places import find_store
from tailrace.log.fs import OsFileSystem
from tailrace.queue.offline.verify import verify_store as verify_plainly
from tailrace.spark.jobs.running import Means
from tailrace.spark.jobs.verify import verify_store

__all__ = ["verify"]

_VALUE = 256
_AT_ONCE = 1_000
_SHARE = 0.60
_READ = 1 << 20


def verify(setting: Setting) -> Row:
    """From the disk, which is where a store is that is worth a job, and from memory. Each path has
    a store of a size for which the command would choose it."""
    lines, sizes = [], setting.sizes.pipeline
    with setting.scratch("pipeline") as folder:
        sparking = Sparking(folder)
        try:
            for codec in ("none", "s2"):
                for path, stored in (("this process", sizes.stored), ("Spark", sizes.spread)):
                    with setting.scratch("store") as place:
                        root = _store(place, stored, codec)
                        for where in ("disk", "memory"):
                            line = _line(setting, sparking, root, path=path, where=where)
                            line.title = f"verify, {path}, from {where}, {codec}"
                            lines.append(line)
        finally:
            sparking.stop()
    return Row(1, "verify", "verify beside plain reads", lines)


def _store(folder: Path, stored: int, codec: str) -> str:
    """A store with one stream, on the disk. What is in it compresses to about two thirds."""
    values = [os.urandom(_VALUE // 2) + bytes(_VALUE // 2) for _ in range(_AT_ONCE)]
    messages = [(os.urandom(8).hex(), value) for value in values]
    with tailrace.open(str(folder), flush="none", upkeep=False) as store:
        stream = store.stream("events", compression=codec)
        for _ in range(max(stored // (_VALUE * _AT_ONCE), 1)):
            stream.publish_many(messages)
    os.sync()  # so that it can be forgotten
    root = find_store(str(folder))
    assert root is not None
    return root


def _segments(root: str) -> list[Path]:
    return sorted(Path(root).rglob("*.seg"))


def _line(setting: Setting, sparking: Sparking, root: str, *, path: str, where: str) -> Line:
    means = Means(True, session=sparking.spark) if path == "Spark" else Means(False)
    size = sum(segment.stat().st_size for segment in _segments(root))

    def measured(work: Callable[[], object]) -> Sample:
        if where == "disk":
            _forget(root)
        began = time.process_time()
        sample = timed(size, work)
        sample.extra["cpu_seconds"] = time.process_time() - began
        return sample

    contestants = [
        Contestant("tailrace", Role.OURS, partial(measured, partial(_verify, root, means))),
        Contestant("plain reads", Role.BASE, partial(measured, partial(_read, root))),
        Contestant(
            "tailrace verify",
            Role.VARIANT,
            partial(measured, partial(verify_plainly, OsFileSystem(), root)),
        ),
    ]
    for each in contestants:
        each.run()
    line = Line("", Unit.BYTES_PER_SECOND, race(contestants, setting.sizes.rounds))
    plain = line.find("plain reads")
    share = line.speed_against(plain)
    if plain is not None and path != "Spark":  # whose processes are others
        ours, theirs = line.ours.cpu_per_record(), plain.cpu_per_record()
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        line.notes.append(f"by processor time, {ratio:.0%} of plain reads")
    if where == "disk":
        line.target = f"{_SHARE:.0%} of plain reads"
        line.checks = [Check("of plain reads", share, _SHARE)]
    else:
        line.target = "none: memory is faster than any checksum"
    return line


def _verify(root: str, means: Means) -> None:
    report, _ = verify_store(root, means)
    if not report.ok:
        raise AssertionError(report.problems)


def _read(root: str) -> None:
    """In one thread, one file after the other, as `cat` does."""
    buffer = bytearray(_READ)
    for path in _segments(root):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _forget(root: str) -> None:
    """Have the system drop what it keeps of the files."""
    for path in _segments(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
