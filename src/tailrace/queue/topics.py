"""Topics, and the filters that match them, by the rules of MQTT.

A topic is levels between slashes; a level may be empty. In a filter `+` stands for any one level,
and `#`, at the end, for all the levels from there on, and for none. Neither stands for the first
level of a topic that begins with `$`: those are meant for who names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from tailrace.errors import InvalidName

__all__ = ["Bindings", "check_filter", "check_topic", "matches"]

T = TypeVar("T")

_LONGEST = 65_535  # bytes, as MQTT counts them


def check_topic(topic: str) -> None:
    """Raise `InvalidName` unless something can be published to it."""
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise InvalidName(f"the topic {topic!r} has a wildcard; those are for filters")


def check_filter(pattern: str) -> None:
    """Raise `InvalidName` unless it is a filter."""
    _check_text("filter", pattern)
    levels = pattern.split("/")
    for number, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise InvalidName(f"the filter {pattern!r}: in {level!r} a wildcard has to stand alone")
        if level == "#" and number != len(levels) - 1:
            raise InvalidName(f"the filter {pattern!r}: '#' has to be the last level")


def _check_text(kind: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidName(f"a {kind} is text, not {text!r:.60}")
    if not text:
        raise InvalidName(f"a {kind} must not be empty")
    if "\0" in text:
        raise InvalidName(f"the {kind} {text!r} holds a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidName(f"the {kind} {text!r} is not Unicode text: {error.reason}") from None
    if size > _LONGEST:
        raise InvalidName(f"a {kind} of {size:,} bytes is too long; {_LONGEST:,} are the most")


def matches(pattern: str, topic: str) -> bool:
    """Does a filter match a topic? For one filter; `Bindings` looks in many at once."""
    if topic.startswith("$") and pattern[:1] in ("+", "#"):
        return False
    wanted, levels = pattern.split("/"), topic.split("/")
    for number, level in enumerate(wanted):
        if level == "#":
            return True
        if number == len(levels) or level not in ("+", levels[number]):
            return False
    return len(wanted) == len(levels)


class _Node(Generic[T]):
    """The filters that have begun with the same levels. `here` is bound to the one that ends here,
    `below` to that one with `#` behind it. Whoever has the `key` may change it."""

    __slots__ = ("below", "children", "here", "key")

    def __init__(self, key: object) -> None:
        self.key = key
        self.children: dict[str, _Node[T]] = {}
        self.here: set[T] = set()
        self.below: set[T] = set()

    def copy(self, key: object) -> _Node[T]:
        node: _Node[T] = _Node(key)
        node.children, node.here, node.below = dict(self.children), set(self.here), set(self.below)
        return node

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.here or self.below)


class Bindings(Generic[T]):
    """Filters, and what is bound to them.

    To match a topic takes time for its levels and for what it finds, not for how many filters there
    are. A copy shares everything with what it is a copy of, until one of them is changed: then that
    one gets its own nodes, from the root to the change. So what nobody changes any more may be read
    by any number of threads; else this is not thread-safe.
    """

    def __init__(self) -> None:
        self._key = object()  # of the nodes that nobody else has
        self._root: _Node[T] = _Node(self._key)

    def copy(self) -> Bindings[T]:
        """At once, however many there are."""
        other: Bindings[T] = Bindings()
        other._root = self._root
        self._key = object()  # they are no longer ours alone
        return other

    def add(self, pattern: str, bound: T) -> None:
        """Bind to a filter; a second time does nothing. `InvalidName` if it is none."""
        check_filter(pattern)
        levels, is_open = _path(pattern)
        node = self._own_root()
        for level in levels:
            node = self._own_child(node, level)
        (node.below if is_open else node.here).add(bound)

    def remove(self, pattern: str, bound: T) -> None:
        """Unbind, if it was bound."""
        levels, is_open = _path(pattern)
        node = self._root
        for level in levels:
            child = node.children.get(level)
            if child is None:
                return
            node = child
        if bound not in (node.below if is_open else node.here):
            return
        nodes = [self._own_root()]
        for level in levels:
            nodes.append(self._own_child(nodes[-1], level))
        (nodes[-1].below if is_open else nodes[-1].here).remove(bound)
        for level in reversed(levels):  # what leads nowhere goes
            if nodes.pop().is_empty:
                del nodes[-1].children[level]

    def _own_root(self) -> _Node[T]:
        if self._root.key is not self._key:
            self._root = self._root.copy(self._key)
        return self._root

    def _own_child(self, node: _Node[T], level: str) -> _Node[T]:
        """The child of a node that is ours, for us to change; it is made if there is none."""
        child = node.children.get(level)
        if child is None:
            child = node.children[level] = _Node(self._key)
        elif child.key is not self._key:
            child = node.children[level] = child.copy(self._key)
        return child

    def match(self, topic: str) -> set[T]:
        """All that is bound to a filter which matches the topic, each once."""
        found: set[T] = set()
        levels = topic.split("/")
        for node in self._reached(levels):
            found |= node
        return found

    def _reached(self, levels: list[str]) -> Iterator[set[T]]:
        """What is bound along the ways from the root that these levels can take."""
        if not levels[0].startswith("$"):
            yield self._root.below
        reached = [self._root]
        for number, level in enumerate(levels):
            steps = (level,) if not number and level.startswith("$") else (level, "+")
            reached = [
                node.children[step] for node in reached for step in steps if step in node.children
            ]
            for node in reached:
                yield node.below
        for node in reached:
            yield node.here


def _path(pattern: str) -> tuple[list[str], bool]:
    """The levels of a filter without the `#` at its end, and whether there is one."""
    levels = pattern.split("/")
    if levels[-1] == "#":
        return levels[:-1], True
    return levels, False
