"""YAML, as far as a configuration needs it, with the line of everything.

The parser is PyYAML's; what its events mean is decided here, by YAML 1.2: `on`, `yes` and `off` are
text, `010` is ten, a date is text. Keys are text. Anchors, aliases and merge keys (`<<`) work; a
tag may only name a type of YAML itself, so nothing in a file can make objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.reader import Reader

from tailrace.config.nodes import DEEPEST, LARGEST, Node, refuse

__all__ = ["parse_yaml"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
_MERGE: Final = "<<"
_TAG: Final = "tag:yaml.org,2002:"
_COLLECTIONS: Final = {"map": dict, "seq": list}
_HALVES: Final = re.compile(r"[\ud800-\udfff]")


def parse_yaml(text: str) -> tuple[Node, list[tuple[int, str]]]:
    """The document, and (line, message) of what is wrong but did not keep it from being read."""
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        refuse(line, f"there is a character that YAML does not allow: {unprintable[0]!r}")
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        last = len(text.splitlines())  # what is missing at the end is missing in the last line
        refuse(max(min(mark.line + 1, last), 1) if mark else 1, f"this is not YAML: {said}")
    except yaml.YAMLError as error:
        refuse(1, f"this is not YAML: {error}")
    return builder.root or Node({}, 1), builder.problems


@dataclass(slots=True)
class _Frame:
    """A list or mapping that has begun."""

    value: dict[str, Node] | list[Node]
    line: int
    anchor: str | None
    key: str | None = None  # of a mapping: the one whose value is next
    key_line: int = 0
    merged: list[dict[str, Node]] = field(default_factory=list)

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None


class _Builder:
    """Makes nodes of events, without recursion: a file may be nested as deeply as it likes."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.problems: list[tuple[int, str]] = []
        self._stack: list[_Frame] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.AliasEvent():
                self._alias(event.anchor, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.DocumentStartEvent() if self.root is not None:
                refuse(line, "a second document begins; a configuration is one")

    def _scalar(self, event: Any, line: int) -> None:
        if _HALVES.search(event.value):
            refuse(line, "there is an escape that is half a character")
        if self._stack and self._stack[-1].wants_key:
            node = Node(event.value, line)
        else:
            node = Node(_resolve(event, line), line)
        if event.anchor:
            self._anchors[event.anchor] = node
        self._put(node)

    def _alias(self, name: str | None, line: int) -> None:
        assert name is not None
        if any(frame.anchor == name for frame in self._stack):
            refuse(line, f"*{name} is inside what it stands for")
        if name not in self._anchors:
            refuse(line, f"there is no &{name} before this")
        self._put(Node(self._anchors[name].value, line))

    def _begin(self, event: Any, line: int) -> None:
        if self._stack and self._stack[-1].wants_key:
            refuse(line, "a key is a name, not a list or mapping")
        if len(self._stack) == DEEPEST:
            refuse(line, "this is nested too deeply")
        kind = dict if isinstance(event, yaml.MappingStartEvent) else list
        if event.tag and _COLLECTIONS.get(event.tag.removeprefix(_TAG)) is not kind:
            refuse(line, f"the tag {event.tag!r} means nothing here; remove it")
        self._stack.append(_Frame(kind(), line, event.anchor))

    def _end(self) -> None:
        frame = self._stack.pop()
        if isinstance(frame.value, dict):
            for merged in frame.merged:
                for key, node in merged.items():
                    frame.value.setdefault(key, node)
        node = Node(frame.value, frame.line)
        if frame.anchor:
            self._anchors[frame.anchor] = node
        self._put(node)

    def _put(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        if isinstance(frame.value, list):
            frame.value.append(node)
        elif frame.key is None:
            self._key(frame, node)
        else:
            self._entry(frame, frame.value, frame.key, node)
            frame.key = None

    def _key(self, frame: _Frame, node: Node) -> None:
        if not isinstance(node.value, str):
            refuse(node.line, "a key is a name, and this is none")
        frame.key, frame.key_line = node.value, node.line

    def _entry(self, frame: _Frame, into: dict[str, Node], key: str, node: Node) -> None:
        line = frame.key_line
        if key == _MERGE:
            frame.merged += _to_merge(node.value, line)
        elif key in into:
            self.problems.append(
                (line, f"the key {key!r:.60} is there twice, first on line {into[key].line}")
            )
        else:
            into[key] = Node(node.value, line)


def _to_merge(value: Any, line: int) -> list[dict[str, Node]]:
    values = [node.value for node in value] if isinstance(value, list) else [value]
    found = [each for each in values if isinstance(each, dict)]
    if len(found) < len(values):
        refuse(line, "<< takes a mapping, or a list of them")
    return found


# --- scalars --------------------------------------------------------------------------------


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _truth(text: str) -> bool:
    return text.lower() == "true"


def _number(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_Resolvers = dict[str, tuple[re.Pattern[str], Callable[[str], Any]]]
_RESOLVERS: Final[_Resolvers] = {
    "null": (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), _truth),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), _integer),
    "float": (
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        _number,
    ),
}


def _resolve(event: Any, line: int) -> Any:
    """The value of a scalar: by its tag, else by how it looks if it is not quoted."""
    text: str = event.value
    if event.tag and event.tag != "!":
        kind = event.tag.removeprefix(_TAG)
        if kind == "str":
            return text
        if kind not in _RESOLVERS:
            refuse(line, f"the tag {event.tag!r} means nothing here; remove it")
        pattern, parse = _RESOLVERS[kind]
        if not pattern.fullmatch(text):
            refuse(line, f"{text!r:.60} is not a value of the tag !!{kind}")
        return _bounded(parse, text, line)
    if event.implicit[0] and event.tag != "!":
        for pattern, parse in _RESOLVERS.values():
            if pattern.fullmatch(text):
                return _bounded(parse, text, line)
    return text


def _bounded(parse: Callable[[str], Any], text: str, line: int) -> Any:
    if len(text) > 1000:
        refuse(line, "this number is too long")
    value = parse(text)
    if isinstance(value, int) and abs(value) >= LARGEST:
        refuse(line, "this number is too large")
    return value
