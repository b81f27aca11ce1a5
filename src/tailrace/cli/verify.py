"""`tailrace verify`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tailrace.cli import verify_store
from tailrace.cli.output import print_json, print_rows, progress_bar
from tailrace.cli.places import check_path, find_log, find_store
from tailrace.cli.verify_store import and_notes, place_of, writing
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import VerifyReport
from tailrace.log.offline.verify import verify as verify_log
from tailrace.log.offline.words import counted, offsets
from tailrace.units import format_size

__all__ = ["items", "print_text", "verify"]


@click.command()
@click.argument("directory", metavar="DIR", callback=check_path)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@click.pass_context
def verify(context: click.Context, directory: str, as_json: bool) -> None:
    """Check every file of a log, or of a store.

    DIR is the folder with the .seg files, or one that has it as `segments`; or a store, of which
    every queue and every group is checked. Nothing is changed; it should not be written to
    meanwhile: what is just being appended may look torn. The exit code is 0 if there is no problem,
    1 if there is one, and 2 if it cannot be read.

    \b
    Example:
      tailrace verify data
    """
    store = find_store(directory)
    if store is not None:
        context.exit(0 if verify_store.run(store, as_json=as_json) else 1)
    folder = find_log(directory)
    with progress_bar("verify") as progress:
        report = verify_log(OsFileSystem(), folder, progress)
    if as_json:
        for item in items(report):
            print_json(item)
    else:
        print_text(report)
    context.exit(0 if report.ok else 1)


def items(report: VerifyReport) -> Iterator[dict[str, object]]:
    """What is written as JSON, an object for each line; the last one sums it up."""
    for finding in report.findings:
        yield {"type": "finding", **finding._asdict()}
    yield {
        "type": "report",
        "folder": report.folder,
        "ok": report.ok,
        "problems": len(report.problems),
        "notes": len(report.notes),
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "start_offset": report.start_offset,
        "end_offset": report.end_offset,
        "holder": report.writers[0]._asdict() if report.writers else None,
        "writers": [writer._asdict() for writer in report.writers],
    }


def print_text(report: VerifyReport) -> None:
    if report.findings:
        print_rows((f.severity, place_of(f), f.message) for f in report.findings)
        click.echo()
    click.echo(
        f"{report.folder}: {counted(report.records, 'record')} in "
        f"{counted(report.batches, 'batch', 'batches')}, {counted(report.segments, 'segment')}, "
        f"{format_size(report.bytes)}; {offsets(report.start_offset, report.end_offset)}"
        if report.records
        else f"{report.folder}: no records; the next offset is {report.end_offset}"
    )
    if report.ok:
        click.echo(f"no problems{and_notes(report)}")
    else:
        click.echo(f"{counted(len(report.problems), 'problem')}{and_notes(report)}")
    if report.writers:
        click.echo(writing(report.writers, ok=report.ok))
    elif not report.ok:
        click.echo(f"see what can be done: tailrace recover {report.folder}")
