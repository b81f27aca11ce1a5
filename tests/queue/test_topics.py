"""Topics and filters: MQTT's rules, one filter at a time and many at once."""

from __future__ import annotations

import random
import re
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import InvalidName
from tailrace.queue import topics
from tailrace.queue.topics import Bindings, check_filter, check_topic, matches

# The examples of the MQTT specifications (4.7.1 to 4.7.3), and what people get wrong.
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport"),
    ("#", "/"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+", "sport"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "sport/tennis"),
    ("$SYS/#", "$SYS/monitor/Clients"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("$queue/orders/#", "$queue/orders"),
    ("images/#", "images"),
    ("+/#", "a"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("a b/ü", "a b/ü"),
    ("a/$b/+", "a/$b/c"),
    ("+/$b", "a/$b"),
]
MISSES = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("+", "a/b"),
    ("#", "$SYS/monitor"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+", "$SYS"),
    ("/finance", "finance"),
    ("finance", "Finance"),
    ("a", "a/"),
    ("a/", "a"),
    ("a/b", "a/b/c"),
    ("a/b/c", "a/b"),
    ("a//#", "a"),
    ("$queue/orders/#", "$queue/orders2"),
]


@pytest.mark.parametrize(("pattern", "topic"), MATCHES)
def test_what_matches(pattern: str, topic: str) -> None:
    check_filter(pattern)
    check_topic(topic)
    assert matches(pattern, topic)


@pytest.mark.parametrize(("pattern", "topic"), MISSES)
def test_what_does_not(pattern: str, topic: str) -> None:
    check_filter(pattern)
    check_topic(topic)
    assert not matches(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "must not be empty"),
        ("a+b", "a wildcard has to stand alone"),
        ("a/b#", "a wildcard has to stand alone"),
        ("++", "a wildcard has to stand alone"),
        ("#/x", "'#' has to be the last level"),
        ("a/#/b", "'#' has to be the last level"),
        ("#/", "'#' has to be the last level"),
        ("a\0b", "NUL"),
        ("\ud800", "not Unicode text"),
        ("a" * 65_536, "65,536 bytes is too long"),
        ("ü" * 32_768, "65,536 bytes is too long"),
    ],
)
def test_no_filter(pattern: str, why: str) -> None:
    with pytest.raises(InvalidName, match=re.escape(why)):
        check_filter(pattern)
    bindings: Bindings[str] = Bindings()
    with pytest.raises(InvalidName, match=re.escape(why)):
        bindings.add(pattern, "x")
    assert bindings.match(pattern) == set()


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a#b", "\0", "a" * 65_536])
def test_no_topic(topic: str) -> None:
    with pytest.raises(InvalidName):
        check_topic(topic)


def test_the_longest() -> None:
    check_topic("a" * 65_535)
    check_filter("/" * 65_535)


# --- many -----------------------------------------------------------------------------------------

LEVELS = st.sampled_from(["", "a", "b", "$a", "ü"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@pytest.mark.no_cover
@given(st.lists(st.tuples(FILTERS, st.integers(0, 3))), st.lists(TOPICS, min_size=1))
def test_many_find_what_each_finds(bound: list[tuple[str, int]], topics: list[str]) -> None:
    bindings: Bindings[int] = Bindings()
    for pattern, number in bound:
        bindings.add(pattern, number)
        bindings.add(pattern, number)
    left = list(bound)
    while True:
        for topic in topics:
            expected = {number for pattern, number in left if matches(pattern, topic)}
            assert bindings.match(topic) == expected
        if not left:
            break
        gone = left.pop()
        bindings.remove(*gone)
        left = [each for each in left if each != gone]
    assert bindings._root.is_empty, "what leads nowhere is still there"


def test_removing_what_is_not_bound() -> None:
    bindings: Bindings[str] = Bindings()
    bindings.add("a/b", "x")
    for pattern in ("a", "a/b/c", "a/#", "+/b", "z"):
        bindings.remove(pattern, "x")
    bindings.remove("a/b", "y")
    assert bindings.match("a/b") == {"x"}


def test_the_cost_does_not_grow_with_the_filters() -> None:
    """Counted in steps, which are the same on every machine."""

    def steps(filters: int) -> int:
        bindings: Bindings[int] = Bindings()
        for number in range(filters):
            bindings.add(f"$queue/{number}/#", number)
            bindings.add(f"plain/{number}/+", number)
        count = 0

        def trace(frame: FrameType, _event: str, _argument: object) -> object:
            nonlocal count
            if frame.f_code.co_filename != topics.__file__:
                return None  # the garbage collector may come, and have finalizers run
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            found = bindings.match("$queue/7/eu/images")
        finally:
            sys.settrace(before)
        assert found == {7}
        return count

    assert steps(10_000) == steps(10) > 10


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_and_what_it_is_a_copy_of(seed: int) -> None:
    """Whichever is changed, the others stay as they are."""
    rng = random.Random(seed)
    kept: list[tuple[Bindings[int], set[tuple[str, int]]]] = [(Bindings(), set())]
    for _step in range(60):
        bindings, bound = rng.choice(kept)
        if rng.random() < 0.2:
            kept.append((bindings.copy(), set(bound)))
            continue
        pair = ("/".join(rng.choices("ab+", k=rng.randint(1, 3))), rng.randrange(3))
        if rng.random() < 0.4:
            bindings.remove(*pair)
            bound.discard(pair)
        else:
            bindings.add(*pair)
            bound.add(pair)
    for bindings, bound in kept:
        for topic in ("a", "b", "a/b", "b/b", "a/a/b", "b/a/a"):
            assert bindings.match(topic) == {each for filt, each in bound if matches(filt, topic)}
