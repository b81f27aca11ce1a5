"""`tailrace publish`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from math import inf
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from tailrace.cli.messages import Line, parse_message
from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.stores import StorePlace, open_queue, queue_argument, store_options
from tailrace.cli.times import parse_delay, parse_moment, parse_seconds
from tailrace.errors import ConfigError, Full, InvalidName, TailraceError
from tailrace.log.offline.words import counted
from tailrace.units import parse_size

if TYPE_CHECKING:
    from tailrace.queue.queue import Queue, Stream

__all__ = ["publish"]

_PIECE = 1 << 18  # bytes of input at a time: what is there is published together
_AT_ONCE = 1_000  # messages of a load
_SLIDE = 4096
_USUAL_SIZE = 256
_NOTHING = (None,) * 5
_MANY = 1_000  # messages from which on a rate means something
_IN_JSON = 6  # characters that a byte takes at most: \u0000
_TOLD_MOST = 1 << 16  # bytes of a JSON line besides what is published


class Portion(NamedTuple):
    """Messages, and how many bytes of input they took. Those that do not say where they come from
    are the lines behind so many of `where`."""

    lines: list[Line]
    taken: int
    where: str = ""
    number: int = 0


def _parse_headers(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> list[tuple[str, bytes]] | None:
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name.startswith("_"):
            raise click.BadParameter(f"{name!r}: names that begin with '_' are reserved")
        pairs.append((name, value.encode("utf-8", "surrogateescape")))
    return pairs or None


def _parse_size(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_size(text, "--size")


@click.command()
@queue_argument
@click.argument("value", metavar="[VALUE]", required=False)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Publish what is in a file, as one message; with --json its lines.",
)
@click.option("--key", metavar="KEY", help="The key.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_parse_headers,
    metavar="NAME=VALUE",
    help="A header.",
)
@click.option("--routing-key", default="", metavar="KEY", help="What filters go by: eu/images.")
@click.option("--message-id", metavar="ID", help="The publisher's name for it.")
@click.option("--ttl", callback=parse_seconds, metavar="DURATION", help="How long it lives.")
@click.option("--delay", callback=parse_delay, metavar="DURATION", help="Deliver it so much later.")
@click.option(
    "--deliver-at", callback=parse_moment, metavar="TIME", help="Deliver it at this time."
)
@click.option("--producer", metavar="ID", help="Who publishes it: with --sequence, once.")
@click.option(
    "--sequence",
    type=click.IntRange(min=0),
    metavar="N",
    help="The producer's number for it, which rises: to publish it again does nothing.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Publish so many, as a load."
)
@click.option(
    "--size",
    callback=_parse_size,
    metavar="BYTES",
    help="With --count: of this size, such as 1KiB.",
)
@store_options
@click.option(
    "--json",
    "in_json",
    is_flag=True,
    help="What is read is JSON, a message a line; and so is the report. VALUE is as it is.",
)
def publish(
    queue: str,
    value: str | None,
    files: tuple[str, ...],
    key: str | None,
    headers: list[tuple[str, bytes]] | None,
    routing_key: str,
    message_id: str | None,
    ttl: float | None,
    delay: float | None,
    deliver_at: int | None,
    producer: str | None,
    sequence: int | None,
    count: int | None,
    size: int | None,
    store: StorePlace,
    in_json: bool,
) -> None:
    """Publish messages to a queue.

    VALUE is a message. Without it, or with -, each line of standard input is one. With --json each
    line is an object with value (or value_base64, for bytes), key, headers, routing_key, id and
    ttl: the lines that read, consume, peek, dead and delayed write; producer and sequence, too, are
    taken. Headers whose names begin with _ are left out: they are about the message that it was. A
    VALUE is the message itself, also with --json. When it has said how many were
    published, they are as durable as the queue's flush mode promises.

    \b
    Examples:
      tailrace publish orders 'two cups' --key customer-7 --header source=web
      seq 1000000 | tailrace publish numbers -
      tailrace read a --json | jq -c '.key = "k"' | tailrace publish b --json
      tailrace publish load --count 100000 --size 1KiB
    """
    pattern = Line(
        None,
        None if key is None else os.fsencode(key),
        headers,
        routing_key,
        message_id,
        ttl,
        delay,
        deliver_at,
        producer,
        sequence,
    )
    _check_usage(pattern, value, files, count, size, in_json)
    with open_queue(store, queue) as (_, opened), progress_bar("publish") as progress:
        publisher = _Publisher(opened, keep_ids=in_json)
        portions, total = _portions(pattern, value, files, count, size, in_json, publisher)
        done = 0
        try:
            for portion in portions:
                publisher.put(portion)
                done += portion.taken
                if progress is not None:
                    progress(done, total)
        except BaseException:  # Ctrl-C, too: what was published stays so
            if publisher.count:
                click.echo(publisher.describe(), err=True)
            raise
    if in_json:
        print_json(publisher.report())
    else:
        click.echo(publisher.describe())


def _check_usage(
    pattern: Line,
    value: str | None,
    files: tuple[str, ...],
    count: int | None,
    size: int | None,
    in_json: bool,
) -> None:
    if sum((value is not None, bool(files), size is not None)) > 1:
        raise click.UsageError("VALUE, --file and --size exclude each other")
    if size is not None and count is None:
        raise click.UsageError("--size goes with --count")
    if count is not None and (files or value == "-"):
        raise click.UsageError("--count goes with VALUE or --size")
    is_read = value in (None, "-") and count is None
    if in_json and is_read and pattern != Line(None):
        raise click.UsageError("with --json everything is in the lines")
    if pattern.delay is not None and pattern.deliver_at is not None:
        raise click.UsageError("--delay and --deliver-at exclude each other")
    is_one = (value not in (None, "-") and count is None) or len(files) == 1
    if pattern.id is not None and not is_one:
        raise click.UsageError("--message-id goes with one message")
    if (pattern.producer is None) != (pattern.sequence is None):
        raise click.UsageError("--producer and --sequence go together")
    if pattern.producer is not None and not is_one:
        raise click.UsageError("--producer and --sequence go with one message")
    if value is None and not files and count is None and sys.stdin.isatty():
        raise click.UsageError("give a VALUE, or - to type messages, one a line")


# --- where messages come from ---------------------------------------------------------------


def _portions(
    pattern: Line,
    value: str | None,
    files: tuple[str, ...],
    count: int | None,
    size: int | None,
    in_json: bool,
    publisher: _Publisher,
) -> tuple[Iterable[Portion], int | None]:
    """The messages, and how many bytes of input there are, if that is known. The publisher refuses
    those that are too large, before there is memory for them."""
    if count is not None:
        given = None if value is None else os.fsencode(value)
        length = len(given) if given is not None else _USUAL_SIZE if size is None else size
        publisher.check_size(length)
        return _load(pattern, given, count, length), count * length
    if files:
        total = sum(os.path.getsize(file) for file in files)
        return _from_files(pattern, files, in_json, publisher), total
    if value not in (None, "-"):
        assert value is not None
        return [Portion([pattern._replace(value=os.fsencode(value))], 0)], None
    source = sys.stdin.buffer
    return _from_lines(pattern, source, "line", in_json, publisher), _size_of(source)


def _load(pattern: Line, given: bytes | None, count: int, size: int) -> Iterator[Portion]:
    """Messages of a size, each of them a bit different."""
    pool = os.urandom(size + _SLIDE) if given is None else b""
    at_once = max(min(_AT_ONCE, (1 << 20) // max(size, 1)), 1)
    for first in range(0, count, at_once):
        slides = (n % _SLIDE for n in range(first, min(first + at_once, count)))
        lines = [
            pattern._replace(value=pool[n : n + size] if given is None else given) for n in slides
        ]
        yield Portion(lines, len(lines) * size)


def _from_files(
    pattern: Line, files: tuple[str, ...], in_json: bool, publisher: _Publisher
) -> Iterator[Portion]:
    for path in files:
        with open(path, "rb") as file:
            if in_json:
                yield from _from_lines(pattern, file, f"{path}, line", in_json, publisher)
            else:
                try:
                    publisher.check_size(_size_of(file) or 0)
                except Full as error:
                    raise Full(f"{path}: {error}") from None
                data = file.read()
                yield Portion([pattern._replace(value=data, where=path)], len(data))


def _from_lines(
    pattern: Line, source: IO[bytes], where: str, in_json: bool, publisher: _Publisher
) -> Iterator[Portion]:
    """What is there, as soon as it is there: whoever writes to a pipe need not fill it first. Of a
    line that has no end in sight not more is held than a message may be."""
    read = getattr(source, "read1", source.read)
    begun: list[bytes] = []  # pieces of a line whose end has not come
    size, number = 0, 0
    while data := read(_PIECE):
        piece, *others = data.split(b"\n")
        begun.append(piece)
        size += len(piece)
        if others:
            texts = [b"".join(begun), *others[:-1]]
            yield from _parsed(pattern, texts, where, number, in_json)
            number += len(texts)
            begun, size = others[-1:], len(others[-1])
        try:
            publisher.check_begun(size, in_json)
        except Full as error:
            raise Full(f"{where} {number + 1}, as far as it was read: {error}") from None
    if size:
        yield from _parsed(pattern, [b"".join(begun)], where, number, in_json)


def _parsed(
    pattern: Line, texts: list[bytes], where: str, number: int, in_json: bool
) -> Iterator[Portion]:
    """The messages in some lines; those before a wrong one come first."""
    taken = sum(map(len, texts)) + len(texts)
    if not in_json:
        lines = [pattern._replace(value=text) for text in texts]
        yield Portion(lines, taken, where, number)
        return
    now_ms, lines = time.time_ns() // 1_000_000, []
    for index, text in enumerate(texts, 1):
        if text.strip():
            try:
                place = f"{where} {number + index}"
                lines.append(parse_message(text, now_ms, place))
            except TailraceError as error:
                yield Portion(lines, 0)
                raise TailraceError(f"{place}: {error}") from None
    yield Portion(lines, taken)


def _size_of(source: IO[bytes]) -> int | None:
    try:
        found = os.fstat(source.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


# --- where they go --------------------------------------------------------------------------


class _Publisher:
    """Publishes in portions, and knows what it has published."""

    def __init__(self, queue: Queue | Stream, *, keep_ids: bool) -> None:
        self._queue = queue
        self._keep_ids = keep_ids  # those between the first and the last, too
        self._began = time.monotonic()
        self.count = 0
        self._first: int | None = None
        self._last: int | None = None
        self._delayed = 0
        self._delay_ids: list[str] = []
        self._receipts: dict[bool, Any] = {}  # the last ones: what is delayed waits elsewhere

    def check_size(self, size: int) -> None:
        """`Full` if a message of so many bytes is too large in any case, compressed or not."""
        from tailrace.kernel import MAX_SECTION, TooLarge
        from tailrace.queue.inputs import no_batch_holds
        from tailrace.queue.values import exceeds

        settings = self._queue.settings
        if size > settings.limits.max_message_size > 0:
            raise exceeds(size, settings)
        if size > MAX_SECTION:
            raise no_batch_holds(settings.name, TooLarge("", size, settings.max_batch_bytes))

    def check_begun(self, size: int, in_json: bool) -> None:
        """`Full` if a line that begins with so many bytes is too large in any case."""
        if not in_json:
            self.check_size(size)
        elif size > _TOLD_MOST:
            from tailrace.kernel import MAX_SECTION

            options = self._queue.log.options
            largest = MAX_SECTION if options.codec else options.max_batch_bytes
            if size > _TOLD_MOST + _IN_JSON * largest:
                raise Full(
                    f"a line of {size:,} bytes is more than any message of the queue "
                    f"{self._queue.name!r} takes in JSON: max_batch_bytes is "
                    f"{options.max_batch_bytes:,}"
                )

    def put(self, portion: Portion) -> None:
        """When this returns they are durable, as the queue promises. Those that have the same
        routing key and the same life, and no name of their own, are one batch."""
        limit = self._limit
        lines = portion.lines
        if portion.where and any(_size(line) > limit for line in lines):
            lines = [
                line._replace(where=f"{portion.where} {number}")
                for number, line in enumerate(lines, portion.number + 1)
            ]
        try:
            for kind, run in groupby(lines, lambda line: _kind(line, limit)):
                if kind is None:
                    for line in run:
                        self._put_one(line)
                else:
                    self._put_same(list(run), *kind)
        finally:  # what came before an error is said to be published
            self._wait()

    def _wait(self) -> None:
        """Until what was published so far is durable."""
        for receipt in self._receipts.values():
            receipt.wait()
        self._receipts.clear()

    def _put_same(self, lines: list[Line], routing_key: str, ttl: float | str | None) -> None:
        """In one batch, unless the queue has no room for all of them: then as many go in as there
        is room for, and the others when there is. So it makes no difference how many come at
        once."""
        values = list(map(_value, lines))
        done, most = 0, self._queue.settings.limits.max_depth or len(values)
        while done < len(values):
            some = values[done : done + most]
            publish = partial(
                self._queue.publish_many, some, routing_key=routing_key, ttl=ttl, wait=False
            )
            try:
                with _telling_where(lines[done]):  # what they share may be wrong
                    is_one = len(some) == 1
                    receipt = self._wait_for_room(publish) if is_one else publish(block=False)
            except Full as error:
                if is_one or not error.of_depth:
                    raise
                most = len(some) // 2
                continue
            self._note(receipt.offset, receipt.end_offset, len(some))
            self._receipts[False] = receipt
            done, most = done + len(some), 2 * most

    def _wait_for_room(self, publish: Callable[..., Any]) -> Any:
        """If publishers are to wait for it. Whoever is to make it sees only what is durable."""
        try:
            return publish(block=False)
        except Full as error:
            if not error.may_wait:
                raise
        self._wait()
        return publish(block=True)

    @property
    def _limit(self) -> float:
        """A message that is larger may be too large, and is published alone."""
        settings = self._queue.settings
        return min(settings.limits.max_message_size or inf, settings.max_batch_bytes // 2)

    def _put_one(self, line: Line) -> None:
        later: dict[str, Any] = {"delay": line.delay, "deliver_at": line.deliver_at}
        later = {name: value for name, value in later.items() if value is not None}
        with _telling_where(line, self._limit):
            publish: Callable[..., Any] = partial(
                self._queue.publish,
                line.value,
                key=line.key,
                routing_key=line.routing_key,
                headers=line.headers,
                message_id=line.id,
                ttl=line.ttl,
                producer=line.producer,
                sequence=line.sequence,
                wait=False,
                **later,
            )
            receipt = self._wait_for_room(publish)
        if later:
            self.count += 1
            self._delayed += 1
            if not self._keep_ids:
                del self._delay_ids[1:]
            self._delay_ids.append(receipt.delay_id)
        else:
            self._note(receipt.offset, receipt.end_offset, 1)
        self._receipts[bool(later)] = receipt

    def _note(self, first: int, behind: int, count: int) -> None:
        self.count += count
        self._first = first if self._first is None else self._first
        self._last = behind - 1

    def report(self) -> dict[str, object]:
        report: dict[str, object] = {
            "type": "published",
            "queue": self._queue.name,
            "count": self.count,
            "first_offset": self._first,
            "last_offset": self._last,
            "seconds": round(time.monotonic() - self._began, 6),
        }
        return {**report, "delay_ids": self._delay_ids} if self._delayed else report

    def describe(self) -> str:
        seconds = time.monotonic() - self._began
        text = f"published {counted(self.count, 'message')} to {self._queue.name}"
        if self._first is not None and self._last is not None:
            is_one = self.count - self._delayed == 1
            one = f", offset {self._first}"
            text += one if is_one else f", offsets {self._first} to {self._last}"
        if self._delayed == 1:
            text += f", delay id {self._delay_ids[0]}"
        elif self._delayed:
            first, last = self._delay_ids[0], self._delay_ids[-1]
            text += f", {self._delayed} to come later: delay ids {first} … {last}"
        if self.count >= _MANY:
            text += f"; {self.count / max(seconds, 1e-6):,.0f} a second"
        return text


@contextmanager
def _telling_where(line: Line, limit: float = inf) -> Iterator[None]:
    """What is wrong with a message is told with its place; what is wrong with the store is not."""
    try:
        yield
    except (ConfigError, InvalidName) as error:
        if not line.where:
            raise
        raise type(error)(f"{line.where}: {error}") from None
    except Full as error:
        if not line.where or _size(line) <= limit:  # there is no room for any
            raise
        raise Full(f"{line.where}: {error}") from None
    except ValueError as error:  # a time that no calendar has, or a producer without a sequence
        raise TailraceError(f"{line.where}: {error}" if line.where else str(error)) from None


def _kind(line: Line, limit: float) -> tuple[str, float | str | None] | None:
    """What messages of one batch share; `None` if it is to be published alone. So is one that may
    be too large, so that it is named, and what is before it is published, and counted."""
    its_own = (line.id, line.delay, line.deliver_at, line.producer, line.sequence)
    if its_own != _NOTHING or _size(line) > limit:
        return None
    return line.routing_key, line.ttl


def _size(line: Line) -> int:
    size = len(line.value or b"") + len(line.key or b"")
    if line.headers is not None:
        size += sum(len(name) + len(value) for name, value in line.headers)
    return size


def _value(line: Line) -> Any:
    if line.headers is not None:
        return line.key, line.value, line.headers
    return line.value if line.key is None else (line.key, line.value)
