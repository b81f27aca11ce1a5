"""`tailrace spark reindex`."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.jobs import Job, job_options
from tailrace.cli.places import check_path, find_log, find_store, written_by_nobody_else
from tailrace.cli.stores import StorePlace, store_options
from tailrace.log.offline.words import counted
from tailrace.log.segments import segment_path

if TYPE_CHECKING:
    from tailrace.spark.jobs.reindex import ReindexReport

__all__ = ["reindex"]


@click.command()
@click.argument("directory", metavar="[DIR]", callback=check_path, required=False)
@store_options
@job_options
@click.pass_context
def reindex(context: click.Context, directory: str | None, store: StorePlace, job: Job) -> None:
    """Make the indexes of a store, or of a log, anew.

    DIR is a store, or the folder of a log; without it, it is the store that --store names. Every
    segment that does not grow any more is read, and an index file that is not what comes of it is
    replaced at one stroke, so it can be interrupted or killed at any time. Nobody may write
    meanwhile. The exit code is 0 if all indexes are right then, 1 if segments are damaged, of which
    nothing is changed, and 2 if it could not be done.

    \b
    Examples:
      tailrace spark reindex
      tailrace spark reindex data/queue/queues/orders/segments --json
    """
    from tailrace.spark.jobs.reindex import reindex as reindex_logs
    from tailrace.spark.jobs.reindex import settings_of

    given = directory or store.path
    root = find_store(given)
    logs = settings_of(root) if root is not None else {find_log(given): None}
    with job.run("reindex") as means, written_by_nobody_else(given):
        report, running = reindex_logs(logs, means)
    job.write(_document(given, report), running, partial(_print_text, report))
    context.exit(0 if report.ok else 1)


def _document(given: str, report: ReindexReport) -> dict[str, Any]:
    logs = []
    for log in report.logs:
        damaged = [{"path": _name(base), "position": position} for base, position in log.damaged]
        left_out = [_name(base) for base in log.left_out]
        logs.append({**asdict(log), "damaged": damaged, "left_out": left_out})
    return {
        "type": "report",
        "job": "reindex",
        "folder": given,
        "ok": report.ok,
        "segments": sum(log.segments for log in report.logs),
        "bytes": sum(log.bytes for log in report.logs),
        "renewed": sum(len(log.renewed) for log in report.logs),
        "damaged": sum(len(log.damaged) for log in report.logs),
        "logs": logs,
    }


def _print_text(report: ReindexReport) -> None:
    for log in report.logs:
        files = counted(len(log.renewed), "index file")
        what = f"{files} made anew" if log.renewed else "the indexes are right"
        if log.damaged:
            what += f", but for {counted(len(log.damaged), 'damaged segment')}"
        click.echo(f"{log.folder}: {counted(log.segments, 'segment')}, {what}")
        for base, position in log.damaged:
            click.echo(
                f"{log.folder}/{_name(base)}:{position}: the segment is damaged, its indexes stay "
                f"as they are; see: tailrace verify {log.folder}"
            )
        for base in log.left_out:
            click.echo(f"{log.folder}/{_name(base)}: is not closed; who opens the log does it")
    if not report.logs:
        click.echo("there is no log")


def _name(base: int) -> str:
    return os.path.basename(segment_path("", base))
