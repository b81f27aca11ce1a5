"""Arrow record batches in and out, with slices, nulls, column subsets and foreign types."""

from __future__ import annotations

import builtins
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.kernel import shapes
from tailrace.kernel.layout import COMPLETE, MAX_OFFSET, S2, ZSTD, Malformed, TooLarge
from tests.kernel import strategies
from tests.kernel.twins import GOLDEN, NOW, Twin, batch, fields, outcome

pa = pytest.importorskip("pyarrow")

RECORDS: list[Any] = [
    b"value",
    (b"key", None),
    (b"", b"", {"a": b"1", "b": b""}),
    (None, b"x" * 300, [("é", b"2"), ("é", b"3")]),
    None,
]
ROWS = [
    (10, NOW, None, b"value", []),
    (11, NOW, b"key", None, []),
    (12, NOW, b"", b"", [("a", b"1"), ("b", b"")]),
    (13, NOW, None, b"x" * 300, [("é", b"2"), ("é", b"3")]),
    (14, NOW, None, None, []),
]


TEXT: Any = "text"
BIG = shapes.BinaryOut(bytearray(99), bytearray(99), bytearray(99))


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    table.validate(full=True)
    names = table.schema.names
    found = []
    for row in table.to_pylist():
        if "headers" in row:
            row["headers"] = [(item["key"], item["value"]) for item in row["headers"]]
        found.append(tuple(row[name] for name in names))
    return found


@pytest.fixture(params=[0, S2, ZSTD])
def data(kernel: Twin, request: pytest.FixtureRequest) -> bytes:
    return bytes(kernel.encode(RECORDS, NOW, request.param).place(10))


def test_decode(arrow: ModuleType, data: bytes) -> None:
    table = arrow.decode_arrow(data, 0, len(data))
    assert table.schema.equals(arrow.schema())
    assert rows_of(table) == ROWS


def test_schema(arrow: ModuleType) -> None:
    schema = arrow.schema()
    assert arrow.COLUMNS == ("offset", "timestamp", "key", "value", "headers")
    assert tuple(schema.names) == arrow.COLUMNS
    assert [str(kind) for kind in schema.types[:4]] == ["int64", "int64", "binary", "binary"]
    assert str(schema.field("headers").type).startswith("list<item: struct<key: string")
    assert arrow.schema(["value"]).names == ["value"]
    with pytest.raises(ValueError, match="no such column: nope; there are offset, timestamp"):
        arrow.schema(["value", "nope"])


@pytest.mark.parametrize(
    "columns",
    [("value",), ("offset",), ("headers", "key"), ("timestamp", "value", "offset"), ("key",)],
)
def test_only_the_columns_asked_for(
    arrow: ModuleType, data: bytes, columns: tuple[str, ...]
) -> None:
    table = arrow.decode_arrow(data, 0, len(data), columns=columns)
    assert tuple(table.schema.names) == columns
    places = [arrow.COLUMNS.index(name) for name in columns]
    assert rows_of(table) == [tuple(row[place] for place in places) for row in ROWS]


def test_no_columns_at_all(arrow: ModuleType, data: bytes) -> None:
    table = arrow.decode_arrow(data, 0, len(data), 11, 13, ())
    assert (table.num_rows, table.num_columns) == (2, 0)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 12), (12, MAX_OFFSET), (11, 13), (14, 15), (15, 99), (0, 10), (12, 12)]
)
def test_ranges(arrow: ModuleType, data: bytes, first: int, last: int) -> None:
    table = arrow.decode_arrow(data, 0, len(data), first, last)
    assert rows_of(table) == [row for row in ROWS if first <= row[0] < last]


LABELS = {"_topic": [b"t", None, b"", None], "_state": [None, b"1", None, None]}
LABELLED: list[Any] = [
    (b"", b"0", [("_topic", b"t"), ("mine", b"m"), ("_topic", b"second")]),
    (b"", None, {"_state": b"1"}),
    (b"k", b"2", [("_topic", b""), ("_top", b"x"), ("_topics", b"y"), ("\udcff", b"z")]),
    (None, b"3"),
]


@pytest.fixture(params=[0, S2, ZSTD])
def labelled(kernel: Twin, request: pytest.FixtureRequest) -> bytes:
    """Two batches with a gap between them, padded so that they are compressed if they may be."""
    parts = [
        kernel.encode([*LABELLED, bytes(1000)], NOW, request.param).place(base) for base in (0, 10)
    ]
    return b"".join(parts)


