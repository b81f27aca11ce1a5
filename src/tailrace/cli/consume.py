"""`tailrace consume`."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import click

from tailrace.cli.counts import Count
from tailrace.cli.lazy import forget_stdout
from tailrace.cli.messages import describe_message, message_item
from tailrace.cli.output import write_json
from tailrace.cli.signals import Stopped, Stopping
from tailrace.cli.stores import (
    StorePlace,
    complete_group,
    open_queue,
    queue_argument,
    store_options,
)
from tailrace.cli.times import parse_seconds
from tailrace.errors import LeaseLost, TailraceError

if TYPE_CHECKING:
    from tailrace.queue.consumer import Consumer, StreamConsumer
    from tailrace.queue.message import Message
    from tailrace.queue.queue import Queue, Stream

__all__ = ["consume"]

_AT_ONCE = 100  # messages that are written out together, and acknowledged together


@click.command()
@queue_argument
@click.option(
    "--group",
    "-g",
    required=True,
    shell_complete=complete_group,
    metavar="GROUP",
    help="The group, which is made if it is not there.",
)
@click.option("--filter", "pattern", default="", metavar="FILTER", help="Of routing keys: eu/#.")
@click.option(
    "--ack/--no-ack",
    default=True,
    help="Acknowledge what was written out (the default), or give it all back in the end.",
)
@click.option(
    "--max",
    "limit",
    type=Count(min=1),
    metavar="N",
    help="Stop after N. Without --wait it waits until N have come, for ever if need be.",
)
@click.option(
    "--wait",
    callback=parse_seconds,
    metavar="DURATION",
    help="Stop when nothing has come for so long; 0 takes what is there.  [default: never]",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this for each message, with its value as input; acknowledge it if it succeeds.",
)
@click.option("--values", is_flag=True, help="Write the values alone, each with a newline.")
@store_options
@click.option("--json", "in_json", is_flag=True, help="Write one JSON object per line.")
@click.pass_context
def consume(
    context: click.Context,
    queue: str,
    group: str,
    pattern: str,
    ack: bool,
    limit: int | None,
    wait: float | None,
    command: str | None,
    values: bool,
    store: StorePlace,
    in_json: bool,
) -> None:
    """Take messages from a queue, as a consumer of a group.

    A message is acknowledged after it was written out, never before: when you stop it with Ctrl-C,
    or whoever reads the output goes away, what was not written is given back at once.

    Without --wait it goes on until you stop it, and with --max until so many have come. To take up
    to N of those that are there: --max N --wait 0.

    --exec runs a command of the shell for each message, one after the other, and keeps the lease as
    long as it runs. If it fails, the message is tried again as the queue's settings say, and ends
    among the dead letters. Its environment has TAILRACE_QUEUE, TAILRACE_OFFSET, TAILRACE_KEY,
    TAILRACE_ROUTING_KEY, TAILRACE_MESSAGE_ID, TAILRACE_ID and TAILRACE_DELIVERY_COUNT.

    \b
    Examples:
      tailrace consume orders --group workers --wait 0
      tailrace consume orders --group workers --max 10 --wait 0
      tailrace consume orders -g audit --json | jq .value
      tailrace consume jobs -g workers --exec 'sh ./handle-job'
    """
    if values and in_json:
        raise click.UsageError("--values and --json exclude each other")
    if command is not None and (values or in_json or not ack):
        raise click.UsageError("--exec takes none of --values, --json and --no-ack")
    write = _write_value if values else _write_json(group) if in_json else _write_text
    with Stopping() as stopping:
        try:
            with ExitStack() as stack:
                with stopping.allowed():  # there may be much to see to
                    _, opened = stack.enter_context(open_queue(store, queue, upkeep=True))
                    consumer = _consumer(opened, group, pattern)
                    stack.enter_context(consumer)
                worker = _Worker(consumer, stopping, limit, wait)
                if command is not None:
                    job = _Job(command, stopping)
                    worker.run(lambda batch: _execute(batch[0], consumer, job), at_once=1)
                elif ack:
                    worker.run(lambda batch: _write_and_ack(batch, consumer, write, stopping))
                else:
                    _show(worker, opened, consumer, lambda b: _write_all(b, write, stopping))
        except Stopped as stopped:
            context.exit(stopped.code)


def _consumer(queue: Queue | Stream, group: str, pattern: str) -> Consumer | StreamConsumer:
    from tailrace.queue.queue import Stream

    if isinstance(queue, Stream):
        return queue.consumer(group, filter=pattern, auto_commit=False)
    return queue.consumer(group, filter=pattern)


class _Job(NamedTuple):
    """What to run, and who may stop it."""

    command: str
    stopping: Stopping


class _Worker:
    """Receives, up to a number of messages, or until none comes."""

    def __init__(
        self,
        consumer: Consumer | StreamConsumer,
        stopping: Stopping,
        limit: int | None,
        wait_s: float | None,
    ) -> None:
        self._consumer = consumer
        self._stopping = stopping
        self._limit = limit
        self._wait_s = wait_s
        self._count = 0

    def run(self, handle: Callable[[list[Message]], None], *, at_once: int = _AT_ONCE) -> None:
        while batch := self.receive(self._wait_s, at_once):
            handle(batch)

    def receive(self, wait_s: float | None, at_once: int = _AT_ONCE) -> list[Message]:
        """Once it is open, only here it may be stopped. What was received by then the store gives
        back."""
        if self.is_done:
            return []
        if self._limit is not None:
            at_once = min(at_once, self._limit - self._count)
        with self._stopping.allowed():
            batch = self._consumer.receive(at_once, wait_s)
        self._count += len(batch)
        return batch

    @property
    def is_done(self) -> bool:
        return self._limit is not None and self._count >= self._limit

    @property
    def wait_s(self) -> float | None:
        return self._wait_s


# --- to write them out ----------------------------------------------------------------------


def _write_value(message: Message) -> None:
    sys.stdout.buffer.write((message.value or b"") + b"\n")


def _write_json(group: str) -> Callable[[Message], None]:
    def write(message: Message) -> None:
        count = message.delivery_count
        write_json(message_item(message, group=group, delivery_count=count))

    return write


def _write_text(message: Message) -> None:
    click.echo(describe_message(message))


def _write_all(batch: list[Message], write: Callable[[Message], None], stopping: Stopping) -> None:
    """Whoever reads may let us wait for ever, so here, too, we may be stopped."""
    try:
        with stopping.allowed():
            for message in batch:
                write(message)
            sys.stdout.flush()
    except BaseException as error:
        for message in batch:  # nobody has seen them, for all that we know
            with contextlib.suppress(TailraceError, OSError):
                message.release()
        if isinstance(error, Stopped):
            forget_stdout()
        raise


def _write_and_ack(
    batch: list[Message],
    consumer: Consumer | StreamConsumer,
    write: Callable[[Message], None],
    stopping: Stopping,
) -> None:
    _write_all(batch, write, stopping)
    try:
        _done(batch, consumer)
    except LeaseLost as error:  # writing took too long
        click.echo(f"tailrace: {error}", err=True)


def _done(batch: list[Message], consumer: Consumer | StreamConsumer) -> None:
    from tailrace.queue.consumer import StreamConsumer

    if isinstance(consumer, StreamConsumer):
        consumer.commit()
    else:
        consumer.ack(batch)


def _show(
    worker: _Worker,
    queue: Queue | Stream,
    consumer: Consumer | StreamConsumer,
    write_all: Callable[[list[Message]], None],
) -> None:
    """Write them out, and keep them until the end, so that none comes twice; then give them
    back."""
    from tailrace.queue.consumer import Consumer

    held: list[Message] = []
    beat_s = queue.settings.visibility_timeout_ms / 3000
    last_s = time.monotonic()
    try:
        while not worker.is_done:
            wait_s = worker.wait_s
            left_s = None if wait_s is None else last_s + wait_s - time.monotonic()
            batch = worker.receive(beat_s if left_s is None else min(beat_s, max(left_s, 0)))
            write_all(batch)
            held += batch
            if batch:
                last_s = time.monotonic()
            elif left_s is not None and left_s <= beat_s:
                break
            if held and isinstance(consumer, Consumer):
                with contextlib.suppress(LeaseLost):
                    consumer.extend(held)
    finally:
        if isinstance(consumer, Consumer):
            with contextlib.suppress(LeaseLost):
                consumer.release(held)


# --- to have them worked on -----------------------------------------------------------------


def _execute(message: Message, consumer: Consumer | StreamConsumer, job: _Job) -> None:
    """Run a command for a message. If we are to stop, it is told, and its message given back unless
    it succeeds all the same."""
    sys.stdout.flush()
    try:
        with message.auto_extend():
            error = _run(message, job)
    except BaseException:
        with contextlib.suppress(LeaseLost):
            message.release()
        raise
    try:
        if not error:
            _done([message], consumer)
        elif job.stopping.is_stopping():
            message.release()
        else:
            _failed(message, consumer, f"{job.command}: {error}")
    except LeaseLost as lost:
        click.echo(f"tailrace: {lost}", err=True)


def _failed(message: Message, consumer: Consumer | StreamConsumer, error: str) -> None:
    from tailrace.queue.consumer import StreamConsumer

    if isinstance(consumer, StreamConsumer):  # nothing is tried again there: a person has to look
        raise TailraceError(
            f"{message.message_id}: {error}; the group {consumer.group!r} has not gone on after it"
        )
    click.echo(f"tailrace: {message.message_id}: {error}", err=True)
    message.nack(error=error)


def _run(message: Message, job: _Job) -> str:
    """What went wrong, if anything did. A message that cannot be handed over has failed like one
    that the command refused: the next may do."""
    from tailrace.queue.message import given_id

    environment = {
        "TAILRACE_QUEUE": message.queue,
        "TAILRACE_OFFSET": str(message.offset),
        "TAILRACE_KEY": os.fsdecode(message.key or b""),
        "TAILRACE_ROUTING_KEY": message.routing_key,
        "TAILRACE_MESSAGE_ID": message.message_id,
        "TAILRACE_ID": given_id(message.record) or "",
        "TAILRACE_DELIVERY_COUNT": str(message.delivery_count),
    }
    told = {name: value.replace("\0", "") for name, value in environment.items()}
    try:
        process = subprocess.Popen(
            job.command, shell=True, stdin=subprocess.PIPE, env={**os.environ, **told}
        )
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        longest = max(told, key=lambda name: len(told[name]))
        size = len(os.fsencode(told[longest]))
        return f"{longest} would be {size:,} bytes: {error.strerror}"
    with process:
        job.stopping.pass_on = process.send_signal
        try:
            process.communicate(message.value or b"")  # one that reads nothing is fine
        finally:
            job.stopping.pass_on = None
        return _ended(process.returncode)


def _ended(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status}"
    return f"exit status {status}" if status else ""
