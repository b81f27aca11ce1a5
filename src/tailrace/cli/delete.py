"""`tailrace delete` and `tailrace purge`: what cannot be undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tailrace.cli.output import print_json
from tailrace.cli.stores import (
    StorePlace,
    confirm,
    look_at_store,
    open_store,
    queue_argument,
    store_options,
)
from tailrace.errors import Corrupt
from tailrace.log.offline.words import counted

if TYPE_CHECKING:
    from tailrace.queue.looking import Look

__all__ = ["delete", "purge"]

REFUSED = 1  # a person was asked, and would rather not


def _describe(look: Look, queue: str) -> str:
    """What there is to lose."""
    settings, delayed = look.settings(queue), _delayed(look, queue)
    with look.log(queue) as log:
        held = 0 if log is None else log.end_offset - log.start_offset
    groups = len(look.group_ids(queue))
    what = "stream" if settings.type == "stream" else "queue"
    parts = [counted(held, "message")]
    if delayed is None:
        parts.append("delayed messages that cannot be counted")
    elif delayed:
        parts.append(counted(delayed, "delayed message"))
    if groups:
        parts.append(counted(groups, "group"))
    listed = ", ".join(parts[:-1])
    return f"the {what} {queue!r} with {f'{listed} and {parts[-1]}' if listed else parts[-1]}"


def _delayed(look: Look, queue: str) -> int | None:
    """How many messages are to be delivered later; `None` if that cannot be read."""
    from tailrace.queue.delays import count_scheduled

    try:
        return count_scheduled(look.fs, look.layout.delayed(look.settings(queue).incarnation))
    except Corrupt:
        return None


@click.command()
@queue_argument
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@click.pass_context
def delete(context: click.Context, queue: str, yes: bool, store: StorePlace, as_json: bool) -> None:
    """Delete a queue with all that is in it, and what is delayed for it, for everybody who uses it.

    Asks first; where nobody can be asked, --yes is needed.

    \b
    Example:
      tailrace delete orders --yes
    """
    with look_at_store(store) as look:
        described, delayed = _describe(look, queue), _delayed(look, queue)
    store.refuse_declared(queue)
    if not confirm(f"Delete {described}?", yes=yes):
        context.exit(REFUSED)
    with open_store(store) as opened:
        opened.delete(queue)
    if as_json:
        print_json({"type": "deleted", "queue": queue, "delayed": delayed})
    else:
        click.echo(f"deleted {described}")


@click.command()
@queue_argument
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@click.pass_context
def purge(context: click.Context, queue: str, yes: bool, store: StorePlace, as_json: bool) -> None:
    """Delete every message of a queue, for all its groups; the queue and its groups stay.

    Delayed messages, which would come later, go too. Asks first; where nobody can be asked, --yes
    is needed. Leases on what is deleted are lost.

    \b
    Example:
      tailrace purge orders --yes
    """
    with look_at_store(store) as look:
        described = _describe(look, queue)
    if not confirm(f"Delete all messages of {described}?", yes=yes):
        context.exit(REFUSED)
    with open_store(store) as opened:
        found = opened.get(queue)
        delayed = found.delayed_count()
        purged = found.purge()
    if as_json:
        print_json({"type": "purged", "queue": queue, "messages": purged, "delayed": delayed})
    else:
        more = f" and {counted(delayed, 'delayed message')}" if delayed else ""
        click.echo(f"{queue}: deleted {counted(purged, 'message')}{more}")
