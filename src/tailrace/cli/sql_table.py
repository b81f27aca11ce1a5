"""Rows of a DataFrame for people: a table that fits the terminal.

Where there is too little room, texts are cut to a width that is still of use. If that does not
help either, a few rows are written one below the other, a line for each value; of many rows, the
columns are shown that matter most, and a note says which are not. What is piped is complete.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import click

from tailrace.cli.sql_output import shown

__all__ = ["Laid", "lay_out", "print_rows"]

_GAP: Final = 2
_LEAST: Final = 8  # cells of a text: less tells nothing
_FAIR: Final = 16  # of one that is shown while other columns are left out
_FAIR_VALUE: Final = 24  # of what people look for
_MOST: Final = 40  # of one, while others are short of room
_LONGEST_NAME: Final = 16
_LINES: Final = 4  # of a long value that has them for itself
_COMPOSED: Final = 8  # characters for a cell, to cut long values before they are measured
_NAMED: Final = 6  # columns that the note names
# What a queue is about. Others of its columns are mostly the same in every row.
_RANKS: Final = {"key": 0, "value": 0, "offset": 0, "timestamp": 1} | dict.fromkeys(
    ("topic", "partition", "timestampType", "queue", "routing_key", "message_id", "expires_at"), 3
)
_OTHERS: Final = 2
_LAST: Final = 4
# What Spark says in one cell that is a text of many lines: a plan, a statement.
_TEXTS: Final = ("plan", "createtab_stmt")


@dataclass(frozen=True)
class Laid:
    """The first line of a table is its header."""

    lines: list[str]
    is_table: bool = True
    note: str | None = None


def print_rows(schema: Any, rows: Sequence[Any]) -> None:
    size = shutil.get_terminal_size() if sys.stdout.isatty() else None
    laid = lay_out(schema, rows, size)
    for number, line in enumerate(laid.lines):
        click.echo(click.style(line, bold=True) if laid.is_table and not number else line)
    if laid.note is not None:
        click.echo(laid.note, err=True)


def lay_out(schema: Any, rows: Sequence[Any], size: os.terminal_size | None) -> Laid:
    """`size` is that of the terminal, if there is one."""
    if len(rows) == 1 and tuple(schema.names) in {(name,) for name in _TEXTS}:
        lines = shown(rows[0][0]).rstrip("\n").split("\n")
        return Laid([_visible(line.expandtabs()) for line in lines], is_table=False)
    columns = _columns(schema, rows)
    if size is None:
        return Laid(_table([(each, each.natural) for each in columns], len(rows)))
    width = size.columns
    if _needed(each.least for each in columns) <= width:
        return Laid(_table(_widened(columns, width, lambda each: each.least), len(rows)))
    stacked = _stacked(columns, len(rows), width)
    if 0 < len(stacked) < size.lines:  # the prompt is below it
        return Laid(stacked, is_table=False)
    chosen = _chosen(columns, width)
    return Laid(_table(chosen, len(rows)), note=_note(columns, [each for each, _ in chosen]))


# --- columns --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    name: str
    place: int
    cells: list[str]
    is_number: bool
    is_whole: bool  # half of a number, or of a time, is another one
    is_nested: bool

    @cached_property
    def natural(self) -> int:
        return max(self._longest, _cells(self.name))

    @cached_property
    def _longest(self) -> int:
        return max(map(_cells, self.cells), default=0)

    @property
    def least(self) -> int:
        return self._within(_LEAST)

    @property
    def fair(self) -> int:
        return self._within(_FAIR_VALUE if self.name == "value" else _FAIR)

    @property
    def most(self) -> int:
        return self._within(_MOST)

    def _within(self, limit: int) -> int:
        longest = self._longest if self.is_whole else min(self._longest, limit)
        return max(longest, min(_cells(self.name), max(limit, _LONGEST_NAME)))

    @cached_property
    def rank(self) -> int:
        """The lower, the longer it is kept."""
        rank = _RANKS.get(self.name, _OTHERS)
        is_bare = self.is_nested or not any(self.cells)
        return _LAST if rank >= _OTHERS and is_bare else rank


def _columns(schema: Any, rows: Sequence[Any]) -> list[_Column]:
    from pyspark.sql import types as t

    found = []
    for place, field in enumerate(schema.fields):
        is_number = isinstance(field.dataType, t.NumericType)
        times = (t.TimestampType, t.TimestampNTZType, t.DateType)
        found.append(
            _Column(
                name=_visible(field.name),
                place=place,
                cells=[_visible(shown(row[place])) for row in rows],
                is_number=is_number,
                is_whole=is_number or isinstance(field.dataType, times),
                is_nested=isinstance(field.dataType, t.ArrayType | t.MapType | t.StructType),
            )
        )
    return found


def _needed(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _chosen(columns: list[_Column], width: int) -> list[tuple[_Column, int]]:
    """Those that there is room for, and what each gets of it."""
    ordered = sorted(columns, key=lambda each: (each.rank, each.place))
    first = max(1, sum(each.rank == 0 for each in columns))
    fits: list[_Column] = []
    for measure in (_fair, _least):
        fits = []
        for each in ordered:
            if _needed(map(measure, [*fits, each])) > width:
                break
            fits.append(each)
        if len(fits) >= first:
            break
    if not fits:
        return [(ordered[0], width)]
    fits.sort(key=lambda each: each.place)
    return _widened(fits, width, measure)


def _fair(column: _Column) -> int:
    return column.fair


def _least(column: _Column) -> int:
    return column.least


def _widened(
    columns: list[_Column], width: int, measure: Callable[[_Column], int]
) -> list[tuple[_Column, int]]:
    """The room that is left goes to what matters most, and then to all alike."""
    widths = [measure(each) for each in columns]
    left = width - _needed(widths)

    def widen(goals: list[int]) -> None:
        nonlocal left
        while left > 0:
            short = [place for place, goal in enumerate(goals) if widths[place] < goal]
            if not short:
                return
            narrowest = min(short, key=lambda place: widths[place])
            widths[narrowest] += 1
            left -= 1

    widen([each.fair if each.rank == 0 else 0 for each in columns])
    widen([0 if each.is_nested else each.most for each in columns])
    widen([each.most for each in columns])
    widen([each.natural for each in columns])
    return list(zip(columns, widths, strict=True))


def _note(columns: list[_Column], chosen: list[_Column]) -> str:
    names = [each.name for each in columns if each not in chosen]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED + 1 else ""
    named = ", ".join(names[:_NAMED] if more else names)
    return (
        f"{len(chosen)} of {len(columns)} columns shown; left out: {named}{more}. Name the "
        "columns you want, widen the terminal, or use --json"
    )


# --- lines ----------------------------------------------------------------------------------


def _table(columns: list[tuple[_Column, int]], count: int) -> list[str]:
    header = [_fitted(each.name, width, each.is_number) for each, width in columns]
    rows = (
        [_fitted(each.cells[row], width, each.is_number) for each, width in columns]
        for row in range(count)
    )
    lines = [header, *rows]
    return [(" " * _GAP).join(line).rstrip() for line in lines]


def _stacked(columns: list[_Column], count: int, width: int) -> list[str]:
    """`name: value`, and a long value in more than one line."""
    from rich.cells import chop_cells

    indent = max(_cells(each.name) for each in columns) + len(": ")
    room = max(width - indent, _LEAST)
    lines: list[str] = []
    for row in range(count):
        if lines:
            lines.append("")
        for each in columns:
            cell = each.cells[row]
            parts = chop_cells(cell[: room * (_LINES + 1)], room)[: _LINES + 1] or [""]
            if len(parts) > _LINES:
                parts = [*parts[: _LINES - 1], _fitted("".join(parts[_LINES - 1 :]), room, False)]
            name = f"{each.name}:"
            lines.append((name + " " * (indent - _cells(name)) + parts[0]).rstrip())
            lines.extend(" " * indent + part for part in parts[1:])
    return lines


def _fitted(text: str, width: int, is_right: bool) -> str:
    """Cut, or filled up, to so many cells of a terminal."""
    from rich.cells import set_cell_size

    free = width - _cells(text)
    if free < 0:
        some = text[: _COMPOSED * width]  # a character may add nothing to the width
        return set_cell_size(some, width - 1) + "…"
    return " " * free + text if is_right else text + " " * free


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def _visible(text: str) -> str:
    """A terminal would obey other characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
