"""`tailrace read`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import click

from tailrace.cli.dump_text import describe_record
from tailrace.cli.output import print_json, record_item
from tailrace.cli.places import find_log
from tailrace.kernel import Record
from tailrace.log.log import Log, Start

__all__ = ["read"]


def _parse_start(_: click.Context, __: click.Parameter, text: str | None) -> Start | None:
    """An offset, or the name of a place."""
    if text is None or text == "first" or text == "last" or text == "next":
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return int(text)
    raise click.BadParameter(f"{text!r} is not an offset, nor first, last or next")


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--start",
    callback=_parse_start,
    metavar="WHERE",
    help="Begin at this offset, or at first, last or next.  [default: first]",
)
@click.option("--end", type=click.IntRange(min=0), metavar="OFFSET", help="Stop before it.")
@click.option(
    "--timestamp",
    type=int,
    metavar="MS",
    help="Begin at the first record at or after it, in milliseconds since 1970.",
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Go on as records are appended.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --follow: stop when nothing has come for so long.",
)
@click.option("--values", is_flag=True, help="Write the values alone, each with a newline.")
@click.option("--json", "in_json", is_flag=True, help="Write one JSON object per line.")
def read(
    directory: str,
    start: Start | None,
    end: int | None,
    timestamp: int | None,
    limit: int | None,
    follow: bool,
    timeout: float | None,
    values: bool,
    in_json: bool,
) -> None:
    """Write out the records of a log, and those to come.

    DIR is the folder with the .seg files, or one that has it as `segments`. Nothing is locked, so
    it may be read while others write to it.

    \b
    Examples:
      tailrace read data/orders --start last
      tailrace read data/orders --start next --follow --json | jq .value
    """
    if timeout is not None and not follow:
        raise click.UsageError("--timeout goes with --follow")
    if values and in_json:
        raise click.UsageError("--values and --json exclude each other")
    if start is not None and timestamp is not None:
        raise click.UsageError("--start and --timestamp exclude each other")
    with Log(find_log(directory), read_only=True) as log:
        begin: Start = "first" if start is None else start
        records: Iterator[Record]
        if follow:
            records = log.read(begin, end, timestamp=timestamp, follow=True, timeout=timeout)
        else:
            records = log.read(begin, end, timestamp=timestamp)
        write = _write_value if values else _write_json if in_json else _write_text
        for record in islice(records, limit):
            write(record)
            if follow:
                sys.stdout.flush()


def _write_value(record: Record) -> None:
    sys.stdout.buffer.write((record.value or b"") + b"\n")


def _write_json(record: Record) -> None:
    print_json(record_item(record))


def _write_text(record: Record) -> None:
    click.echo(describe_record(record_item(record)))
