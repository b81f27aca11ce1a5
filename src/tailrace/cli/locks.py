"""`tailrace locks`."""

from __future__ import annotations

import click

from tailrace.cli.output import as_time, print_json, print_rows
from tailrace.cli.places import check_path, find_log
from tailrace.log.members import Member
from tailrace.log.offline.holders import Holders, LockState, find_holders
from tailrace.log.offline.words import counted

__all__ = ["locks"]

_MEANINGS = {
    "open": "to have it open for writing",
    "append": "the turn to append",
    "next": "the next turn",
    "flush": "the turn to flush",
    "upkeep": "to delete and flush in the background",
    "deletion": "to delete segments, or put some in front",
}


@click.command()
@click.argument("directory", metavar="DIR", callback=check_path)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def locks(directory: str, as_json: bool) -> None:
    """Show who has a log open for writing, and who holds or waits for its locks.

    DIR is the folder with the .seg files, or one that has it as `segments`. No lock is touched.
    Readers hold none, so they don't show.

    \b
    Example:
      tailrace locks data/orders
    """
    found = find_holders(find_log(directory))
    if as_json:
        for writer in found.writers:
            print_json({"type": "writer", **writer._asdict(), "running": writer.running})
        for lock in found.locks:
            print_json({"type": "lock", **lock._asdict()})
    else:
        _print_text(directory, found)


def _print_text(directory: str, found: Holders) -> None:
    count = counted(len(found.writers), "writer") if found.writers else "nobody writes to it"
    click.echo(f"{directory}: {count}")
    if found.writers:
        print_rows(("writer", f"pid {writer.pid}", _describe(writer)) for writer in found.writers)
    if any(lock.holders is None for lock in found.locks):
        click.echo("this system does not tell who holds a lock")
        return
    print_rows((lock.name, _who(lock), _MEANINGS[lock.name]) for lock in found.locks)


def _describe(writer: Member) -> str:
    since = as_time(writer.since * 1000)
    where = "" if writer.running is not None else f" on {writer.host}"
    return f"{writer.mode}{where}, since {since}"


def _who(lock: LockState) -> str:
    text = ", ".join(_pid(pid) for pid in lock.holders or ()) or "free"
    if lock.waiting:
        text += "; waiting: " + ", ".join(_pid(pid) for pid in lock.waiting)
    return text


def _pid(pid: int) -> str:
    return f"pid {pid}" if pid > 0 else "a process of another container"
