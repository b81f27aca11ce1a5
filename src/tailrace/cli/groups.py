"""`tailrace groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.output import as_age, as_time, print_json, print_table
from tailrace.cli.stores import (
    StorePlace,
    confirm,
    group_argument,
    look_at_store,
    open_queue,
    queue_argument,
    store_options,
)

if TYPE_CHECKING:
    from tailrace.queue.group_files import Member
    from tailrace.queue.looking import Look
    from tailrace.queue.stats import GroupStats

__all__ = ["groups"]


class _OrList(click.Group):
    """`groups orders` is `groups list orders`; a queue that is called like a verb needs the long
    form."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.list_commands(ctx), *ctx.help_option_names}
        if args and not known.intersection(args[:1]):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "reset":
            from tailrace.cli.reset import reset

            return reset
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "reset"]


@click.group(cls=_OrList)
def groups() -> None:
    """Show the groups of a queue, move them, or delete them.

    `tailrace groups QUEUE` is short for `tailrace groups list QUEUE`.

    \b
    Examples:
      tailrace groups orders
      tailrace groups reset orders workers --to-earliest
    """


@groups.command("list")
@queue_argument
@click.option("--members", is_flag=True, help="Show who is in each group, too.")
@click.option("--exact", is_flag=True, help="Count what is ready, however long it takes.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def list_groups(queue: str, members: bool, exact: bool, store: StorePlace, as_json: bool) -> None:
    """Show how far each group of a queue is, and who is in it.

    No group is joined or made for it. What has a ~ is an estimate, and never too low.

    \b
    Example:
      tailrace groups orders --members
    """
    from tailrace.queue.stats import queue_stats

    with look_at_store(store) as look:
        found = queue_stats(look, look.settings(queue), exact=exact).groups
        there = {group.id: _members(look, queue, group) for group in found}
    if as_json:
        items = [group_item(group, there[group.id]) for group in found]
        print_json({"type": "groups", "queue": queue, "groups": items})
        return
    if not found:
        click.echo(f"{queue}: no groups")
        return
    print_table(
        ("group", "committed", "ready", "leased", "waiting", "lag", "oldest", "members"),
        (row_of(group) for group in found),
    )
    for group in found:
        if group.error:
            click.echo(f"!! {group.error}", err=True)
    if members and any(there.values()):
        click.echo()
        print_table(
            ("group", "member", "pid", "host", "since", "alive"),
            (
                (group.id, member.id, str(member.pid), member.host, as_time(member.since), alive)
                for group in found
                for member in there[group.id]
                for alive in [member.alive]
            ),
        )


def _members(look: Look, queue: str, group: GroupStats) -> list[Member]:
    return [] if group.error else look.look_at(look.settings(queue), group.id).members


def row_of(group: GroupStats) -> tuple[object, ...]:
    ready: object = f"~{group.ready:,}" if group.estimated else group.ready
    return (
        group.id,
        group.committed,
        ready,
        group.leased,
        group.waiting + group.dying,
        group.lag,
        as_age(group.oldest_age_ms),
        group.members,
    )


def group_item(group: GroupStats, members: list[Member] | None = None) -> dict[str, Any]:
    """A group in JSON."""
    from dataclasses import asdict

    item = asdict(group)
    if members is not None:
        item["members"] = [member._asdict() for member in members]
    if not item["error"]:
        del item["error"]
    return item


@groups.command("delete")
@queue_argument
@group_argument
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@click.pass_context
def delete_group(
    context: click.Context, queue: str, group: str, yes: bool, store: StorePlace, as_json: bool
) -> None:
    """Forget a group, even one that is damaged; its messages stay in the queue.

    Its consumers come to an end. Asks first; where nobody can be asked, --yes is needed.

    \b
    Example:
      tailrace groups delete orders workers --yes
    """
    with look_at_store(store) as look:
        look.settings(queue)
        look.check_group(queue, group)
    if not confirm(f"Forget the group {group!r} of the queue {queue!r}?", yes=yes):
        context.exit(1)
    with open_queue(store, queue) as (_, opened):
        opened.delete_group(group)
    if as_json:
        print_json({"type": "deleted", "queue": queue, "group": group})
    else:
        click.echo(f"deleted the group {group!r} of {queue}")
