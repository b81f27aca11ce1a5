"""`tailrace sql`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.output import progress_bar
from tailrace.cli.signals import Insisting, Terminated
from tailrace.cli.sparks import errors_of_spark, spark_options, watched
from tailrace.cli.stores import StorePlace, look_at_store, store_options
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tailrace.queue.settings import QueueSettings

__all__ = ["sql"]

_SHOWN = 20
_PARQUET = "parquet:"


def _parse_output(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is None or text in ("table", "csv", "json"):
        return text
    if text.startswith(_PARQUET) and text != _PARQUET:
        return text
    raise click.BadParameter(f"{text!r} is not table, csv, json or {_PARQUET}PATH")


def _parse_archives(
    _: click.Context, __: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    found = {}
    for pair in pairs:
        queue, equals, folder = pair.partition("=")
        if not (queue and equals and folder):
            raise click.BadParameter(f"{pair!r} is not QUEUE=DIR")
        found[queue] = folder
    return found


def _find_archives(
    path: str, queues: Mapping[str, QueueSettings], given: dict[str, str]
) -> dict[str, str]:
    """Of the queues that have one. What was given is checked, whether the statement reads it or
    not."""
    from tailrace.log.fs import OsFileSystem
    from tailrace.spark.lake.manifest import Manifest
    from tailrace.spark.lake.together import archive_of
    from tailrace.spark.planning import Place

    for queue, folder in given.items():
        if queue not in queues:
            raise TailraceError(f"--archive: there is no queue {queue!r} in {path}")
        try:
            origin = Manifest.load(OsFileSystem(), folder).origin
            origin.check_is(queue, queues[queue].incarnation, folder)
        except TailraceError as error:
            raise TailraceError(f"--archive {queue}={folder}: {error}") from error
    place = Place(path)
    found = {queue: archive_of(place, queue, given) for queue in queues}
    known = {queue: folder for queue, folder in found.items() if folder is not None}
    if not known:
        raise TailraceError("no queue knows of an archive; name its folder: --archive QUEUE=DIR")
    return known


@click.command()
@click.argument("statement", metavar="STATEMENT")
@click.option(
    "--output",
    callback=_parse_output,
    metavar="WHAT",
    help="table, csv, json, or parquet:PATH for a new folder.  [default: table]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Write N rows at most.  [default: {_SHOWN} of a table, else all]",
)
@spark_options
@click.option(
    "--include-archive",
    is_flag=True,
    help="Also what was archived, and is deleted in the queue.",
)
@click.option(
    "--archive",
    "archives",
    multiple=True,
    callback=_parse_archives,
    metavar="QUEUE=DIR",
    help="Where the archive of a queue is, if it does not know; implies --include-archive.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
def sql(
    statement: str,
    output: str | None,
    limit: int | None,
    master: str | None,
    conf: dict[str, str],
    include_archive: bool,
    archives: dict[str, str],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Run a statement of SQL over the queues of a store, with Spark.

    Each queue is a table of its name, with the columns key, value, topic, partition, offset,
    timestamp, timestampType, headers, queue, routing_key, message_id and expires_at. A name with
    other characters than letters, digits and _ is put in backticks. Nothing is locked. Spark takes
    some seconds to start; it needs Java, and pip install 'tailrace[spark]'.

    \b
    Examples:
      tailrace sql "SELECT key, count(*) FROM orders GROUP BY key"
      tailrace sql "SELECT value FROM orders ORDER BY offset DESC" --limit 5
      tailrace sql 'SELECT * FROM `$dlq/orders`' --json | jq .value
      tailrace sql "SELECT * FROM events" --output parquet:events-of-may
      tailrace sql "SELECT count(*) FROM orders" --archive orders=archive/orders
    """
    if as_json and output not in (None, "json"):
        raise click.UsageError("--json and --output exclude each other")
    wanted = "json" if as_json else output or "table"
    folder = wanted.removeprefix(_PARQUET) if wanted.startswith(_PARQUET) else None
    if folder is not None:
        from tailrace.cli.sql_output import check_place

        check_place(folder)
    with look_at_store(store) as look:
        queues = look.queues()
        path = os.path.abspath(store.path)
    errors = errors_of_spark()
    from tailrace.spark.session import local_session
    from tailrace.spark.statements import describe, query, quietly

    if include_archive or archives:
        archives = _find_archives(path, queues, archives)
    with quietly(), Insisting():
        try:
            before = signal.getsignal(signal.SIGINT)
            with progress_bar("start Spark", unit=""):
                spark = local_session(master, conf)
            signal.signal(signal.SIGINT, before)  # Spark's asks the JVM, in the middle of an answer
            with watched(spark, "plan"):
                found = query(spark, path, sorted(queues), statement, archives)
            _write(found, wanted, folder, limit)
        except errors as error:
            raise TailraceError(describe(error)) from error
        except KeyboardInterrupt as error:
            is_term = isinstance(error, Terminated)
            click.echo(f"tailrace: {'terminated' if is_term else 'interrupted'}", err=True)
            raise


def _write(found: DataFrame, wanted: str, folder: str | None, limit: int | None) -> None:
    from tailrace.cli import sql_output
    from tailrace.cli.sql_table import print_rows

    if not found.columns:  # a command that has nothing to say
        return
    spark = found.sparkSession
    if folder is not None:
        with watched(spark, "query"):
            count = sql_output.write_parquet(found if limit is None else found.limit(limit), folder)
        rows = "" if count is None else f"{count:,} row{'' if count == 1 else 's'} "
        click.echo(f"wrote {rows}to {folder}")
    elif wanted == "table":
        shown = limit or _SHOWN
        with watched(spark, "query"):
            first: list[Any] = sql_output.with_told_times(found.limit(shown + 1)).collect()
        print_rows(found.schema, first[:shown])
        if len(first) > shown:
            rows = "row" if shown == 1 else f"{shown:,} rows"
            more = "--limit N shows more, --output csv or json shows all"
            click.echo(f"showing the first {rows}; {more}", err=True)
    else:
        found = found if limit is None else found.limit(limit)
        write = sql_output.write_csv if wanted == "csv" else sql_output.write_json
        with contextlib.closing(_rows(sql_output.with_told_times(found))) as told:
            write(found.schema, told, sys.stdout)


def _rows(told: DataFrame) -> Generator[Any]:
    """Who sees rows come needs no bar beside them."""
    is_seen = sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        stack.enter_context(watched(told.sparkSession, "query"))
        for row in told.toLocalIterator(prefetchPartitions=True):
            if is_seen:
                stack.close()
            yield row
