"""`tailrace spark verify`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from tailrace.cli import verify as one_log
from tailrace.cli import verify_store as whole_store
from tailrace.cli.jobs import Job, job_options
from tailrace.cli.places import check_path, find_log, find_store
from tailrace.cli.stores import StorePlace, store_options

__all__ = ["verify"]


@click.command()
@click.argument("directory", metavar="[DIR]", callback=check_path, required=False)
@store_options
@job_options
@click.pass_context
def verify(context: click.Context, directory: str | None, store: StorePlace, job: Job) -> None:
    """Check every checksum of a store, or of a log, in parallel.

    DIR is a store, or the folder of a log; without it, it is the store that --store names. It is
    what `tailrace verify` does: the same findings, with the file and the position of each damage,
    and the same exit codes, 0 without a problem, 1 with one, 2 if it cannot be read. Segments are
    read by tasks; the files of groups, and all others, here. Nothing is changed.

    \b
    Examples:
      tailrace spark verify
      tailrace spark verify data --report verified.json
      tailrace spark verify /shared/data --master spark://host:7077
    """
    from tailrace.spark.jobs.verify import verify_log, verify_store

    given = directory or store.path
    root = find_store(given)
    with job.run("verify") as means:
        if root is not None:
            report, running = verify_store(root, means)
            document = _document(whole_store.items(report))
            print_text = partial(whole_store.print_text, report)
            is_ok = report.ok
        else:
            log, running = verify_log(find_log(given), means)
            document = _document(one_log.items(log))
            print_text = partial(one_log.print_text, log)
            is_ok = log.ok
    job.write(document, running, print_text)
    context.exit(0 if is_ok else 1)


def _document(items: Iterator[dict[str, object]]) -> dict[str, Any]:
    """The lines of `tailrace verify --json` as one."""
    lists: dict[object, list[dict[str, object]]] = {"finding": [], "queue": [], "group": []}
    for item in items:
        kind = item.pop("type")
        if kind == "report":
            return {
                "type": "report",
                "job": "verify",
                **item,
                "findings": lists["finding"],
                "by_queue": lists["queue"],
                "by_group": lists["group"],
            }
        lists[kind].append(item)
    raise AssertionError("there is no report")
