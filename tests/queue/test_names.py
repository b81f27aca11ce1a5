"""Names: what is one, and the file it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import InvalidName, Store
from tailrace.queue.names import check_name, from_component, to_component

NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs")) | st.sampled_from("./%"), min_size=1, max_size=40
)


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("orders", "orders"),
        ("workers@eu", "workers@eu"),
        ("w@images/#", "w@images%2F#"),
        ("$dlq/orders", "$dlq%2Forders"),
        ("a.b", "a.b"),
        (".", "%2E"),
        ("..", "%2E."),
        (".tailrace", "%2Etailrace"),
        ("../x", "%2E.%2Fx"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("größe 1", "größe 1"),
    ],
)
def test_components(name: str, component: str) -> None:
    check_name("queue", name)
    assert to_component(name) == component
    assert from_component(component) == name


@given(NAMES, NAMES)
def test_every_name_has_a_component_of_its_own(one: str, other: str) -> None:
    component = to_component(one)
    assert from_component(component) == one
    assert "/" not in component
    assert component not in ("", ".", "..")
    assert not component.startswith(".")
    assert (component == to_component(other)) == (one == other)


def test_a_file_can_have_it(tmp_path: Path) -> None:
    for name in ("../../etc", "a/b", ".", "..", "%", "ü" * 100, "x" * 200):
        check_name("group", name)
        (tmp_path / f"{to_component(name)}.json.12345.tmp").touch()
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize(
    "name", ["", "a\0b", "a\nb", "\x7f", "\x85", "\ud800", "x" * 201, "/" * 67]
)
def test_no_name(name: str) -> None:
    with pytest.raises(InvalidName, match="the name of a queue"):
        check_name("queue", name)


@pytest.mark.parametrize("name", [5, None, b"w", ["w"]])
def test_no_string(store: Store, name: Any) -> None:
    for queue in (store.queue("q"), store.stream("s")):
        with pytest.raises(InvalidName, match="the name of a group is text, not "):
            queue.consumer(name)
        if name is not None:
            with pytest.raises(InvalidName, match="a filter is text, not "):
                queue.consumer("w", filter=name)
        assert queue.group_ids() == []
    with pytest.raises(InvalidName, match="a topic is text, not "):
        store.publish(name, b"x")
