"""The rows about Spark: reading a queue as a table, and writing to one."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.sparking import PARTS, Sparking, Table, timed
from bench.support.sparse import SparseFileSystem
from tailrace import Log, Store
from tailrace.cli.measure import Sample
from tailrace.log.fs import OsFile
from tailrace.spark.checkpoints import use_local_checkpoints
from tailrace.spark.columns import Projection, RowFilter
from tailrace.spark.planning import Place, Split, cut, read

__all__ = ["columns", "range_of_time", "scan", "sink", "streaming"]

# What a trigger consists of: two files of its checkpoint, a plan, and the job.
_OF_SPARK = ("walCommit", "queryPlanning", "latestOffset", "addBatch", "commitOffsets")


def scan(setting: Setting) -> Row:
    """All columns, values of 100 bytes and of a kilobyte, with and without compression."""
    sizes = setting.sizes.spark
    lines = []
    with setting.scratch("spark") as folder:
        sparking = Sparking(folder)
        for value_bytes, rows, share in ((100, sizes.small, 0.40), (1024, sizes.large, 0.55)):
            for codec in ("none", "s2"):
                table = sparking.table(rows, value_bytes, codec)
                line = _scan_line(setting, sparking, table, f"{value_bytes} B, {codec}")
                if codec == "none":
                    line.target = f"{share:.0%} of Parquet; 65 % of the transport ceiling"
                    parquet = line.speed_against(line.find("Parquet"))
                    ceiling = line.speed_against(line.find("prebuilt batches"))
                    line.checks = [
                        Check("of Parquet", parquet, share),
                        Check("of the ceiling", ceiling, 0.65),
                    ]
                else:
                    line.target = "none was given"
                lines.append(line)
        sparking.stop()
    return Row(1, "scan", "scan all columns", lines)


def _scan_line(setting: Setting, sparking: Sparking, table: Table, what: str) -> Line:
    spark = sparking.spark
    ceiling = spark.read.format("ceiling").option("file", table.ceiling)
    times = max(table.rows // table.ceiling_rows // PARTS, 1)
    ceiling = ceiling.option("times", str(times)).option("ddl", table.ddl)
    prebuilt = PARTS * times * table.ceiling_rows

    def contestant(name: str, role: Role, rows: int, frame: Any) -> Contestant:
        return Contestant(name, role, lambda: timed(rows, lambda: sparking.scan(frame())))

    contestants = [
        contestant("tailrace", Role.OURS, table.rows, lambda: sparking.read(table)),
        contestant("prebuilt batches", Role.LIMIT, prebuilt, ceiling.load),
        contestant("Parquet", Role.BASE, table.rows, lambda: spark.read.parquet(table.parquet)),
        contestant("Parquet, zstd", Role.BASE, table.rows, lambda: spark.read.parquet(table.zstd)),
    ]
    for each in contestants:  # the first of a session is slow
        each.run()
    results = race(contestants, setting.sizes.rounds)
    return Line(f"scan all columns, {what}", Unit.RECORDS_PER_SECOND, results)


def columns(setting: Setting) -> Row:
    """Two columns, which is less to decode and to hand over."""
    with setting.scratch("spark") as folder:
        sparking = Sparking(folder)
        table = sparking.table(setting.sizes.spark.small, 100, "none")
        few = "offset bigint, key binary"
        contestants = [
            Contestant(
                "offset, key",
                Role.OURS,
                lambda: timed(table.rows, lambda: sparking.scan(sparking.read(table, few))),
            ),
            Contestant(
                "all columns",
                Role.BASE,
                lambda: timed(table.rows, lambda: sparking.scan(sparking.read(table))),
            ),
        ]
        for each in contestants:
            each.run()
        results = race(contestants, setting.sizes.rounds)
        line = Line("scan offset and key", Unit.RECORDS_PER_SECOND, results)
        line.target = "1.5x the scan of all columns"
        against = line.speed_against(line.find("all columns"))
        line.checks = [Check("of the full scan", against, 1.5)]
        sparking.stop()
    return Row(2, "columns", "scan two columns", [line])


def range_of_time(setting: Setting) -> Row:
    """A hundredth of a large log, by time: how much of it is read."""
    with setting.scratch("spark-time") as folder:
        size = setting.sizes.large_log
        records = size // (1 << 20)
        with Store(str(folder), upkeep=False) as store:
            store.stream("events", flush="async", compression="none")
        place = Place(str(folder))
        options: Any = {"fs": SparseFileSystem(), "flush": "async", "upkeep": False}
        with Log(place.folder("events"), **options) as log:
            for number in range(records):
                log.append_one(bytes(1 << 20), timestamp=1_000 * (number + 1))
        queue = place.queues()["events"]
        counted = _Counted()
        first_ms, last_ms = 1_000 * (records // 2), 1_000 * (records // 2 + records // 100)

        def run() -> Sample:
            with counted, place.log("events", queue.incarnation) as log:
                assert log is not None
                began = time.perf_counter()
                first, last = log.offset_at(first_ms), log.offset_at(last_ms)
                split = Split(tuple(cut(log, queue, first, last, 64 << 20)))
                found = read(str(folder), split, Projection(()), RowFilter(), fail_on_loss=True)
                rows = sum(batch.num_rows for batch in found)  # type: ignore[attr-defined]
                assert rows == last - first
                return Sample(rows, time.perf_counter() - began)

        results = race([Contestant("tailrace", Role.OURS, run)], setting.sizes.rounds)
        line = Line("count 1 % of the time", Unit.MILLISECONDS, results)
        line.target = "reads at most 3 % of the bytes"
        share = counted.bytes / setting.sizes.rounds / size
        line.checks = [Check("share of the bytes", share, 0.03, at_least=False)]
    return Row(3, "time-range", "a range of time", [line])


class _Counted:
    """How many bytes are read, of whichever file."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> None:
        patched: Any = OsFile
        self._pread, self._into = patched.pread, patched.pread_into

        def pread(file: OsFile, size: int, position: int) -> bytes:
            data: bytes = self._pread(file, size, position)
            self.bytes += len(data)
            return data

        def pread_into(file: OsFile, buffer: Any, position: int) -> int:
            count: int = self._into(file, buffer, position)
            self.bytes += count
            return count

        patched.pread, patched.pread_into = pread, pread_into

    def __exit__(self, *error: object) -> None:
        patched: Any = OsFile
        patched.pread, patched.pread_into = self._pread, self._into