@pytest.mark.parametrize("picked", [(), ("_topic",), ("_state", "_topic"), ("_none", "_topic")])
@pytest.mark.parametrize("columns", [(), ("offset",), ("headers", "key"), None])
def test_picked_headers_are_columns(
    arrow: ModuleType, labelled: bytes, picked: tuple[str, ...], columns: tuple[str, ...] | None
) -> None:
    columns = arrow.COLUMNS if columns is None else columns
    size = len(labelled)
    for first, last in ((0, MAX_OFFSET), (1, 13), (2, 3)):
        table = arrow.decode_arrow(labelled, 0, size, first, last, columns, picked=picked)
        table.validate(full=True)
        assert table.schema.names == [*columns, *picked]
        assert all(table.schema.field(name).type == pa.binary() for name in picked)
        plain = arrow.decode_arrow(labelled, 0, size, first, last, columns)
        assert table.select(list(columns)).equals(plain) if columns else table.num_rows
        rows = [row for row in (0, 1, 2, 3, 4, 10, 11, 12, 13, 14) if first <= row < last]
        for name in picked:
            values = [*LABELS.get(name, [None] * 4), None]
            assert table.column(name).to_pylist() == [values[row % 10] for row in rows]


def test_picked_from_what_fluxmq_wrote(arrow: ModuleType) -> None:
    table = arrow.decode_arrow(
        GOLDEN, 0, 95, columns=["headers"], picked=["_id", "_topic"], hidden=["_topic", "_state"]
    )
    assert rows_of(table) == [([("_id", b"7")], b"7", b"$queue/orders")]


def test_bitmaps_only_where_there_are_nulls(kernel: Twin, arrow: ModuleType) -> None:
    data = kernel.encode([(b"", b"", {"a": b"", "b": b""}), (b"k", b"", {"a": b"1"})], NOW).place(0)
    for flag, nulls in ((False, 0), (True, 1)):
        table = arrow.decode_arrow(
            data, 0, len(data), columns=["key"], picked=["a", "b"], empty_key_is_null=flag
        )
        assert [column.null_count for column in table.columns] == [nulls, 0, 1]
        bitmaps = [column.buffers()[0] is not None for column in table.columns]
        assert bitmaps == [bool(nulls), False, True]


def test_hidden_headers(arrow: ModuleType, labelled: bytes) -> None:
    def lists(*hidden: str) -> Any:
        table = arrow.decode_arrow(
            labelled, 0, len(labelled), 0, 5, ["headers"], picked=["_topic"], hidden=hidden
        )
        assert table.column("_topic").to_pylist() == [*LABELS["_topic"], None]
        return [row[0] for row in rows_of(table)]

    names = ["_topic", "mine", "_state", "_top", "_topics", "�"]
    shown = [[name for name, _ in row] for row in lists()]
    assert shown == [
        ["_topic", "mine", "_topic"],
        ["_state"],
        ["_topic", "_top", "_topics", "�"],
        [],
        [],
    ]
    assert lists("nothing", "") == lists()
    for hidden in (["_topic"], ["_state", "mine"], ["_top", "_top"], names[:5]):
        expected = [[name for name in row if name not in hidden] for row in shown]
        assert [[name for name, _ in row] for row in lists(*hidden)] == expected
    assert lists(*names[:5], "\udcff") == [[]] * 5


