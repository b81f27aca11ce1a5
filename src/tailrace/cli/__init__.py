"""The command line: one command per verb, a thin shell over the library.

Commands are imported when they are called, so that `tailrace --version` stays quick.
"""

from __future__ import annotations

import click

from tailrace.cli.lazy import LazyGroup

__all__ = ["main"]


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from tailrace import __version__, kernel

        parts = f"kernel: {kernel.IMPLEMENTATION}, crc32c: {kernel.CRC_BACKEND}"
        click.echo(f"tailrace {__version__} ({parts})")
        context.exit()


@click.group(
    cls=LazyGroup,
    commands_by_path={
        "bench": "tailrace.cli.bench:bench",
        "dump": "tailrace.cli.dump:dump",
        "locks": "tailrace.cli.locks:locks",
        "read": "tailrace.cli.read:read",
        "recover": "tailrace.cli.recover:recover",
        "vacuum": "tailrace.cli.vacuum:vacuum",
        "verify": "tailrace.cli.verify:verify",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and which kernel runs, and exit.",
)
def main() -> None:
    """A durable log in a directory: read it, look into it, check it, repair it, measure it."""
