"""`tailrace peek`."""

from __future__ import annotations

import click

from tailrace.cli.counts import Count
from tailrace.cli.messages import describe_message, message_item
from tailrace.cli.output import print_json
from tailrace.cli.stores import (
    StorePlace,
    group_either_way,
    look_at_store,
    queue_argument,
    store_options,
)

__all__ = ["peek"]


@click.command()
@queue_argument
@group_either_way(required=False)
@click.option(
    "--limit",
    "--max",
    type=Count(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Show N at most.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def peek(queue: str, group: str | None, limit: int, store: StorePlace, as_json: bool) -> None:
    """Show what a group would get next, without taking it.

    Without a GROUP it is what a new one would get. No group is joined or made for it.

    \b
    Example:
      tailrace peek orders workers --limit 3
    """
    with look_at_store(store) as look:
        settings = look.settings(queue)
        found = look.group(queue, group) if group else look.look_at(settings, "")
        with look.log(queue) as log:
            messages = [] if log is None else look.peek(found, queue, log, limit)
    for message in messages:
        if as_json:
            print_json(message_item(message, delivery_count=message.delivery_count))
        else:
            times = f"  delivered {message.delivery_count} times" if message.delivery_count else ""
            error = f": {message.last_error}" if message.last_error else ""
            click.echo(f"{describe_message(message)}{times}{error}")
