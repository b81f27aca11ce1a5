"""decode(): ranges of offsets, and sections that are damaged although their CRC is right."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.layout import MAX_OFFSET, S2, ZSTD, Malformed
from tests.kernel import strategies
from tests.kernel.twins import GOLDEN, NOW, Twin, batch, fields, outcome, uvarint

BIG = (1 << 64) - 1


def test_golden(kernel: Twin) -> None:
    [record] = kernel.decode(GOLDEN, 0, len(GOLDEN))
    headers = (("_topic", b"$queue/orders"), ("_id", b"7"), ("_state", b"queued"))
    assert fields(record) == (0, 1794770309808, b"", b"hello", headers)
    assert type(record.offset) is int
    assert type(record.timestamp) is int


@pytest.fixture(scope="module", params=[0, S2, ZSTD])
def chunk(kernel: Twin, request: pytest.FixtureRequest) -> bytes:
    """Offsets 10-12, 13 and 20-21, compressible."""
    sizes = [(10, 3), (13, 1), (20, 2)]
    return b"".join(
        bytes(kernel.encode([bytes(300)] * count, NOW + base, request.param).place(base))
        for base, count in sizes
    )


@pytest.mark.parametrize("first", [-(1 << 63), 0, 9, 10, 11, 13, 14, 20, 21, 22, MAX_OFFSET])
@pytest.mark.parametrize("last", [-(1 << 63), 0, 10, 11, 13, 14, 15, 20, 21, 22, MAX_OFFSET])
def test_ranges(kernel: Twin, chunk: bytes, first: int, last: int) -> None:
    found = [record.offset for record in kernel.decode(chunk, 0, len(chunk), first, last)]
    assert found == [offset for offset in (10, 11, 12, 13, 20, 21) if first <= offset < last]


def test_parts_of_a_buffer(kernel: Twin, chunk: bytes) -> None:
    infos = kernel.batches(chunk, 0, len(chunk))
    start, stop = infos[1].position, infos[2].position
    [record] = kernel.decode(chunk, start, stop)
    assert (record.offset, record.timestamp, record.value) == (13, NOW + 13, bytes(300))


def test_null_is_not_empty(kernel: Twin) -> None:
    contents = [None, b"", b"x"]
    pairs = list(itertools.product(contents, contents))
    data = kernel.encode(pairs, NOW).place(0)
    assert [(r.key, r.value) for r in kernel.decode(data, 0, len(data))] == pairs


def test_any_negative_length_is_null(kernel: Twin) -> None:
    for number in (1, 3, 127, (1 << 63) - 1, BIG):
        section = b"\0\0" + uvarint(number) + uvarint(number) + b"\0"
        [record] = kernel.decode(batch(section), 0, 44 + len(section))
        assert (record.key, record.value) == (None, None)


def test_longer_varints_than_needed(kernel: Twin) -> None:
    def wide(number: int, width: int) -> bytes:
        groups = [number >> 7 * n & 0x7F | 0x80 for n in range(width)]
        groups[-1] &= 0x7F
        return bytes(groups)

    for width in range(1, 11):
        section = wide(0, width) + wide(2, width) + wide(2, width) + b"k"
        section += wide(4, width) + b"vv" + wide(1, width)
        section += wide(1, width) + b"n" + wide(1, width) + b"w"
        data = batch(section)
        [record] = kernel.decode(data, 0, len(data))
        assert fields(record) == (0, NOW + 1, b"k", b"vv", (("n", b"w"),))
    # in 11 bytes, or with a 65th bit
    for field in range(5):
        for bad in (wide(0, 11), b"\x80" * 9 + b"\x02", b"\xff" * 10):
            parts = [b"\0", b"\0", b"\0", b"\0", b"\0"]
            parts[field] = bad
            data = batch(b"".join(parts) + bytes(30))
            with pytest.raises(Malformed, match="varint"):
                kernel.decode(data, 0, len(data))


def test_no_headers_in_two_bytes(kernel: Twin) -> None:
    data = batch(b"\0\0\1\1\x80\x00")
    assert kernel.decode(data, 0, len(data))[0].headers == {}


def test_bytes_behind_the_last_record_are_ignored(kernel: Twin) -> None:
    data = batch(b"\0\0\1\2v\0" + b"\xff" * 20)
    assert [record.value for record in kernel.decode(data, 0, len(data))] == [b"v"]


def test_the_records_behind_the_last_one_asked_for_are_not_read(kernel: Twin) -> None:
    data = batch(b"\0\0\1\2v\0" + b"\xff" * 20, 2)
    assert len(kernel.decode(data, 0, len(data), 0, 1)) == 1
    with pytest.raises(Malformed):
        kernel.decode(data, 0, len(data), 0, 2)


@pytest.mark.parametrize("deltas", [(1,), (0, 0), (0, 2), (1, 0), (128,), (BIG,)])
def test_offset_deltas_are_consecutive(kernel: Twin, deltas: tuple[int, ...]) -> None:
    section = b"".join(uvarint(delta) + b"\0\1\1\0" for delta in deltas)
    data = batch(section, len(deltas))
    with pytest.raises(Malformed, match="offset deltas"):
        kernel.decode(data, 0, len(data))


def test_offset_deltas_of_many_records(kernel: Twin) -> None:
    """Each width of delta, one wrong in each."""
    section = b"".join(uvarint(delta) + b"\0\1\1\0" for delta in range(17_000))
    data = batch(section, 17_000)
    assert len(kernel.decode(data, 0, len(data))) == 17_000
    for wrong in (5, 127, 128, 129, 16_383, 16_384, 16_999):
        parts = [uvarint(delta + (delta == wrong)) + b"\0\1\1\0" for delta in range(17_000)]
        data = batch(b"".join(parts), 17_000)
        with pytest.raises(Malformed, match="offset deltas"):
            kernel.decode(data, 0, len(data))


def test_damage_names_the_batch(kernel: Twin) -> None:
    data = GOLDEN + batch(b"\0\0\1\x7e\0", base_offset=1)
    for reader in ("decode", "first_headers", "measure_columns"):
        with pytest.raises(Malformed, match="batch at position 95: its records") as caught:
            getattr(kernel, reader)(data, 0, len(data))
        assert caught.value.position == 95
    with pytest.raises(Malformed, match="a length runs over the end"):
        kernel.find_record_at_time(data, 0, len(data), NOW, 1)


SECTION = b"\0\0\x04kk\x06vvv\x02\x01a\x02bb\x00\x01c" + b"\x01\x02\x01\x04ww\x00"


@pytest.mark.parametrize("value", range(256))
def test_every_byte_of_a_section(kernel: Twin, twins: tuple[Twin, Twin], value: int) -> None:
    """The same records, or Malformed; never anything else, and the same in both twins."""
    good = [fields(record) for record in kernel.decode(batch(SECTION, 2), 0, 44 + len(SECTION))]
    assert good[0][2:] == (b"kk", b"vvv", (("a", b"bb"), ("", b"c")))
    for position in range(len(SECTION)):
        section = bytearray(SECTION)
        section[position] = value
        data = batch(bytes(section), 2)
        results = [outcome(twin.decode, data, 0, len(data)) for twin in twins]
        if results[0] is Malformed:
            assert results[1] is Malformed
            continue
        found = [[fields(record) for record in result] for result in results]
        assert found[0] == found[1]
        assert [record[0] for record in found[0]] == [0, 1]
        if value == SECTION[position]:
            assert found[0] == good


@pytest.mark.parametrize("number", [0, 1, 2, 63, 64, 127, 128, 16383, 16384, 1 << 31, 1 << 32,
                                    1 << 62, (1 << 63) - 1, 1 << 63, BIG - 1, BIG])  # fmt: skip
@pytest.mark.parametrize("field", ["key", "value", "count", "name", "header"])
@pytest.mark.parametrize("behind", [0, 1, 100])
def test_every_length_field(kernel: Twin, number: int, field: str, behind: int) -> None:
    before = {
        "key": b"\0\0",
        "value": b"\0\0\1",
        "count": b"\0\0\1\1",
        "name": b"\0\0\1\1\1",
        "header": b"\0\0\1\1\1\0",
    }[field]
    data = batch(before + uvarint(number) + bytes(behind) + b"\0\0\0\0\0")
    result = outcome(kernel.decode, data, 0, len(data))
    if result is Malformed:
        return
    [record] = result
    assert sum(len(part or b"") for part in (record.key, record.value)) <= behind + 5
    assert sum(len(name) + len(value) for name, value in record.headers.items()) <= behind + 5


def test_every_cut_of_a_section(kernel: Twin) -> None:
    for size in range(5, len(SECTION)):
        data = batch(SECTION[:size], 1 if size < 10 else 2)
        with pytest.raises(Malformed):
            kernel.decode(data, 0, len(data))


def test_timestamps_wrap(kernel: Twin) -> None:
    section = b"\0" + uvarint(BIG) + b"\1\1\0"  # a delta of -2^63
    data = batch(section, base_timestamp=-1)
    assert kernel.decode(data, 0, len(data))[0].timestamp == (1 << 63) - 1


def test_compression_is_told_by_the_flag_alone(kernel: Twin) -> None:
    for codec in (0, 1, 2, 77):
        data = batch(b"\0\0\1\2v\0", codec=codec)
        assert kernel.decode(data, 0, len(data))[0].value == b"v"


READERS = ["decode", "inflate", "first_headers"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("codec", "content"),
    [
        (0, b"\0\0\1\1\0"),
        (3, b"\0\0\1\1\0"),
        (S2, b"\xff\xff\xff\xff\x0f\0"),  # a bomb
        (S2, b"\x05\0"),
        (ZSTD, bytes.fromhex("28b52ffd e0 ffffffffffffff7f")),  # a bomb
        (ZSTD, b"nonsense"),
    ],
)
def test_damaged_compression(kernel: Twin, reader: str, codec: int, content: bytes) -> None:
    data = GOLDEN + batch(content, flags=0x0F, codec=codec, base_offset=1)
    with pytest.raises(Malformed, match="batch at position 95: its records") as caught:
        getattr(kernel, reader)(data, 0, len(data))
    assert caught.value.position == 95


@given(
    position=st.integers(16, 10_000),
    value=st.integers(0, 255),
    specs=strategies.batches,
    codec=strategies.codecs,
)
def test_mutated_batches(
    twins: tuple[Twin, Twin], position: int, value: int, specs: list[Any], codec: int
) -> None:
    """Both raise, or both give equal results; the CRC is right, so the parser is what is tested."""
    from tests.kernel.twins import resealed

    pure = twins[1]
    records = [pure.Record(None, *spec) for spec in specs]
    data = bytearray(pure.encode(records, NOW, codec).place(7))
    data[16 + (position - 16) % (len(data) - 16)] = value
    whole = resealed(bytes(data))
    results = []
    for twin in twins:
        found = outcome(twin.decode, whole, 0, len(whole))
        if isinstance(found, list):
            found = [fields(record) for record in found]
        results.append(
            (
                twin.check(whole, 0, len(whole)),
                found,
                outcome(twin.batches, whole, 0, len(whole)),
                outcome(lambda k: bytes(k.inflate(whole, 0, len(whole))), twin),
                outcome(twin.first_headers, whole, 0, len(whole)),
                outcome(twin.find_record_at_time, whole, 0, len(whole), NOW, 8),
            )
        )
    assert results[0] == results[1]
