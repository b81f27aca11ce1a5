"""Lines of a journal: what is written is read, and whatever is damaged is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kernel.twins import Twin

wholes = st.integers(-(2**70), 2**70) | st.integers(0, 2**62)
plain = st.text(max_size=20) | wholes | st.lists(wholes, max_size=6)
rich = st.none() | st.booleans() | st.floats(allow_nan=False) | st.lists(st.text(max_size=3))
objects = st.dictionaries(st.text(max_size=3), plain | rich, min_size=1, max_size=8)

CLAIM = {"t": "claim", "c": "host-1#ab.1", "u": 812, "h": 1, "f": 0, "x": 100, "r": [0, 100]}


@given(objects)
@example(CLAIM)
@example({"t": "ack", "r": []})
@example({"a": 10**18 - 1, "b": 10**18, "c": -(10**17), "d": 2**63, "e": [2**64]})
@example({"t": "é\u007f", "e": 'a "quoted" \\ one\n', "": ""})
@example({"c": "x" * 480, "r": [1, 2]})
@example({"c": "x" * 481, "r": [1, 2]})
@example({"c": "x" * 482, "r": [1, 2]})
@example({"c": "x" * 2000})
@example({"r": list(range(400))})
def test_lines_are_the_same_by_both_and_by_json(twins: tuple[Twin, Twin], value: Any) -> None:
    compiled, pure = twins
    line = pure.write_line(value)
    assert compiled.write_line(value) == line
    assert line.endswith(b"\n")
    assert json.loads(line) == {"k": line[6:14].decode(), **value}
    for twin in twins:
        assert twin.read_line(line[:-1]) == value
        assert {name: type(each) for name, each in twin.read_line(line[:-1]).items()} == {
            name: type(each) for name, each in value.items()
        }


def sealed(twin: Twin, body: bytes) -> bytes:
    return b'{"k":"%08x",%b' % (twin.crc32c(body), body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"}",
        b"]",
        b'"a"',
        b'"a":',
        b'"a":1',
        b'"a":1,',
        b'"a":1,}',
        b'"a":01}',
        b'"a":-}',
        b'"a":-0}',
        b'"a":1.5}',
        b'"a":1e3}',
        b'"a":[]}',
        b'"a":[1,]}',
        b'"a":[1',
        b'"a":[1;2]}',
        b'"a":[1.5]}',
        b'"a":["b"]}',
        b'"a":"b',
        b'"a":"b}',
        b'"a":"\\u00e9"}',
        b'"a":"\xc3\xa9"}',
        b'"a":"\xff"}',
        b'"a":"\x01"}',
        b'"a" : 1}',
        b'"a":1} and more',
        b'"a":1,"a":2}',
        b'"a":{"b":[{}]}}',
        b'"a":true,"b":null}',
        b'"a":999999999999999999}',
        b'"a":9999999999999999999}',
        b"[" * 100_000,
    ],
)
def test_whatever_is_sealed_is_read_alike(twins: tuple[Twin, Twin], body: bytes) -> None:
    compiled, pure = twins
    line = sealed(pure, body)
    assert compiled.read_line(line) == pure.read_line(line)


@given(st.data())
def test_a_damaged_line_is_none(kernel: Twin, data: st.DataObject) -> None:
    line = kernel.write_line(CLAIM)[:-1]
    position = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[position]))
    assert kernel.read_line(line[:position] + bytes([other]) + line[position + 1 :]) is None
    assert kernel.read_line(line[:position]) is None
    assert kernel.read_line(line + b"}") is None


def test_text_that_is_none_is_refused(kernel: Twin) -> None:
    with pytest.raises(UnicodeEncodeError):
        kernel.write_line({"e": "\ud800"})
