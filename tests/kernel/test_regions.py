"""inflate(), is_plain(), count_right(), find_record_at_time() and first_headers()."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import layout
from tailrace.kernel.layout import COMPLETE, S2, ZSTD, Malformed, TooLarge
from tests.kernel.twins import GOLDEN, NOW, Twin, batch, fields


def mixed(kernel: Twin) -> bytes:
    values = [bytes(500), b"x" * 400]
    parts = [
        kernel.encode(values, NOW, codec).place(2 * place)
        for place, codec in enumerate([0, S2, 0, ZSTD, S2])
    ]
    return b"".join(parts)


def test_inflate_of_nothing_compressed_is_a_view(kernel: Twin) -> None:
    data = bytearray(b"??" + GOLDEN + b"??")
    view = kernel.inflate(data, 2, 97)
    assert isinstance(view, memoryview)
    assert view == GOLDEN
    data[2:6] = b"1234"
    assert bytes(view[:4]) == b"1234"
    assert kernel.inflate(b"", 0, 0) == b""


def test_inflate(kernel: Twin) -> None:
    data = b"??" + mixed(kernel) + b"??"
    flat = kernel.inflate(data, 2, len(data) - 2)
    size = len(flat)
    assert kernel.check(flat, 0, size) == (size, 10, COMPLETE)
    infos = kernel.batches(flat, 0, size)
    before = kernel.batches(data, 2, len(data) - 2)
    assert [info.codec for info in infos] == [0, S2, 0, ZSTD, S2]
    assert not any(info.flags & 1 for info in infos)
    assert [info[2:4] + info[6:8] for info in infos] == [info[2:4] + info[6:8] for info in before]
    decoded = [fields(record) for record in kernel.decode(flat, 0, size)]
    assert decoded == [fields(record) for record in kernel.decode(data, 2, len(data) - 2)]


def test_inflate_grows_as_needed(kernel: Twin) -> None:
    data = kernel.encode_one(bytes(1_000_000), now_ms=NOW, codec=ZSTD).place(0)
    assert len(data) < 1000
    assert len(kernel.inflate(data, 0, len(data))) > 1_000_000


def test_inflate_is_bounded(kernel: Twin) -> None:
    """Many small bombs are as bad as one."""
    one = kernel.encode_one(bytes((1 << 27) - 20), now_ms=NOW, codec=ZSTD).place(0)
    data = b"".join(
        bytes(one[:8]) + base.to_bytes(8, "little") + bytes(one[16:]) for base in range(3)
    )
    with pytest.raises(TooLarge) as caught:
        kernel.inflate(data, 0, len(data))
    assert caught.value.limit == layout.MAX_SECTION
    assert len(kernel.inflate(data, 0, len(one))) > 1 << 26


def test_inflate_takes_each_batch_in_its_turn(kernel: Twin) -> None:
    """Those that are compressed, and those that are not, of whatever size."""
    parts, base = [], 0
    for size, codec in [(5000, S2), (10, 0), (300, ZSTD), (70_000, S2), (400, 0)]:
        parts.append(bytes(kernel.encode([bytes([base]) * size] * 2, NOW, codec).place(base)))
        base += 2
    data = b"".join(parts)
    flat = kernel.inflate(data, 0, len(data))
    assert kernel.check(flat, 0, len(flat)) == (len(flat), 10, COMPLETE)
    values = [record.value for record in kernel.decode(flat, 0, len(flat))]
    assert values == [record.value for record in kernel.decode(data, 0, len(data))]


@pytest.mark.parametrize("codec", [0, S2])
def test_plain_regions(kernel: Twin, codec: int) -> None:
    def part(base: int, *names: str) -> bytes:
        headers = [(name, b"_y" * 200) for name in names]
        records = [kernel.Record(None, NOW, b"_x", b"_y", headers), kernel.Record(value=b"_x")]
        return bytes(kernel.encode(records, NOW, codec).place(base))

    def is_plain(*parts: bytes) -> bool:
        data = b"??" + b"".join(parts)
        answer: bool = kernel.is_plain(data, 2, len(data), (b"_x", b"_y"))
        return answer

    assert is_plain()
    assert is_plain(part(7), part(9, "a", "_z"), part(11, "_xx"))
    assert not is_plain(part(7), part(10))  # there is none at 9
    assert not is_plain(part(7), part(9, "a", "_x"))
    assert not is_plain(part(7, "_y"))
    assert kernel.is_plain(part(7, "_y"), 0, len(part(7, "_y")), ())


def test_plain_regions_are_whole(kernel: Twin) -> None:
    damaged = batch(b"\x00\x00\x00\x00\x05")
    with pytest.raises(Malformed):
        kernel.is_plain(damaged, 0, len(damaged), (b"_x",))


@pytest.mark.parametrize("size", [10, 40_000])
def test_batches_that_are_right_are_counted(kernel: Twin, size: int) -> None:
    """Of whatever codec, and by the newest record, wherever in a batch it is."""
    parts, base = [], 0
    for codec, times in [(0, [5, 9, 7]), (S2, [9]), (ZSTD, [-4, -9]), (S2, [1, 2, 3])]:
        records = [kernel.Record(None, time, b"k", bytes(size)) for time in times]
        parts.append(bytes(kernel.encode(records, NOW, codec).place(base)))
        base += len(times)
    data = b"??" + b"".join(parts)
    assert kernel.count_right(data, 2, len(data)) == 4
    assert kernel.count_right(data, 2, 2 + len(parts[0])) == 1
    assert kernel.count_right(data, 2, 2) == 0


@pytest.mark.parametrize("said", [19, 21])
def test_a_batch_of_another_time_is_not_right(kernel: Twin, said: int) -> None:
    good = batch(bytes(5), base_timestamp=20, max_timestamp=20)
    assert kernel.count_right(good, 0, len(good)) == 1
    data = good + batch(bytes(5), base_offset=1, base_timestamp=20, max_timestamp=said)
    assert kernel.count_right(data, 0, len(data)) == 0


@pytest.mark.parametrize("records", [b"\x00\x00\x00\x00\x05", b"\xff" * 5, b"\x02" + bytes(4)])
def test_a_record_that_cannot_be_read_is_malformed(kernel: Twin, records: bytes) -> None:
    damaged = batch(records)
    with pytest.raises(Malformed):
        kernel.count_right(damaged, 0, len(damaged))


@pytest.mark.parametrize("codec", [0, S2])
def test_find_by_time(kernel: Twin, codec: int) -> None:
    def part(base: int, times: list[int]) -> bytes:
        records = [kernel.Record(None, time, None, bytes(300)) for time in times]
        return bytes(kernel.encode(records, 100, codec).place(base))

    data = part(0, [10, 30, 20]) + part(3, [25]) + part(10, [40, 5, 40])

    def find(timestamp: int, first: int = 0) -> Any:
        return kernel.find_record_at_time(data, 0, len(data), timestamp, first)

    assert find(-(1 << 63)) == (0, 10)
    assert find(10) == (0, 10)
    assert find(11) == (1, 30)
    assert find(11, 2) == (2, 20)
    assert find(21, 2) == (3, 25)
    assert find(21, 4) == (10, 40)
    assert find(31) == (10, 40)
    assert find(31, 11) == (12, 40)
    assert find(1, 11) == (11, 5)
    assert find(41) is None
    assert find(5, 13) is None


def test_find_by_time_skips_by_the_header_alone(kernel: Twin) -> None:
    damaged = batch(b"\xff" * 5, max_timestamp=10)
    data = damaged + batch(bytes(5), base_offset=1, base_timestamp=20, max_timestamp=20)
    assert kernel.find_record_at_time(data, 0, len(data), 11, 0) == (1, 20)


def test_find_by_time_stops_at_what_it_found(kernel: Twin) -> None:
    section = b"\0\0\1\1\0" + b"\1\2\1\1\0" + b"\2\4\1\x7e\0"  # the third is cut short
    data = batch(section, 3, base_timestamp=10, max_timestamp=12)
    assert kernel.find_record_at_time(data, 0, len(data), 10, 0) == (0, 10)
    assert kernel.find_record_at_time(data, 0, len(data), 10, 1) == (1, 11)
    assert kernel.find_record_at_time(data, 0, len(data), 11, 0) == (1, 11)
    for timestamp, first in ((12, 0), (10, 2)):
        with pytest.raises(Malformed, match="a length runs over the end"):
            kernel.find_record_at_time(data, 0, len(data), timestamp, first)


def test_a_header_that_promises_too_much(kernel: Twin) -> None:
    """A max timestamp that no record has is not an answer."""
    data = batch(bytes(5), base_timestamp=5, max_timestamp=99)
    assert kernel.find_record_at_time(data, 0, len(data), 50, 0) is None


@pytest.mark.parametrize("codec", [0, S2, ZSTD])
def test_first_headers(kernel: Twin, codec: int) -> None:
    def part(base: int, *records: Any) -> bytes:
        return bytes(kernel.encode(records, NOW + base, codec).place(base))

    data = part(0, bytes(500), b"b")
    data += part(2, (None, bytes(500), [("_p", b"1"), ("_s", b"2")]), (b"", b"", {"x": b""}))
    data += part(9, bytes(500), (None, None, {"x": b"y"}))
    assert kernel.first_headers(data, 0, len(data)) == [
        (0, 2, NOW, None),
        (2, 2, NOW + 2, [("_p", b"1"), ("_s", b"2")]),
        (9, 2, NOW + 9, {}),
    ]


def test_first_headers_looks_where_the_flags_say_so(kernel: Twin) -> None:
    data = batch(b"\xff" * 5, flags=0x06)
    assert kernel.first_headers(data, 0, len(data)) == [(0, 1, NOW, None)]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    times=st.lists(st.integers(-5, 5), min_size=20, max_size=20),
    timestamp=st.integers(-6, 6),
    first=st.integers(0, 25),
)
def test_find_by_time_is_a_scan(
    kernel: Twin, sizes: list[int], times: list[int], timestamp: int, first: int
) -> None:
    base = 0
    parts = []
    for size in sizes:
        records = [kernel.Record(timestamp=time) for time in times[base : base + size]]
        parts.append(bytes(kernel.encode(records, 0).place(base)))
        base += size
    data = b"".join(parts)
    scan = (
        (record.offset, record.timestamp)
        for record in kernel.decode(data, 0, len(data), first)
        if record.timestamp >= timestamp
    )
    assert kernel.find_record_at_time(data, 0, len(data), timestamp, first) == next(scan, None)