def test_empty_keys_as_nulls(arrow: ModuleType, labelled: bytes) -> None:
    def keys(**flags: bool) -> Any:
        table = arrow.decode_arrow(labelled, 0, len(labelled), 0, 4, ["key", "value"], **flags)
        return table.column("key").to_pylist()

    assert keys() == keys(empty_key_is_null=False) == [b"", b"", b"k", None]
    assert keys(empty_key_is_null=True) == [None, None, b"k", None]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"picked": ["a", "b", "c", "d", "e"]}, ValueError, "at most 4 headers can be picked"),
        ({"picked": ["a", "b", "a"]}, ValueError, "picked only once"),
        ({"picked": ["a", "key"]}, ValueError, "'key' has the name of a column"),
        ({"picked": "key"}, TypeError, "picked must be a sequence of names, not one str"),
        ({"picked": [b"a"]}, TypeError, "name must be a str, not bytes"),
        ({"picked": ["\udcff"]}, ValueError, "surrogates not allowed"),
        ({"hidden": [str(n) for n in range(17)]}, ValueError, "at most 16 headers can be hidden"),
        ({"hidden": "key"}, TypeError, "hidden must be a sequence of names, not one str"),
        ({"hidden": [b"a"]}, TypeError, "name must be a str, not bytes"),
    ],
)
def test_names_that_cannot_be(
    arrow: ModuleType, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        arrow.decode_arrow(GOLDEN, 0, 95, **options)
    if "picked" in options:
        with pytest.raises(error, match=message):
            arrow.schema(picked=options["picked"])


def test_as_many_names_as_may_be(kernel: Twin, arrow: ModuleType) -> None:
    headers = {str(n): b"%d" % n for n in range(20)}
    data = kernel.encode([(b"k", b"v", headers)], NOW).place(0)
    table = arrow.decode_arrow(
        data,
        0,
        len(data),
        columns=("value", "headers"),
        picked=["19", "0", "16", "3"],
        hidden=[str(n) for n in range(16)],
    )
    shown = [(str(n), b"%d" % n) for n in range(16, 20)]
    assert rows_of(table) == [(b"v", shown, b"19", b"0", b"16", b"3")]


def test_a_column_may_be_picked_where_it_is_not_asked_for(kernel: Twin, arrow: ModuleType) -> None:
    data = kernel.encode([(b"k", b"v", {"key": b"header"})], NOW).place(0)
    table = arrow.decode_arrow(data, 0, len(data), columns=["value"], picked=["key"])
    assert rows_of(table) == [(b"v", b"header")]


def test_nothing(arrow: ModuleType) -> None:
    table = arrow.decode_arrow(b"", 0, 0)
    assert table.num_rows == 0
    assert table.schema.equals(arrow.schema())
    table = arrow.decode_arrow(b"", 0, 0, picked=["a"])
    assert table.num_rows == 0
    assert table.schema.equals(arrow.schema(picked=["a"]))


def test_thousands_of_small_batches(kernel: Twin, arrow: ModuleType) -> None:
    parts = [
        bytes(kernel.encode_one(b"v%d" % n, b"k", {"n": b"%d" % n}, n, NOW).place(2 * n))
        for n in range(3000)
    ]
    data = b"??" + b"".join(parts) + b"??"
    table = arrow.decode_arrow(data, 2, len(data) - 2, 100)
    assert rows_of(table) == [
        (2 * n, n, b"k", b"v%d" % n, [("n", b"%d" % n)]) for n in range(50, 3000)
    ]


def test_mixed_compression(kernel: Twin, arrow: ModuleType) -> None:
    parts = [kernel.encode([bytes(400)] * 3, NOW, codec).place(3 * codec) for codec in range(3)]
    data = b"".join(parts)
    table = arrow.decode_arrow(data, 0, len(data), columns=("offset", "value"))
    assert rows_of(table) == [(offset, bytes(400)) for offset in range(9)]


def test_names_that_are_not_utf8_are_replaced(kernel: Twin, arrow: ModuleType) -> None:
    data = kernel.encode([(None, None, [("\udcff", b"\xff"), ("ok", b"")])], NOW).place(0)
    table = arrow.decode_arrow(data, 0, len(data), columns=["headers"])
    assert rows_of(table) == [([("�", b"\xff"), ("ok", b"")],)]


def test_damage(kernel: Twin, arrow: ModuleType) -> None:
    for bad in (b"\0\0\1\x7e\0", b"\0\0\1\1\1", b"\1\0\1\1\0", b"\xff" * 20):
        data = GOLDEN + batch(bad, base_offset=1)
        with pytest.raises(Malformed) as caught:
            arrow.decode_arrow(data, 0, len(data))
        assert caught.value.position == 95
    with pytest.raises(Malformed, match="cut short"):
        arrow.decode_arrow(GOLDEN, 0, 94)


def test_kernel_wants_inflated_regions(kernel: Twin) -> None:
    data = kernel.encode([bytes(500)], NOW, S2).place(0)
    with pytest.raises(Malformed, match="inflate"):
        kernel.measure_columns(data, 0, len(data))
    with pytest.raises(Malformed, match="inflate"):
        kernel.fill_columns(data, 0, len(data), 0, MAX_OFFSET, shapes.Outputs())


def test_columns_beyond_32_bits(arrow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_MAX_BYTES", 10)
    with pytest.raises(ValueError, match="pass fewer batches"):
        arrow.decode_arrow(GOLDEN, 0, 95)
    with pytest.raises(ValueError, match="has 13 bytes"):
        arrow.decode_arrow(GOLDEN, 0, 95, columns=["value"], picked=["_topic"])


def test_measure(kernel: Twin) -> None:
    data = kernel.encode(RECORDS, NOW).place(10)
    assert kernel.measure_columns(data, 0, len(data)) == shapes.Sizes(
        5, 3, 3, 2, 5 + 300, 4, 1 + 1 + 2 + 2, 1 + 0 + 1 + 1
    )
    assert kernel.measure_columns(data, 0, len(data), 12, 13).rows == 1


def test_measure_what_is_wanted(kernel: Twin) -> None:
    data = kernel.encode(RECORDS, NOW).place(10)

    def measured(*wanted: Any) -> Any:
        return kernel.measure_columns(data, 0, len(data), 0, 99, shapes.Wanted(*wanted))

    fields = (5, 3, 3, 2, 305)
    name = "é".encode()
    assert measured(False) == shapes.Sizes(*fields, 0, 0, 0)
    assert measured(False, (b"a", name)) == shapes.Sizes(*fields, 0, 0, 0, (4, 4), (1, 1))
    assert measured(True, (), (b"a",)) == shapes.Sizes(*fields, 3, 5, 2)
    assert measured(True, (name,), (b"a", name)) == shapes.Sizes(*fields, 1, 1, 0, (4,), (1,))
    assert measured(False, (), (b"a",), True) == shapes.Sizes(5, 4, 3, 2, 305, 0, 0, 0)


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (shapes.Wanted(picked=tuple(b"abcde"[n : n + 1] for n in range(5))), ValueError, "at most"),
        (shapes.Wanted(picked=(b"a", b"a")), ValueError, "only once"),
        (shapes.Wanted(picked=(TEXT,)), TypeError, "must be bytes, not str"),
        (shapes.Wanted(hidden=(b"a",) * 17), ValueError, "at most 16"),
        (shapes.Wanted(hidden=(TEXT,)), TypeError, "must be bytes, not str"),
    ],
)
def test_names_that_the_kernel_refuses(
    kernel: Twin, wanted: shapes.Wanted, error: type[Exception], message: str
) -> None:
    outputs = shapes.Outputs(picked=tuple(BIG for _ in wanted.picked))
    with pytest.raises(error, match=message):
        kernel.measure_columns(GOLDEN, 0, 95, 0, 99, wanted)
    with pytest.raises(error, match=message):
        kernel.fill_columns(GOLDEN, 0, 95, 0, 99, outputs, wanted)


