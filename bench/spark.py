"""The benchmark of Spark tables: `scripts/bench spark`.

A queue is read and written through Spark, beside Parquet files of the same rows, and beside sources
and sinks that do nothing, which are what Spark's Python side can do at best.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.rows.tables import columns, range_of_time, scan, sink, streaming
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "scan": scan,
    "columns": columns,
    "time-range": range_of_time,
    "sink": sink,
    "streaming": streaming,
}

_SPARK = Benchmark(
    "spark",
    ROWS,
    "Measure Spark tables beside Parquet and what Spark's Python side can do at best.",
    "local[2], Spark's noop sink, keys of 16 bytes. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds.",
    lambda servers: [],
)
run, choose, main = _SPARK.run, _SPARK.choose, _SPARK.command()

if __name__ == "__main__":
    main()
