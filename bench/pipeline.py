"""The benchmark of what is done to whole stores: `scripts/bench pipeline`.

Rows are in modules of their own; to add one is to name it here.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.rows.jobs import verify
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "verify": verify,
}

_PIPELINE = Benchmark(
    "pipeline",
    ROWS,
    "Measure jobs over whole stores beside what the disk and the processor can do at best.",
    "local[2], a session that is warm, keys of 16 bytes, values of 256. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds.",
    lambda servers: [],
)
run, choose, main = _PIPELINE.run, _PIPELINE.choose, _PIPELINE.command()

if __name__ == "__main__":
    main()