def test_an_output_for_each_picked_header(kernel: Twin) -> None:
    for names, columns in (((b"a",), ()), ((), (BIG,)), ((b"a", b"b"), (BIG,))):
        outputs = shapes.Outputs(picked=columns)
        with pytest.raises(ValueError, match=f"{len(names)} headers .* {len(columns)} have"):
            kernel.fill_columns(GOLDEN, 0, 95, 0, 99, outputs, shapes.Wanted(picked=names))


@pytest.mark.parametrize("short", range(13))
def test_outputs_that_are_too_small(kernel: Twin, short: int) -> None:
    """Whatever changed since they were measured, nothing is written beyond them."""
    data = kernel.encode(RECORDS, NOW).place(10)
    sizes = [40, 40, 1, 24, 3, 1, 24, 305, 24, 20, 6, 20, 3]
    buffers = [bytearray(size) for size in sizes]

    def outputs() -> shapes.Outputs:
        b = buffers
        return shapes.Outputs(
            b[0],
            b[1],
            shapes.BinaryOut(b[2], b[3], b[4]),
            shapes.BinaryOut(b[5], b[6], b[7]),
            shapes.HeadersOut(
                b[8], shapes.BinaryOut(None, b[9], b[10]), shapes.BinaryOut(None, b[11], b[12])
            ),
        )

    kernel.fill_columns(data, 0, len(data), 0, MAX_OFFSET, outputs())
    for size in {sizes[short] - 1, 0}:
        buffers[short] = bytearray(size)
        with pytest.raises(ValueError, match="too small"):
            kernel.fill_columns(data, 0, len(data), 0, MAX_OFFSET, outputs())


@pytest.mark.parametrize("short", range(12))
def test_outputs_for_picked_headers_that_are_too_small(kernel: Twin, short: int) -> None:
    """All the buffers that there can be, so that one too many would show."""
    names = (b"a", b"b", "é".encode(), b"none")
    wanted = shapes.Wanted(True, names)
    data = kernel.encode(RECORDS, NOW).place(10)
    sizes = [1, 24, 1] * 4
    sizes[5] = sizes[11] = 0
    buffers = [bytearray(size) for size in sizes]
    large = [shapes.BinaryOut(*(bytearray(999) for _ in range(3))) for _ in range(4)]

    def fill() -> None:
        outputs = shapes.Outputs(
            bytearray(40),
            bytearray(40),
            large[0],
            large[1],
            shapes.HeadersOut(bytearray(24), large[2], large[3]),
            tuple(shapes.BinaryOut(*buffers[n : n + 3]) for n in range(0, 12, 3)),
        )
        kernel.fill_columns(data, 0, len(data), 0, MAX_OFFSET, outputs, wanted)

    fill()
    assert [bytes(buffers[n]) for n in range(0, 12, 3)] == [b"\4", b"\4", b"\x08", b"\0"]
    assert [bytes(buffers[n]) for n in range(2, 12, 3)] == [b"1", b"", b"2", b""]
    for size in {max(sizes[short] - 1, 0), 0} - {sizes[short]}:
        buffers[short] = bytearray(size)
        with pytest.raises(ValueError, match="too small"):
            fill()


