"""`tailrace create`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.output import print_json
from tailrace.cli.queues import queue_item
from tailrace.cli.stores import StorePlace, look_at_store, open_store, store_options
from tailrace.errors import ConfigError, InvalidName, TailraceError

if TYPE_CHECKING:
    from tailrace.queue.settings import QueueSettings

__all__ = ["create"]

_OPTIONS_OF_THEIR_OWN = {"type": "--type", "topics": "--topic"}  # not text, or not for --update


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["classic", "stream"]),
    help="A work queue, or a stream.  [default: classic]",
)
@click.option("--topic", "topics", multiple=True, metavar="FILTER", help="Bind it to this topic.")
@click.option(
    "--flush",
    type=click.Choice(["sync", "async", "none"]),
    help="What publishing and settling wait for.  [default: sync]",
)
@click.option("--visibility-timeout", metavar="DURATION", help="How long a lease is.")
@click.option("--max-retries", metavar="N", help="How often to try again; or unlimited.")
@click.option("--message-ttl", metavar="DURATION", help="How long a message lives.")
@click.option("--max-message-size", metavar="SIZE", help="Refuse what is larger, such as 1MiB.")
@click.option("--max-depth", type=click.IntRange(min=0), metavar="N", help="Messages it holds.")
@click.option(
    "--on-full",
    type=click.Choice(["raise", "block", "drop_oldest"]),
    help="What publishing does when it is full.",
)
@click.option("--max-age", metavar="DURATION", help="Delete what is older, such as 7d.")
@click.option("--max-bytes", metavar="SIZE", help="Keep about this much, such as 10GiB.")
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="Keep about so many.")
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other setting, such as retry.initial_backoff=1s or dlq.enabled=false.",
)
@click.option("--update", is_flag=True, help="Change the settings of a queue that is there.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def create(
    queue: str,
    kind: str | None,
    topics: tuple[str, ...],
    flush: str | None,
    visibility_timeout: str | None,
    max_retries: str | None,
    message_ttl: str | None,
    max_message_size: str | None,
    max_depth: int | None,
    on_full: str | None,
    max_age: str | None,
    max_bytes: str | None,
    max_messages: int | None,
    others: tuple[str, ...],
    update: bool,
    store: StorePlace,
    as_json: bool,
) -> None:
    """Make a queue, and its store if there is none.

    Without options it is a work queue with the usual settings. One that is there is left as it is,
    and that is an error; --update changes it, for everybody who uses it.

    \b
    Examples:
      tailrace create orders
      tailrace create events --type stream --max-age 7d
      tailrace create jobs --visibility-timeout 5m --max-retries 3 --set retry.initial_backoff=1s
      tailrace create jobs --update --max-depth 100000
    """
    options = _options(
        {
            "topics": list(topics) or None,
            "flush": flush,
            "visibility_timeout": visibility_timeout,
            "retry.max_retries": _whole(max_retries),
            "limits.message_ttl": message_ttl,
            "limits.max_message_size": max_message_size,
            "limits.max_depth": max_depth,
            "limits.on_full": on_full,
            "retention.max_age": max_age,
            "retention.max_bytes": max_bytes,
            "retention.max_records": max_messages,
            **dict(map(_setting, others)),
        }
    )
    if update or options:
        store.refuse_declared(queue)
    before = _settings_there(store, queue)
    there = None if before is None else before.type
    if there is not None and not update:
        raise InvalidName(f"there is a queue {queue!r} in {store.path}; --update changes it")
    if there is None and update:
        raise InvalidName(f"there is no queue {queue!r} in {store.path} to change")
    _check(queue, kind or there or "classic", options, is_new=there is None)
    with open_store(store, create=True) as opened:
        make = opened.stream if (kind or there) == "stream" else opened.queue
        settings = make(queue, **options).settings
    if as_json:
        print_json({**queue_item(settings), "type": "queue"})
    else:
        what = "stream" if settings.type == "stream" else "queue"
        if settings == before:
            click.echo(f"the {what} {queue!r} in {store.path} is as it was")
        else:
            click.echo(f"{'changed' if update else 'made'} the {what} {queue!r} in {store.path}")


def _settings_there(store: StorePlace, queue: str) -> QueueSettings | None:
    """Those of the queue, if there is one."""
    try:
        with look_at_store(store) as look:
            return look.queues().get(queue)
    except TailraceError as error:
        if type(error) is not TailraceError:  # there is a store, and something is wrong with it
            raise
        return None


def _check(queue: str, kind: str, options: dict[str, Any], *, is_new: bool) -> None:
    """A mistake is found before a store is made for it."""
    from tailrace.queue.names import refuse_reserved
    from tailrace.queue.settings import QueueSettings

    if is_new:
        refuse_reserved(queue)
    settings = QueueSettings.create(queue, kind, **options)
    if is_new and settings.ephemeral:  # perhaps with this command
        raise ConfigError(
            "ephemeral: such a queue is gone when everybody has closed the store, so a command "
            f"cannot make one that others find; a program can: store.queue({queue!r}, "
            "ephemeral=True)"
        )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """`a.b` becomes a key of the mapping `a`."""
    options: dict[str, Any] = {}
    for key, value in given.items():
        if value is not None:
            above, _, name = key.rpartition(".")
            (options.setdefault(above, {}) if above else options)[name] = value
    return options


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as KEY=VALUE, such as retry.max_backoff=1m")
    key = key.strip()
    if key in _OPTIONS_OF_THEIR_OWN:
        raise ConfigError(f"--set {text}: use {_OPTIONS_OF_THEIR_OWN[key]}")
    _check_key(key)
    words = {"true": True, "false": False}
    return key, words.get(value, _number(value))


def _check_key(key: str) -> None:
    """Only what is an option of a queue becomes an argument of what makes one, which has others."""
    from tailrace.queue.settings import KEYS, describe_unknown

    known = KEYS - _OPTIONS_OF_THEIR_OWN.keys()
    if key not in known:
        raise ConfigError(describe_unknown(key, known, "--set"))


def _number(text: str) -> Any:
    """A number where it is one; durations and sizes are text."""
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _whole(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text
