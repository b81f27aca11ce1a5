"""`tailrace recover`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tailrace.cli.output import print_json, print_rows, progress_bar
from tailrace.cli.places import check_path, find_log, find_store, written_by_nobody_else
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.repair import RecoveryReport
from tailrace.log.offline.repair import recover as recover_log

__all__ = ["recover"]


@click.command()
@click.argument("directory", metavar="DIR", callback=check_path)
@click.option("--apply", is_flag=True, help="Do it; without this, only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@click.pass_context
def recover(context: click.Context, directory: str, apply: bool, as_json: bool) -> None:
    """Repair a log and accept what is lost.

    DIR is the folder with the .seg files, or one that has it as `segments`; or a store, of which
    each queue's log is repaired, and each group that a killed process had open is closed, so that
    FluxMQ can read it. Damaged bytes are moved to .tailrace/quarantine, everything
    readable is kept, and readers step over what is missing from then on. Without --apply nothing is
    changed, and the exit code is 1 if there is something to do. It is 0 if there is nothing (left)
    to do, and 2 if it could not be done.

    \b
    Examples:
      tailrace recover orders
      tailrace recover --apply orders
    """
    is_left = False
    store = find_store(directory)
    for report in _reports(directory, store, apply):
        if as_json:
            _print_json(report)
        else:
            _print_text(report)
        is_left = is_left or bool(report.actions and not report.applied)
    context.exit(1 if is_left else 0)


def _reports(directory: str, store: str | None, apply: bool) -> Iterator[RecoveryReport]:
    for folder in _logs(directory, store):
        with progress_bar("recover") as progress, written_by_nobody_else(folder):
            report = recover_log(OsFileSystem(), folder, apply=apply, progress=progress)
        yield report
    if store is not None:
        from tailrace.queue.offline.export import export_groups

        with written_by_nobody_else(store):
            report = export_groups(OsFileSystem(), store, apply=apply)
        if report.actions:
            yield report


def _logs(directory: str, store: str | None) -> list[str]:
    if store is None:
        return [find_log(directory)]
    from tailrace.queue.offline.verify import logs_of

    logs = logs_of(OsFileSystem(), store)
    if not logs:
        click.echo(f"{store}: none of its queues has a log", err=True)
    return logs


def _print_json(report: RecoveryReport) -> None:
    for action in report.actions:
        print_json({"type": "action", **action._asdict()})
    print_json(
        {
            "type": "report",
            "folder": report.folder,
            "applied": report.applied,
            "actions": len(report.actions),
            "quarantined": report.quarantined,
        }
    )


def _print_text(report: RecoveryReport) -> None:
    if not report.actions:
        click.echo(f"{report.folder}: nothing to do")
        return
    print_rows((action.kind, action.path, action.message) for action in report.actions)
    click.echo()
    if report.applied:
        click.echo(f"{report.folder}: done")
        for path in report.quarantined:
            click.echo(f"kept aside: {path}")
    else:
        click.echo(f"nothing was changed; to do it: tailrace recover --apply {report.folder}")
