"""The benchmark of many processes: `scripts/bench processes`.

Seven rows, one for each target: processes that append to one log together, and processes that wait
for what another appends. As in `bench.log`, tailrace, the limit of the machine and the peers do the
same work in turns. docs/benchmarks.md explains how to read the table.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from bench.peers import Peer, Servers
from bench.peers.shared import shared_peers
from bench.rows.processes import (
    append_batches_together,
    append_durably_together,
    append_shared,
    append_together,
)
from bench.rows.wake import follow_idle, wake_many, wake_one
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "shared-single": append_shared,
    "shared-contended": append_together,
    "shared-batch": append_batches_together,
    "shared-sync": append_durably_together,
    "wake": wake_one,
    "followers": wake_many,
    "idle": follow_idle,
}


def _find_peers(_servers: Servers) -> list[Peer]:
    return list(shared_peers())


_PROCESSES = Benchmark(
    "processes",
    ROWS,
    "Measure processes that share a log, beside its peers and the limit of the machine.",
    "Values of 256 bytes, codec none; processes run where the system puts them. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds. *: best peer.",
    _find_peers,
)
run, choose = _PROCESSES.run, _PROCESSES.choose
main = _PROCESSES.command(
    click.Option(
        ["--seconds", "slice_seconds"],
        type=click.FloatRange(min=0.01, max=60),
        help="How long writers write at a time; in a round everybody does so several times.",
    ),
)

if __name__ == "__main__":
    main()
