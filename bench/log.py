"""The benchmark of the log: `scripts/bench log`.

Ten rows, one for each target. In each, tailrace, the limit of the machine and the peers do the same
work in turns. docs/benchmarks.md explains how to read the table.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.rows.append import (
    append_batches_async,
    append_batches_sync,
    append_concurrently,
    append_singles_async,
    append_singles_sync,
)
from bench.rows.opening import open_after_close
from bench.rows.read import read_arrow, read_records, seek
from bench.rows.twin import pure_twin
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "append-async-batch": append_batches_async,
    "append-async-single": append_singles_async,
    "append-sync-single": append_singles_sync,
    "append-sync-concurrent": append_concurrently,
    "append-sync-batch": append_batches_sync,
    "read-records": read_records,
    "read-arrow": read_arrow,
    "seek": seek,
    "open": open_after_close,
    "pure-twin": pure_twin,
}

_LOG = Benchmark(
    "log",
    ROWS,
    "Measure the log beside its peers and the limit of the machine.",
    "Values of 256 bytes, codec none; one core. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds. *: best peer.",
)
run, choose, main = _LOG.run, _LOG.choose, _LOG.command()

if __name__ == "__main__":
    main()
