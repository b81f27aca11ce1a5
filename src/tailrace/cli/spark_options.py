"""The options of commands that may start Spark."""

from __future__ import annotations

import click

__all__ = ["conf_option", "master_option"]


def _parse_conf(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.BadParameter(
                f"{pair!r} is not NAME=VALUE with a name such as spark.ui.port"
            )
        found[name] = value
    return found


master_option = click.option(
    "--master", metavar="URL", help="Where Spark runs.  [default: local[*], on this machine]"
)
conf_option = click.option(
    "--conf",
    multiple=True,
    callback=_parse_conf,
    metavar="NAME=VALUE",
    help="A setting of Spark; may be given more than once.",
)
