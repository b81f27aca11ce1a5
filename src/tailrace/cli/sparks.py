"""What commands share that have Spark at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tailrace.errors import TailraceError

__all__ = ["errors_of_spark", "spark_options"]

F = TypeVar("F", bound=Callable[..., Any])


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


def spark_options(command: F) -> F:
    """`--master` and `--conf`."""
    master = click.option(
        "--master", metavar="URL", help="Where Spark runs.  [default: local[*], on this machine]"
    )
    conf = click.option(
        "--conf",
        multiple=True,
        callback=_parse_conf,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be given more than once.",
    )
    return master(conf(command))


def errors_of_spark() -> tuple[type[Exception], ...]:
    """What Spark raises, in this process and in its own; `TailraceError` where it is missing."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        raise TailraceError("pyspark is missing: pip install 'tailrace[spark]'") from None
    return PySparkException, Py4JError
