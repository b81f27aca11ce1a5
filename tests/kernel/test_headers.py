"""Headers: an immutable multi-mapping of str to bytes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.headers import EMPTY, Headers, decode_name, encode_name

PAIRS = (("a", b"1"), ("b", b"2"), ("a", b"3"))


def test_reads_like_a_mapping() -> None:
    headers = Headers(PAIRS)
    assert isinstance(headers, Mapping)
    assert len(headers) == 3
    assert list(headers) == ["a", "b", "a"]
    assert list(headers.keys()) == ["a", "b", "a"]
    assert headers["a"] == b"1"
    assert headers.get("b") == b"2"
    assert headers.get("c") is None
    assert headers.get("c", b"x") == b"x"
    assert headers.getall("a") == [b"1", b"3"]
    assert headers.getall("c") == []
    assert "b" in headers
    assert "c" not in headers
    assert headers.pairs == PAIRS
    with pytest.raises(KeyError, match="c"):
        headers["c"]


def test_views_have_every_pair() -> None:
    headers = Headers(PAIRS)
    assert tuple(headers.items()) == PAIRS
    assert list(headers.values()) == [b"1", b"2", b"3"]
    assert ("a", b"3") in headers.items()
    assert ("a", b"2") not in headers.items()
    assert b"3" in headers.values()
    assert b"4" not in headers.values()
    assert len(headers.items()) == len(headers.values()) == 3


def test_matches_mapping_patterns() -> None:
    match Headers(PAIRS):
        case {"b": value}:
            assert value == b"2"
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize(
    "given_headers",
    [
        {"a": b"1", "b": "2"},
        [("a", b"1"), ["b", bytearray(b"2")]],
        (("a", "1"), ("b", memoryview(b"2"))),
        iter([("a", b"1"), ("b", b"2")]),
        Headers({"a": b"1", "b": b"2"}),
    ],
)
def test_may_be_given_as(given_headers: Any) -> None:
    assert Headers(given_headers).pairs == (("a", b"1"), ("b", b"2"))


def test_text_is_utf8() -> None:
    assert Headers({"é": "ü"})["é"] == b"\xc3\xbc"


@pytest.mark.parametrize(
    ("given_headers", "message"),
    [
        (5, "not int"),
        ("ab", "not str"),
        (b"ab", "not bytes"),
        ([5], "pair, not 5"),
        (["ab"], "pair, not 'ab'"),
        ([("a", b"b", b"c")], "pair"),
        ({1: b"a"}, "name must be a str, not int"),
        ({b"a": b"a"}, "name must be a str, not bytes"),
        ({"a": 1}, "value of header 'a' must be bytes or str, not int"),
        ({"a": None}, "value of header 'a' must be bytes or str, not NoneType"),
    ],
)
def test_wrong_types(given_headers: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Headers(given_headers)


def test_names_that_cannot_be_written_are_refused_at_once() -> None:
    with pytest.raises(UnicodeEncodeError):
        Headers({"\ud800": b""})


def test_equality() -> None:
    headers = Headers({"a": b"1", "b": b"2"})
    assert headers == Headers([("a", b"1"), ("b", b"2")])
    assert headers != Headers([("b", b"2"), ("a", b"1")])
    assert headers == {"b": b"2", "a": b"1"}
    assert headers != {"a": b"1"}
    assert headers == [("a", b"1"), ("b", b"2")]
    assert headers == (("a", b"1"), ("b", b"2"))
    assert headers != [("a", b"1")]
    assert headers != 5
    assert Headers(PAIRS) != dict(PAIRS)
    assert hash(headers) == hash((("a", b"1"), ("b", b"2")))


def test_empty() -> None:
    assert not EMPTY
    assert Headers.of(None) is EMPTY
    assert Headers() == EMPTY
    assert EMPTY == {}
    assert EMPTY == ()
    assert Headers.of(EMPTY) is EMPTY
    assert Headers.of({"a": "b"}) == {"a": b"b"}


def test_subclasses_are_not_kept() -> None:
    class Loud(Headers):
        pass

    assert type(Headers.of(Loud(PAIRS))) is Headers


def test_immutable() -> None:
    headers: Any = Headers(PAIRS)
    with pytest.raises(TypeError):
        headers["a"] = b"x"
    with pytest.raises(AttributeError):
        headers.pairs = ()
    with pytest.raises(AttributeError):
        headers.other = 1


def test_pickle_copy_repr() -> None:
    headers = Headers(PAIRS)
    assert pickle.loads(pickle.dumps(headers)) == headers
    assert copy.copy(headers) == copy.deepcopy(headers) == headers
    assert repr(headers) == "Headers([('a', b'1'), ('b', b'2'), ('a', b'3')])"


@given(raw=st.binary(max_size=12))
def test_any_name_on_disk_survives(raw: bytes) -> None:
    assert encode_name(decode_name(raw)) == raw
