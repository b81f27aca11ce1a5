"""`tailrace spark`."""

from __future__ import annotations

import click

from tailrace.cli.lazy import LazyGroup

__all__ = ["spark"]

_SHORT_HELP = {
    "reindex": "Make the indexes of a store, or of a log, anew.",
    "stats": "Count what is in a queue: rates, sizes, keys, lag.",
    "verify": "Check every checksum of a store, or of a log, in parallel.",
}


@click.group(
    cls=LazyGroup,
    short_help_by_name=_SHORT_HELP,
    commands_by_path={
        "reindex": "tailrace.cli.spark_reindex:reindex",
        "stats": "tailrace.cli.spark_stats:stats",
        "verify": "tailrace.cli.spark_verify:verify",
    },
)
def spark() -> None:
    """Jobs over whole stores, with Spark where there is enough to do.

    What is small is done in this process, which needs neither Spark nor Java.

    \b
    Examples:
      tailrace spark verify
      tailrace spark stats orders --plot orders.html
    """
