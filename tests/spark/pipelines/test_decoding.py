"""Values as columns, in each format; and what does not fit, with the reason, as dead letters."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Any

import pytest

from tailrace.errors import ConfigError, TailraceError
from tests.spark.pipelines.support import Place

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "other", "type": ["null", "Kind"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip


def test_json(spark: Any, place: Place) -> None:
    good = [{"id": 1, "item": "cup", "at": "2026-01-31T12:00:00Z"}, {"item": "plate", "more": 1}]
    bad = {
        b"nothing": "it is not a JSON object: 'nothing'",
        b'{"id": "x", "item": "cup"}': "the field 'id' is no bigint: 'x'",
        b"\xff\xfe": "it is not UTF-8",
        b'{"id": 1}': "the field 'item' is missing",
        b"[1]": "it is not a JSON object: '[1]'",
        b"": "the value is empty",
        b"5": "it is not a JSON object: '5'",
        b'{"item": "cup", "at": "soon"}': "the field 'at' is no timestamp: 'soon'",
    }
    place.publish("events", *good, key="k", headers={"a": "b"})
    place.publish("events", *bad, key="bad", headers={"a": "b"})
    place.publish("events", {"id": 3, "item": "last"})
    definition = place.define(
        format="json",
        schema="id long, item string NOT NULL, at timestamp",
        sql="SELECT key, id, item, hour(at) AS hour, offset AS was FROM events",
    )
    run = place.run(spark, definition)
    assert place.documents("out") == [
        {"id": 1, "item": "cup", "hour": 12, "was": 0},
        {"id": None, "item": "plate", "hour": None, "was": 1},
        {"id": 3, "item": "last", "hour": None, "was": 10},
    ]
    assert [message.key for message in place.messages("out")] == [b"k", b"k", None]
    assert place.reasons("events") == bad
    assert (run.status.rows_in, run.status.rows_out, run.status.dead_letters) == (11, 3, 8)
    with place.open() as store:
        letter = store.dead("events")[0]
        assert letter.key == b"bad"
        assert letter.headers["a"] == b"b"
        assert letter.headers["_dlq_original_offset"] == b"2"
        assert store.redrive("events") == 8  # for all, which this pipeline is one of
    run = place.run(spark, definition)
    assert (run.status.rows_in, run.status.dead_letters) == (8, 8)


def test_a_message_that_several_refuse(spark: Any, place: Place) -> None:
    """Each says so, wherever it puts its letters, and the message comes back once."""
    place.publish("events", {"id": 1}, {"id": "x"}, b"nothing")
    given = {"format": "json", "sql": "SELECT id FROM events"}
    first = place.define(name="first", schema="id long", **given)
    second = place.define(name="second", schema="id long", dead_letters="refused", **given)
    for definition in (first, second):
        place.run(spark, definition)
    with place.open() as store:
        letters = store.dead("events", places=["refused"])
        assert [letter.headers["_dlq_pipeline"] for letter in letters] == [
            *(b"first", b"first", b"second", b"second")
        ]
        assert store.redrive("events", places=["refused"]) == 2
    place.run(spark, first)
    place.run(spark, second)
    with place.open() as store:
        assert store.redrive("events", places=["refused"]) == 2  # of four letters, as before
    assert place.values("events")[3:] == [b'{"id": "x"}', b"nothing"] * 2


def test_a_decoded_message_is_passed_on_as_it_is(spark: Any, place: Place) -> None:
    place.publish("events", {"id": 1, "key": "mine"}, key="k", timestamp=1_700_000_000_000)
    definition = place.define(
        format="json", schema="id long, key string", sql="SELECT * FROM events"
    )
    place.run(spark, definition)
    [message] = place.messages("out")
    assert (message.key, message.value) == (b"mine", b'{"id":1}')
    assert message.timestamp == 1_700_000_000_000


def test_csv(spark: Any, place: Place) -> None:
    bad = {
        b"1;2": "it is not a line of 3 columns: '1;2'",
        b"x;cup;1": "the column 'id' is no bigint: 'x'",
        b"\xff": "it is not UTF-8",
        b"": "the value is empty",
        b"\r\n": "the value is empty",
        b" 3 ;cup;1": "the column 'id' is no bigint: ' 3 '",
        b'3;"cup";"1;5"': "the column 'amount' is no double: '1;5'",
    }
    place.publish("events", b'1;"a;b";2.5', b"2;;", *bad)
    definition = place.define(
        format="csv",
        delimiter=";",
        schema="id long, item string, amount double",
        sql="SELECT id, item, amount FROM events",
        dead_letters="refused",
    )
    place.run(spark, definition)
    assert place.documents("out") == [
        {"id": 1, "item": "a;b", "amount": 2.5},
        {"id": 2, "item": None, "amount": None},
    ]
    found = {m.value: m.headers["_dlq_reason"].decode() for m in place.messages("refused")}
    assert found == bad


def test_csv_of_one_column(spark: Any, place: Place) -> None:
    """A line may be empty then."""
    place.publish("events", b"1", b"", b"x")
    place.run(spark, place.define(format="csv", schema="id long", sql="SELECT id FROM events"))
    assert place.documents("out") == [{"id": 1}, {"id": None}]
    assert place.reasons("events") == {b"x": "the column 'id' is no bigint: 'x'"}


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_avro(spark: Any, place: Place, kind: str) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is missing: tailrace[avro]")
    from decimal import Decimal

    row = {
        "id": 7,
        "amount": None,
        "at": 1_700_000_000_000,
        "tags": ["a", "b"],
        "kind": "OLD",
        "other": "NEW",
        "price": Decimal("12.34"),
        "uuid": "00000000-0000-4000-8000-000000000000",
    }
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(AVRO), row)
    value = buffer.getvalue()
    place.publish("events", value, value[:5], value + b"more", b"", key="k")
    (place.folder / "order.avsc").write_text(json.dumps(AVRO))
    definition = place.define(
        format="avro",
        schema_file="order.avsc",
        sql="SELECT key, id, amount, unix_millis(at) AS at, tags, kind, other, price, uuid "
        "FROM events",
        conf=[f"spark.sql.timestampType={kind}"],  # a moment is one whatever `timestamp` is
    )
    place.run(spark, definition)
    [found] = place.documents("out")
    assert found == {**row, "price": 12.34}
    reasons = place.reasons("events")
    assert list(reasons) == [value[:5], value + b"more", b""]
    assert all(each.startswith("it is not Avro of the schema: ") for each in reasons.values())
    assert reasons[value + b"more"].endswith("4 bytes are left over")


def test_json_with_more_behind_it(spark: Any, place: Place) -> None:
    good = [
        b'{"id": 1}',
        b' {"id": 2} \r\n',
        b'{"id": 3, "in": {"a": [{}]}}',
        b'{"id": 4, "text": "} {] ,"}\t',
        b'{"id": 5, "_end_": [{"x": NaN}]}',
        b"{'id': 6, 'in': {}}",
        '{"id": 7, "text": "}ü"}'.encode(),
    ]
    more = [
        b"garbage",
        b"5",
        b'{"id": 0}',
        b', {"id": 0}',
        b',"a": {}',
        b"}",
        b"]",
        b"] }",
        b',{"_end_": 1}]',
    ]
    bad = [b'{"id": 0} ' + each for each in more]
    place.publish("events", *good, *bad)
    sql = "SELECT string(id) AS value FROM events"
    place.run(spark, place.define(format="json", schema="id long", sql=sql))
    assert place.values("out") == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert place.reasons("events") == {
        each: f"there is more after the JSON object: '{each.decode()}'" for each in bad
    }


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema: Expecting property name"),
        ('"long"', "no Avro schema of a record"),
        ('{"type": "record", "name": "R"}', "no Avro schema: "),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "a union of several types",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "R is inside itself",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}',
            "null and nothing else",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null"]}]}',
            "null and nothing else",
        ),
        (
            '{"type": "record", "name": "x.R", "fields": [{"name": "a", "type": "R2"}]}',
            "no Avro schema: UnknownType",
        ),
    ],
)
def test_avro_schemas_that_are_no_columns(schema: str, said: str) -> None:
    pytest.importorskip("fastavro", reason="fastavro is missing: tailrace[avro]")
    pytest.importorskip("pyspark")
    from tailrace.spark.pipelines.avro import columns_of

    with pytest.raises(ConfigError, match=said):
        columns_of(schema)


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}


@pytest.mark.parametrize(
    ("kinds", "columns", "more"),
    [
        ([{**COLOUR, "name": "com.x.Colour"}, "com.x.Colour"], ["string"] * 2, {}),
        ([COLOUR, "Colour", "com.x.Colour"], ["string"] * 3, {"namespace": "com.x"}),
        ([COLOUR, "com.x.Colour"], ["string"] * 2, {"name": "com.x.R", "namespace": "other"}),
        (
            [{**COLOUR, "namespace": "a"}, {**POINT, "name": "b.Colour"}, "a.Colour", "b.Colour"],
            ["string", "struct<x:int>"] * 2,
            {},
        ),
        (
            [{**POINT, "name": "a.Point", "fields": [{"name": "c", "type": COLOUR}]}, "a.Colour"],
            ["struct<c:string>", "string"],
            {"namespace": "b"},
        ),
        (
            [{**COLOUR, "namespace": ""}, {**POINT, "name": "Colour"}, "Colour"],
            ["string", "struct<x:int>", "struct<x:int>"],
            {"namespace": "b"},
        ),
        ([{"type": "fixed", "name": "F", "size": 4}, "F"], ["binary"] * 2, {}),
        ([{"type": "int", "logicalType": "decimal", "precision": 4}], ["int"], {}),
        (
            [{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}],
            ["decimal(4,1)"],
            {},
        ),
        ([[{"type": "null"}, "long"]], ["bigint"], {}),
    ],
)
def test_avro_types_with_names(kinds: list[Any], columns: list[str], more: dict[str, Any]) -> None:
    pytest.importorskip("fastavro", reason="fastavro is missing: tailrace[avro]")
    from tailrace.spark.pipelines.avro import columns_of

    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    found = columns_of(json.dumps({"type": "record", "name": "R", "fields": fields, **more}))
    assert found == f"struct<{','.join(f'f{at}:{kind}' for at, kind in enumerate(columns))}>"


def test_avro_that_is_no_column() -> None:
    """A decimal may have more digits than the schema says; only its own message does not fit."""
    fastavro = pytest.importorskip("fastavro", reason="fastavro is missing: tailrace[avro]")
    import pyarrow as pa
    from pyspark.sql.types import DecimalType, StringType, StructField, StructType

    from tailrace.spark.pipelines import avro

    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = {"type": "record", "name": "r", "fields": [{"name": "price", "type": price}]}
    stored = {"type": "record", "name": "r", "fields": [{"name": "price", "type": "bytes"}]}
    values = []
    for cents in (125, 10**12, 250):
        buffer = io.BytesIO()
        row = {"price": cents.to_bytes(8, "big")}
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(stored), row)
        values.append(buffer.getvalue())
    fields = StructType([StructField("price", DecimalType(4, 2))])
    reading = avro._Decoding.__new__(avro._Decoding)
    reading._columns = StructType(
        [StructField("reason", StringType()), StructField("fields", fields)]
    )
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    found = reading._decoded(batch, fastavro.parse_schema(schema)).to_pylist()
    assert [row["fields"] for row in found] == [
        {"price": Decimal("1.25")},
        None,
        {"price": Decimal("2.50")},
    ]
    reasons = [row["reason"] for row in found]
    assert reasons[0] is reasons[2] is None
    assert reasons[1].startswith("a field does not fit its type: ")
    assert "precision" in reasons[1]


def test_the_end_of_a_line_of_csv_is_no_data(spark: Any, place: Place) -> None:
    """Python's `csv.writer` puts it there."""
    place.publish("events", b"1,2\r\n", b"3,4\n", b'5,"6\n"\r\n')
    definition = place.define(
        format="csv", schema="id long, item string", sql="SELECT id, item FROM events"
    )
    place.run(spark, definition)
    assert [tuple(each.values()) for each in place.documents("out")] == [
        (1, "2"),
        (3, "4"),
        (5, "6\n"),
    ]


