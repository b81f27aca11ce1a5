"""Rows for people: what they see of them on terminals of different widths. No Spark is started."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as t

from tailrace.cli.sql_table import Laid, lay_out
from tests.spark.support import schema

HEADER = [{"key": "trace", "value": b"0af7651916cd43dd8448eb211c80319c"}]


def rows(count: int, *, headers: bool) -> list[tuple[Any, ...]]:
    """As `SELECT * FROM orders` gives them."""
    return [
        (
            f"customer-{number}".encode(),
            b'{"order": %d, "what": "two cups, a plate and whatever else there was"}' % number,
            "$queue/orders",
            0,
            123_456 + number,
            "2026-01-31T09:26:53.000Z",
            0,
            HEADER * 3 if headers else [],
            "orders",
            "",
            f"orders:{123_456 + number}",
            None,
        )
        for number in range(count)
    ]


def laid(columns: int, count: int = 20, *, headers: bool = True, lines: int = 24) -> Laid:
    size = os.terminal_size((columns, lines))
    return lay_out(schema(), rows(count, headers=headers), size)


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_of_many_rows_what_matters_most_survives(width: int, headers: bool) -> None:
    found = laid(width, headers=headers)
    names = found.lines[0].split()
    assert {"key", "value", "offset"} <= set(names)
    assert "headers" not in names
    assert len(found.lines) == 21
    assert max(map(len, found.lines)) <= width
    assert found.lines[1].startswith('customer-0   {"order": 0,')
    assert all(str(123_456 + number) in found.lines[number + 1] for number in range(20))
    assert found.note is not None
    assert found.note.startswith(f"{len(names)} of 12 columns shown; left out: ")
    assert found.note.endswith("widen the terminal, or use --json")


def test_the_table_on_80_columns() -> None:
    found = laid(80, count=2, headers=True)
    assert found.lines == [
        "key         value                               offset  timestamp",
        'customer-0  {"order": 0, "what": "two cups, a…  123456  2026-01-31T09:26:53.000Z',
        'customer-1  {"order": 1, "what": "two cups, a…  123457  2026-01-31T09:26:53.000Z',
    ]
    assert found.note == (
        "4 of 12 columns shown; left out: topic, partition, timestampType, headers, queue, "
        "routing_key and 2 more. Name the columns you want, widen the terminal, or use --json"
    )


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_one_row_is_written_line_by_line(width: int, headers: bool) -> None:
    found = laid(width, count=1, headers=headers)
    assert found.note is None
    assert not found.is_table
    assert max(map(len, found.lines)) <= width
    names = [line.partition(":")[0] for line in found.lines if not line.startswith(" ")]
    assert names == schema().names
    assert "key:           customer-0" in found.lines
    assert "offset:        123456" in found.lines
    assert "expires_at:" in found.lines


def test_what_is_computed_goes_before_what_a_queue_repeats() -> None:
    kind = t.StructType([*schema().fields, t.StructField("n", t.LongType())])
    given = [(*row, 7) for row in rows(20, headers=True)]
    found = lay_out(kind, given, os.terminal_size((84, 24)))
    assert found.lines[0].split() == ["key", "value", "offset", "timestamp", "n"]


def test_a_long_value_does_not_fill_the_terminal() -> None:
    kind = t.StructType([t.StructField(f"c{n}", t.StringType()) for n in range(20)])
    found = lay_out(kind, [("x" * 10_000, *["y" * 30] * 19)], os.terminal_size((40, 50)))
    assert found.lines[:5] == [
        "c0:  " + "x" * 35,
        "     " + "x" * 35,
        "     " + "x" * 35,
        "     " + "x" * 34 + "…",
        "c1:  " + "y" * 30,
    ]


def test_all_columns_are_shown_where_there_is_room() -> None:
    names = schema().names
    for width in (150, 200, 400):
        found = laid(width)
        assert found.note is None
        assert found.lines[0].split() == names
        assert max(map(len, found.lines)) <= width
    assert "…" not in laid(600).lines[1]


def test_columns_share_what_room_there_is() -> None:
    kind = t.StructType([t.StructField(name, t.StringType()) for name in "abcdef"])
    found = lay_out(kind, [("x" * 100,) * 5 + ("y",)] * 20, os.terminal_size((71, 24)))
    assert found.lines[1] == "  ".join(["x" * 11 + "…"] * 5) + "  y"


@pytest.mark.parametrize("count", [1, 20])
def test_what_is_piped_is_complete(count: int) -> None:
    given = rows(count, headers=True)
    given[0] = (b"k", b"x" * 20_000, *given[0][2:])
    found = lay_out(schema(), given, None)
    assert found.note is None
    assert len(found.lines) == count + 1
    assert found.lines[0].split() == schema().names
    assert "x" * 20_000 in found.lines[1]
    assert not any("…" in line for line in found.lines)


def test_characters_of_two_cells_are_counted() -> None:
    kind = t.StructType([t.StructField(name, t.StringType()) for name in ("a", "b")])
    found = lay_out(kind, [("注文" * 20, "x")] * 20, os.terminal_size((13, 24)))
    assert found.lines[1] == "注文注文 …  x"


@pytest.mark.parametrize("name", ["plan", "createtab_stmt"])
@pytest.mark.parametrize("size", [None, os.terminal_size((20, 24))])
def test_a_plan_is_text(name: str, size: os.terminal_size | None) -> None:
    kind = t.StructType([t.StructField(name, t.StringType())])
    text = "== Physical Plan ==\n*(1) Project [key#12, value#13]\n\x1b\n"
    found = lay_out(kind, [(text,)], size)
    assert found.lines == ["== Physical Plan ==", "*(1) Project [key#12, value#13]", "\\x1b"]
    assert not found.is_table


def test_of_no_rows_there_is_the_header() -> None:
    assert laid(400, count=0).lines[0].split() == schema().names
    assert {"key", "value", "offset"} <= set(laid(80, count=0).lines[0].split())


def test_letters_of_two_characters_are_cut_by_their_width() -> None:
    kind = t.StructType([t.StructField("a", t.StringType()), t.StructField("b", t.StringType())])
    found = lay_out(kind, [("e\u0301" * 100, "x" * 100)], os.terminal_size((40, 24)))
    first = found.lines[1].split()[0]
    assert first.endswith("…")
    assert first.count("e") == found.lines[0].index("b") - 3  # two between them, and the sign
