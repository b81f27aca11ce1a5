"""The benchmark of jobs, archives and pipelines: `scripts/bench pipeline`.

Rows are in modules of their own; to add one is to name it here.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.rows.jobs import verify
from bench.rows.lake import archive
from bench.rows.pipelines import starting, windows
from bench.rows.restore import restoring
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "verify": verify,
    "archive": archive,
    "restore": restoring,
    "windows": windows,
    "start": starting,
}

_PIPELINE = Benchmark(
    "pipeline",
    ROWS,
    "Measure jobs, archives and pipelines beside what the disk and the processor can do at best.",
    "local[2], a session that is warm, keys of 16 bytes; in row 1 values of 256. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds.",
    lambda servers: [],
)
run, choose, main = _PIPELINE.run, _PIPELINE.choose, _PIPELINE.command()

if __name__ == "__main__":
    main()
