"""Compiled and pure: the same bytes, the same results, the same signatures."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace.kernel
from tailrace.kernel import arrow as arrow_module
from tailrace.kernel.headers import encode_name
from tailrace.kernel.layout import MAX_SECTION
from tests.kernel import strategies
from tests.kernel.twins import NOW, Twin, fields, outcome

FUNCTIONS = [
    "batches",
    "check",
    "count_right",
    "crc32c",
    "crc32c_combine",
    "decode",
    "encode",
    "encode_columns",
    "encode_headers",
    "encode_one",
    "encode_placed",
    "fill_columns",
    "find_header",
    "find_record_at_time",
    "first_headers",
    "inflate",
    "is_plain",
    "measure_columns",
    "numbered",
    "read_header",
    "s2_decompress",
    "split_rows",
    "stamped",
    "tally",
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures(twins: tuple[Twin, Twin], name: str) -> None:
    def parameters(twin: Twin) -> list[tuple[str, Any]]:
        found = inspect.signature(getattr(twin, name)).parameters.values()
        return [(parameter.name, parameter.default) for parameter in found]

    compiled, pure = map(parameters, twins)
    assert compiled == pure
    assert inspect.getdoc(getattr(twins[0], name)) == inspect.getdoc(getattr(twins[1], name))


def test_the_kernel_exports_what_it_promises() -> None:
    for name in tailrace.kernel.__all__:
        assert hasattr(tailrace.kernel, name)
    exported = [name for name in FUNCTIONS if hasattr(tailrace.kernel, name)]
    inside = {"encode_columns", "fill_columns", "measure_columns", "split_rows"}
    assert set(FUNCTIONS) - set(exported) == inside


elements = st.one_of(
    strategies.fields,
    strategies.texts,
    strategies.contents.map(bytearray),
    st.tuples(strategies.fields, strategies.fields),
    st.tuples(strategies.texts, strategies.texts),
    st.tuples(strategies.fields, strategies.fields, strategies.headers),
    st.tuples(
        strategies.fields,
        strategies.fields,
        st.dictionaries(strategies.names, st.one_of(strategies.contents, strategies.texts)),
    ),
    strategies.records.map(lambda spec: {"record": spec}),  # each twin makes its own
    st.sampled_from([5, (1,), (1, 2), (b"", b"", 5), [b"a"], (b"", b"", {"a": 1})]),
)


@given(
    specs=st.lists(elements, max_size=8),
    codec=st.sampled_from([0, 1, 2, 3]),
    now=strategies.timestamps,
    extra=st.one_of(st.just(()), strategies.headers),
    max_bytes=st.sampled_from([MAX_SECTION, 100, 10]),
    offset=st.integers(-1, 1 << 63),
)
def test_encode(
    twins: tuple[Twin, Twin],
    specs: list[Any],
    codec: int,
    now: int | None,
    extra: Any,
    max_bytes: int,
    offset: int,
) -> None:
    results: list[Any] = []
    for twin in twins:
        records = [
            twin.Record(None, *item["record"]) if isinstance(item, dict) else item for item in specs
        ]
        try:
            draft = twin.encode(records, now, codec, extra, max_bytes)
            data = draft.place(offset)
            results.append((bytes(data), draft.size, draft.count, draft.max_timestamp))
        except (ValueError, TypeError) as error:
            results.append((type(error), str(error)))
    assert results[0] == results[1]


@given(
    value=strategies.fields,
    key=st.one_of(strategies.fields, strategies.texts),
    headers=st.one_of(st.none(), strategies.headers, st.just({"a": 1})),
    timestamp=strategies.timestamps,
    codec=strategies.codecs,
)
def test_encode_one(
    twins: tuple[Twin, Twin], value: Any, key: Any, headers: Any, timestamp: Any, codec: int
) -> None:
    results = []
    for twin in twins:
        try:
            results.append(twin.encode_one(value, key, headers, timestamp, NOW, codec).place(1))
        except TypeError as error:
            results.append(str(error))
    assert results[0] == results[1]


@pytest.mark.parametrize("seed", range(30))
def test_chunks_with_random_damage(twins: tuple[Twin, Twin], seed: int) -> None:
    """Many batches, a few bytes changed anywhere: both walk, stop and decode alike."""
    rng = random.Random(seed)
    pure = twins[1]
    parts = []
    for base in range(0, 200, 10):
        values = [bytes(rng.randrange(100)) + rng.randbytes(rng.randrange(100))] * 10
        parts.append(bytes(pure.encode(values, NOW, rng.randrange(3)).place(base)))
    data = bytearray(b"".join(parts))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    start = rng.choice([0, len(parts[0])])
    stop = rng.randrange(start, len(data) + 1)
    compiled_check, pure_check = (twin.check(data, start, stop) for twin in twins)
    assert compiled_check == pure_check
    end = pure_check[0]
    results = []
    for twin in twins:
        records = twin.decode(data, start, end, 15, 95)
        raw = outcome(lambda k: [fields(r) for r in k.decode(data, start, stop)], twin)
        results.append(([fields(record) for record in records], raw))
    assert results[0] == results[1]


@given(specs=strategies.batches, first=st.integers(5, 12), last=st.integers(5, 14))
def test_arrow(twins: tuple[Twin, Twin], specs: list[Any], first: int, last: int) -> None:
    pytest.importorskip("pyarrow")
    results: list[Any] = []
    encoded: list[Any] = []
    for twin in twins:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tailrace.kernel, "columns", twin.modules[-1])
            patch.setattr(tailrace.kernel, "inflate", twin.inflate)
            records = [twin.Record(None, *spec) for spec in specs]
            data = twin.encode(records, NOW).place(6)
            table = arrow_module.decode_arrow(data, 0, len(data), first, last)
            table.validate(full=True)
            results.append(table)
            if table.num_rows:
                encoded.append(bytes(arrow_module.encode_arrow(table, NOW).place(6)))
            encoded.append(outcome(arrow_module.plan_batches, table, 3, 20_000))
    assert results[0].equals(results[1])
    half = len(encoded) // 2
    assert encoded[:half] == encoded[half:]


@given(
    runs=st.lists(
        st.tuples(
            st.lists(strategies.labelled, min_size=1, max_size=5),
            st.integers(0, 3),  # a gap of so many offsets in front of them
            strategies.codecs,
        ),
        max_size=4,
    ),
    bounds=st.tuples(st.integers(0, 25), st.integers(0, 30)),
    columns=st.lists(st.sampled_from(arrow_module.COLUMNS), unique=True),
    picked=st.lists(strategies.few_names, max_size=4, unique=True),
    hidden=st.lists(st.one_of(strategies.few_names, strategies.names), max_size=16),
    empty_key_is_null=st.booleans(),
)
def test_arrow_of_what_is_wanted(
    twins: tuple[Twin, Twin],
    runs: list[Any],
    bounds: tuple[int, int],
    columns: list[str],
    picked: list[str],
    hidden: list[str],
    empty_key_is_null: bool,
) -> None:
    """Both give what the records say, whatever is picked, hidden or not asked for."""
    pytest.importorskip("pyarrow")
    pure = twins[1]
    data = bytearray()
    base = 0
    for specs, gap, codec in runs:
        records = [pure.Record(None, *spec) for spec in specs]
        data += pure.encode(records, NOW, codec).place(base + gap)
        base += gap + len(specs)
    expected = []
    for record in pure.decode(data, 0, len(data), *bounds):
        row = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": (record.key or None) if empty_key_is_null else record.key,
            "value": record.value,
            "headers": [
                {"key": encode_name(name).decode(errors="replace"), "value": value}
                for name, value in record.headers.pairs
                if name not in hidden
            ],
        }
        values = [record.headers.get(name) for name in picked]
        expected.append([*(row[column] for column in columns), *values])
    tables = []
    for twin in twins:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tailrace.kernel, "columns", twin.modules[-1])
            patch.setattr(tailrace.kernel, "inflate", twin.inflate)
            table = arrow_module.decode_arrow(
                data,
                0,
                len(data),
                *bounds,
                columns,
                picked=picked,
                hidden=hidden,
                empty_key_is_null=empty_key_is_null,
            )
        table.validate(full=True)
        assert table.num_rows == len(expected)
        for place, values in enumerate(expected):
            assert [column[place].as_py() for column in table.columns] == values
        for column in table.columns:
            assert (column.buffers()[0] is not None) == (column.null_count > 0)
        tables.append(table)
    assert tables[0].equals(tables[1])
