"""What every benchmark has: rows to choose from, a run, options, a report."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.peers import Peer, Servers, known_peers
from bench.support.race import Row
from bench.support.report import WIDTH, document, markdown, show
from bench.support.setting import FULL, QUICK, Setting, Sizes
from tailrace.cli.measure import conditions

__all__ = ["Benchmark"]

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: `name` is that of its module, `rows` are what can be measured, in order."""

    name: str
    rows: dict[str, Callable[[Setting], Row]]
    help: str
    explanation: str  # of the table
    find_peers: Callable[[Servers], list[Peer]] = known_peers
    codec: str = "none"

    def run(
        self,
        folder: Path,
        sizes: Sizes,
        only: Sequence[str] = (),
        *,
        with_peers: bool = True,
        progress: Callable[[str], None] = lambda _: None,
    ) -> tuple[dict[str, Any], list[Row], float]:
        """Measure the chosen rows in a folder; what the figures depend on, the rows, the
        seconds."""
        began = time.monotonic()
        seen = conditions(folder)
        setting = Setting(folder, sizes, with_peers, find_peers=self.find_peers)
        rows = []
        try:
            for key, measure_row in self.rows.items():
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
            "codec": self.codec,
            "rounds": sizes.rounds,
            "explanation": self.explanation,
            "peers": {peer.name: peer.version for peer in setting.peers},
            "promises": {peer.name: peer.promises for peer in setting.peers if peer.promises},
        }
        return seen, rows, time.monotonic() - began

    def choose(
        self, _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
    ) -> list[str]:
        """Row names, or their numbers."""
        names = list(self.rows)
        chosen = []
        for word in given:
            if word.isdigit() and 0 < int(word) <= len(names):
                chosen.append(names[int(word) - 1])
            elif word in names:
                chosen.append(word)
            else:
                raise click.BadParameter(f"{word} is none of 1 to {len(names)}, {', '.join(names)}")
        return chosen

    def command(self, *more: click.Option) -> click.Command:
        """The command line, with options that it alone has: each names one of the sizes."""
        results = ROOT / "bench" / "results" / f"{self.name}.json"
        options = [
            click.Option(
                ["--quick"], is_flag=True, help="Small sizes: a minute, to see that it works."
            ),
            click.Option(
                ["--only"],
                multiple=True,
                callback=self.choose,
                help="A row, by number or name; repeatable.",
            ),
            click.Option(
                ["--dir", "folder"],
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                default=ROOT.parent,
                help="Where to write, on the disk to be measured.  [default: beside the checkout]",
            ),
            click.Option(
                ["--json", "target"],
                type=click.Path(dir_okay=False, path_type=Path),
                default=results,
                help=f"Where to put the JSON.  [default: bench/results/{self.name}.json]",
            ),
            click.Option(["--no-peers"], is_flag=True, help="Only tailrace and the limits."),
            click.Option(
                ["--markdown", "as_markdown"],
                is_flag=True,
                help="Print the last JSON as markdown.",
            ),
        ]
        return click.Command(
            self.name, callback=self._main, params=[*options, *more], help=self.help
        )

    def _main(
        self,
        quick: bool,
        only: list[str],
        folder: Path,
        target: Path,
        no_peers: bool,
        as_markdown: bool,
        **given: Any,
    ) -> None:
        if as_markdown:
            click.echo(markdown(json.loads(target.read_text())), nl=False)
            return
        chosen = {name: value for name, value in given.items() if value is not None}
        sizes = dataclasses.replace(QUICK if quick else FULL, **chosen)
        errors = Console(stderr=True)
        with (
            tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as scratch,
            errors.status("measuring") as status,
        ):
            seen, rows, seconds = self.run(
                Path(scratch),
                sizes,
                only,
                with_peers=not no_peers,
                progress=lambda key: status.update(f"measuring {key}"),
            )
        seen["sizes"] = "quick" if quick else "full"
        seen |= chosen
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
