"""`tailrace spark stats`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.jobs import Job, job_options
from tailrace.cli.output import as_age, as_json, as_text, as_time, table_lines
from tailrace.cli.stores import StorePlace, look_at_store, queue_argument, store_options
from tailrace.cli.times import check_range, parse_time
from tailrace.errors import TailraceError
from tailrace.log.offline.words import counted
from tailrace.units import format_size

if TYPE_CHECKING:
    from tailrace.spark.jobs.stats import Quantiles, QueueFigures

__all__ = ["stats"]

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 80


@click.command()
@queue_argument
@click.option(
    "--since",
    callback=parse_time,
    metavar="TIME",
    help="Only messages from then on: 2026-01-31T09:26:53Z, or milliseconds since 1970.",
)
@click.option(
    "--until", callback=parse_time, metavar="TIME", help="Only messages from before then."
)
@click.option(
    "--top",
    type=click.IntRange(0, 1_000),
    default=10,
    show_default=True,
    metavar="N",
    help="Show the N most frequent keys.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="FILE",
    help="Draw it: a .html, or a .png, which needs the extra plot. May be given more than once.",
)
@store_options
@job_options
def stats(
    queue: str,
    since: int | None,
    until: int | None,
    top: int,
    plots: tuple[str, ...],
    store: StorePlace,
    job: Job,
) -> None:
    """Count what is in a queue: rates, sizes, keys, lag.

    Every message is read: how many there were over time and how large they are, the most frequent
    keys, how much time is between a message and the one before it, of any key and of the same; and
    how far each group is behind, now and by the time at which messages were published. `tailrace
    stats` tells without reading what is ready and what is leased. Nothing is locked.

    \b
    Examples:
      tailrace spark stats orders
      tailrace spark stats orders --since 2026-01-31T00:00Z --plot orders.html --plot orders.png
      tailrace spark stats orders --top 100 --json
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise TailraceError("pyarrow is missing: pip install 'tailrace[arrow]'") from None
    from tailrace.spark.jobs.plots import check_plot, draw
    from tailrace.spark.jobs.stats import count_queue

    check_range(since, until)
    for plot in plots:
        check_plot(plot)
    with look_at_store(store) as look, job.run("stats") as means:
        path = os.path.abspath(store.path)
        figures, running = count_queue(
            look, path, queue, means, since_ms=since, until_ms=until, top=top
        )
    for plot in plots:
        draw(figures, plot)
    job.write(_document(figures, path, plots), running, partial(_print_text, figures))


def _document(figures: QueueFigures, path: str, plots: tuple[str, ...]) -> dict[str, Any]:
    found = figures.as_document()
    found["top_keys"] = [
        {"key": as_json(each.key), "count": each.count} for each in figures.top_keys
    ]
    return {"type": "report", "job": "stats", "store": path, **found, "plots": list(plots)}


def _print_text(figures: QueueFigures) -> None:
    click.echo("\n".join(_lines(figures)))


def _lines(figures: QueueFigures) -> Iterator[str]:
    size = format_size(figures.bytes)
    yield f"{figures.queue}: {counted(figures.messages, 'message')}, {size}"
    if figures.missing:
        yield f"{counted(figures.missing, 'offset')} without a message that can be read"
    if figures.messages:
        yield from _rates(figures)
        yield ""
        yield from table_lines(
            ("", "min", "median", "p95", "p99", "max"),
            [
                _row("size (B)", figures.sizes),
                _row("since the message before (ms)", figures.gaps),
                _row("since the one of its key (ms)", figures.key_gaps),
            ],
        )
        if figures.backwards:
            yield f"{counted(figures.backwards, 'message')} older than the one before"
    yield from _keys(figures)
    if figures.groups:
        yield ""
        yield from table_lines(
            ("group", "committed", "messages behind", "time behind", "oldest is"),
            [
                (
                    each.id,
                    each.committed,
                    each.messages,
                    as_age(each.behind_ms),
                    as_age(each.age_ms),
                )
                if each.error is None
                else (each.id, None, "?", each.error, "")
                for each in figures.groups
            ],
        )


def _rates(figures: QueueFigures) -> Iterator[str]:
    assert figures.oldest_ms is not None
    assert figures.newest_ms is not None
    yield f"{as_time(figures.oldest_ms)} to {as_time(figures.newest_ms)}"
    rate, amount = figures.per_second(figures.messages), figures.per_second(figures.bytes)
    if rate is None or amount is None:
        return
    peak = figures.peak("messages_per_second") or 0.0
    yield (
        f"{_number(rate)} messages/s, {format_size(round(amount))}/s; at most {_number(peak)} "
        f"messages/s in {as_age(figures.step_ms)}"
    )
    yield _bars([point.messages for point in figures.points])


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _bars(amounts: list[int]) -> str:
    """One sign for each step, or for some together."""
    together = -(-len(amounts) // _COLUMNS)
    sums = [sum(amounts[first : first + together]) for first in range(0, len(amounts), together)]
    top = max(sums)
    return "".join(_BARS[min(each * len(_BARS) // (top + 1), len(_BARS) - 1)] for each in sums)


def _row(name: str, found: Quantiles | None) -> tuple[object, ...]:
    assert found is not None
    about = "" if found.exact else " ~"
    return (name + about, found.min, found.median, found.p95, found.p99, found.max)


def _keys(figures: QueueFigures) -> Iterator[str]:
    if not figures.top_keys:
        return
    yield ""
    titles = ("key", "messages", "share")
    rows = [
        (as_text(each.key), each.count, f"{each.count / figures.messages:.1%}")
        for each in figures.top_keys
    ]
    yield from table_lines(titles, rows)
    distinct = f"{figures.distinct_keys:,} different keys"
    if figures.keys_missed:
        yield (
            f"at least {distinct}: rare ones were let go, and a count may be too low by "
            f"{figures.keys_missed:,} at most"
        )
    else:
        yield distinct
