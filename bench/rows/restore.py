"""The row about restoring: an archive goes back to its queue, beside appending the same records."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from tailrace import Log
from tailrace.cli.measure import Sample
from tailrace.log.fs import OsFileSystem
from tailrace.queue.backup_files import checksum
from tailrace.spark.lake.manifest import ArchivedFile, Manifest, Origin, Step, Writing
from tailrace.spark.lake.restore import Wanted, choose, restore
from tailrace.spark.lake.rows import SCHEMA, read_rows
from tailrace.spark.lake.writing import GROUP_BYTES, options_for

__all__ = ["restoring"]

pq: Any = pyarrow.parquet
_STEP = 400_000  # records


def restoring(setting: Setting) -> Row:
    """Values of 100 bytes and of a kilobyte, into a queue without messages."""
    sizes = setting.sizes.spark
    lines = []
    for value_bytes, count in ((100, sizes.small), (1024, sizes.large)):
        with setting.scratch("restore") as folder:
            lines.append(_line(setting, folder, value_bytes, count))
    return Row(3, "restore", "restore an archive", lines)


def _line(setting: Setting, folder: Path, value_bytes: int, count: int) -> Line:
    batches = [[os.urandom(value_bytes) for _ in range(BATCH)] for _ in range(16)]
    rounds = max(count // BATCH, 1)

    def append() -> Sample:
        with _new_log(folder) as log:
            begun = time.perf_counter()
            for number in range(rounds):
                log.append(batches[number % len(batches)])
            log.flush()
            return Sample(rounds * BATCH, time.perf_counter() - begun)

    with _new_log(folder) as log:
        for number in range(rounds):
            log.append(batches[number % len(batches)])
        manifest = _archive(folder / "archive", log)

    def bring_back() -> Sample:
        with _new_log(folder) as log:
            begun = time.perf_counter()
            report = restore(log, manifest, choose(log, manifest, "q", "", Wanted()))
            return Sample(report.records, time.perf_counter() - begun)

    results = race(
        [
            Contestant("tailrace", Role.OURS, bring_back),
            Contestant("append in batches", Role.BASE, append),
        ],
        setting.sizes.rounds,
    )
    line = Line(f"restore, {value_bytes} B", Unit.RECORDS_PER_SECOND, results)
    line.target = "50 % of batched append"
    ratio = line.speed_against(line.find("append in batches"))
    line.checks = [Check("of batched append", ratio, 0.5)]
    return line


def _new_log(folder: Path) -> Log:
    """What comes back is durable, so what is appended is to be, in the end."""
    path = folder / "log"
    shutil.rmtree(path, ignore_errors=True)
    return Log(path, flush="async", upkeep=False)


def _archive(folder: Path, log: Log) -> Manifest:
    fs = OsFileSystem()
    with Writing(fs, str(folder), Origin("q", "")) as writing:
        for first in range(0, log.end_offset, _STEP):
            last = min(first + _STEP, log.end_offset)
            name = f"{first:020d}-{last:020d}.parquet"
            path = str(folder / name)
            table = pa.Table.from_batches(list(read_rows(log, "q", first, last)), SCHEMA)
            group = max(table.num_rows * GROUP_BYTES // max(table.nbytes, 1), 1)
            pq.write_table(table, path, row_group_size=group, **options_for(table))
            found = checksum(fs, path)
            assert found is not None
            file = ArchivedFile(name, last - first, *found, 0, 1 << 62)
            writing.add([Step(first, last, (file,))])
        return writing.manifest
