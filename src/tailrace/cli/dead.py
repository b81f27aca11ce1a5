"""`tailrace dead` and `tailrace redrive`."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING

import click

from tailrace.cli.messages import message_item
from tailrace.cli.output import as_text, as_time, print_json, progress_bar
from tailrace.cli.stores import (
    StorePlace,
    complete_group,
    look_at_store,
    open_queue,
    queue_argument,
    store_options,
)
from tailrace.log.offline.words import counted

if TYPE_CHECKING:
    from tailrace.queue.message import Message

__all__ = ["dead", "redrive"]


@click.command()
@queue_argument
@click.option(
    "--group", shell_complete=complete_group, metavar="GROUP", help="Only those of this group."
)
@click.option("--limit", "--max", type=click.IntRange(min=0), metavar="N", help="Show N at most.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def dead(
    queue: str, group: str | None, limit: int | None, store: StorePlace, as_json: bool
) -> None:
    """Show the dead letters of a queue that nobody has dealt with, oldest first.

    What they begin with is their offset among the dead letters, by which `redrive` knows them.

    \b
    Example:
      tailrace dead orders --limit 10
    """
    from tailrace.queue.dead_letters import origin

    with (
        look_at_store(store) as look,
        progress_bar("dead", unit="messages", beside_output=True) as progress,
    ):
        look.settings(queue)
        letters = (m for m in look.dead(queue) if group in (None, origin(m)[1]))
        for number, message in enumerate(islice(letters, limit), 1):
            if progress is not None:
                progress(number, limit)
            if as_json:
                print_json(message_item(message, group=origin(message)[1], reason=_reason(message)))
            else:
                click.echo(_describe(message))


def _reason(message: Message) -> str:
    return message.headers.get("_dlq_reason", b"").decode("utf-8", "replace")


def _describe(message: Message) -> str:
    from tailrace.queue.dead_letters import origin

    headers = message.headers
    number = headers.get("_dlq_original_offset", b"?").decode("utf-8", "replace")
    text = f"{message.offset}  {as_time(message.timestamp)}  group {origin(message)[1]!r}"
    text += f"  was {number}"
    if message.key is not None:
        text += f"  key {as_text(message.key)}"
    return f"{text}  value {as_text(message.value)}  reason {_reason(message)!r}"


@click.command()
@queue_argument
@click.option(
    "--group", shell_complete=complete_group, metavar="GROUP", help="Only those of this group."
)
@click.option("--limit", "--max", type=click.IntRange(min=1), metavar="N", help="N at most.")
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Only this one, as `dead` shows it; may be given more than once.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def redrive(
    queue: str,
    group: str | None,
    limit: int | None,
    offsets: tuple[int, ...],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Bring dead letters back to their queue, each for the group that had it.

    They come back as if nobody had tried them, oldest first; each once, whatever happens meanwhile.
    Those of a group that is gone stay, since nobody would get them.

    \b
    Examples:
      tailrace redrive orders
      tailrace redrive orders --group workers --limit 100
      tailrace redrive orders --offset 17 --offset 18
    """
    from tailrace.queue.dead_letters import origin

    count = 0
    with (
        open_queue(store, queue) as (opened, _),
        progress_bar("redrive", unit="messages") as progress,
    ):
        total = None
        if progress is not None:
            total = opened.get(queue).stats().dead  # at most
            total = total if limit is None else min(total, limit)
        each = opened._redrive_each(queue, group, offsets or None, limit)
        try:
            with contextlib.closing(each):
                for _ in each:
                    count += 1
                    if progress is not None:
                        progress(count, total)
        except BaseException:  # Ctrl-C, too: what has come back stays so
            if count:
                click.echo(_redriven(queue, count), err=True)
            raise
        gone = {origin(letter)[1] for letter in opened.dead(queue)}
        gone -= {"", *opened.get(queue).group_ids()}
    if as_json:
        print_json({"type": "redriven", "queue": queue, "count": count})
    else:
        click.echo(_redriven(queue, count))
    if gone:
        names = ", ".join(map(repr, sorted(gone)))
        click.echo(f"there are some of {names}: a group that is gone, so they stay", err=True)


def _redriven(queue: str, count: int) -> str:
    return f"{queue}: {counted(count, 'dead letter')} brought back"
