"""`tailrace backup` and `tailrace restore-backup`."""

from __future__ import annotations

import os

import click

from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.places import check_path
from tailrace.cli.stores import StorePlace, look_at_store, store_options
from tailrace.errors import TailraceError
from tailrace.log.offline.words import counted
from tailrace.units import format_size

__all__ = ["backup", "restore_backup"]


@click.command()
@click.argument("directory", metavar="DIR", callback=check_path)
@store_options
@click.option(
    "--since",
    callback=check_path,
    metavar="OLD",
    help="A backup from before: full segments that are the same are linked to it, not copied.",
)
@click.option(
    "--link",
    is_flag=True,
    help="Link full segments to those of the store, on the same file system, instead of copying.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def backup(directory: str, store: StorePlace, since: str | None, link: bool, as_json: bool) -> None:
    """Copy a whole store to a new folder DIR, while it is used.

    Nobody has to stop: programs go on publishing and consuming. DIR must not exist, or be empty. It
    is there when the backup is whole, checked by checksums, and durable; until then, and if it is
    broken off, it is not. To use it: tailrace restore-backup. The configuration that is in the
    folder of the store is part of it; one that is elsewhere is not, and is named.

    \b
    Examples:
      tailrace backup backups/monday
      tailrace backup backups/tuesday --since backups/monday --store data
    """
    from tailrace.queue.backup import backup as copy_store
    from tailrace.queue.layout import find_base

    older = None if since is None else os.path.abspath(since)
    with look_at_store(store) as look, progress_bar("backup") as progress:
        base = find_base(look.layout.root)
        report = copy_store(
            look.fs,
            look.layout.root,
            os.path.abspath(directory),
            look.clock,
            since=older,
            link=link,
            progress=progress,
        )
    elsewhere = _config_elsewhere(store, base)
    if as_json:
        print_json({"type": "report", **report._asdict(), "config_elsewhere": elsewhere})
        return
    linked = f", {counted(report.linked, 'file')} of it linked" if report.linked else ""
    click.echo(
        f"{directory}: {counted(report.queues, 'queue')}, {counted(report.groups, 'group')}, "
        f"{format_size(report.bytes)} in {counted(report.files, 'file')}{linked}"
        f"{_with_config(report.config)}"
    )
    if elsewhere is not None:
        click.echo(f"{elsewhere}, its configuration, is not part of it")


def _config_elsewhere(store: StorePlace, base: str) -> str | None:
    """The configuration that commands go by, if it is not in the folder of the store. One that they
    cannot tell is no reason for a backup to fail."""
    try:
        file = store.find_config()
    except TailraceError:
        return None
    if file is None or os.path.realpath(os.path.dirname(file)) == os.path.realpath(base):
        return None
    return file


def _with_config(names: tuple[str, ...]) -> str:
    return f", with {' and '.join(names)}" if names else ""


@click.command("restore-backup")
@click.argument("directory", metavar="DIR", callback=check_path)
@store_options
@click.option("--check", is_flag=True, help="Only see whether the backup is whole.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def restore_backup(directory: str, store: StorePlace, check: bool, as_json: bool) -> None:
    """Make a store of the backup in DIR.

    Every file of the backup is checked first, and nothing is written if one is missing or damaged.
    The folder of the store must not exist, or be empty but for a tailrace.yaml, which stays; else
    the one of the backup is put there, if it has one. The store is in it when it is whole. What
    consumers had when the backup was made is free again.

    \b
    Examples:
      tailrace restore-backup backups/monday --check
      tailrace restore-backup backups/monday --store restored
    """
    from tailrace.queue import backup_restore

    with progress_bar("check" if check else "restore") as progress:
        if check:
            report = backup_restore.verify_backup(directory, progress=progress)
        else:
            report = backup_restore.restore_backup(directory, store.path, progress=progress)
    if as_json:
        print_json({"type": "report", "restored": not check, **report._asdict()})
        return
    holds = f"{counted(report.queues, 'queue')}, {format_size(report.bytes)}"
    holds += f" in {counted(report.files, 'file')}{_with_config(report.config)}"
    click.echo(f"{report.path}: {holds}{'; it is whole' if check else ', restored'}")
