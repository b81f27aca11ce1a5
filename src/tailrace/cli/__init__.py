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


_SHORT_HELP = {
    "archive": "Put a queue's full segments into a lake, as Parquet.",
    "backup": "Copy a store while it is used.",
    "bench": "Measure speed on this machine.",
    "cancel": "Take delayed messages back.",
    "completion": "Write what a shell needs to complete commands and names.",
    "config": "Check and show a configuration file.",
    "consume": "Take messages from a queue, as a consumer of a group.",
    "create": "Make a queue, and its store if there is none.",
    "dead": "Show the dead letters of a queue.",
    "delayed": "Show the messages that are to be delivered later.",
    "delete": "Delete a queue with all that is in it.",
    "dump": "Show what is in files of a log, or of a store.",
    "groups": "Show the groups of a queue, move them, or delete them.",
    "locks": "Show who has a log open for writing.",
    "peek": "Show what a group would get next, without taking it.",
    "pending": "Show what a group has got and not settled.",
    "pipeline": "Run the pipelines of the configuration, with Spark.",
    "publish": "Publish messages to a queue.",
    "purge": "Delete every message of a queue; the queue stays.",
    "queues": "Show the queues of a store, and what is set on them.",
    "read": "Write out a queue or a log, and what is to come.",
    "recover": "Repair a log and accept what is lost.",
    "redrive": "Bring dead letters back to their queue.",
    "restore": "Bring messages of an archive back to their queue.",
    "restore-backup": "Make a store of a backup.",
    "spark": "Check, index and count whole stores, with Spark.",
    "sql": "Run SQL over the queues of a store, with Spark.",
    "stats": "Show figures of one queue, or of all.",
    "vacuum": "Delete old segments of a log.",
    "verify": "Check every file of a log, or of a store.",
}


@click.group(
    cls=LazyGroup,
    short_help_by_name=_SHORT_HELP,
    commands_by_path={
        "archive": "tailrace.cli.archive:archive",
        "backup": "tailrace.cli.backup:backup",
        "bench": "tailrace.cli.bench:bench",
        "cancel": "tailrace.cli.delayed:cancel",
        "completion": "tailrace.cli.completion:completion",
        "config": "tailrace.cli.config:config",
        "consume": "tailrace.cli.consume:consume",
        "create": "tailrace.cli.create:create",
        "dead": "tailrace.cli.dead:dead",
        "delayed": "tailrace.cli.delayed:delayed",
        "delete": "tailrace.cli.delete:delete",
        "dump": "tailrace.cli.dump:dump",
        "groups": "tailrace.cli.groups:groups",
        "locks": "tailrace.cli.locks:locks",
        "peek": "tailrace.cli.peek:peek",
        "pending": "tailrace.cli.pending:pending",
        "pipeline": "tailrace.cli.pipeline:pipeline",
        "publish": "tailrace.cli.publish:publish",
        "purge": "tailrace.cli.delete:purge",
        "queues": "tailrace.cli.queues:queues",
        "read": "tailrace.cli.read:read",
        "recover": "tailrace.cli.recover:recover",
        "redrive": "tailrace.cli.dead:redrive",
        "restore": "tailrace.cli.restore:restore",
        "restore-backup": "tailrace.cli.backup:restore_backup",
        "spark": "tailrace.cli.spark:spark",
        "sql": "tailrace.cli.sql:sql",
        "stats": "tailrace.cli.stats:stats",
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
    """Durable logs and queues in a directory: fill them, read them, check them, repair them."""