def sink(setting: Setting) -> Row:
    """Rows that Spark has, to a queue; beside a writer that throws them away."""
    lines = []
    with setting.scratch("spark") as folder:
        sparking = Sparking(folder)
        sizes = setting.sizes.spark
        for value_bytes, rows in ((100, sizes.small), (1024, sizes.large)):
            table = sparking.table(rows, value_bytes, "none")
            frame = sparking.spark.read.parquet(table.parquet).select("key", "value")
            target = folder / f"target-{value_bytes}"
            with Store(str(target), upkeep=False) as store:
                store.stream("out", flush="async", compression="none")

            def write(frame: Any = frame, target: Path = target) -> None:
                writer = frame.write.format("tailrace").option("path", str(target))
                writer.option("queue", "out").mode("append").save()

            def discard(frame: Any = frame) -> None:
                frame.write.format("nowhere").mode("append").save()

            contestants = [
                Contestant("tailrace", Role.OURS, partial(timed, table.rows, write)),
                Contestant("nowhere", Role.LIMIT, partial(timed, table.rows, discard)),
            ]
            for each in contestants:
                each.run()
            results = race(contestants, setting.sizes.rounds)
            line = Line(f"sink, {value_bytes} B", Unit.RECORDS_PER_SECOND, results)
            line.target = "70 % of a writer that throws the data away"
            line.checks = [Check("of nowhere", line.speed_against(line.limit()), 0.70)]
            lines.append(line)
        sparking.stop()
    return Row(4, "sink", "write to a queue", lines)


def streaming(setting: Setting) -> Row:
    """Large triggers, and what a small one costs besides its rows."""
    with setting.scratch("spark") as folder:
        sparking = Sparking(folder)
        sizes = setting.sizes.spark
        table = sparking.table(sizes.small, 100, "none")
        spark = sparking.spark
        checkpoints = iter(range(10_000))

        def stream(most: int) -> Any:
            reader = spark.readStream.format("tailrace").option("path", table.store)
            reader = reader.option("queue", table.queue).option("startingOffsets", "earliest")
            writer = reader.option("maxOffsetsPerTrigger", str(most)).load().writeStream
            place = str(folder / f"checkpoint-{next(checkpoints)}")
            writer = writer.format("noop").option("checkpointLocation", place)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return query.recentProgress

        def run_stream() -> Sample:
            progress = stream(5_000_000)
            seconds = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1e3
            return Sample(table.rows, seconds)

        contestants = [
            Contestant("stream", Role.OURS, run_stream),
            Contestant(
                "batch scan",
                Role.BASE,
                lambda: timed(table.rows, lambda: sparking.scan(sparking.read(table))),
            ),
        ]
        for each in contestants:
            each.run()
        results = race(contestants, setting.sizes.rounds)
        line = Line("streaming, 5 M rows per trigger", Unit.RECORDS_PER_SECOND, results)
        line.target = "80 % of the batch scan; a batch takes 250 ms at most besides its rows"
        part = max(table.rows // 40, 1)
        scanned = line.find("batch scan")
        assert scanned is not None
        rows_ms = part / line.value(scanned) * 1e3

        def besides(what: str) -> float | None:
            """What a batch of a fortieth takes, without what a scan takes for its rows."""
            steps = [each["durationMs"] for each in stream(part)[2:]]
            if not steps:
                return None
            medians = {name: _median(steps, name) for name in ("triggerExecution", *_OF_SPARK)}
            whole = medians.pop("triggerExecution")
            parts = ", ".join(f"{name} {value:.0f}" for name, value in medians.items())
            line.notes.append(
                f"a batch of {part:,} rows{what}: {whole:.0f} ms, of which a scan takes "
                f"{rows_ms:.0f} for the rows; by Spark's own count {parts}"
            )
            return whole - rows_ms

        line.checks = [
            Check("of the batch scan", line.speed_against(scanned), 0.80),
            Check("ms besides the rows", besides(""), 250, at_least=False),
        ]
        use_local_checkpoints(spark, str(folder))
        renaming = besides(", checkpoints as of pipelines")
        line.checks.append(Check("ms, checkpoints as of pipelines", renaming, 250, at_least=False))
        sparking.stop()
    return Row(5, "streaming", "streaming", [line])


def _median(steps: list[dict[str, int]], name: str) -> float:
    return statistics.median(each.get(name, 0) for each in steps)
