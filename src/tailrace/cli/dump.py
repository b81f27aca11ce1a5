"""`tailrace dump`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from tailrace.cli import dump_queue, dump_segment, dump_side, dump_text
from tailrace.cli.counts import Count
from tailrace.cli.dump_segment import Item
from tailrace.cli.output import print_json
from tailrace.cli.places import check_path
from tailrace.errors import TailraceError
from tailrace.log.fs import OsFileSystem

__all__ = ["dump"]

_SIDE = ", ".join(dump_side.NAMES)


@click.command()
@click.argument("files", metavar="FILE...", callback=check_path, nargs=-1, required=True)
@click.option(
    "--records/--no-records",
    default=True,
    help="Show the records of each batch (the default), or the batches only.",
)
@click.option(
    "--start", type=click.IntRange(min=0), default=0, metavar="OFFSET", help="Begin at this offset."
)
@click.option(
    "--limit",
    type=Count(min=1),
    metavar="N",
    help="Stop in each file after N records; with --no-records, batches; in other files, entries.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def dump(
    files: tuple[str, ...], records: bool, start: int, limit: int | None, as_json: bool
) -> None:
    """Show what is in files of a log, or of a store.

    A FILE is a segment (.seg), an index (.idx, .tix), bytes in quarantine (.cut), or a file of a
    .tailrace folder; of a store also queues.json, a group's ops.log, state.json and pel_<n>.json,
    and its file in groups; of a backup also backup.json; of an archive manifest.jsonl. Damage is
    shown, and dumping goes on after it. It takes no lock, so what is being written can be looked
    at; its end may then look torn.

    \b
    Examples:
      tailrace dump orders/00000000000000000000.seg
      tailrace dump --json --no-records orders/*.seg | jq .crc32c
    """
    # A name that is wrong is an error before anything is shown.
    found = [(file, _items(file, records, start, limit)) for file in files]
    for i, (file, items) in enumerate(found):
        if i and not as_json:
            click.echo()
        for item in items:
            named = {"type": item["type"], "file": file, **item}
            if as_json:
                print_json(named)
            else:
                click.echo(dump_text.line(named))


def _items(path: str, records: bool, start: int, limit: int | None) -> Iterator[Item]:
    if not os.path.exists(path):
        raise TailraceError(f"{path}: there is no such file")
    if os.path.isdir(path):
        raise TailraceError(f"{path} is a directory; dump takes files, verify takes a directory")
    name = os.path.basename(path)
    extension = os.path.splitext(name)[1]
    fs = OsFileSystem()
    if extension in (".seg", ".cut"):
        return dump_segment.batches(fs, path, records=records, start=start, limit=limit)
    if extension in (".idx", ".tix"):
        return dump_segment.entries(fs, path, start=start, limit=limit)
    of_store = dump_queue.reader_of(path)
    if of_store is not None:
        return of_store(fs, path, start=start, limit=limit)
    if dump_side.name_of(path) in dump_side.NAMES:
        return dump_side.side_file(fs, path, limit=limit)
    raise TailraceError(
        f"{path}: not a file of a log or a store by its name; dump knows .seg, .idx, .tix, .cut, "
        f"{dump_queue.KNOWN}, and in .tailrace {_SIDE}"
    )
