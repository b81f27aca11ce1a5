"""What records can be, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.kernel.twins import NOW

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
LENGTHS = st.sampled_from([0, 1, 63, 64, 127, 128, 300, 8191, 8192])

contents = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda size, byte: bytes((byte,)) * size, LENGTHS, st.integers(0, 255)),
)
fields = st.one_of(st.none(), contents)
texts = st.text(max_size=10)
timestamps = st.one_of(st.none(), st.integers(NOW - 200, NOW + 200), I64)
names = st.one_of(
    st.text(max_size=8),
    st.binary(max_size=5).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
few_names = st.sampled_from(["", "a", "b", "_topic", "_state", "é", "none"])  # so they repeat
headers = st.lists(st.tuples(names, contents), max_size=4)

# (timestamp, key, value, headers), of which each twin makes its own Record
records: st.SearchStrategy[tuple[Any, ...]] = st.tuples(timestamps, fields, fields, headers)
labelled = st.tuples(
    timestamps,
    fields,
    fields,
    st.lists(st.tuples(st.one_of(few_names, names), contents), max_size=6),
)
batches = st.lists(records, min_size=1, max_size=8)
codecs = st.sampled_from([0, 1, 2])
