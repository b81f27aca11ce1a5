"""`tailrace pending`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tailrace.cli.counts import Count
from tailrace.cli.output import as_age, print_json, print_table
from tailrace.cli.stores import (
    StorePlace,
    group_either_way,
    look_at_store,
    queue_argument,
    store_options,
)
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.queue.classic import Pending

__all__ = ["pending"]


@click.command()
@queue_argument
@group_either_way(required=True)
@click.option("--limit", "--max", type=Count(min=0), metavar="N", help="Show N at most.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def pending(queue: str, group: str, limit: int | None, store: StorePlace, as_json: bool) -> None:
    """Show what a group of a work queue has got and not settled, oldest first.

    A message is leased (with a consumer), claimed (fetched ahead by one), expired (its lease is
    over, so it comes again), waiting (until a retry), parked (behind another of its key), free (to
    come again), or dying (on its way to the dead letters).

    \b
    Example:
      tailrace pending orders workers
    """
    with look_at_store(store) as look:
        if look.settings(queue).type == "stream":
            raise ConfigError(
                f"{queue} is a stream, and of a stream nothing is pending; see: "
                f"tailrace groups {queue}"
            )
        found = list(look.group(queue, group).pending(look.clock.boot_ms()))
    total = len(found)
    found = found[:limit]
    if as_json:
        items = [each._asdict() for each in found]
        told = {"queue": queue, "group": group, "count": total}
        print_json({"type": "pending", **told, "messages": items})
        return
    if not total:
        click.echo(f"{queue} {group}: nothing is pending")
        return
    titles = ("offset", "state", "left", "deliveries", "consumer", "last error")
    print_table(titles, map(_row, found))
    if total > len(found):
        click.echo(f"… and {total - len(found):,} more")


def _row(found: Pending) -> tuple[object, ...]:
    left = as_age(found.left * 1000) if found.left else ""
    count, error = found.delivery_count, found.last_error
    return str(found.offset), found.state, left, count, found.consumer, error
