"""TOML, with the line of everything.

The parser is Python's own, which tells no lines; so the text, which it has found to be good, is
gone through once more for where its keys are. That takes a fraction of the grammar: names, how a
string ends, and what brackets belong together.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Any, Final

from tailrace.config.nodes import DEEPEST, LARGEST, Node, refuse

__all__ = ["locate", "parse_toml"]

_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")
_AT_END: Final = " (at end of document)"
_DIGITS: Final = re.compile(r"[0-9_]{4000}")

Path = tuple[str | int, ...]


def parse_toml(text: str) -> Node:
    text = text.replace("\r\n", "\n")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        match = _AT_LINE.search(said)
        line = int(match[1]) if match else text.rstrip("\n").count("\n") + 1
        refuse(line, f"this is not TOML: {_AT_LINE.sub('', said).removesuffix(_AT_END)}")
    except ValueError:  # Python reads no number of so many digits
        found = _DIGITS.search(text)
        refuse(text.count("\n", 0, found.start()) + 1 if found else 1, "this number is too long")
    except RecursionError:
        refuse(_line_of_most_brackets(text), "this is nested too deeply")
    _check(document, text)
    return _node(document, (), locate(text), 1)


def _line_of_most_brackets(text: str) -> int:
    counts = [line.count("[") + line.count("{") for line in text.split("\n")]
    return counts.index(max(counts)) + 1


def _check(document: dict[str, Any], text: str) -> None:
    """Depth first, without recursion: that what follows may recurse."""
    todo: list[tuple[Any, int]] = [(document, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > DEEPEST:
            refuse(_line_of_most_brackets(text), "this is nested too deeply")
        children = value.values() if isinstance(value, dict) else value
        todo += [(child, depth + 1) for child in children if isinstance(child, dict | list)]


def _node(value: Any, path: Path, lines: dict[Path, int], above: int) -> Node:
    line = lines.get(path, above)
    if isinstance(value, dict):
        return Node({key: _node(v, (*path, key), lines, line) for key, v in value.items()}, line)
    if isinstance(value, list):
        return Node([_node(v, (*path, i), lines, line) for i, v in enumerate(value)], line)
    if isinstance(value, int) and abs(value) >= LARGEST:
        refuse(line, "this number is too large")
    return Node(value, line)


# --- lines ----------------------------------------------------------------------------------


def locate(text: str) -> dict[Path, int]:
    """The line of each key and each element of a document that is known to be good TOML: where it
    is first named."""
    return _Locator(text).run()


class _Locator:
    _SPACE = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
    _BARE = re.compile(r"[A-Za-z0-9_-]+")
    _STRINGS = (
        re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
        re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
        re.compile(r'"(?:\\.|[^"\\])*"'),
        re.compile(r"'[^']*'"),
    )
    _REST = re.compile(r"[^,\]}#\n]*")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lines: dict[Path, int] = {}
        self._last: dict[Path, int] = {}  # of an array of tables: which one is being written

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_space():
            if self._take("[["):
                table = self._table(is_array=True)
                self._take("]]")
            elif self._take("["):
                table = self._table(is_array=False)
                self._take("]")
            else:
                self._pair(table)
        return self._lines

    def _table(self, *, is_array: bool) -> Path:
        line = self._line()
        path: Path = ()
        names = self._names()
        for depth, name in enumerate(names, 1):
            path = self._note((*path, name), line)
            if is_array and depth == len(names):
                self._last[path] = self._last.get(path, -1) + 1
            if path in self._last:
                path = self._note((*path, self._last[path]), line)
        return path

    def _pair(self, path: Path) -> None:
        line = self._line()
        for name in self._names():
            path = self._note((*path, name), line)
        self._take("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_space()
        if self._take("["):
            number = 0
            while self._skip_space() and not self._take("]"):
                self._value(self._note((*path, number), self._line()))
                number += 1
                self._comma()
        elif self._take("{"):
            while self._skip_space() and not self._take("}"):
                self._pair(path)
                self._comma()
        elif self._string() is None and not self._match(self._REST):
            self._give_up()

    def _comma(self) -> None:
        self._skip_space()
        self._take(",")

    def _names(self) -> list[str]:
        """The parts of a key, whose dots may have space around them."""
        names: list[str] = []
        while not names or self._take("."):
            self._skip_space()
            quoted = self._string()
            if quoted is None:
                names.append(self._match(self._BARE) or self._give_up())
            else:
                names += tomllib.loads(f"{quoted} = 0")  # its escapes are Python's to read
            self._skip_space()
        return names

    def _give_up(self) -> str:
        """What is here is no TOML that this knows: better no line than no end."""
        self._position = len(self._text)
        return ""

    def _string(self) -> str | None:
        for pattern in self._STRINGS:
            found = self._match(pattern)
            if found is not None:
                return found
        return None

    def _skip_space(self) -> bool:
        """Whether anything is left."""
        self._match(self._SPACE)
        return self._position < len(self._text)

    def _take(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._position)
        if found:
            self._position += len(expected)
        return found

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._text, self._position)
        if found is None:
            return None
        self._position = found.end()
        return found[0]

    def _line(self) -> int:
        return bisect_right(self._starts, self._position)

    def _note(self, path: Path, line: int) -> Path:
        self._lines.setdefault(path, line)
        return path
