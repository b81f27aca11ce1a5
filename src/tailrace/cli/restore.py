"""`tailrace restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.places import check_path
from tailrace.cli.stores import StorePlace, open_queue, queue_argument, store_options
from tailrace.cli.times import check_range, parse_time
from tailrace.errors import Corrupt, TailraceError
from tailrace.log.offline.words import counted
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.retaining import awaits_groups, floor_of, limits_of
from tailrace.units import format_size

if TYPE_CHECKING:
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.store import Store
    from tailrace.spark.lake.restore import RestoreReport

__all__ = ["restore"]


@click.command()
@queue_argument
@click.option(
    "--from", "folder", callback=check_path, metavar="DIR", required=True, help="The archive."
)
@click.option("--start", type=click.IntRange(min=0), metavar="OFFSET", help="From this one on.")
@click.option("--end", type=click.IntRange(min=0), metavar="OFFSET", help="Up to before this one.")
@click.option("--since", callback=parse_time, metavar="TIME", help="From the first of then on.")
@click.option("--until", callback=parse_time, metavar="TIME", help="Up to before that of then.")
@click.option(
    "--force",
    is_flag=True,
    help="Also if the queue would delete it again at once, or the rest could not come back.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def restore(
    queue: str,
    folder: str,
    start: int | None,
    end: int | None,
    since: int | None,
    until: int | None,
    force: bool,
    store: StorePlace,
    as_json: bool,
) -> None:
    """Bring messages that were archived back to QUEUE, with the offsets that they had.

    They come before the first message that the queue has, so they end there; a queue without any
    begins with them, and goes on after them. All of them come, or none. Programs that use the
    queue go on. Who reads, replays or queries it finds them; groups go on where they are, and
    `tailrace groups reset` has one begin again. Without a range it is all that fits. It needs
    pip install 'tailrace[arrow]'.

    \b
    Examples:
      tailrace restore orders --from archive/orders
      tailrace restore orders --from archive/orders --since 2026-11-01
      tailrace restore orders --from archive/orders --start 120000 --json
    """
    if start is not None and since is not None:
        raise click.UsageError("--start and --since exclude each other")
    if end is not None and until is not None:
        raise click.UsageError("--end and --until exclude each other")
    check_range(since, until)
    if start is not None and end is not None and start >= end:
        raise click.UsageError("--start is not before --end")
    try:
        from tailrace.spark.lake import restore as restoring
    except ImportError as error:
        if not (error.name or "").startswith("pyarrow"):
            raise
        raise TailraceError("pyarrow is missing: pip install 'tailrace[arrow]'") from None
    from tailrace.log.fs import OsFileSystem
    from tailrace.spark.lake.manifest import Manifest

    manifest = Manifest.load(OsFileSystem(), folder)
    with open_queue(store, queue) as (opened, found):
        settings, log = found.settings, found.log
        wanted = restoring.Wanted(start, end, since, until)
        bounds = restoring.choose(log, manifest, queue, settings.incarnation, wanted, force=force)
        floor = floor_of(opened.look, settings)
        if floor is not None and floor > bounds.first and not settings.retention and not force:
            raise TailraceError(
                f"the groups of {queue!r} have settled what comes back, and the next vacuum would "
                "delete it: have the queue keep some (tailrace create "
                f"{queue} --update --max-age 30d, say), restore into a queue without groups, or "
                "say --force"
            )
        opened.disk.check()
        with progress_bar("restore") as progress:
            report = restoring.restore(log, manifest, bounds, progress)
        going, archive = _going(opened, found), _deleting(opened, found)
        floor = floor_of(opened.look, settings)
    warnings = []
    if going > report.first:
        warnings.append(
            f"the retention of {queue!r} lets go of offsets {report.first} to "
            f"{min(going, report.last) - 1} at its next round: to keep them, raise it with "
            f"tailrace create {queue} --update --max-age, --max-bytes or --max-messages"
        )
    if archive is not None and (floor is None or floor > report.first):
        warnings.append(
            f"the archive in {archive} deletes what it has, so what came back goes when {queue!r} "
            f"is archived with --delete again: to keep it, tailrace archive {queue} --release, and "
            "archive without --delete"
        )
    warning = "; ".join(warnings) or None
    if as_json:
        print_json({"type": "report", "queue": queue, **report._asdict(), "warning": warning})
        return
    click.echo(_describe(queue, report))
    if warning is not None:
        click.echo(f"tailrace: {warning}", err=True)


def _going(store: Store, queue: Queue | Stream) -> int:
    """Where the log starts after the next round of retention."""
    settings = queue.settings
    floor = floor_of(store.look, settings)
    return queue.log.would_let_go(limits_of(settings, floor), floor)


def _deleting(store: Store, queue: Queue | Stream) -> str | None:
    """The folder of the archive that what is verified in it is deleted for, if there is one."""
    settings, layout = queue.settings, store.layout
    try:
        note = ArchiveNote.load(store.fs, layout, settings.name)
    except Corrupt:  # and then nothing is deleted
        return None
    if note is None or not note.holds or note.incarnation != settings.incarnation:
        return None
    return None if awaits_groups(store.look, settings) else note.folder(layout)


def _describe(queue: str, report: RestoreReport) -> str:
    range_ = f"offsets {report.first} to {report.last - 1}"
    missing = f"; {counted(report.missing, 'offset')} have none" if report.missing else ""
    size = f"{format_size(report.bytes)} in {counted(report.segments, 'segment')}"
    return f"{queue}: {counted(report.records, 'message')} are back, {range_}, {size}{missing}"
