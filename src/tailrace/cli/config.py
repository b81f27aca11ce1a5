"""`tailrace config`. What it needs is imported when it runs: `tailrace --help` lists it, too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.lazy import one_line
from tailrace.cli.output import print_json
from tailrace.cli.places import check_path, find_store
from tailrace.cli.stores import ENVIRONMENT, StorePlace, look_at_store, store_options
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from tailrace.config.model import Config, Value
    from tailrace.queue.settings import QueueSettings

__all__ = ["config"]

_file = click.argument("file", metavar="[FILE]", callback=check_path, required=False)


@click.group()
def config() -> None:
    """Check and show a configuration file.

    \b
    Example:
      tailrace config check tailrace.yaml
    """


@config.command()
@_file
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@click.pass_context
def check(context: click.Context, file: str | None, store: StorePlace, as_json: bool) -> None:
    """Check a file, and list every problem with its line and key.

    Without FILE it is the one in the store or beside it, or the one in the working folder that
    names the store. If the store is there, so is looked for what its queues do not allow, such as
    another type. The exit code is 0 if the file is good, 1 if it is not, and 2 if it cannot be
    read.

    \b
    Examples:
      tailrace config check
      tailrace config check conf/tailrace.toml --json
    """
    from tailrace.config.model import NAMES, Config, find_others, named_store
    from tailrace.config.model import check as problems_of
    from tailrace.log.offline.words import counted

    store = _with_file(store, file)
    path = _find(store)
    if path is None:
        others = "".join(
            f"; {_near(each)} is for the store in {_near(named_store(each) or 'data')}"
            for each in find_others(store.path)
        )
        raise ConfigError(
            f"there is no {', '.join(NAMES)} in {store.path} or beside it{others}; name a file"
        )
    problems = problems_of(path, _queues_to_check(store, is_good=not problems_of(path)))
    for problem in problems:
        if as_json:
            print_json(
                {
                    "type": "problem",
                    "file": problem.file,
                    "line": problem.line,
                    "key": problem.key,
                    "message": problem.message,
                }
            )
        else:
            click.echo(str(problem))
    if as_json:
        print_json({"type": "report", "file": path, "problems": len(problems)})
    elif not problems:
        click.echo(f"{path}: no problem; {counted(len(Config.load(path).queues), 'queue')}")
    context.exit(1 if problems else 0)


@config.command()
@_file
@store_options
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON object per value, with its origin."
)
def show(file: str | None, store: StorePlace, origin: bool, as_json: bool) -> None:
    """Show the values that count: those of a file, and the defaults of what it does not say.

    It is YAML that says the same when it is loaded. Without FILE it is the one in the store or
    beside it; if there is none, all are defaults. A queue of the file that is in the store has kept
    what the file does not say of it: that has the origin `store`.

    \b
    Examples:
      tailrace config show --origin
      tailrace config show tailrace.yaml --json | jq 'select(.origin != "default")'
    """
    from tailrace.config.effective import effective_values
    from tailrace.config.model import Config
    from tailrace.config.show import to_yaml

    store = _with_file(store, file)
    path = _find(store)
    shown = Config.empty() if path is None else Config.load(path)
    values = effective_values(shown, _queues(store), _place(store, shown))
    if as_json:
        for value in values:
            item: dict[str, Any] = {"key": value.key, "value": value.value, "origin": value.origin}
            print_json({"type": "value", **item})
    else:
        for line in to_yaml(values, origins=origin):
            click.echo(line)


@config.command()
def schema() -> None:
    """Write the JSON schema of a file, for editors.

    \b
    Example:
      tailrace config schema > tailrace.schema.json
    """
    from tailrace.config.keys import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _with_file(store: StorePlace, file: str | None) -> StorePlace:
    """FILE is what `--config` is for every other command."""
    if file is not None and store.config_file is not None:
        raise click.UsageError("FILE and --config exclude each other")
    return StorePlace(store.store, file if file is not None else store.config_file)


def _find(store: StorePlace) -> str | None:
    """The file that was given, or that of the store, as a person would name it, even if it is
    wrong."""
    path = store.find_config()
    return path if path is None or path == store.config_file else _near(path)


def _near(path: str) -> str:
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near


def _queues(store: StorePlace) -> Mapping[str, QueueSettings]:
    """Those of the store, if there is one."""
    if find_store(store.path) is None:
        return {}
    with look_at_store(store) as look:
        return look.queues()


def _queues_to_check(store: StorePlace, *, is_good: bool) -> Mapping[str, QueueSettings]:
    """The same for who wants to know about a file, and may have no right to see the store. If the
    file `is_good`, what is wrong with the store is all that there is to say."""
    from tailrace.config.model import store_of

    if store.config_file is not None:
        store = StorePlace(store.store or store_of(store.config_file))
    try:
        return _queues(store)
    except (PermissionError, TailraceError) as error:
        if is_good and isinstance(error, TailraceError):
            raise
        click.echo(f"tailrace: the store was not looked at: {one_line(error)}", err=True)
        return {}


def _place(store: StorePlace, shown: Config) -> Value | None:
    """Where the store is, if it is not where the file says."""
    from tailrace.config.model import DEFAULT, Value

    key = "storage.path"
    if store.store:
        return Value(key, store.store, "--store")
    if store.config_file:
        return None
    if os.environ.get(ENVIRONMENT):
        return Value(key, store.path, ENVIRONMENT)
    if os.path.realpath(shown.store_path) == os.path.realpath(store.path):
        return None
    return Value(key, store.path, store.here.file if store.here else DEFAULT)
