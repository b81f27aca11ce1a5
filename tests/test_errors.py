"""One short tree of errors, whose attributes carry what the message says."""

from __future__ import annotations

import copy
import pickle

import pytest

import tailrace
from tailrace import errors

CHILDREN = [name for name in errors.__all__ if name != "TailraceError"]


@pytest.mark.parametrize("name", CHILDREN)
def test_one_root(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, tailrace.TailraceError)
    assert getattr(tailrace, name) is kind
    assert kind.__doc__


def test_only_protocol_errors_have_children() -> None:
    children = {name: getattr(errors, name).__subclasses__() for name in CHILDREN}
    assert {name for name, found in children.items() if found} == {"ProtocolError"}
    assert set(tailrace.ProtocolError.__subclasses__()) == {
        tailrace.LocalProtocolError,
        tailrace.RemoteProtocolError,
    }


EXAMPLES = [
    tailrace.Closed("it is closed"),
    tailrace.Locked("it is locked", "pid 5"),
    tailrace.Corrupt("damage", path="p", position=1, first_offset=2, next_offset=3),
    tailrace.OffsetOutOfRange("no such offset", offset=5, low=1, high=3),
    tailrace.NotWritten("disk full", appended=7),
    tailrace.OutcomeUnknown("who knows"),
    tailrace.ConfigError("flush: no"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_they_travel_between_processes(error: tailrace.TailraceError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_defaults() -> None:
    assert tailrace.Locked("x").holder is None
    assert tailrace.NotWritten("x").appended == 0
    corrupt = tailrace.Corrupt("x")
    assert (corrupt.path, corrupt.position) == (None, None)
    assert (corrupt.first_offset, corrupt.next_offset) == (None, None)