def test_csv_as_others_write_and_read_it(spark: Any, place: Place) -> None:
    """In values, in a table and in files of a target: a quote in quotes is doubled, and a backslash
    is one."""
    texts = ["plain", 'a "b", c', '"', "back\\slash", 'ends with "\\', " wide ", "two\nlines"]
    lines = []
    for number, text in enumerate(texts):
        buffer = io.StringIO()
        csv.writer(buffer).writerow([number, text])
        lines.append(buffer.getvalue())
    (place.folder / "same.csv").write_bytes("".join(["id,same\r\n", *lines]).encode())
    place.publish("events", *(line.encode() for line in lines))
    definition = place.define(
        format="csv",
        schema="id long, text string",
        tables={"same": "same.csv"},
        sql="SELECT id, text, same FROM events JOIN same USING (id)",
        to={"path": "lake", "format": "csv"},
    )
    place.run(spark, definition)
    assert place.reasons("events") == {}
    found = []
    for path in (place.folder / "lake").glob("*.csv"):
        with path.open(newline="") as file:
            found += list(csv.DictReader(file))
    found.sort(key=lambda row: int(row["id"]))
    assert [row["text"] for row in found] == texts
    assert [row["same"] for row in found] == texts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("format", ["json", "csv"])
def test_numbers_of_which_no_decimal_can_be_made(spark: Any, place: Place, format: str) -> None:
    """Spark would try, for minutes or for ever."""
    if format == "json":
        huge = [
            b'{"d": 1e30000000}',
            b'{"e": "x", "d":"-1.5E-99999999" }',
            b'[{"d":1e9999}]',
            b"{'d': '1e30000000'}",
            b'{"d": 1e30000000',
            b'{"d": 1e30000000, "d": 1}',
            b'{"\\u0064": "1e30000000"}',
            b'{"e": "\\\\", "d": 1e30000000}',
            b'{"in": [{"m": {"e": "1e30000000"}}]}',
            b'{"a": [1, 1e30000000]}',
        ]
        good = [b'{"d": 1.5, "e": "1e30000000x"}', b'{"d": 2e3, "e": "12e45678ab"}']
    else:
        huge = [b"1e30000000,x", b'"1e30000000",x', b"1e30000000,x,y"]
        good = [b"1.5,1e30000000x", b"2e3,12e45678ab"]
    place.publish("events", *good, *huge)
    inside = (
        ", `in` array<struct<m: map<string, decimal(4,1)>>>, a array<decimal(4,1)>"
        if format == "json"
        else ""
    )
    definition = place.define(
        format=format, schema=f"d decimal(10,2), e string{inside}", sql="SELECT d, e FROM events"
    )
    place.run(spark, definition)
    assert [each["d"] for each in place.documents("out")] == [1.5, 2000.0]
    assert place.reasons("events") == {
        each: f"a number has too large an exponent: '{each.decode()}'" for each in huge
    }


