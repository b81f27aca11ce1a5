"""Which store and which queue a person means, and how to look at it or to open it."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from tailrace.cli.places import check_path, find_store
from tailrace.errors import ConfigError, InvalidName, TailraceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tailrace.config.model import Config
    from tailrace.queue.looking import Look
    from tailrace.queue.queue import Queue, Stream
    from tailrace.queue.store import Store

__all__ = [
    "ENVIRONMENT",
    "Here",
    "StorePlace",
    "complete_group",
    "complete_queue",
    "confirm",
    "group_argument",
    "group_either_way",
    "is_queue",
    "look_at_store",
    "open_queue",
    "open_store",
    "place_in",
    "queue_argument",
    "store_option",
    "store_options",
]

ENVIRONMENT = "TAILRACE_STORE"
_DEFAULT = "data"

F = TypeVar("F", bound=Callable[..., Any])


class Here(NamedTuple):
    """A configuration, and the store that it names."""

    file: str
    store: str


@dataclass(frozen=True)
class StorePlace:
    """The store that a person means, and its configuration; see `store_options`."""

    store: str | None = None
    config_file: str | None = None

    @property
    def is_given(self) -> bool:
        return self.store is not None or self.config_file is not None

    @cached_property
    def path(self) -> str:
        """As it was given, or as the configuration that was given says, or the environment, or the
        configuration in the working folder, or the usual place. A file that was given has to be
        good, even if nobody asks what it says."""
        given = self.config if self.config_file else None
        if self.store:
            return self.store
        if given is not None:
            return given.store_path
        return os.environ.get(ENVIRONMENT) or (self.here.store if self.here else _DEFAULT)

    @cached_property
    def here(self) -> Here | None:
        """The configuration in the working folder, if it is what says where the store is."""
        if self.is_given or os.environ.get(ENVIRONMENT):
            return None
        from tailrace.config.model import find_here, named_store

        file = find_here()
        store = None if file is None else named_store(file)
        return None if file is None or store is None else Here(file, store)

    @cached_property
    def config(self) -> Config | None:
        """As it was given, or the one that is found; see `find_config`."""
        from tailrace.config.model import Config

        path = self.find_config()
        return None if path is None else Config.load(path)

    def find_config(self) -> str | None:
        """The file that was given, or the one in the store, good or not; or else the one that said
        where the store is, or is beside it."""
        from tailrace.config.model import Config

        if self.config_file:
            return self.config_file
        return Config.find_file(self.path, beside=self.here.file if self.here else None)

    def declares(self, queue: str) -> bool:
        """Is it a queue of the configuration? Whoever opens the store makes it then."""
        return self.config is not None and any(each.name == queue for each in self.config.queues)

    def refuse_declared(self, queue: str) -> None:
        """What the configuration says, the next who opens the store would bring back."""
        if self.config is not None and self.declares(queue):
            raise ConfigError(
                f"the queue {queue!r} is in {self.config.path}; change it there (to make it anew, "
                "take it out of the file, delete it, and put it back)"
            )


store_option = click.option(
    "--store",
    callback=check_path,
    metavar="DIR",
    help=f"The store.  [default: ${ENVIRONMENT}, or what ./tailrace.yaml names, or ./{_DEFAULT}]",
)

_config_option = click.option(
    "--config",
    callback=check_path,
    metavar="FILE",
    help="Its configuration.  [default: tailrace.yaml or .toml in the store or beside it]",
)


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--store DIR` and `--config FILE`, for every command that is about queues: as one argument,
    `store`."""

    @functools.wraps(command)
    def with_place(*args: Any, store: str | None, config: str | None, **rest: Any) -> Any:
        if config and not os.path.exists(config):  # of which some commands would take no notice
            raise ConfigError(
                f"{config}: {os.strerror(errno.ENOENT)}; name a file that can be read"
            )
        return command(*args, store=StorePlace(store, config), **rest)

    return store_option(_config_option(with_place))


# --- looking --------------------------------------------------------------------------------


@contextlib.contextmanager
def look_at_store(place: StorePlace) -> Iterator[Look]:
    """Look at a store, of which nothing is written, made or locked."""
    from tailrace.log.fs import OsFileSystem
    from tailrace.queue.clock import SystemClock
    from tailrace.queue.layout import Layout
    from tailrace.queue.looking import Look
    from tailrace.queue.registry import Registry

    root = find_store(place.path)
    if root is None:
        _refuse_missing(place.path)
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
        with look_at_store(StorePlace()) as look:
            return name in look.queues() or may_be_one
    except TailraceError:
        return may_be_one


# --- opening --------------------------------------------------------------------------------


@contextlib.contextmanager
def open_store(place: StorePlace, *, create: bool = False, upkeep: bool = False) -> Iterator[Store]:
    """Open a store, which has to be there unless it is to be made. It has the queues of its
    configuration then."""
    from tailrace.config.opening import open_store

    path = place.path
    if find_store(path) is None:
        if not create:
            _refuse_missing(path)
        if os.path.exists(path) and not os.path.isdir(path):
            raise TailraceError(f"{path} is a file; name the directory of a store")
    with open_store(path, config=place.config, upkeep=upkeep) as store:
        yield store


@contextlib.contextmanager
def open_queue(
    place: StorePlace, name: str, *, upkeep: bool = False
) -> Iterator[tuple[Store, Queue | Stream]]:
    """Open a queue that is there, or that the configuration makes. Nothing is opened if not."""
    is_declared, was_ephemeral = place.declares(name), False
    if not is_declared:
        with look_at_store(place) as look:
            was_ephemeral = look.settings(name).ephemeral
    with open_store(place, create=is_declared, upkeep=upkeep) as store:
        try:
            found = store.get(name)
        except InvalidName:
            if not was_ephemeral:
                raise
            raise InvalidName(
                f"the queue {name!r} in {place.path} is gone: it was ephemeral, so it lasted until "
                "everybody had closed the store"
            ) from None
        yield store, found


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


def place_in(ctx: click.Context) -> StorePlace:
    """The store that is meant, for a shell that completes."""
    return StorePlace(ctx.params.get("store"), ctx.params.get("config"))


def complete_queue(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """The queues whose names begin like this, for a shell."""
    with (
        contextlib.suppress(TailraceError, OSError),
        look_at_store(place_in(ctx)) as look,
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
        look_at_store(place_in(ctx)) as look,
    ):
        queues = look.queues() if named is None else {named}.intersection(look.queues())
        found = {group_id for queue in queues for group_id in look.group_ids(queue)}
        return sorted(each for each in found if each.startswith(incomplete))
    return []


def queue_argument(command: F) -> F:
    return click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)(command)


def group_argument(command: F) -> F:
    return click.argument("group", metavar="GROUP", shell_complete=complete_group)(command)


def group_either_way(*, required: bool) -> Callable[[F], F]:
    """GROUP, or `--group GROUP` as `consume` has it; the command gets it as `group`."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def chosen(*args: Any, group: str | None, named: str | None, **options: Any) -> Any:
            if group is not None and named is not None:
                raise click.UsageError("GROUP and --group are the same; give one of them.")
            if required and group is None and named is None:
                raise click.MissingParameter(param_type="argument", param_hint="'GROUP'")
            return command(*args, group=named if group is None else group, **options)

        metavar = "GROUP" if required else "[GROUP]"
        option = click.option(
            "--group",
            "-g",
            "named",
            shell_complete=complete_group,
            metavar="GROUP",
            help="The same as GROUP.",
        )
        argument = click.argument(
            "group", metavar=metavar, required=False, shell_complete=complete_group
        )
        return argument(option(chosen))  # type: ignore[return-value]

    return decorate