def table_of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("codec", [0, S2, ZSTD])
def test_round_trip(kernel: Twin, arrow: ModuleType, codec: int) -> None:
    data = kernel.encode(RECORDS, NOW, codec).place(10)
    table = arrow.decode_arrow(data, 0, len(data))
    draft = arrow.encode_arrow(table, NOW, codec)
    assert (draft.count, draft.max_timestamp) == (5, NOW)
    assert draft.place(10) == data
    assert arrow.encode_arrow(table.select(["value"]), NOW).place(10) == (
        kernel.encode([row[3] for row in ROWS], NOW).place(10)
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.binary(3),
    ],
    ids=str,
)
def test_types_of_contents(kernel: Twin, arrow: ModuleType, kind: Any) -> None:
    values = [b"abc", None, b"xyz", b"123", None]
    if kind == pa.binary(3):
        column = pa.array(values, kind)
    else:
        column = pa.array([v and v.decode() for v in values]).cast(kind)
    expected = kernel.encode([(value, value) for value in values], NOW).place(0)
    assert arrow.encode_arrow(table_of(key=column, value=column), NOW).place(0) == expected
    sliced = table_of(key=column, value=column).slice(1, 3)
    expected = kernel.encode([(value, value) for value in values[1:4]], NOW).place(0)
    assert arrow.encode_arrow(sliced, NOW).place(0) == expected


def test_columns_of_nulls(kernel: Twin, arrow: ModuleType) -> None:
    nulls = pa.nulls(3)
    table = table_of(key=nulls, value=nulls, timestamp=nulls, headers=nulls)
    assert arrow.encode_arrow(table, NOW).place(0) == kernel.encode([None] * 3, NOW).place(0)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [5, None, -7], [5, NOW, -7]),
        (pa.int32(), [5, None, -7], [5, NOW, -7]),
        (pa.timestamp("ms"), [5, None, -7], [5, NOW, -7]),
        (pa.timestamp("us", "UTC"), [5999, None, 7001], [5, NOW, 7]),
        (pa.timestamp("ns", "Europe/Prague"), [5_999_999, None, 7_000_000], [5, NOW, 7]),
        (pa.timestamp("s"), [5, None, -7], [5000, NOW, -7000]),
    ],
    ids=str,
)
def test_types_of_timestamps(
    kernel: Twin, arrow: ModuleType, kind: Any, values: list[Any], expected: list[int]
) -> None:
    column = pa.array(values, pa.int32() if kind == pa.int32() else pa.int64()).cast(kind)
    table = table_of(value=pa.array([b"a", b"b", b"c"]), timestamp=column)
    draft = arrow.encode_arrow(table, NOW)
    assert draft.max_timestamp == NOW
    data = draft.place(0)
    assert [record.timestamp for record in kernel.decode(data, 0, len(data))] == expected
    data = arrow.encode_arrow(table, NOW, start=2).place(0)
    assert [record.timestamp for record in kernel.decode(data, 0, len(data))] == expected[2:]


HEADERS = [[("a", b"1"), ("a", b"2")], None, [], [("b", b"")], [("c", b"3")]]
STRUCT = pa.struct([("key", pa.string()), ("value", pa.binary())])
SWAPPED = pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.list_(STRUCT),
        pa.large_list(STRUCT),
        pa.list_(SWAPPED),
    ],
    ids=str,
)
def test_types_of_headers(kernel: Twin, arrow: ModuleType, kind: Any) -> None:
    rows: list[Any] = HEADERS
    if not pa.types.is_map(kind):
        rows = [row and [{"key": name, "value": value} for name, value in row] for row in HEADERS]
    table = table_of(value=pa.array([b"v"] * 5), headers=pa.array(rows, kind))
    for start in range(5):
        for stop in range(start + 1, 6):
            items = [(None, b"v", headers) for headers in HEADERS[start:stop]]
            expected = kernel.encode(items, NOW).place(9)
            assert arrow.encode_arrow(table, NOW, 0, start, stop).place(9) == expected
            assert arrow.encode_arrow(table.slice(start, stop - start), NOW).place(9) == expected


