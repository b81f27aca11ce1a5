"""Which store and which queue a person means, and how to look at it or to open it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from tailrace.cli.places import find_store
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tailrace.queue.looking import Look
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.store import Store

__all__ = [
    "ENVIRONMENT",
    "complete_group",
    "complete_queue",
    "confirm",
    "group_argument",
    "is_queue",
    "look_at_store",
    "open_queue",
    "open_store",
    "queue_argument",
    "store_option",
    "store_path",
]

ENVIRONMENT = "TAILRACE_STORE"
_DEFAULT = "data"

F = TypeVar("F", bound=Callable[..., Any])


def store_option(command: F) -> F:
    """`--store DIR`, for every command that is about queues."""
    return click.option(
        "--store",
        metavar="DIR",
        help=f"The store.  [default: ${ENVIRONMENT}, or ./{_DEFAULT}]",
    )(command)


def store_path(given: str | None) -> str:
    """As it was given, or as the environment says, or the usual place."""
    return given or os.environ.get(ENVIRONMENT) or _DEFAULT


# --- looking --------------------------------------------------------------------------------


@contextlib.contextmanager
def look_at_store(given: str | None) -> Iterator[Look]:
    """Look at a store, of which nothing is written, made or locked."""
    from tailrace.log.fs import OsFileSystem
    from tailrace.queue.clock import SystemClock
    from tailrace.queue.layout import Layout
    from tailrace.queue.looking import Look
    from tailrace.queue.registry import Registry

    path = store_path(given)
    root = find_store(path)
    if root is None:
        _refuse_missing(path)
    fs = OsFileSystem()
    with Registry(fs, root, read_only=True).open() as registry:
        yield Look(fs, Layout(fs, root), registry.current, SystemClock())


def _refuse_missing(path: str) -> NoReturn:
    raise TailraceError(
        f"there is no store in {path}; name it with --store or {ENVIRONMENT}, or make one: "
        f"tailrace create QUEUE --store {path}"
    )


def is_queue(name: str) -> bool:
    """Is it a queue of the store that is meant where none is named? What looks like a queue's name,
    and is no folder, is to be one: the error tells about the store then."""
    may_be_one = not (os.path.exists(name) or os.sep in name)
    try:
        with look_at_store(None) as look:
            return name in look.queues() or may_be_one
    except TailraceError:
        return may_be_one


# --- opening --------------------------------------------------------------------------------


@contextlib.contextmanager
def open_store(
    given: str | None, *, create: bool = False, upkeep: bool = False, **options: Any
) -> Iterator[Store]:
    """Open a store, which has to be there unless it is to be made."""
    from tailrace.queue.store import Store

    path = store_path(given)
    if find_store(path) is None:
        if not create:
            _refuse_missing(path)
        if os.path.exists(path) and not os.path.isdir(path):
            raise TailraceError(f"{path} is a file; name the directory of a store")
    with Store(path, upkeep=upkeep, **options) as store:
        yield store


@contextlib.contextmanager
def open_queue(
    given: str | None, name: str, *, upkeep: bool = False
) -> Iterator[tuple[Store, Queue | Stream]]:
    """Open a queue that is there. Nothing is opened if it is not."""
    with look_at_store(given) as look:
        look.settings(name)
    with open_store(given, upkeep=upkeep) as store:
        yield store, store.get(name)


def confirm(question: str, *, yes: bool) -> bool:
    """Ask a person; who cannot be asked has to say `--yes`. False if they would rather not."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise TailraceError(f"{question} Nobody can be asked: say so with --yes")
    try:
        if click.confirm(question, err=True):
            return True
    except click.Abort:
        click.echo(err=True)
    click.echo("nothing was changed", err=True)
    return False


# --- names ----------------------------------------------------------------------------------


def complete_queue(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """The queues whose names begin like this, for a shell."""
    with (
        contextlib.suppress(TailraceError, OSError),
        look_at_store(ctx.params.get("store")) as look,
    ):
        return [name for name in sorted(look.queues()) if name.startswith(incomplete)]
    return []


def complete_group(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """Likewise the groups of the queue that was named, or if that is not known yet, of all."""
    named = ctx.params.get("queue")
    with (
        contextlib.suppress(TailraceError, OSError),
        look_at_store(ctx.params.get("store")) as look,
    ):
        queues = look.queues() if named is None else {named}.intersection(look.queues())
        found = {group_id for queue in queues for group_id in look.group_ids(queue)}
        return sorted(each for each in found if each.startswith(incomplete))
    return []


def queue_argument(command: F) -> F:
    return click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)(command)


def group_argument(command: F) -> F:
    return click.argument("group", metavar="GROUP", shell_complete=complete_group)(command)
