"""`tailrace delayed` and `tailrace cancel`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from tailrace.cli.counts import Count
from tailrace.cli.messages import scheduled_item
from tailrace.cli.output import as_text, as_time, print_json
from tailrace.cli.stores import (
    StorePlace,
    look_at_store,
    open_queue,
    place_in,
    queue_argument,
    store_options,
)
from tailrace.errors import TailraceError
from tailrace.log.offline.words import counted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tailrace.queue.delays import Scheduled

__all__ = ["cancel", "delayed"]

_COMPLETED = 50  # ids that are offered to a shell


@click.command()
@queue_argument
@click.option(
    "--limit",
    "--max",
    type=Count(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Show N at most.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def delayed(queue: str, limit: int, store: StorePlace, as_json: bool) -> None:
    """Show the messages that are to be delivered later, the next one first.

    What they begin with is their delay id, by which `cancel` knows them.

    \b
    Examples:
      tailrace delayed reminders --limit 10
      tailrace delayed reminders --json | jq -r .delay_id | xargs tailrace cancel reminders
    """
    from tailrace.queue.delays import look_at_scheduled

    with look_at_store(store) as look:
        folder = look.layout.delayed(look.settings(queue).incarnation)
        found, total = look_at_scheduled(look.fs, folder, limit)
    for each in found:
        if as_json:
            print_json(scheduled_item(queue, each))
        else:
            click.echo(_describe(each))
    if as_json:
        return
    if not found:
        click.echo(f"{queue}: nothing is delayed")
    elif total > len(found):
        click.echo(f"… and {total - len(found):,} more")


def _describe(each: Scheduled) -> str:
    text = f"{each.delay_id}  {as_time(each.deliver_at)}"
    if each.key is not None:
        text += f"  key {as_text(each.key)}"
    return f"{text}  value {as_text(each.value)}"


def _complete_id(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """The ids of what is next, for a shell."""
    place, queue = place_in(ctx), ctx.params.get("queue")
    with contextlib.suppress(TailraceError, OSError):
        from tailrace.queue.delays import look_at_scheduled

        with look_at_store(place) as look:  # nothing is made only to complete a name
            folder = look.layout.delayed(look.settings(queue or "").incarnation)
            ids = [each.delay_id for each in look_at_scheduled(look.fs, folder, _COMPLETED)[0]]
            return [each for each in ids if each.startswith(incomplete)]
    return []


@click.command()
@queue_argument
@click.argument("delay_ids", metavar="ID...", nargs=-1, required=True, shell_complete=_complete_id)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@click.pass_context
def cancel(
    context: click.Context,
    queue: str,
    delay_ids: tuple[str, ...],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Take delayed messages back: they are never delivered.

    An ID is what `publish` has said, and what `delayed` shows. When it has said how many were
    cancelled, that is durable. The exit code is 1 if there was no message of an ID: it was
    delivered, or there never was one.

    \b
    Example:
      tailrace cancel reminders 19a8b2f6c00-11-9f86d081
    """
    with open_queue(store, queue) as (_, opened):
        done = {each: opened.cancel(each) for each in delay_ids}
    missing = [each for each, is_done in done.items() if not is_done]
    cancelled = [each for each, is_done in done.items() if is_done]
    if as_json:
        told = {"queue": queue, "cancelled": cancelled, "missing": missing}
        print_json({"type": "cancelled", **told})
    else:
        click.echo(f"{queue}: {counted(len(cancelled), 'message')} cancelled")
    for each in missing:
        click.echo(f"tailrace: {queue}: no message waits under the delay id {each}", err=True)
    context.exit(1 if missing else 0)