@pytest.mark.parametrize("format", ["json", "csv"])
def test_texts_that_look_like_such_numbers(spark: Any, place: Place, format: str) -> None:
    """No decimal is made of them."""
    texts = ["x, 1e9999, y", "12e45678", "[1e9999]", 'a "b": 1e9999, \\', "it's 1", "1e9999"]
    lines = [json.dumps({"d": n, "e": text, "o": [text, text]}) for n, text in enumerate(texts)]
    if format == "csv":
        lines = [f'{n},"{text.replace(chr(34), chr(34) * 2)}"' for n, text in enumerate(texts)]
    else:
        lines += ['{"d": 6, "e": 1e9999, "o": 1e9999}', "{'d': 7, 'e': \"'\", \"o\": '\", 1e9999'}"]
    place.publish("events", *(line.encode() for line in lines))
    definition = place.define(
        format=format, schema="d decimal(10,2), e string", sql="SELECT d, e FROM events"
    )
    place.run(spark, definition)
    assert place.reasons("events") == {}
    found = place.documents("out")
    assert [each["e"] for each in found[: len(texts)]] == texts
    assert len(found) == len(lines)


def test_names_inside_of_columns_may_be_any(spark: Any, place: Place) -> None:
    place.publish("events", {"m": {"a b": 1}, "n": [{"content-type": "x"}]}, {"m": 5})
    definition = place.define(
        format="json",
        schema="m struct<`a b`: int>, n array<struct<`content-type`: string>>",
        sql="SELECT m.`a b` AS one, n[0].`content-type` AS two FROM events",
    )
    place.run(spark, definition)
    assert place.documents("out") == [{"one": 1, "two": "x"}]
    [reason] = place.reasons("events").values()
    assert reason.startswith("the field 'm' is no struct<")


def test_types_that_are_for_tables(spark: Any, place: Place) -> None:
    place.publish("events", {"id": "x"})
    definition = place.define(format="json", schema="id varchar(3)", sql="SELECT id FROM events")
    with pytest.raises(TailraceError, match=r"schema: the column 'id' is varchar\(3\)"):
        place.run(spark, definition)
