"""`tailrace stats`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tailrace.cli.groups import group_item
from tailrace.cli.output import as_age, print_json, progress_bar, table_lines
from tailrace.cli.stores import StorePlace, complete_queue, look_at_store, store_options
from tailrace.cli.times import parse_seconds
from tailrace.errors import TailraceError
from tailrace.log.offline.words import counted
from tailrace.units import format_size

if TYPE_CHECKING:
    from tailrace.queue.disk import DiskSettings
    from tailrace.queue.disk_stats import DiskStats
    from tailrace.queue.looking import Look
    from tailrace.queue.stats import QueueStats, Rates, StoreStats

__all__ = ["stats"]

_TITLES = (
    "queue",
    "group",
    "ready",
    "leased",
    "waiting",
    "lag",
    "oldest",
    "delayed",
    "dead",
    "size",
)
_DAY_S = 86_400.0
_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@click.option("--watch", is_flag=True, help="Look again and again, with rates, until Ctrl-C.")
@click.option("--rates", is_flag=True, help="Look twice, and show what happens in a second.")
@click.option(
    "--interval",
    callback=parse_seconds,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="The time between two looks.",
)
@click.option(
    "--times", type=click.IntRange(min=1), metavar="N", help="With --watch: stop after N looks."
)
@click.option("--exact", is_flag=True, help="Count, however long it takes, and estimate nothing.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per look.")
@click.option("--prometheus", is_flag=True, help="Write the text format of Prometheus.")
def stats(
    queue: str | None,
    watch: bool,
    rates: bool,
    interval: float,
    times: int | None,
    exact: bool,
    store: StorePlace,
    as_json: bool,
    prometheus: bool,
) -> None:
    """Show figures of one queue, or of all.

    For each group: what is ready to be delivered, leased to consumers, waiting for a retry, how
    many offsets it is behind, and the age of the oldest message that it has not settled. For each
    queue: delayed messages, dead letters, and what it takes on the disk. Below that, which group
    keeps how much from being deleted, and how full the disk is.

    What has a ~ is an estimate, and never too low. Nobody is disturbed by it: no group is joined,
    and nothing is locked.

    \b
    Examples:
      tailrace stats
      tailrace stats orders --exact --json
      tailrace stats --watch --interval 5s
      tailrace stats --prometheus > /var/lib/node_exporter/tailrace.prom
    """
    if times is not None and not watch:
        raise click.UsageError("--times goes with --watch")
    if prometheus and (watch or rates or as_json):
        raise click.UsageError("--prometheus is one look: not with --watch, --rates or --json")
    with look_at_store(store) as look:
        before: StoreStats | None = None
        disk = _disk_settings(store)
        times = times if watch else 1 + rates
        looks = _look_again(look, queue, disk, exact, interval, times, exact and not watch)
        for figures in looks:
            if prometheus:
                _write_prometheus(figures)
                return
            if not rates or before is not None or watch:
                _show(look, figures, before, as_json, watch)
            before = figures


def _disk_settings(store: StorePlace) -> DiskSettings:
    """Those of the configuration; of one that is wrong, which others tell of, the usual ones."""
    from tailrace.queue.disk import DiskSettings

    try:
        config = store.config
    except TailraceError:
        config = None
    return DiskSettings.parse(None if config is None else config.store_options().get("disk"))


def _look_again(
    look: Look,
    queue: str | None,
    disk: DiskSettings,
    exact: bool,
    interval_s: float,
    times: int | None,
    is_long: bool,
) -> Iterator[StoreStats]:
    from tailrace.queue.disk_stats import disk_stats
    from tailrace.queue.stats import StoreStats, queue_stats, store_stats

    number = 0
    while times is None or number < times:
        if number:
            _pause(interval_s)
        with progress_bar("count", unit="records") if is_long else nullcontext() as progress:
            if queue is None:
                found = list(store_stats(look, exact=exact, progress=progress))
            else:
                settings = look.settings(queue)
                found = [queue_stats(look, settings, exact=exact, progress=progress)]
        yield StoreStats(found, disk_stats(look.fs, look.layout, disk))
        number += 1


def _pause(seconds: float) -> None:
    """In parts: no system sleeps for centuries at a time."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _DAY_S))


