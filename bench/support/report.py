"""What people see: one table, and the same as markdown."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.peers.base import MISSING
from bench.support.race import Check, Line, Result, Role, Row, Unit
from tailrace.cli.measure import human_time, percentile, spread

__all__ = ["document", "markdown", "show"]

WIDTH = 118
_STYLES = {
    Role.OURS: "bold",
    Role.VARIANT: "dim",
    Role.BASE: "cyan",
    Role.LIMIT: "yellow",
    Role.PEER: "",
}


def document(conditions: dict[str, Any], rows: list[Row], seconds: float) -> dict[str, Any]:
    """The figures as JSON."""
    return {
        "format": 1,
        "seconds": seconds,
        "conditions": conditions,
        "rows": [row.as_json() for row in rows],
    }


def verdict(met: bool | None) -> str:
    return {True: "ok", False: "short", None: "not measured"}[met]


def ratio(value: float | None) -> str:
    """As a percentage while that is readable, as a multiple above."""
    if value is None:
        return ""
    return f"{value:.0%}" if value < 2 else f"{value:.1f}x"


def show(conditions: dict[str, Any], rows: list[Row], console: Console | None = None) -> None:
    console = console or Console(width=WIDTH)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("work, and who does it", width=39)
    for name, width in (("median", 8), ("p50", 7), ("p99", 7), ("spread", 6), ("ratio", 6)):
        table.add_column(name, justify="right", no_wrap=True, width=width)
    table.add_column("target", width=32)
    notes = []
    for row in rows:
        for letter, line in zip(ascii_lowercase, row.lines, strict=False):
            number = f"{row.number}{letter if len(row.lines) > 1 else ''}"
            _add_line(table, number, line)
            notes += [f"{number}: {note}." for note in line.notes]
    console.print(table)
    for text in (*notes, caption(conditions), *remarks(conditions)):
        console.print(text, highlight=False)


def _add_line(table: Table, number: str, line: Line) -> None:
    best = line.best_peer()
    colour = {True: "green", False: "red", None: "magenta"}[line.met]
    table.add_row(
        Text(f"{number}. {line.title}", style="bold"),
        *[""] * 5,
        Text(f"{line.target}: {verdict(line.met)}", style=colour),
    )
    checks = iter([describe(check) for check in line.checks])
    for result in line.results:
        name = Text(f"  {result.name}", style=_STYLES[result.role])
        if result is best:
            name.append(" *")
        if result.failure == MISSING:
            name.append(f": {MISSING}")
        table.add_row(name, *_figures(line, result), Text(next(checks, "")))
    for rest in checks:
        table.add_row(*[""] * 6, Text(rest))
    table.add_section()


def _figures(line: Line, result: Result) -> list[str]:
    if not result.samples:
        return ["" if result.failure == MISSING else "failed", "", "", "", ""]
    values = result.values(line.unit)
    latencies = result.latencies()
    times = [human_time(percentile(latencies, p)) if latencies else "" for p in (50, 99)]
    against = "" if result is line.ours else ratio(line.speed_against(result))
    shown = line.unit.show(line.value(result))
    return [shown, *times, f"{spread(values):.0%}", against]


def describe(check: Check) -> str:
    if check.value is None:
        return f"{check.what}: not measured"
    sign = "ok" if check.ok else "SHORT"
    relation = "≥" if check.at_least else "≤"
    return f"{check.what}: {_number(check.value)} {relation} {_number(check.bound)} {sign}"


def _number(value: float) -> str:
    if value >= 1e5:
        return f"{value / 1e6:.2f} M"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def caption(conditions: dict[str, Any]) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in conditions["peers"].items())
    return (
        f"{conditions['date']}, tailrace {conditions['tailrace']}, {conditions['kernel']} kernel, "
        f"crc32c {conditions['crc32c']}, Python {conditions['python']}, {conditions['file_system']}"
        f" on {conditions['device']}, {conditions['processor']} x{conditions['processors']} "
        f"(load {conditions['load_average']:.1f} at the start), "
        f"{conditions['system']}, {conditions['rounds']} rounds. {conditions['explanation']}"
        + (f" Peers: {peers}." if peers else "")
    )


def remarks(conditions: dict[str, Any]) -> list[str]:
    """What peers promise that are not quite the same."""
    return [f"{name}: {text}." for name, text in conditions.get("promises", {}).items()]


# --- markdown -------------------------------------------------------------------------------


def markdown(report: dict[str, Any]) -> str:
    """The table of a report for the documentation: a line per target."""
    seen = report["conditions"]
    where = (
        f"{seen['date'][:10]}, {seen['kernel']} kernel, Python {seen['python']}, "
        f"{seen['file_system']}, {seen['processor']}:"
    )
    lines = [
        where,
        "",
        "| Work | tailrace | p50 | p99 | Of the limit | Of the best peer | Target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines.extend(_markdown_lines(report))
    if said := remarks(seen):
        lines += ["", *(f"- {text}" for text in said)]
    return "\n".join(lines) + "\n"


def _markdown_lines(report: dict[str, Any]) -> Iterator[str]:
    for row in report["rows"]:
        for line in row["lines"]:
            ours = line["results"][0]
            times = [human_time(ours[p] * 1e3) if p in ours else "" for p in ("p50_us", "p99_us")]
            limit = next((r["name"] for r in line["results"] if r["role"] == "limit"), "")
            cells = [
                line["title"],
                Unit(line["unit"]).show(ours["value"]),
                *times,
                _of(line["ratio_to_limit"], limit),
                _of(line["ratio_to_best_peer"], line["best_peer"]),
                line["target"],
                verdict(line["met"]),
            ]
            yield f"| {' | '.join(cells)} |"


def _of(value: float | None, name: str | None) -> str:
    return f"{ratio(value)} ({name})" if value is not None else ""
