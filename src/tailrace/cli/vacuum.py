"""`tailrace vacuum`."""

from __future__ import annotations

import click

from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.places import find_log, is_log, refuse_store, written_by_nobody_else
from tailrace.cli.stores import (
    StorePlace,
    complete_queue,
    is_queue,
    look_at_store,
    open_store,
    store_options,
)
from tailrace.errors import TailraceError
from tailrace.log.log import Log
from tailrace.log.offline.words import counted
from tailrace.log.options import Retention
from tailrace.log.retention import VacuumReport
from tailrace.units import format_size, parse_duration, parse_size

__all__ = ["vacuum"]


@click.command()
@click.argument("place", metavar="[QUEUE|DIR]", required=False, shell_complete=complete_queue)
@click.option("--max-age", metavar="DURATION", help="Delete what is older, such as 12h or 7d.")
@click.option("--max-bytes", metavar="SIZE", help="Keep about this much, such as 10GiB.")
@click.option(
    "--max-records",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep about this many records.",
)
@click.option(
    "--before",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Let the log start at this offset, and delete the segments before it.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each log.")
def vacuum(
    place: str | None,
    max_age: str | None,
    max_bytes: str | None,
    max_records: int | None,
    before: int | None,
    store: StorePlace,
    as_json: bool,
) -> None:
    """Delete old segments of a queue, of all queues of a store, or of a log that stands alone.

    Whole segments go, the oldest first, so somewhat more may stay than asked for. Of a QUEUE goes
    what its settings let go, and nothing that one of its groups still needs. A log that stands
    alone is named by its DIR, the folder with the .seg files, or one that has it as `segments`; the
    limits are for it, and without one only what is before its start offset goes.

    \b
    Examples:
      tailrace vacuum
      tailrace vacuum orders
      tailrace vacuum some/segments --max-age 7d --max-bytes 10GiB
    """
    limits = (max_age, max_bytes, max_records, before)
    if place is None or store.is_given or (not is_log(place) and is_queue(place)):
        if any(limit is not None for limit in limits):
            raise click.UsageError("a queue goes by its own retention: tailrace create --update")
        _vacuum_queues(store, place, as_json)
        return
    folder = find_log(place)
    refuse_store(folder)
    retention = Retention(
        max_age_ms=None if max_age is None else _some(parse_duration(max_age, "--max-age")),
        max_bytes=None if max_bytes is None else _some(parse_size(max_bytes, "--max-bytes")),
        max_records=max_records,
    )
    with (
        progress_bar("vacuum", unit="logs"),
        written_by_nobody_else(folder),
        Log(folder, upkeep=False, retention=retention) as log,
    ):
        if before is not None:
            _check_before(log, before)
            log.truncate_before(max(before, log.start_offset))
        report = log.vacuum()
        end = log.end_offset
    if as_json:
        print_json({"type": "report", "folder": folder, **report._asdict(), "end_offset": end})
    else:
        click.echo(_describe(folder, report))


def _vacuum_queues(store: StorePlace, name: str | None, as_json: bool) -> None:
    with look_at_store(store) as look:
        names = sorted(look.queues()) if name is None else [look.settings(name).name]
    is_written = len(names) > 1  # as it goes on
    with (
        open_store(store) as opened,
        progress_bar("vacuum", unit="queues", beside_output=is_written) as progress,
    ):
        for number, each in enumerate(names):
            if progress is not None:
                progress(number, len(names) if is_written else None)
            queue = opened.get(each)
            report, end = queue.vacuum(), queue.log.end_offset
            queue.close()  # there may be thousands
            if as_json:
                told = {"type": "report", "queue": each, **report._asdict()}
                print_json({**told, "end_offset": end})
            else:
                click.echo(_describe(each, report))


def _some(limit: int) -> int:
    if not limit:
        raise TailraceError("a limit of 0 would delete everything; use --before for that")
    return limit


def _check_before(log: Log, before: int) -> None:
    if before > log.end_offset:
        raise TailraceError(
            f"{log.path}: --before {before} is beyond the end of the log, {log.end_offset}"
        )


def _describe(folder: str, report: VacuumReport) -> str:
    start = f"it starts at offset {report.start_offset}"
    if not report.segments:
        return f"{folder}: nothing to delete; {start}"
    deleted = f"{counted(report.segments, 'segment')}, {format_size(report.bytes)}"
    return f"{folder}: deleted {deleted}; {start}"
