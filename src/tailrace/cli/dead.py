"""`tailrace dead` and `tailrace redrive`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from tailrace.cli.counts import Count
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
from tailrace.errors import ConfigError, TailraceError
from tailrace.log.offline.words import counted

if TYPE_CHECKING:
    from tailrace.queue.message import Message

__all__ = ["dead", "redrive"]


@click.command()
@queue_argument
@click.option(
    "--group", shell_complete=complete_group, metavar="GROUP", help="Only those of this group."
)
@click.option("--limit", "--max", type=Count(min=0), metavar="N", help="Show N at most.")
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
    from tailrace.queue.dead_letters import origin, refused_by

    with (
        look_at_store(store) as look,
        progress_bar("dead", unit="messages", beside_output=True) as progress,
    ):
        look.settings(queue)
        letters = (
            m for m in look.dead(queue, _elsewhere(store, queue)) if group in (None, origin(m)[1])
        )
        for number, message in enumerate(islice(letters, limit), 1):
            if progress is not None:
                progress(number, limit)
            if as_json:
                told = {"group": origin(message)[1], "reason": _reason(message)}
                name = refused_by(message)
                print_json(message_item(message, **told, **({"pipeline": name} if name else {})))
            else:
                click.echo(_describe(message))


def _elsewhere(store: StorePlace, queue: str) -> list[str]:
    """The queues that the configuration gives pipelines for what they refuse of this queue. One
    that cannot be read keeps nobody from looking at the others."""
    try:
        pipelines = [] if store.config is None else store.config.pipelines
    except ConfigError as error:
        click.echo(f"tailrace: {error}; so dead_letters of pipelines are not looked at", err=True)
        return []
    return [each.dead_letters for each in pipelines if each.source == queue and each.dead_letters]


def _reason(message: Message) -> str:
    return message.headers.get("_dlq_reason", b"").decode("utf-8", "replace")


def _describe(message: Message) -> str:
    from tailrace.queue.dead_letters import origin, refused_by

    headers, pipeline = message.headers, refused_by(message)
    number = headers.get("_dlq_original_offset", b"?").decode("utf-8", "replace")
    whose = f"group {origin(message)[1]!r}" if pipeline is None else f"pipeline {pipeline!r}"
    text = f"{message.offset}  {as_time(message.timestamp)}  {whose}  was {number}"
    if message.key is not None:
        text += f"  key {as_text(message.key)}"
    return f"{text}  value {as_text(message.value)}  reason {_reason(message)!r}"


@click.command()
@queue_argument
@click.option(
    "--group", shell_complete=complete_group, metavar="GROUP", help="Only those of this group."
)
@click.option("--limit", "--max", type=Count(min=1), metavar="N", help="N at most.")
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
@click.pass_context
def redrive(
    context: click.Context,
    queue: str,
    group: str | None,
    limit: int | None,
    offsets: tuple[int, ...],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Bring dead letters back to their queue, each for the group that had it.

    They come back as if nobody had tried them, oldest first; each once, whatever happens meanwhile.
    Those of a group that is gone stay, since nobody would get them. What pipelines have refused
    comes again to all who read the queue, and once if several of them have. The exit code is 1 if
    there was no letter at an OFFSET: somebody has dealt with it, or there never was one.

    \b
    Examples:
      tailrace redrive orders
      tailrace redrive orders --group workers --limit 100
      tailrace redrive orders --offset 17 --offset 18
    """
    from tailrace.queue.dead_letters import origin

    count = 0
    missing = dict.fromkeys(offsets)
    with (
        open_queue(store, queue) as (opened, _),
        progress_bar("redrive", unit="messages") as progress,
    ):
        total = None
        places = _elsewhere(store, queue)
        if progress is not None and not places:
            total = opened.get(queue).stats().dead  # at most
            total = total if limit is None else min(total, limit)

        def tell(settled: list[int], back: int) -> None:
            nonlocal count
            count += back
            for offset in settled:
                missing.pop(offset, None)
            if progress is not None:
                progress(count, total)

        try:
            opened._redrive(queue, group, offsets or None, limit, tell, places)
        except ValueError as error:  # an offset that is not enough to tell which letter is meant
            raise TailraceError(str(error)) from None
        except BaseException:  # Ctrl-C, too: what has come back stays so
            if count:
                click.echo(_redriven(queue, count), err=True)
            raise
        gone = set()
        for letter in opened.dead(queue, places=places):
            gone.add(origin(letter)[1])
            if group in (None, origin(letter)[1]):  # it is there, and stays for another reason
                missing.pop(letter.offset, None)
        gone -= {"", *opened.get(queue).group_ids()}
    if as_json:
        told = {"queue": queue, "count": count, "missing": list(missing)}
        print_json({"type": "redriven", **told})
    else:
        click.echo(_redriven(queue, count))
    if gone:
        names = ", ".join(map(repr, sorted(gone)))
        click.echo(f"there are some of {names}: a group that is gone, so they stay", err=True)
    of = "" if group is None else f" of the group {group!r}"
    for offset in missing:
        click.echo(f"tailrace: {queue}: no dead letter{of} is at offset {offset}", err=True)
    context.exit(1 if missing else 0)


def _redriven(queue: str, count: int) -> str:
    return f"{queue}: {counted(count, 'dead letter')} brought back"
