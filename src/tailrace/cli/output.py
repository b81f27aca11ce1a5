"""What commands write: JSON lines for programs, text for people, a progress bar for those who
watch."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import click

from tailrace.kernel import Record

__all__ = [
    "as_json",
    "as_text",
    "as_time",
    "print_json",
    "print_rows",
    "progress_bar",
    "record_item",
]

_WIDTH = 100
_STEP = 1 << 20  # bytes between two looks of the progress bar
_WHITE = str.maketrans("", "", "\t\n\r")


def print_json(document: object) -> None:
    """One object, one line."""
    click.echo(json.dumps(document))


def as_json(value: bytes | None) -> object:
    """Bytes in JSON: text where they are clean text, else base64."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.translate(_WHITE).isprintable():
        return text
    return {"base64": base64.b64encode(value).decode()}


def record_item(record: Record) -> dict[str, object]:
    """A record in JSON. Headers are pairs, since names may repeat."""
    headers = [
        [as_json(name.encode("utf-8", "surrogateescape")), as_json(value)]
        for name, value in record.headers.items()
    ]
    return {
        "type": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": as_json(record.key),
        "value": as_json(record.value),
        "headers": headers,
    }


def as_text(value: bytes | None, longest: int = 60) -> str:
    """Bytes for people: shortened, and unambiguous."""
    if value is None:
        return "null"
    shown = value[:longest]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        text = ""
    quoted = repr(text) if text or not shown else repr(shown)
    if len(value) > longest:
        quoted += f"… ({len(value)} bytes)"
    return quoted


def as_time(milliseconds: int) -> str:
    """A timestamp for people, in UTC; as a number where no calendar reaches."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_rows(rows: Iterable[tuple[str, str, str]]) -> None:
    """A table of three columns, the last of which wraps; the first one gives the colour."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"problem": "bold red", "note": "yellow"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for first, second, third in rows:
        table.add_row(Text(first, style=colours.get(first, "bold")), Text(second), Text(third))
    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], object] | None]:
    """Gives what to call with (done, total); nothing when nobody is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        shown = -_STEP

        def update(done: int, total: int) -> None:
            nonlocal shown
            if abs(done - shown) >= _STEP or done == total:
                shown = done
                bar.update(task, completed=done, total=total)

        yield update
