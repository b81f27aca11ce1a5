"""`tailrace config`. What it needs is imported when it runs: `tailrace --help` lists it, too."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from tailrace.cli.output import print_json
from tailrace.cli.stores import StorePlace, store_option
from tailrace.errors import ConfigError

__all__ = ["config"]

_file = click.argument("file", metavar="[FILE]", required=False)


@click.group()
def config() -> None:
    """Check and show a configuration file.

    \b
    Example:
      tailrace config check tailrace.yaml
    """


@config.command()
@_file
@store_option
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@click.pass_context
def check(context: click.Context, file: str | None, store: str | None, as_json: bool) -> None:
    """Check a file, and list every problem with its line and key.

    Without FILE it is the one in the store or beside it. The exit code is 0 if the file is good, 1
    if it is not, and 2 if it cannot be read.

    \b
    Examples:
      tailrace config check
      tailrace config check conf/tailrace.toml --json
    """
    from tailrace.config.model import NAMES, Config
    from tailrace.config.model import check as problems_of
    from tailrace.log.offline.words import counted

    path = file if file is not None else _find(store)
    if path is None:
        raise ConfigError(
            f"there is no {', '.join(NAMES)} in {StorePlace(store).path} or beside it; name a file"
        )
    problems = problems_of(path)
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
@store_option
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON object per value, with its origin."
)
def show(file: str | None, store: str | None, origin: bool, as_json: bool) -> None:
    """Show the values that count: those of a file, and the defaults of what it does not say.

    It is YAML that says the same when it is loaded. Without FILE it is the one in the store or
    beside it; if there is none, all are defaults.

    \b
    Examples:
      tailrace config show --origin
      tailrace config show tailrace.yaml --json | jq 'select(.origin != "default")'
    """
    from tailrace.config.model import Config
    from tailrace.config.show import to_yaml

    path = file if file is not None else _find(store)
    shown = Config.empty() if path is None else Config.load(path)
    if as_json:
        for value in shown.values():
            item: dict[str, Any] = {"key": value.key, "value": value.value, "origin": value.origin}
            print_json({"type": "value", **item})
    else:
        for line in to_yaml(shown.values(), origins=origin):
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


def _find(store: str | None) -> str | None:
    """The file of a store, as a person would name it, even if it is wrong."""
    from tailrace.config.model import Config

    path = Config.find_file(StorePlace(store).path)
    if path is None:
        return None
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near
