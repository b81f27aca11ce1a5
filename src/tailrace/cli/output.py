"""What commands write: JSON lines for programs, text for people, a progress bar for those who
watch."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import click

from tailrace.kernel import Record

__all__ = [
    "as_age",
    "as_json",
    "as_text",
    "as_time",
    "print_json",
    "print_rows",
    "print_table",
    "progress_bar",
    "record_item",
    "table_lines",
    "write_json",
]

_WIDTH = 100
_FOLDED_ABOVE = 12  # characters of a text in a table: what is shorter stays whole
_WIDEST = 10_000  # where no terminal sets a limit
_STEP = 1 << 20  # bytes between two looks of the progress bar
_WHITE = str.maketrans("", "", "\t\n\r")


def print_json(document: object) -> None:
    """One object, one line."""
    click.echo(json.dumps(document))


def write_json(document: object) -> None:
    """One of many such lines. It is out when the buffer is full, or somebody flushes: `click.echo`
    would look at the terminal, and call the system, for each."""
    sys.stdout.write(f"{json.dumps(document)}\n")


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


def as_age(milliseconds: float | None) -> str:
    """How long something takes or has lasted, in two units at most: `3 d 4 h`."""
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, units = int(seconds), (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for index, (name, size) in enumerate(units):
        if whole >= size:
            text = f"{whole // size} {name}"
            rest = whole % size // units[index + 1][1] if size > 60 else 0
            return f"{text} {rest} {units[index + 1][0]}" if rest else text
    return "0 s"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people that fits the terminal. Numbers are to the right, and in what is piped
    nothing is shortened."""
    for line in table_lines(titles, rows):
        click.echo(line)


def table_lines(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    needed = 0
    for column, title in enumerate(titles):
        is_number = any(_is_number(row[column]) for row in cells)
        longest = max((len(_cell(row[column])) for row in cells), default=0)
        is_whole = is_number or longest <= _FOLDED_ABOVE  # half of a number is another number
        table.add_column(
            title,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_whole,
            min_width=min(longest, _FOLDED_ABOVE),
        )
        needed += max(longest if is_whole else _FOLDED_ABOVE, len(title)) + 2
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDEST
    elif needed > console.width:
        return [line for row in cells for line in _stacked(titles, row, console.width)]
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def _stacked(titles: Sequence[str], row: Sequence[object], width: int) -> Iterator[str]:
    """A row of a table that is too wide: each value with its title, as many in a line as fit."""
    line = ""
    for title, value in zip(titles, row, strict=True):
        if not (shown := _cell(value)):
            continue
        part = f"{title}: {shown}"
        if line and len(line) + len(part) + 2 > width:
            yield line
            line = "  " + part
        else:
            line = f"{line}  {part}" if line else part
    if line:
        yield line


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.startswith("~"))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "bytes", beside_output: bool = False
) -> Iterator[Callable[[int, int | None], object] | None]:
    """Gives what to call with (done, total) in bytes, or in another unit; nothing when nobody is
    watching. Without a total the bar only says that something is going on. `beside_output` is for
    who writes meanwhile: on a terminal that is progress enough, and a bar would be in its way."""
    if not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    is_bytes = unit == "bytes"
    done_columns = [DownloadColumn()] if is_bytes else [MofNCompleteColumn(), TextColumn(unit)]
    columns = (TextColumn(label), BarColumn(), *done_columns, TimeRemainingColumn())
    console = Console(stderr=True)
    # What goes to standard output goes there, and not to the terminal with the bar.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(label, total=None)
        step = _STEP if is_bytes else 1
        shown = -step

        def update(done: int, total: int | None) -> None:
            nonlocal shown
            if abs(done - shown) >= step or done == total:
                shown = done
                bar.update(task, completed=done, total=total)

        yield update
