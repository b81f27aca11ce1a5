"""`tailrace read`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import click

from tailrace.cli.counts import Count
from tailrace.cli.dump_text import describe_record
from tailrace.cli.output import record_item, write_json
from tailrace.cli.places import find_log, is_log
from tailrace.cli.stores import StorePlace, complete_queue, is_queue, look_at_store, store_options
from tailrace.cli.times import parse_seconds, parse_time
from tailrace.kernel import Record
from tailrace.log.log import Log, Start

__all__ = ["read"]

_BETWEEN_LOOKS_S = 0.1


class _Since(NamedTuple):
    """The place of the first record at or after a time."""

    timestamp: int


def _parse_start(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Start | _Since | None:
    """An offset, the name of a place, or a time."""
    if text is None or text == "first" or text == "last" or text == "next":
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return int(text)
    name, equals, time = text.partition("=")
    if name == "timestamp" and equals:
        timestamp = parse_time(context, parameter, time)
        assert timestamp is not None
        return _Since(timestamp)
    raise click.BadParameter(
        f"{text!r} is not an offset, nor first, last or next, nor a time such as "
        "timestamp=2026-01-31T09:00Z"
    )


@click.command()
@click.argument("place", metavar="QUEUE|DIR", shell_complete=complete_queue)
@click.option(
    "--start",
    callback=_parse_start,
    metavar="WHERE",
    help="Begin at this offset, or at the first record, the last, or the next to come: first, last "
    "or next; or, with timestamp=TIME, as --timestamp does.  [default: first]",
)
@click.option("--end", type=click.IntRange(min=0), metavar="OFFSET", help="Stop before it.")
@click.option(
    "--timestamp",
    callback=parse_time,
    metavar="TIME",
    help="Begin at the first record at or after it: in ISO, in milliseconds since 1970, or how "
    "long ago, such as 2h.",
)
@click.option("--limit", "--max", type=Count(min=0), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Go on as records are appended.")
@click.option(
    "--timeout",
    callback=parse_seconds,
    metavar="DURATION",
    help="With --follow: stop when nothing has come for so long, such as 5m; or in seconds.",
)
@click.option("--values", is_flag=True, help="Write the values alone, each with a newline.")
@store_options
@click.option("--json", "in_json", is_flag=True, help="Write one JSON object per line.")
def read(
    place: str,
    start: Start | _Since | None,
    end: int | None,
    timestamp: int | None,
    limit: int | None,
    follow: bool,
    timeout: float | None,
    values: bool,
    store: StorePlace,
    in_json: bool,
) -> None:
    """Write out the messages of a queue, or the records of a log, and those to come.

    QUEUE is the name of a queue in the store, of which all messages are shown, settled or not. DIR
    is a log that stands alone: the folder with the .seg files, or one that has it as `segments`; it
    comes first, unless --store is given. Nothing is locked, so it may be read while others write.

    --start last is the last record that is there, and next what comes from now on. (For a stream's
    consumer, and `queue.read` of the library, last is the same as next.)

    \b
    Examples:
      tailrace read orders --start last
      tailrace read orders --start timestamp=2026-01-31T09:00Z
      tailrace read orders --start next --follow --json | jq .value
      tailrace read a --json | tailrace publish b --json
      tailrace read some/segments --timestamp 2026-01-31T09:00Z
    """
    if timeout is not None and not follow:
        raise click.UsageError("--timeout goes with --follow")
    if values and in_json:
        raise click.UsageError("--values and --json exclude each other")
    if start is not None and timestamp is not None:
        raise click.UsageError("--start and --timestamp exclude each other")
    if isinstance(start, _Since):
        timestamp = start.timestamp
        start = None
    write: Callable[[Record], object] = _write_json if in_json else _write_text
    with contextlib.ExitStack() as stack:
        log, queue = _open(stack, place, store, timeout if follow else 0.0)
        if log is None:
            return
        if queue is not None:
            write = _message_writer(queue, in_json)
        begin: Start = "first" if start is None else start
        records: Iterator[Record]
        if follow:
            records = log.read(begin, end, timestamp=timestamp, follow=True, timeout=timeout)
        else:
            records = log.read(begin, end, timestamp=timestamp)
        try:
            for record in islice(records, limit):
                (_write_value if values else write)(record)
                if follow:
                    sys.stdout.flush()
        finally:  # what was read is out before anybody is told of an error
            sys.stdout.flush()


def _open(
    stack: contextlib.ExitStack, place: str, store: StorePlace, patience_s: float | None
) -> tuple[Log | None, str | None]:
    """The log that is meant, and the queue whose it is. Of a queue that nobody has used yet there
    is none, for which one may have patience (`None`: for ever)."""
    if not store.is_given and (is_log(place) or not is_queue(place)):
        return stack.enter_context(Log(find_log(place), read_only=True)), None
    look = stack.enter_context(look_at_store(store))
    look.settings(place)
    deadline = None if patience_s is None else time.monotonic() + patience_s
    while True:
        log = stack.enter_context(look.log(place))
        if log is not None or (deadline is not None and time.monotonic() >= deadline):
            return log, place
        time.sleep(_BETWEEN_LOOKS_S)


def _message_writer(queue: str, in_json: bool) -> Callable[[Record], object]:
    from tailrace.cli.messages import describe_message, message_item
    from tailrace.queue.message import Message

    def write(record: Record) -> None:
        message = Message(queue, record, None, 0, 0, 0)
        if in_json:
            write_json(message_item(message))
        else:
            click.echo(describe_message(message))

    return write


def _write_value(record: Record) -> None:
    sys.stdout.buffer.write((record.value or b"") + b"\n")


def _write_json(record: Record) -> None:
    write_json(record_item(record))


def _write_text(record: Record) -> None:
    click.echo(describe_record(record_item(record)))
