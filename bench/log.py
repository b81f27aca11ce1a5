"""The benchmark of the log: `scripts/bench log`.

Ten rows, one for each target. In each, tailrace, the limit of the machine and the peers do the same
work in turns. docs/benchmarks.md explains how to read the table.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

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
from bench.support.race import Row
from bench.support.report import WIDTH, document, markdown, show
from bench.support.setting import FULL, QUICK, Setting, Sizes
from tailrace.cli.measure import conditions

__all__ = ["ROWS", "main", "run"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "log.json"

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

EXPLANATION = (
    "Values of 256 bytes, codec none; one core. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds. *: best peer."
)


def run(
    folder: Path,
    sizes: Sizes,
    only: Sequence[str] = (),
    *,
    with_peers: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[Row], float]:
    """Measure the chosen rows in a folder; what the figures depend on, the rows, the seconds."""
    began = time.monotonic()
    seen = conditions(folder)
    setting = Setting(folder, sizes, with_peers)
    rows = []
    try:
        for key, measure_row in ROWS.items():
            if only and key not in only:
                continue
            progress(key)
            row_began, load = time.monotonic(), os.getloadavg()[0]
            row = measure_row(setting)
            row.seconds, row.load_average = time.monotonic() - row_began, load
            rows.append(row)
    finally:
        setting.close()
    seen |= {
        "value_bytes": 256,
        "codec": "none",
        "rounds": sizes.rounds,
        "explanation": EXPLANATION,
        "peers": {peer.name: peer.version for peer in setting.peers},
    }
    return seen, rows, time.monotonic() - began


def choose(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str]:
    """Row names, or their numbers."""
    names = list(ROWS)
    chosen = []
    for word in given:
        if word.isdigit() and 0 < int(word) <= len(names):
            chosen.append(names[int(word) - 1])
        elif word in names:
            chosen.append(word)
        else:
            raise click.BadParameter(f"{word} is none of 1 to {len(names)}, {', '.join(names)}")
    return chosen


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes: a minute, to see that it works.")
@click.option(
    "--only", multiple=True, callback=choose, help="A row, by number or name; repeatable."
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT.parent,
    help="Where to write, on the disk to be measured.  [default: beside the checkout]",
)
@click.option(
    "--json",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    default=RESULTS,
    help="Where to put the JSON.  [default: bench/results/log.json]",
)
@click.option("--no-peers", is_flag=True, help="Only tailrace and the limits.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the last JSON as markdown.")
def main(
    quick: bool, only: list[str], folder: Path, target: Path, no_peers: bool, as_markdown: bool
) -> None:
    """Measure the log beside its peers and the limit of the machine."""
    if as_markdown:
        click.echo(markdown(json.loads(target.read_text())), nl=False)
        return
    errors = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as scratch,
        errors.status("measuring") as status,
    ):
        seen, rows, seconds = run(
            Path(scratch),
            QUICK if quick else FULL,
            only,
            with_peers=not no_peers,
            progress=lambda key: status.update(f"measuring {key}"),
        )
    seen["sizes"] = "quick" if quick else "full"
    if seen["file_system"] == "tmpfs":
        errors.print("this is memory, not a disk: the rows with sync mean nothing here (--dir)")
    if seen["load_average"] > 1:
        errors.print(
            f"others were busy on this machine (load {seen['load_average']:.1f} at the start): "
            "repeat it when it is quiet"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document(seen, rows, seconds), indent=2) + "\n")
    show(seen, rows, Console(width=WIDTH))
    errors.print(f"{seconds:.0f} s; JSON in {target}")


if __name__ == "__main__":
    main()
