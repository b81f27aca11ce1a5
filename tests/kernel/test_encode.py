"""Encoding: the bytes, the flags, the limits, and placing a draft."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.kernel.layout import (
    COMPLETE,
    HEADER_SIZE,
    MAX_OFFSET,
    MAX_SECTION,
    NONE,
    S2,
    ZSTD,
    TooLarge,
)
from tests.kernel import strategies
from tests.kernel.twins import GOLDEN, NOW, Twin, batch, fields, uvarint

GOLDEN_TIME = 1794770309808


def section_of(kernel: Twin, draft: Any) -> bytes:
    return bytes(draft.data[HEADER_SIZE:])


def test_golden_batch(kernel: Twin) -> None:
    headers = [("_topic", "$queue/orders"), ("_id", "7"), ("_state", "queued")]
    assert kernel.encode([(b"", b"hello", headers)], GOLDEN_TIME).place(0) == GOLDEN
    assert kernel.encode_one(b"hello", b"", headers, now_ms=GOLDEN_TIME).place(0) == GOLDEN
    pairs = [(name, value.encode()) for name, value in headers]
    raw = kernel.encode_headers(pairs)  # as they are on the disk
    assert kernel.encode_one(b"hello", b"", raw, now_ms=GOLDEN_TIME).place(0) == GOLDEN


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (b"abc", "00 00 01 06 616263 00"),
        ("é", "00 00 01 04 c3a9 00"),
        (bytearray(b"abc"), "00 00 01 06 616263 00"),
        (memoryview(b"abcd")[::2], "00 00 01 04 6163 00"),
        (None, "00 00 01 01 00"),
        (b"", "00 00 01 00 00"),
        ((None, None), "00 00 01 01 00"),
        ((b"", b""), "00 00 00 00 00"),
        (("k", "v"), "00 00 02 6b 02 76 00"),
        ((bytearray(b"k"), memoryview(b"v")), "00 00 02 6b 02 76 00"),
        ((None, b"v", None), "00 00 01 02 76 00"),
        ((None, b"v", {}), "00 00 01 02 76 00"),
        ((None, b"v", {"a": "bc"}), "00 00 01 02 76 01 01 61 02 6263"),
        ((None, b"v", [("a", b""), ("a", b"b")]), "00 00 01 02 76 02 01 61 00 01 61 01 62"),
        ((None, b"v", {"\udcff": bytearray(b"b")}), "00 00 01 02 76 01 01 ff 01 62"),
        ((None, b"v", {"\udcff": b"b"}), "00 00 01 02 76 01 01 ff 01 62"),
    ],
)
def test_elements(kernel: Twin, item: Any, expected: str) -> None:
    draft = kernel.encode([item], NOW)
    assert section_of(kernel, draft) == bytes.fromhex(expected)
    key, value, headers = (*item, None)[:3] if isinstance(item, tuple) else (None, item, None)
    one = kernel.encode_one(value, key, headers, now_ms=NOW)
    assert one.place(7) == draft.place(7)
    record = kernel.Record(key=key, value=value, headers=headers)
    assert kernel.encode([record], NOW).place(7) == draft.data


def test_named_tuples_are_tuples(kernel: Twin) -> None:
    pair = collections.namedtuple("pair", "key value")
    assert kernel.encode([pair(b"k", b"v")], 0).data == kernel.encode([(b"k", b"v")], 0).data


def test_subclasses_of_bytes_and_str(kernel: Twin) -> None:
    class Text(str):
        __slots__ = ()

    class Raw(bytes):
        pass

    items = [Text("a"), Raw(b"a"), (Text("k"), Raw(b"a"), {Text("n"): Text("v")})]
    plain = ["a", b"a", (b"k", b"a", {"n": b"v"})]
    assert kernel.encode(items, 0).data == kernel.encode(plain, 0).data


@pytest.mark.parametrize(
    ("timestamp", "delta"),
    [(NOW, "00"), (NOW + 1, "02"), (NOW - 1, "01"), (NOW + 64, "8001"), (NOW - 64, "7f")],
)
def test_timestamps_are_deltas(kernel: Twin, timestamp: int, delta: str) -> None:
    draft = kernel.encode([kernel.Record(timestamp=timestamp)], NOW)
    assert section_of(kernel, draft) == bytes.fromhex(f"00 {delta} 01 01 00")
    assert draft.max_timestamp == timestamp
    assert kernel.encode_one(None, timestamp=timestamp, now_ms=NOW).data == draft.data


@pytest.mark.parametrize(
    "given_timestamps", [[5], [None], [5, None], [None, 5], [5, 9, 7], [-5, -9], [NOW + 9, None, 3]]
)
@pytest.mark.parametrize("extra", [(), [("_p", b"1")]])
def test_max_timestamp(kernel: Twin, given_timestamps: list[int | None], extra: Any) -> None:
    records = [kernel.Record(timestamp=timestamp) for timestamp in given_timestamps]
    draft = kernel.encode(records, NOW, NONE, extra)
    expected = max(NOW if timestamp is None else timestamp for timestamp in given_timestamps)
    assert draft.max_timestamp == expected
    info = kernel.read_header(draft.place(0), 0)
    assert (info.base_timestamp, info.max_timestamp) == (NOW, expected)


@pytest.mark.parametrize(
    ("records", "flags"),
    [
        ([b"v"], 0b0010),
        ([None], 0b0010),
        ([b"v", (b"", b"v")], 0b0110),
        ([b"v", (None, b"v", {"a": b"b"})], 0b1010),
        ([(b"k", b"v", {"a": b"b"})], 0b1110),
        ([(b"k", b"v", {})], 0b0110),
    ],
)
def test_flags(kernel: Twin, records: list[Any], flags: int) -> None:
    assert kernel.read_header(kernel.encode(records, NOW).place(0), 0).flags == flags


def test_many_records(kernel: Twin) -> None:
    """Offset deltas of one, two and three bytes; lengths that the first record does not predict."""
    values = [b"x" * (index % 5) for index in range(20_000)]
    values[10_000] = bytes(100_000)
    data = kernel.encode(values, NOW).place(MAX_OFFSET - 20_000)
    records = kernel.decode(data, 0, len(data))
    assert [record.value for record in records] == values
    assert records[-1].offset == MAX_OFFSET - 1
    pairs = [(value, value) for value in values]
    data = kernel.encode(pairs, NOW).place(0)
    assert [(r.key, r.value) for r in kernel.decode(data, 0, len(data))] == pairs


def test_the_greatest_count(kernel: Twin) -> None:
    data = kernel.encode([None] * 65_535, NOW).place(1)
    assert kernel.check(data, 0, len(data)) == (len(data), 65_536, COMPLETE)
    assert len(kernel.decode(data, 0, len(data))) == 65_535


def test_too_few_and_too_many(kernel: Twin) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        kernel.encode([], NOW)
    with pytest.raises(ValueError, match="at most 65535 records, not 65536; split them"):
        kernel.encode([None] * 65_536, NOW)


@pytest.mark.parametrize("make", [tuple, iter, collections.deque])
def test_other_sequences(kernel: Twin, make: Any) -> None:
    items = [b"a", b"b"]
    assert kernel.encode(make(items), NOW).data == kernel.encode(items, NOW).data


@pytest.mark.parametrize("records", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_one_value_is_no_sequence(kernel: Twin, records: Any) -> None:
    with pytest.raises(TypeError, match="put it in a list"):
        kernel.encode(records, NOW)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, "record 1 must be bytes, str, None, .* not int"),
        ([b"k", b"v"], "record 1 must be .* not list"),
        ((b"k",), "not a tuple of 1"),
        ((b"k", b"v", {}, 4), "not a tuple of 4"),
        ((5, b"v"), "record 1: key must be bytes or str, not int"),
        ((b"k", 5.5), "record 1: value must be bytes or str, not float"),
        ((b"k", b"v", 5), "headers must be"),
        ((b"k", b"v", b"\1\1a\1b"), "headers must be"),  # as on the disk: only the log's own are
        ((b"k", b"v", {"a": 5}), "header 'a'"),
        ((b"k", b"v", {5: "a"}), "name must be a str"),
    ],
)
def test_elements_of_wrong_type(kernel: Twin, item: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kernel.encode([b"fine", item], NOW)


@pytest.mark.parametrize("number", [0, 7, 10, 123_456_789, 2**64 - 1])
@pytest.mark.parametrize("given", [(b"k", b"v"), (None, b"v"), (b"", None), ("k", bytearray(b"v"))])
def test_stamped_is_a_record_with_these_headers(
    kernel: Twin, given: tuple[Any, Any], number: int
) -> None:
    key, value = given
    head = kernel.encode_headers([("_topic", b"t"), ("_id", b"")])[:-1]
    record = kernel.stamped(key, value, kernel.numbered(head, number))
    headers = [("_topic", b"t"), ("_id", b"%d" % number)]
    same = kernel.Record(key=key, value=value, headers=headers)
    written = [bytes(kernel.encode([each], NOW).data) for each in (record, same)]
    assert written[0] == written[1]
    assert kernel.find_header(record, b"_id") == b"%d" % number
    assert record == same  # which parses the headers


def test_stamped_of_wrong_type(kernel: Twin) -> None:
    with pytest.raises(TypeError, match="value must be bytes or str"):
        kernel.stamped(b"k", 5, b"\0")


def test_text_that_is_no_unicode(kernel: Twin) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: kernel.encode(["\ud800"], NOW),
        lambda: kernel.encode([(None, "\ud800")], NOW),
        lambda: kernel.encode([(None, None, {"a": "\ud800"})], NOW),
        lambda: kernel.encode([(None, None, {"\ud800": "a"})], NOW),
        lambda: kernel.encode_one("\ud800"),
    ]
    for call in calls:
        with pytest.raises(UnicodeEncodeError):
            call()


def test_one_of_wrong_type(kernel: Twin) -> None:
    with pytest.raises(TypeError, match=r"^value must be bytes or str, not int"):
        kernel.encode_one(5)
    with pytest.raises(TypeError, match=r"^key must be bytes or str, not int"):
        kernel.encode_one(b"", 5)
    with pytest.raises(TypeError, match="timestamp must be an int, not str"):
        kernel.encode_one(b"", timestamp="5")
    with pytest.raises(TypeError, match="timestamp must be an int, not float"):
        kernel.encode_one(b"", now_ms=5.5)
    with pytest.raises(ValueError, match=r"timestamp .* is outside"):
        kernel.encode_one(b"", timestamp=1 << 63)
    with pytest.raises(ValueError, match=r"timestamp .* is outside"):
        kernel.encode([b""], -(1 << 63) - 1)


@pytest.mark.parametrize("codec", [3, -1, "s2", 1 << 70])
def test_unknown_codecs(kernel: Twin, codec: Any) -> None:
    with pytest.raises(ValueError, match=r"the codecs are 0 \(none\)"):
        kernel.encode([b""], NOW, codec)
    with pytest.raises(ValueError, match="unknown"):
        kernel.encode_one(b"", codec=codec)


def test_section_limit(kernel: Twin) -> None:
    assert kernel.encode([bytes(58)], NOW, max_bytes=63).size == 44 + 63
    with pytest.raises(TooLarge, match=r"a record of 64 bytes, .* max_batch_bytes is 63") as caught:
        kernel.encode([bytes(59)], NOW, max_bytes=63)
    assert (caught.value.size, caught.value.limit) == (64, 63)


def test_the_limit_is_of_what_is_not_compressed(kernel: Twin) -> None:
    with pytest.raises(TooLarge):
        kernel.encode([bytes(10_000)], NOW, S2, max_bytes=9_999)


def test_nothing_exceeds_the_greatest_section(kernel: Twin) -> None:
    value = bytes(MAX_SECTION - 9)  # and 9 bytes of varints
    calls: list[Callable[[], Any]] = [
        lambda: kernel.encode([value + b"x"], NOW, max_bytes=1 << 62),
        lambda: kernel.encode_one(value + b"x"),
    ]
    for call in calls:
        with pytest.raises(TooLarge) as caught:
            call()
        assert caught.value.limit == MAX_SECTION
        assert caught.value.size == MAX_SECTION + 1


@pytest.mark.parametrize("codec", [S2, ZSTD])
def test_compression_is_kept_if_smaller(kernel: Twin, codec: int) -> None:
    def header(value: bytes) -> Any:
        draft = kernel.encode_one(value, now_ms=NOW, codec=codec)
        data = draft.place(3)
        assert len(data) == draft.size
        assert kernel.check(data, 0, len(data)) == (len(data), 4, COMPLETE)
        assert kernel.decode(data, 0, len(data))[0].value == value
        info = kernel.read_header(data, 0)
        assert info.codec == codec, "the configured codec, whether it was used or not"
        assert info.size == len(data)
        return info

    assert not header(bytes(250)).flags & 1, "a section of 256 bytes is not tried"
    assert header(bytes(251)).flags & 1, "one of 257 is"
    assert not header(random.Random(0).randbytes(5000)).flags & 1, "noise does not shrink"
    assert header(bytes(100_000)).size < 10_000


@pytest.mark.parametrize("first", [b"v", (b"k", b"v"), (None, b"v", {"own": b"1"}), None])
@pytest.mark.parametrize("form", [list, tuple, dict])
def test_extra_headers_come_first(kernel: Twin, first: Any, form: Any) -> None:
    extra = form([("_p", b"id"), ("_s", b"7")])
    data = kernel.encode([first, (b"k", b"w", {"x": b"y"})], NOW, NONE, extra).place(0)
    one, two = kernel.decode(data, 0, len(data))
    own = [("own", b"1")] if isinstance(first, tuple) and len(first) == 3 else []
    assert one.headers == [("_p", b"id"), ("_s", b"7"), *own]
    assert two.headers == [("x", b"y")]
    assert kernel.read_header(data, 0).flags & 0b1000


def test_extra_headers_before_those_of_a_record(kernel: Twin) -> None:
    record = kernel.Record(1, 5, b"k", b"v", {"own": b"1"})
    extra = [("_p", b"id")]
    data = kernel.encode([record], NOW, NONE, extra).place(0)
    [decoded] = kernel.decode(data, 0, len(data))
    assert fields(decoded) == (0, 5, b"k", b"v", (("_p", b"id"), ("own", b"1")))
    # of one that was read, whose headers are still bytes
    data = kernel.encode(kernel.decode(data, 0, len(data)), NOW, NONE, [("_q", b"")]).place(0)
    assert kernel.decode(data, 0, len(data))[0].headers == [
        ("_q", b""),
        ("_p", b"id"),
        ("own", b"1"),
    ]


def test_headers_that_were_not_looked_at_are_copied(kernel: Twin) -> None:
    """As they are on disk, even where we would write them differently."""
    section = b"\0\0\1\1" + b"\x81\x00" + b"\x01a\x00"  # the number 1 in two bytes
    data = batch(section, flags=0x0A)
    records = kernel.decode(data, 0, len(data))
    assert kernel.encode(records, NOW).place(0) == data
    assert records[0].headers == {"a": b""}
    assert kernel.encode(records, NOW).size == len(data) - 1


def test_draft(kernel: Twin) -> None:
    draft = kernel.encode([b"a", b"b"], NOW)
    assert draft.count == 2
    assert draft.size == len(draft.data)
    assert draft.max_timestamp == NOW
    assert draft.place(0) is draft.data


def test_encode_placed(kernel: Twin) -> None:
    cases: list[tuple[Any, ...]] = [
        (b"v", None, None, None),
        ("v", "k", {"a": "b"}, 5),
        (None, b"", [], -5),
        (None, None, None, None),
        (b"", b"k", None, NOW - 1),
        (bytes(63), bytes(64), None, NOW + 1),
        (bytes(64), None, None, NOW + 64),
        (bytearray(8191), memoryview(b"key"), None, -(1 << 63)),
        (bytes(8192), "é", None, (1 << 63) - 1),
        (bytes(2_000_000), None, None, 0),
    ]
    for arguments in cases:
        expected = kernel.encode_one(*arguments, now_ms=NOW).place(7)
        assert kernel.encode_placed(*arguments, 7, NOW) == expected
    with pytest.raises(ValueError, match="offset -1 is outside"):
        kernel.encode_placed(b"v", None, None, None, -1, NOW)
    with pytest.raises(ValueError, match="offset"):
        kernel.encode_placed(b"v", None, None, None, MAX_OFFSET, NOW)
    with pytest.raises(TypeError):
        kernel.encode_placed(5, None, None, None, 0, NOW)
    with pytest.raises(TypeError):
        kernel.encode_placed(b"v", None, None, "now", 0, NOW)


@pytest.mark.parametrize("size", [0, 100, 1900, 2100, 30_000, 40_000, 1_000_000])
def test_place_again(kernel: Twin, size: int) -> None:
    draft = kernel.encode([random.Random(size).randbytes(size)], NOW)
    for offset in (0, 1, 77, 1 << 40, MAX_OFFSET - 1):
        data = draft.place(offset)
        assert kernel.check(data, 0, len(data)) == (len(data), offset + 1, COMPLETE)
        assert kernel.read_header(data, 0).base_offset == offset


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "is outside"),
        (1 << 63, "is outside"),
        (1 << 70, "is outside"),
        (MAX_OFFSET - 1, "no room for 2 records"),
    ],
)
def test_offsets_out_of_range(kernel: Twin, offset: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel.encode([b"a", b"b"], NOW).place(offset)


def test_place_wants_a_number(kernel: Twin) -> None:
    with pytest.raises(TypeError, match="offset must be an int, not str"):
        kernel.encode([b"a"], NOW).place("5")


def test_a_resized_draft_is_refused(kernel: Twin) -> None:
    draft = kernel.encode([b"a"], NOW)
    draft.data.clear()
    with pytest.raises(ValueError, match="resized"):
        draft.place(0)


def test_drafts_are_not_made_by_callers(twins: tuple[Twin, Twin]) -> None:
    with pytest.raises(TypeError, match="encode"):
        twins[0].Draft()


def test_lists_that_change_while_they_are_read(kernel: Twin) -> None:
    """Code of the caller may run in the middle, and it may do what it likes."""
    items: list[Any] = []

    class Meddling(dict[str, bytes]):
        def items(self) -> Any:
            items.clear()
            return super().items()

    items += [(b"k", b"v", Meddling(a=b"b")), b"x" * 50, b"y" * 50]
    data = kernel.encode(items, NOW).place(0)
    assert items == []
    assert [record.value for record in kernel.decode(data, 0, len(data))] == [
        b"v",
        b"x" * 50,
        b"y" * 50,
    ]


@given(specs=strategies.batches, codec=strategies.codecs, now=strategies.I64)
@example([(None, None, None, [])], 0, 0)
@example([((1 << 63) - 1, b"", b"", []), (-(1 << 63), b"", b"", [])], 0, -(1 << 63))
def test_round_trip(kernel: Twin, specs: list[Any], codec: int, now: int) -> None:
    records = [kernel.Record(None, *spec) for spec in specs]
    data = kernel.encode(records, now, codec).place(10)
    decoded = kernel.decode(data, 0, len(data))
    expected = [
        (10 + index, now if timestamp is None else timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(specs)
    ]
    assert [fields(record) for record in decoded] == expected
    again = kernel.encode(decoded, now, codec)
    assert again.place(10) == data


@given(number=st.integers(0, (1 << 64) - 1))
@example(127)
@example(128)
@example(16383)
@example(16384)
@example((1 << 63) - 1)
@example((1 << 64) - 1)
def test_varints(number: int) -> None:
    from tailrace.kernel.pure import records

    assert records.uvarint(number) == uvarint(number)
    assert records.read_uvarint(uvarint(number), 0) == (number, len(uvarint(number)))
    signed = records.wrap64(number)
    zigzag = signed << 1 if signed >= 0 else -2 * signed - 1
    assert records.svarint(signed) == uvarint(zigzag)