@pytest.mark.parametrize("pairs", [[], [("a", b"")], [("a", b"1"), ("b", b"x" * 300), ("a", b"")]])
def test_headers_that_all_rows_have(kernel: Twin, arrow: ModuleType, pairs: list[Any]) -> None:
    """They are what a column of them would be, in each cut."""
    values = [b"v", None, b"w" * 200, b"", b"x"]
    table = table_of(value=pa.array(values), key=pa.array([b"k", None, b"", b"l", None]))
    lists = [[{"key": name, "value": value} for name, value in pairs]] * 5
    column = table.append_column("headers", pa.array(lists, pa.list_(STRUCT)))
    source, other = arrow.Source(table, kernel.encode_headers(pairs)), arrow.Source(column)
    for most in (1, 3, 9):
        assert source.plan(most, 10_000) == other.plan(most, 10_000)
    assert source.plan(9, 600) == other.plan(9, 600)
    for start in range(5):
        for stop in range(start + 1, 6):
            expected = arrow.encode_arrow(column, NOW, 0, start, stop).place(9)
            assert source.encode(NOW, 0, start, stop).place(9) == expected
            assert other.encode(NOW, 0, start, stop).place(9) == expected


def test_headers_of_a_column_and_of_all_rows(kernel: Twin, arrow: ModuleType) -> None:
    table = table_of(value=pa.array([b"v"]), headers=pa.array([[]], pa.list_(STRUCT)))
    with pytest.raises(ValueError, match="not both"):
        arrow.Source(table, kernel.encode_headers([]))


def test_parts_of_slices(arrow: ModuleType) -> None:
    """What stands in front of a slice, or was cut off, is not looked at."""
    rows = [[{"key": f"n{row}", "value": b"x" * row}] * (row % 4) for row in range(12)]
    table = table_of(
        value=pa.array([f"v{row}" if row % 3 else None for row in range(12)]),
        timestamp=pa.array([row if row % 5 else None for row in range(12)], pa.int64()),
        headers=pa.array([row or None for row in rows], pa.list_(STRUCT)),
    ).slice(2, 9)
    source = arrow.Source(table)
    for start in range(9):
        for stop in range(start + 1, 10):
            expected = arrow.encode_arrow(table, NOW, 0, start, stop).place(4)
            assert source.encode(NOW, 0, start, stop).place(4) == expected


def test_null_headers_are_refused(arrow: ModuleType) -> None:
    for item in (None, {"key": None, "value": b""}, {"key": "", "value": None}):
        headers = pa.array([[], [{"key": "a", "value": b"b"}, item]], pa.list_(STRUCT))
        table = table_of(value=pa.array([b"a", b"b"]), headers=headers)
        with pytest.raises(ValueError, match="row 1: a header's name and value must not be null"):
            arrow.encode_arrow(table, NOW)
        with pytest.raises(ValueError, match="must not be null"):
            arrow.plan_batches(table, 10, 1000)


