"""`tailrace verify` of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click

from tailrace.cli.output import print_json, print_rows, progress_bar
from tailrace.log.fs import OsFileSystem
from tailrace.log.members import Member
from tailrace.log.offline.findings import Finding
from tailrace.log.offline.verify import VerifyReport
from tailrace.log.offline.words import counted, offsets
from tailrace.queue.offline.verify import QueueReport, StoreReport
from tailrace.queue.offline.verify import verify_store as verify_it
from tailrace.units import format_size

__all__ = ["and_notes", "items", "place_of", "print_text", "run", "writing"]


def run(root: str, *, as_json: bool) -> bool:
    """Check a store and print what was found; is it without problems?"""
    with progress_bar("verify") as progress:
        report = verify_it(OsFileSystem(), root, progress)
    if as_json:
        for item in items(report):
            print_json(item)
    else:
        print_text(report)
    return report.ok


# --- for programs ---------------------------------------------------------------------------


def items(report: StoreReport) -> Iterator[dict[str, object]]:
    """What is written as JSON, an object for each line; the last one sums it up."""
    for finding in report.findings:
        yield {"type": "finding", **finding._asdict()}
    for queue in report.queues:
        yield _queue_item(queue)
        for group in queue.groups:
            yield {"type": "group", "queue": queue.name, **vars(group)}
    writers = [writer._asdict() for writer in report.writers]
    yield {
        "type": "report",
        "folder": report.folder,
        "ok": report.ok,
        "problems": len(report.problems),
        "notes": len(report.notes),
        "queues": len(report.queues),
        "groups": sum(len(queue.groups) for queue in report.queues),
        "segments": sum(log.segments for log in report.logs),
        "batches": sum(log.batches for log in report.logs),
        "records": sum(log.records for log in report.logs),
        "bytes": sum(log.bytes for log in report.logs),
        "holder": writers[0] if writers else None,
        "writers": writers,
    }


def _queue_item(queue: QueueReport) -> dict[str, object]:
    log = queue.log
    names = ("segments", "batches", "records", "bytes", "start_offset", "end_offset")
    return {
        "type": "queue",
        "name": queue.name,
        "folder": queue.folder,
        "kind": queue.type,
        **{name: None if log is None else getattr(log, name) for name in names},
    }


# --- for people -----------------------------------------------------------------------------


def print_text(report: StoreReport) -> None:
    for folder, findings in _by_folder(report.findings).items():
        click.echo(f"{folder or '.'}:")
        print_rows((f.severity, os.path.basename(place_of(f)), f.message) for f in findings)
        click.echo()
    for queue in report.queues:
        click.echo(f"{queue.name}: {_describe(queue)}")
    groups = sum(len(queue.groups) for queue in report.queues)
    size = format_size(sum(log.bytes for log in report.logs))
    counts = f"{counted(len(report.queues), 'queue')}, {counted(groups, 'group')}, {size}"
    click.echo(f"{report.folder}: {counts}")
    if report.ok:
        click.echo(f"no problems{and_notes(report)}")
    else:
        click.echo(f"{counted(len(report.problems), 'problem')}{and_notes(report)}")
    if report.writers:
        click.echo(writing(report.writers, ok=report.ok))
    elif any(not log.ok for log in report.logs):
        click.echo(f"see what can be done for its logs: tailrace recover {report.folder}")


def _by_folder(findings: list[Finding]) -> dict[str, list[Finding]]:
    """Their paths may be long: each folder is named once."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(os.path.dirname(finding.path), []).append(finding)
    return found


def _describe(queue: QueueReport) -> str:
    log = queue.log
    groups = f", {counted(len(queue.groups), 'group')}" if queue.groups else ""
    if log is None:
        return f"no log{groups}"
    if not log.records:
        return f"no records; the next offset is {log.end_offset}{groups}"
    records = f"{counted(log.records, 'record')} in {counted(log.batches, 'batch', 'batches')}"
    return f"{records}; {offsets(log.start_offset, log.end_offset)}{groups}"


def place_of(finding: Finding) -> str:
    if finding.position is None:
        return finding.path
    return f"{finding.path}:{finding.position}"


def and_notes(report: VerifyReport | StoreReport) -> str:
    return f", {counted(len(report.notes), 'note')}" if report.notes else ""


def writing(writers: Sequence[Member], *, ok: bool) -> str:
    """Who is at it."""
    advice = "" if ok else "; verify it again when nobody does"
    more = f" and {len(writers) - 1} more" if len(writers) > 1 else ""
    verb = "are" if more else "is"
    return f"pid {writers[0].pid} on {writers[0].host}{more} {verb} writing to it{advice}"
