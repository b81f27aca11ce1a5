"""`tailrace groups reset`."""

from __future__ import annotations

from typing import NamedTuple

import click

from tailrace.cli.output import print_json
from tailrace.cli.stores import (
    StorePlace,
    group_argument,
    look_at_store,
    open_queue,
    queue_argument,
    store_options,
)
from tailrace.cli.times import parse_time
from tailrace.errors import Locked, OffsetOutOfRange
from tailrace.log.offline.words import counted

__all__ = ["reset"]


class _Plan(NamedTuple):
    """Where a group is, and where it is to go."""

    committed: int
    target: int
    pending: int
    alive: list[str]


@click.command()
@queue_argument
@group_argument
@click.option("--to-earliest", is_flag=True, help="To the first message that is there.")
@click.option("--to-latest", is_flag=True, help="After the last message.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    callback=parse_time,
    metavar="ISO",
    help="To the first message at or after a time; it is in UTC if it does not say.",
)
@click.option("--shift-by", type=int, metavar="N", help="So many offsets on; less than 0 is back.")
@click.option("--execute", is_flag=True, help="Do it; without this, only say what would be done.")
@click.option("--force", is_flag=True, help="Even while somebody is consuming.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def reset(
    queue: str,
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    shift_by: int | None,
    execute: bool,
    force: bool,
    store: StorePlace,
    as_json: bool,
) -> None:
    """Have a group go on from somewhere else.

    Nothing is changed without --execute. What the group has pending is dropped, and every lease is
    lost: what was being worked on is delivered again if it is at or after the new place, and
    otherwise never. While a member is alive it is refused, unless you --force it.

    \b
    Examples:
      tailrace groups reset orders workers --to-earliest
      tailrace groups reset events readers --to-datetime 2026-01-31T09:00Z --execute
      tailrace groups reset orders workers --shift-by -100 --execute
    """
    ways = [to_earliest, to_latest, *(w is not None for w in (to_offset, to_datetime, shift_by))]
    if sum(ways) != 1:
        raise click.UsageError(
            f"{'give one of' if any(ways) else 'say where to:'} --to-earliest, --to-latest, "
            "--to-offset, --to-datetime or --shift-by"
        )
    with look_at_store(store) as look:
        found = look.group(queue, group)
        committed = found.state.committed
        with look.log(queue) as log:
            start, end = (0, 0) if log is None else (log.start_offset, log.end_offset)
            committed = min(max(committed, start), end)
            if to_offset is not None:
                _check_inside(queue, to_offset, start, end)
                target = to_offset
            elif to_datetime is not None:
                target = end if log is None else log.offset_at(to_datetime)
            elif shift_by is not None:
                target = min(max(committed + shift_by, start), end)
            else:
                target = start if to_earliest else end
        pending = sum(1 for _ in found.pending(look.clock.boot_ms()))
        alive = [member.id for member in found.members if member.alive]
    plan = _Plan(committed, target, pending, alive)
    if execute:
        _execute(store, queue, group, target, force)
    _tell(queue, group, plan, execute, as_json)


def _check_inside(queue: str, offset: int, start: int, end: int) -> None:
    if not start <= offset <= end:
        raise OffsetOutOfRange(
            f"{queue}: offset {offset} is not in the queue; a group can go to {start} to {end}",
            offset=offset,
            low=start,
            high=end,
        )


def _execute(store: StorePlace, queue: str, group: str, target: int, force: bool) -> None:
    from tailrace.queue.classic import ClassicGroup

    with open_queue(store, queue) as (_, opened):
        found = opened.open_group(group, create=False)
        alive = [member.id for member in found.members() if member.alive]
        if alive and not force:
            raise Locked(
                f"the group {group!r} of {queue} is in use by {', '.join(alive)}: stop them first, "
                "or use --force, and they lose what they are working on"
            )
        if isinstance(found, ClassicGroup):
            found.reset(target)
        else:
            found.seek(target)


def _tell(queue: str, group: str, plan: _Plan, executed: bool, as_json: bool) -> None:
    if as_json:
        item = {"committed": plan.committed, "target": plan.target, "pending": plan.pending}
        told = {"type": "reset", "queue": queue, "group": group, **item}
        print_json({**told, "members": plan.alive, "executed": executed})
        return
    click.echo(f"{queue} {group}: {plan.committed} → {plan.target}, {_meaning(plan)}")
    if executed:
        return
    if plan.alive:
        click.echo(f"in use by {', '.join(plan.alive)}: stop them first, or use --force")
    click.echo("nothing was changed; to do it: --execute")


def _meaning(plan: _Plan) -> str:
    distance = plan.target - plan.committed
    if distance > 0:
        text = f"leaves out {counted(distance, 'offset')}"
    elif distance < 0:
        text = f"delivers {counted(-distance, 'offset')} again"
    else:
        text = "stays where it is"
    return f"{text}; drops {plan.pending} pending" if plan.pending else text
