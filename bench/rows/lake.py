"""The rows about archives: a queue as Parquet files, beside Spark's writer and pyarrow alone."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.sparking import Sparking, Table
from tailrace import Store
from tailrace.cli.measure import Sample
from tailrace.log.cuts import sealed_end
from tailrace.queue.stats import look_through
from tailrace.spark.lake.archive import archive_queue, release
from tailrace.spark.lake.rows import SCHEMA, read_rows
from tailrace.spark.lake.writing import GROUP_BYTES, options_for

__all__ = ["archive"]


def archive(setting: Setting) -> Row:
    """All columns, zstd of the same level, values of 100 bytes and of a kilobyte."""
    sizes = setting.sizes.spark
    lines = []
    with setting.scratch("lake") as folder:
        sparking = Sparking(folder)
        for value_bytes, rows in ((100, sizes.small), (1024, sizes.large)):
            table = sparking.table(rows, value_bytes, "none")
            with Store(table.store, upkeep=False) as store:
                lines.append(_line(setting, sparking, store, table, folder, value_bytes))
        sparking.stop()
    return Row(2, "archive", "archive to Parquet", lines)


def _line(
    setting: Setting, sparking: Sparking, store: Store, table: Table, folder: Path, size: int
) -> Line:
    queue = store.get(table.queue)
    end = sealed_end(queue.log) or queue.log.end_offset  # of a tiny one nothing is sealed
    rows = pa.Table.from_batches(list(read_rows(queue.log, queue.name, 0, end)), SCHEMA)
    target = folder / "target"

    def timed(count: int, do: Any) -> Sample:
        began = time.perf_counter()
        do()
        sample = Sample(count, time.perf_counter() - began)
        shutil.rmtree(target, ignore_errors=True)
        release(look_through(store), queue.name)  # or it is missed
        return sample

    contestants = [
        Contestant(
            "tailrace", Role.OURS, partial(timed, end, partial(_ours, store, queue, target))
        ),
        Contestant(
            "Spark", Role.BASE, partial(timed, end, partial(_spark, sparking, table, end, target))
        ),
        Contestant("pyarrow", Role.LIMIT, partial(timed, end, partial(_pyarrow, rows, target))),
    ]
    for each in contestants:  # the first of a session is slow
        each.run()
    line = Line(
        f"archive, {size} B", Unit.RECORDS_PER_SECOND, race(contestants, setting.sizes.rounds)
    )
    line.target = "3x Spark's own Parquet writer; 60 % of pyarrow alone, from memory"
    line.checks = [
        Check("of Spark", line.speed_against(line.find("Spark")), 3.0),
        Check("of pyarrow", line.speed_against(line.find("pyarrow")), 0.60),
    ]
    return line


def _ours(store: Store, queue: Any, target: Path) -> None:
    archive_queue(store, queue.name, target)


def _spark(sparking: Sparking, table: Table, end: int, target: Path) -> None:
    ending = f'{{"{table.queue}": {{"0": {end}}}}}'
    frame = sparking.read(table, includeHeaders="true", endingOffsets=ending)
    frame = frame.selectExpr("*", "unix_millis(timestamp) AS timestamp_ms")
    writer = frame.select(*SCHEMA.names).write.option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", "1").parquet(str(target))


def _pyarrow(rows: Any, target: Path) -> None:
    """From memory, in row groups of the same size, and to the disk as well."""
    target.mkdir()
    path = target / "rows.parquet"
    group = max(rows.num_rows * GROUP_BYTES // max(rows.nbytes, 1), 1)
    pq.write_table(rows, path, row_group_size=group, **options_for(rows))
    with path.open("rb") as file:
        os.fsync(file.fileno())
