"""What a file says, and on which line: the same for YAML and TOML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn

__all__ = ["DEEPEST", "LARGEST", "Node", "Problem", "Unreadable", "refuse"]

DEEPEST: Final = 100  # levels; the schema needs six
LARGEST: Final = 10**100  # Python refuses to write out a number of some thousand digits
_LONGEST: Final = 400  # characters of a message: it may quote what is in the file


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its line: that of its key where it has one.

    `value` is a scalar, a list of nodes, or a dict of nodes. By an alias of YAML several nodes may
    have the same value, so a tree of them may be far larger than its file: go into what the schema
    knows, and nowhere else.
    """

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in a file, and where. `key` is the path of the key: `queues[0].limits`."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        said = f"{self.key}: {self.message}" if self.key else self.message
        if len(said) > _LONGEST:
            said = said[:_LONGEST] + "…"
        return f"{self.file}:{self.line}: {said}"


class Unreadable(Exception):
    """The text is not YAML or TOML from this line on. Never leaves this package."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def refuse(line: int, message: str) -> NoReturn:
    raise Unreadable(line, message)
