"""`tailrace queues`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tailrace.cli.output import print_json, print_table
from tailrace.cli.stores import StorePlace, look_at_store, store_options

if TYPE_CHECKING:
    from tailrace.queue.settings import QueueSettings

__all__ = ["queue_item", "queues"]


@click.command()
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object, with all settings.")
def queues(store: StorePlace, as_json: bool) -> None:
    """Show the queues of a store, and what is set on them.

    Nothing is opened for it; `tailrace stats` has the figures.

    \b
    Examples:
      tailrace queues
      tailrace queues --store data --json | jq '.queues[].name'
    """
    with look_at_store(store) as look:
        found = [settings for _, settings in sorted(look.queues().items())]
        root = look.layout.root
    if as_json:
        print_json({"type": "queues", "store": root, "queues": [queue_item(s) for s in found]})
    elif not found:
        click.echo(f"{root}: no queues")
    else:
        titles = ("queue", "type", "flush", "lease", "retries", "topics")
        print_table(titles, map(_row, found))


def _row(settings: QueueSettings) -> tuple[object, ...]:
    retries = settings.retry.max_retries
    is_classic = settings.type == "classic"
    return (
        settings.name,
        settings.type + (", ephemeral" if settings.ephemeral else ""),
        _flush(settings),
        f"{settings.visibility_timeout_ms / 1000:g} s" if is_classic else "",
        ("unlimited" if retries is None else str(retries)) if is_classic else "",
        ", ".join(settings.topics),
    )


def _flush(settings: QueueSettings) -> str:
    if settings.ephemeral:
        return "none"
    return "sync" if settings.flush is None else settings.flush.value


def queue_item(settings: QueueSettings) -> dict[str, object]:
    """What is set on a queue, in JSON; times are in milliseconds."""
    item = {name: value for name, value in asdict(settings).items() if name != "fluxmq"}
    kind = item.pop("type")
    options = dict(item.pop("log_options"))
    return {**item, "kind": kind, "flush": _flush(settings), "log_options": options}
