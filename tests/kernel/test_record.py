"""Record: what it takes, what it is."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tailrace.kernel.headers import Headers
from tests.kernel.twins import GOLDEN, Twin


def test_defaults(kernel: Twin) -> None:
    record = kernel.Record()
    assert record.offset is None
    assert record.timestamp is None
    assert record.key is None
    assert record.value is None
    assert record.headers == Headers()


def test_fields_by_position_and_name(kernel: Twin) -> None:
    record = kernel.Record(5, 6, b"k", b"v", {"a": "b"})
    assert (record.offset, record.timestamp, record.key, record.value) == (5, 6, b"k", b"v")
    assert record.headers == {"a": b"b"}
    assert record == kernel.Record(offset=5, timestamp=6, key="k", value="v", headers={"a": b"b"})


@pytest.mark.parametrize("content", ["é", "é".encode(), bytearray("é".encode())])
def test_contents_become_bytes(kernel: Twin, content: Any) -> None:
    record = kernel.Record(key=content, value=memoryview(b"xyz")[::2])
    assert type(record.key) is bytes
    assert record.key == b"\xc3\xa9"
    assert type(record.value) is bytes
    assert record.value == b"xz"


def test_subclasses_of_bytes_become_bytes(kernel: Twin) -> None:
    class Odd(bytes):
        pass

    assert type(kernel.Record(value=Odd(b"x")).value) is bytes


def test_mutable_contents_are_copied(kernel: Twin) -> None:
    value = bytearray(b"abc")
    record = kernel.Record(value=value)
    value[:] = b"xyz"
    assert record.value == b"abc"


class Six:
    def __index__(self) -> int:
        return 6


def test_anything_integral_is_a_number(kernel: Twin) -> None:
    record = kernel.Record(offset=Six(), timestamp=Six())
    assert (record.offset, record.timestamp) == (6, 6)
    assert type(record.offset) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": 5}, "value must be bytes or str, not int"),
        ({"key": [b"a"]}, "key must be bytes or str, not list"),
        ({"offset": "5"}, "offset must be an int, not str"),
        ({"timestamp": 5.0}, "timestamp must be an int, not float"),
        ({"headers": 5}, "headers must be"),
        ({"nonsense": 5}, "nonsense"),
    ],
)
def test_wrong_types(kernel: Twin, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kernel.Record(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"offset": -1},
        {"offset": 1 << 63},
        {"timestamp": 1 << 63},
        {"timestamp": -(1 << 63) - 1},
        {"timestamp": 1 << 80},
    ],
)
def test_numbers_out_of_range(kernel: Twin, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is outside"):
        kernel.Record(**arguments)


def test_immutable(kernel: Twin) -> None:
    record = kernel.Record(value=b"x")
    for name in ("offset", "timestamp", "key", "value", "headers", "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, None)


def test_equality_and_hash(kernel: Twin) -> None:
    make = kernel.Record
    one = make(1, 2, b"k", b"v", {"a": b"b"})
    assert one == make(1, 2, b"k", b"v", {"a": b"b"})
    assert hash(one) == hash(make(1, 2, b"k", b"v", {"a": b"b"}))
    for other in (
        make(0, 2, b"k", b"v", {"a": b"b"}),
        make(1, None, b"k", b"v", {"a": b"b"}),
        make(1, 2, None, b"v", {"a": b"b"}),
        make(1, 2, b"k", b"", {"a": b"b"}),
        make(1, 2, b"k", b"v"),
        (1, 2, b"k", b"v", {"a": b"b"}),
    ):
        assert one != other
    assert make(value=None) != make(value=b"")


def test_repr_is_short(kernel: Twin) -> None:
    assert repr(kernel.Record()) == "Record()"
    assert repr(kernel.Record(1, 2, b"k", b"v")) == (
        "Record(offset=1, timestamp=2, key=b'k', value=b'v')"
    )
    assert repr(kernel.Record(value=b"", headers={"a": "b"})) == (
        "Record(value=b'', headers=Headers([('a', b'b')]))"
    )
    long = repr(kernel.Record(value=bytes(1_000_000)))
    assert long.endswith("... (1000000 bytes))")
    assert len(long) < 200


def test_pattern_matching(kernel: Twin) -> None:
    make = kernel.Record
    match make(1, 2, b"k", b"v"):
        case make(1, 2, b"k", value, headers):
            assert (value, headers) == (b"v", {})
        case _:
            pytest.fail("no match")
    match make(key=b"k", value=b"v"):
        case make(key=b"k", offset=None):
            pass
        case _:
            pytest.fail("no match")


def test_pickle_does_not_name_the_twin(kernel: Twin) -> None:
    record = kernel.Record(1, -2, b"k", None, [("a", b"b"), ("a", b"c")])
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(record, protocol)
        assert b"compiled" not in data
        assert b"pure" not in data
        loaded = pickle.loads(data)
        assert (loaded.offset, loaded.timestamp, loaded.key) == (1, -2, b"k")
        assert loaded.headers == record.headers


def test_copies_are_the_record_itself(kernel: Twin) -> None:
    record = kernel.Record(value=b"x")
    assert copy.copy(record) is record
    assert copy.deepcopy([record])[0] is record


def test_subclasses(kernel: Twin) -> None:
    class Message(kernel.Record):  # type: ignore[name-defined, misc]
        def __init__(self, *fields: Any, queue: str = "q") -> None:
            super().__init__(*fields)
            self.queue = queue

    message = Message(1, 2, b"k", b"v", queue="orders")
    assert message.queue == "orders"
    assert message == kernel.Record(1, 2, b"k", b"v")
    assert repr(message).startswith("Message(")
    assert message.__reduce__()[0] is Message
    assert kernel.encode([message], 5).count == 1


def test_headers_of_a_decoded_record_are_parsed_once(kernel: Twin) -> None:
    [record] = kernel.decode(GOLDEN, 0, len(GOLDEN))
    assert record.headers is record.headers
    assert hash(record) == hash(kernel.decode(GOLDEN, 0, len(GOLDEN))[0])