def _write_prometheus(figures: StoreStats) -> None:
    from tailrace.metrics import prometheus_text

    click.echo(prometheus_text(figures), nl=False)


def _show(
    look: Look, figures: StoreStats, before: StoreStats | None, as_json: bool, is_watched: bool
) -> None:
    rates = {
        name: found.since(before[name])
        for name, found in figures.items()
        if before is not None and name in before
    }
    if as_json:
        items = [_item(found, rates.get(name)) for name, found in figures.items()]
        disk = asdict(figures.disk)
        print_json({"type": "stats", "store": look.layout.root, "disk": disk, "queues": items})
        sys.stdout.flush()
        return
    if is_watched and sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    elif is_watched and before is not None:
        click.echo()
    if not figures:
        click.echo(f"{look.layout.root}: no queues\n{_describe_disk(figures.disk)}")
        return
    titles = (*_TITLES, "published/s", "settled/s") if rates else _TITLES
    rows = [row for name, found in figures.items() for row in _rows(found, rates.get(name))]
    lines = table_lines(titles, (row[: len(titles)] for row in rows))
    click.echo("\n".join([*lines, *_remarks(figures), _describe_disk(figures.disk)]))


def _rows(found: QueueStats, rates: Rates | None) -> Iterator[tuple[object, ...]]:
    """A line for each group; what is the queue's is in its first."""
    last = (
        "?" if found.error else found.delayed,
        _about(found.dead, found.dead_estimated),
        format_size(found.bytes),
        rates.published if rates else "",
        rates.settled if rates else "",
    )
    if not found.groups:
        ready = _about(found.ready, found.ready_estimated)
        yield (found.name, "", ready, 0, 0, found.lag, as_age(found.oldest_age_ms), *last)
    for number, group in enumerate(found.groups):
        yield (
            "" if number else found.name,
            group.id,
            "?" if group.error else _about(group.ready, group.estimated),
            group.leased,
            group.waiting + group.dying,
            group.lag,
            as_age(group.oldest_age_ms),
            *(("",) * len(last) if number else last),
        )


def _about(number: int, is_estimate: bool) -> object:
    return f"~{number:,}" if is_estimate else number


def _describe_disk(disk: DiskStats) -> str:
    text = f"disk: {disk.used_ratio:.0%} used, {format_size(disk.free_bytes)} free"
    if disk.level != "fine":
        refuses = disk.level == "refusing"
        text += "; publishing is refused" if refuses else "; what may go is deleted at once"
    return text if disk.reserve else f"{text}; the reserve for consumers is not there"


def _remarks(figures: StoreStats) -> Iterator[str]:
    for found in figures.values():
        if found.error:
            yield f"{found.name}: {found.error}"
        if found.pinned_bytes:
            size = format_size(found.pinned_bytes)
            yield f"{found.name}: the group {found.pinned_by!r} keeps {size} from being deleted"
        if found.archive_holds and not found.archive:
            yield f"{found.name}: the note of its archive is damaged, so nothing is deleted"
        elif found.archive_holds:
            below = f"below offset {found.archive_verified:,}, which is verified in"
            yield f"{found.name}: only what is {below} {found.archive} may be deleted"
        if found.dropped:
            yield f"{found.name}: to make room, {_were_dropped(found.dropped, '')}"
        for group in found.groups:
            if group.error:
                yield f"{found.name}: {group.error}"
            if group.dropped:
                text = _were_dropped(group.dropped, f" of {group.id!r}")
                yield f"{found.name}: to make room, {text}"


def _were_dropped(count: int, of_whom: str) -> str:
    return f"{counted(count, 'message')}{of_whom} {'was' if count == 1 else 'were'} dropped"


def _item(found: QueueStats, rates: Rates | None) -> dict[str, object]:
    item = asdict(found)
    groups = [group_item(group) for group in found.groups]
    item["kind"] = item.pop("type")
    if not found.error:
        del item["error"]
    for name in ("messages", "leased", "waiting", "estimated"):
        item[name] = getattr(found, name)
    return {**item, "groups": groups, "rates": None if rates is None else rates._asdict()}