def test_what_a_null_list_hides_does_not_matter(kernel: Twin, arrow: ModuleType) -> None:
    items = pa.array([{"key": None, "value": None}, {"key": "a", "value": b"b"}], STRUCT)
    mask = pa.array([True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items, mask=mask)
    table = table_of(value=pa.array([b"x", b"y"]), headers=lists)
    expected = kernel.encode([b"x", (None, b"y", {"a": b"b"})], NOW).place(0)
    assert arrow.encode_arrow(table, NOW).place(0) == expected


def test_the_offset_is_ignored(arrow: ModuleType) -> None:
    value = pa.array([b"x"])
    table = table_of(value=value, offset=pa.array([77]))
    assert (
        arrow.encode_arrow(table, NOW).data == arrow.encode_arrow(table_of(value=value), NOW).data
    )


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"key": [b"k"]}, ValueError, "'value' is missing; there are key"),
        ({"value": [b"v"], "other": [1]}, ValueError, "'other' is unknown"),
        ({"value": [1]}, TypeError, "'value' must be binary or string, not int64"),
        ({"value": [b"v"], "key": [1.5]}, TypeError, "'key' must be binary or string"),
        ({"value": [b"v"], "timestamp": [1.5]}, TypeError, "'timestamp' must be int64"),
        ({"value": [b"v"], "headers": [5]}, TypeError, "'headers' must be list<struct"),
        ({"value": [b"v"], "headers": [[5]]}, TypeError, "'headers' must be list<struct"),
        ({"value": [b"v"], "headers": [[{"k": "a", "value": b""}]]}, TypeError, "'headers'"),
        ({"value": [b"v"], "headers": [[{"key": 1, "value": b""}]]}, TypeError, "'headers'"),
    ],
)
def test_wrong_columns(
    arrow: ModuleType, columns: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = table_of(**{name: pa.array(values) for name, values in columns.items()})
    with pytest.raises(error, match=message):
        arrow.encode_arrow(table, NOW)


def test_timestamps_that_do_not_fit(arrow: ModuleType) -> None:
    table = table_of(value=pa.array([b"v"]), timestamp=pa.array([1 << 63], pa.uint64()))
    with pytest.raises(TypeError, match="'timestamp' of type uint64 is not int64"):
        arrow.encode_arrow(table, NOW)


def test_repeated_columns(arrow: ModuleType) -> None:
    column = pa.array([b"v"])
    table = pa.RecordBatch.from_arrays([column, column], names=["value", "value"])
    with pytest.raises(ValueError, match="repeated"):
        arrow.encode_arrow(table, NOW)


def test_rows_out_of_range(arrow: ModuleType) -> None:
    table = table_of(value=pa.array([b"a", b"b"]))
    for start, stop in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(ValueError, match="is not a range of 2 rows"):
            arrow.encode_arrow(table, NOW, 0, start, stop)
    with pytest.raises(ValueError, match="at least one record"):
        arrow.encode_arrow(table, NOW, 0, 1, 1)
    large = table_of(value=pa.nulls(65_536, pa.binary()))
    with pytest.raises(ValueError, match="at most 65535"):
        arrow.encode_arrow(large, NOW)
    assert arrow.encode_arrow(large, NOW, 0, 1).count == 65_535


def test_sections_that_are_too_large(kernel: Twin, arrow: ModuleType) -> None:
    """One long value, many times: the section is not made."""
    values = pa.array([bytes(1 << 20)]).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 300), values.dictionary)
    with pytest.raises(TooLarge) as caught:
        arrow.encode_arrow(table_of(value=column), NOW)
    assert caught.value.size > caught.value.limit


def test_wrong_time(arrow: ModuleType) -> None:
    with pytest.raises(TypeError, match="timestamp must be an int"):
        arrow.encode_arrow(table_of(value=pa.array([b""])), "now")
    with pytest.raises(ValueError, match="codec 9 is unknown"):
        arrow.encode_arrow(table_of(value=pa.array([b""])), NOW, 9)


def test_plan(kernel: Twin, arrow: ModuleType) -> None:
    table = table_of(value=pa.array([bytes(n) for n in (10, 20, 30, 40, 50)]))
    assert arrow.plan_batches(table, 100, 1000) == [(0, 5)]
    assert arrow.plan_batches(table, 2, 1000) == [(0, 2), (2, 4), (4, 5)]
    assert arrow.plan_batches(table, 1, 1000) == [(n, n + 1) for n in range(5)]
    assert arrow.plan_batches(table, 100, 55) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert arrow.plan_batches(table.slice(0, 0), 100, 100) == []
    with pytest.raises(TooLarge) as caught:
        arrow.plan_batches(table, 100, 54)
    assert (caught.value.size, caught.value.limit) == (55, 54)
    with pytest.raises(TooLarge):
        arrow.plan_batches(table, 100, 5)
    with pytest.raises(ValueError, match="max_records must be at least 1, not 0"):
        arrow.plan_batches(table, 0, 100)
    with pytest.raises(ValueError, match="'value' is missing; there are none"):
        arrow.plan_batches(table_of(), 1, 100)


def test_plan_never_exceeds_a_batch(arrow: ModuleType) -> None:
    table = table_of(value=pa.nulls(70_000, pa.binary()))
    assert arrow.plan_batches(table, 1 << 40, 1 << 40) == [(0, 65_535), (65_535, 70_000)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    specs=st.lists(strategies.records, min_size=1, max_size=12),
    max_records=st.integers(1, 5),
    max_bytes=st.sampled_from([9000, 20_000, 100_000]),
)
def test_plan_fits(
    kernel: Twin, arrow: ModuleType, specs: list[Any], max_records: int, max_bytes: int
) -> None:
    """Every range fits, they cover all rows in order, and a row that cannot fit is refused."""
    data = kernel.encode([kernel.Record(None, *spec) for spec in specs], NOW).place(0)
    table = arrow.decode_arrow(data, 0, len(data))
    ranges = outcome(arrow.plan_batches, table, max_records, max_bytes)
    if ranges is TooLarge:
        assert table.nbytes > max_bytes
        return
    assert [row for start, stop in ranges for row in range(start, stop)] == [*range(len(specs))]
    for start, stop in ranges:
        assert stop - start <= max_records
        assert arrow.encode_arrow(table, NOW, 0, start, stop).size <= 44 + max_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(specs=strategies.batches, codec=strategies.codecs)
