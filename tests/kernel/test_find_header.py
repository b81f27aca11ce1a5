"""find_header(): what `record.headers` would say, without making it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.headers import Headers, encode_name
from tests.kernel import strategies
from tests.kernel.twins import GOLDEN, Twin, batch, uvarint


def read_back(kernel: Twin, *records: Any) -> list[Any]:
    data = bytes(kernel.encode(records, 5).data)
    return list(kernel.decode(data, 0, len(data)))


def states(kernel: Twin, headers: Any) -> list[Any]:
    """A record with these headers: built, read, parsed after that, and read once more."""
    built = kernel.Record(value=b"x", headers=headers)
    read, parsed = read_back(kernel, built, built)
    assert parsed.headers == built.headers
    return [built, read, parsed, *read_back(kernel, read, parsed)]


def test_what_another_program_wrote(kernel: Twin) -> None:
    [record] = kernel.decode(GOLDEN, 0, len(GOLDEN))
    assert kernel.find_header(record, b"_topic") == b"$queue/orders"
    assert kernel.find_header(record, b"_id") == b"7"
    assert kernel.find_header(record, b"_state") == b"queued"
    assert kernel.find_header(record, b"_none") is None


CASES: dict[str, tuple[list[tuple[str, bytes]], dict[bytes, bytes | None]]] = {
    "no headers": ([], {b"": None, b"a": None}),
    "several of a name": ([("b", b"0"), ("a", b"1"), ("a", b"2")], {b"a": b"1", b"b": b"0"}),
    "a prefix of another": (
        [("abc", b"3"), ("ab", b"2")],
        {b"ab": b"2", b"abc": b"3", b"a": None, b"abcd": None, b"": None},
    ),
    "an empty name": ([("a", b"1"), ("", b"2")], {b"": b"2", b"a": b"1"}),
    "an empty value": ([("a", b""), ("a", b"1")], {b"a": b""}),
    "a value that looks like a name": ([("a", b"\1b\1c"), ("d", b"e")], {b"b": None, b"d": b"e"}),
    "letters of several bytes": ([("\xe9", b"1")], {b"\xc3\xa9": b"1", b"\xe9": None}),
    "not UTF-8": ([("\udce9", b"1"), ("\udcff\0", b"2")], {b"\xe9": b"1", b"\xff\0": b"2"}),
    "long": ([("n" * 300, b"v" * 20_000), ("m", b"1")], {b"n" * 300: b"v" * 20_000, b"m": b"1"}),
    "bytes of a letter as surrogates": ([("\udcc3\udca9", b"1")], {b"\xc3\xa9": b"1"}),
    "more than a byte counts": ([(f"{n}", b"%d" % n) for n in range(200)], {b"199": b"199"}),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(kernel: Twin, case: str) -> None:
    headers, expected = CASES[case]
    built = kernel.Record(value=b"x", headers=headers)
    read, again = read_back(kernel, built, built)
    assert again.headers is not None  # parsed
    for record in (built, read, again, *read_back(kernel, read, again)):
        assert {name: kernel.find_header(record, name) for name in expected} == expected


@given(headers=strategies.headers, others=st.lists(strategies.names, max_size=3))
def test_it_is_what_the_headers_say(
    kernel: Twin, headers: list[tuple[str, bytes]], others: list[str]
) -> None:
    names = {name for name, _ in headers} | {name[:1] for name, _ in headers} | {*others, ""}
    expected = {name: Headers(headers).get(name) for name in names}
    for record in states(kernel, headers):
        assert {name: kernel.find_header(record, encode_name(name)) for name in names} == expected
        assert {name: record.headers.get(name) for name in names} == expected


def test_it_parses_nothing(kernel: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pairs: object) -> None:
        raise AssertionError("there is no need for that")

    [record] = read_back(kernel, kernel.Record(headers={"a": b"1"}))
    with monkeypatch.context() as patch:
        patch.setattr(Headers, "from_pairs", refuse)
        assert kernel.find_header(record, b"a") == b"1"
        assert kernel.find_header(record, b"b") is None
    assert record.headers == {"a": b"1"}


def test_varints_that_are_longer_than_need_be(kernel: Twin) -> None:
    """Nobody writes them so, but they can be read."""
    section = bytes((0, 0, 1, 1)) + b"\x82\0" + b"\x81\0a\x81\0" + b"1" + uvarint(1) + b"b\0"
    data = batch(section)
    [record] = kernel.decode(data, 0, len(data))
    assert kernel.find_header(record, b"a") == b"1"
    assert kernel.find_header(record, b"b") == b""
    assert record.headers.pairs == (("a", b"1"), ("b", b""))


def test_subclasses(kernel: Twin) -> None:
    class Message(kernel.Record):  # type: ignore[name-defined, misc]
        pass

    assert kernel.find_header(Message(headers={"a": b"1"}), b"a") == b"1"