def test_same_as_records(kernel: Twin, arrow: ModuleType, specs: list[Any], codec: int) -> None:
    """Through Arrow and back is the same batch, except for names that are not UTF-8."""
    records = [kernel.Record(None, *spec) for spec in specs]
    data = kernel.encode(records, NOW, codec).place(3)
    table = arrow.decode_arrow(data, 0, len(data))
    table.validate(full=True)
    again = arrow.encode_arrow(table, NOW, codec).place(3)
    end, next_offset, status = kernel.check(again, 0, len(again))
    assert (end, next_offset, status) == (len(again), 3 + len(specs), COMPLETE)
    for old, new in zip(
        kernel.decode(data, 0, len(data)), kernel.decode(again, 0, len(again)), strict=True
    ):
        assert fields(new)[:4] == fields(old)[:4]
        replaced = [
            (name.encode("utf-8", "surrogateescape").decode(errors="replace"), value)
            for name, value in old.headers.items()
        ]
        assert new.headers == replaced


def longs(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}q", *numbers)


GOOD = shapes.Binary(2, 0, None, longs(0, 1, 2), b"ab")
LISTS = shapes.HeaderLists(2, 0, None, 0, longs(0, 1, 2), GOOD, GOOD)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (shapes.Rows(2, GOOD._replace(offsets=longs(0, 1))), "value"),
        (shapes.Rows(2, GOOD._replace(offsets=longs(0, 1, 3))), "value"),
        (shapes.Rows(2, GOOD._replace(offsets=longs(-1, 1, 2))), "value"),
        (shapes.Rows(2, GOOD._replace(offsets=longs(1, 0, 2))), "value"),
        (shapes.Rows(2, GOOD._replace(validity=b"")), "value"),
        (shapes.Rows(2, GOOD._replace(skip=1)), "value"),
        (shapes.Rows(2, GOOD._replace(skip=-1)), "value"),
        (shapes.Rows(2, GOOD._replace(rows=1)), "value"),
        (shapes.Rows(2, GOOD, GOOD._replace(offsets=longs(0, 9, 9))), "key"),
        (shapes.Rows(2, GOOD, GOOD._replace(rows=1)), "key"),
        (shapes.Rows(2, GOOD, None, shapes.Integers(2, 0, None, longs(1))), "timestamp"),
        (shapes.Rows(2, GOOD, None, shapes.Integers(1, 0, None, longs(1))), "timestamp"),
        (shapes.Rows(2, GOOD, None, shapes.Integers(2, 0, b"", longs(1, 2))), "timestamp"),
        (shapes.Rows(2, GOOD, None, shapes.Integers(2, -1, None, longs(1, 2))), "timestamp"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(rows=1)), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(skip=-1)), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(base=-1)), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(base=1)), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(validity=b"")), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(offsets=longs(0, 1))), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(offsets=longs(0, 1, 3))), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(offsets=longs(1, 0, 2))), "headers"),
        (shapes.Rows(2, GOOD, None, None, LISTS._replace(names=GOOD._replace(rows=1))), "headers"),
        (
            shapes.Rows(
                2, GOOD, None, None, LISTS._replace(values=GOOD._replace(offsets=longs(0, 9, 9)))
            ),
            "headers",
        ),
        (
            shapes.Rows(
                2, GOOD, None, None, LISTS._replace(names=GOOD._replace(offsets=longs(0, 9, 9)))
            ),
            "headers",
        ),
    ],
)
def test_arrays_that_are_not_valid(kernel: Twin, rows: shapes.Rows, name: str) -> None:
    """Nothing that an Arrow array claims is believed."""
    with pytest.raises(ValueError, match=f"column '{name}' is not a valid Arrow array"):
        kernel.encode_columns(rows, NOW)


def test_a_valid_one(kernel: Twin) -> None:
    rows = shapes.Rows(2, GOOD, GOOD, shapes.Integers(2, 0, None, longs(5, 6)), LISTS)
    data = kernel.encode_columns(rows, NOW).place(0)
    items = [
        kernel.Record(timestamp=5, key=b"a", value=b"a", headers={"a": b"a"}),
        kernel.Record(timestamp=6, key=b"b", value=b"b", headers={"b": b"b"}),
    ]
    assert data == kernel.encode(items, NOW).place(0)


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.kernel import arrow

    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "pyarrow":
            raise ImportError("no module named pyarrow")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'tailrace\[arrow\]'"):
        arrow.decode_arrow(GOLDEN, 0, len(GOLDEN))
